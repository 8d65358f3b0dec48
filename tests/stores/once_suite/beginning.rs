//! Beginning: who is granted the place, and in which order a begin is judged.

use fencepost::lock::{Acquired, LeaseToken, Terms};
use fencepost::store::{LockRequest, Release, Try};

use super::*;

for_each_record_store!(
    the_first_is_granted_the_place,
    the_same_attempt_is_the_same_grant,
    another_attempt_of_the_worker_continues_and_pins_the_grant,
    a_renewal_pins_the_grant,
    a_look_with_the_token_pins_the_grant,
    another_token_is_told_at_once_who_is_at_work,
    one_of_many_is_granted,
    a_token_that_the_server_made_only_confirms,
    a_begin_is_judged_in_its_order,
    a_record_and_a_lock_of_one_key_have_nothing_to_do_with_each_other,
);

async fn the_first_is_granted_the_place(scene: &AnyStore) {
    let place = Person::new(scene, "k").grant().await;
    assert_eq!(history(&place), (0, None));
    assert!((20_000..=30_000).contains(&place.lease.left_ms), "{place:?}");
    assert_eq!(place.lease.owner(), Some("somebody"));
    assert!(!place.lease.is_released);
    let other = Person::new(scene, "another").grant().await;
    assert_eq!(history(&other), (0, None));
}

async fn the_same_attempt_is_the_same_grant(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let attempt = Attempt::generate();
    let first = granted(person.begin_as(attempt, 30_000).await);
    let again = granted(person.begin_as(attempt, 60_000).await);
    assert_eq!((number(&again), history(&again)), (number(&first), (0, None)));
    assert!(again.lease.left_ms <= 30_000, "a copy does not lengthen the lease: {again:?}");
    assert!(person.undo(attempt).await, "a copy does not pin the grant");
    assert_eq!(person.look().await, None);
}

async fn another_attempt_of_the_worker_continues_and_pins_the_grant(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let (first, second) = (Attempt::generate(), Attempt::generate());
    let place = granted(person.begin_as(first, 30_000).await);
    let again = continued(person.begin_as(second, 60_000).await);
    assert_eq!((number(&again), history(&again)), (number(&place), (0, None)));
    assert!(again.lease.left_ms > 50_000, "the lease is the longer of both: {again:?}");
    let shorter = continued(person.begin_as(Attempt::generate(), 10).await);
    assert!(shorter.lease.left_ms > 50_000, "a repetition never shortens: {shorter:?}");
    for attempt in [first, second] {
        assert!(!person.undo(attempt).await);
    }
    assert!(matches!(person.renew(30_000).await, RenewedWork::Renewed(_)), "a pinned grant is never undone");
}

async fn a_renewal_pins_the_grant(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let attempt = Attempt::generate();
    let place = granted(person.begin_as(attempt, 30_000).await);
    let RenewedWork::Renewed(renewed) = person.renew(60_000).await else { panic!("not renewed") };
    assert_eq!(number(&renewed), number(&place));
    assert!(renewed.lease.left_ms > 50_000, "{renewed:?}");
    let RenewedWork::Renewed(shorter) = person.renew(10).await else { panic!("not renewed") };
    assert!(shorter.lease.left_ms > 50_000, "a renewal never shortens: {shorter:?}");
    assert!(!person.undo(attempt).await, "who was told that it is at work, is");
    stored(person.store("done").await);
}

async fn a_look_with_the_token_pins_the_grant(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let attempt = Attempt::generate();
    granted(person.begin_as(attempt, LONG_MS).await);
    let stranger = Person::new(scene, "k");
    assert_eq!(stranger.look_as_worker().await.unwrap().yours, Some(false));
    assert_eq!(person.look_as_worker().await.unwrap().yours, Some(true));
    assert!(!person.undo(attempt).await, "who was told that it is at work, is");
    assert!(matches!(stranger.begin().await, Begun::Busy(_)));
}

async fn another_token_is_told_at_once_who_is_at_work(scene: &AnyStore) {
    let worker = Person::new(scene, "k").with_print("a");
    let place = worker.grant().await;
    for other in [Person::new(scene, "k").with_print("a"), Person::new(scene, "k").with_print("a").cautious()]
    {
        let Begun::Busy(found) = other.begin().await else { panic!("not busy") };
        assert_eq!((found.token, found.fingerprint), (worker.token, print("a")));
        assert_eq!((number(&found.place), history(&found.place)), (number(&place), (0, None)));
        assert!((1..=LONG_MS).contains(&found.place.lease.left_ms), "{found:?}");
        assert_eq!(found.place.lease.owner(), Some("somebody"));
    }
    stored(worker.store("done").await);
}

