//! For how long a lock may, and must, be taken.

use std::time::Duration;

use fencepost::lock::{Attempt, Inspected, Lease, Refusal, Released, Renewed, Terms};
use fencepost::store::{Inspect, Renewer, Tombstone};
use tokio::time::Instant;

use super::{AnyStore, Caller, MARK_TTL, already_held, eventually, for_each_store};
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask};

for_each_store!(
    no_renewal_goes_past_max_hold,
    a_repeated_request_does_not_go_past_max_hold,
    a_lock_that_is_released_before_its_min_hold_stays_taken_until_then,
    who_released_a_lock_that_is_kept_is_told_so_and_nobody_else,
    a_kept_lock_may_outlive_the_lease_that_was_released,
    a_min_hold_that_is_over_keeps_nothing,
    a_lease_that_expires_is_not_kept,
    a_grant_that_is_taken_back_is_not_kept,
);

/// What a machine that is busy with other things may add to each step.
const SLACK: Duration = Duration::from_millis(800);

fn lasting(scene: &AnyStore, max_hold_ms: Option<u64>, min_hold_ms: Option<u64>) -> Caller<'_> {
    let [max_hold, min_hold] = [max_hold_ms, min_hold_ms].map(|ms| ms.map(Duration::from_millis));
    Caller { terms: Terms { max_hold, min_hold, ..Terms::default() }, ..Caller::new(scene, "k") }
}

fn holder(seen: Inspected) -> Lease {
    match seen {
        Inspected::Held { lease, .. } => lease,
        Inspected::Free { .. } => panic!("nobody holds it"),
    }
}

async fn no_renewal_goes_past_max_hold(scene: &AnyStore) {
    let caller = lasting(scene, Some(2_000), None);
    let before = Instant::now();
    let first = caller.grant(1_500).await;
    let granted = Instant::now();
    assert!(first.left_ms <= 1_500);
    let Renewed::Renewed(cut) = caller.renew(60_000).await else { panic!("not renewed") };
    assert_eq!(cut.fencing_token, first.fencing_token);
    let end_after = |left_ms| (Instant::now() + Duration::from_millis(left_ms)).duration_since(granted);
    assert!(end_after(cut.left_ms) <= Duration::from_millis(2_000) + SLACK, "{cut:?}");
    assert!(cut.left_ms > 1_000, "it is as long as it may be: {cut:?}");
    let Renewed::MaxHoldReached(rest) = caller.renew(60_000).await else { panic!("renewed again") };
    assert!(rest.left_ms <= cut.left_ms && rest.fencing_token == first.fencing_token, "{rest:?}");
    // One that asks for less than is left is renewed as ever.
    assert!(matches!(caller.renew(10).await, Renewed::Renewed(_)));
    eventually("it ends for good", async || {
        caller.renew(60_000).await == Renewed::NotHeld && caller.is_free().await
    })
    .await;
    assert!(before.elapsed() >= Duration::from_millis(1_900), "ended after {:?}", before.elapsed());
    assert!(granted.elapsed() <= Duration::from_millis(2_000) + SLACK, "after {:?}", granted.elapsed());
}

async fn a_repeated_request_does_not_go_past_max_hold(scene: &AnyStore) {
    let caller = lasting(scene, Some(20_000), None);
    let before = Instant::now();
    caller.grant(5_000).await;
    let again = already_held(caller.acquire(60_000).await);
    let passed_ms = u64::try_from(before.elapsed().as_millis()).unwrap();
    assert!(
        (19_000_u64.saturating_sub(passed_ms)..=20_000).contains(&again.left_ms),
        "{again:?} after {passed_ms} ms"
    );
    let once_more = already_held(caller.acquire(60_000).await);
    assert!(once_more.left_ms <= again.left_ms, "{once_more:?}");
}

