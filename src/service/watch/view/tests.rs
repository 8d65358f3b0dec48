#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use super::*;
use crate::lock::{FencingToken, Slot, Slots};

mod line;

const NOW: Duration = Duration::from_secs(1_000);
const TTL: Duration = Duration::from_secs(10);
/// When something may have been missed, shortly before.
const MISSED: Duration = Duration::from_millis(999_999);

fn key() -> LockKey {
    LockKey::parse(b"k").unwrap()
}

fn number(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn lease(fence: u64) -> Lease {
    Lease {
        fencing_token: number(fence),
        left_ms: 10_000,
        note: Default::default(),
        is_released: false,
        slot: None,
    }
}

fn granted(fence: u64) -> Doing {
    Doing::Granted(lease(fence))
}

fn ended(fence: u64) -> Ended {
    Ended { fencing_token: number(fence), kept_ms: 0 }
}

fn released(fence: u64) -> Doing {
    Doing::Released(ended(fence))
}

fn held(fence: u64) -> Inspected {
    Inspected::Held { lease: lease(fence), yours: None, sharing: None, waiters: 0 }
}

const FREE: Inspected = Inspected::Free { waiters: 0 };

/// What is told when these things are heard of in this order, all at once.
fn told(doings: &[Doing]) -> Vec<News> {
    let mut view = View::default();
    doings.iter().flat_map(|doing| view.note(&key(), doing, NOW)).collect()
}

#[test]
fn what_comes_late_or_twice_is_not_told() {
    let (first, second) = (News::Granted(lease(1)), News::Granted(lease(2)));
    let over = News::Released(ended(1));
    assert_eq!(told(&[granted(1), released(1), granted(2)]), [first.clone(), over.clone(), second.clone()]);
    assert_eq!(told(&[released(1), granted(1)]), vec![over.clone()], "the end came first");
    assert_eq!(told(&[released(1), Doing::Renewed(lease(1))]), vec![over.clone()]);
    assert_eq!(told(&[granted(1), granted(2), released(1)]), [first.clone(), second.clone()]);
    assert_eq!(told(&[granted(2), granted(1), Doing::Renewed(lease(1))]), [second]);
    assert_eq!(told(&[granted(1), granted(1), released(1), released(1)]), [first.clone(), over.clone()]);
    let renewed = News::Renewed(lease(1));
    assert_eq!(told(&[Doing::Renewed(lease(1)), granted(1)]), [renewed], "its grant is no news any more");
    let broken = News::Broken(number(1));
    assert_eq!(told(&[Doing::Broken(number(1)), released(1)]), vec![broken.clone()]);
    assert_eq!(told(&[released(1), Doing::Broken(number(1))]), [over], "it was free by then");
    let kept = Ended { kept_ms: 500, ..ended(1) };
    assert_eq!(
        told(&[granted(1), Doing::Released(kept), Doing::Broken(number(1))]),
        [first, News::Released(kept), broken]
    );
    assert_eq!(told(&[Doing::Unclear]), [News::Resync]);
    for ends in [released(1), Doing::Broken(number(1))] {
        assert_eq!(told(&[Doing::Unclear, ends]), [News::Resync, News::Resync], "others may hold it");
    }
    let alone = [News::Resync, News::Granted(lease(1)), News::Released(ended(1))];
    assert_eq!(told(&[Doing::Unclear, granted(1), released(1)]), alone);
}

#[test]
fn a_lease_whose_time_is_over_when_the_next_begins_has_expired() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    let both = [News::Expired(number(1)), News::Granted(lease(2))];
    assert_eq!(view.note(&key(), &granted(2), NOW + TTL), both);
    // Before that it was ended by somebody, who says so, or it is too late to say.
    assert_eq!(view.note(&key(), &granted(3), NOW + TTL), [News::Granted(lease(3))]);
}

