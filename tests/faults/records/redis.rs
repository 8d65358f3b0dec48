//! A single Redis that is emptied, or killed and started again with what it had, or without.

use super::{Asked, Caught, ROOM, TTL, told};
use kit::metrics::Scrape;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

struct Scene {
    redis: RedisServer,
    gateways: [Gateway; 2],
    clients: [Client; 2],
}

impl Scene {
    async fn new() -> Self {
        // What it has answered is on its disk.
        let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let gateways = [Gateway::on_redis(&redis, &ROOM).await, Gateway::on_redis(&redis, &ROOM).await];
        let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
        Self { redis, gateways, clients }
    }

    /// Catches works of this round, and has others asked for meanwhile.
    async fn round(&self, round: usize) -> (Caught, Asked) {
        let key = |name: &str| format!("{name}-{round}");
        (Caught::at(&self.clients, key).await, Asked::at(&self.clients, key).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_go_on_where_they_were_after_redis_was_killed() {
    let mut scene = Scene::new().await;
    for round in 0..2 {
        let (caught, asked) = scene.round(round).await;
        scene.redis.restart().await;
        caught.goes_on().await;
        asked.was_told_right(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn works_are_begun_anew_after_redis_was_emptied() {
    let scene = Scene::new().await;
    for round in 0..2 {
        let (caught, asked) = scene.round(round).await;
        let _: () = scene.redis.command(&["FLUSHALL"]).await;
        caught.begins_again().await;
        asked.was_told_right(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn works_are_begun_anew_after_redis_was_killed_and_lost_its_data() {
    let mut scene = Scene::new().await;
    for round in 0..2 {
        let (caught, asked) = scene.round(round).await;
        scene.redis.restart_empty().await;
        caught.begins_again().await;
        asked.was_told_right(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_gave_up_and_was_told_nothing_for_a_while_is_not_told_what_others_were() {
    let mut scene = Scene::new().await;
    let (client, here) = (scene.clients[0].clone(), scene.gateways[0].address);
    let (has_left, worker, waiter) = (fresh_token(), fresh_token(), fresh_token());
    let begin = |query: &str, token: &str| client.put(&format!("/once/k?{query}")).token(token);
    begin(TTL, &has_left).send().await.expect(201);
    client.delete("/once/k?clean=true").token(&has_left).send().await.expect(204);
    begin(TTL, &worker).send().await.expect(201);
    let are_waiting = async |count: f64| {
        eventually("they wait", async || Scrape::of(here).await.get("fencepost_once_waiters") == count).await;
    };
    // It looks for both.
    let other = tokio::spawn(begin("ttl=5m&wait=30s", &waiter).send());
    are_waiting(1.0).await;
    scene.redis.kill();
    eventually("nothing is known", async || client.get("/once/k").send().await.status == 503).await;
    let asked = async || Scrape::of(here).await.get("fencepost_store_seconds_count{step=\"begin\"}");
    let before = asked().await;
    let refused = tokio::spawn(begin("ttl=5m&wait=8s", &has_left).send());
    eventually("both have asked in vain", async || asked().await >= before + 3.0).await;
    scene.redis.start_again().await;
    refused.await.unwrap().expect_problem(409, "token-released");
    client.post("/once/k").token(&worker).body("done").send().await.expect(200);
    other.await.unwrap().expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_record_goes_on_waiting_while_redis_stands_still() {
    let scene = Scene::new().await;
    let [here, there] = scene.clients.each_ref();
    let (worker, waiter) = (fresh_token(), fresh_token());
    here.put(&format!("/once/k?{TTL}")).token(&worker).send().await.expect(201);
    let waits = tokio::spawn(there.put("/once/k?ttl=5m&wait=50s").token(&waiter).send());
    let counts = async |what: &str| Scrape::of(scene.gateways[1].address).await.get(what);
    eventually("it waits", async || counts("fencepost_once_waiters").await == 1.0).await;
    scene.redis.stand_still().await;
    // More than a request without `wait` would be given.
    let voids = async || counts("fencepost_store_seconds_count{step=\"take-back\"}").await;
    eventually("it has been silent for long", async || voids().await >= 20.0).await;
    assert!(!waits.is_finished(), "{:?}", waits.await);
    scene.redis.signal("CONT");
    told(|| here.post("/once/k").token(&worker).body("done")).await.expect(200);
    assert_eq!(waits.await.unwrap().expect(200).body, "done");
}
