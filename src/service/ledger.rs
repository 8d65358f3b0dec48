//! Which locks this gateway has granted, to the account of which tenant: so none fills the store.
//!
//! A lock counts from its grant until its lease is over, or this gateway learns that it ended. What ends it at another
//! gateway is not told here. So if a tenant comes near its limit, its locks are looked at one by one, at a bounded
//! rate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::LockService;
use crate::clock::boottime;
use crate::lock::{Ended, FencingToken, Inspected, Lease, LockKey, Sharing, Slots, TokenHash};
use crate::store::{Inspect, MeteredStore};

/// The pause between two looks at locks that may have ended elsewhere.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
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
    token: TokenHash,
    ends_at: Duration,
    counted: Counted,
}

impl Books {
    fn put(&mut self, place: &Place, held: Held) {
        self.remove(place);
        self.ends.insert((held.ends_at, place.clone()));
        self.held.insert(place.clone(), held);
    }

    fn remove(&mut self, place: &Place) -> Option<Held> {
        let held = self.held.remove(place)?;
        self.ends.remove(&(held.ends_at, place.clone()));
        Some(held)
    }

    fn lasts_until(&mut self, place: &Place, ends_at: Duration) {
        if let Some(held) = self.remove(place) {
            self.put(place, Held { ends_at, ..held });
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
    /// Makes room for a lock. One that the account has already, by whatever token, takes none: the grant before is over then. Of
    /// a lock that is asked for by slots the account may have others.
    pub(super) fn room(&self, key: &LockKey, slots: Slots, account: &Account) -> Room {
        if let Some(counted) = Counted::within(account) {
            return Room::Free(Some(counted));
        }
        let mut books = self.books.lock();
        books.forget_ended(boottime());
        self.size.store(books.held.len(), Ordering::Relaxed);
        let has_it = books.of(key).any(|((_, slot), held)| {
            (slots == Slots::ONE || *slot == 0) && Arc::ptr_eq(&held.counted.0, &account.count)
        });
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

    /// The token holds the lock by this lease.
    pub(super) fn holds(
        &self,
        key: &LockKey,
        token: TokenHash,
        lease: &Lease,
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
            Some(held) if held.number > number => {}
            Some(held) if held.number == number => books.lasts_until(&place, ends_at),
            _ => {
                let counted = room.unwrap_or_else(|| Counted::new(account));
                // The grant before it is over, whosever that was.
                books.put(&place, Held { number, token, ends_at, counted });
            }
        }
        // A lock that is held alone has no slots, and one that is held by slots is not held alone.
        let is_over = |(_, slot): &Place, held: &Held| (*slot == 0) != (place.1 == 0) && held.number < number;
        for place in books.find(key, is_over) {
            books.remove(&place);
        }
        self.size.store(books.held.len(), Ordering::Relaxed);
    }

    /// A request may make the token's lease this long. The lock counts for so long until an answer says more: the answer may be lost.
    pub(super) fn may_last(&self, key: &LockKey, token: &TokenHash, longest: Duration) {
        let ends_at = boottime() + longest;
        let is_it = |_: &Place, held: &Held| held.token == *token && held.ends_at < ends_at;
        self.change(key, is_it, |books, place| books.lasts_until(place, ends_at));
    }

    /// The lease goes on, as its keeper says.
    pub(super) fn lasts(&self, key: &LockKey, lease: &Lease) {
        let ends_at = boottime() + Duration::from_millis(lease.left_ms);
        let is_it = |_: &Place, held: &Held| held.number == lease.fencing_token;
        self.change(key, is_it, |books, place| books.lasts_until(place, ends_at));
    }

    /// A grant has ended. A lock that is kept for the rest of its `min_hold` counts until then.
    pub(super) fn ended(&self, key: &LockKey, ended: Ended) {
        let is_over = |(_, slot): &Place, held: &Held| {
            held.number == ended.fencing_token || *slot == 0 && held.number < ended.fencing_token
        };
        self.change(key, is_over, |books, place| match ended.kept_ms {
            0 => drop(books.remove(place)),
            kept_ms => books.lasts_until(place, boottime() + Duration::from_millis(kept_ms)),
        });
    }

    /// The token does not hold the lock.
    pub(super) fn lost(&self, key: &LockKey, token: &TokenHash) {
        self.change(key, |_, held| held.token == *token, |books, place| drop(books.remove(place)));
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
        held.map(|((key, _), held)| (key.clone(), held.number)).collect()
    };
    for (key, number) in of_account {
        match store.call(Inspect { key: key.clone(), token: None }, Instant::now() + patience).await {
            Ok(Inspected::Held { lease, .. }) if lease.fencing_token == number => {}
            Ok(Inspected::Held { sharing: Some(sharing), .. }) if may_be_among(&sharing, number) => {}
            Ok(_) => ledger.ended(&key, Ended { fencing_token: number, kept_ms: 0 }),
            // It is not the time for looks.
            Err(_) => break,
        }
        sleep(LOOK_PAUSE).await;
    }
    sleep(REVIEW_PAUSE).await;
    ledger.books.lock().reviewed.retain(|count| !Arc::ptr_eq(count, &account.count));
}

/// Whether a grant is one of those who share a lock. Not all of many are named.
fn may_be_among(sharing: &Sharing<Vec<Lease>>, number: FencingToken) -> bool {
    let are_all_named = usize::try_from(sharing.held).is_ok_and(|held| held <= sharing.holders.len());
    !are_all_named || sharing.holders.iter().any(|lease| lease.fencing_token == number)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;
    use crate::lock::Slot;

    fn lease(number: u64, left_ms: u64) -> Lease {
        Lease {
            fencing_token: FencingToken::new(number).unwrap(),
            left_ms,
            note: Default::default(),
            is_released: false,
            slot: None,
        }
    }

    fn key(name: &str) -> LockKey {
        LockKey::parse(name.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_held_counts_until_it_is_known_to_have_ended() {
        let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 2 });
        let (token, hour_ms) = (TokenHash::from_bytes([1; 32]), 3_600_000);
        let take = |name: &str, number, ms| match ledger.room(&key(name), Slots::ONE, &account) {
            Room::Free(room) => {
                ledger.holds(&key(name), token, &lease(number, ms), &account, room);
                true
            }
            Room::Full => false,
        };
        let count = || account.count.load(Ordering::Relaxed);
        assert!(take("a", 1, hour_ms) && take("b", 2, hour_ms) && !take("c", 3, hour_ms));
        // The same lock anew takes no further room, and news of the grant before do not end this one.
        assert!(take("a", 4, hour_ms));
        ledger.ended(&key("a"), Ended { fencing_token: lease(1, 1).fencing_token, kept_ms: 0 });
        assert_eq!(count(), 2);
        ledger.ended(&key("a"), Ended { fencing_token: lease(4, 1).fencing_token, kept_ms: hour_ms });
        assert_eq!(count(), 2, "it is kept for its min_hold");
        ledger.ended(&key("a"), Ended { fencing_token: lease(4, 1).fencing_token, kept_ms: 0 });
        assert_eq!(count(), 1);
        ledger.lost(&key("b"), &TokenHash::from_bytes([2; 32]));
        assert_eq!(count(), 1, "another token never held it");
        ledger.lost(&key("b"), &token);
        assert_eq!(count(), 0);
        // A lease that is over counts no more, and a room that was not used is given back.
        assert!(take("d", 5, 0) && take("e", 6, hour_ms) && take("f", 7, hour_ms) && !take("g", 8, hour_ms));
        ledger.ended(&key("f"), Ended { fencing_token: lease(7, 1).fencing_token, kept_ms: 0 });
        drop(ledger.room(&key("h"), Slots::ONE, &account));
        assert_eq!(count(), 1);
        // What was granted elsewhere counts once it is renewed here, also beyond the most.
        for number in 10..13 {
            ledger.holds(&key(&number.to_string()), token, &lease(number, hour_ms), &account, None);
        }
        assert_eq!((count(), ledger.size.load(Ordering::Relaxed)), (4, 4));
        // Another's grant takes the place of it.
        let other = Account { count: Arc::default(), most: 1 };
        ledger.holds(&key("e"), token, &lease(20, hour_ms), &other, None);
        assert_eq!((count(), other.count.load(Ordering::Relaxed)), (3, 1));
        let books = ledger.books.lock();
        assert_eq!((books.held.len(), books.ends.len()), (4, 4));
    }

    #[test]
    fn each_slot_of_a_lock_counts() {
        let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 3 });
        let token = |byte| TokenHash::from_bytes([byte; 32]);
        let slot = |number, at| Lease {
            slot: Some(Slot { number: at, slots: Slots::MOST }),
            ..lease(number, 9_000)
        };
        let takes = |by, lease: Lease, slots| match ledger.room(&key("a"), slots, &account) {
            Room::Free(room) => {
                ledger.holds(&key("a"), token(by), &lease, &account, room);
                true
            }
            Room::Full => false,
        };
        let count = || account.count.load(Ordering::Relaxed);
        for number in 1..=3 {
            assert!(takes(number, slot(number.into(), number.into()), Slots::MOST));
        }
        assert!(count() == 3 && !takes(4, slot(4, 4), Slots::MOST));
        // Who has one already is told of it again, and it is the same.
        ledger.holds(&key("a"), token(2), &slot(2, 2), &account, None);
        assert_eq!(count(), 3);
        ledger.ended(&key("a"), Ended { fencing_token: lease(2, 1).fencing_token, kept_ms: 0 });
        ledger.lost(&key("a"), &token(3));
        assert_eq!(count(), 1);
        // A grant of the lock alone has no others beside it.
        assert!(takes(5, slot(5, 2), Slots::MOST) && takes(6, lease(6, 9_000), Slots::ONE));
        assert_eq!((count(), ledger.size.load(Ordering::Relaxed)), (1, 1));
        assert!(takes(7, slot(7, 1), Slots::MOST) && count() == 1);
    }
}
