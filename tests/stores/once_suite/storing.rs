//! Storing: whose result counts, and how long it is kept.

use fencepost::once::WorkStatus;

use super::*;

for_each_record_store!(
    a_result_is_told_byte_for_byte,
    the_first_result_counts,
    the_same_result_with_another_keep_changes_nothing,
    storing_may_say_another_keep_than_the_begin,
    a_late_result_is_stored_where_nobody_came,
    who_was_superseded_stores_nothing,
    storing_makes_no_record,
    another_number_than_its_own_is_superseded,
);
for_each_record_store_with_a_clock!(
    a_result_is_kept_for_its_time_and_reading_makes_that_no_longer,
    after_its_time_a_late_copy_finds_no_record,
    keep_counts_from_storing,
);

async fn a_result_is_told_byte_for_byte(scene: &AnyStore) {
    let all: Vec<u8> = (0..=255).collect();
    let long: Vec<u8> = (0..65_536_u32).map(|n| (n * 31 % 251) as u8).collect();
    let status = |number| Some(WorkStatus::new(number).unwrap());
    let results = [
        (Vec::new(), None, None),
        (Vec::new(), status(0), None),
        (b"\n".to_vec(), status(999), Some("text/plain; charset=utf-8")),
        (all, status(42), Some("application/octet-stream")),
        (long, None, Some("application/json")),
    ];
    for (n, (body, status, content_type)) in results.into_iter().enumerate() {
        let worker = Person::new(scene, &format!("k{n}")).with_print("p");
        let place = worker.grant().await;
        let content_type = content_type.map(str::to_owned);
        let result = WorkResult { status, content_type, body: body.into() };
        let (told, kept_ms, is_late) = stored(worker.store_for(None, None, result.clone()).await);
        assert_eq!((told, is_late), (number(&place), false));
        let day_ms = DAY.as_millis() as u64;
        assert!((day_ms - 20_000..=day_ms).contains(&kept_ms), "{kept_ms}");
        for person in [worker.clone(), Person { token: TokenHash::from_bytes([7; 32]), ..worker.clone() }] {
            let told = person.result().await;
            assert_eq!((told.fencing_token, told.fingerprint), (number(&place), print("p")));
            assert!(told.age_ms < 20_000 && (day_ms - 20_000..=day_ms).contains(&told.kept_ms), "{told:?}");
            assert!(told.result == result, "{n}: another result");
        }
        assert_eq!(stored(worker.store_for(None, None, result).await).0, number(&place), "{n}: repeated");
    }
}

async fn the_first_result_counts(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let place = worker.grant().await;
    let first =
        WorkResult { status: WorkStatus::new(200), content_type: Some("text/plain".into()), ..text("1") };
    stored(worker.store_for(None, None, first.clone()).await);
    for other in [
        WorkResult { body: Bytes::from_static(b"2"), ..first.clone() },
        WorkResult { body: Bytes::new(), ..first.clone() },
        WorkResult { body: Bytes::from_static(b"11"), ..first.clone() },
        WorkResult { status: WorkStatus::new(201), ..first.clone() },
        WorkResult { status: None, ..first.clone() },
        WorkResult { content_type: Some("text/html".into()), ..first.clone() },
        WorkResult { content_type: None, ..first.clone() },
    ] {
        assert_eq!(worker.store_for(None, None, other.clone()).await, Storing::Differs, "{other:?}");
    }
    assert_eq!(stored(worker.store_for(None, None, first.clone()).await).0, number(&place));
    assert_eq!(worker.result().await.result, first);
}

async fn the_same_result_with_another_keep_changes_nothing(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    worker.grant().await;
    stored(worker.store_for(None, Some(keep(HOUR)), text("done")).await);
    for length in [Duration::from_secs(120), 7 * DAY] {
        let (_, kept_ms, _) = stored(worker.store_for(None, Some(keep(length)), text("done")).await);
        assert!((3_500_000..=3_600_000).contains(&kept_ms), "{kept_ms}");
    }
    let (_, kept_ms, _) = stored(worker.store("done").await);
    assert!((3_500_000..=3_600_000).contains(&kept_ms), "{kept_ms}");
    assert!((3_500_000..=3_600_000).contains(&worker.result().await.kept_ms));
}

async fn storing_may_say_another_keep_than_the_begin(scene: &AnyStore) {
    for (at_begin, at_store, expected) in
        [(HOUR, None, HOUR), (HOUR, Some(2 * HOUR), 2 * HOUR), (2 * HOUR, Some(HOUR), HOUR)]
    {
        let worker = Person::new(scene, &format!("{at_begin:?} {at_store:?}")).keeping(at_begin);
        worker.grant().await;
        let (_, kept_ms, _) = stored(worker.store_for(None, at_store.map(keep), text("done")).await);
        let expected_ms = expected.as_millis() as u64;
        assert!((expected_ms - 20_000..=expected_ms).contains(&kept_ms), "{kept_ms}");
        let view = worker.look().await.unwrap();
        assert!((expected_ms - 20_000..=expected_ms).contains(&view.forgotten_in_ms), "{view:?}");
    }
}

async fn a_late_result_is_stored_where_nobody_came(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let place = worker.crash().await;
    assert_eq!(worker.renew(LONG_MS).await, RenewedWork::LeaseOver);
    let (told, _, is_late) = stored(worker.store("late").await);
    assert_eq!((told, is_late), (number(&place), true));
    // So is a repetition told.
    assert!(stored(worker.store("late").await).2);
    let next = Person::new(scene, "k").result().await;
    assert_eq!((next.fencing_token, next.result), (number(&place), text("late")));
}

