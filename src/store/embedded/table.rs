//! The rules of the embedded store as a pure state machine: no file, no task, no clock of its own.
//!
//! Every step is given `now`, the time since boot. It notes the records that it touched and what they were before. So a
//! batch of steps can be written to the file at once, or be undone if that fails.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use crate::clock::whole_ms;
use crate::lock::{
    Broken, Ended, FencingToken, Inspected, LockKey, ReleaseEffect, Released, Renewed, RolledBack,
};
use crate::store::wait_queue::WaitQueues;
use crate::store::{
    Break, Check, Hint, Inspect, KnownTo, PassOn, Release, Renew, RollBack, StoreError, TicketAfter,
    Tombstone,
};

use super::EmbeddedSettings;
use super::life::Moment;
use super::record::{HeldLock, Record, RecordId, Verdict};

mod acquiring;
mod holders;
mod listing;
mod marks;
mod once;
mod pool;
mod records;

pub(super) use listing::Piece;
use records::Records;

/// So many ended records are removed with the smallest commit, or with a step without one.
pub(super) const LEAST_PURGED: usize = 64;
/// The most that are removed at a time.
pub(super) const MOST_PURGED: usize = 1_024;
/// How often they are removed where nothing else is done,
pub(super) const TIDY_EVERY: Duration = Duration::from_secs(1);
/// and where that was not enough.
pub(super) const TIDY_ON_AFTER: Duration = Duration::from_millis(20);

/// Every lock, piece of work and tombstone, and the last fencing token.
#[derive(Debug)]
pub(super) struct Table {
    records: Records,
    /// The end of every record, soonest first. Kept exact and not as a heap with stale entries: renewing a long lease
    /// again and again would fill such a heap long before the entries come up.
    ends: BTreeSet<(Duration, RecordId)>,
    /// What was touched since [`Table::take_changes`], in order and with repetitions.
    changes: Vec<Change>,
    /// How much room pieces of work take, with their results.
    once_bytes: u64,
    /// The number of the last grant, or one less than the first.
    last_fence: u64,
    /// The waiters. They are in no file: their connections end with the process.
    queues: WaitQueues,
    settings: EmbeddedSettings,
}

/// A record that was touched.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) id: RecordId,
    /// What it was; `None` where there was none.
    pub(super) before: Option<Box<Record>>,
}

impl Table {
    /// An empty table.
    pub(super) fn new(settings: EmbeddedSettings) -> Self {
        Self {
            records: Records::new(),
            ends: BTreeSet::new(),
            changes: Vec::new(),
            once_bytes: 0,
            last_fence: 0,
            queues: WaitQueues::new(settings.line),
            settings,
        }
    }

    /// Begins a run of fencing tokens above `last_fence`, and not below the present microsecond by the `wall` clock.
    ///
    /// The clock lifts a file that was copied back from a backup over the numbers granted since; the last number keeps
    /// a clock that was set back from lowering any. A last number past the largest was given to no grant: a clock was wrong
    /// when a run began there. Then the records say which was the last.
    pub(super) fn start_run(&mut self, last_fence: u64, wall: Duration) {
        let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        let recorded = self.records.all().filter_map(|(_, record)| record.fence());
        let is_given = last_fence <= FencingToken::MAX;
        let last_fence = if is_given { last_fence } else { recorded.max().map_or(0, FencingToken::get) };
        self.last_fence = last_fence.max(wall_us.saturating_sub(1));
    }

