//! A lock that a connection holds: its gateway renews it by its attempt, and takes it back by that when it closes.

use std::time::Duration;

use fencepost::lock::{Attempt, FencingToken, Inspected, Released, Renewed, RolledBack, Terms};
use fencepost::store::{Inspect, KnownTo, Renewer, TicketAfter, Tombstone};

use super::{AnyStore, Caller, MARK_TTL, already_held, eventually, for_each_store, granted};
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask, Join};

for_each_store!(
    a_connection_renews_what_it_can_still_take_back,
    looking_with_the_token_leaves_the_lock_to_the_connection,
    whoever_takes_or_renews_it_with_the_token_takes_it_over,
    the_youngest_connection_of_a_token_claims_its_lock,
    what_was_told_to_a_token_is_not_claimed_later,
    one_that_has_waited_leaves_the_lock_to_a_later_connection_of_its_token,
    one_that_has_waited_finds_what_it_has_claimed_itself,
    a_late_copy_of_a_request_that_claimed_the_lock_claims_nothing_more,
    a_connection_renews_nothing_of_others,
    a_claim_leaves_the_lease_as_it_was_told,
    what_a_connection_held_is_kept_by_nobody_for_its_min_hold,
    what_was_told_before_a_connection_had_the_lock_lasts_and_no_longer,
);

fn by(attempt: Attempt) -> Renewer {
    Renewer::Connection(attempt)
}

/// A caller whose lock is held by the attempt of a connection.
async fn connected(scene: &AnyStore) -> (Caller<'_>, Attempt) {
    let (caller, attempt) = (Caller::new(scene, "k"), Attempt::for_connection());
    granted(caller.acquire_as(attempt, 5_000, Ask::Try).await);
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
    granted(caller.acquire_as(Attempt::for_connection(), 5_000, Ask::Try).await);
}

async fn looking_with_the_token_leaves_the_lock_to_the_connection(scene: &AnyStore) {
    let (caller, attempt) = connected(scene).await;
    let seen = scene
        .store
        .call(Inspect { key: caller.key.clone(), token: Some(caller.token) }, super::soon())
        .await
        .unwrap();
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
        assert_eq!(caller.release(Tombstone::None).await, Released::Released);
    }
}

