//! Taking over: what is remembered of those who were at work before.

use super::*;

for_each_record_store!(
    each_successor_is_told_how_many_were_before_it,
    a_token_whose_lease_is_over_is_granted_the_place_anew,
    a_renewal_never_revives,
    who_takes_over_from_nobody_is_told_who_was_there,
    what_was_superseded_stays_so,
);
for_each_record_store_with_a_clock!(
    a_crash_is_remembered_for_seven_days,
    nothing_that_anybody_says_shortens_the_memory_of_a_crash,
    work_may_take_longer_than_its_result_is_kept,
    a_worker_that_renews_for_more_than_seven_days_is_remembered_as_long,
);

async fn each_successor_is_told_how_many_were_before_it(scene: &AnyStore) {
    let mut last: Option<Place> = None;
    for earlier in 0..5 {
        let place = Person::new(scene, "k").crash().await;
        assert_eq!(history(&place), (earlier, last.as_ref().map(number)));
        assert!(last.is_none_or(|last| number(&place) > number(&last)));
        last = Some(place);
    }
    let worker = Person::new(scene, "k");
    let place = worker.grant().await;
    assert_eq!(history(&place), (5, last.as_ref().map(number)));
    let Begun::Busy(found) = Person::new(scene, "k").begin().await else { panic!("not busy") };
    assert_eq!(history(&found.place), history(&place));
    assert_eq!(history(&continued(worker.begin().await)), history(&place));
    stored(worker.store("done").await);
}

async fn a_token_whose_lease_is_over_is_granted_the_place_anew(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let first = person.crash().await;
    let Begun::Abandoned(found) = person.cautious().begin().await else { panic!("not abandoned") };
    assert_eq!((found.token, number(&found.place)), (person.token, number(&first)), "it is its own");
    let second = person.grant().await;
    assert_eq!(history(&second), (1, Some(number(&first))), "its own first run counts");
    assert!(number(&second) > number(&first));
    // Where somebody came, it is busy.
    let other = Person::new(scene, "other");
    other.crash().await;
    Person::new(scene, "other").grant().await;
    assert!(matches!(other.begin().await, Begun::Busy(_)));
}

async fn a_renewal_never_revives(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    let place = person.crash().await;
    assert_eq!(person.renew(LONG_MS).await, RenewedWork::LeaseOver);
    assert_eq!(person.renew_for(Some(number(&place)), LONG_MS).await, RenewedWork::LeaseOver);
    let next = Person::new(scene, "k").grant().await;
    assert_eq!(person.renew(LONG_MS).await, RenewedWork::Refused(superseded(&next)));
    assert_eq!(next.earlier, 1);
}

async fn who_takes_over_from_nobody_is_told_who_was_there(scene: &AnyStore) {
    let crashed = Person::new(scene, "lapsed").with_print("a");
    let place = crashed.crash().await;
    let next = Person::new(scene, "lapsed").with_print("a");
    for _ in 0..2 {
        let Begun::Abandoned(found) = next.cautious().begin().await else { panic!("not abandoned") };
        assert_eq!((found.token, found.fingerprint), (crashed.token, print("a")));
        assert_eq!((number(&found.place), found.place.lease.left_ms), (number(&place), 0));
        assert_eq!(found.place.lease.owner(), Some("somebody"));
    }
    stored(crashed.store("late").await);
    assert_eq!(next.cautious().result().await.result, text("late"), "the worker's late result ends it");
    let given_up = Person::new(scene, "given up");
    let place = given_up.grant().await;
    given_up.give_up().await;
    let Begun::Abandoned(found) = Person::new(scene, "given up").cautious().begin().await else {
        panic!("not abandoned")
    };
    assert_eq!((found.token, number(&found.place)), (TokenHash::NOBODY, number(&place)));
    assert_eq!(found.place.earlier, 1);
    // It is granted what nobody was at.
    Person::new(scene, "new").cautious().grant().await;
}

