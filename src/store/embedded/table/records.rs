//! All records by their names, where most live for a moment and a million may live for hours.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;

use super::super::record::{Record, RecordId};
use crate::lock::LockKey;

/// Parts, each a map of its own. A map that has to grow moves all that it holds, and all clients wait for that. With a
/// million records it would take 0.1 s.
const PARTS: usize = 256;
/// The most keys that are not in order yet. So many are put in order at once, in less than a millisecond.
const MOST_UNORDERED: usize = 512;

/// Every record.
#[derive(Debug)]
pub(super) struct Records {
    /// Each record in a box, which leaves little to move.
    pub(super) parts: Box<[HashMap<RecordId, Box<Record>>]>,
    hasher: RandomState,
    /// The keys of locks, in order, so that a list of locks can go on where it was left; but for `unordered`.
    ordered: BTreeSet<LockKey>,
    /// The rest of the keys of locks. Keeping the order costs more than everything else that is done for a lock, and
    /// most locks are gone before a list is asked for.
    unordered: HashSet<LockKey>,
}

impl Records {
    pub(super) fn new() -> Self {
        let (ordered, unordered) = (BTreeSet::new(), HashSet::with_capacity(MOST_UNORDERED));
        let parts = (0..PARTS).map(|_| HashMap::new()).collect();
        Self { parts, hasher: RandomState::new(), ordered, unordered }
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.parts[self.part(id)].get(id).map(|record| &**record)
    }

    /// Returns what was there before.
    pub(super) fn insert(&mut self, id: RecordId, record: Box<Record>) -> Option<Box<Record>> {
        let part = self.part(&id);
        let fresh = if let RecordId::Lock(key) = &id { Some(key.clone()) } else { None };
        let before = self.parts[part].insert(id, record);
        if before.is_none()
            && let Some(key) = fresh
        {
            self.unordered.insert(key);
            if self.unordered.len() >= MOST_UNORDERED {
                self.put_in_order();
            }
        }
        before
    }

    /// Returns what was there.
    pub(super) fn remove(&mut self, id: &RecordId) -> Option<Box<Record>> {
        let part = self.part(id);
        let record = self.parts[part].remove(id)?;
        if let RecordId::Lock(key) = id
            && !self.unordered.remove(key)
        {
            self.ordered.remove(key);
        }
        Some(record)
    }

    /// The locks from a key on, in the order of their keys.
    pub(super) fn locks_from(&mut self, first: Bound<LockKey>) -> impl Iterator<Item = (&LockKey, &Record)> {
        self.put_in_order();
        let this = &*self;
        this.ordered
            .range((first, Bound::Unbounded))
            .filter_map(|key| Some((key, this.get(&RecordId::Lock(key.clone()))?)))
    }

    fn put_in_order(&mut self) {
        self.ordered.extend(self.unordered.drain());
    }

    fn part(&self, id: &RecordId) -> usize {
        // Bits that the maps, which hash for themselves, have no part in.
        self.hasher.hash_one(id) as usize % PARTS
    }
}
