//! A pay button: what two clicks at the same moment come to, with a client in the middle of a back end.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::process::Command;

use super::workshop::{BackEnd, run};
use super::{gateway, url};
use crate::support::{eventually, free_port};

/// What the back end answers: the status and the JSON.
async fn ask(method: &str, port: u16, path: &str) -> (u16, Value) {
    let mut command = Command::new("curl");
    let url = format!("http://127.0.0.1:{port}{path}");
    let said =
        run(command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "-X", method, &url])).await;
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).expect(body))
}

async fn two_clicks_at_once_pay_once(back_end: BackEnd) {
    let (gateway, port) = (gateway().await, free_port());
    let variables = [("FENCEPOST_URL", url(&gateway)), ("PORT", port.to_string())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let _back_end = back_end.start(&variables).await;
    eventually("it listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok())
        .await;
    let click = || tokio::spawn(async move { ask("POST", port, "/pay/4711").await });
    let clicks = [click(), click()];
    // While one of them charges, and the other waits for it, others are answered.
    eventually("both are at work", async || ask("GET", port, "/health").await.1["paying"] == 2).await;
    assert_eq!(ask("GET", port, "/health").await, (200, serde_json::json!({ "paying": 2, "charging": 1 })));
    let charged = Instant::now();
    ask("POST", port, "/charged").await;
    let mut answers = Vec::new();
    for click in clicks {
        answers.push(click.await.unwrap());
    }
    assert!(charged.elapsed() < Duration::from_secs(1), "{back_end:?}: {:?}", charged.elapsed());
    let answer = |is_stored: bool| (200, serde_json::json!({ "charge": "ch_1", "stored": is_stored }));
    answers.sort_by_key(|(_, body)| body["stored"].as_bool());
    assert_eq!(answers, [answer(false), answer(true)], "{back_end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clicks_at_once_pay_once_in_express() {
    two_clicks_at_once_pay_once(BackEnd::Express).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clicks_at_once_pay_once_in_fastapi() {
    two_clicks_at_once_pay_once(BackEnd::FastApi).await;
}