async fn what_was_superseded_stays_so(scene: &AnyStore) {
    let (first, second) = (Person::new(scene, "k"), Person::new(scene, "k"));
    first.crash().await;
    second.grant().await;
    assert_eq!(second.give_up().await, GivenUp::GivenUp);
    // Nobody is at it, and the second may have done it.
    assert_eq!(first.store("first").await, Storing::Refused(NotWorker::NotBegun));
    // It begins once more, and stores at once.
    assert_eq!(first.grant().await.earlier, 2);
    stored(first.store("first").await);
}

/// Begins as another, and looks whether the crash is remembered.
async fn is_remembered(scene: &AnyStore, key: &str) -> bool {
    Person::new(scene, key).undone().await.earlier > 0
}

async fn a_crash_is_remembered_for_seven_days(scene: &AnyStore) {
    let person = Person::new(scene, "k").keeping(Keep::SHORTEST).with_print("a");
    person.crash().await;
    let view = person.look().await.unwrap();
    let week_ms = 7 * DAY.as_millis() as u64;
    assert!((week_ms - 20_000..=week_ms).contains(&view.forgotten_in_ms), "{view:?}");
    scene.pass(7 * DAY - Duration::from_secs(20)).await;
    assert!(matches!(person.cautious().begin().await, Begun::Abandoned(_)));
    scene.pass(Duration::from_secs(20)).await;
    assert_eq!(person.look().await, None);
    assert_eq!(person.store("late").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(history(&Person::new(scene, "k").cautious().grant().await), (0, None));
}

async fn nothing_that_anybody_says_shortens_the_memory_of_a_crash(scene: &AnyStore) {
    let brief = |key| Person::new(scene, key).keeping(Keep::SHORTEST);
    for key in ["undone", "given up", "given up clean", "broken", "crashed again"] {
        Person::new(scene, key).keeping(7 * DAY).crash().await;
    }
    brief("undone").undone().await;
    let next = brief("given up");
    next.grant().await;
    next.give_up().await;
    let next = brief("given up clean");
    next.grant().await;
    next.give_up_clean().await;
    let next = brief("broken");
    let place = next.grant().await;
    next.break_record(number(&place), false).await;
    brief("crashed again").crash().await;
    // A result that is broken leaves as much.
    let next = brief("result");
    let place = next.grant().await;
    stored(next.store("done").await);
    next.break_record(number(&place), false).await;
    scene.pass(7 * DAY - Duration::from_secs(20)).await;
    for key in ["undone", "given up", "given up clean", "broken", "crashed again", "result"] {
        assert!(is_remembered(scene, key).await, "{key}");
    }
    // Each of these was a begin, whose lease would have ended in 30 s.
    scene.pass(7 * DAY + Duration::from_secs(60)).await;
    for key in ["undone", "given up", "given up clean", "broken", "crashed again", "result"] {
        assert!(!is_remembered(scene, key).await, "{key}");
    }
}

async fn work_may_take_longer_than_its_result_is_kept(scene: &AnyStore) {
    let person = Person::new(scene, "k").keeping(Keep::SHORTEST);
    let place = granted(person.begin_as(Attempt::generate(), 60_000).await);
    for _ in 0..10 {
        scene.pass(Duration::from_secs(40)).await;
        let RenewedWork::Renewed(renewed) = person.renew(60_000).await else { panic!("not renewed") };
        assert_eq!(number(&renewed), number(&place));
    }
    let (_, kept_ms, is_late) = stored(person.store("done").await);
    assert!(!is_late && (100_000..=120_000).contains(&kept_ms), "{kept_ms}");
}

async fn a_worker_that_renews_for_more_than_seven_days_is_remembered_as_long(scene: &AnyStore) {
    let day_ms = DAY.as_millis() as u64;
    let person = Person::new(scene, "k");
    let place = granted(person.begin_as(Attempt::generate(), day_ms).await);
    for _ in 0..10 {
        scene.pass(DAY - HOUR).await;
        let RenewedWork::Renewed(renewed) = person.renew(day_ms).await else { panic!("not renewed") };
        assert_eq!(number(&renewed), number(&place));
    }
    // The last lease lasts for a day, and seven more are remembered.
    scene.pass(8 * DAY - Duration::from_secs(20)).await;
    assert_eq!(history(&Person::new(scene, "k").undone().await), (1, Some(number(&place))));
}
