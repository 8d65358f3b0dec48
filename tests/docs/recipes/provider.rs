//! A payment provider. It takes money once for each idempotency key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Json, Router, routing};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub struct Provider {
    pub url: String,
    till: Arc<Till>,
}

struct Till {
    receipts: Mutex<BTreeMap<String, String>>,
    /// Answers wait for a permit.
    answers: Semaphore,
}

impl Provider {
    pub async fn start() -> Self {
        let answers = Semaphore::new(Semaphore::MAX_PERMITS);
        let till = Arc::new(Till { receipts: Mutex::default(), answers });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        let router = Router::new().route("/charges", routing::post(charge)).with_state(till.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, till }
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

/// What is asked to cost 402 is declined.
async fn charge(
    State(till): State<Arc<Till>>,
    headers: HeaderMap,
    body: String,
) -> Result<Json<Value>, StatusCode> {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let cents = serde_json::from_str::<Value>(&body).unwrap()["cents"].clone();
    if cents == 402 {
        return Err(StatusCode::PAYMENT_REQUIRED);
    }
    assert_eq!(cents, 1999);
    let receipt = {
        let mut receipts = till.receipts.lock().unwrap();
        let number = receipts.len() + 1;
        receipts.entry(key).or_insert_with(|| format!("ch_{number}")).clone()
    };
    drop(till.answers.acquire().await.unwrap());
    Ok(Json(json!({"receipt": receipt})))
}
