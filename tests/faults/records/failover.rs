//! A server that takes the place of another, by the word of Sentinel and in a cluster. What the replica has goes on,
//! and what it has not is begun anew.

use super::{Caught, ROOM};
use kit::cluster::slot_of_lock;
use kit::sentinels::SentinelOptions;
use kit::{Client, Gateway, RedisCluster, RedisServer, SentinelSetup, eventually};

async fn start(url: &str) -> ([Gateway; 2], [Client; 2]) {
    let args = [&["--store", url], &ROOM[..]].concat();
    let gateways = [Gateway::start(&args).await, Gateway::start(&args).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    (gateways, clients)
}

/// Waits until the replica has all that the primary has.
async fn is_caught_up(primary: &RedisServer, replica: &RedisServer) {
    eventually("the replica has all", async || {
        let names = [primary.keys().await, replica.keys().await].map(|mut names| {
            names.sort();
            names
        });
        names[0] == names[1]
            && primary.info("master_repl_offset").await == replica.info("slave_repl_offset").await
    })
    .await;
}

/// From here on the replica hears nothing.
async fn is_deaf(primary: &RedisServer, replica: &RedisServer) {
    let _: () = replica.command(&["CONFIG", "SET", "masterauth", "wrong"]).await;
    let _: () = primary.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    eventually("the replica hears nothing", async || replica.info("master_link_status").await == "down")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_replica_has_goes_on_and_the_rest_is_begun_anew_under_sentinel() {
    let mut setup = SentinelSetup::start_with(SentinelOptions::default()).await;
    let (_gateways, clients) = start(&setup.url()).await;
    let kept = Caught::at(&clients, |name| format!("{name}-kept")).await;
    is_caught_up(&setup.servers[0], &setup.servers[1]).await;
    is_deaf(&setup.servers[0], &setup.servers[1]).await;
    let lost = Caught::at(&clients, |name| format!("{name}-lost")).await;
    let promotion = setup.kill_primary().await;
    assert_eq!(promotion.server, 1);
    kept.goes_on().await;
    lost.begins_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_replica_has_goes_on_and_the_rest_is_begun_anew_in_a_cluster() {
    let mut cluster = RedisCluster::start().await;
    let (_gateways, clients) = start(&cluster.url()).await;
    let slots = cluster.slots_of(0).await;
    let is_there = |key: &str| {
        let slot = slot_of_lock(key);
        slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    };
    // All of them are kept by the node that is killed.
    let key_of = |round: &'static str| {
        let is_there = &is_there;
        move |name: &str| {
            let mut keys = (0..).map(|number| format!("{name}-{round}-{number}"));
            keys.find(|key| is_there(key)).unwrap()
        }
    };
    let kept = Caught::at(&clients, key_of("kept")).await;
    let replica = cluster.replica_of(0).await;
    is_caught_up(&cluster.nodes[0], &cluster.nodes[replica]).await;
    is_deaf(&cluster.nodes[0], &cluster.nodes[replica]).await;
    let lost = Caught::at(&clients, key_of("lost")).await;
    cluster.nodes[0].kill();
    cluster.nodes[replica].becomes_primary().await;
    kept.goes_on().await;
    lost.begins_again().await;
}
