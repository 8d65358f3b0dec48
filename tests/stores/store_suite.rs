//! What every store must do, step by step, asked through the trait: one suite, run for each store.

use std::time::Duration;

use fencepost::lock::{
    Attempt, Inspected, Lease, LeaseToken, LockKey, Note, Refusal, Released, Renewed, RolledBack, Terms,
    TokenHash, Ttl,
};
use fencepost::store::{
    Check, Inspect, KnownTo, LockRequest, Release, Renew, Renewer, RollBack, StoreError, TicketAfter,
    Tombstone,
};
use tokio::time::Instant;

use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask, ask};
use kit::stores::AnyStore;
use kit::{PATIENCE, eventually};

mod breaking;
mod connection;
mod listing;
mod terms;

/// Marks live only this long here, so that a test can see them end.
const MARK_TTL: Duration = Duration::from_millis(700);

for_each_store!(
    the_same_attempt_is_the_same_grant,
    another_attempt_pins_the_grant,
    a_renewal_pins_the_grant,
    a_look_with_the_token_pins_the_grant,
    taking_back_deletes_only_its_own_grant,
    a_voided_attempt_takes_nothing_and_its_token_stays_usable,
    voided_attempts_are_bounded,
    a_released_token_is_never_granted_again,
    a_mark_keeps_the_first_answer,
    marks_end,
    each_release_of_a_token_refuses_it_for_the_whole_life_of_a_mark,
    a_release_without_mark_leaves_nothing,
    a_confirmation_never_grants,
    a_renewal_never_shortens_and_never_revives,
    only_the_token_renews_and_releases,
    numbers_grow_for_each_key,
    one_of_many_is_granted,
    a_closed_store_says_so,
);

/// One caller, who may ask again.
struct Caller<'a> {
    scene: &'a AnyStore,
    key: LockKey,
    token: TokenHash,
    terms: Terms,
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

impl<'a> Caller<'a> {
    fn new(scene: &'a AnyStore, key: &str) -> Self {
        let key = LockKey::parse(key.as_bytes()).unwrap();
        Self { scene, key, token: LeaseToken::generate().hash(), terms: Terms::default() }
    }

    async fn acquire_as(&self, attempt: Attempt, ttl_ms: u64, how: Ask) -> Answer {
        let note = Note::from_stored("somebody").unwrap();
        let (key, token, terms) = (self.key.clone(), self.token, self.terms);
        let lock = LockRequest { key, token, attempt, ttl: ttl(ttl_ms), note, terms };
        ask(&*self.scene.store, lock, how, soon()).await.unwrap()
    }

    async fn acquire(&self, ttl_ms: u64) -> Answer {
        self.acquire_as(Attempt::generate(), ttl_ms, Ask::Try).await
    }

    async fn grant(&self, ttl_ms: u64) -> Lease {
        granted(self.acquire(ttl_ms).await)
    }

    async fn renew(&self, ttl_ms: u64) -> Renewed {
        self.renew_by(Renewer::Token, ttl_ms).await
    }

    async fn renew_by(&self, by: Renewer, ttl_ms: u64) -> Renewed {
        self.scene
            .store
            .call(Renew { key: self.key.clone(), token: self.token, ttl: ttl(ttl_ms), by }, soon())
            .await
            .unwrap()
    }

    async fn release(&self, mark: Tombstone) -> Released {
        self.scene
            .store
            .call(Release { key: self.key.clone(), token: self.token, tombstone: mark }, soon())
            .await
            .unwrap()
            .answer
    }

    async fn take_back(&self, attempt: Attempt) {
        self.take_back_from(attempt, KnownTo::Nobody).await;
    }

    async fn take_back_from(&self, attempt: Attempt, known: KnownTo) -> RolledBack {
        let (store, place) = (&self.scene.store, TicketAfter::Removed);
        store
            .call(
                RollBack { key: self.key.clone(), token: self.token, attempt, ticket: place, known },
                soon(),
            )
            .await
            .unwrap()
    }

    async fn look(&self) -> Inspected {
        self.scene.store.call(Inspect { key: self.key.clone(), token: None }, soon()).await.unwrap()
    }

    async fn is_free(&self) -> bool {
        matches!(self.look().await, Inspected::Free { .. })
    }
}

