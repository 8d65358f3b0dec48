//! A pay button: what two clicks at the same moment come to in the web servers of docs/clients.md.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::page::save;
use super::workshop::{installed, root, run, tool};
use super::{gateway, url};
use crate::support::{Client, eventually, free_port};

/// What the web server answers: the status and the JSON.
async fn ask(method: &str, port: u16, path: &str) -> (u16, Value) {
    let mut command = Command::new("curl");
    let url = format!("http://127.0.0.1:{port}{path}");
    let said =
        run(command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "-X", method, &url])).await;
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).expect(body))
}

/// Puts the shop of the page there, with these files of the clients, and what it needs for a test.
fn open_shop(shop: &str, place: &Path, clients: &[&str]) {
    save(shop, place, clients);
    for name in ["payments", "serve"] {
        let file = shop.replace("shop", name);
        std::fs::copy(root().join("tests/clients").join(&file), place.join(file)).unwrap();
    }
}

/// Two clicks on the same order, one of which finds the other one charging.
async fn two_clicks_at_once_pay_once(mut server: Command) {
    let (gateway, port) = (gateway().await, free_port());
    server.env("FENCEPOST_URL", url(&gateway)).env("PORT", port.to_string());
    server.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let _server = server.spawn().unwrap();
    eventually("it listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
    let click = || tokio::spawn(async move { ask("POST", port, "/pay/4711").await });
    let clicks = [click(), click()];
    let look = Client::new(gateway.address);
    let waiters = async || look.get("/locks/pay:4711").send().await.json()["waiters"] == 1;
    eventually("one waits for the other", waiters).await;
    // Meanwhile the server answers others.
    let charging = async || ask("GET", port, "/health").await == (200, json!({ "looked": 1, "charging": 1 }));
    eventually("the other one charges", charging).await;
    let charged = Instant::now();
    ask("POST", port, "/charged").await;
    for click in clicks {
        assert_eq!(click.await.unwrap(), (200, json!({ "receipt": "receipt 1 of 4711" })));
    }
    assert!(charged.elapsed() < Duration::from_secs(1), "{:?}", charged.elapsed());
    assert_eq!(ask("GET", port, "/health").await.1, json!({ "looked": 2, "charging": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clicks_at_once_pay_once_in_fastapi() {
    let place = tempfile::tempdir().unwrap();
    open_shop("shop.py", place.path(), &["fencepost.py", "fencepost_async.py"]);
    let mut server = Command::new(tool("python"));
    server.arg(place.path().join("serve.py"));
    two_clicks_at_once_pay_once(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clicks_at_once_pay_once_in_express() {
    let place = tempfile::tempdir().unwrap();
    open_shop("shop.mjs", place.path(), &["fencepost.mjs"]);
    std::os::unix::fs::symlink(installed("node_modules"), place.path().join("node_modules")).unwrap();
    let mut server = Command::new("node");
    server.arg(place.path().join("serve.mjs"));
    two_clicks_at_once_pay_once(server).await;
}