    /// If `token` holds the lock, sets the lease to the longer of what is left and `ttl`, but not past its `max_hold`.
    /// If a connection renews, the token must hold the lock by that connection.
    pub(super) fn renew(&mut self, request: &Renew, now: Duration) -> Renewed {
        let Renew { key, token, ttl, by } = request;
        let lock = match self.own(key, token, now) {
            Some(lock) => lock,
            None if self.is_kept_for(key, token, now) => return Renewed::Released,
            None if self.room(key, now).is_free() => return Renewed::NotHeld,
            None => return Renewed::HeldByAnother,
        };
        let attempt = by.attempt();
        if attempt.is_some() && attempt != lock.attempt {
            return Renewed::TakenOver;
        }
        let renewed = HeldLock { attempt, ..lock.extended(*ttl, now) };
        let lease = renewed.lease(now);
        // Less than a millisecond is no gain: clients are told whole ones.
        let is_longest = lock.max_hold.is_some_and(|max| now + ttl.as_duration() > max.end)
            && renewed.life.end.saturating_sub(lock.life.end) < Duration::from_millis(1);
        self.put_lock(key, renewed);
        if is_longest { Renewed::MaxHoldReached(lease) } else { Renewed::Renewed(lease) }
    }

    /// Frees a lock, if `token` holds it, or gives up the token's ticket. With [`Tombstone::Final`] it also retires the
    /// token.
    pub(super) fn release(&mut self, request: &Release, now: Duration) -> ReleaseEffect {
        let Release { key, token, tombstone } = request;
        if *tombstone == Tombstone::Final
            && let Some(Verdict::Final(answer)) = self.verdict(key, token, now).cloned()
        {
            // One who is answered now is promised the whole life of a mark from now on.
            self.put_mark(key, token, Verdict::Final(answer), now);
            return ReleaseEffect { answer, ended: None };
        }
        let lock = self.own(key, token, now).cloned();
        // It is told so again, also where it left no mark.
        let was_released = lock.is_none() && self.is_kept_for(key, token, now);
        let was_free = lock.is_none() && self.room(key, now).is_free();
        let kept = lock.as_ref().and_then(|lock| lock.kept(now));
        let kept_for = kept.as_ref().map(|kept| kept.life.end.saturating_sub(now));
        let ended = lock.as_ref().map(|lock| Ended {
            fencing_token: lock.fence,
            kept_ms: kept_for.map_or(0, |left| whole_ms(left).max(1)),
        });
        if let Some(lock) = &lock {
            self.replace(key, lock, kept);
        }
        let room = match &lock {
            Some(HeldLock { slot: None, .. }) => kept_for.into(),
            _ => self.room(key, now),
        };
        let had_place = self.queues.released(key, token, lock.is_some(), room, now);
        if let Some(left) = kept_for {
            self.queues.kept(key, left);
        }
        let answer = match was_free {
            _ if lock.is_some() || had_place || was_released => Released::Released,
            true => Released::NotHeld,
            false => Released::HeldByAnother,
        };
        if *tombstone == Tombstone::Final {
            self.put_mark(key, token, Verdict::Final(answer), now);
        }
        ReleaseEffect { answer, ended }
    }

    /// Frees a lock if the grant of this number holds it, also one that is only kept for the rest of its `min_hold`.
    pub(super) fn break_lock(&mut self, Break { key, fence }: &Break, now: Duration) -> Broken {
        let lock = match self.numbered(key, *fence, now) {
            Some(lock) => lock.clone(),
            None if self.room(key, now).is_free() => return Broken::NotHeld,
            None => return Broken::HeldByAnother,
        };
        self.replace(key, &lock, None);
        self.queues.freed(key, self.room(key, now), now);
        Broken::Broken(lock.lease(now))
    }

