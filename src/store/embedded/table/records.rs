//! All records by their names, where most live for a moment and a million may live for hours.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::time::Duration;

use super::super::record::{HeldLock, Record, RecordId};
use super::pool::Pool;
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
    /// The locks that are shared.
    pools: HashMap<LockKey, Pool>,
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
        let (pools, locks, works) = (HashMap::new(), Keys::new(), Keys::new());
        Self { parts, hasher: RandomState::new(), pools, locks, works }
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.parts[self.part(id)].get(id).map(|record| &**record)
    }

    /// Notes the ends of a record by a wall clock that would have said so much at boot.
    pub(super) fn tell(&mut self, id: &RecordId, wall_at_boot: Duration) {
        let part = self.part(id);
        if let Some(record) = self.parts[part].get_mut(id) {
            record.tell(wall_at_boot);
        }
    }

    /// All of them, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&RecordId, &Box<Record>)> {
        self.parts.iter().flatten()
    }

    /// Returns what was there before.
    pub(super) fn insert(&mut self, id: RecordId, record: Box<Record>) -> Option<Box<Record>> {
        let part = self.part(&id);
        // A key by which something else is held is listed already.
        let is_listed = match &id {
            RecordId::Slot(key, _) => self.is_held(key, Listable::Locks),
            RecordId::Lock(key) => self.pools.contains_key(key),
            _ => false,
        };
        let fresh = listed(&id).filter(|_| !is_listed).map(|(kind, key)| (kind, key.clone()));
        if let RecordId::Slot(..) = id {
            self.leave_pool(&id);
        }
        if let (RecordId::Slot(key, _), Record::Lock(lock @ HeldLock { slot: Some(slot), .. })) =
            (&id, &*record)
        {
            self.pools.entry(key.clone()).or_default().insert(id.clone(), lock, *slot);
        }
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
        if let RecordId::Slot(..) = id {
            self.leave_pool(id);
        }
        let record = self.parts[part].remove(id)?;
        if let Some((kind, key)) = listed(id)
            && !self.is_held(key, kind)
        {
            self.keys(kind).remove(key);
        }
        Some(record)
    }

    /// Those who share a lock, if there are any.
    pub(super) fn pool(&self, key: &LockKey) -> Option<&Pool> {
        self.pools.get(key)
    }

    /// Takes a slot, as it is still recorded, out of the pool of its lock.
    fn leave_pool(&mut self, id: &RecordId) {
        let part = self.part(id);
        let Some(Record::Lock(lock)) = self.parts[part].get(id).map(|record| &**record) else { return };
        let (RecordId::Slot(key, _), Some(slot)) = (id, lock.slot) else { return };
        let Some(pool) = self.pools.get_mut(key) else { return };
        pool.remove(id.clone(), lock, slot);
        if pool.is_empty() {
            self.pools.remove(key);
        }
    }

    /// Whether something of this key is still to be listed.
    fn is_held(&self, key: &LockKey, kind: Listable) -> bool {
        matches!(kind, Listable::Locks)
            && (self.pools.contains_key(key) || self.get(&RecordId::Lock(key.clone())).is_some())
    }

    /// Those of one kind from a key on, in the order of their keys: of a lock that is shared, the share that ends first.
    pub(super) fn from(
        &mut self,
        kind: Listable,
        first: Bound<LockKey>,
        now: Duration,
    ) -> impl Iterator<Item = (&LockKey, &Record)> {
        self.keys(kind).put_in_order();
        let this = &*self;
        let (keys, id): (_, fn(LockKey) -> RecordId) = match kind {
            Listable::Locks => (&this.locks, RecordId::Lock),
            Listable::Works => (&this.works, RecordId::Work),
        };
        keys.ordered.range((first, Bound::Unbounded)).filter_map(move |key| {
            let slot = || this.pool(key)?.holders(now).next().and_then(|id| this.get(id));
            Some((key, this.get(&id(key.clone())).or_else(slot)?))
        })
    }

    fn keys(&mut self, kind: Listable) -> &mut Keys {
        match kind {
            Listable::Locks => &mut self.locks,
            Listable::Works => &mut self.works,
        }
    }

    /// How many keys of locks are kept for lists.
    #[cfg(test)]
    pub(super) fn listed_keys(&self) -> usize {
        self.locks.ordered.len() + self.locks.unordered.len()
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
        RecordId::Lock(key) | RecordId::Slot(key, _) => Some((Listable::Locks, key)),
        RecordId::Work(key) => Some((Listable::Works, key)),
        RecordId::Mark(..) => None,
    }
}
