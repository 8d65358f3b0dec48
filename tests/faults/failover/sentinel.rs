//! One primary after the other by the word of Sentinel, back and forth between the same two servers, under load.

use super::{all_resume_in_time, gateways, new_key};
use kit::SentinelSetup;
use kit::history::now_us;
use kit::load::Load;
use kit::sentinels::SentinelOptions;

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
