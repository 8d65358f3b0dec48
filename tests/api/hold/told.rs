//! What a connection leaves behind that held a lock by a token which was told of it before, on every store.

use std::time::Duration;

use fencepost::lock::{LeaseToken, Terms, Ttl};
use fencepost::service::{AcquireRequest, Hold, HoldEvent, Holding, Loss};
use tokio::time::{Instant, sleep};

use super::doubt::{MARK_TTL, Scene, TTL_MS, next, own_token};
use kit::eventually;
use kit::for_each_store;
use kit::network::Loss as Lost;
use kit::stores::AnyStore;

for_each_store!(
    the_ttl_of_a_claim_is_no_lease_that_was_told_before_it,
    max_hold_ends_a_claim_while_a_lease_runs_that_was_told_before_it,
);

/// Longer than any test takes.
const LONG_MS: u64 = 200_000;

/// Holds the lock for much longer than the token was told before.
async fn claim(scene: &Scene, token: &LeaseToken, terms: Terms) -> Hold {
    let wish = AcquireRequest { ttl: Ttl::from_ms(LONG_MS).unwrap(), terms, ..scene.wish(token) };
    match scene.service.hold(wish, std::future::pending()).await.unwrap() {
        Holding::Held(mut hold) => {
            let lease = hold.delivered().expect("the lease is over");
            assert!(lease.left_ms > LONG_MS / 2 || terms.max_hold.is_some(), "{lease:?}");
            hold
        }
        _ => panic!("it is not held"),
    }
}

/// Also where the answer to the claim was lost, and where it was never told of.
async fn the_ttl_of_a_claim_is_no_lease_that_was_told_before_it(store: &AnyStore) {
    for loss in [None, Some(Lost::Answer)] {
        let (scene, token) = (Scene::on(store), own_token());
        let told = Instant::now();
        scene.put(&token).await;
        scene.network.lose(&Vec::from_iter(loss));
        drop(claim(&scene, &token, Terms::default()).await);
        while told.elapsed() < Duration::from_millis(TTL_MS - 50) {
            assert!(!scene.is_free().await, "{loss:?}: freed after {:?}", told.elapsed());
            sleep(Duration::from_millis(20)).await;
        }
        eventually("what was told is over, and the lock free", async || scene.is_free().await).await;
    }
}

async fn max_hold_ends_a_claim_while_a_lease_runs_that_was_told_before_it(store: &AnyStore) {
    let (scene, token) = (Scene::on(store), own_token());
    scene.put(&token).await;
    scene.renew(&token, LONG_MS).await;
    let began = Instant::now();
    let max_hold = Some(Duration::from_millis(2 * TTL_MS));
    let mut hold = claim(&scene, &token, Terms { max_hold, min_hold: None, ..Terms::default() }).await;
    loop {
        match next(&mut hold).await {
            Some(HoldEvent::Renewed(lease)) => {
                assert!(lease.left_ms <= 2 * TTL_MS, "it ends with max_hold: {lease:?}");
                assert!(began.elapsed() < Duration::from_secs(10), "it is not ended");
            }
            event => {
                break assert!(matches!(event, Some(HoldEvent::Lost(Loss::MaxHoldReached))), "{event:?}");
            }
        }
    }
    assert!(began.elapsed() >= Duration::from_millis(2 * TTL_MS - 100), "ended after {:?}", began.elapsed());
    // Somebody was told that the lock is held for longer.
    scene.renew(&token, 1_000).await;
    assert!(!scene.is_free().await);
}
