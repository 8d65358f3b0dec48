//! Who holds a lock: one alone, or several who share it.

use std::time::Duration;

use super::super::record::{HeldLock, Record, RecordId};
use super::Table;
use super::pool::Pool;
use crate::lock::{FencingToken, Lease, LockKey, Sharing, TokenHash};
use crate::store::wait_queue::SlotRoom;

/// The most holders that one answer names.
const MOST_NAMED: usize = 100;

impl Table {
    /// The lock of `key`, if one holds it alone.
    pub(super) fn held(&self, key: &LockKey, now: Duration) -> Option<&HeldLock> {
        self.lock(&RecordId::Lock(key.clone()), now)
    }

    /// What `token` holds of the lock of `key`: all of it, or a slot.
    pub(super) fn own(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Option<&HeldLock> {
        if let Some(alone) = self.held(key, now) {
            return Some(alone).filter(|alone| alone.token == *token);
        }
        // Most locks are not shared.
        self.records.pool(key).filter(|_| *token != TokenHash::NOBODY)?;
        self.lock(&RecordId::Slot(key.clone(), *token.as_bytes()), now)
    }

    /// The grant that a client is shown: the one that ends first.
    pub(super) fn first(&self, key: &LockKey, now: Duration) -> Option<&HeldLock> {
        self.held(key, now).or_else(|| self.sharers(key, now).next())
    }

    /// The grant of this number.
    pub(super) fn numbered(&self, key: &LockKey, fence: FencingToken, now: Duration) -> Option<&HeldLock> {
        let mut all = self.held(key, now).into_iter().chain(self.sharers(key, now));
        all.find(|lock| lock.fence == fence)
    }

    /// Whether `token` has released the lock that it held alone, and it is kept. Of a slot that is kept this is not known.
    pub(super) fn is_kept_for(&self, key: &LockKey, token: &TokenHash, now: Duration) -> bool {
        self.held(key, now).is_some_and(|lock| lock.was_held_by(token))
    }

    /// How many hold the lock, and until when.
    pub(super) fn room(&self, key: &LockKey, now: Duration) -> SlotRoom {
        match self.held(key, now) {
            Some(alone) => Some(alone.life.end.saturating_sub(now)).into(),
            None => self.records.pool(key).map_or(SlotRoom::FREE, |pool| pool.room(now)),
        }
    }

    /// How many share the lock, if some do.
    pub(super) fn sharing(&self, key: &LockKey, now: Duration) -> Option<Sharing<()>> {
        let room = self.records.pool(key).filter(|_| self.held(key, now).is_none())?.room(now);
        (!room.is_free()).then(|| room.sharing())
    }

    /// The same, with who they are: those whose leases end first.
    pub(super) fn sharing_named(&self, key: &LockKey, now: Duration) -> Option<Sharing<Vec<Lease>>> {
        let Sharing { held, slots, .. } = self.sharing(key, now)?;
        let holders = self.sharers(key, now).take(MOST_NAMED).map(|lock| lock.lease(now)).collect();
        Some(Sharing { held, slots, holders })
    }

    /// The smallest slot that is free.
    pub(super) fn free_slot(&self, key: &LockKey) -> u16 {
        self.records.pool(key).map_or(1, Pool::free_slot)
    }

    /// Removes the slots of a lock that are over, so that they are free.
    pub(super) fn remove_ended(&mut self, key: &LockKey, now: Duration) {
        let over = self.records.pool(key).into_iter().flat_map(|pool| pool.over(now));
        for id in over.cloned().collect::<Vec<_>>() {
            self.put(id, None);
        }
    }

    /// Those who share the lock, first the one whose lease ends first.
    fn sharers(&self, key: &LockKey, now: Duration) -> impl Iterator<Item = &HeldLock> {
        let ids = self.records.pool(key).into_iter().flat_map(move |pool| pool.holders(now));
        ids.filter_map(move |id| self.lock(id, now))
    }

    fn lock(&self, id: &RecordId, now: Duration) -> Option<&HeldLock> {
        match self.records.get(id) {
            Some(Record::Lock(lock)) if !lock.life.is_over(now) => Some(lock),
            _ => None,
        }
    }
}
