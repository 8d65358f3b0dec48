//! One primary after the other by the word of Sentinel, back and forth between the same two servers, under load.

use super::{all_resume_in_time, gateways, new_key};
use kit::history::now_us;
use kit::load::Load;
use kit::metrics::Scrape;
use kit::sentinels::SentinelOptions;
use kit::{Client, Gateway, SentinelSetup};

#[tokio::test(flavor = "multi_thread")]
async fn service_resumes_and_numbers_grow_when_primaries_under_sentinel_are_killed() {
    let mut setup = SentinelSetup::start().await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let load = Load::start("sentinel-kill", &gateways).await;
    for killed in [0, 1] {
        let start_us = now_us();
        let promotion = setup.kill_primary().await;
        all_resume_in_time(&gateways, promotion, &setup.servers[promotion.server], new_key).await;
        load.lost_since(start_us);
        // It comes up empty, and as a primary; nobody follows it.
        setup.bring_back(killed).await;
        load.goes_on().await;
    }
    load.judge(&gateways).await;
}

/// A deposed primary is told so, and goes on for seconds: whoever waits for its word stays with it for too long.
#[tokio::test(flavor = "multi_thread")]
async fn service_resumes_and_numbers_grow_when_sentinel_is_told_to_fail_over() {
    let options = SentinelOptions { publish_period_ms: 1_250, ..SentinelOptions::default() };
    let setup = SentinelSetup::start_with(options).await;
    let gateways = gateways(2, &setup.url(), &[]).await;
    let load = Load::start("sentinel-failover", &gateways).await;
    for _ in 0..2 {
        let start_us = now_us();
        let promotion = setup.failover().await;
        all_resume_in_time(&gateways, promotion, &setup.servers[promotion.server], new_key).await;
        load.lost_since(start_us);
        // One gateway may have left the old primary a second before the other.
        load.split_since(start_us);
        setup.settles_on(promotion.server).await;
        load.goes_on().await;
    }
    load.judge(&gateways).await;
}

/// Else the failover for which the sentinels are there is the first to show that they are not heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_hears_no_majority_of_the_sentinels_goes_on_and_says_so_once() {
    let mut setup = SentinelSetup::start().await;
    let gateways = gateways(1, &setup.url(), &[]).await;
    let (gateway, client) = (&gateways[0], Client::new(gateways[0].address));
    client.put("/locks/before").send().await.expect(201);
    let silent = "no majority of the sentinels agrees on the primary";
    for sentinel in [0, 1] {
        setup.sentinels[sentinel].kill();
    }
    gateway.logs("it says so", |line| line.contains(silent) && line.contains("only 1 of 3")).await;
    client.get("/readyz").send().await.expect(200);
    client.put("/locks/meanwhile").send().await.expect(201);
    assert_eq!(Scrape::of(gateway.address).await.get("fencepost_sentinels_unheard"), 1.0);
    // Another one that has no connection yet says so, too.
    let late = Gateway::start(&["--store", &setup.url()]).await;
    late.logs("it says so, too", |line| line.contains(silent)).await;
    assert_eq!(Scrape::of(late.address).await.get("fencepost_sentinels_unheard"), 1.0);
    for sentinel in [0, 1] {
        setup.start_sentinel_again(sentinel).await;
    }
    gateway.logs("it says that it is over", |line| line.contains("most sentinels agree")).await;
    assert_eq!(Scrape::of(gateway.address).await.get("fencepost_sentinels_unheard"), 0.0);
    let told = gateway.log().into_iter().filter(|line| line.contains(silent)).count();
    assert_eq!(told, 1, "{:#?}", super::of_note(gateway));
}
