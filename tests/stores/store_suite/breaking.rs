//! Breaking a lock: by the number of the grant that holds it, and never another's.

use std::time::Duration;

use fencepost::lock::{Attempt, Broken, FencingToken, Inspected, Lease, Released, Renewed, Terms};
use fencepost::store::{Break, Renewer, Tombstone};

use super::{AnyStore, Caller, MARK_TTL, eventually, for_each_store, granted, soon};
use kit::asking::Ask;
use kit::asking::LockStoreExt;

for_each_store!(
    a_lock_is_broken_whoever_holds_it,
    only_the_grant_of_that_number_is_broken,
    a_lock_that_nobody_holds_is_not_broken,
    a_lock_that_is_kept_after_its_release_is_broken_too,
    a_connection_that_held_the_lock_finds_that_it_lost_it,
    a_renewal_does_not_bring_a_broken_lock_back,
);

impl Caller<'_> {
    async fn break_at(&self, number: FencingToken) -> Broken {
        self.scene.store.call(Break { key: self.key.clone(), fence: number }, soon()).await.unwrap()
    }
}

#[track_caller]
fn broken(answer: Broken) -> Lease {
    match answer {
        Broken::Broken(lease) => lease,
        other => panic!("not broken: {other:?}"),
    }
}

async fn a_lock_is_broken_whoever_holds_it(scene: &AnyStore) {
    let (holder, admin) = (Caller::new(scene, "k"), Caller::new(scene, "k"));
    let lease = holder.grant(30_000).await;
    let ended = broken(admin.break_at(lease.fencing_token).await);
    assert_eq!(
        (ended.fencing_token, ended.note, ended.is_released),
        (lease.fencing_token, lease.note, false)
    );
    assert!((1..=30_000).contains(&ended.left_ms), "{}", ended.left_ms);
    assert!(holder.is_free().await);
    assert_eq!(holder.renew(30_000).await, Renewed::NotHeld);
    assert_eq!(holder.release(Tombstone::None).await, Released::NotHeld);
    // Its token may take the lock anew, as after the end of a lease.
    let again = holder.grant(30_000).await;
    assert!(again.fencing_token > lease.fencing_token);
}

async fn only_the_grant_of_that_number_is_broken(scene: &AnyStore) {
    let (first, second) = (Caller::new(scene, "k"), Caller::new(scene, "k"));
    let ended = first.grant(30_000).await.fencing_token;
    broken(first.break_at(ended).await);
    let number = second.grant(30_000).await.fencing_token;
    // A copy that comes late, or a page that shows what was.
    assert_eq!(first.break_at(ended).await, Broken::HeldByAnother);
    let ahead = FencingToken::new(number.get() + 1).unwrap();
    assert_eq!(first.break_at(ahead).await, Broken::HeldByAnother);
    let Inspected::Held { lease, .. } = second.look().await else { panic!("it was broken") };
    assert_eq!(lease.fencing_token, number);
    assert!(matches!(second.renew(30_000).await, Renewed::Renewed(_)));
}

async fn a_lock_that_nobody_holds_is_not_broken(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    assert_eq!(caller.break_at(FencingToken::new(1).unwrap()).await, Broken::NotHeld);
    let lease = caller.grant(50).await;
    eventually("the lease ends", async || caller.is_free().await).await;
    assert_eq!(caller.break_at(lease.fencing_token).await, Broken::NotHeld);
    let lease = caller.grant(30_000).await;
    caller.release(Tombstone::Final).await;
    assert_eq!(caller.break_at(lease.fencing_token).await, Broken::NotHeld);
}

async fn a_lock_that_is_kept_after_its_release_is_broken_too(scene: &AnyStore) {
    let terms = Terms { min_hold: Some(Duration::from_secs(60)), max_hold: None, ..Terms::default() };
    let caller = Caller { terms, ..Caller::new(scene, "k") };
    let lease = caller.grant(30_000).await;
    assert_eq!(caller.release(Tombstone::Final).await, Released::Released);
    assert!(!caller.is_free().await, "it is kept");
    assert!(broken(caller.break_at(lease.fencing_token).await).is_released);
    assert!(caller.is_free().await);
    Caller::new(scene, "k").grant(30_000).await;
    // Nor does what is held keep anything of its min_hold.
    let held = Caller { terms, ..Caller::new(scene, "held") };
    let lease = held.grant(30_000).await;
    broken(held.break_at(lease.fencing_token).await);
    assert!(held.is_free().await);
}

async fn a_connection_that_held_the_lock_finds_that_it_lost_it(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let attempt = Attempt::for_connection();
    let lease = granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    broken(caller.break_at(lease.fencing_token).await);
    assert_eq!(caller.renew_by(Renewer::Connection(attempt), 30_000).await, Renewed::NotHeld);
    let next = Caller::new(scene, "k").grant(30_000).await;
    assert_eq!(caller.renew_by(Renewer::Connection(attempt), 30_000).await, Renewed::HeldByAnother);
    // What the connection takes back at its end is not the next holder's.
    caller.take_back(attempt).await;
    let Inspected::Held { lease, .. } = caller.look().await else { panic!("it was taken back") };
    assert_eq!(lease.fencing_token, next.fencing_token);
}

async fn a_renewal_does_not_bring_a_broken_lock_back(scene: &AnyStore) {
    for round in 0..10 {
        let caller = Caller::new(scene, &format!("k{round}"));
        let lease = caller.grant(30_000).await;
        // At the same time, so that on a quorum some servers renew before and some after, and are mended.
        let (renewed, answer) = tokio::join!(caller.renew(60_000), caller.break_at(lease.fencing_token));
        assert!(matches!(renewed, Renewed::Renewed(_) | Renewed::NotHeld), "{renewed:?}");
        broken(answer);
        assert!(caller.is_free().await);
        assert_eq!(caller.renew(60_000).await, Renewed::NotHeld);
    }
}
