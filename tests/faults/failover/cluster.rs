//! One primary of a cluster after the other, back and forth between the same two servers, and a slot that moves, under
//! load.

use std::time::Duration;

use tokio::time::sleep;

use super::{all_resume_in_time, gateways};
use kit::cluster::slot_of_lock;
use kit::history::now_us;
use kit::load::Load;
use kit::{Gateway, RedisCluster, fresh_token};

/// One of those that the clients take.
const KEY: &str = "a";

/// Makes keys whose locks are where that of [`KEY`] is.
async fn neighbours(cluster: &RedisCluster, node: usize) -> impl Fn() -> String {
    let slots = cluster.slots_of(node).await;
    move || loop {
        let key = format!("probe-{}", fresh_token());
        if slots.iter().any(|(first, last)| (*first..=*last).contains(&slot_of_lock(&key))) {
            return key;
        }
    }
}

async fn scene(name: &'static str) -> (RedisCluster, Vec<Gateway>, Load) {
    let cluster = RedisCluster::start().await;
    let gateways = gateways(2, &cluster.url(), &[]).await;
    let load = Load::start(name, &gateways).await;
    (cluster, gateways, load)
}

#[tokio::test(flavor = "multi_thread")]
async fn service_resumes_and_numbers_grow_when_primaries_of_a_cluster_are_killed() {
    let (mut cluster, gateways, load) = scene("cluster-kill").await;
    for _ in 0..2 {
        let killed = cluster.owner_of(slot_of_lock(KEY)).await;
        let start_us = now_us();
        let promotion = cluster.kill_primary(killed).await;
        let new_key = neighbours(&cluster, promotion.server).await;
        all_resume_in_time(&gateways, promotion, &cluster.nodes[promotion.server], new_key).await;
        load.lost_since(start_us);
        cluster.bring_back(killed).await;
        load.goes_on().await;
    }
    load.judge(&gateways).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_resumes_and_numbers_grow_when_replicas_of_a_cluster_take_over() {
    let (cluster, gateways, load) = scene("cluster-takeover").await;
    for _ in 0..4 {
        let deposed = cluster.owner_of(slot_of_lock(KEY)).await;
        let start_us = now_us();
        let promotion = cluster.take_over(deposed).await;
        let new_key = neighbours(&cluster, promotion.server).await;
        all_resume_in_time(&gateways, promotion, &cluster.nodes[promotion.server], new_key).await;
        load.lost_since(start_us);
        // Nobody has asked the old primary, which hears of it a moment later.
        load.split_since(start_us);
        cluster.is_whole().await;
        load.goes_on().await;
    }
    load.judge(&gateways).await;
}

/// No data is lost here, so nothing at all is excused.
#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_or_given_twice_while_its_slot_moves() {
    let (cluster, gateways, load) = scene("cluster-migration").await;
    let slot = slot_of_lock(KEY);
    let first = cluster.owner_of(slot).await;
    for to in [(first + 1) % 3, first] {
        let migration = cluster.begin_migration(slot, to).await;
        // What is held can be renewed and released meanwhile, and what is free cannot be taken.
        for _ in 0..5 {
            cluster.move_keys(migration, usize::MAX).await;
            sleep(Duration::from_millis(100)).await;
        }
        while cluster.move_keys(migration, usize::MAX).await > 0 {}
        cluster.end_migration(migration).await;
        assert_eq!(cluster.owner_of(slot).await, to);
        cluster.is_whole().await;
        load.goes_on().await;
    }
    load.judge(&gateways).await;
}