    /// Ends the grant if the lock is held by this very `attempt` of `token`. Takes the attempt out of the wait queue,
    /// and voids it in any case.
    pub(super) fn roll_back(&mut self, request: &RollBack, now: Duration) -> RolledBack {
        let RollBack { key, token, attempt, ticket, known } = request;
        let lock = self.own(key, token, now).filter(|lock| lock.attempt == Some(*attempt)).cloned();
        let is_granted = lock.is_some();
        let (left, is_over) = match (known, &lock) {
            (KnownTo::Nobody, _) => (None, is_granted),
            // What was told of is released, and not undone; and where it was told of before, it stays.
            (KnownTo::Connection { told_for, .. }, Some(lock)) if told_for.is_zero() => {
                (lock.kept(now), true)
            }
            (KnownTo::Connection { told_for, .. }, Some(lock)) => {
                (Some(lock.left_to_token(*told_for, now)), false)
            }
            (KnownTo::Connection { .. }, None) => (None, false),
        };
        let lasts = left.as_ref().map(|lock| lock.life.end.saturating_sub(now));
        if let Some(lock) = &lock {
            self.replace(key, lock, left);
        }
        self.void(key, token, *attempt, now);
        let room = self.room(key, now);
        if let Some(lock) = lock.filter(|_| is_over) {
            self.queues.keep(key, token, *ticket, lock.slots(), now);
        }
        self.queues.vacate(key, token, *attempt, *ticket, room, now);
        if is_granted {
            self.queues.freed(key, room, now);
        }
        if let Some(left) = lasts {
            self.queues.kept(key, left);
        }
        let lasts_ms = lasts.map_or(0, whole_ms);
        match is_over {
            true => RolledBack::Ended { kept_ms: lasts_ms },
            false if is_granted => RolledBack::LeftToToken { left_ms: lasts_ms },
            false => RolledBack::Nothing,
        }
    }

    /// Passes on an offer that none of our waiters claims. Returns for how long the token's ticket is kept.
    pub(super) fn pass_on(
        &mut self,
        PassOn { key, token, attempt }: &PassOn,
        now: Duration,
    ) -> Option<Duration> {
        let room = self.room(key, now);
        self.queues.vacate(key, token, *attempt, TicketAfter::Kept, room, now)
    }

    /// Says which locks with waiters are due, and in how many milliseconds. Also returns the session, which changes
    /// when waiters may have lost their tickets.
    pub(super) fn heartbeat(&self, now: Duration) -> (u64, Vec<(LockKey, u64)>) {
        self.queues.beat(now, true, |key| self.room(key, now))
    }

    /// Says who holds a lock. `None` where that is `token` and its grant is not pinned: this has to come first.
    pub(super) fn see(&self, Inspect { key, token }: &Inspect, now: Duration) -> Option<Inspected> {
        let waiters = self.queues.waiters(key, now);
        let own = token.and_then(|token| self.own(key, &token, now));
        let Some(lock) = own.or_else(|| self.first(key, now)) else {
            return Some(Inspected::Free { waiters });
        };
        let yours = token.map(|_| own.is_some());
        let is_told = yours != Some(true) || !lock.is_to_be_pinned();
        let sharing = || self.sharing_named(key, now);
        is_told.then(|| Inspected::Held { lease: lock.lease(now), yours, sharing: sharing(), waiters })
    }

    /// Says who holds a lock, and pins the grant if it is `token`.
    pub(super) fn inspect(&mut self, Inspect { key, token }: &Inspect, now: Duration) -> Inspected {
        let own = token.and_then(|token| self.own(key, &token, now));
        if let Some(lock) = own.filter(|lock| lock.is_to_be_pinned()) {
            let pinned = HeldLock { attempt: None, ..lock.clone() };
            self.put_lock(key, pinned);
        }
        // Nothing is to be pinned any more, so that it is told.
        let free = Inspected::Free { waiters: self.queues.waiters(key, now) };
        self.see(&Inspect { key: key.clone(), token: *token }, now).unwrap_or(free)
    }

    /// Removes tickets that were left for too long, and queues without tickets.
    pub(super) fn purge_lines(&mut self, now: Duration) {
        self.queues.purge(now);
    }

    /// Removes records that have ended, at most `limit` of them. Returns whether those were all.
    pub(super) fn purge(&mut self, now: Duration, limit: usize) -> bool {
        for _ in 0..limit {
            match self.ends.first() {
                Some((end, id)) if *end <= now => self.put(id.clone(), None),
                _ => return true,
            }
        }
        false
    }

