//! Clients that leave: a place that nobody was told of is given back, and a result that arrived whole is stored.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Pair, begin, begin_and_lapse, comes_to, earlier, on_each_pair, state, wait_there, way};
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, Gateway, Proxy, RedisServer, eventually, fresh_token, secrets};

on_each_pair!(
    who_leaves_while_waiting_begins_nothing,
    a_result_that_arrived_whole_is_stored_though_its_client_has_left,
    a_result_that_did_not_arrive_whole_is_not_stored,
);

/// Sends a request whose client can leave: dropped, it closes the connection.
async fn send(address: SocketAddr, head: &str, token: &str, body: &str, more: &str) -> TcpStream {
    let token = if token.is_empty() { String::new() } else { format!("Lease-Token: {token}\r\n") };
    let request = format!("{head} HTTP/1.1\r\nHost: localhost\r\n{token}{more}\r\n{body}");
    secrets::remember_head(request.as_bytes());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn who_leaves_while_waiting_begins_nothing(pair: Pair) {
    let (here, worker) = (pair.here(), fresh_token());
    begin(&here, "ttl=1m", &worker).send().await.expect(201);
    let there = pair.there.as_ref().unwrap_or(&pair.here).address;
    for token in [fresh_token(), String::new()] {
        let waits = send(there, "PUT /once/k?ttl=1m&wait=50s", &token, "", "").await;
        wait_there(&pair, 1.0).await;
        drop(waits);
        wait_there(&pair, 0.0).await;
    }
    here.delete("/once/k?clean=true").token(&worker).send().await.expect(204);
    assert_eq!(state(&here).await, "");
    let next = begin(&here, "ttl=1m", &fresh_token()).send().await.expect(201);
    assert_eq!((way(&next), earlier(&next)), ("begun", 0));
    // An answer that was in the kernel when its client left is not seen to be lost: then the lease has to end.
    let waits = send(there, "PUT /once/k?ttl=2s&wait=50s", "", "", "").await;
    wait_there(&pair, 1.0).await;
    let gives_up = here.delete("/once/k?clean=true").token(&next.token());
    let (given_up, ()) = tokio::join!(gives_up.send(), async { drop(waits) });
    given_up.expect(204);
    eventually("nobody works on it", async || ["", "lapsed"].contains(&&*state(&here).await)).await;
}

/// Both arrive together in some of these: the result, and that its client has gone.
async fn a_result_that_arrived_whole_is_stored_though_its_client_has_left(pair: Pair) {
    const MANY: usize = 64;
    let here = pair.here();
    for number in 0..MANY {
        let (address, token) = (format!("/once/k{number}"), fresh_token());
        here.put(&format!("{address}?ttl=5m")).token(&token).send().await.expect(201);
        let head = format!("POST {address}");
        drop(send(pair.here.address, &head, &token, "done", "Content-Length: 4\r\n").await);
    }
    for number in 0..MANY {
        let address = format!("/once/k{number}");
        let state = async || here.get(&address).send().await.expect(200).json()["state"].clone();
        eventually(&format!("{address} is done"), async || state().await == "done").await;
        assert_eq!(pair.there().put(&address).send().await.expect(200).body, "done");
    }
}

async fn a_result_that_did_not_arrive_whole_is_not_stored(pair: Pair) {
    let (here, token) = (pair.here(), fresh_token());
    begin(&here, "ttl=1m", &token).send().await.expect(201);
    for rest in [
        format!("Content-Length: 5\r\nLease-Token: {token}\r\n\r\ndone"),
        format!("Transfer-Encoding: chunked\r\nLease-Token: {token}\r\n\r\n4\r\ndone\r\n"),
    ] {
        let request = format!("POST /once/k HTTP/1.1\r\nHost: localhost\r\n{rest}");
        let mut stream = TcpStream::connect(pair.here.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        drop(stream);
    }
    let left = |line: &&String| line.contains("\"POST\"") || line.contains("POST /once");
    eventually("both requests have ended", async || pair.here.log().iter().filter(left).count() >= 2).await;
    assert_eq!(state(&here).await, "working");
    super::store(&here, &token, "whole").send().await.expect(200);
}

/// A gateway whose way to Redis is held up where a test says so, and another whose way is not.
struct Scene {
    proxy: Proxy,
    behind: Gateway,
    direct: Client,
    _others: (RedisServer, Gateway),
}

impl Scene {
    async fn start() -> Self {
        let redis = super::redis().await;
        let proxy = Proxy::start(redis.port(), Framing::Resp).await;
        let behind = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "4s"]).await;
        let direct = Gateway::on_redis(&redis, &[]).await;
        // Each script's first call sends its text as well: that is not what is under test.
        let (warm, token) = (Client::new(behind.address), fresh_token());
        warm.put("/once/warm").token(&token).send().await.expect(201);
        warm.post("/once/warm").token(&token).body("x").send().await.expect(200);
        let client = Client::new(direct.address);
        Self { proxy, behind, direct: client, _others: (redis, direct) }
    }

    /// Sends a request whose client leaves while Redis works on it, or before that.
    async fn leaves(&self, request: &str, is_sent_on: bool) {
        self.leaves_after(request, is_sent_on, async || {}).await;
    }

    async fn leaves_after(&self, request: &str, is_sent_on: bool, meanwhile: impl AsyncFnOnce()) {
        let (message, answer) = (Gate::new(), Gate::new());
        if is_sent_on {
            message.cancel();
        }
        let fate = Fate::Hold { message: message.clone(), answer: answer.clone() };
        let mut passage = self.proxy.expect("once:k", fate);
        secrets::remember_head(request.as_bytes());
        let mut stream = TcpStream::connect(self.behind.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        passage.reaches(if is_sent_on { Progress::PassedOn } else { Progress::Seen }).await;
        meanwhile().await;
        drop(stream);
        self.behind.logs("the client has left", |line| line.contains("the client left before")).await;
        message.cancel();
        answer.cancel();
        passage.reaches(Progress::Answered).await;
    }
}

fn put(token: &str) -> String {
    let token = if token.is_empty() { String::new() } else { format!("Lease-Token: {token}\r\n") };
    format!("PUT /once/k?ttl=1h HTTP/1.1\r\nHost: localhost\r\n{token}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_begin_that_nobody_was_told_of_leaves_nothing() {
    for (token, is_sent_on) in
        [(fresh_token(), true), (fresh_token(), false), (String::new(), true), (String::new(), false)]
    {
        let scene = Scene::start().await;
        scene.leaves(&put(&token), is_sent_on).await;
        eventually("the place is given back", async || state(&scene.direct).await.is_empty()).await;
        let next = begin(&scene.direct, "ttl=1m", &fresh_token()).send().await.expect(201);
        assert_eq!((way(&next), earlier(&next)), ("begun", 0));
    }
}

/// What a look tells a token is a promise. The answer to HEAD has no place for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_promises_nothing_to_a_token() {
    let (scene, token) = (Scene::start().await, fresh_token());
    let head = scene.direct.call("HEAD", "/once/k").token(&token);
    scene
        .leaves_after(&put(&token), true, async || {
            eventually("it has begun", async || state(&scene.direct).await == "working").await;
            head.send().await.expect(200);
        })
        .await;
    eventually("the place is given back", async || state(&scene.direct).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_that_nobody_was_told_of_forgets_nobody() {
    let scene = Scene::start().await;
    let crashed = fresh_token();
    let first = begin_and_lapse(&scene.direct, "", &crashed).await;
    scene.leaves(&put(&fresh_token()), true).await;
    comes_to(&scene.direct, "lapsed").await;
    let is_as_it_was = async || {
        let seen = scene.direct.get("/once/k").token(&crashed).send().await.expect(200).json();
        assert_eq!((&seen["state"], &seen["yours"]), (&"lapsed".into(), &true.into()));
    };
    is_as_it_was().await;
    let token = fresh_token();
    let next = begin(&scene.direct, "ttl=1m", &token).send().await.expect(201);
    assert_eq!((way(&next), earlier(&next)), ("taken-over", 1));
    assert!(next.fencing_token() > first.fencing_token() + 1, "a number was given out twice");
    super::store(&scene.direct, &crashed, "late").send().await.expect_problem(409, "superseded");
    scene.direct.delete("/once/k?clean=true").token(&token).send().await.expect(204);
    is_as_it_was().await;
    super::store(&scene.direct, &crashed, "late").send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_stored_whose_client_leaves_while_it_is_on_its_way() {
    for is_sent_on in [true, false] {
        let (scene, token) = (Scene::start().await, fresh_token());
        begin(&scene.direct, "ttl=1h", &token).send().await.expect(201);
        let rest = format!("Content-Length: 4\r\nLease-Token: {token}\r\n\r\ndone");
        scene.leaves(&format!("POST /once/k HTTP/1.1\r\nHost: localhost\r\n{rest}"), is_sent_on).await;
        comes_to(&scene.direct, "done").await;
        assert_eq!(begin(&scene.direct, "", &fresh_token()).send().await.expect(200).body, "done");
    }
}
