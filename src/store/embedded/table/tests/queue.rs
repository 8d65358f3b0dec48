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
