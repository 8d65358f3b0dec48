//! What becomes of the promises when one server takes the place of another: under Sentinel and on a cluster, by
//! accident and on purpose, and while the old one does not know that it is deposed.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use kit::sentinels::Promotion;
use kit::{Client, Gateway, PATIENCE, RedisServer, fresh_token};

mod cluster;
mod epochs;
mod migration;
mod names;
mod sentinel;
mod split;

/// How soon after a promotion service must have resumed, whatever became of the server before.
const RESUMES_WITHIN: Duration = Duration::from_secs(3);

/// Starts so many gateways on the same store.
async fn gateways(count: usize, url: &str, args: &[&str]) -> Vec<Gateway> {
    let args = [&["--store", url], args].concat();
    join_all((0..count).map(|_| Gateway::start(&args))).await
}

/// Waits until every gateway grants locks on the server that was promoted, and holds it against the contract.
async fn all_resume_in_time(
    gateways: &[Gateway],
    promotion: Promotion,
    server: &RedisServer,
    new_key: impl Fn() -> String,
) {
    for (gateway, took) in gateways.iter().zip(all_resume(gateways, promotion, server, new_key).await) {
        assert!(
            took < RESUMES_WITHIN,
            "service resumed {took:?} after the promotion: {:#?}",
            of_note(gateway)
        );
    }
}

/// Waits until every gateway grants locks on the server that was promoted; returns how long after the promotion.
async fn all_resume(
    gateways: &[Gateway],
    promotion: Promotion,
    server: &RedisServer,
    new_key: impl Fn() -> String,
) -> Vec<Duration> {
    let resumed = gateways.iter().map(|gateway| grants_on(gateway, promotion, server, &new_key));
    let took = join_all(resumed).await;
    println!("service resumed after {took:?}");
    took
}

/// Waits until a gateway grants a lock on the server that was promoted; returns how long after the promotion.
async fn grants_on(
    gateway: &Gateway,
    promotion: Promotion,
    server: &RedisServer,
    new_key: &impl Fn() -> String,
) -> Duration {
    let client = Client::new(gateway.address);
    while promotion.at.elapsed() < PATIENCE {
        let key = new_key();
        let answer = client.put(&format!("/locks/{key}?ttl=1h")).send().await;
        let took = promotion.at.elapsed();
        if answer.status == 201 {
            let is_there = has_lock(server, &key).await;
            // Whether it can still be released does not matter here.
            client.delete(&format!("/locks/{key}")).token(&answer.token()).send().await;
            if is_there {
                return took;
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("service did not resume: {:#?}", of_note(gateway));
}

/// Whether a lock stands on this server.
async fn has_lock(server: &RedisServer, key: &str) -> bool {
    server.keys().await.iter().any(|name| name.ends_with(&format!("}}:lock:{key}")))
}

fn new_key() -> String {
    format!("probe-{}", fresh_token())
}

/// What a gateway has logged, but for the requests.
fn of_note(gateway: &Gateway) -> Vec<String> {
    gateway.log().into_iter().filter(|line| !line.contains("\"answered\"")).collect()
}
