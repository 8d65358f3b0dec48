//! The middleware of docs/recipes/idempotency.md in its web servers, with a payment provider of the test's.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::handlers::{LOCKS_OF_EXPRESS, LOCKS_OF_STARLETTE};
use super::provider::Provider;
use super::{Scene, on_each_gateway};
use crate::clients::{installed, root, tool};
use crate::pages::file;
use kit::{PATIENCE, eventually, server_port};

mod by_hand;
mod express;
mod starlette;

on_each_gateway!(
    of_requests_at_once_one_charges_and_repetitions_get_its_answer,
    an_answer_that_says_too_little_is_not_repeated,
    what_a_killed_server_may_have_done_is_not_done_again,
    a_server_that_may_take_over_ends_what_a_killed_one_began,
    what_locks_of_the_handler_raise_is_a_failure_of_the_handler,
    nobody_is_not_served,
    what_a_provider_declines_is_told_again,
    a_request_with_two_keys_is_refused,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framework {
    FastApi,
    Express,
}

const FRAMEWORKS: [Framework; 2] = [Framework::FastApi, Framework::Express];

/// Whoever copies it has to read it first.
#[test]
fn each_middleware_is_shorter_than_100_lines() {
    for name in ["idempotent.mjs", "idempotent.py"] {
        let lines = file(name).lines().count();
        assert!((20..100).contains(&lines), "{name} has {lines} lines");
    }
}

/// A server with the programs of the page. It is killed when this is dropped.
struct Server {
    port: u16,
    child: Child,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
    location: String,
    retry_after: String,
    /// What is said of the body, if it is left out.
    left_out: String,
    is_replayed: bool,
}

impl Server {
    /// One whose leases are as the page says, or `options` in their place: those of Python and of JavaScript.
    async fn start(
        framework: Framework,
        scene: &Scene,
        provider: &Provider,
        options: Option<[&str; 2]>,
    ) -> Self {
        Self::start_with(framework, scene, provider, options, "").await
    }

    /// The same with more code in its program: before what Express does with errors, or at the end.
    async fn start_with(
        framework: Framework,
        scene: &Scene,
        provider: &Provider,
        options: Option<[&str; 2]>,
        more: &str,
    ) -> Self {
        let port = server_port();
        let (files, clients): (_, &[&str]) = match framework {
            Framework::FastApi => (["orders.py", "idempotent.py"], &["fencepost.py", "fencepost_async.py"]),
            Framework::Express => (["orders.mjs", "idempotent.mjs"], &["fencepost.mjs"]),
        };
        for name in files {
            let mut code = file(name);
            if let (Some([python, javascript]), true) = (options, name.starts_with("orders")) {
                assert!(code.contains("ttl_s=30") || code.contains("ttlMs: 30_000"));
                code = code.replace("ttl_s=30", python).replace("ttlMs: 30_000", javascript);
            }
            if name.starts_with("orders") {
                let (before, last) = code.split_at(code.find("app.use((cause").unwrap_or(code.len()));
                code = [before, more, last].concat();
            }
            scene.write(name, &code);
        }
        for name in clients {
            std::fs::copy(root().join("examples/clients").join(name), scene.shell.path(name)).unwrap();
        }
        let mut command = match framework {
            Framework::FastApi => {
                let uvicorn =
                    ["-m", "uvicorn", "--log-level", "warning", "--port", &port.to_string(), "orders:app"];
                scene.command(tool("python"), &uvicorn)
            }
            Framework::Express => {
                let _ = symlink(installed("node_modules"), scene.shell.path("node_modules"));
                scene.command("node", &["orders.mjs"])
            }
        };
        command.env("PAYMENTS_URL", &provider.url).env("PORT", port.to_string());
        command.env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true);
        let child = command.stdout(Stdio::inherit()).stderr(Stdio::inherit()).spawn().unwrap();
        eventually("it listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { port, child }
    }

    /// A request that is not waited for.
    fn begin(&self, user: &str, key: &str, cents: &str) -> JoinHandle<Answer> {
        let url = format!("http://127.0.0.1:{}/charges", self.port);
        tokio::spawn(ask(url, user.to_owned(), key.to_owned(), cents.to_owned()))
    }

    async fn asks_at(&self, path: &str, key: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        ask(url, "ann".to_owned(), key.to_owned(), "1999".to_owned()).await
    }

    /// The headers of its answer that a repetition has too, and the body. The path is the key, too.
    async fn said_at(&self, path: &str) -> String {
        let (url, key) =
            (format!("http://127.0.0.1:{}{path}", self.port), format!("Idempotency-Key: {path}"));
        let mut command = Command::new("curl");
        command.args(["-sSi", "--max-time", "30", "-X", "POST", "-H", "X-User: ann", "-H", &key, &url]);
        let said = command.output().await.unwrap().stdout;
        let said = String::from_utf8_lossy(&said).to_lowercase();
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{said}"));
        let is_repeated = |line: &&str| line.starts_with("content-type:") || line.starts_with("link:");
        head.lines().filter(is_repeated).chain([body]).collect::<Vec<_>>().join("\n")
    }

    async fn asks(&self, key: &str, cents: &str) -> Answer {
        self.begin("ann/b", key, cents).await.unwrap()
    }

    async fn is_told(&self, key: &str, cents: &str, status: u16, detail: &str) {
        let answer = self.asks(key, cents).await;
        answer.is_refused(status, detail);
        let is_to_come_again = (1..=5).contains(&answer.retry_after.parse().unwrap_or(0));
        assert!(is_to_come_again == matches!(status, 409 | 503) && !answer.is_replayed, "{answer:?}");
    }
}

impl Answer {
    fn is_refused(&self, status: u16, detail: &str) {
        let said = self.body["detail"].as_str().unwrap_or_default();
        assert!(self.status == status && said.contains(detail), "{self:?}");
    }

    fn is_receipt(&self, receipt: &str, is_replayed: bool) {
        assert_eq!((self.status, self.is_replayed), (201, is_replayed), "{self:?}");
        assert_eq!(
            (&self.body["receipt"], &self.location),
            (&receipt.into(), &format!("/charges/{receipt}"))
        );
    }
}

async fn ask(url: String, user: String, key: String, cents: String) -> Answer {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60", "-X", "POST", "-H", "Content-Type: application/json"]);
    // Without a value, the header is there all the same.
    let user = if user.is_empty() { "X-User;".to_owned() } else { format!("X-User: {user}") };
    command.args(["-H", &user, "-d", &format!("{{\"cents\": {cents}}}")]);
    if !key.is_empty() {
        command.args(["-H", &format!("Idempotency-Key: {key}")]);
    }
    let names = ["location", "idempotency-body", "retry-after", "idempotency-replayed"];
    let headers: String = names.map(|name| format!("\n%header{{{name}}}")).concat();
    command.args(["-w", &format!("{headers}\n%{{http_code}}"), &url]);
    let said = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
    let [status, replayed, retry_after, left_out, location, body] =
        said.rsplitn(6, '\n').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{said}"));
    Answer {
        status: status.parse().unwrap(),
        body: serde_json::from_str(body).unwrap_or_default(),
        location: location.to_owned(),
        retry_after: retry_after.to_owned(),
        left_out: left_out.to_owned(),
        is_replayed: replayed == "true",
    }
}

async fn of_requests_at_once_one_charges_and_repetitions_get_its_answer(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        let other = Server::start(framework, &scene, &provider, None).await;
        let key = format!("{framework:?}");
        provider.is_silent();
        let mut clicks = vec![server.begin("ann/b", &key, "1999"), other.begin("ann/b", &key, "1999")];
        eventually("one is told to wait", async || clicks.iter().any(JoinHandle::is_finished)).await;
        let at = clicks.iter().position(JoinHandle::is_finished).unwrap();
        let refused = clicks.remove(at).await.unwrap();
        assert!(refused.status == 409 && !refused.retry_after.is_empty(), "{refused:?}");
        eventually("the other charges", async || provider.charges() == 1).await;
        server.is_told(&key, "1999", 409, "is at work").await;
        provider.answers_again();
        clicks.remove(0).await.unwrap().is_receipt("ch_1", false);
        for server in [&server, &other] {
            server.asks(&key, "1999").await.is_receipt("ch_1", true);
        }
        assert_eq!(provider.charges(), 1);
        // A key is its user's own, and its request's.
        server.begin("bob", &key, "1999").await.unwrap().is_receipt("ch_2", false);
        server.is_told(&key, "2000", 422, "another request").await;
        server.is_told("", "1999", 400, "Idempotency-Key").await;
    }
}

