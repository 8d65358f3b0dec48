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
    locks: Keys,
    works: Keys,
}

/// What can be listed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Listable {
    /// The locks.
    Locks,
    /// The pieces of work.
    Works,
}

/// The keys of all records of one kind, so that a list of them can go on where it was left.
#[derive(Debug)]
struct Keys {
    /// In order, but for `unordered`.
    ordered: BTreeSet<LockKey>,
    /// The rest. Keeping the order costs more than everything else that is done for a lock, and most locks are gone before a
    /// list is asked for.
    unordered: HashSet<LockKey>,
}

impl Records {
    pub(super) fn new() -> Self {
        let parts = (0..PARTS).map(|_| HashMap::new()).collect();
        Self { parts, hasher: RandomState::new(), locks: Keys::new(), works: Keys::new() }
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.parts[self.part(id)].get(id).map(|record| &**record)
    }

    /// All of them, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&RecordId, &Box<Record>)> {
        self.parts.iter().flatten()
    }

    /// Returns what was there before.
    pub(super) fn insert(&mut self, id: RecordId, record: Box<Record>) -> Option<Box<Record>> {
        let part = self.part(&id);
        let fresh = listed(&id).map(|(kind, key)| (kind, key.clone()));
        let before = self.parts[part].insert(id, record);
        if before.is_none()
            && let Some((kind, key)) = fresh
        {
            self.keys(kind).insert(key);
        }
        before
    }

    /// Returns what was there.
    pub(super) fn remove(&mut self, id: &RecordId) -> Option<Box<Record>> {
        let part = self.part(id);
        let record = self.parts[part].remove(id)?;
        if let Some((kind, key)) = listed(id) {
            self.keys(kind).remove(key);
        }
        Some(record)
    }

    /// Those of one kind from a key on, in the order of their keys.
    pub(super) fn from(
        &mut self,
        kind: Listable,
        first: Bound<LockKey>,
    ) -> impl Iterator<Item = (&LockKey, &Record)> {
        self.keys(kind).put_in_order();
        let this = &*self;
        let (keys, id): (_, fn(LockKey) -> RecordId) = match kind {
            Listable::Locks => (&this.locks, RecordId::Lock),
            Listable::Works => (&this.works, RecordId::Work),
        };
        keys.ordered
            .range((first, Bound::Unbounded))
            .filter_map(move |key| Some((key, this.get(&id(key.clone()))?)))
    }

    fn keys(&mut self, kind: Listable) -> &mut Keys {
        match kind {
            Listable::Locks => &mut self.locks,
            Listable::Works => &mut self.works,
        }
    }

    fn part(&self, id: &RecordId) -> usize {
        // Bits that the maps, which hash for themselves, have no part in.
        self.hasher.hash_one(id) as usize % PARTS
    }
}

impl Keys {
    fn new() -> Self {
        Self { ordered: BTreeSet::new(), unordered: HashSet::with_capacity(MOST_UNORDERED) }
    }

    fn insert(&mut self, key: LockKey) {
        self.unordered.insert(key);
        if self.unordered.len() >= MOST_UNORDERED {
            self.put_in_order();
        }
    }

    fn remove(&mut self, key: &LockKey) {
        if !self.unordered.remove(key) {
            self.ordered.remove(key);
        }
    }

    fn put_in_order(&mut self) {
        self.ordered.extend(self.unordered.drain());
    }
}

/// In which list a record is, and by which key.
fn listed(id: &RecordId) -> Option<(Listable, &LockKey)> {
    match id {
        RecordId::Lock(key) => Some((Listable::Locks, key)),
        RecordId::Work(key) => Some((Listable::Works, key)),
        RecordId::Mark(..) => None,
    }
}