#[test]
fn the_end_of_a_lease_is_told_when_a_look_finds_it_and_not_before() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    assert_eq!(view.next_look(), Some(NOW + TTL + AFTER_END));
    assert_eq!(view.take_due(NOW + TTL, |_| true), None, "there is nothing to look for yet");
    assert_eq!(view.see(&key(), &FREE, NOW + TTL / 2), [], "who has released it is about to say so");
    let end = NOW + TTL + AFTER_END;
    assert_eq!(view.take_due(end, |_| true), Some(key()));
    assert_eq!(view.next_look(), Some(end + LOOK_AGAIN), "a look that fails is repeated");
    // It was renewed, and no gateway had said so.
    assert_eq!(view.see(&key(), &held(1), end), [News::Renewed(lease(1))]);
    let end = end + TTL + AFTER_END;
    assert_eq!(view.take_due(end, |_| true), Some(key()));
    assert_eq!(view.see(&key(), &FREE, end), [News::Expired(number(1))]);
    assert_eq!(view.see(&key(), &FREE, end), [], "it is said once");
    assert_eq!(view.note(&key(), &released(1), end), [], "it was over by then");
    assert_eq!(view.take_due(end + REMEMBERED, |_| true), None);
    assert!(view.locks.is_empty() && view.timers.is_empty(), "nothing is left of it");
}

#[test]
fn what_a_look_finds_sooner_than_it_is_told_is_told_all_the_same() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    let end = NOW + TTL + AFTER_END;
    assert_eq!(view.see(&key(), &held(2), end), [News::Expired(number(1))]);
    assert_eq!(view.note(&key(), &granted(2), end), [News::Granted(lease(2))]);
    assert_eq!(view.note(&key(), &granted(2), end), []);
    // The same goes for what was there before anybody watched.
    let mut view = View::default();
    view.learn(&key(), &lease(1), 3, NOW);
    assert_eq!(view.note(&key(), &granted(1), NOW), [News::Granted(lease(1))]);
    let waiting = Inspected::Held { lease: lease(1), yours: None, sharing: None, waiters: 3 };
    assert_eq!(view.see(&key(), &waiting, NOW), [], "whoever asks has seen that three wait");
    assert_eq!(view.see(&key(), &held(1), NOW), [News::Waiting(0)]);
}

#[test]
fn a_release_that_was_told_before_others_were_known_to_hold_the_lock_by_slots_is_looked_at_again() {
    let mut view = View::default();
    assert_eq!(view.note(&key(), &released(2), NOW), [News::Released(ended(2))]);
    let slot = Slot { number: 1, slots: Slots::parse(b"2").unwrap() };
    let other = Lease { slot: Some(slot), ..lease(1) };
    assert_eq!(view.learn(&key(), &other, 0, NOW), [News::Resync]);
    assert_eq!(view.learn(&key(), &other, 0, NOW), [], "it is said once");
}

#[test]
fn a_lock_that_was_held_by_slots_is_forgotten_once_it_is_free() {
    let slot = Slot { number: 1, slots: Slots::parse(b"2").unwrap() };
    let mut view = View::default();
    view.learn(&key(), &Lease { slot: Some(slot), ..lease(1) }, 0, NOW);
    let end = NOW + TTL + AFTER_END;
    assert_eq!(view.take_due(end, |_| true), Some(key()));
    assert_eq!(view.see(&key(), &FREE, end), [News::Resync], "it was shared");
    assert_eq!(view.next_look(), Some(end + REMEMBERED), "there is nothing to look for any more");
    assert_eq!(view.take_due(end + REMEMBERED, |_| true), None);
    assert!(view.locks.is_empty() && view.timers.is_empty());
}

#[test]
fn a_release_after_an_unclear_step_is_looked_at_also_where_several_held_the_lock_before() {
    let slot = Slot { number: 1, slots: Slots::parse(b"2").unwrap() };
    let mut view = View::default();
    view.learn(&key(), &Lease { slot: Some(slot), ..lease(1) }, 0, NOW);
    assert_eq!(view.note(&key(), &Doing::Unclear, NOW), [News::Resync]);
    // A look that was sent before.
    assert_eq!(view.see(&key(), &FREE, NOW), [News::Resync]);
    assert_eq!(view.note(&key(), &released(2), NOW), [News::Resync], "others may hold it");
}