#[track_caller]
pub fn granted(answer: Answer) -> Lease {
    match answer {
        Answer::Granted(lease) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn already_held(answer: Answer) -> Lease {
    match answer {
        Answer::AlreadyHeld(lease) => lease,
        other => panic!("not already held: {other:?}"),
    }
}

async fn the_same_attempt_is_the_same_grant(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let attempt = Attempt::generate();
    let first = granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    let again = granted(caller.acquire_as(attempt, 60_000, Ask::Try).await);
    assert_eq!(again.fencing_token, first.fencing_token);
    assert!(again.left_ms <= 30_000, "a copy does not lengthen the lease: {}", again.left_ms);
    caller.take_back(attempt).await;
    assert!(caller.is_free().await, "a copy does not pin the grant");
}

async fn another_attempt_pins_the_grant(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let (first, second) = (Attempt::generate(), Attempt::generate());
    let lease = granted(caller.acquire_as(first, 30_000, Ask::Try).await);
    let again = already_held(caller.acquire_as(second, 60_000, Ask::Try).await);
    assert_eq!(again.fencing_token, lease.fencing_token);
    assert!(again.left_ms > 50_000, "the lease is the longer of both: {}", again.left_ms);
    let shorter = already_held(caller.acquire(10).await);
    assert!(shorter.left_ms > 50_000, "a repetition never shortens: {}", shorter.left_ms);
    assert_eq!(shorter.owner(), Some("somebody"));
    caller.take_back(first).await;
    caller.take_back(second).await;
    assert!(!caller.is_free().await, "a pinned grant is never taken back");
}

async fn a_renewal_pins_the_grant(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let attempt = Attempt::generate();
    granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    assert!(matches!(caller.renew(30_000).await, Renewed::Renewed(_)));
    caller.take_back(attempt).await;
    assert!(!caller.is_free().await, "who was told that it holds, holds");
}

async fn a_look_with_the_token_pins_the_grant(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let stranger = Caller::new(scene, "k");
    let attempt = Attempt::generate();
    granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    let look = scene
        .store
        .call(Inspect { key: caller.key.clone(), token: Some(stranger.token) }, soon())
        .await
        .unwrap();
    assert!(matches!(look, Inspected::Held { yours: Some(false), .. }), "{look:?}");
    let look = scene
        .store
        .call(Inspect { key: caller.key.clone(), token: Some(caller.token) }, soon())
        .await
        .unwrap();
    assert!(matches!(look, Inspected::Held { yours: Some(true), .. }), "{look:?}");
    caller.take_back(attempt).await;
    let Inspected::Held { lease, yours: None, .. } = caller.look().await else { panic!("it was taken back") };
    assert!((20_000..=30_000).contains(&lease.left_ms), "a look leaves the lease alone: {}", lease.left_ms);
}

async fn taking_back_deletes_only_its_own_grant(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let stranger = Caller::new(scene, "k");
    let attempt = Attempt::generate();
    granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    stranger.take_back(attempt).await;
    caller.take_back(Attempt::generate()).await;
    assert!(!caller.is_free().await, "token and attempt must both match");
    caller.take_back(attempt).await;
    assert!(caller.is_free().await);
}

async fn a_voided_attempt_takes_nothing_and_its_token_stays_usable(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let (late, fresh) = (Attempt::generate(), Attempt::generate());
    // The take-back arrives before the command it takes back.
    caller.take_back(late).await;
    assert_eq!(caller.acquire_as(late, 30_000, Ask::Try).await, Answer::AttemptVoided);
    assert!(caller.is_free().await);
    granted(caller.acquire_as(fresh, 30_000, Ask::Try).await);
    // A copy of the voided one neither pins nor renews what the token holds by now.
    assert_eq!(caller.acquire_as(late, 90_000, Ask::Try).await, Answer::AttemptVoided);
    caller.take_back(fresh).await;
    assert!(caller.is_free().await);
}

async fn voided_attempts_are_bounded(scene: &AnyStore) {
    let attempts: Vec<_> = (0..1001).map(|_| Attempt::generate()).collect();
    // A server of a quorum that was not met yet hears of the first attempt later, and so knows it for longer.
    for _ in 0..3 {
        let caller = Caller::new(scene, "k");
        for attempt in &attempts {
            caller.take_back(*attempt).await;
        }
        for known in [attempts[1], attempts[1000]] {
            assert_eq!(caller.acquire_as(known, 30_000, Ask::Try).await, Answer::AttemptVoided);
        }
        match caller.acquire_as(attempts[0], 30_000, Ask::Try).await {
            Answer::AttemptVoided => {}
            answer => return drop(granted(answer)),
        }
    }
    panic!("the oldest attempt is never forgotten");
}

async fn a_released_token_is_never_granted_again(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let attempt = Attempt::generate();
    granted(caller.acquire_as(attempt, 30_000, Ask::Try).await);
    assert_eq!(caller.release(Tombstone::Final).await, Released::Released);
    for late in [attempt, Attempt::generate()] {
        assert_eq!(caller.acquire_as(late, 30_000, Ask::Try).await, Answer::TokenReleased);
    }
    assert!(caller.is_free().await);
    // The same token on another key is another matter.
    let elsewhere = Caller { key: LockKey::parse(b"other").unwrap(), ..caller };
    elsewhere.grant(30_000).await;
    // A release that comes before its acquire is a release all the same.
    let early = Caller::new(scene, "never taken");
    assert_eq!(early.release(Tombstone::Final).await, Released::NotHeld);
    assert_eq!(early.acquire(30_000).await, Answer::TokenReleased);
    assert!(early.is_free().await);
}

async fn a_mark_keeps_the_first_answer(scene: &AnyStore) {
    let (holder, stranger, early) =
        (Caller::new(scene, "k"), Caller::new(scene, "k"), Caller::new(scene, "free"));
    assert_eq!(early.release(Tombstone::Final).await, Released::NotHeld);
    holder.grant(30_000).await;
    assert_eq!(stranger.release(Tombstone::Final).await, Released::HeldByAnother);
    assert_eq!(holder.release(Tombstone::Final).await, Released::Released);
    // The lock is free by now, and somebody else holds the other one: the answers stay what they were.
    Caller::new(scene, "free").grant(30_000).await;
    stranger.take_back(Attempt::generate()).await;
    for _ in 0..2 {
        assert_eq!(early.release(Tombstone::Final).await, Released::NotHeld);
        assert_eq!(stranger.release(Tombstone::Final).await, Released::HeldByAnother);
        assert_eq!(holder.release(Tombstone::Final).await, Released::Released);
    }
    assert_eq!(stranger.acquire(30_000).await, Answer::TokenReleased);
}

async fn marks_end(scene: &AnyStore) {
    let (released, voided) = (Caller::new(scene, "released"), Caller::new(scene, "voided"));
    let attempt = Attempt::generate();
    assert_eq!(released.release(Tombstone::Final).await, Released::NotHeld);
    voided.take_back(attempt).await;
    eventually("the mark of a freed token ends", async || {
        matches!(released.acquire(30_000).await, Answer::Granted(_))
    })
    .await;
    eventually("the mark of a voided attempt ends", async || {
        matches!(voided.acquire_as(attempt, 30_000, Ask::Try).await, Answer::Granted(_))
    })
    .await;
}

async fn each_release_of_a_token_refuses_it_for_the_whole_life_of_a_mark(scene: &AnyStore) {
    for repeats in [true, false] {
        let caller = Caller::new(scene, "k");
        let undone = Attempt::generate();
        caller.release(Tombstone::Final).await;
        tokio::time::sleep(MARK_TTL * 2 / 3).await;
        let asked_at = Instant::now();
        match repeats {
            true => drop(caller.release(Tombstone::Final).await),
            false => caller.take_back(undone).await,
        }
        loop {
            let answer = caller.acquire_as(undone, 5_000, Ask::Try).await;
            if asked_at.elapsed() >= MARK_TTL {
                break;
            }
            let is_refused = matches!(answer, Answer::TokenReleased | Answer::AttemptVoided);
            assert!(is_refused, "released again: {repeats}, after {:?}: {answer:?}", asked_at.elapsed());
            tokio::time::sleep(MARK_TTL / 20).await;
        }
        caller.release(Tombstone::Final).await;
    }
}

async fn a_release_without_mark_leaves_nothing(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(30_000).await;
    assert_eq!(caller.release(Tombstone::None).await, Released::Released);
    assert_eq!(caller.release(Tombstone::None).await, Released::NotHeld);
    caller.grant(30_000).await;
    assert_eq!(Caller::new(scene, "k").release(Tombstone::None).await, Released::HeldByAnother);
}

async fn a_confirmation_never_grants(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    assert_eq!(caller.acquire_as(Attempt::generate(), 30_000, Ask::Confirm).await, Answer::TokenReleased);
    assert!(caller.is_free().await);
    let lease = caller.grant(30_000).await;
    let confirmed = already_held(caller.acquire_as(Attempt::generate(), 30_000, Ask::Confirm).await);
    assert_eq!(confirmed.fencing_token, lease.fencing_token);
    let stranger = Caller::new(scene, "k");
    let answer = stranger.acquire_as(Attempt::generate(), 30_000, Ask::Confirm).await;
    assert!(
        matches!(answer, Answer::Refused(Refusal { holder: Some(held), .. }) if held.fencing_token == lease.fencing_token)
    );
}

async fn a_renewal_never_shortens_and_never_revives(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    let first = caller.grant(30_000).await;
    for (asked_ms, at_least_ms) in [(10, 20_000), (60_000, 50_000), (1, 50_000)] {
        let Renewed::Renewed(lease) = caller.renew(asked_ms).await else { panic!("not renewed") };
        assert!(lease.left_ms >= at_least_ms, "{asked_ms} -> {}", lease.left_ms);
        assert_eq!(lease.fencing_token, first.fencing_token);
    }
    let brief = Caller::new(scene, "brief");
    let lease = brief.grant(50).await;
    eventually("a lease ends by itself", async || brief.is_free().await).await;
    assert_eq!(brief.renew(30_000).await, Renewed::NotHeld);
    assert!(brief.is_free().await);
    let again = brief.grant(30_000).await;
    assert!(again.fencing_token > lease.fencing_token, "the same token, a new grant, a larger number");
}

async fn only_the_token_renews_and_releases(scene: &AnyStore) {
    let (holder, stranger) = (Caller::new(scene, "k"), Caller::new(scene, "k"));
    let lease = holder.grant(30_000).await;
    assert_eq!(stranger.renew(90_000).await, Renewed::HeldByAnother);
    assert_eq!(stranger.release(Tombstone::None).await, Released::HeldByAnother);
    assert!(matches!(stranger.acquire(90_000).await, Answer::Refused(_)));
    let Inspected::Held { lease: left, .. } = holder.look().await else { panic!("it is gone") };
    assert_eq!(left.fencing_token, lease.fencing_token);
    assert!(left.left_ms <= 30_000);
}

async fn numbers_grow_for_each_key(scene: &AnyStore) {
    let mut last = [0; 3];
    for n in 0..200 {
        let caller = Caller::new(scene, &format!("k{}", n % 3));
        let number = caller.grant(30_000).await.fencing_token.get();
        assert!(number > last[n % 3], "{number} after {last:?}");
        last[n % 3] = number;
        caller.release(if n % 2 == 0 { Tombstone::None } else { Tombstone::Final }).await;
    }
}

async fn one_of_many_is_granted(scene: &AnyStore) {
    for round in 0..20 {
        let key = format!("contended {round}");
        let callers: Vec<_> = (0..64).map(|_| Caller::new(scene, &key)).collect();
        let answers =
            futures_util::future::join_all(callers.iter().map(|caller| caller.acquire(30_000))).await;
        let granted = answers.iter().filter(|answer| matches!(answer, Answer::Granted(_))).count();
        let refused = answers.iter().filter(|answer| matches!(answer, Answer::Refused(_))).count();
        assert_eq!((granted, refused), (1, 63));
    }
}

async fn a_closed_store_says_so(scene: &AnyStore) {
    let caller = Caller::new(scene, "k");
    caller.grant(30_000).await;
    scene.store.call(Check, soon()).await.unwrap();
    scene.store.close().await;
    eventually("nothing is granted any more", async || {
        let answer = scene.store.call(Inspect { key: caller.key.clone(), token: None }, soon()).await;
        matches!(answer, Err(StoreError::Unavailable(_)))
    })
    .await;
    assert!(matches!(scene.store.call(Check, soon()).await, Err(StoreError::Unavailable(_))));
}
