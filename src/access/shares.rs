//! How much a key may have at once, and what of that is in use.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Entry;
use crate::lock::{LockKey, TokenHash};

/// The default shares of a key, and how long left tickets are kept.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Requests that wait.
    pub waiters: usize,
    /// Connections that hold a lock.
    pub holds: usize,
    /// Streams of events.
    pub watchers: usize,
    /// Locks.
    pub locks: usize,
    /// Connections by HTTP/1 that one of these keeps.
    pub connections: usize,
    /// How long a wait queue keeps the ticket of a client that has left.
    pub ticket_ttl: Duration,
}

impl Shares {
    /// The connections that requests of a key may keep. If its entry allows more by name, it is the sum
    /// of those.
    pub(super) fn connections_of(&self, entry: &Entry) -> usize {
        let named = [entry.max_waiters, entry.max_holds, entry.max_watchers].into_iter().flatten();
        named.fold(0, usize::saturating_add).max(self.connections)
    }
}

/// What is in use of the shares of one key.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) waiters: Arc<AtomicUsize>,
    pub(super) holds: Arc<AtomicUsize>,
    pub(super) watchers: Arc<AtomicUsize>,
    pub(super) locks: Arc<AtomicUsize>,
    pub(super) connections: Arc<AtomicUsize>,
    tickets: Mutex<Tickets>,
}

/// A ticket in the wait queue of a lock, by its token.
pub(super) type WaitingToken = (LockKey, TokenHash);

/// Tickets of clients that have left, which the wait queues keep for a while. Each counts as if its request still
/// waited.
#[derive(Debug, Default)]
struct Tickets {
    kept: HashMap<WaitingToken, Kept>,
    /// Soonest first; the number tells those apart that end at the same moment.
    ends: BTreeMap<End, WaitingToken>,
    last_number: u64,
}

/// A permit whose ticket is kept.
#[derive(Debug)]
struct Kept {
    end: End,
    permit: Permit,
    /// Whether the ticket is certainly for the lock that it is kept by. A request for several waits for one of them.
    is_there: bool,
}

type End = (Instant, u64);

impl Tickets {
    fn keep(&mut self, ticket: WaitingToken, until: Instant, permit: Permit, is_there: bool) {
        drop(self.take(&ticket));
        self.last_number += 1;
        let end = (until, self.last_number);
        self.ends.insert(end, ticket.clone());
        self.kept.insert(ticket, Kept { end, permit, is_there });
    }

    fn take(&mut self, ticket: &WaitingToken) -> Option<Permit> {
        let Kept { end, permit, .. } = self.kept.remove(ticket)?;
        self.ends.remove(&end);
        Some(permit)
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some(end) = self.ends.first_entry().filter(|end| end.key().0 <= now) {
            self.kept.remove(&end.remove());
        }
    }
}

impl Uses {
    /// Lets a request wait, with the permit of its left ticket, if it has one.
    pub(super) fn wait(
        self: &Arc<Self>,
        most: usize,
        any_of: Vec<WaitingToken>,
        ttl: Duration,
    ) -> Option<WaitPermit> {
        let mut tickets = self.tickets.lock();
        tickets.forget_ended(Instant::now());
        let kept = any_of.iter().find_map(|ticket| tickets.take(ticket));
        drop(tickets);
        let permit = kept.or_else(|| Permit::take(&self.waiters, most))?;
        let is_there = any_of.len() == 1;
        let place = any_of.into_iter().next().map(|ticket| {
            let (uses, is_kept) = (self.clone(), Arc::default());
            Place { uses, ticket, ttl, is_kept, is_there }
        });
        Some(WaitPermit { permit, place })
    }

    /// The token has given up its ticket.
    pub(super) fn leave(&self, ticket: impl FnOnce() -> WaitingToken) {
        let mut tickets = self.tickets.lock();
        if tickets.kept.is_empty() {
            return;
        }
        let ticket = ticket();
        if tickets.kept.get(&ticket).is_some_and(|kept| kept.is_there) {
            drop(tickets.take(&ticket));
        }
    }
}

/// Lives as long as what it allows.
#[derive(Debug)]
pub struct Permit(Option<Arc<AtomicUsize>>);

impl Permit {
    /// One that is not counted.
    pub(super) const UNCOUNTED: Self = Self(None);

    /// `None` if there are as many as allowed.
    pub(super) fn take(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |count| (count < most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Some(count.clone())))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// That a request may wait. If it is dropped while the wait queue keeps its ticket, it counts for as long as the ticket
/// lasts.
#[derive(Debug)]
pub struct WaitPermit {
    permit: Permit,
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    uses: Arc<Uses>,
    ticket: WaitingToken,
    ttl: Duration,
    is_kept: Arc<AtomicBool>,
    /// Whether the request waits for this lock, if it waits.
    is_there: bool,
}

impl WaitPermit {
    /// One that is not counted.
    pub(super) const UNCOUNTED: Self = Self { permit: Permit::UNCOUNTED, place: None };

    /// To be set while the ticket outlives its request; `None` if it never does.
    pub fn is_place_kept(&self) -> Option<Arc<AtomicBool>> {
        self.place.as_ref().map(|place| place.is_kept.clone())
    }

    /// Of the locks that its request asked for, it waits for this one.
    pub fn waits_for(&mut self, key: &LockKey) {
        if let Some(place) = &mut self.place {
            place.ticket.0 = key.clone();
            place.is_there = true;
        }
    }

    /// The ticket was used: its client holds the lock.
    pub fn used(mut self) {
        self.place = None;
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let Some(Place { uses, ticket, ttl, is_kept, is_there }) = self.place.take() else { return };
        if is_kept.load(Ordering::Relaxed) {
            let permit = std::mem::replace(&mut self.permit, Permit::UNCOUNTED);
            uses.tickets.lock().keep(ticket, Instant::now() + ttl, permit, is_there);
        }
    }
}
