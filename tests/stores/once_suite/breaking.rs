//! Breaking: an operator ends a place, or removes a result.

use super::*;

for_each_record_store!(
    a_break_ends_the_place_as_its_worker_would,
    a_clean_break_leaves_nothing,
    a_repeated_break_changes_nothing,
    a_break_by_another_number_ends_nothing,
    a_result_that_is_broken_was_work_that_may_be_done,
);

async fn a_break_ends_the_place_as_its_worker_would(scene: &AnyStore) {
    let worker = Person::new(scene, "working");
    let place = worker.grant().await;
    assert_eq!(worker.break_record(number(&place), false).await, BrokenRecord::Broken);
    assert_eq!(worker.store("done").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(worker.renew(LONG_MS).await, RenewedWork::Refused(NotWorker::NotBegun));
    assert!(matches!(worker.cautious().begin().await, Begun::Abandoned(_)));
    let next = Person::new(scene, "working").grant().await;
    assert_eq!(history(&next), (1, Some(number(&place))));
    assert!(number(&next) > number(&place));
    let place = Person::new(scene, "lapsed").crash().await;
    assert_eq!(Person::new(scene, "lapsed").break_record(number(&place), false).await, BrokenRecord::Broken);
    assert_eq!(history(&Person::new(scene, "lapsed").grant().await), (1, Some(number(&place))));
}

async fn a_clean_break_leaves_nothing(scene: &AnyStore) {
    let is_gone = async |person: Person<'_>, place: &Place, state: &str| {
        assert_eq!(person.break_record(number(place), true).await, BrokenRecord::Broken, "{state}");
        assert_eq!(person.look().await, None, "{state}");
        assert_eq!(person.break_record(number(place), true).await, BrokenRecord::None, "{state}");
        let next = Person::new(scene, person.key.as_str()).cautious().grant().await;
        assert_eq!(history(&next), (0, None), "{state}");
        assert!(number(&next) > number(place), "{state}");
    };
    let worker = Person::new(scene, "working");
    let place = worker.grant().await;
    is_gone(worker, &place, "working").await;
    let worker = Person::new(scene, "taken over");
    worker.crash().await;
    let place = Person::new(scene, "taken over").grant().await;
    is_gone(worker, &place, "taken over").await;
    let worker = Person::new(scene, "lapsed");
    let place = worker.crash().await;
    is_gone(worker, &place, "lapsed").await;
    let worker = Person::new(scene, "nobody's");
    let place = worker.grant().await;
    worker.give_up().await;
    is_gone(worker, &place, "nobody's").await;
    let worker = Person::new(scene, "done");
    let place = worker.grant().await;
    stored(worker.store("done").await);
    is_gone(worker, &place, "done").await;
}

async fn a_repeated_break_changes_nothing(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let place = worker.grant().await;
    for _ in 0..3 {
        assert_eq!(worker.break_record(number(&place), false).await, BrokenRecord::Broken);
    }
    let next = Person::new(scene, "k").grant().await;
    assert_eq!(history(&next), (1, Some(number(&place))));
    // A late copy ends nobody else's place.
    assert_eq!(worker.break_record(number(&place), false).await, BrokenRecord::Superseded(number(&next)));
    assert!(matches!(Person::new(scene, "k").begin().await, Begun::Busy(_)));
}

async fn a_break_by_another_number_ends_nothing(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let other = FencingToken::new(1).unwrap();
    assert_eq!(worker.break_record(other, false).await, BrokenRecord::None);
    let place = worker.grant().await;
    for is_clean in [true, false] {
        let told = worker.break_record(other, is_clean).await;
        assert_eq!(told, BrokenRecord::Superseded(number(&place)));
    }
    stored(worker.store("done").await);
    for is_clean in [true, false] {
        let told = worker.break_record(other, is_clean).await;
        assert_eq!(told, BrokenRecord::Superseded(number(&place)));
    }
    assert_eq!(worker.result().await.result, text("done"));
}

async fn a_result_that_is_broken_was_work_that_may_be_done(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let place = worker.grant().await;
    stored(worker.store("done").await);
    for _ in 0..2 {
        assert_eq!(worker.break_record(number(&place), false).await, BrokenRecord::Broken);
        assert_eq!(worker.store("done").await, Storing::Refused(NotWorker::NotBegun));
    }
    let view = worker.look().await.unwrap();
    assert_eq!(view.result, None);
    let next = Person::new(scene, "k").grant().await;
    assert_eq!(history(&next), (1, Some(number(&place))));
}