async fn a_lock_that_is_released_before_its_min_hold_stays_taken_until_then(scene: &AnyStore) {
    let caller = lasting(scene, None, Some(1_500));
    let granted_after = Instant::now();
    let first = caller.grant(30_000).await;
    assert!(!holder(caller.look().await).is_released);
    assert_eq!(caller.release(Tombstone::Final).await, Released::Released);
    assert_eq!(caller.release(Tombstone::Final).await, Released::Released, "it is told the same again");
    let kept = holder(caller.look().await);
    assert!(kept.is_released && kept.fencing_token == first.fencing_token, "{kept:?}");
    assert!((1..=1_500).contains(&kept.left_ms), "{kept:?}");
    assert_eq!(caller.renew(30_000).await, Renewed::Released, "its token has no part in it any more");
    assert_eq!(caller.acquire(30_000).await, Answer::TokenReleased);
    let other = Caller::new(scene, "k");
    let Answer::Refused(Refusal { holder: Some(told), .. }) = other.acquire(30_000).await else {
        panic!("not refused")
    };
    assert!(told.is_released, "{told:?}");
    assert_eq!(other.release(Tombstone::None).await, Released::HeldByAnother);
    eventually("its time is over", async || other.is_free().await).await;
    let after = granted_after.elapsed();
    assert!(after >= Duration::from_millis(1_490), "free after {after:?}");
    assert!(after <= Duration::from_millis(1_500) + SLACK, "free after {after:?}");
    assert!(other.grant(30_000).await.fencing_token > first.fencing_token);
}

/// Also where no mark says so: that of a token which the server made, or where it has ended.
async fn who_released_a_lock_that_is_kept_is_told_so_and_nobody_else(scene: &AnyStore) {
    let (caller, other) = (lasting(scene, None, Some(20_000)), Caller::new(scene, "k"));
    let (first, attempt) = (caller.grant(30_000).await, Attempt::for_connection());
    for mark in [Tombstone::None, Tombstone::None, Tombstone::Final, Tombstone::Final] {
        assert_eq!(caller.release(mark).await, Released::Released);
        for by in [Renewer::Token, Renewer::Connection(attempt)] {
            assert_eq!(caller.renew_by(by, 30_000).await, Renewed::Released);
            assert_eq!(other.renew_by(by, 30_000).await, Renewed::HeldByAnother);
        }
        let confirmed = caller.acquire_as(Attempt::generate(), 30_000, Ask::Confirm).await;
        assert_eq!(confirmed, Answer::TokenReleased);
        let others = other.acquire_as(Attempt::generate(), 30_000, Ask::Confirm).await;
        assert!(matches!(others, Answer::Refused(Refusal { holder: Some(_), .. })), "{others:?}");
        for token in [caller.token, other.token] {
            let seen = scene
                .store
                .call(Inspect { key: caller.key.clone(), token: Some(token) }, super::soon())
                .await
                .unwrap();
            assert!(matches!(seen, Inspected::Held { yours: Some(false), .. }), "{seen:?}");
        }
        assert_eq!(holder(caller.look().await).fencing_token, first.fencing_token);
    }
    assert_eq!(other.release(Tombstone::None).await, Released::HeldByAnother);
    eventually("its mark is over", async || caller.acquire(30_000).await != Answer::TokenReleased).await;
    assert_eq!(caller.renew(30_000).await, Renewed::Released);
    assert_eq!(caller.release(Tombstone::None).await, Released::Released);
}

async fn a_kept_lock_may_outlive_the_lease_that_was_released(scene: &AnyStore) {
    let caller = lasting(scene, None, Some(20_000));
    caller.grant(1_000).await;
    assert_eq!(caller.release(Tombstone::None).await, Released::Released);
    let kept = holder(caller.look().await);
    assert!(kept.is_released && kept.left_ms > 15_000, "{kept:?}");
}

async fn a_min_hold_that_is_over_keeps_nothing(scene: &AnyStore) {
    let caller = lasting(scene, Some(60_000), Some(1));
    caller.grant(30_000).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(caller.release(Tombstone::Final).await, Released::Released);
    assert!(caller.is_free().await);
}

async fn a_lease_that_expires_is_not_kept(scene: &AnyStore) {
    let caller = lasting(scene, None, Some(60_000));
    caller.grant(50).await;
    eventually("a lease ends by itself", async || caller.is_free().await).await;
}

async fn a_grant_that_is_taken_back_is_not_kept(scene: &AnyStore) {
    let caller = lasting(scene, None, Some(60_000));
    let attempt = fencepost::lock::Attempt::generate();
    super::granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    caller.take_back(attempt).await;
    assert!(caller.is_free().await, "nobody was told of it");
}
