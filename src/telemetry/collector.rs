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

/// How long the collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// While the collector cannot be reached, it is logged at most this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Sends the spans that it is given. It logs a failure, because nothing else would report it.
#[derive(Debug)]
pub(super) struct Collector {
    client: Client,
    /// The thread that sends has no runtime of its own.
    runtime: Handle,
    warned: Arc<Mutex<Option<Instant>>>,
}

impl Collector {
    /// Must be called within a runtime.
    pub(super) fn new(endpoint: &str) -> Result<Self, reqwest::Error> {
        // It is there already if the store is reached by TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder().timeout(PATIENCE).redirect(Policy::none());
        if endpoint.starts_with("http://") {
            // If no certificates are needed, this machine need not have any.
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
            // We do not use the rest of the answer, and it might have no end.
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

/// The cause of the failure. The errors above it only say that sending failed.
fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
