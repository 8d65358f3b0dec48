//! Locks that replicas must have acknowledged before they are handed out (`--replicas-ack`).

use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use kit::{Answer, Client, Gateway, PATIENCE, Proxy, RedisServer, eventually, fresh_token};

mod trouble;

/// What `--store-timeout` is unless it is given, and how much later an answer may be seen on a busy machine.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_millis(1500);
/// So long that a replica which stands still goes on in time.
const PATIENT: [&str; 2] = ["--store-timeout", "30s"];
/// Without the delay, a replica need not wait for others that might come.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// A primary with its replicas, and a gateway that wants locks to be acknowledged.
struct Scene {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
    gateway: Gateway,
    client: Client,
}

impl Scene {
    /// With `replicas` of them, as many of which as `needed` must have a lock.
    async fn new(replicas: usize, needed: usize, args: &[&str]) -> Self {
        let (primary, replicas) = servers(replicas).await;
        let gateway = gateway(primary.url(), needed, args).await;
        Self { client: Client::new(gateway.address), primary, replicas, gateway }
    }

    /// With one replica, and what stands between the gateway and the primary.
    async fn behind(proxy_of: impl AsyncFnOnce(u16) -> Proxy, args: &[&str]) -> (Self, Proxy) {
        let (primary, replicas) = servers(1).await;
        let proxy = proxy_of(primary.port()).await;
        let gateway = gateway(&proxy.redis_url(), 1, args).await;
        (Self { client: Client::new(gateway.address), primary, replicas, gateway }, proxy)
    }

    fn put(&self, key: &str, token: Option<&str>) -> JoinHandle<Answer> {
        let put = self.client.put(&format!("/locks/{key}?ttl=1h"));
        let put = if let Some(token) = token { put.token(token) } else { put };
        tokio::spawn(put.send())
    }

    /// As [`Self::put`], while no replica speaks: the primary has said that it still has the lock.
    async fn put_that_waits(&self, key: &str, token: Option<&str>) -> JoinHandle<Answer> {
        let before = self.primary.calls("wait").await;
        let put = self.put(key, token);
        eventually("it is waited for", async || self.primary.calls("wait").await > before).await;
        put
    }

    /// The client's side of a lock that is waited for: it is there already, and nobody was told.
    async fn is_at_primary(&self, key: &str) {
        eventually("the lock is at the primary", async || self.primary.locks().await.contains_key(key)).await;
    }

    async fn is_free(&self, key: &str) -> bool {
        self.client.get(&format!("/locks/{key}")).send().await.status == 404
    }
}

async fn servers(replicas: usize) -> (RedisServer, Vec<RedisServer>) {
    let primary = RedisServer::start_with(&AT_ONCE).await;
    let follower = async |_| {
        let replica = RedisServer::start().await;
        replica.follow(primary.port()).await;
        replica
    };
    let replicas = join_all((0..replicas).map(follower)).await;
    // Until it has spoken for the first time, up to a second, the primary does not ask a replica.
    let mut connection = primary.connect().await;
    let all = redis::pipe()
        .cmd("SET")
        .arg("ready")
        .arg(1)
        .ignore()
        .cmd("WAIT")
        .arg(replicas.len())
        .arg(20_000)
        .clone();
    let (heard,): (usize,) = all.query_async(&mut connection).await.unwrap();
    assert_eq!(heard, replicas.len());
    (primary, replicas)
}

async fn gateway(url: &str, needed: usize, args: &[&str]) -> Gateway {
    Gateway::start(&[&["--store", url, "--replicas-ack", &needed.to_string()], args].concat()).await
}

fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_on_enough_replicas_before_its_client_is_told() {
    let scene = Scene::new(2, 1, &PATIENT).await;
    scene.replicas[0].stand_still().await;
    // One is enough.
    scene.put("warm", None).await.unwrap().expect(201);
    scene.replicas[1].stand_still().await;
    for (key, token) in [("own", Some(fresh_token())), ("made", None)] {
        let put = scene.put(key, token.as_deref());
        scene.is_at_primary(key).await;
        assert!(!put.is_finished(), "no replica has it, and its client was told that it holds it");
        scene.replicas[1].signal("CONT");
        let granted = put.await.unwrap().expect(201);
        let locks = scene.replicas[1].locks().await;
        assert_eq!(locks[key].number, granted.fencing_token());
        scene.replicas[1].stand_still().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_too_few_replicas_acknowledge_is_taken_back_in_time() {
    let scene = Scene::new(2, 2, &[]).await;
    let lonely = Scene::new(0, 1, &[]).await;
    scene.replicas[0].stand_still().await;
    let refused = async |scene: &Scene, key: &str, token: Option<&str>, acknowledged: &str| {
        for _ in 0..5 {
            let started = Instant::now();
            let answer = scene.put(key, token).await.unwrap().expect_problem(503, "not-replicated");
            assert!(started.elapsed() < STORE_TIMEOUT + MARGIN, "after {:?}", started.elapsed());
            assert_eq!(answer.header("retry-after"), Some("1"));
            // At the moment of the answer, and by the primary itself.
            assert!(!scene.primary.locks().await.contains_key(key), "it is still held");
            let said = detail(&answer);
            if said.starts_with(acknowledged) {
                return;
            }
            // As on a busy machine.
            assert!(said.starts_with("replicas could not be asked"), "{said}");
        }
        panic!("{key}: they could never be asked in time");
    };
    let token = fresh_token();
    tokio::join!(
        refused(&scene, "own", Some(&token), "1 "),
        refused(&scene, "made", None, "1 "),
        refused(&lonely, "alone", None, "0 "),
    );
    scene.replicas[0].signal("CONT");
    // The token itself stays usable.
    scene.put("own", Some(&token)).await.unwrap().expect(201);
}

/// Everything but new locks goes on, and so do those who are refused one.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_is_held_up_while_replicas_are_waited_for() {
    let scene = Scene::new(1, 1, &PATIENT).await;
    let token = fresh_token();
    scene.put("held", Some(&token)).await.unwrap().expect(201);
    scene.replicas[0].stand_still().await;
    let waiting: Vec<_> = (0..4).map(|number| scene.put(&format!("new{number}"), None)).collect();
    for number in 0..4 {
        scene.is_at_primary(&format!("new{number}")).await;
    }
    for _ in 0..20 {
        scene.client.get("/locks/held").send().await.expect(200);
        scene.client.patch("/locks/held?ttl=2h").token(&token).send().await.expect(200);
        scene.client.put("/locks/held").send().await.expect_problem(423, "lock-held");
        scene.client.delete("/locks/free").token(&fresh_token()).send().await.expect(404);
    }
    assert!(waiting.iter().all(|put| !put.is_finished()), "they were answered, or the others held up");
    scene.replicas[0].signal("CONT");
    for put in waiting {
        put.await.unwrap().expect(201);
    }
}

/// More than there are connections for: each has its turn.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_wait_for_a_replica_that_goes_on() {
    const LOCKS: usize = 100;
    let scene = Scene::new(1, 1, &PATIENT).await;
    let held = async || scene.primary.locks().await.len();
    let calls = async || scene.primary.calls("wait").await;
    for round in 0..2 {
        scene.replicas[0].stand_still().await;
        let before = calls().await;
        let puts: Vec<_> = (0..LOCKS).map(|number| scene.put(&format!("{round}-{number}"), None)).collect();
        eventually("all are at the primary", async || held().await == (round + 1) * LOCKS).await;
        eventually("some are waited for", async || calls().await > before).await;
        scene.replicas[0].signal("CONT");
        let answers = join_all(puts).await;
        let copies = scene.replicas[0].locks().await;
        for (number, answer) in answers.into_iter().enumerate() {
            let number_there = copies[&format!("{round}-{number}")].number;
            assert_eq!(answer.unwrap().expect(201).fencing_token(), number_there);
        }
    }
    // `INFO` counts the test's own connections, and those of the gateway that have another purpose.
    let clients: usize = scene.primary.info("connected_clients").await.parse().unwrap();
    assert!(clients <= 16 + 8, "{clients} connections");
}

/// As before, but in vain: nobody waits longer than a request may, nothing is left, and everything works afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_that_no_replica_acknowledges_are_all_taken_back() {
    const LOCKS: usize = 100;
    let scene = Scene::new(1, 1, &[]).await;
    scene.replicas[0].stand_still().await;
    let started = Instant::now();
    let puts: Vec<_> = (0..LOCKS).map(|number| scene.put(&number.to_string(), None)).collect();
    for answer in join_all(puts).await {
        answer.unwrap().expect_problem(503, "not-replicated");
    }
    assert!(started.elapsed() < STORE_TIMEOUT + MARGIN, "after {:?}", started.elapsed());
    assert!(scene.primary.locks().await.is_empty());
    scene.replicas[0].signal("CONT");
    let puts: Vec<_> = (0..LOCKS).map(|number| scene.put(&number.to_string(), None)).collect();
    for answer in join_all(puts).await {
        answer.unwrap().expect(201);
    }
}

/// Whoever holds a lock is not taken it away because replicas are silent, and is not told that all is well either.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_put_that_no_replica_acknowledges_is_unknown() {
    let scene = Scene::new(1, 1, &[]).await;
    let token = fresh_token();
    let own = scene.put("own", Some(&token)).await.unwrap().expect(201);
    let made = scene.put("made", None).await.unwrap().expect(201);
    let tokens = [("own", token, &own), ("made", made.token(), &made)];
    scene.replicas[0].stand_still().await;
    let again = join_all(tokens.iter().map(|(key, token, _)| scene.put(key, Some(token)))).await;
    for answer in again {
        let answer = answer.unwrap().expect_problem(503, "outcome-unknown");
        assert!(detail(&answer).contains("holds the lock already"), "{}", answer.json());
    }
    scene.replicas[0].signal("CONT");
    for (key, token, granted) in tokens {
        let again = scene.put(key, Some(&token)).await.unwrap().expect(200);
        assert_eq!(again.fencing_token(), granted.fencing_token());
    }
}

