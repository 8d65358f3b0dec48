//! Which word of Sentinel is believed: a gateway is not led back to a deposed primary.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{all_resume, gateways, grants_on, has_lock, new_key, of_note};
use kit::history::now_us;
use kit::load::Load;
use kit::sentinels::Promotion;
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

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_a_lower_epoch_are_followed_only_when_all_of_them_are() {
    let mut setup = SentinelSetup::start().await;
    let gateways = gateways(1, &setup.url(), &[]).await;
    let gateway = &gateways[0];
    let promotion = setup.failover().await;
    all_resume(&gateways, promotion, &setup.servers[1], new_key).await;
    setup.settles_on(1).await;
    let (before, _) = grant(gateway, &setup, 1).await;

    // Two of the three are set up anew, on a server that was deposed, and the third cannot object.
    setup.sentinels[2].stand_still().await;
    setup.sentinels[0].kill();
    setup.sentinels[1].kill();
    setup.servers[0].promote().await;
    setup.set_up_anew(0, 0).await;
    setup.set_up_anew(1, 0).await;
    eventually("most sentinels report the deposed primary", async || setup.current().await == Some(0)).await;
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(3) {
        let (_, is_there) = grant(gateway, &setup, 1).await;
        assert!(is_there, "it was led back: {:#?}", of_note(gateway));
        sleep(Duration::from_millis(50)).await;
    }
    // Nor does it go there when it has to look for the primary, and neither does one that knows no epoch at all.
    for kind in ["normal", "pubsub"] {
        let _: u64 = setup.servers[1].command(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
    let another = Gateway::start(&["--store", &setup.url()]).await;
    for gateway in [gateway, &another] {
        let client = Client::new(gateway.address);
        eventually("it serves nobody", async || {
            client.put(&format!("/locks/{}", new_key())).send().await.status == 503
        })
        .await;
        let answer = client.put("/locks/refused").send().await.expect_problem(503, "store-unavailable");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("primary"), "{detail}");
        assert!(!has_lock(&setup.servers[0], "refused").await);
    }

    // It is ended as it stands still: going on for a moment, it would tell the others of the epoch that they have forgotten.
    setup.set_up_anew(2, 0).await;
    let unanimous = Promotion { server: 0, at: Instant::now() };
    for gateway in [gateway, &another] {
        grants_on(gateway, unanimous, &setup.servers[0], &new_key).await;
        let (number, is_there) = grant(gateway, &setup, 0).await;
        assert!(is_there && number > before, "{number} after {before}, there: {is_there}");
    }
    gateway.logs("it says so", |line| line.contains("Sentinel was set up anew")).await;
}
