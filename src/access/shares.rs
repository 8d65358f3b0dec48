//! How much a key may have at once, and what of that is in use.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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
    /// Those of all keys: a token is good with any key, so its ticket may be used with another.
    pub(super) tickets: Arc<Mutex<Tickets>>,
}

/// A ticket in the wait queue of a lock, by its token.
pub(super) type WaitingToken = (LockKey, TokenHash);

/// Tickets of clients that have left, which the wait queues keep for a while. Each counts as if its request still
/// waited.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    kept: HashMap<WaitingToken, Kept>,
    /// Soonest first; the number tells those apart that end at the same moment.
    ends: BTreeMap<End, WaitingToken>,
    last_number: u64,
}

/// The permit of a ticket that is kept.
#[derive(Debug)]
struct Kept {
    end: End,
    permit: Permit,
}

type End = (Instant, u64);

impl Tickets {
    fn keep(&mut self, ticket: WaitingToken, until: Instant, permit: Permit) {
        drop(self.take(&ticket));
        self.last_number += 1;
        let end = (until, self.last_number);
        self.ends.insert(end, ticket.clone());
        self.kept.insert(ticket, Kept { end, permit });
    }

    fn take(&mut self, ticket: &WaitingToken) -> Option<Permit> {
        let Kept { end, permit } = self.kept.remove(ticket)?;
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
    /// Lets a request wait for one of these locks after the other. It counts in the place of the left tickets that it comes back to,
    /// also where it left them with another key.
    pub(super) fn wait(
        self: &Arc<Self>,
        most: usize,
        any_of: Vec<WaitingToken>,
        ttl: Duration,
    ) -> Option<WaitPermit> {
        let mut tickets = self.tickets.lock();
        tickets.forget_ended(Instant::now());
        let is_own =
            |ticket: &&_| tickets.kept.get(*ticket).is_some_and(|kept| kept.permit.is_of(&self.waiters));
        let own = any_of.iter().filter(is_own).count();
        // A return to one ticket takes no more than there is. One to several may leave a further ticket, at another of its locks.
        let needs_room = own == 0 || any_of.len() > 1;
        if needs_room && self.waiters.load(Ordering::Relaxed).saturating_sub(own) >= most {
            return None;
        }
        let mut left = 0;
        for (at, ticket) in any_of.iter().enumerate() {
            left |= u32::from(tickets.take(ticket).is_some()) << at;
        }
        let permit = Permit::beyond(&self.waiters);
        drop(tickets);
        let place = (!any_of.is_empty()).then(|| {
            let left = Arc::new(AtomicU32::new(left));
            Place { uses: self.clone(), any_of, ttl, left }
        });
        Some(WaitPermit { permit, place })
    }

    /// The tickets that a token may have left, for a request that does not wait.
    pub(super) fn left(self: &Arc<Self>, any_of: impl FnOnce() -> Vec<WaitingToken>) -> Option<WaitPermit> {
        let mut tickets = self.tickets.lock();
        tickets.forget_ended(Instant::now());
        if tickets.kept.is_empty() {
            return None;
        }
        drop(tickets);
        let (any_of, ttl, left) = (any_of(), Duration::ZERO, Arc::default());
        Some(WaitPermit {
            permit: Permit::UNCOUNTED,
            place: Some(Place { uses: self.clone(), any_of, ttl, left }),
        })
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

    fn is_of(&self, count: &Arc<AtomicUsize>) -> bool {
        self.0.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, count))
    }

    /// Whatever is the most: what is there is there.
    fn beyond(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Some(count.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// That a request may wait. If it is dropped while wait queues keep its tickets, each counts for as long as it lasts.
#[derive(Debug)]
pub struct WaitPermit {
    permit: Permit,
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    uses: Arc<Uses>,
    /// The tickets that its request may leave, in the order in which it names the locks.
    any_of: Vec<WaitingToken>,
    ttl: Duration,
    /// Those that it would leave now: a bit for each.
    left: Arc<AtomicU32>,
}

impl WaitPermit {
    /// One that is not counted.
    pub(super) const UNCOUNTED: Self = Self { permit: Permit::UNCOUNTED, place: None };

    /// A bit for each lock that the request names: to be set while a ticket there outlives the request. `None` if none ever does.
    pub fn left_tickets(&self) -> Option<Arc<AtomicU32>> {
        self.place.as_ref().map(|place| place.left.clone())
    }

    /// The tickets were used or given up: no queue has them any more.
    pub fn used(mut self) {
        if let Some(Place { uses, any_of, .. }) = self.place.take() {
            let mut tickets = uses.tickets.lock();
            any_of.iter().for_each(|ticket| drop(tickets.take(ticket)));
        }
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let Some(Place { uses, any_of, ttl, left }) = self.place.take() else { return };
        let (left, until) = (left.load(Ordering::Relaxed), Instant::now() + ttl);
        let mut own = Some(std::mem::replace(&mut self.permit, Permit::UNCOUNTED));
        for (_, ticket) in any_of.into_iter().enumerate().filter(|(at, _)| left & (1 << at) != 0) {
            let permit = own.take().unwrap_or_else(|| Permit::beyond(&uses.waiters));
            uses.tickets.lock().keep(ticket, until, permit);
        }
    }
}