#[test]
fn numbers_that_have_fallen_are_told_once_the_store_may_have_lost_the_later_ones() {
    let before = || {
        let mut view = View::default();
        view.note(&key(), &granted(2), NOW);
        assert_eq!(view.note(&key(), &released(1), NOW), [], "it is late");
        view.doubt(MISSED);
        assert_eq!(view.note(&key(), &released(1), NOW), [News::Resync], "readers may have seen it held");
        view
    };
    let renewed = Doing::Renewed(lease(1));
    let mut view = before();
    view.learn(&key(), &lease(1), 0, NOW);
    assert_eq!(view.note(&key(), &renewed, NOW), [News::Renewed(lease(1))]);
    assert_eq!(view.note(&key(), &released(1), NOW), [News::Released(ended(1))]);
    let mut view = before();
    assert_eq!(view.see(&key(), &held(1), NOW), [], "readers were told to look");
    assert_eq!(view.note(&key(), &released(1), NOW), [News::Released(ended(1))]);
}

#[test]
fn the_end_of_a_lease_that_may_have_ended_unheard_is_told_only_if_it_was_found_since() {
    let end = NOW + TTL + AFTER_END;
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    view.doubt(MISSED);
    assert_eq!(view.see(&key(), &FREE, end), [], "it may have been released long before");
    assert_eq!(view.note(&key(), &released(1), end), [News::Resync], "it may be of another grant");
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    view.doubt(MISSED);
    view.learn(&key(), &lease(1), 0, NOW);
    assert_eq!(view.see(&key(), &FREE, end), [News::Expired(number(1))]);
}

#[test]
fn a_grant_is_told_on_if_it_holds_still_although_its_end_was_told() {
    let (renewed, broken) = (Doing::Renewed(lease(1)), Doing::Broken(number(1)));
    let kept = Doing::Released(Ended { kept_ms: 500, ..ended(1) });
    for end in [released(1), broken, kept] {
        for is_listed in [true, false] {
            let mut view = View::default();
            view.note(&key(), &granted(1), NOW);
            view.note(&key(), &end, NOW);
            assert_eq!(view.note(&key(), &renewed, NOW), [], "it is late");
            view.doubt(MISSED);
            assert_eq!(view.note(&key(), &renewed, NOW), [News::Resync], "the store may have lost the end");
            if is_listed {
                view.learn(&key(), &lease(1), 0, NOW);
            } else {
                assert_eq!(view.see(&key(), &held(1), NOW), [], "readers were told to look");
            }
            assert_eq!(view.note(&key(), &renewed, NOW), [News::Renewed(lease(1))]);
            assert_eq!(view.note(&key(), &released(1), NOW), [News::Released(ended(1))]);
        }
    }
}

#[test]
fn what_was_looked_for_before_something_was_missed_settles_nothing() {
    let (asked_at, end) = (MISSED, NOW + TTL + AFTER_END);
    let doubted = |doings: &[Doing]| {
        let mut view = View::default();
        doings.iter().for_each(|doing| drop(view.note(&key(), doing, asked_at)));
        view.doubt(MISSED);
        view
    };
    for fence in [1, 2] {
        let mut view = doubted(&[granted(1)]);
        view.learn(&key(), &lease(fence), 0, asked_at);
        assert_eq!(view.see(&key(), &held(fence), asked_at), []);
        assert_eq!(view.see(&key(), &FREE, end), [], "its release may have been missed");
    }
    let mut view = doubted(&[granted(1), granted(2)]);
    view.learn(&key(), &lease(1), 0, asked_at);
    assert_eq!(view.see(&key(), &held(1), asked_at), []);
    assert_eq!(view.note(&key(), &released(1), NOW), [News::Resync], "the later grant may hold it");
    let mut view = doubted(&[]);
    view.learn(&key(), &lease(1), 0, asked_at);
    assert_eq!(view.see(&key(), &FREE, end), [], "also of a lock that was not known before");
    let mut view = doubted(&[granted(1), released(1)]);
    view.learn(&key(), &lease(1), 0, asked_at);
    assert_eq!(view.see(&key(), &FREE, end), [], "it is over");
}

#[test]
fn the_news_of_an_end_leave_its_number_in_doubt_and_count_for_more_than_an_earlier_look() {
    for end in [released(2), Doing::Broken(number(2))] {
        let mut view = View::default();
        view.note(&key(), &granted(2), NOW);
        view.doubt(MISSED);
        view.note(&key(), &end, NOW);
        view.learn(&key(), &lease(2), 0, NOW);
        assert_eq!(view.see(&key(), &FREE, NOW + TTL + AFTER_END), [], "it is over");
        assert_eq!(
            view.note(&key(), &granted(1), NOW),
            [News::Resync],
            "the store may have lost the later one"
        );
    }
}

