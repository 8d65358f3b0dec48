//! Those who share one lock, in the orders in which steps need them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::life::Life;
use super::super::record::{HeldLock, RecordId};
use crate::lock::{Slot, Slots};
use crate::store::wait_queue::SlotRoom;

/// Those who share one lock, also those whose lease is over until their records are removed.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// By the ends of their leases.
    ends: BTreeMap<(Duration, RecordId), Slots>,
    /// By their slots.
    taken: BTreeMap<u16, RecordId>,
    /// How many have said each number of slots.
    said: BTreeMap<Slots, usize>,
}

impl Pool {
    pub(super) fn insert(&mut self, id: RecordId, lock: &HeldLock, slot: Slot) {
        self.ends.insert((lock.life.end, id.clone()), slot.slots);
        self.taken.insert(slot.number, id);
        *self.said.entry(slot.slots).or_default() += 1;
    }

    pub(super) fn remove(&mut self, id: RecordId, lock: &HeldLock, slot: Slot) {
        // A slot that was released and is kept stands here under its other name already.
        if self.taken.get(&slot.number) == Some(&id) {
            self.taken.remove(&slot.number);
        }
        self.ends.remove(&(lock.life.end, id));
        if let Some(count) = self.said.get_mut(&slot.slots) {
            *count -= 1;
            if *count == 0 {
                self.said.remove(&slot.slots);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Those whose lease is not over, first the one that ends first.
    pub(super) fn holders(&self, now: Duration) -> impl Iterator<Item = &RecordId> {
        self.ends.keys().skip_while(move |(end, _)| is_over(*end, now)).map(|(_, id)| id)
    }

    /// Those whose lease is over.
    pub(super) fn over(&self, now: Duration) -> impl Iterator<Item = &RecordId> {
        self.ends.keys().take_while(move |(end, _)| is_over(*end, now)).map(|(_, id)| id)
    }

    /// The room beside those whose lease is not over.
    pub(super) fn room(&self, now: Duration) -> SlotRoom {
        let over = self.over(now).count();
        let mut left = self.ends.iter().skip(over);
        let Some(((end, _), slots)) = left.next() else { return SlotRoom::FREE };
        let least = match over {
            0 => self.said.keys().next(),
            _ => left.map(|(_, slots)| slots).chain([slots]).min(),
        };
        SlotRoom::shared(self.ends.len() - over, *least.unwrap_or(slots), *end - now)
    }

    /// The smallest number of a slot that is free.
    pub(super) fn free_slot(&self) -> u16 {
        let taken = (1..).zip(self.taken.keys()).take_while(|(slot, taken)| slot == *taken);
        u16::try_from(taken.count() + 1).unwrap_or(u16::MAX)
    }
}

/// As it is of the record itself.
fn is_over(end: Duration, now: Duration) -> bool {
    Life::starting(end, Duration::ZERO).is_over(now)
}
