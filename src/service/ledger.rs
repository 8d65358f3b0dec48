//! Which locks this gateway has granted, to the account of which tenant: so none fills the store.
//!
//! A lock counts from its grant until its lease and its `min_hold` are over, or this gateway learns that it ended. What
//! ends it at another gateway is not told here. So if a tenant comes near its limit, its locks are looked at one by one,
//! at a bounded rate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::LockService;
use crate::clock::boottime;
use crate::lock::{Attempt, Ended, FencingToken, Inspected, Lease, LockKey, Renewed, Slots, TokenHash, Ttl};
use crate::store::{Inspect, MeteredStore, Renew, Renewer, StoreError};

/// The pause between two looks at locks that may have ended elsewhere.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// So many looks in a row may fail before a review ends.
const MOST_FAILED: u32 = 10;
/// The pause before an account is looked through again.
const REVIEW_PAUSE: Duration = Duration::from_secs(5);

/// To whose account locks are put.
#[derive(Clone, Debug)]
pub struct Account {
    /// How many locks there are.
    pub count: Arc<AtomicUsize>,
    /// How many there may be.
    pub most: usize,
}

/// Whether an account may have another lock.
pub(super) enum Room {
    /// It may. To be handed over with the grant; nothing where the account has this very lock already.
    Free(Option<Counted>),
    /// It may not, and only a lock that its token holds already can be confirmed.
    Full,
}

