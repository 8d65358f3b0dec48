//! The connection between gateway and Redis fails around one command of a request that waits: it is granted all the
//! same, once, and leaves nothing behind.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{hold, release, stand, wait};
use kit::proxy::{Fate, Framing, Gate, Progress, gate_after};
use kit::{Client, Gateway, Proxy, RedisServer, eventually, fresh_token};

/// What goes wrong, and how far the command comes.
fn failures() -> [(Fate, Progress); 6] {
    [
        (Fate::CutBefore, Progress::Seen),
        (Fate::CutWithin, Progress::Seen),
        (Fate::HalfOpen, Progress::Seen),
        (Fate::CutDuring, Progress::PassedOn),
        (Fate::CutAfter, Progress::Answered),
        (Fate::LoseAnswers, Progress::Answered),
    ]
}

struct Scene {
    redis: RedisServer,
    proxy: Proxy,
    behind: Client,
    direct: Client,
    _gateways: [Gateway; 2],
}

impl Scene {
    async fn start() -> Self {
        Self::with_store_timeout("1s").await
    }

    async fn with_store_timeout(timeout: &str) -> Self {
        let redis = RedisServer::start().await;
        let proxy = Proxy::start(redis.port(), Framing::Resp).await;
        let timeout = ["--store-timeout", timeout];
        let behind = Gateway::start(&["--store", &proxy.redis_url(), timeout[0], timeout[1]]).await;
        let direct = Gateway::on_redis(&redis, &timeout).await;
        let clients = [&behind, &direct].map(|gateway| Client::new(gateway.address));
        // Each script's first call sends its text as well: that is not what is under test. And the first heartbeat over a
        // connection has all waiters put back, which may take an offer before a look does.
        let mut put_back = proxy.expect("\r\nrejoin\r\n", Fate::Pass);
        let token = hold(&clients[0], "1h").await;
        let waiting = wait(&clients[0], "wait=50s", "");
        put_back.reaches(Progress::Answered).await;
        release(&clients[0], &token).await;
        release(&clients[0], &waiting.await.unwrap().answer.expect(201).token()).await;
        let [first, second] = clients;
        Self { redis, proxy, behind: first, direct: second, _gateways: [behind, direct] }
    }

    async fn assert_nothing_is_left(&self) {
        eventually("the lock is free, and nobody waits", async || {
            let look = self.direct.get("/locks/k").send().await;
            look.status == 404 && look.json()["waiters"] == 0
        })
        .await;
        release(&self.direct, &hold(&self.direct, "1h").await).await;
        let line: Vec<String> = self.redis.command(&["ZRANGE", "fencepost:{0}:line:k", "0", "-1"]).await;
        assert_eq!(line, Vec::<String>::new());
    }
}

