//! A lock that a connection holds: its gateway renews it by its attempt, and takes it back by that when it closes.

use fencepost::lock::{Attempt, Inspected, Released, Renewed};
use fencepost::store::{Intent, ReleaseMark, Renewer};

use super::{AnyStore, Caller, MARK_TTL, already_held, for_each_store, granted};

for_each_store!(
    a_connection_renews_what_it_can_still_take_back,
    looking_with_the_token_leaves_the_lock_to_the_connection,
    whoever_takes_or_renews_it_with_the_token_takes_it_over,
    a_pinned_lock_becomes_the_connections_that_adopts_it,
    a_connection_renews_nothing_of_others,
);

fn by(attempt: Attempt) -> Renewer {
    Renewer::Connection { attempt, adopts: false }
}

fn adopting(attempt: Attempt) -> Renewer {
    Renewer::Connection { attempt, adopts: true }
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

async fn a_pinned_lock_becomes_the_connections_that_adopts_it(scene: &AnyStore) {
    let (caller, first) = connected(scene).await;
    let second = Attempt::for_connection();
    assert_eq!(caller.renew_by(adopting(second), 5_000).await, Renewed::TakenOver, "it is the first one's");
    already_held(caller.acquire_as(second, 5_000, Intent::Grant).await);
    assert_eq!(caller.renew_by(by(second), 5_000).await, Renewed::TakenOver, "it is pinned");
    assert!(matches!(caller.renew_by(adopting(second), 5_000).await, Renewed::Renewed(_)));
    assert!(matches!(caller.renew_by(by(second), 5_000).await, Renewed::Renewed(_)));
    caller.take_back(first).await;
    assert!(!caller.is_free().await, "it is no longer the first one's");
    caller.take_back(second).await;
    assert!(caller.is_free().await);
}

async fn a_connection_renews_nothing_of_others(scene: &AnyStore) {
    let attempt = Attempt::for_connection();
    let stranger = Caller::new(scene, "k");
    assert_eq!(stranger.renew_by(adopting(attempt), 5_000).await, Renewed::NotHeld);
    let (_, _) = connected(scene).await;
    assert_eq!(stranger.renew_by(adopting(attempt), 5_000).await, Renewed::HeldByAnother);
}
