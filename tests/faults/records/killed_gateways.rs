//! A gateway that is killed: its clients ask another, and are told the same.

use std::time::Duration;

use tokio::time::Instant;

use super::{ROOM, Work};
use kit::{Client, Gateway, RedisServer, fresh_token};

struct Scene {
    redis: RedisServer,
    killed: Gateway,
    other: Gateway,
}

impl Scene {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let (killed, other) =
            (Gateway::on_redis(&redis, &ROOM).await, Gateway::on_redis(&redis, &ROOM).await);
        Self { redis, killed, other }
    }

    fn clients(&self) -> [Client; 2] {
        [Client::new(self.killed.address), Client::new(self.other.address)]
    }
}

/// The work of a client that turns to another gateway.
fn at_other(work: &Work, client: &Client) -> Work {
    Work { client: client.clone(), ..work.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_at_another_gateway_and_who_waits_there_gets_its_result() {
    let mut scene = Scene::new().await;
    let [here, there] = scene.clients();
    let worker = Work::new(&here, "k");
    let number = worker.begins_anew().await;
    // One waits at either gateway.
    let (waits_here, waits_there) = (worker.of_another(&here), worker.of_another(&there));
    let here_waits = tokio::spawn({
        let (call, token) = (here.put("/once/k?ttl=5m&wait=30s"), waits_here.token.clone());
        async move { call.token(&token).try_send().await }
    });
    let there_waits = tokio::spawn(async move { waits_there.begin("wait=30s").await });
    for gateway in [&scene.killed, &scene.other] {
        kit::eventually("it waits", async || {
            kit::metrics::Scrape::of(gateway.address).await.get("fencepost_once_waiters") == 1.0
        })
        .await;
    }
    scene.killed.kill();
    assert!(here_waits.await.unwrap().is_err(), "a gateway that is killed answers nobody");

    let worker = at_other(&worker, &there);
    let again = worker.begin("").await.expect(201);
    assert_eq!((again.header("Once"), again.fencing_token()), (Some("continued"), number));
    let waits_again = at_other(&waits_here, &there);
    let waits_again = tokio::spawn(async move { waits_again.begin("wait=30s").await });
    worker.store("done").await.expect(200);
    for waiting in [there_waits, waits_again] {
        assert_eq!(waiting.await.unwrap().expect(200).body, "done");
    }
    worker.is_done("done", number).await;
}

/// Requests that nobody was answered: each is repeated elsewhere, and is done once.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_killed_gateway_left_unanswered_are_repeated_elsewhere() {
    let mut scene = Scene::new().await;
    let [here, there] = scene.clients();
    let (begins, posts, leaves) =
        (Work::new(&here, "begins"), Work::new(&here, "posts"), Work::new(&here, "leaves"));
    let number = posts.begins_anew().await;
    let left = leaves.begins_anew().await;
    // Redis reads what it is sent when it goes on: by then its sender is gone.
    scene.redis.stand_still().await;
    let begin = here.put("/once/begins?ttl=5m").token(&begins.token);
    let post = here.post("/once/posts").token(&posts.token).body("done");
    let leave = here.delete("/once/leaves").token(&leaves.token);
    let unanswered = [begin, post, leave].map(|call| tokio::spawn(call.try_send()));
    kit::eventually("all of them are with Redis", async || scene.redis.unread_bytes() > 0).await;
    scene.killed.kill();
    for call in unanswered {
        assert!(call.await.unwrap().is_err());
    }
    scene.redis.signal("CONT");

    let begins = at_other(&begins, &there);
    let begun = begins.begin("").await.expect(201);
    assert_eq!(begun.header("Once-Earlier"), Some("0"));
    begins.of_another(&there).begin("").await.expect_problem(423, "once-in-progress");
    begins.store("begun").await.expect(200);
    begins.is_done("begun", begun.fencing_token()).await;

    let posts = at_other(&posts, &there);
    posts.store("done").await.expect(200);
    posts.is_done("done", number).await;

    super::told(|| there.delete("/once/leaves").token(&leaves.token)).await.expect(204);
    let next = leaves.of_another(&there).begin("").await.expect(201);
    assert_eq!(next.header("Once-Earlier"), Some("1"));
    assert!(next.fencing_token() > left);
}

/// Nobody takes the place back any more, so it ends by its lease, and nobody forgets that somebody may have been told.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_whose_gateway_and_client_are_gone_ends_with_its_lease() {
    let mut scene = Scene::new().await;
    let [here, there] = scene.clients();
    let token = fresh_token();
    here.put("/once/k?ttl=3s").token(&token).send().await.expect(201);
    let begun = Instant::now();
    scene.killed.kill();
    let next = Work::new(&there, "k");
    let taken = next.begin("wait=30s").await.expect(201);
    let took = begun.elapsed();
    assert_eq!((taken.header("Once"), taken.header("Once-Earlier")), (Some("taken-over"), Some("1")));
    assert!((Duration::from_millis(2_500)..Duration::from_secs(5)).contains(&took), "{took:?}");
}
