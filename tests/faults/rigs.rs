//! The rigs of the tests of failover and of quorums do what their names say.

use std::time::Instant;

use crate::quorum_faults::ways::{Ways, user, users};
use kit::quorum::{self, Quorum};
use kit::sentinels::{self, SentinelOptions};
use kit::{Client, Gateway, RedisCluster, SentinelSetup, cluster, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_fail_over_back_and_forth() {
    let begun = Instant::now();
    let mut setup = SentinelSetup::start().await;
    println!("it starts in {:?}", begun.elapsed());
    assert_eq!(setup.current().await, Some(0));
    assert_eq!(setup.failover().await.server, 1);
    setup.settles_on(1).await;
    let promotion = setup.kill_primary().await;
    assert_eq!(promotion.server, 0);
    eventually("the sentinels follow", async || setup.current().await == Some(0)).await;
    println!("they follow {:?} after the promotion", promotion.at.elapsed());
    setup.bring_back(1).await;
    assert_eq!(setup.failover().await.server, 1);
    setup.settles_on(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_that_is_cut_off_hears_nothing_of_the_other() {
    let options = SentinelOptions {
        is_divisible: true,
        password: Some("data"),
        sentinel_password: Some("watch"),
        ..SentinelOptions::default()
    };
    let setup = SentinelSetup::start_with(options).await;
    setup.network().cut_off(&[setup.servers[0].pid(), setup.sentinels[2].pid()]);
    setup.servers[1].becomes_primary().await;
    eventually("the majority follows", async || setup.current().await == Some(1)).await;
    assert_eq!(setup.servers[0].info("role").await, "master", "it was told");
    setup.network().mend();
    setup.settles_on(1).await;
    assert_eq!(setup.servers[0].info("role").await, "slave");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_fails_over_back_and_forth_and_moves_a_slot() {
    let begun = Instant::now();
    let mut cluster = RedisCluster::start().await;
    println!("it starts in {:?}", begun.elapsed());
    let slot = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", "{k}"]).await;
    let first = cluster.owner_of(slot).await;
    let _: () = cluster.nodes[first].command(&["SET", "{k}", "v"]).await;
    let promotion = cluster.take_over(first).await;
    assert_eq!(promotion.server, first + 3);
    cluster.is_whole().await;
    assert_eq!(cluster.kill_primary(promotion.server).await.server, first);
    cluster.bring_back(promotion.server).await;

    let to = (first + 1) % 3;
    let migration = cluster.begin_migration(slot, to).await;
    assert_eq!(cluster.keys_left(migration).await, ["{k}"]);
    assert_eq!(cluster.move_keys(migration, usize::MAX).await, 1);
    assert_eq!(cluster.owner_of(slot).await, first);
    cluster.end_migration(migration).await;
    assert_eq!(cluster.owner_of(slot).await, to);
    cluster.is_whole().await;
    assert_eq!(cluster.nodes[to].command::<String>(&["GET", "{k}"]).await, "v");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_is_set_up_anew_believes_what_it_is_told() {
    let mut setup = SentinelSetup::start().await;
    setup.failover().await;
    setup.settles_on(1).await;
    for sentinel in [0, 1] {
        // Those who know better would tell it.
        setup.sentinels[sentinel].kill();
    }
    setup.sentinels[2].stand_still().await;
    setup.set_up_anew(0, 0).await;
    setup.set_up_anew(1, 0).await;
    eventually("two of three report the old primary", async || setup.current().await == Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_tests_share_is_started_once() {
    let urls = async || {
        (sentinels::shared().await.url(), cluster::shared().await.url(), quorum::shared().await.url())
    };
    let (one, another) = tokio::join!(urls(), urls());
    assert_eq!(one, another);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_door_shows_each_gateway_to_its_own_way() {
    let users = users(2);
    let quorum = Quorum::start_with(1, &users.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let ways = Ways::open(quorum.nodes[0].port(), 2).await;
    let start = async |at| {
        let store = format!("redis://{}:any@127.0.0.1:{}", user(at), ways.door);
        Gateway::start(&["--store", &store, "--store-timeout", "500ms"]).await
    };
    let gateways = [start(0).await, start(1).await];
    let is_ready = async |at: usize| {
        let answer = Client::new(gateways[at].address).get("/readyz").send().await;
        answer.status == 200
    };
    assert!(is_ready(0).await && is_ready(1).await);
    for at in [0, 1] {
        ways.to_node[at].proxy.set_closed_to_new(true);
        ways.to_node[at].proxy.sever();
        eventually("one gateway is cut off", async || !is_ready(at).await).await;
        assert!(is_ready(1 - at).await, "so is the other");
        ways.to_node[at].become_good();
        eventually("it is back", async || is_ready(at).await).await;
    }
}
