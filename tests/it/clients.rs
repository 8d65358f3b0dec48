//! Clients in Python and TypeScript, those that the README's back ends copy and those that are generated from the
//! document, at work against real gateways. `make clients` installs what they are made, checked and run with.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::proxy::{Fate, Framing};
use crate::support::{Client, Gateway, PATIENCE, Proxy, eventually, free_port};

use workshop::Kind;
pub use workshop::{installed, root, tool};

mod workshop;

/// Makes a test out of a function that is given the kind of a client, for all of these kinds at once: most of the time
/// they wait.
macro_rules! with_each {
    ($kinds:expr; $($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn with_each_client() {
                futures_util::future::join_all($kinds.map(super::$name)).await;
            }
        })+
    };
}

with_each!(super::Kind::ALL; a_lock_is_taken_renewed_and_released);
with_each!(
    super::Kind::EXAMPLES;
    a_lost_answer_is_asked_for_again_by_the_same_token,
    what_stays_unknown_is_called_so_and_left_to_nobody,
    it_waits_in_line_or_comes_away_empty,
    a_lease_begins_when_its_wait_is_over,
    a_held_lock_is_renewed_and_its_loss_is_told,
    what_the_work_throws_is_not_hidden_by_the_release,
    a_lease_that_nobody_can_renew_is_lost_in_time,
    what_a_proxy_says_is_asked_again,
    a_second_click_pays_nothing,
);

async fn gateway() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

fn url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.address)
}

/// The statuses of all requests with this method so far, in their order.
fn answered(gateway: &Gateway, method: &str) -> Vec<u64> {
    let lines = gateway.log();
    let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    values.filter(|line| line["method"] == method).map(|line| line["status"].as_u64().unwrap()).collect()
}

async fn a_lock_is_taken_renewed_and_released(kind: Kind) {
    let gateway = gateway().await;
    let look = async || {
        Client::new(gateway.address).get("/lock?key=reports%2F2026%26%C3%A9%3F%25%2B%23").send().await
    };
    let mut client = kind.start(&url(&gateway)).await;
    let number = client.is_granted("acquire reports/2026&é?%+# 30 0").await;
    let held = look().await.expect(200);
    assert_eq!(held.fencing_token(), number);
    assert!((20_000..=30_000).contains(&held.json()["expires_in_ms"].as_u64().unwrap()), "{}", held.json());
    let mut other = kind.start(&url(&gateway)).await;
    assert_eq!(other.does("acquire reports/2026&é?%+# 30 0").await, "busy");
    assert_eq!(client.does("renew 300").await, "renewed");
    assert!(look().await.json()["expires_in_ms"].as_u64().unwrap() > 200_000);
    assert_eq!(client.does("release").await, "released");
    look().await.expect_problem(404, "not-held");
    client.ends().await;
    other.ends().await;
}

/// A gateway, and a way to it on which answers get lost.
struct Scene {
    gateway: Gateway,
    proxy: Proxy,
    look: Client,
}

impl Scene {
    async fn start() -> Self {
        let gateway = gateway().await;
        let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
        let look = Client::new(gateway.address);
        Self { gateway, proxy, look }
    }

    async fn client(&self, kind: Kind) -> workshop::Driver {
        kind.start(&format!("http://127.0.0.1:{}", self.proxy.port())).await
    }

    fn answered(&self, method: &str) -> Vec<u64> {
        answered(&self.gateway, method)
    }

    async fn is_free(&self) {
        self.look.get("/locks/k").send().await.expect_problem(404, "not-held");
    }
}

async fn a_lost_answer_is_asked_for_again_by_the_same_token(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    for lose in [Fate::CutAfter, Fate::LoseAnswers, Fate::HalfOpen] {
        for method in ["PUT", "PATCH", "DELETE"] {
            scene.proxy.expect(method, lose.clone());
        }
        let before = scene.answered("PUT").len();
        let number = client.is_granted("acquire k 30 0").await;
        assert_eq!(scene.look.get("/locks/k").send().await.expect(200).fencing_token(), number, "{lose:?}");
        assert_eq!(client.does("renew 300").await, "renewed", "{lose:?}");
        assert_eq!(client.does("release").await, "released", "{lose:?}");
        scene.is_free().await;
        // One grant; the client was told of it by a repetition, where the first request came through.
        let puts = || scene.answered("PUT").split_off(before);
        let at_least = if matches!(lose, Fate::HalfOpen) { 1 } else { 2 };
        eventually("the log is written", async || puts().len() >= at_least).await;
        let puts = puts();
        assert!(puts[0] == 201 && puts[1..].iter().all(|&status| status == 200), "{lose:?}: {puts:?}");
    }
}

async fn what_stays_unknown_is_called_so_and_left_to_nobody(kind: Kind) {
    let scene = Scene::start().await;
    let is_put = |message: &[u8]| message.starts_with(b"PUT");
    scene.proxy.set_policy(move |message| if is_put(message) { Fate::CutAfter } else { Fate::Pass });
    let start = async |port: u16| kind.start_with(&format!("http://127.0.0.1:{port}"), 3).await;
    let (mut client, mut hopeless) = tokio::join!(start(scene.proxy.port()), start(free_port()));
    let (said, hopeless) = tokio::join!(client.does("acquire k 300 0"), hopeless.does("acquire k 300 0"));
    assert_eq!([said, hopeless], ["unknown", "unknown"]);
    assert!(scene.answered("PUT").len() > 1);
    scene.is_free().await;
}

