//! What a line is to those who keep it, without a store.

use super::*;
use crate::lock::{LeaseToken, Place};
use crate::store::OFFER;

const NOW: Duration = Duration::from_secs(1_000);
const LEASE: Option<Duration> = Some(Duration::from_secs(10));

fn key() -> LockKey {
    match LockKey::parse(b"k") {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ttl() -> Ttl {
    match Ttl::from_ms(10_000) {
        Some(ttl) => ttl,
        None => panic!("a ttl of zero"),
    }
}

fn lines() -> Lines {
    Lines::new(LineSettings::default())
}

/// One who waits.
#[derive(Clone, Copy)]
struct Waiter {
    token: TokenHash,
    attempt: Attempt,
}

impl Waiter {
    fn new() -> Self {
        Self { token: LeaseToken::generate().hash(), attempt: Attempt::generate() }
    }

    /// Joins the line of a lock that is held.
    fn join(&self, lines: &mut Lines, now: Duration) -> Place {
        let join = Join { displaces: true, ..Join::default() };
        assert_eq!(lines.join(&key(), &self.token, self.attempt, &join, now), Ok(()));
        self.waits(lines, LEASE, now).place
    }

    fn look(&self, lines: &mut Lines, held: Option<Duration>, now: Duration) -> Turn {
        lines.look(&key(), &self.token, self.attempt, held, now)
    }

    #[track_caller]
    fn waits(&self, lines: &mut Lines, held: Option<Duration>, now: Duration) -> Standing {
        match self.look(lines, held, now) {
            Turn::InLine(standing) => standing,
            other => panic!("not in line: {other:?}"),
        }
    }
}

#[test]
fn a_line_that_nobody_comes_back_to_is_forgotten() {
    let mut lines = lines();
    let (holder, waiting) = (Waiter::new(), Waiter::new());
    waiting.join(&mut lines, NOW);
    lines.end(&key(), &waiting.token, waiting.attempt, PlaceAfter::Kept, NOW);
    // The lock is offered to a client that never comes back.
    assert!(!lines.released(&key(), &holder.token, true, NOW + ms(1)));
    lines.purge(NOW + ms(2));
    assert_eq!(lines.lines.len(), 1, "its place is kept for a while");
    lines.purge(NOW + Duration::from_secs(20));
    assert!(lines.lines.is_empty());
}

#[test]
fn a_place_is_given_once() {
    let mut lines = lines();
    let [first, left, third] = [(); 3].map(|()| Waiter::new());
    let mut places = vec![first.join(&mut lines, NOW), left.join(&mut lines, NOW)];
    lines.vacate(&key(), &left.token, left.attempt, PlaceAfter::Kept, false, NOW);
    places.push(third.join(&mut lines, NOW));
    let back = Waiter { attempt: Attempt::generate(), ..left };
    assert_eq!(back.join(&mut lines, NOW), places[1]);
    places.dedup();
    assert_eq!((places.len(), lines.waiters(&key())), (3, 3), "{places:?}");
}

#[test]
fn one_whose_try_failed_keeps_its_place_and_its_turn() {
    let mut lines = lines();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    let place = first.join(&mut lines, NOW);
    second.join(&mut lines, NOW);
    assert_eq!(first.look(&mut lines, None, NOW), Turn::Take);
    // The try takes longer than an offer stands: until it ends, the lock is as good as held.
    let trying = second.waits(&mut lines, Some(ms(1_000)), NOW + OFFER);
    assert_eq!((trying.is_first, trying.due_in_ms), (false, 1_000));
    let (session, _) = lines.beat(|_| None);
    lines.withdrawn(&key(), NOW + OFFER);
    let failed = first.waits(&mut lines, LEASE, NOW + OFFER);
    assert_eq!((failed.place, failed.is_first, failed.due_in_ms), (place, true, 10_000));
    assert_eq!(failed.offered_to, None);
    // The lease ends, and whoever looks finds that it is still the turn of the first.
    second.waits(&mut lines, None, NOW + ms(10_000));
    assert_eq!(first.look(&mut lines, None, NOW + ms(10_000)), Turn::Take);
    assert_eq!(lines.beat(|_| None).0, session, "nobody was passed over");
}

#[test]
fn an_offer_that_is_neither_taken_nor_withdrawn_goes_on_to_the_next() {
    let mut lines = lines();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    first.join(&mut lines, NOW);
    second.join(&mut lines, NOW);
    assert_eq!(first.look(&mut lines, None, NOW), Turn::Take);
    assert_eq!(second.look(&mut lines, None, NOW + OFFER), Turn::Take);
    assert_eq!(lines.waiters(&key()), 1);
    lines.granted(&key(), &second.token, second.attempt, ttl(), NOW + OFFER);
    assert_eq!(second.look(&mut lines, LEASE, NOW + OFFER), Turn::Lost);
    assert!(first.waits(&mut lines, LEASE, NOW + OFFER).is_first, "it may come back to its place");
}

#[test]
fn a_lock_that_is_freed_twice_is_offered_once() {
    let mut lines = lines();
    let waiting = Waiter::new();
    waiting.join(&mut lines, NOW);
    lines.freed(&key(), NOW);
    lines.freed(&key(), NOW + ms(500));
    assert_eq!(lines.take_hints(), [Hint::Offered(key(), waiting.token, waiting.attempt)]);
    let behind = Waiter::new();
    behind.join(&mut lines, NOW + ms(500));
    let due_in_ms = behind.waits(&mut lines, None, NOW + ms(500)).due_in_ms;
    assert_eq!(due_in_ms, 300, "the promise did not begin anew");
}

#[test]
fn a_last_try_that_failed_leaves_the_lock_to_the_next() {
    let mut lines = lines();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    first.join(&mut lines, NOW);
    second.join(&mut lines, NOW);
    assert_eq!(first.look(&mut lines, None, NOW), Turn::Take);
    lines.withdrawn(&key(), NOW);
    lines.end(&key(), &first.token, first.attempt, PlaceAfter::Removed, NOW);
    assert_eq!(lines.position(&key(), &second.token), Some(1));
    assert_eq!(second.look(&mut lines, None, NOW), Turn::Take);
}

#[test]
fn nobody_passes_those_who_wait() {
    let mut lines = lines();
    let [waiting, passing] = [(); 2].map(|()| Waiter::new());
    assert!(lines.pass(&key(), &passing.token, None, NOW));
    assert!(!lines.pass(&key(), &passing.token, LEASE, NOW));
    waiting.join(&mut lines, NOW);
    assert!(!lines.pass(&key(), &passing.token, None, NOW));
    assert_eq!(lines.take_hints(), [Hint::Offered(key(), waiting.token, waiting.attempt)]);
    assert!(lines.pass(&key(), &waiting.token, None, NOW), "it is promised to this very token");
}

#[test]
fn a_beat_tells_what_somebody_must_look_at_soon() {
    let mut lines = lines();
    assert_eq!(lines.beat(|_| None).1, []);
    Waiter::new().join(&mut lines, NOW);
    for (held, due) in [(None, vec![0]), (Some(ms(1_000)), vec![1_000]), (LEASE, vec![])] {
        let told: Vec<_> = lines.beat(|_| held).1.into_iter().map(|(_, in_ms)| in_ms).collect();
        assert_eq!(told, due);
    }
}