/// Whatever becomes of the message with `text`, sent while the request waits.
async fn a_waiter_is_granted_although(text: &str) {
    for (fate, far) in failures() {
        for token in [fresh_token(), String::new()] {
            // A failure replaces the connection, and the next waiter is put back over the new one.
            let scene = Scene::start().await;
            let holder = hold(&scene.direct, "1h").await;
            let mut passage = scene.proxy.expect(text, fate.clone());
            let waiting = wait(&scene.behind, "wait=15s&ttl=1h", &token);
            stand(&scene.direct, 1).await;
            release(&scene.direct, &holder).await;
            passage.reaches(far).await;
            let answered = waiting.await.unwrap().answer;
            assert_eq!(answered.status, 201, "{fate:?}, {token:?}: {}", answered.json());
            let look = scene.direct.get("/locks/k").token(&answered.token()).send().await.expect(200);
            assert_eq!(look.json()["yours"], true, "{fate:?}");
            release(&scene.direct, &answered.token()).await;
            scene.assert_nothing_is_left().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_that_joins_the_line_is_lost() {
    a_waiter_is_granted_although("\r\njoin\r\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_look_that_takes_the_offer_is_lost() {
    a_waiter_is_granted_although("\r\nlook\r\n").await;
}

/// A copy of a command arrives after the lock was taken, and released, by the attempt that came after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_of_a_command_takes_nothing() {
    let scene = Scene::start().await;
    let holder = hold(&scene.direct, "1h").await;
    let (cut, message) = (Gate::new(), Gate::new());
    let late = Fate::Late { cut: cut.clone(), message: message.clone() };
    let mut passage = scene.proxy.expect("\r\njoin\r\n", late);
    let waiting = wait(&scene.behind, "wait=15s&ttl=1h", "");
    passage.reaches(Progress::Seen).await;
    cut.cancel();
    stand(&scene.direct, 1).await;
    release(&scene.direct, &holder).await;
    let answer = waiting.await.unwrap().answer.expect(201);
    release(&scene.direct, &answer.token()).await;
    message.cancel();
    passage.reaches(Progress::Answered).await;
    scene.assert_nothing_is_left().await;
}

/// The look that took the offer is lost while the wait ends: the command after it finds what it was given.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_was_lost_at_the_end_of_the_wait_is_found() {
    let scene = Scene::with_store_timeout("20s").await;
    let (proxy, client) = (&scene.proxy, &scene.direct);
    let holder = hold(client, "1h").await;
    let cut = Gate::new();
    let late = Fate::Late { cut: cut.clone(), message: gate_after(Duration::ZERO) };
    let mut look = proxy.expect("\r\nlook\r\n", late);
    let mut last = proxy.expect("\r\nrejoin\r\n", Fate::Pass);
    let (asked, wait_s) = (Instant::now(), 3);
    let waiting = wait(&scene.behind, &format!("wait={wait_s}s&ttl=1h"), &fresh_token());
    stand(client, 1).await;
    release(client, &holder).await;
    look.reaches(Progress::Seen).await;
    sleep_until(asked + Duration::from_secs(wait_s + 1)).await;
    cut.cancel();
    last.reaches(Progress::Answered).await;
    waiting.await.unwrap().answer.expect(201);
}

/// The last command of a request is lost: its client is told, and its place is seen to.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_look_is_lost() {
    let scene = Scene::start().await;
    for (fate, far) in failures() {
        for (token, text) in [(fresh_token(), "\r\nend-keep\r\n"), (String::new(), "\r\nend\r\n")] {
            let holder = hold(&scene.direct, "1h").await;
            let mut passage = scene.proxy.expect(text, fate.clone());
            let waiting = wait(&scene.behind, "wait=300ms&ttl=1h", &token);
            passage.reaches(far).await;
            let answer = waiting.await.unwrap().answer.expect_problem(423, "lock-held");
            let position = (!token.is_empty()).then_some(1);
            assert_eq!(answer.json()["position"].as_u64(), position, "{fate:?}: {}", answer.json());
            assert!(answer.json()["holder"].is_object());
            if !token.is_empty() {
                scene.direct.delete("/locks/k").token(&token).send().await.expect(204);
            }
            release(&scene.direct, &holder).await;
            scene.assert_nothing_is_left().await;
        }
    }
}

/// The request goes on under another attempt, and its client leaves: that attempt is taken back too.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_leaves_after_its_first_command_was_lost() {
    let scene = Scene::start().await;
    for (fate, far) in failures() {
        let holder = hold(&scene.direct, "1h").await;
        let mut passage = scene.proxy.expect("\r\njoin\r\n", fate.clone());
        let mut repeated = scene.proxy.expect("\r\njoin\r\n", Fate::Pass);
        let waiting = wait(&scene.behind, "wait=50s&ttl=1h", "");
        passage.reaches(far).await;
        repeated.reaches(Progress::Answered).await;
        waiting.abort();
        stand(&scene.direct, 0).await;
        release(&scene.direct, &holder).await;
        scene.assert_nothing_is_left().await;
    }
}

/// What a client that left did not wait for is seen to, even if nothing answers for a while.
#[tokio::test(flavor = "multi_thread")]
async fn the_clean_up_of_a_client_that_left_is_lost() {
    let scene = Scene::start().await;
    for (fate, far) in failures() {
        let holder = hold(&scene.direct, "1h").await;
        let waiting = wait(&scene.behind, "wait=15s&ttl=1h", "");
        stand(&scene.direct, 1).await;
        // Nothing else of this gateway deletes a mark.
        let mut passage = scene.proxy.expect("\r\n0\r\n", fate.clone());
        waiting.abort();
        passage.reaches(far).await;
        release(&scene.direct, &holder).await;
        scene.assert_nothing_is_left().await;
    }
}