async fn who_was_superseded_stores_nothing(scene: &AnyStore) {
    let (first, second) = (Person::new(scene, "k"), Person::new(scene, "k"));
    first.crash().await;
    let place = second.grant().await;
    assert_eq!(first.store("first").await, Storing::Refused(superseded(&place)));
    assert_eq!(first.renew(LONG_MS).await, RenewedWork::Refused(superseded(&place)));
    assert_eq!(first.give_up_leaving(true, Tombstone::None).await, GivenUp::Refused(superseded(&place)));
    stored(second.store("second").await);
    for body in ["first", "second"] {
        assert_eq!(first.store(body).await, Storing::Refused(superseded_and_done(&place)));
    }
    assert_eq!(first.renew(LONG_MS).await, RenewedWork::Refused(superseded_and_done(&place)));
    assert_eq!(first.give_up().await, GivenUp::Refused(superseded_and_done(&place)));
    assert_eq!(first.result().await.result, text("second"));
    // Also once its own lease is over.
    let (first, second) = (Person::new(scene, "lapsed"), Person::new(scene, "lapsed"));
    first.crash().await;
    let place = second.crash().await;
    assert_eq!(first.store("first").await, Storing::Refused(superseded(&place)));
    stored(second.store("second").await);
}

async fn storing_makes_no_record(scene: &AnyStore) {
    let person = Person::new(scene, "k");
    assert_eq!(person.store("done").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(person.renew(LONG_MS).await, RenewedWork::Refused(NotWorker::NotBegun));
    assert_eq!(person.look().await, None);
    // Nobody's record is like none to who was at it.
    person.grant().await;
    assert_eq!(person.give_up().await, GivenUp::GivenUp);
    assert_eq!(person.store("done").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(person.renew(LONG_MS).await, RenewedWork::Refused(NotWorker::NotBegun));
    let stranger = Person::new(scene, "k");
    assert_eq!(stranger.store("done").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(stranger.give_up().await, GivenUp::Refused(NotWorker::NotBegun));
    assert_eq!(history(&Person::new(scene, "k").grant().await).0, 1);
}

async fn another_number_than_its_own_is_superseded(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    let first = worker.crash().await;
    // Two runs of one token: the second has the place.
    let second = worker.grant().await;
    let (old, own) = (Some(number(&first)), Some(number(&second)));
    assert_eq!(worker.store_for(old, None, text("1")).await, Storing::Refused(superseded(&second)));
    assert_eq!(worker.renew_for(old, LONG_MS).await, RenewedWork::Refused(superseded(&second)));
    let RenewedWork::Renewed(place) = worker.renew_for(own, LONG_MS).await else { panic!("not renewed") };
    assert_eq!(number(&place), number(&second));
    stored(worker.store_for(own, None, text("2")).await);
    assert_eq!(worker.store_for(old, None, text("2")).await, Storing::Refused(superseded_and_done(&second)));
    assert_eq!(worker.renew_for(old, LONG_MS).await, RenewedWork::Refused(superseded_and_done(&second)));
    assert_eq!(worker.renew_for(own, LONG_MS).await, RenewedWork::AlreadyStored);
    stored(worker.store_for(own, None, text("2")).await);
}

async fn a_result_is_kept_for_its_time_and_reading_makes_that_no_longer(scene: &AnyStore) {
    let worker = Person::new(scene, "k").keeping(HOUR);
    worker.grant().await;
    stored(worker.store("done").await);
    for _ in 0..11 {
        scene.pass(HOUR / 12).await;
        assert_eq!(worker.result().await.result, text("done"));
        stored(worker.store("done").await);
        worker.look_as_worker().await.unwrap();
    }
    let told = worker.result().await;
    assert!((280_000..=300_000).contains(&told.kept_ms), "{told:?}");
    assert!((3_300_000..=3_320_000).contains(&told.age_ms), "{told:?}");
    scene.pass(HOUR / 12).await;
    assert_eq!(worker.look().await, None);
    let place = Person::new(scene, "k").with_print("another").grant().await;
    assert_eq!(history(&place), (0, None), "the key is new");
    assert!(number(&place) > told.fencing_token);
}

async fn after_its_time_a_late_copy_finds_no_record(scene: &AnyStore) {
    let worker = Person::new(scene, "k").keeping(Keep::SHORTEST);
    worker.grant().await;
    stored(worker.store("done").await);
    scene.pass(Keep::SHORTEST - Duration::from_secs(20)).await;
    stored(worker.store("done").await);
    scene.pass(Duration::from_secs(20)).await;
    assert_eq!(worker.store("done").await, Storing::Refused(NotWorker::NotBegun));
    assert_eq!(worker.renew(LONG_MS).await, RenewedWork::Refused(NotWorker::NotBegun));
    // Nor does it end what another has begun meanwhile.
    let place = Person::new(scene, "k").grant().await;
    assert_eq!(worker.store("done").await, Storing::Refused(superseded(&place)));
}

async fn keep_counts_from_storing(scene: &AnyStore) {
    let worker = Person::new(scene, "k").keeping(HOUR);
    worker.crash().await;
    scene.pass(2 * DAY).await;
    let (_, kept_ms, is_late) = stored(worker.store("done").await);
    assert!(is_late && (3_580_000..=3_600_000).contains(&kept_ms), "{kept_ms}");
    scene.pass(HOUR - Duration::from_secs(20)).await;
    assert_eq!(Person::new(scene, "k").result().await.result, text("done"));
}
