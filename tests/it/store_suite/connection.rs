//! A lock that a connection holds: its gateway renews it by its attempt, and takes it back by that when it closes.

use std::time::Duration;

use fencepost::lock::{Acquired, Attempt, Inspected, Released, Renewed, Terms};
use fencepost::store::{Intent, PlaceAfter, ReleaseMark, Renewer};

use super::{AnyStore, Caller, MARK_TTL, already_held, for_each_store, granted};

for_each_store!(
    a_connection_renews_what_it_can_still_take_back,
    looking_with_the_token_leaves_the_lock_to_the_connection,
    whoever_takes_or_renews_it_with_the_token_takes_it_over,
    the_youngest_connection_of_a_token_claims_its_lock,
    what_was_told_to_a_token_is_not_claimed_later,
    a_late_copy_of_a_request_that_claimed_the_lock_claims_nothing_more,
    a_connection_renews_nothing_of_others,
    a_claim_that_is_given_up_keeps_to_the_min_hold_of_the_grant,
);

fn by(attempt: Attempt) -> Renewer {
    Renewer::Connection(attempt)
}

/// A caller whose lock is held by the attempt of a connection.
async fn connected(scene: &AnyStore) -> (Caller<'_>, Attempt) {
    let (caller, attempt) = (Caller::new(scene, "k"), Attempt::for_connection());
    granted(caller.acquire_as(attempt, 5_000, Intent::Grant).await);
    (caller, attempt)
}

async fn a_connection_renews_what_it_can_still_take_back(scene: &AnyStore) {
    let (caller, attempt) = connected(scene).await;
    for _ in 0..2 {
        let Renewed::Renewed(lease) = caller.renew_by(by(attempt), 30_000).await else { panic!("lost") };
        assert!(lease.left_ms > 20_000, "{lease:?}");
    }
    caller.take_back(attempt).await;
    assert!(caller.is_free().await);
    assert_eq!(caller.renew_by(by(attempt), 30_000).await, Renewed::NotHeld);
    // The token may come back, by another connection.
    granted(caller.acquire_as(Attempt::for_connection(), 5_000, Intent::Grant).await);
}

async fn looking_with_the_token_leaves_the_lock_to_the_connection(scene: &AnyStore) {
    let (caller, attempt) = connected(scene).await;
    let seen = scene.store.inspect(&caller.key, Some(&caller.token), super::soon()).await.unwrap();
    assert!(matches!(seen, Inspected::Held { yours: Some(true), .. }), "{seen:?}");
    assert!(matches!(caller.renew_by(by(attempt), 5_000).await, Renewed::Renewed(_)));
    caller.take_back(attempt).await;
    assert!(caller.is_free().await);
}

async fn whoever_takes_or_renews_it_with_the_token_takes_it_over(scene: &AnyStore) {
    for renews in [false, true] {
        let (caller, attempt) = connected(scene).await;
        if renews {
            assert!(matches!(caller.renew(5_000).await, Renewed::Renewed(_)));
        } else {
            already_held(caller.acquire(5_000).await);
        }
        assert_eq!(caller.renew_by(by(attempt), 30_000).await, Renewed::TakenOver);
        caller.take_back(attempt).await;
        assert!(!caller.is_free().await, "somebody was told that it is held");
        assert_eq!(caller.release(ReleaseMark::None).await, Released::Released);
    }
}

async fn the_youngest_connection_of_a_token_claims_its_lock(scene: &AnyStore) {
    let (caller, first) = connected(scene).await;
    let second = Attempt::for_connection();
    // A retry of the same request claims nothing more.
    for _ in 0..2 {
        already_held(caller.acquire_as(second, 5_000, Intent::Grant).await);
    }
    assert_eq!(caller.renew_by(by(first), 30_000).await, Renewed::TakenOver);
    assert_eq!(caller.renew_by(by(second), 30_000).await, Renewed::TakenOver, "it holds it by its claim");
    assert!(matches!(caller.renew_by(by(second.claim()), 5_000).await, Renewed::Renewed(_)));
    for undone in [first, second] {
        caller.take_back(undone).await;
        assert!(!caller.is_free().await, "the first one was told of it too");
    }
    caller.take_back(second.claim()).await;
    assert!(caller.is_free().await);
}

async fn what_was_told_to_a_token_is_not_claimed_later(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(5_000).await;
    let claiming = Attempt::for_connection();
    already_held(caller.acquire_as(claiming, 5_000, Intent::Grant).await);
    assert!(matches!(caller.renew(5_000).await, Renewed::Renewed(_)));
    assert_eq!(caller.renew_by(by(claiming.claim()), 5_000).await, Renewed::TakenOver);
    caller.take_back(claiming.claim()).await;
    assert!(!caller.is_free().await, "the renewal was told that it is held");
}

async fn a_late_copy_of_a_request_that_claimed_the_lock_claims_nothing_more(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(5_000).await;
    let claiming = Attempt::for_connection();
    already_held(caller.acquire_as(claiming, 5_000, Intent::Grant).await);
    assert!(matches!(caller.renew(5_000).await, Renewed::Renewed(_)));
    for intent in [Intent::Grant, Intent::LastLook(PlaceAfter::Removed)] {
        let answer = caller.acquire_as(claiming, 5_000, intent).await;
        assert!(!matches!(answer, Acquired::Granted(_) | Acquired::AlreadyHeld(_)), "{answer:?}");
    }
    caller.take_back(claiming.claim()).await;
    assert!(!caller.is_free().await, "the renewal was told that it is held");
}

async fn a_connection_renews_nothing_of_others(scene: &AnyStore) {
    let attempt = Attempt::for_connection();
    let stranger = Caller::new(scene, "k");
    assert_eq!(stranger.renew_by(by(attempt), 5_000).await, Renewed::NotHeld);
    let (_, _) = connected(scene).await;
    assert_eq!(stranger.renew_by(by(attempt), 5_000).await, Renewed::HeldByAnother);
}

async fn a_claim_that_is_given_up_keeps_to_the_min_hold_of_the_grant(scene: &AnyStore) {
    for claims in [false, true] {
        let key = format!("claims: {claims}");
        let terms = Terms { max_hold: None, min_hold: Some(Duration::from_secs(20)) };
        let (caller, attempt) = (Caller { terms, ..Caller::new(scene, &key) }, Attempt::for_connection());
        if claims {
            caller.grant(5_000).await;
            already_held(caller.acquire_as(attempt, 5_000, Intent::Grant).await);
            caller.take_back(attempt.claim()).await;
            let Inspected::Held { lease, .. } = caller.look().await else { panic!("it is free") };
            assert!(lease.is_released && lease.left_ms > 15_000, "{lease:?}");
        } else {
            granted(caller.acquire_as(attempt, 5_000, Intent::Grant).await);
            caller.take_back(attempt).await;
            assert!(caller.is_free().await, "nobody may have been told of it");
        }
    }
}
