//! What a wait queue is to those who keep it, without a store.

use std::cell::Cell;

use super::*;
use crate::lock::{LeaseToken, Terms, Ticket, Ttl};
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

fn queues() -> WaitQueues {
    WaitQueues::new(LineSettings::default())
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

    /// Joins the wait queue of a lock that is held.
    fn join(&self, queues: &mut WaitQueues, now: Duration) -> Ticket {
        let (token, attempt, terms) = (self.token, self.attempt, Terms::default());
        let lock = LockRequest { key: key(), token, attempt, ttl: ttl(), note: Default::default(), terms };
        let request = Enqueue { lock, takes_over: true, ticket: None, supersedes: Vec::new() };
        assert_eq!(queues.join(&request, now), Ok(()));
        self.waits(queues, LEASE, now).ticket
    }

    fn look(&self, queues: &mut WaitQueues, held: Option<Duration>, now: Duration) -> QueueTurn {
        queues.look(&key(), &self.token, self.attempt, Slots::ONE, held.into(), now)
    }

    #[track_caller]
    fn waits(&self, queues: &mut WaitQueues, held: Option<Duration>, now: Duration) -> QueuePosition {
        match self.look(queues, held, now) {
            QueueTurn::InLine(position) => position,
            other => panic!("not in line: {other:?}"),
        }
    }
}

#[test]
fn a_line_that_nobody_comes_back_to_is_forgotten() {
    let mut queues = queues();
    let (holder, waiting) = (Waiter::new(), Waiter::new());
    waiting.join(&mut queues, NOW);
    queues.end(&key(), &waiting.token, waiting.attempt, TicketAfter::Kept, NOW);
    // The lock is offered to a client that never comes back.
    assert!(!queues.released(&key(), &holder.token, true, SlotRoom::FREE, NOW + ms(1)));
    queues.purge(NOW + ms(2));
    assert_eq!(queues.queues.len(), 1, "its place is kept for a while");
    queues.purge(NOW + Duration::from_secs(20));
    assert!(queues.queues.is_empty());
}

#[test]
fn a_place_that_was_left_for_too_long_counts_no_more_and_cannot_be_given_up() {
    let mut queues = queues();
    let [left, present] = [(); 2].map(|()| Waiter::new());
    left.join(&mut queues, NOW);
    present.join(&mut queues, NOW);
    queues.end(&key(), &left.token, left.attempt, TicketAfter::Kept, NOW);
    let lost_at = NOW + LineSettings::default().ticket_ttl;
    assert_eq!((queues.waiters(&key(), lost_at - ms(1)), queues.waiters(&key(), lost_at)), (2, 1));
    assert!(!queues.released(&key(), &left.token, false, SlotRoom::FREE, lost_at));
}

#[test]
fn one_whose_place_comes_back_does_not_answer_for_an_offer_that_another_let_lapse() {
    let mut queues = queues();
    let first = Waiter::new();
    let other = Waiter { attempt: Attempt::generate(), ..first };
    first.join(&mut queues, NOW);
    other.join(&mut queues, NOW);
    queues.freed(&key(), SlotRoom::FREE, NOW);
    queues.vacate(&key(), &other.token, other.attempt, TicketAfter::Kept, SlotRoom::FREE, NOW + OFFER);
    assert_eq!(queues.waiters(&key(), NOW + OFFER), 1);
}

#[test]
fn a_place_is_given_once() {
    let mut queues = queues();
    let [first, left, third] = [(); 3].map(|()| Waiter::new());
    let mut places = vec![first.join(&mut queues, NOW), left.join(&mut queues, NOW)];
    queues.vacate(&key(), &left.token, left.attempt, TicketAfter::Kept, SlotRoom::FREE, NOW);
    places.push(third.join(&mut queues, NOW));
    let back = Waiter { attempt: Attempt::generate(), ..left };
    assert_eq!(back.join(&mut queues, NOW), places[1]);
    places.dedup();
    assert_eq!((places.len(), queues.waiters(&key(), NOW)), (3, 3), "{places:?}");
}

#[test]
fn one_whose_try_failed_keeps_its_place_and_its_turn() {
    let mut queues = queues();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    let place = first.join(&mut queues, NOW);
    second.join(&mut queues, NOW);
    assert_eq!(first.look(&mut queues, None, NOW), QueueTurn::Take);
    // The try takes longer than an offer stands: until it ends, the lock is as good as held.
    let trying = second.waits(&mut queues, Some(ms(1_000)), NOW + OFFER);
    assert_eq!((trying.is_first, trying.due_in_ms), (false, 1_000));
    let (session, _) = queues.beat(NOW, true, |_| SlotRoom::FREE);
    queues.withdrawn(&key(), NOW + OFFER);
    let failed = first.waits(&mut queues, LEASE, NOW + OFFER);
    assert_eq!((failed.ticket, failed.is_first, failed.due_in_ms), (place, true, 10_000));
    assert_eq!(failed.offered_to, None);
    // The lease ends, and each poll finds that it is still the turn of the first.
    second.waits(&mut queues, None, NOW + ms(10_000));
    assert_eq!(first.look(&mut queues, None, NOW + ms(10_000)), QueueTurn::Take);
    assert_eq!(queues.beat(NOW, true, |_| SlotRoom::FREE).0, session, "nobody was passed over");
}

