//! Leaving a place: giving up, and begins that are undone.

use super::*;

for_each_record_store!(
    who_gives_up_is_counted,
    who_gives_up_clean_is_as_if_it_had_never_begun,
    who_gives_up_clean_leaves_those_before_it_counted,
    what_was_told_of_a_record_is_told_again_after_a_clean_end_or_an_undone_begin,
    who_gave_up_begins_no_more_and_is_told_the_same_again,
    whatever_it_is_answered_the_token_is_refused_from_then_on,
    a_token_that_the_server_made_leaves_no_mark,
    what_is_stored_is_not_given_up,
    an_undone_begin_is_as_if_it_had_never_been,
    an_undone_take_over_leaves_those_before_it_counted,
    a_take_over_that_is_undone_or_given_up_clean_leaves_the_former_worker_able_to_store,
    who_gave_up_while_another_was_at_work_is_not_the_worker_again,
    only_its_own_grant_is_undone,
    a_voided_attempt_begins_nothing_and_its_token_stays_usable,
);
for_each_record_store_with_a_clock!(a_token_that_gave_up_is_forgotten_in_the_end);

async fn who_gives_up_is_counted(scene: &AnyStore) {
    let first = Person::new(scene, "k");
    let place = first.grant().await;
    assert_eq!(first.give_up().await, GivenUp::GivenUp);
    let second = Person::new(scene, "k");
    let next = second.grant().await;
    assert_eq!(history(&next), (1, Some(number(&place))));
    assert!(number(&next) > number(&place));
    second.give_up().await;
    assert_eq!(history(&Person::new(scene, "k").grant().await), (2, Some(number(&next))));
    // Also once its lease is over.
    let crashed = Person::new(scene, "crashed");
    let place = crashed.crash().await;
    assert_eq!(crashed.give_up().await, GivenUp::GivenUp);
    assert_eq!(history(&Person::new(scene, "crashed").grant().await), (1, Some(number(&place))));
}

async fn who_gives_up_clean_is_as_if_it_had_never_begun(scene: &AnyStore) {
    let first = Person::new(scene, "k");
    let place = first.grant().await;
    assert_eq!(first.give_up_clean().await, GivenUp::GivenUp);
    assert_eq!(first.look().await, None);
    let next = Person::new(scene, "k").cautious().grant().await;
    assert_eq!(history(&next), (0, None));
    assert!(number(&next) > number(&place));
}

async fn who_gives_up_clean_leaves_those_before_it_counted(scene: &AnyStore) {
    let crashed = Person::new(scene, "k").crash().await;
    let second = Person::new(scene, "k");
    assert_eq!(history(&second.grant().await), (1, Some(number(&crashed))));
    assert_eq!(second.give_up_clean().await, GivenUp::GivenUp);
    let third = Person::new(scene, "k");
    assert!(matches!(third.cautious().begin().await, Begun::Abandoned(_)));
    assert_eq!(third.grant().await.earlier, 1);
}

async fn what_was_told_of_a_record_is_told_again_after_a_clean_end_or_an_undone_begin(scene: &AnyStore) {
    for (number, leaves) in ["crashes", "gives up", "is broken"].into_iter().enumerate() {
        let person = || Person::new(scene, &format!("k{number}"));
        let first = person();
        match leaves {
            "crashes" => drop(first.crash().await),
            "gives up" => {
                first.grant().await;
                first.give_up().await;
            }
            _ => {
                let fence = first.grant().await.lease.fencing_token;
                first.break_record(fence, false).await;
            }
        }
        let told = async || {
            let RecordView { state, place, .. } = first.look().await.unwrap();
            (state, place.lease.fencing_token, history(&place))
        };
        let before = told().await;
        for is_undone in [false, true] {
            let (second, attempt) = (person(), Attempt::generate());
            granted(second.begin_as(attempt, LONG_MS).await);
            match is_undone {
                true => assert!(second.undo(attempt).await),
                false => assert_eq!(second.give_up_clean().await, GivenUp::GivenUp),
            }
            assert_eq!(told().await, before, "the first one {leaves}; undone: {is_undone}");
        }
    }
}

