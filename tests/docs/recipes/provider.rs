//! A payment provider. It takes money once for each idempotency key, and keeps what it first said to a key.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// How an order is answered is said by how its name begins:
///
/// - `declined`: the first attempt is declined, for ever.
/// - `broken`: the first attempt is answered with a 500, for ever, and not charged.
/// - `cut`, `bare`: it is charged; the first answer is cut, or has no receipt.
/// - `refused`: the first request is refused as one with a wrong key.
/// - `compact`: its JSON has no spaces.
pub struct Provider {
    pub url: String,
    till: Arc<Till>,
}

struct Till {
    receipts: Mutex<BTreeMap<String, String>>,
    requests: Mutex<Vec<String>>,
    /// Answers wait for a permit.
    answers: Semaphore,
}

impl Provider {
    pub async fn start() -> Self {
        let till = Arc::new(Till {
            receipts: Mutex::default(),
            requests: Mutex::default(),
            answers: Semaphore::new(Semaphore::MAX_PERMITS),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        let router = Router::new().route("/charges", routing::post(charge)).with_state(till.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, till }
    }

    pub fn requests(&self, order: &str) -> usize {
        self.requests_by(&format!("{order}-1"))
    }

    pub fn requests_by(&self, key: &str) -> usize {
        self.till.requests.lock().unwrap().iter().filter(|used| *used == key).count()
    }

    pub fn charges(&self) -> usize {
        self.till.receipts.lock().unwrap().len()
    }

    /// From here on it takes money, and says nothing.
    pub fn is_silent(&self) {
        self.till.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn answers_again(&self) {
        self.till.answers.add_permits(1000);
    }
}

async fn charge(State(till): State<Arc<Till>>, headers: HeaderMap, body: String) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), json!({"cents": 1999}));
    let is_first = {
        let mut requests = till.requests.lock().unwrap();
        requests.push(key.clone());
        requests.iter().filter(|used| **used == key).count() == 1
    };
    let kind = key.split('-').next().unwrap().to_owned();
    let refusal = match kind.as_str() {
        "declined" if key.ends_with("-1") => Some(StatusCode::PAYMENT_REQUIRED),
        "broken" if key.ends_with("-1") => Some(StatusCode::INTERNAL_SERVER_ERROR),
        "refused" if is_first => Some(StatusCode::UNAUTHORIZED),
        _ => None,
    };
    if let Some(status) = refusal {
        drop(till.answers.acquire().await.unwrap());
        return status.into_response();
    }
    let receipt = {
        let mut receipts = till.receipts.lock().unwrap();
        let number = receipts.len() + 1;
        receipts.entry(key).or_insert_with(|| format!("ch_{number}")).clone()
    };
    drop(till.answers.acquire().await.unwrap());
    match kind.as_str() {
        "cut" if is_first => {
            let crash = async {
                // What is there is written before it is asked for more a second time.
                tokio::task::yield_now().await;
                Err(io::Error::other("the provider has crashed"))
            };
            let first = futures_util::stream::iter([Ok(Bytes::from("{\"rec"))]);
            Body::from_stream(first.chain(futures_util::stream::once(crash))).into_response()
        }
        "bare" if is_first => "{}".into_response(),
        "compact" => format!("{{\"receipt\":\"{receipt}\"}}").into_response(),
        _ => format!("{{\"receipt\": \"{receipt}\"}}").into_response(),
    }
}