async fn the_youngest_connection_of_a_token_claims_its_lock(scene: &AnyStore) {
    let (caller, first) = connected(scene).await;
    let second = Attempt::for_connection();
    // A retry of the same request claims nothing more.
    for _ in 0..2 {
        already_held(caller.acquire_as(second, 5_000, Ask::Try).await);
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

async fn one_that_has_waited_leaves_the_lock_to_a_later_connection_of_its_token(scene: &AnyStore) {
    for first in [Attempt::for_connection(), Attempt::generate()] {
        let (holder, caller) = (Caller::new(scene, "k"), Caller::new(scene, "k"));
        holder.grant(5_000).await;
        let second = Attempt::for_connection();
        let join = |takes_over| Ask::Enqueue(Join { takes_over, ticket: None, supersedes: Vec::new() });
        for attempt in [first, second] {
            let waits = caller.acquire_as(attempt, 5_000, join(true)).await;
            assert!(matches!(waits, Answer::Queued(_)), "{waits:?}");
        }
        assert_eq!(holder.release(Tombstone::None).await, Released::Released);
        eventually("the later one is granted the lock", async || {
            matches!(caller.acquire_as(second, 5_000, Ask::Poll).await, Answer::Granted(_))
        })
        .await;
        for ask in [Ask::Poll, join(false), Ask::LastPoll(TicketAfter::Kept)] {
            assert_eq!(caller.acquire_as(first, 5_000, ask).await, Answer::TakenOver);
        }
        assert!(matches!(caller.renew_by(by(second), 5_000).await, Renewed::Renewed(_)));
        // Its first command may not have been answered.
        let again = Join { takes_over: true, ticket: None, supersedes: vec![first] };
        let answer = caller.acquire_as(first.another(), 5_000, Ask::Enqueue(again)).await;
        assert_eq!(answer, Answer::TakenOver);
        assert!(matches!(caller.renew_by(by(second), 5_000).await, Renewed::Renewed(_)));
        // A new request may take it over.
        already_held(caller.acquire_as(Attempt::for_connection(), 5_000, join(true)).await);
        assert_eq!(caller.renew_by(by(second), 5_000).await, Renewed::TakenOver);
        assert_eq!(caller.release(Tombstone::None).await, Released::Released);
    }
}

async fn one_that_has_waited_finds_what_it_has_claimed_itself(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(5_000).await;
    let (first, again) = (Attempt::for_connection(), Attempt::for_connection());
    already_held(caller.acquire_as(first, 5_000, Ask::Poll).await);
    already_held(caller.acquire_as(first, 5_000, Ask::Poll).await);
    // Its answer was lost.
    let rejoin = Ask::Enqueue(Join { takes_over: false, ticket: None, supersedes: vec![first] });
    already_held(caller.acquire_as(again, 5_000, rejoin).await);
    assert!(matches!(caller.renew_by(by(again.claim()), 5_000).await, Renewed::Renewed(_)));
}

async fn what_was_told_to_a_token_is_not_claimed_later(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(5_000).await;
    let claiming = Attempt::for_connection();
    already_held(caller.acquire_as(claiming, 5_000, Ask::Try).await);
    assert!(matches!(caller.renew(5_000).await, Renewed::Renewed(_)));
    assert_eq!(caller.renew_by(by(claiming.claim()), 5_000).await, Renewed::TakenOver);
    caller.take_back(claiming.claim()).await;
    assert!(!caller.is_free().await, "the renewal was told that it is held");
}

async fn a_late_copy_of_a_request_that_claimed_the_lock_claims_nothing_more(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(5_000).await;
    let claiming = Attempt::for_connection();
    already_held(caller.acquire_as(claiming, 5_000, Ask::Try).await);
    assert!(matches!(caller.renew(5_000).await, Renewed::Renewed(_)));
    for intent in [Ask::Try, Ask::LastPoll(TicketAfter::Removed)] {
        let answer = caller.acquire_as(claiming, 5_000, intent).await;
        assert!(!matches!(answer, Answer::Granted(_) | Answer::AlreadyHeld(_)), "{answer:?}");
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

/// Whoever gives up a lock that a connection held: for as long its token was told of leases before.
fn connection(told_ms: u64) -> KnownTo {
    // None is larger.
    let number = FencingToken::new((1 << 53) - 1).unwrap();
    KnownTo::Connection { number, told_for: Duration::from_millis(told_ms) }
}

async fn a_claim_leaves_the_lease_as_it_was_told(scene: &AnyStore) {
    let (caller, claiming) = (Caller::new(scene, "k"), Attempt::for_connection());
    caller.grant(5_000).await;
    for _ in 0..2 {
        let lease = already_held(caller.acquire_as(claiming, 60_000, Ask::Try).await);
        assert!(lease.left_ms <= 5_000, "{lease:?}");
    }
    assert!(matches!(caller.renew_by(by(claiming.claim()), 60_000).await, Renewed::Renewed(_)));
}

async fn what_a_connection_held_is_kept_by_nobody_for_its_min_hold(scene: &AnyStore) {
    for (claims, known) in [(true, connection(0)), (false, connection(0)), (false, KnownTo::Nobody)] {
        let key = format!("claims: {claims}, {known:?}");
        let terms = Terms { max_hold: None, min_hold: Some(Duration::from_secs(20)), ..Terms::default() };
        let (caller, attempt) = (Caller { terms, ..Caller::new(scene, &key) }, Attempt::for_connection());
        let held_by = if claims {
            caller.grant(60_000).await;
            already_held(caller.acquire_as(attempt, 5_000, Ask::Try).await);
            attempt.claim()
        } else {
            granted(caller.acquire_as(attempt, 60_000, Ask::Try).await);
            attempt
        };
        let undone = caller.take_back_from(held_by, known).await;
        if known == KnownTo::Nobody {
            assert_eq!(undone, RolledBack::Ended { kept_ms: 0 });
            assert!(caller.is_free().await, "nobody may have been told of it");
            continue;
        }
        assert!(matches!(undone, RolledBack::Ended { kept_ms: 15_000..=20_000 }), "{undone:?}");
        let Inspected::Held { lease, .. } = caller.look().await else { panic!("it is free") };
        assert!(lease.is_released && (15_000..=20_000).contains(&lease.left_ms), "{lease:?}");
        assert_eq!(caller.take_back_from(held_by, known).await, RolledBack::Nothing, "a late copy");
    }
}

async fn what_was_told_before_a_connection_had_the_lock_lasts_and_no_longer(scene: &AnyStore) {
    for min_hold in [None, Some(Duration::from_secs(20))] {
        let terms = Terms { max_hold: None, min_hold, ..Terms::default() };
        let key = format!("{min_hold:?}");
        let (caller, attempt) = (Caller { terms, ..Caller::new(scene, &key) }, Attempt::for_connection());
        caller.grant(60_000).await;
        already_held(caller.acquire_as(attempt, 60_000, Ask::Try).await);
        let undone = caller.take_back_from(attempt.claim(), connection(2_000)).await;
        let Inspected::Held { lease, .. } = caller.look().await else { panic!("it is free") };
        let longest_ms = if min_hold.is_some() { 20_000 } else { 2_000 + 50 };
        assert!(!lease.is_released && lease.left_ms <= longest_ms, "{lease:?}");
        assert!(
            matches!(undone, RolledBack::LeftToToken { left_ms } if left_ms <= longest_ms && left_ms + 500 > lease.left_ms),
            "{undone:?}"
        );
        // A copy that comes late finds it pinned, and a renewal of the connection no longer its own.
        assert_eq!(caller.take_back_from(attempt.claim(), connection(0)).await, RolledBack::Nothing);
        assert_eq!(caller.renew_by(by(attempt.claim()), 60_000).await, Renewed::TakenOver);
        if min_hold.is_none() {
            eventually("what was told is over", async || caller.is_free().await).await;
        } else {
            assert!(matches!(caller.renew(30_000).await, Renewed::Renewed(_)), "it is its token's");
        }
    }
}