async fn who_gave_up_begins_no_more_and_is_told_the_same_again(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    person.grant().await;
    assert_eq!(person.give_up().await, GivenUp::GivenUp);
    for is_clean in [true, false] {
        assert_eq!(person.give_up_leaving(is_clean, Tombstone::Final).await, GivenUp::GivenUp);
        assert_eq!(person.begin().await, Begun::TokenReleased);
        assert_eq!(person.confirming().begin().await, Begun::TokenReleased);
    }
    let next = Person::new(scene, "k");
    assert_eq!(next.grant().await.earlier, 1, "a repetition changes nothing");
    assert_eq!(person.give_up().await, GivenUp::GivenUp, "though another is at work");
    assert_eq!(person.begin().await, Begun::TokenReleased);
    stored(next.store("done").await);
    assert_eq!(person.give_up().await, GivenUp::GivenUp);
    assert_eq!(person.result().await.result, text("done"), "a result is everybody's");
    // A key is one thing, another key another.
    Person { key: LockKey::parse(b"another").unwrap(), ..person }.grant().await;
}

async fn whatever_it_is_answered_the_token_is_refused_from_then_on(scene: &AnyStore) {
    let early = Person::new(scene, "k");
    assert_eq!(early.give_up().await, GivenUp::Refused(NotWorker::NotBegun));
    let worker = Person::new(scene, "k");
    let place = worker.grant().await;
    let stranger = Person::new(scene, "k");
    assert_eq!(stranger.give_up().await, GivenUp::Refused(superseded(&place)));
    assert!(matches!(worker.renew(LONG_MS).await, RenewedWork::Renewed(_)), "the worker is untouched");
    assert_eq!(worker.give_up_clean().await, GivenUp::GivenUp);
    // The answers stay, though the state is another one now.
    assert_eq!(early.give_up().await, GivenUp::Refused(NotWorker::NotBegun));
    assert_eq!(stranger.give_up().await, GivenUp::Refused(superseded(&place)));
    for person in [early, stranger] {
        assert_eq!(person.begin().await, Begun::TokenReleased);
    }
}

async fn a_token_that_the_server_made_leaves_no_mark(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    person.grant().await;
    assert_eq!(person.give_up_leaving(false, Tombstone::None).await, GivenUp::GivenUp);
    let again = person.give_up_leaving(false, Tombstone::None).await;
    assert_eq!(again, GivenUp::Refused(NotWorker::NotBegun), "it is not repeated");
    assert_eq!(person.grant().await.earlier, 1, "it is counted once");
}

async fn what_is_stored_is_not_given_up(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let attempt = Attempt::generate();
    granted(person.begin_as(attempt, LONG_MS).await);
    stored(person.store("done").await);
    assert!(!person.undo(attempt).await);
    for is_clean in [true, false] {
        assert_eq!(person.give_up_leaving(is_clean, Tombstone::Final).await, GivenUp::AlreadyStored);
    }
    assert_eq!(person.renew(LONG_MS).await, RenewedWork::AlreadyStored);
    assert_eq!(person.result().await.result, text("done"));
    stored(person.store("done").await);
}

async fn an_undone_begin_is_as_if_it_had_never_been(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let place = person.undone().await;
    assert_eq!(person.look().await, None);
    let next = person.cautious().grant().await;
    assert_eq!(history(&next), (0, None));
    assert!(number(&next) > number(&place));
}

async fn an_undone_take_over_leaves_those_before_it_counted(scene: &AnyStore) {
    let crashed = Person::new(scene, "k").crash().await;
    for _ in 0..3 {
        assert_eq!(Person::new(scene, "k").undone().await.earlier, 1);
    }
    let next = Person::new(scene, "k");
    assert!(matches!(next.cautious().begin().await, Begun::Abandoned(_)));
    let place = next.grant().await;
    assert_eq!(place.earlier, 1);
    assert!(number(&place) > number(&crashed));
}

async fn a_take_over_that_is_undone_or_given_up_clean_leaves_the_former_worker_able_to_store(
    scene: &AnyStore,
) {
    for (key, is_given_up) in [("undone", false), ("clean", true)] {
        let late = Person::new(scene, key);
        let place = late.crash().await;
        let before = late.look_as_worker().await.unwrap();
        for _ in 0..3 {
            let (next, attempt) = (Person::new(scene, key), Attempt::generate());
            let taken = granted(next.begin_as(attempt, LONG_MS).await);
            assert_eq!(late.store("done").await, Storing::Refused(superseded(&taken)));
            if is_given_up {
                // It knows of its place, and that makes no difference.
                assert!(matches!(next.renew(LONG_MS).await, RenewedWork::Renewed(_)));
                assert_eq!(next.give_up_clean().await, GivenUp::GivenUp);
            } else {
                assert!(next.undo(attempt).await);
            }
            let after = late.look_as_worker().await.unwrap();
            assert_eq!(
                (after.yours, after.state, after.place),
                (Some(true), before.state, before.place.clone())
            );
            assert!(after.forgotten_in_ms >= before.forgotten_in_ms);
            assert_eq!(late.renew(LONG_MS).await, RenewedWork::LeaseOver);
            assert!(matches!(next.store("other").await, Storing::Refused(_)));
        }
        // Also by its number.
        let stored = stored(late.store_for(Some(number(&place)), None, text("done")).await);
        assert_eq!((stored.0, stored.2), (number(&place), true));
        assert_eq!(Person::new(scene, key).result().await.result, text("done"));
    }
    // Its own token, too, if that begins once more and is not told of it.
    let late = Person::new(scene, "own");
    let place = late.crash().await;
    late.undone().await;
    assert_eq!(stored(late.store("done").await).0, number(&place));
}