/// It may have made the lease longer, so those who watch are not left with the end that they were told.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_put_whose_outcome_is_unknown_has_watchers_told_how_long_the_lease_is() {
    let scene = Scene::new(1, 1, &[]).await;
    let token = fresh_token();
    let mut events = scene.client.call("GET", "/events?key=k").open().await.into_body();
    scene.client.put("/locks/k?ttl=1h").token(&token).send().await.expect(201);
    scene.replicas[0].stand_still().await;
    let longer = scene.client.put("/locks/k?ttl=2h").token(&token).send().await;
    longer.expect_problem(503, "outcome-unknown");
    let mut text = String::new();
    let read = async {
        while !text.contains("event: renewed") {
            let frame = events.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    };
    timeout(PATIENCE, read).await.expect("nothing is told");
}

/// What a full server refuses is a new lock, and not what holders are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_put_is_acknowledged_by_a_server_that_is_out_of_memory() {
    let scene = Scene::new(1, 1, &[]).await;
    let token = fresh_token();
    scene.put("k", Some(&token)).await.unwrap().expect(201);
    let _: () = scene.primary.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    scene.put("k", Some(&token)).await.unwrap().expect(200);
    scene.put("new", None).await.unwrap().expect_problem(503, "store-unavailable");
    assert!(scene.replicas[0].locks().await["k"].is_pinned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_waited_for_is_acknowledged_too() {
    let scene = Scene::new(1, 1, &[]).await;
    let hold = async || {
        let token = fresh_token();
        scene.put("k", Some(&token)).await.unwrap().expect(201);
        token
    };
    let wait = |token: &str| tokio::spawn(scene.client.put("/locks/k?ttl=1h&wait=10s").token(token).send());
    let is_in_line = async || {
        eventually("it waits", async || scene.client.get("/locks/k").send().await.json()["waiters"] == 1)
            .await;
    };
    let release = async |token: &str| scene.client.delete("/locks/k").token(token).send().await.expect(204);
    let (holder, waiter) = (hold().await, fresh_token());
    let put = wait(&waiter);
    is_in_line().await;
    release(&holder).await;
    let granted = put.await.unwrap().expect(201);
    assert_eq!(scene.replicas[0].locks().await["k"].number, granted.fencing_token());
    release(&waiter).await;

    let (holder, waiter) = (hold().await, fresh_token());
    let put = wait(&waiter);
    is_in_line().await;
    scene.replicas[0].stand_still().await;
    release(&holder).await;
    let started = Instant::now();
    put.await.unwrap().expect_problem(503, "not-replicated");
    assert!(started.elapsed() < STORE_TIMEOUT + MARGIN, "after {:?}", started.elapsed());
    assert!(scene.primary.locks().await.is_empty(), "it is still held");
    // Its place is kept, as that of everybody whose grant is undone.
    scene.client.get("/locks/k").send().await.expect(404);
    scene.replicas[0].signal("CONT");
    scene.client.put("/locks/k?ttl=1h&wait=10s").token(&waiter).send().await.expect(201);
}

/// The lock is given back at once, and not when the waiting for replicas is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_replicas_are_waited_for_leaves_no_lock() {
    let scene = Scene::new(1, 1, &["--store-timeout", "40s"]).await;
    scene.replicas[0].stand_still().await;
    // More than there are connections for, so that each of them is given up once.
    for round in 0..20 {
        let mut stream = TcpStream::connect(scene.gateway.address).await.unwrap();
        let request = format!("PUT /locks/k{round}?ttl=1h HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        scene.is_at_primary(&format!("k{round}")).await;
    }
    eventually("all is taken back", async || scene.primary.locks().await.is_empty()).await;
    scene.replicas[0].signal("CONT");
    scene.put("k", None).await.unwrap().expect(201);
}

/// It would be lost with the primary, and the next client would do the work again.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_no_replica_acknowledges_is_told_to_no_client() {
    let scene = Scene::new(1, 1, &["--once-memory", "1073741824"]).await;
    let (client, worker) = (&scene.client, fresh_token());
    let begin = |query: &str, token: &str| client.put(&format!("/once/k?ttl=1h{query}")).token(token).send();
    begin("", &worker).await.expect(201);
    scene.replicas[0].stand_still().await;
    let post = client.post("/once/k").token(&worker).body("done").send();
    post.await.expect_problem(503, "outcome-unknown");
    for token in [&worker, &fresh_token()] {
        let told = begin("", token).await.expect_problem(503, "outcome-unknown");
        assert!(detail(&told).starts_with("the work was begun before, but "), "{}", detail(&told));
    }
    let before = scene.primary.calls("wait").await;
    let waits = tokio::spawn(begin("&wait=50s", &fresh_token()));
    eventually("it has asked again", async || scene.primary.calls("wait").await >= before + 2).await;
    assert!(!waits.is_finished());
    scene.replicas[0].signal("CONT");
    assert_eq!(waits.await.unwrap().expect(200).body, "done");
    assert_eq!(begin("", &worker).await.expect(200).body, "done");
}
