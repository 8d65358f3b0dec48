//! How many wait for a lock.

use super::super::known::LINE_LASTS;
use super::*;

#[test]
fn while_clients_wait_the_line_is_looked_at_again_and_no_longer() {
    let mut view = View::default();
    let end = NOW + Duration::from_secs(3_600);
    let long = |at: Duration| Lease { left_ms: u64::try_from((end - at).as_millis()).unwrap(), ..lease(1) };
    let waits =
        |waiters, at: Duration| Inspected::Held { lease: long(at), yours: None, sharing: None, waiters };
    view.note(&key(), &Doing::Granted(long(NOW)), NOW);
    view.note(&key(), &Doing::Line, NOW);
    let mut at = NOW + LINE_SETTLES;
    assert_eq!(view.take_due(at, |_| true), Some(key()));
    assert_eq!(view.see(&key(), &waits(1, at), at), [News::Waiting(1)]);
    // Nothing is heard of the line any more.
    for _ in 0..2 {
        at += LINE_LASTS;
        assert_eq!(view.next_look(), Some(at));
        assert_eq!(view.take_due(at, |_| true), Some(key()));
        assert_eq!(view.see(&key(), &waits(1, at), at), []);
    }
    at += LINE_LASTS;
    assert_eq!(view.take_due(at, |_| true), Some(key()));
    assert_eq!(view.see(&key(), &waits(0, at), at), [News::Waiting(0)]);
    assert_eq!(view.next_look(), Some(end + AFTER_END));
    // The same goes for a line that was there before anybody watched.
    let mut view = View::default();
    view.learn(&key(), &long(NOW), 1, NOW);
    assert_eq!(view.next_look(), Some(NOW + LINE_LASTS));
}

#[test]
fn a_look_at_a_line_that_failed_is_not_put_off_by_news() {
    let mut view = View::default();
    let long = Lease { left_ms: 3_600_000, ..lease(1) };
    view.learn(&key(), &long, 1, NOW);
    let mut at = NOW + LINE_LASTS;
    assert_eq!(view.take_due(at, |_| true), Some(key()), "it is looked at, and nothing is found");
    let failed_at = at;
    while at < failed_at + 3 * LOOK_AGAIN {
        at += LOOK_AGAIN / 4;
        if view.take_due(at, |_| true).is_some() {
            return;
        }
        // It says nothing of the line.
        view.note(&key(), &Doing::Renewed(long.clone()), at);
    }
    panic!("news put it off");
}

#[test]
fn a_number_of_waiters_that_changed_between_the_list_of_readers_and_that_of_the_gateway_is_told() {
    let mut view = View::default();
    // Readers have counted one before.
    assert_eq!(view.note(&key(), &Doing::Line, NOW), []);
    assert_eq!(view.learn(&key(), &lease(1), 0, NOW), [News::Waiting(0)]);
    // The same goes for a look at one lock.
    let mut view = View::default();
    view.follow(&key(), NOW);
    view.note(&key(), &Doing::Line, NOW);
    assert_eq!(view.take_due(NOW, |_| true), Some(key()));
    assert_eq!(view.take_relied(&key(), NOW), Some(NOW));
    assert_eq!(view.learn(&key(), &lease(1), 0, NOW), [News::Waiting(0)]);
}

#[test]
fn a_first_look_is_not_put_off_by_news_and_one_that_was_sent_before_does_not_count() {
    let mut view = View::default();
    view.follow(&key(), NOW);
    view.note(&key(), &granted(1), NOW);
    assert_eq!(view.take_due(NOW, |_| true), Some(key()));
    let again = NOW + LOOK_AGAIN;
    view.follow(&key(), again);
    assert_eq!(view.take_relied(&key(), NOW), None);
    view.see(&key(), &held(1), NOW);
    assert_eq!(view.take_due(again, |_| true), Some(key()), "it is looked at once more");
    assert_eq!(view.take_relied(&key(), again), Some(again));
    view.learn(&key(), &lease(1), 0, again);
    assert_eq!(view.next_look(), Some(NOW + TTL + AFTER_END));
}
