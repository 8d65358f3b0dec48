//! A single Redis that is emptied, or killed and started again with what it had, or without.

use super::{Asked, Caught, ROOM};
use kit::{Client, Gateway, RedisServer};

struct Scene {
    redis: RedisServer,
    _gateways: [Gateway; 2],
    clients: [Client; 2],
}

impl Scene {
    async fn new() -> Self {
        // What it has answered is on its disk.
        let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let gateways = [Gateway::on_redis(&redis, &ROOM).await, Gateway::on_redis(&redis, &ROOM).await];
        let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
        Self { redis, _gateways: gateways, clients }
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