/// One lock of an account.
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Whatever is the most: what is held is held.
    fn new(account: &Account) -> Self {
        account.count.fetch_add(1, Ordering::Relaxed);
        Self(account.count.clone())
    }

    fn within(account: &Account) -> Option<Self> {
        let one_more = |count| (count < account.most).then_some(count + 1);
        account.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(account.count.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a request asked for that is told of a lease.
#[derive(Clone, Copy)]
pub(super) struct AskedLease {
    /// When it was sent; it matters only where its token may hold the lock already.
    pub(super) at: Duration,
    /// How long the lock is taken at least, if this is its grant.
    pub(super) min_hold: Option<Duration>,
}

/// The locks that count.
#[derive(Default)]
pub(super) struct Ledger {
    books: Mutex<Books>,
    /// How many there are, for those who need not look.
    size: AtomicUsize,
}

/// All times are those since boot.
#[derive(Default)]
struct Books {
    held: BTreeMap<Place, Held>,
    ends: BTreeSet<(Duration, Place)>,
    /// Accounts that are being looked through, or were a moment ago.
    reviewed: Vec<Arc<AtomicUsize>>,
}

/// What has one holder at a time: a lock, with 0, or a slot of it.
type Place = (LockKey, u16);

struct Held {
    number: FencingToken,
    /// `None` once the grant has ended, and the lock is kept for the rest of its `min_hold`.
    token: Option<TokenHash>,
    counted_at: Duration,
    /// Until then it counts.
    ends_at: Duration,
    /// How long it lasts at least, as the store has answered.
    known_until: Duration,
    /// When the last request was sent that may make the lease longer.
    asked_at: Duration,
    /// The end of its `min_hold`, as far as this gateway knows it.
    kept_until: Duration,
    counted: Counted,
}

impl Held {
    fn is_by(&self, token: &TokenHash) -> bool {
        self.token.as_ref() == Some(token)
    }
}

impl Books {
    fn put(&mut self, place: &Place, mut held: Held) {
        self.remove(place);
        // Another gateway may release it before its lease is over, and tells this one nothing.
        if held.token.is_some() {
            held.ends_at = held.ends_at.max(held.kept_until);
        }
        self.ends.insert((held.ends_at, place.clone()));
        self.held.insert(place.clone(), held);
    }

    fn remove(&mut self, place: &Place) -> Option<Held> {
        let held = self.held.remove(place)?;
        self.ends.remove(&(held.ends_at, place.clone()));
        Some(held)
    }

    /// The lease lasts until then, a request was told that was sent at `asked_at`. A later one may have made it longer.
    fn lasts_until(&mut self, place: &Place, known_until: Duration, asked_at: Duration) {
        if let Some(held) = self.remove(place) {
            let may_last_until = if asked_at < held.asked_at { held.ends_at } else { Duration::ZERO };
            let ends_at = known_until.max(may_last_until);
            self.put(place, Held { ends_at, known_until, ..held });
        }
    }

    /// The grant has ended. Only time or its number ends what is left: its token may be shown again, and proves nothing any more.
    fn keep_until(&mut self, place: &Place, ends_at: Duration) {
        if let Some(held) = self.remove(place).filter(|_| ends_at > boottime()) {
            self.put(place, Held { ends_at, known_until: ends_at, token: None, ..held });
        }
    }

    /// What is held of a lock: all of it, or some of its slots.
    fn of(&self, key: &LockKey) -> impl Iterator<Item = (&Place, &Held)> {
        self.held.range((key.clone(), 0)..=(key.clone(), u16::MAX))
    }

    /// Those of a lock for which that is so.
    fn find(&self, key: &LockKey, is_so: impl Fn(&Place, &Held) -> bool) -> Vec<Place> {
        self.of(key).filter(|(place, held)| is_so(place, held)).map(|(place, _)| place.clone()).collect()
    }

    fn forget_ended(&mut self, now: Duration) {
        while self.ends.first().is_some_and(|(ends_at, _)| *ends_at <= now) {
            if let Some((_, place)) = self.ends.pop_first() {
                self.held.remove(&place);
            }
        }
    }
}

impl Ledger {
    /// Makes room for a lock. One that the account has already, by whatever token, takes none if it is asked for alone: the grant
    /// before is over then. Many slots may follow one grant.
    pub(super) fn room(&self, key: &LockKey, slots: Slots, account: &Account) -> Room {
        if let Some(counted) = Counted::within(account) {
            return Room::Free(Some(counted));
        }
        let mut books = self.books.lock();
        books.forget_ended(boottime());
        self.size.store(books.held.len(), Ordering::Relaxed);
        let has_it = slots == Slots::ONE
            && books.of(key).any(|(_, held)| Arc::ptr_eq(&held.counted.0, &account.count));
        drop(books);
        match Counted::within(account) {
            Some(counted) => Room::Free(Some(counted)),
            None if has_it => Room::Free(None),
            None => Room::Full,
        }
    }

    /// Whether an account comes near its limit, and was not looked through lately: then it is to be [reviewed](review).
    pub(super) fn begin_review(&self, account: &Account) -> bool {
        if account.count.load(Ordering::Relaxed) < account.most - account.most / 4 {
            return false;
        }
        let mut books = self.books.lock();
        let is_reviewed = books.reviewed.iter().any(|count| Arc::ptr_eq(count, &account.count));
        if !is_reviewed {
            books.reviewed.push(account.count.clone());
        }
        !is_reviewed
    }

    /// The token holds the lock by this lease, a request was told.
    pub(super) fn holds(
        &self,
        key: &LockKey,
        token: TokenHash,
        lease: &Lease,
        asked: AskedLease,
        account: &Account,
        room: Option<Counted>,
    ) {
        let now = boottime();
        let mut books = self.books.lock();
        books.forget_ended(now);
        let (number, ends_at) = (lease.fencing_token, now + Duration::from_millis(lease.left_ms));
        let place = (key.clone(), lease.slot.map_or(0, |slot| slot.number));
        match books.held.get(&place) {
            // It belongs to the account that took it, even if another one renews it. News overtake each other.
            Some(held) if held.number > number || held.number == number && held.token.is_none() => {}
            Some(held) if held.number == number => {
                let known_until = ends_at.max(held.known_until);
                books.lasts_until(&place, known_until, asked.at);
            }
            _ => {
                let counted = room.unwrap_or_else(|| Counted::new(account));
                let held = Held {
                    number,
                    token: Some(token),
                    counted_at: now,
                    ends_at,
                    known_until: ends_at,
                    asked_at: asked.at,
                    kept_until: now + asked.min_hold.unwrap_or_default(),
                    counted,
                };
                // The grant before it is over, whosever that was.
                books.put(&place, held);
            }
        }
        // A lock that is held alone has no slots, and one that is held by slots is not held alone.
        let is_over = |(_, slot): &Place, held: &Held| (*slot == 0) != (place.1 == 0) && held.number < number;
        for place in books.find(key, is_over) {
            books.remove(&place);
        }
        self.size.store(books.held.len(), Ordering::Relaxed);
    }

    /// A request that is sent at `asked_at` may make the token's lease this long. The lock counts for so long until an answer to it
    /// says more: the answer may be lost.
    pub(super) fn may_last(&self, key: &LockKey, token: &TokenHash, asked_at: Duration, longest: Duration) {
        self.change(
            key,
            |_, held| held.is_by(token),
            |books, place| {
                if let Some(held) = books.remove(place) {
                    let ends_at = held.ends_at.max(asked_at + longest);
                    books.put(place, Held { ends_at, asked_at: asked_at.max(held.asked_at), ..held });
                }
            },
        );
    }

    /// The lease goes on, as its keeper was told, who asked at `asked_at`.
    pub(super) fn lasts(&self, key: &LockKey, lease: &Lease, asked_at: Duration) {
        let ends_at = boottime() + Duration::from_millis(lease.left_ms);
        let is_it = |_: &Place, held: &Held| held.number == lease.fencing_token && held.token.is_some();
        self.change(key, is_it, |books, place| books.lasts_until(place, ends_at, asked_at));
    }

    /// A grant has ended. A lock that is kept for the rest of its `min_hold` counts until then.
    pub(super) fn ended(&self, key: &LockKey, ended: Ended) {
        let is_over = |(_, slot): &Place, held: &Held| {
            held.number == ended.fencing_token || *slot == 0 && held.number < ended.fencing_token
        };
        self.change(key, is_over, |books, place| {
            let is_it = books.held.get(place).is_some_and(|held| held.number == ended.fencing_token);
            let kept_ms = if is_it { ended.kept_ms } else { 0 };
            books.keep_until(place, boottime() + Duration::from_millis(kept_ms));
        });
    }

    /// The token does not hold the lock, a request found that was sent at `asked_at`. It says nothing of what was granted since.
    /// Unless the lock was free, it may be kept: another gateway, or a copy of the request, may have released it.
    pub(super) fn lost(&self, key: &LockKey, token: &TokenHash, asked_at: Duration, was_free: bool) {
        let is_it = |_: &Place, held: &Held| held.is_by(token) && held.counted_at < asked_at;
        self.change(key, is_it, |books, place| {
            let kept_until = books.held.get(place).map_or(Duration::ZERO, |held| held.kept_until);
            books.keep_until(place, if was_free { Duration::ZERO } else { kept_until });
        });
    }

    fn change(
        &self,
        key: &LockKey,
        is_so: impl Fn(&Place, &Held) -> bool,
        change: impl Fn(&mut Books, &Place),
    ) {
        if self.size.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut books = self.books.lock();
        for place in books.find(key, is_so) {
            change(&mut books, &place);
        }
        self.size.store(books.held.len(), Ordering::Relaxed);
    }
}

impl LockService {
    /// Makes room for a lock of this account.
    pub(super) fn room(&self, key: &LockKey, slots: Slots, account: &Account) -> Room {
        if self.ledger.begin_review(account) {
            let (ledger, store) = (self.ledger.clone(), self.store.clone());
            tokio::spawn(review(ledger, account.clone(), store, self.store_timeout / 2));
        }
        self.ledger.room(key, slots, account)
    }
}

/// Looks through an account for locks that ended elsewhere, a bounded number a second.
pub(super) async fn review(ledger: Arc<Ledger>, account: Account, store: MeteredStore, patience: Duration) {
    let of_account: Vec<_> = {
        let books = ledger.books.lock();
        let held = books.held.iter().filter(|(_, held)| Arc::ptr_eq(&held.counted.0, &account.count));
        held.map(|((key, _), held)| (key.clone(), held.number, held.token)).collect()
    };
    let mut failed = 0;
    for (key, number, token) in of_account {
        match look(&ledger, &store, &key, number, token, Instant::now() + patience).await {
            Ok(()) => failed = 0,
            // It is not the time for looks.
            Err(_) if failed == MOST_FAILED => break,
            // It may be this lock alone, or those of one server.
            Err(_) => failed += 1,
        }
        sleep(LOOK_PAUSE).await;
    }
    sleep(REVIEW_PAUSE).await;
    ledger.books.lock().reviewed.retain(|count| !Arc::ptr_eq(count, &account.count));
}

/// Looks whether a grant has ended.
async fn look(
    ledger: &Ledger,
    store: &MeteredStore,
    key: &LockKey,
    number: FencingToken,
    token: Option<TokenHash>,
    deadline: Instant,
) -> Result<(), StoreError> {
    let asked_at = boottime();
    let sharing = match store.call(Inspect { key: key.clone(), token: None }, deadline).await? {
        Inspected::Held { lease, .. } if lease.fencing_token == number => return Ok(()),
        Inspected::Held { sharing, .. } => sharing,
        Inspected::Free { .. } => None,
    };
    let named = sharing.as_ref().map_or(&[][..], |sharing| &sharing.holders);
    if named.iter().any(|lease| lease.fencing_token == number) {
        return Ok(());
    }
    // Not all of many are named.
    if sharing.as_ref().is_none_or(|sharing| sharing.held <= named.len() as u64) {
        ledger.ended(key, Ended { fencing_token: number, kept_ms: 0 });
    } else if let Some(token) = token {
        // A renewal by an attempt that holds nothing changes nothing, and says whether the token does.
        let by = Renewer::Connection(Attempt::generate());
        let renew = Renew { key: key.clone(), token, ttl: Ttl::SHORTEST, by };
        if store.call(renew, deadline).await? != Renewed::TakenOver {
            ledger.lost(key, &token, asked_at, false);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
