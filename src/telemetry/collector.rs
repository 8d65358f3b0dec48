//! The way to the collector of traces.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use parking_lot::Mutex;
use reqwest::Client;
use reqwest::redirect::Policy;
use tokio::runtime::Handle;

/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// A collector that is away is warned of at most this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Sends what it is given to send, and says in the log where that fails: nobody else would hear of it.
#[derive(Debug)]
pub(super) struct Collector {
    client: Client,
    /// The thread that sends has no runtime of its own.
    runtime: Handle,
    warned: Arc<Mutex<Option<Instant>>>,
}

impl Collector {
    /// Within a runtime.
    pub(super) fn new(endpoint: &str) -> Result<Self, reqwest::Error> {
        // Already there, where the store is reached by TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder().timeout(PATIENCE).redirect(Policy::none());
        if endpoint.starts_with("http://") {
            // Where no certificates are needed, none need be installed on this machine.
            client = client.tls_certs_only([]);
        }
        let client = client.build()?;
        Ok(Self { client, runtime: Handle::current(), warned: Arc::default() })
    }

    fn warn(&self, problem: &str) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(problem, "traces are lost: the collector does not accept them");
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let answer = client.execute(request.try_into()?).await?;
            let mut response = Response::new(Bytes::new());
            // What else it says is of no use to us, and might have no end.
            *response.status_mut() = answer.status();
            Ok::<_, reqwest::Error>(response)
        });
        let answer = sent.await?;
        match &answer {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.warn(&format!("its answer is {}", response.status())),
            Err(error) => self.warn(&innermost(error)),
        }
        Ok(answer?)
    }
}

/// What has happened; the layers above it say no more than that sending failed.
fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
