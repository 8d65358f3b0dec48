//! Which word of Sentinel is believed: a gateway is not led back to a deposed primary.

use tokio::time::Instant;

use super::{all_resume, gateways, grants_on, has_lock, new_key};
use kit::gateway::run;
use kit::history::now_us;
use kit::load::Load;
use kit::metrics::Scrape;
use kit::sentinels::{MASTER, Promotion};
use kit::{Client, Gateway, SentinelSetup, eventually};

/// The server never followed the one that was the primary in between, so it has its old numbers, and its old name.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_grow_when_a_primary_is_called_back_that_never_heard_that_it_was_deposed() {
    let mut setup = SentinelSetup::start().await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let load = Load::start("sentinel-called-back", &gateways).await;
    let start_us = now_us();
    setup.servers[0].stand_still().await;
    let promotion = Promotion { server: 1, at: setup.servers[1].becomes_primary().await };
    all_resume(&gateways, promotion, &setup.servers[1], new_key).await;
    load.goes_on().await;

    setup.servers[1].kill();
    let old = &setup.servers[0];
    old.signal("CONT");
    eventually("the sentinels call it back", async || {
        assert_eq!(old.info("role").await, "master", "it was told, and its old numbers are gone");
        setup.current().await == Some(0)
    })
    .await;
    let called = Promotion { server: 0, at: Instant::now() };
    all_resume(&gateways, called, old, new_key).await;
    load.lost_since(start_us);
    load.goes_on().await;
    load.judge(&gateways).await;
}

/// Takes a new lock, and says its number and whether it stands on this server.
async fn grant(gateway: &Gateway, setup: &SentinelSetup, server: usize) -> (u64, bool) {
    let key = new_key();
    let answer = Client::new(gateway.address).put(&format!("/locks/{key}?ttl=1h")).send().await.expect(201);
    (answer.fencing_token(), has_lock(&setup.servers[server], &key).await)
}

/// Three sentinels that have seen a failover, of which one stands still and two are gone; the gateway that followed it; and a number
/// that it granted.
async fn after_a_failover_with_one_silent_sentinel() -> (SentinelSetup, Vec<Gateway>, u64) {
    let mut setup = SentinelSetup::start().await;
    let gateways = gateways(1, &setup.url(), &[]).await;
    let promotion = setup.failover().await;
    all_resume(&gateways, promotion, &setup.servers[1], new_key).await;
    setup.settles_on(1).await;
    let (before, _) = grant(&gateways[0], &setup, 1).await;
    setup.sentinels[2].stand_still().await;
    setup.sentinels[0].kill();
    setup.sentinels[1].kill();
    (setup, gateways, before)
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_a_lower_epoch_are_followed_only_when_all_of_them_are() {
    // Two of the three are set up anew, on a server that was deposed, and the third cannot object.
    let (mut setup, gateways, before) = after_a_failover_with_one_silent_sentinel().await;
    let gateway = &gateways[0];
    setup.servers[0].promote().await;
    setup.set_up_anew(0, 0).await;
    setup.set_up_anew(1, 0).await;
    eventually("most sentinels report the deposed primary", async || setup.current().await == Some(0)).await;
    // It may be the one that is deposed, or they: the gateway grants on neither. A gateway that knows no epoch learns it there.
    let another = Gateway::start(&["--store", &setup.url()]).await;
    for gateway in [gateway, &another] {
        refuses_a_lower_epoch(gateway).await;
        assert!(
            !has_lock(&setup.servers[0], "refused").await && !has_lock(&setup.servers[1], "refused").await
        );
    }
    assert_cannot_be_used(&setup);

    // It is ended as it stands still: going on for a moment, it would tell the others of the epoch that they have forgotten.
    setup.set_up_anew(2, 0).await;
    let unanimous = Promotion { server: 0, at: Instant::now() };
    for gateway in [gateway, &another] {
        grants_on(gateway, unanimous, &setup.servers[0], &new_key).await;
        let (number, is_there) = grant(gateway, &setup, 0).await;
        assert!(is_there && number > before, "{number} after {before}, there: {is_there}");
    }
    gateway.logs("it says so", |line| line.contains("Sentinel was set up anew")).await;
    agree_again(gateway).await;
}

const LOWER_EPOCH: &str = "most sentinels report config-epoch 0 and name ";

/// Waits until the gateway grants nothing, and says why to all: by its answers, its log and its metrics.
async fn refuses_a_lower_epoch(gateway: &Gateway) {
    let client = Client::new(gateway.address);
    eventually("it grants nothing, and says why", async || {
        let answer = client.put(&format!("/locks/{}", new_key())).send().await;
        answer.status == 503 && answer.json()["detail"].as_str().unwrap().starts_with(LOWER_EPOCH)
    })
    .await;
    for answer in [client.put("/locks/refused").send().await, client.get("/readyz").send().await] {
        let answer = answer.expect_problem(503, "store-unavailable");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("followed epoch 1") && detail.contains("out of --store"), "{detail}");
    }
    says_that_sentinels_have_gone_back(gateway).await;
}

async fn says_that_sentinels_have_gone_back(gateway: &Gateway) {
    let is_told = |line: &str| line.contains("most sentinels have gone back") && line.contains(LOWER_EPOCH);
    gateway.logs("it says so", is_told).await;
    assert_eq!(Scrape::of(gateway.address).await.get("fencepost_sentinels_unheard"), 1.0);
}

async fn agree_again(gateway: &Gateway) {
    eventually("sentinels are heard again", async || {
        Scrape::of(gateway.address).await.get("fencepost_sentinels_unheard") == 0.0
    })
    .await;
}

fn assert_cannot_be_used(setup: &SentinelSetup) {
    let output = run(&["check", "--store", &setup.url()]);
    let page = String::from_utf8(output.stdout).unwrap();
    let is_told = page.contains(&format!("cannot be used now: {LOWER_EPOCH}"));
    assert!(output.status.code() == Some(1) && is_told, "{page}");
}

/// They have forgotten a number, and no server is deposed for that. To connect, a gateway needs more.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_the_server_that_most_sentinels_name_by_a_lower_epoch_is_kept_and_none_is_made() {
    let (mut setup, gateways, before) = after_a_failover_with_one_silent_sentinel().await;
    let gateway = &gateways[0];
    setup.set_up_anew(0, 1).await;
    setup.set_up_anew(1, 1).await;
    says_that_sentinels_have_gone_back(gateway).await;
    Client::new(gateway.address).get("/readyz").send().await.expect(200);
    grant(gateway, &setup, 1).await;
    let another = Gateway::start(&["--store", &setup.url()]).await;
    refuses_a_lower_epoch(&another).await;
    assert_cannot_be_used(&setup);

    // The third is gone for good: the operator names those that are left.
    let left: Vec<_> = setup.sentinels[..2].iter().map(|left| format!("127.0.0.1:{}", left.port())).collect();
    let url = format!("redis+sentinel://{}/{MASTER}", left.join(","));
    assert!(run(&["check", "--store", &url]).status.success());
    let restarted = Gateway::start(&["--store", &url]).await;
    grants_on(&restarted, Promotion { server: 1, at: Instant::now() }, &setup.servers[1], &new_key).await;
    let (number, is_there) = grant(&restarted, &setup, 1).await;
    assert!(is_there && number > before, "{number} after {before}, there: {is_there}");

    // Or it is set up anew, too.
    setup.set_up_anew(2, 1).await;
    for gateway in [gateway, &another] {
        grants_on(gateway, Promotion { server: 1, at: Instant::now() }, &setup.servers[1], &new_key).await;
        agree_again(gateway).await;
    }
}