#[test]
fn an_offer_that_is_neither_taken_nor_withdrawn_goes_on_to_the_next() {
    let mut queues = queues();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    first.join(&mut queues, NOW);
    second.join(&mut queues, NOW);
    assert_eq!(first.look(&mut queues, None, NOW), QueueTurn::Take);
    assert_eq!(second.look(&mut queues, None, NOW + OFFER), QueueTurn::Take);
    assert_eq!(queues.waiters(&key(), NOW), 1);
    queues.granted(&key(), &second.token, second.attempt, LEASE.into(), NOW + OFFER);
    assert_eq!(second.look(&mut queues, LEASE, NOW + OFFER), QueueTurn::Lost);
    assert!(first.waits(&mut queues, LEASE, NOW + OFFER).is_first, "it may come back to its place");
}

/// Its attempt would look at once, find the lock held, be shown the offer, look at once, and so on.
#[test]
fn an_offer_is_shown_to_nobody_while_the_lock_is_held_or_when_it_has_lapsed() {
    let mut queues = queues();
    let waiting = Waiter::new();
    waiting.join(&mut queues, NOW);
    queues.freed(&key(), SlotRoom::FREE, NOW);
    for now in [NOW + ms(1), NOW + OFFER + ms(1)] {
        assert_eq!(waiting.waits(&mut queues, LEASE, now).offered_to, None, "at {now:?}");
    }
    assert_eq!(waiting.look(&mut queues, None, NOW + OFFER + ms(1)), QueueTurn::Take);
}

#[test]
fn a_lock_that_is_freed_twice_is_offered_once() {
    let mut queues = queues();
    let waiting = Waiter::new();
    waiting.join(&mut queues, NOW);
    queues.freed(&key(), SlotRoom::FREE, NOW);
    queues.freed(&key(), SlotRoom::FREE, NOW + ms(500));
    assert_eq!(queues.take_hints(), [Hint::Offered(key(), waiting.token, waiting.attempt)]);
    let behind = Waiter::new();
    behind.join(&mut queues, NOW + ms(500));
    let due_in_ms = behind.waits(&mut queues, None, NOW + ms(500)).due_in_ms;
    assert_eq!(due_in_ms, 300, "the promise did not begin anew");
}

#[test]
fn a_last_try_that_failed_leaves_the_lock_to_the_next() {
    let mut queues = queues();
    let [first, second] = [(); 2].map(|()| Waiter::new());
    first.join(&mut queues, NOW);
    second.join(&mut queues, NOW);
    assert_eq!(first.look(&mut queues, None, NOW), QueueTurn::Take);
    queues.withdrawn(&key(), NOW);
    queues.end(&key(), &first.token, first.attempt, TicketAfter::Removed, NOW);
    assert_eq!(queues.position(&key(), &second.token), Some(1));
    assert_eq!(second.look(&mut queues, None, NOW), QueueTurn::Take);
}

#[test]
fn nobody_passes_those_who_wait() {
    let mut queues = queues();
    let [waiting, passing] = [(); 2].map(|()| Waiter::new());
    assert!(queues.pass(&key(), &passing.token, Slots::ONE, SlotRoom::FREE, NOW));
    assert!(!queues.pass(&key(), &passing.token, Slots::ONE, LEASE.into(), NOW));
    waiting.join(&mut queues, NOW);
    assert!(!queues.pass(&key(), &passing.token, Slots::ONE, SlotRoom::FREE, NOW));
    assert_eq!(queues.take_hints(), [Hint::Offered(key(), waiting.token, waiting.attempt)]);
    assert!(
        queues.pass(&key(), &waiting.token, Slots::ONE, SlotRoom::FREE, NOW),
        "it is promised to this very token"
    );
}

#[test]
fn a_beat_tells_what_somebody_must_look_at_soon() {
    let mut queues = queues();
    assert_eq!(queues.beat(NOW, true, |_| SlotRoom::FREE).1, []);
    Waiter::new().join(&mut queues, NOW);
    for (held, due) in [(None, vec![0]), (Some(ms(1_000)), vec![1_000]), (LEASE, vec![])] {
        let told: Vec<_> =
            queues.beat(NOW, true, |_| held.into()).1.into_iter().map(|(_, in_ms)| in_ms).collect();
        assert_eq!(told, due);
    }
}

/// There may be 100,000 of them.
#[test]
fn a_queue_is_looked_at_when_something_is_due_there_or_happens() {
    let ticket_ttl = ms(2_000);
    let mut queues = WaitQueues::new(LineSettings { ticket_ttl, ..LineSettings::default() });
    let waiting = Waiter::new();
    let looks = |queues: &WaitQueues, may_rest, now| {
        let looks = Cell::new(0);
        let room_of = |_: &_| {
            looks.set(looks.get() + 1);
            LEASE.map(|lease| (NOW + lease).saturating_sub(now)).into()
        };
        let told = queues.beat(now, may_rest, room_of).1.len();
        (looks.get(), told)
    };
    waiting.join(&mut queues, NOW);
    // A store where others change the lock has to look each time.
    let beats = [(false, 0), (true, 0), (true, 1), (true, 9_000)];
    let looked = beats.map(|(may_rest, after)| looks(&queues, may_rest, NOW + ms(after)));
    assert_eq!(looked, [(1, 0), (1, 0), (0, 0), (1, 1)]);
    // Each step may change what is due.
    queues.withdrawn(&key(), NOW);
    assert_eq!([1, 2].map(|after| looks(&queues, true, NOW + ms(after))), [(1, 0), (0, 0)]);
    // A ticket that was left ends, and the next waiter may be due.
    queues.vacate(&key(), &waiting.token, waiting.attempt, TicketAfter::Kept, LEASE.into(), NOW);
    let looked = [0, 1_999, 2_000].map(|after| looks(&queues, true, NOW + ms(after)));
    assert_eq!(looked, [(1, 0), (0, 0), (1, 0)]);
}