async fn an_answer_that_says_too_little_is_not_repeated(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        let [refused, failed] = ["refused", "failed"].map(|what| format!("{what} {framework:?}"));
        // Nothing was done: the request may come again, corrected.
        server.is_told(&refused, "0", 400, "above 0").await;
        server.asks(&refused, "1999").await.is_receipt("ch_1", false);
        // The provider falls silent at another price, and what it has done nobody knows.
        assert_eq!(server.asks(&failed, "1").await.status, 500);
        server.is_told(&failed, "1", 500, "not known").await;
        assert_eq!(provider.charges(), 1);
    }
}

async fn what_a_killed_server_may_have_done_is_not_done_again(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let (key, next) =
            (format!("{framework:?}"), killed_while_it_charges(framework, &scene, &provider, "").await);
        // Never 409 from then on: a library would repeat that.
        next.is_told(&key, "1999", 500, "not known").await;
        next.is_told(&key, "1999", 500, "not known").await;
        assert_eq!(provider.charges(), 1);
    }
}

async fn a_server_that_may_take_over_ends_what_a_killed_one_began(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let key = format!("{framework:?}");
        let next = killed_while_it_charges(framework, &scene, &provider, "takeover").await;
        // The provider is asked again, and its own key ends the second charge.
        next.asks(&key, "1999").await.is_receipt("ch_1", false);
        next.asks(&key, "1999").await.is_receipt("ch_1", true);
        assert_eq!(provider.charges(), 1);
    }
}