async fn one_of_many_is_granted(scene: &AnyStore) {
    for round in 0..10 {
        let key = format!("contended {round}");
        let people: Vec<_> = (0..64).map(|_| Person::new(scene, &key)).collect();
        let answers = futures_util::future::join_all(people.iter().map(Person::begin)).await;
        let granted = answers.iter().filter(|answer| matches!(answer, Begun::Granted(_))).count();
        let busy = answers.iter().filter(|answer| matches!(answer, Begun::Busy(_))).count();
        assert_eq!((granted, busy), (1, 63));
    }
}

async fn a_token_that_the_server_made_only_confirms(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let stranger = Person::new(scene, "k").confirming();
    assert_eq!(worker.confirming().begin().await, Begun::TokenReleased, "nothing to confirm");
    assert_eq!(worker.look().await, None, "it begins nothing");
    let place = granted(worker.begin_as(Attempt::generate(), LONG_MS).await);
    assert_eq!(number(&continued(worker.confirming().begin().await)), number(&place));
    assert_eq!(stranger.begin().await, Begun::TokenReleased, "rather than busy");
    let crashed = Person::new(scene, "crashed");
    crashed.crash().await;
    assert_eq!(crashed.confirming().begin().await, Begun::TokenReleased, "its lease is over");
    stored(crashed.store("late").await);
    assert_eq!(crashed.confirming().result().await.result, text("late"));
    stored(worker.store("done").await);
    assert_eq!(stranger.result().await.result, text("done"));
}

/// Fingerprint, result, a token that gave up, a voided attempt, its own place, another's, one that may not be taken over.
async fn a_begin_is_judged_in_its_order(scene: &AnyStore) {
    let worker = Person::new(scene, "k").with_print("a");
    worker.grant().await;
    let gone = Person::new(scene, "k").with_print("a");
    gone.give_up().await;
    let late = Attempt::generate();
    worker.undo(late).await;
    let other = Person::new(scene, "k").with_print("a");
    other.undo(late).await;
    let wrong = async |person: &Person<'_>| person.clone().with_print("b").begin_as(late, LONG_MS).await;
    // While the work is under way.
    assert_eq!(wrong(&gone).await, Begun::FingerprintMismatch);
    assert_eq!(gone.begin_as(late, LONG_MS).await, Begun::TokenReleased, "before busy");
    assert_eq!(wrong(&worker).await, Begun::FingerprintMismatch, "before its own place");
    assert_eq!(worker.begin_as(late, LONG_MS).await, Begun::AttemptVoided, "before its own place");
    assert_eq!(other.begin_as(late, LONG_MS).await, Begun::AttemptVoided, "before busy");
    // Once its lease is over.
    let crashed = Person::new(scene, "crashed").with_print("a");
    crashed.crash().await;
    let [gone_here, other_here] =
        [&gone, &other].map(|person| Person { key: crashed.key.clone(), ..person.cautious() });
    gone_here.give_up().await;
    other_here.undo(late).await;
    assert_eq!(wrong(&gone_here).await, Begun::FingerprintMismatch);
    assert_eq!(gone_here.begin().await, Begun::TokenReleased, "before abandoned");
    assert_eq!(other_here.begin_as(late, LONG_MS).await, Begun::AttemptVoided, "before abandoned");
    assert!(matches!(other_here.begin().await, Begun::Abandoned(_)), "before granted");
    // Once it is done.
    stored(worker.store("done").await);
    for person in [&gone, &worker, &other] {
        assert_eq!(wrong(person).await, Begun::FingerprintMismatch, "before the result");
        assert_eq!(
            done(person.begin_as(late, LONG_MS).await).result,
            text("done"),
            "results are everybody's"
        );
    }
}

async fn a_record_and_a_lock_of_one_key_have_nothing_to_do_with_each_other(scene: &AnyStore) {
    let token = LeaseToken::generate();
    let worker = Person { token: token.record_hash(), ..Person::new(scene, "k") };
    let lock = || LockRequest {
        key: worker.key.clone(),
        token: token.hash(),
        attempt: Attempt::generate(),
        ttl: ttl(LONG_MS),
        note: Note::default(),
        terms: Terms::default(),
    };
    let place = worker.grant().await;
    assert_eq!(worker.give_up().await, GivenUp::GivenUp);
    let Acquired::Granted(lease) = worker.ask(Try(lock())).await else { panic!("the lock is not free") };
    assert!(lease.fencing_token > number(&place), "the numbers of both are one sequence");
    assert_eq!(worker.begin().await, Begun::TokenReleased);
    let worker = Person { token: LeaseToken::generate().record_hash(), ..worker.clone() };
    worker.grant().await;
    let (key, tombstone) = (worker.key.clone(), Tombstone::Final);
    worker.ask(Release { key, token: token.hash(), tombstone }).await;
    assert!(matches!(worker.ask(Try(lock())).await, Acquired::TokenReleased));
    stored(worker.store("done").await);
}