async fn who_gave_up_while_another_was_at_work_is_not_the_worker_again(scene: &AnyStore) {
    for (key, tombstone) in [("k", Tombstone::Final), ("server-made", Tombstone::None)] {
        let late = Person::new(scene, key);
        late.crash().await;
        let (next, attempt) = (Person::new(scene, key), Attempt::generate());
        let taken = granted(next.begin_as(attempt, LONG_MS).await);
        assert_eq!(late.give_up_leaving(true, tombstone).await, GivenUp::Refused(superseded(&taken)));
        assert!(next.undo(attempt).await);
        assert_eq!(late.store("done").await, Storing::Refused(NotWorker::NotBegun));
        assert_eq!(Person::new(scene, key).grant().await.earlier, 1);
    }
    // With its later place it gives up the one that it had before.
    let twice = Person::new(scene, "twice");
    twice.crash().await;
    twice.grant().await;
    assert_eq!(twice.give_up_clean().await, GivenUp::GivenUp);
    assert_eq!(twice.store("done").await, Storing::Refused(NotWorker::NotBegun));
    // Who breaks a place ends those before it.
    let late = Person::new(scene, "broken");
    late.crash().await;
    let taken = Person::new(scene, "broken").grant().await;
    assert_eq!(late.break_record(number(&taken), false).await, BrokenRecord::Broken);
    assert_eq!(late.store("done").await, Storing::Refused(NotWorker::NotBegun));
}

async fn only_its_own_grant_is_undone(scene: &AnyStore) {
    let (person, stranger) = (Person::new(scene, "k"), Person::new(scene, "k"));
    let attempt = Attempt::generate();
    assert!(!person.undo(Attempt::generate()).await, "there is none");
    granted(person.begin_as(attempt, LONG_MS).await);
    assert!(!stranger.undo(attempt).await);
    assert!(!person.undo(Attempt::generate()).await);
    assert!(matches!(stranger.begin().await, Begun::Busy(_)), "token and attempt must both match");
    assert!(person.undo(attempt).await);
    assert!(!person.undo(attempt).await, "it was undone before");
    // Also once its lease is over.
    let late = Attempt::generate();
    granted(person.begin_as(late, BRIEF_MS).await);
    scene.pass(Duration::from_millis(BRIEF_MS + 5)).await;
    assert!(person.undo(late).await);
    assert_eq!(history(&stranger.grant().await), (0, None));
}

async fn a_voided_attempt_begins_nothing_and_its_token_stays_usable(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let late = Attempt::generate();
    // The undoing arrives before the begin.
    assert!(!person.undo(late).await);
    assert_eq!(person.begin_as(late, LONG_MS).await, Begun::AttemptVoided);
    assert_eq!(person.look().await, None);
    let fresh = Attempt::generate();
    granted(person.begin_as(fresh, LONG_MS).await);
    // A copy of the voided one neither pins nor lengthens what the token has by now.
    assert_eq!(person.begin_as(late, 90_000).await, Begun::AttemptVoided);
    assert!(person.undo(fresh).await);
}

async fn a_token_that_gave_up_is_forgotten_in_the_end(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    person.grant().await;
    person.give_up().await;
    scene.pass(MARK_TTL - Duration::from_secs(20)).await;
    assert_eq!(person.begin().await, Begun::TokenReleased);
    // Each answer promises the whole time.
    assert_eq!(person.give_up().await, GivenUp::GivenUp);
    scene.pass(MARK_TTL - Duration::from_secs(20)).await;
    assert_eq!(person.begin().await, Begun::TokenReleased);
    // And so does what undoes an attempt: a copy of it may come late.
    assert!(!person.undo(Attempt::generate()).await);
    scene.pass(MARK_TTL - Duration::from_secs(20)).await;
    assert_eq!(person.begin().await, Begun::TokenReleased);
    scene.pass(Duration::from_secs(20)).await;
    assert_eq!(person.grant().await.earlier, 1);
}
