//! What the table asks a wait queue to do.

use super::*;
use crate::lock::Enqueued;
use crate::store::{Enqueue, LineSettings, OFFER};

#[test]
fn one_who_lets_an_offer_lapse_makes_room_in_a_full_queue() {
    let line = LineSettings { max_waiters_per_key: 1, ..LineSettings::default() };
    let mut table = Table::new(EmbeddedSettings { line, ..EmbeddedSettings::default() });
    table.start_run(0, Duration::from_secs(1));
    let [holder, first, second] = [(); 3].map(|()| request(token()));
    let enqueue = |table: &mut Table, lock: &LockRequest, now| {
        let lock = lock.clone();
        table.enqueue(&Enqueue { lock, takes_over: true, ticket: None, supersedes: Vec::new() }, now)
    };
    granted(&mut table, &holder, NOW);
    assert!(matches!(enqueue(&mut table, &first, NOW), Ok(Acquired::NotTaken(Enqueued::Polled(_)))));
    assert_eq!(enqueue(&mut table, &second, NOW), Ok(Acquired::NotTaken(Enqueued::QueueFull)));
    released(&mut table, &holder.token, Tombstone::None, NOW);
    assert_eq!(enqueue(&mut table, &second, NOW), Ok(Acquired::NotTaken(Enqueued::QueueFull)));
    assert!(matches!(enqueue(&mut table, &second, NOW + OFFER), Ok(Acquired::Granted(_))));
}

/// A batch that could not be written: no turn is lost by it, and one who is told that nothing was done does not wait.
#[test]
fn what_is_undone_takes_no_waiter_out_of_the_queue_and_puts_none_in() {
    let mut table = table();
    let [holder, first, second, last] = [(); 4].map(|()| request(token()));
    let enqueue = |table: &mut Table, lock: &LockRequest, now| {
        let lock = lock.clone();
        table.enqueue(&Enqueue { lock, takes_over: true, ticket: None, supersedes: Vec::new() }, now)
    };
    granted(&mut table, &holder, NOW);
    for waiter in [&first, &second] {
        assert!(matches!(enqueue(&mut table, waiter, NOW), Ok(Acquired::NotTaken(Enqueued::Polled(_)))));
    }
    table.take_changes();
    // It is offered to the first in this batch.
    let began = NOW + ms(1);
    released(&mut table, &holder.token, Tombstone::None, began);
    assert!(matches!(enqueue(&mut table, &last, began), Ok(Acquired::NotTaken(Enqueued::Polled(_)))));
    let (session, changes) = (table.heartbeat(began).0, table.take_changes());
    table.undo(changes, began);
    assert_eq!(table.queues.waiters(&key(), began), 2);
    // All look whether they have their tickets still.
    assert_ne!(table.heartbeat(began).0, session);
    assert!(table.take_hints().is_empty());
    // Long after the offer would have lapsed, the first is still the first.
    released(&mut table, &holder.token, Tombstone::None, began + OFFER * 2);
    let told = table.take_hints();
    assert!(
        told.iter().any(|hint| matches!(hint, Hint::Offered(_, token, _) if *token == first.token)),
        "{told:?}"
    );
    // A batch without changes undoes nothing.
    let (session, changes) = (table.heartbeat(began).0, Vec::new());
    table.undo(changes, Duration::ZERO);
    assert_eq!((table.queues.waiters(&key(), began), table.heartbeat(began).0), (2, session));
}
