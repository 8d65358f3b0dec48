//! What a line is to those who keep it, without a store.

use super::*;
use crate::lock::{LeaseToken, Place};

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
