//! Looking at one record: all but its result.

use fencepost::once::{ResultView, WorkState, WorkStatus};

use super::*;

for_each_record_store!(a_look_says_how_far_the_work_is, a_look_says_whether_it_is_yours);

async fn a_look_says_how_far_the_work_is(scene: &AnyStore) {
    let worker = Person::new(scene, "k");
    assert_eq!(worker.look().await, None);
    let first = worker.crash().await;
    let week_ms = 7 * DAY.as_millis() as u64;
    let remembered = week_ms - 20_000..=week_ms;
    let view = worker.look().await.unwrap();
    assert_eq!((view.state, view.yours, &view.result), (WorkState::Lapsed, None, &None));
    assert_eq!((number(&view.place), view.place.lease.left_ms), (number(&first), 0));
    assert!(remembered.contains(&view.forgotten_in_ms), "{view:?}");
    let second = worker.grant().await;
    let view = worker.look().await.unwrap();
    assert_eq!(
        (view.state, number(&view.place), history(&view.place)),
        (WorkState::Working, number(&second), history(&second))
    );
    assert!((1..=LONG_MS).contains(&view.place.lease.left_ms), "{view:?}");
    assert_eq!(view.place.lease.owner(), Some("somebody"));
    assert!((week_ms..=week_ms + LONG_MS).contains(&view.forgotten_in_ms), "{view:?}");
    let (status, content_type) = (WorkStatus::new(7), Some("text/plain".to_owned()));
    let result = WorkResult { status, content_type: content_type.clone(), ..text("twelve bytes") };
    stored(worker.store_for(None, Some(keep(HOUR)), result).await);
    let view = worker.look().await.unwrap();
    assert_eq!((view.state, number(&view.place)), (WorkState::Done, number(&second)));
    assert_eq!((view.place.lease.left_ms, view.place.lease.owner()), (0, Some("somebody")));
    let Some(ResultView { age_ms, .. }) = view.result else { panic!("{view:?}") };
    assert!(age_ms < 20_000, "{age_ms}");
    assert_eq!(view.result, Some(ResultView { age_ms, bytes: 12, status, content_type }));
    assert!((3_580_000..=3_600_000).contains(&view.forgotten_in_ms), "{view:?}");
    // Once it was broken, nobody is at it, and it is not gone.
    worker.break_record(number(&second), false).await;
    let view = worker.look().await.unwrap();
    assert_eq!((view.state, number(&view.place)), (WorkState::Lapsed, number(&second)));
    assert!(remembered.contains(&view.forgotten_in_ms), "{view:?}");
}

async fn a_look_says_whether_it_is_yours(scene: &AnyStore) {
    let (worker, other) = (Person::new(scene, "k"), Person::new(scene, "k"));
    let yours = async || {
        let look = async |person: &Person<'_>| person.look_as_worker().await.unwrap().yours;
        (look(&worker).await, look(&other).await)
    };
    assert_eq!(other.look_as_worker().await, None);
    worker.crash().await;
    assert_eq!(yours().await, (Some(true), Some(false)), "lapsed");
    worker.grant().await;
    assert_eq!(yours().await, (Some(true), Some(false)), "working");
    stored(worker.store("done").await);
    assert_eq!(yours().await, (Some(true), Some(false)), "done");
    let place = worker.look().await.unwrap().place;
    worker.break_record(number(&place), false).await;
    assert_eq!(yours().await, (Some(false), Some(false)), "nobody's");
}