    /// How many changes were noted since [`Table::take_changes`], repetitions included.
    pub(super) fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// What was added, changed or removed since the last call, in order and with repetitions.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        mem::take(&mut self.changes)
    }

    /// Notes the ends of what changed by the wall clock of now.
    pub(super) fn tell(&mut self, changes: &[Change], now: Moment) {
        for change in changes {
            self.records.tell(&change.id, now.wall_at_boot());
        }
    }

    /// Counts every record as changed, though none is another than before: their rows have to be written anew.
    pub(super) fn touch_all(&mut self) {
        let records = self.records.all();
        self.changes =
            records.map(|(id, record)| Change { id: id.clone(), before: Some(record.clone()) }).collect();
    }

    /// Makes every record what it was before these changes, of a batch that began at `since`. No number is given back.
    pub(super) fn undo(&mut self, changes: Vec<Change>, since: Duration) {
        // A full disk is tried again and again, without a change.
        if !changes.is_empty() {
            self.queues.undo(since);
        }
        for Change { id, before } in changes.into_iter().rev() {
            self.set(&id, before);
        }
    }

    /// Takes what was read anew from the file. Who waits still does.
    pub(super) fn replace_records(&mut self, read: Self) {
        let queues = mem::replace(&mut self.queues, WaitQueues::new(self.settings.line));
        *self = Self { queues, ..read };
    }

    /// What was noted for the waiters since the last call.
    pub(super) fn take_hints(&mut self) -> Vec<Hint> {
        self.queues.take_hints()
    }

    /// What a record is now; `None` where there is none.
    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.records.get(id)
    }

    /// The number of the last grant.
    pub(super) fn last_fence(&self) -> u64 {
        self.last_fence
    }

    /// Sets or removes a record, and notes the change if it is one.
    pub(super) fn put(&mut self, id: RecordId, record: Option<Record>) {
        self.put_by(id, |_| record);
    }

    /// The same, where it depends on what is there.
    fn put_by(&mut self, id: RecordId, record: impl FnOnce(Option<&Record>) -> Option<Record>) {
        let before = self.records.get(&id);
        let record = record(before);
        if before == record.as_ref() {
            return;
        }
        let before = self.set(&id, record.map(Box::new));
        self.changes.push(Change { id, before });
    }

    /// Sets or removes a record, and returns what it was.
    fn set(&mut self, id: &RecordId, record: Option<Box<Record>>) -> Option<Box<Record>> {
        let life = record.as_ref().map(|record| record.life());
        self.once_bytes += record.as_ref().map_or(0, |record| record.once_bytes(id));
        let before = match record {
            Some(record) => self.records.insert(id.clone(), record),
            None => self.records.remove(id),
        };
        if let Some(before) = &before {
            self.ends.remove(&(before.life().end, id.clone()));
            self.once_bytes -= before.once_bytes(id);
        }
        if let Some(life) = life {
            self.ends.insert((life.end, id.clone()));
        }
        before
    }

    fn put_lock(&mut self, key: &LockKey, lock: HeldLock) {
        self.put(lock.id(key), Some(Record::Lock(lock)));
    }

    /// Ends a grant; what is left of it may have another name.
    fn replace(&mut self, key: &LockKey, lock: &HeldLock, left: Option<HeldLock>) {
        let after = left.as_ref().map(|left| left.id(key));
        if after != Some(lock.id(key)) {
            self.put(lock.id(key), None);
        }
        if let Some(left) = left {
            self.put_lock(key, left);
        }
    }

    /// Whether there is a number for the next grant.
    pub(super) fn check(&mut self, _: &Check, _: Duration) -> Result<(), StoreError> {
        self.next_fence().map(drop)
    }

    fn next_fence(&self) -> Result<FencingToken, StoreError> {
        self.last_fence.checked_add(1).and_then(FencingToken::new).ok_or_else(|| {
            let used_up = "the fencing tokens are used up. If the clock was wrong at the start, set it right, and restart the gateway";
            StoreError::Unavailable(used_up.to_owned())
        })
    }

    /// The next fencing token. If there is none left, nothing is changed.
    fn mint(&mut self) -> Result<FencingToken, StoreError> {
        let fence = self.next_fence()?;
        self.last_fence = fence.get();
        Ok(fence)
    }
}

#[cfg(test)]
mod tests;