async fn it_waits_in_line_or_comes_away_empty(kind: Kind) {
    let scene = Scene::start().await;
    let waiters = async || scene.look.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap();
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = scene.client(kind).await;
    assert_eq!(client.does("acquire k 30 0.3").await, "busy");
    // Its place would be kept for those who are behind it to wait for.
    assert_eq!(waiters().await, 0);
    client.begins("acquire k 30 20").await;
    eventually("it waits", async || waiters().await == 1).await;
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    assert!(client.says().await.starts_with("granted "));
    assert_eq!(client.does("release").await, "released");
}

async fn a_lease_begins_when_its_wait_is_over(kind: Kind) {
    let scene = Scene::start().await;
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = kind.start(&url(&scene.gateway)).await;
    client.begins("hold k 3 20").await;
    let look = async || scene.look.get("/locks/k").send().await.json();
    eventually("it waits", async || look().await["waiters"] == 1).await;
    // For longer than the lease that it asks for.
    let waited = Instant::now() + Duration::from_millis(3500);
    eventually("it has waited", async || Instant::now() > waited).await;
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    assert!(client.says().await.starts_with("granted "));
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

async fn a_held_lock_is_renewed_and_its_loss_is_told(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    let number = client.is_granted("hold k 4 0").await;
    let held_until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < held_until {
        assert_eq!(client.does("check").await, "held");
        assert_eq!(scene.look.get("/locks/k").send().await.expect(200).fencing_token(), number);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(client.does("leave").await, "released");
    scene.is_free().await;
    // From one moment to the next a gateway answers that knows nothing of the lock.
    client.is_granted("hold k 30 0").await;
    let forgetful = gateway().await;
    scene.proxy.set_target(forgetful.address.port());
    scene.proxy.sever();
    assert_eq!(client.does("lost").await, "lost");
}

async fn what_the_work_throws_is_not_hidden_by_the_release(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    let forgetful = gateway().await;
    // Neither gateway knows of the lock that the other has granted. Work that ends well is told of the loss.
    let ends = [("fail", "failed", &forgetful), ("leave", "lost", &scene.gateway)];
    for (end, said, other) in ends {
        client.is_granted("hold k 300 0").await;
        scene.proxy.set_target(other.address.port());
        scene.proxy.sever();
        scene.look.delete("/locks/k").send().await;
        assert_eq!(client.does(end).await, said);
    }
}

async fn a_lease_that_nobody_can_renew_is_lost_in_time(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("hold k 3 0").await;
    scene.proxy.set_policy(|_| Fate::LoseAnswers);
    assert_eq!(client.does("lost").await, "lost");
}

async fn what_a_proxy_says_is_asked_again(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("hold k 6 0").await;
    // For a while the proxy does not find the gateway, and says so by itself.
    let (lost, mut renewals) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), 0);
    let mut answered = Vec::new();
    scene.proxy.set_target(lost.local_addr().unwrap().port());
    scene.proxy.sever();
    while renewals < 2 {
        let (mut connection, _) = tokio::time::timeout(PATIENCE, lost.accept()).await.unwrap().unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).await.unwrap();
        renewals += usize::from(request[..length].starts_with(b"PATCH"));
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\nconnection: close\r\n\r\nnot here\n";
        connection.write_all(answer).await.unwrap();
        // The client closes it, once it has read the answer.
        answered.push(connection);
    }
    scene.proxy.set_target(scene.gateway.address.port());
    drop(lost);
    eventually("it is renewed", async || scene.answered("PATCH").contains(&200)).await;
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

async fn a_second_click_pays_nothing(kind: Kind) {
    let gateway = gateway().await;
    let clicks = (0..4).map(async |_| kind.start(&url(&gateway)).await.does("acquire pay:4711 60 0").await);
    let mut said = futures_util::future::join_all(clicks).await;
    said.sort();
    assert!(said[3].starts_with("granted ") && said[..3] == ["busy", "busy", "busy"], "{said:?}");
    // Who did not wait has nothing to give up: one request is all.
    assert!(answered(&gateway, "DELETE").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_program_charges_once() {
    let gateway = gateway().await;
    let clicks = (0..4).map(async |_| {
        let mut command = workshop::bare_python("examples/clients/fencepost.py");
        workshop::run(command.arg("4711").env("FENCEPOST_URL", url(&gateway))).await
    });
    let said = futures_util::future::join_all(clicks).await;
    assert_eq!(said.iter().filter(|said| said.starts_with("charged ")).count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|said| *said == "is being paid already\n").count(), 3, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snippet_in_the_readme_works_as_pasted() {
    let snippet =
        include_str!("../../README.md").split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let before = "import os\nfrom fencepost import Fencepost, Lost\n\
        url, pages, write = os.environ['FENCEPOST_URL'], 'ab', print\n";
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), format!("{before}{snippet}")).unwrap();
    let gateway = gateway().await;
    let mut command = workshop::bare_python(script.path().to_str().unwrap());
    let said = workshop::run(command.env("FENCEPOST_URL", url(&gateway))).await;
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(matches!(words[..], ["a", one, "b", two] if one == two && one.parse::<u64>().is_ok()), "{said}");
    Client::new(gateway.address).get("/locks/report").send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_are_short_typed_and_need_nothing() {
    let (python, typescript) = (
        include_str!("../../examples/clients/fencepost.py"),
        include_str!("../../examples/clients/fencepost.ts"),
    );
    for client in [python, typescript] {
        assert!(client.lines().count() <= 80);
    }
    assert!(!typescript.contains("import "));
    // What is TypeScript was checked when it was made into JavaScript.
    workshop::check_python().await;
}

#[test]
fn the_lists_of_versions_name_no_host() {
    for list in [
        include_str!("../clients/package-lock.json"),
        include_str!("../clients/requirements.txt"),
        include_str!("../clients/package.json"),
    ] {
        assert!(!list.contains("://") && !list.contains("\"resolved\""));
    }
}