#[test]
fn readers_look_at_a_lock_that_was_found_free_before_its_end_also_if_it_ends_meanwhile() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    let end = NOW + TTL + AFTER_END;
    assert_eq!(view.see(&key(), &FREE, end - LOOK_AGAIN / 2), []);
    assert_eq!(view.see(&key(), &FREE, end), [News::Resync], "it was released");
}

#[test]
fn readers_look_at_a_lock_that_two_looks_find_free_before_its_end() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    assert_eq!(view.see(&key(), &FREE, NOW), []);
    let next = NOW + LOOK_AGAIN;
    assert_eq!(view.take_due(next, |_| true), Some(key()));
    assert_eq!(view.see(&key(), &FREE, next), [News::Resync]);
    assert_eq!(view.note(&key(), &released(1), next), [], "it is late");
    assert_eq!(view.take_due(NOW + TTL + AFTER_END, |_| true), None, "its end is not told as another one");
}

#[test]
fn what_is_followed_anew_is_forgotten_first_unless_others_follow_it() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    for selection in [Selection::Prefix("k".to_owned()), Selection::Key(key())] {
        view.forget(&selection, |_| true);
    }
    view.forget(&Selection::Prefix("other".to_owned()), |_| false);
    assert_eq!(view.locks.len(), 1);
    view.forget(&Selection::Prefix("k".to_owned()), |_| false);
    assert!(view.locks.is_empty() && view.timers.is_empty());
}

#[test]
fn a_lock_that_nobody_wants_to_know_of_is_not_looked_at() {
    let mut view = View::default();
    view.note(&key(), &granted(1), NOW);
    assert_eq!(view.take_due(NOW + 2 * TTL, |_| false), None);
    assert!(view.locks.is_empty() && view.timers.is_empty());
}

#[test]
fn of_more_locks_than_there_is_room_for_all_is_told_but_their_ends() {
    let mut view = View::default();
    for name in 0..MOST_FOLLOWED {
        view.note(&LockKey::parse(name.to_string().as_bytes()).unwrap(), &granted(1), NOW);
    }
    assert!(!view.was_overfull());
    assert_eq!(view.note(&key(), &granted(1), NOW), [News::Granted(lease(1))]);
    assert!(view.was_overfull());
    assert_eq!((view.locks.len(), view.timers.len()), (MOST_FOLLOWED, MOST_FOLLOWED));
    assert_eq!(view.note(&key(), &released(1), NOW), [News::Released(ended(1))]);
}

#[test]
fn a_fresh_lock_takes_the_room_of_one_that_is_over() {
    let mut view = View::default();
    let lock = |name: usize| LockKey::parse(name.to_string().as_bytes()).unwrap();
    for name in 0..2 * MOST_FOLLOWED {
        view.note(&lock(name), &granted(1), NOW);
        view.note(&lock(name), &released(1), NOW);
    }
    assert!(view.timers.is_empty() && view.over.len() == MOST_FOLLOWED);
    assert_eq!(view.note(&lock(0), &granted(2), NOW), [News::Granted(lease(2))]);
    assert!(!view.was_overfull());
    assert_eq!((view.locks.len(), view.next_look()), (MOST_FOLLOWED, Some(NOW + TTL + AFTER_END)));
    assert_eq!(view.take_due(NOW + TTL + AFTER_END, |_| true), Some(lock(0)));
}

#[test]
fn a_lock_that_is_taken_again_and_again_is_listed_once() {
    let mut view = View::default();
    for fence in 1..10 {
        view.note(&key(), &granted(fence), NOW);
        view.note(&key(), &released(fence), NOW + TTL / 2);
    }
    assert_eq!((view.over.len(), view.timers.len()), (1, 0));
    assert_eq!(view.take_due(NOW + REMEMBERED, |_| true), None);
    assert_eq!(view.locks.len(), 1, "its last grant has not been over for long enough");
    assert_eq!(view.take_due(NOW + TTL / 2 + REMEMBERED, |_| true), None);
    assert!(view.locks.is_empty() && view.over.is_empty());
}