async fn what_locks_of_the_handler_raise_is_a_failure_of_the_handler(scene: Scene) {
    for (framework, more) in FRAMEWORKS.into_iter().zip([LOCKS_OF_STARLETTE, LOCKS_OF_EXPRESS]) {
        let provider = Provider::start().await;
        let server = Server::start_with(framework, &scene, &provider, None, more).await;
        scene.write("charged", "");
        for how in ["away", "busy", "mismatch", "nothing"] {
            let url = format!("http://127.0.0.1:{}/charges/{how}", server.port);
            let key = format!("{how} {framework:?}");
            let asks = async || ask(url.clone(), "ann".to_owned(), key.clone(), "1".to_owned()).await;
            // It may have charged: that is never told as nothing, nor as a request that is still at work.
            assert_eq!(asks().await.status, 500, "{framework:?} {how}");
            asks().await.is_refused(500, "not known");
        }
        assert_eq!(scene.read("charged"), "away\nbusy\nmismatch\nnothing\n", "{framework:?}");
    }
}

async fn nobody_is_not_served(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        let answer = server.begin("", "nobody", "1999").await.unwrap();
        assert_eq!((answer.status, provider.charges()), (500, 0), "{framework:?}: {answer:?}");
    }
}

async fn what_a_provider_declines_is_told_again(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        for is_replayed in [false, true] {
            let answer = server.asks(&format!("declined {framework:?}"), "402").await;
            assert_eq!((answer.status, answer.is_replayed), (402, is_replayed), "{framework:?}: {answer:?}");
            assert_eq!(answer.body["detail"], "declined");
        }
    }
}

async fn a_request_with_two_keys_is_refused(scene: Scene) {
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        server.is_told("one\r\nIdempotency-Key: another", "1999", 400, "one Idempotency-Key").await;
        assert_eq!(provider.charges(), 0, "{framework:?}");
    }
}

/// A server charges, and is killed before it knows. Returns the next one, when the lease is over.
async fn killed_while_it_charges(
    framework: Framework,
    scene: &Scene,
    provider: &Provider,
    how: &str,
) -> Server {
    let options = match how {
        "takeover" => ["ttl_s=3, takeover=True", "ttlMs: 3_000, takeover: true"],
        _ => ["ttl_s=3", "ttlMs: 3_000"],
    };
    let mut server = Server::start(framework, scene, provider, Some(options)).await;
    let key = format!("{framework:?}");
    provider.is_silent();
    let click = server.begin("ann/b", &key, "1999");
    eventually("it is charged", async || provider.charges() == 1).await;
    server.child.kill().await.unwrap();
    assert_eq!(click.await.unwrap().status, 0);
    provider.answers_again();
    let record = async || {
        let list = scene.client.get("/records?prefix=pay:").send().await.json();
        list["records"].as_array().unwrap().iter().all(|record| record["state"] != "working")
    };
    tokio::time::timeout(PATIENCE, eventually("the lease is over", record)).await.unwrap();
    Server::start(framework, scene, provider, Some(options)).await
}
