//! A pay button: what two clicks at the same moment come to in the web servers of docs/recipes/pay.md.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::page::save;
use super::workshop::{installed, root, run, tool};
use super::{gateway, url};
use crate::support::{Client, Gateway, KeysFile, eventually, free_port};

/// What the web server answers: the status and the JSON, if it is that.
async fn ask(method: &str, port: u16, path: &str) -> (u16, Value) {
    let mut command = Command::new("curl");
    let url = format!("http://127.0.0.1:{port}{path}");
    let said =
        run(command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "-X", method, &url])).await;
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

/// Puts the shop of the page there, with these files of the clients, and what it needs for a test.
fn open_shop(shop: &str, place: &Path, clients: &[&str]) {
    save(shop, place, clients);
    for name in ["payments", "serve"] {
        let file = shop.replace("shop", name);
        std::fs::copy(root().join("tests/clients").join(&file), place.join(file)).unwrap();
    }
}

/// Starts the web server, and returns the port that it listens on.
async fn serve(server: &mut Command, gateway: &str) -> (Child, u16) {
    let port = free_port();
    server.env("FENCEPOST_URL", gateway).env("PORT", port.to_string());
    server.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let child = server.spawn().unwrap();
    eventually("it listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
    (child, port)
}

/// Two clicks on the same order, one of which finds the other one charging.
async fn two_clicks_at_once_pay_once(mut server: Command) {
    let gateway = gateway().await;
    let (_server, port) = serve(&mut server, &url(&gateway)).await;
    let click = || tokio::spawn(async move { ask("POST", port, "/pay/4711").await });
    let clicks = [click(), click()];
    let look = Client::new(gateway.address);
    let waiters = async || look.get("/locks/pay:4711").send().await.json()["waiters"] == 1;
    eventually("one waits for the other", waiters).await;
    // Meanwhile the server answers others.
    let charging = async || ask("GET", port, "/health").await == (200, json!({ "looked": 3, "charging": 1 }));
    eventually("the other one charges", charging).await;
    let charged = Instant::now();
    ask("POST", port, "/charged").await;
    for click in clicks {
        assert_eq!(click.await.unwrap(), (200, json!({ "receipt": "receipt 1 of 4711" })));
    }
    assert!(charged.elapsed() < Duration::from_secs(1), "{:?}", charged.elapsed());
    assert_eq!(ask("GET", port, "/health").await.1, json!({ "looked": 4, "charging": 1 }));
}

/// Clicks on orders that something goes wrong with.
async fn each_click_is_told_how_its_payment_stands(mut server: Command) {
    let mut gateway = gateway().await;
    let (_server, port) = serve(&mut server, &url(&gateway)).await;
    // The operator breaks the lock while the provider charges: the receipt is stored all the same.
    let lost = tokio::spawn(async move { ask("POST", port, "/pay/lost").await });
    let charging = async || ask("GET", port, "/health").await.1["charging"] == 1;
    eventually("it is charged", charging).await;
    Client::new(gateway.address).delete("/locks/pay:lost?force=true").send().await.expect(204);
    ask("POST", port, "/charged").await;
    assert_eq!(lost.await.unwrap(), (200, json!({ "receipt": "receipt 1 of lost" })));
    // The provider keeps what it said to a key: the next attempt has another one.
    assert_eq!(ask("POST", port, "/pay/declined").await.0, 402);
    assert_eq!(
        ask("POST", port, "/pay/declined").await,
        (200, json!({ "receipt": "receipt 3 of declined" }))
    );
    assert_eq!(ask("POST", port, "/pay/away").await.0, 503);
    // What is paid needs no gateway.
    gateway.kill();
    assert_eq!(ask("POST", port, "/pay/lost").await, (200, json!({ "receipt": "receipt 1 of lost" })));
    assert_eq!(ask("POST", port, "/pay/4711").await.0, 503);
}

/// The gateway refuses the server's API key. The customer has none, and is not told of a wrong one.
async fn a_wrong_api_key_is_an_error_of_the_server(mut server: Command) {
    let (mut keys, wrong) = (KeysFile::new(), format!("fp_{}_{}", "a".repeat(12), "b".repeat(32)));
    keys.add_for_all("shop", "\"acquire\"");
    keys.write();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let (_server, port) = serve(server.env("FENCEPOST_API_KEY", wrong), &url(&gateway)).await;
    assert_eq!(ask("POST", port, "/pay/4711").await.0, 500);
}

/// The shop with FastAPI, in this place.
fn fastapi(place: &Path) -> Command {
    open_shop("shop.py", place, &["fencepost.py", "fencepost_async.py"]);
    let mut server = Command::new(tool("python"));
    server.arg(place.join("serve.py"));
    server
}

/// The shop with Express, in this place.
fn express(place: &Path) -> Command {
    open_shop("shop.mjs", place, &["fencepost.mjs"]);
    std::os::unix::fs::symlink(installed("node_modules"), place.join("node_modules")).unwrap();
    let mut server = Command::new("node");
    server.arg(place.join("serve.mjs"));
    server
}

/// Makes a test out of a function that is given a shop, for each framework.
macro_rules! in_each_framework {
    ($($fastapi:ident, $express:ident: $scenario:ident;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $fastapi() {
                let place = tempfile::tempdir().unwrap();
                $scenario(fastapi(place.path())).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn $express() {
                let place = tempfile::tempdir().unwrap();
                $scenario(express(place.path())).await;
            }
        )+
    };
}

in_each_framework!(
    two_clicks_at_once_pay_once_in_fastapi, two_clicks_at_once_pay_once_in_express: two_clicks_at_once_pay_once;
    each_click_is_told_in_fastapi, each_click_is_told_in_express: each_click_is_told_how_its_payment_stands;
    a_wrong_api_key_is_500_in_fastapi, a_wrong_api_key_is_500_in_express: a_wrong_api_key_is_an_error_of_the_server;
);
