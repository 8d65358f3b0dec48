//! What a lock *does*, once, for every store: acquire, renew, release, inspect, and what happens when an answer is
//! lost on either side.
//!
//! A store tries a step once and may not know what became of it. This module repeats the step within the request's
//! deadline, decides when doubt has ended, and rolls back grants that no client was told of (`roll_back.rs`). A request
//! that waits (`wait.rs`) is woken when it may be its turn (`wakeups.rs`), by what the store tells and by heartbeats
//! (`heartbeat.rs`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::clock::boottime;
use crate::lock::{Inspected, LeaseToken, LockKey, ReleaseEffect, Released, Renewed, Ttl};
use crate::store::{
    Call, Check, Inspect, LockStore, MeteredStore, Release, Renew, Renewer, StoreError, Tombstone,
};
use crate::telemetry::metrics::{DoubtEnded, metrics};

mod acquire;
mod acquire_request;
mod admin;
mod crowd;
mod heartbeat;
mod hold;
mod ledger;
mod once;
mod refusals;
mod roll_back;
mod time;
mod turns;
mod wait;
mod wakeups;
mod watch;

pub use acquire_request::{AcquireRequest, Acquisition, NotAcquired, Outcome, Tenant};
use admin::nothing_done;
use crowd::RecordWaits;
use heartbeat::Heartbeats;
pub use hold::{Denial, HeldSeveral, Hold, HoldEvent, Holding, Loss, MOST_LOCKS, Several};
pub use ledger::Account;
use ledger::{AskedLease, Ledger};
pub use once::{BeginOutcome, BeginRequest, Beginning, NotBegun};
use refusals::SharedRefusals;
use roll_back::Cleaner;
pub use roll_back::GrantGuard;
use time::{lease_left, pause_before, renewed_too_late, seen_by_now};
pub use turns::Turn;
use turns::{Backlog, Turns};
use wakeups::Wakeups;
use watch::{Doing, Watch};
pub use watch::{MOST_WATCHERS, News, Selection, Told, Wanted, Watched, Watching};

/// The most that may wait at one gateway, where no setting says otherwise.
pub const MOST_WAITERS: usize = 100_000;
/// The most connections that may hold a lock at one gateway, or wait to, where no setting says otherwise.
pub const MOST_HOLDS: usize = 10_000;

/// The most requests that may go on without their clients at once. One tenant has a share of them.
const MOST_LEFT_BEHIND: usize = 10_000;

/// The operations on locks, over any store.
pub struct LockService {
    store: MeteredStore,
    cleaner: Arc<Cleaner>,
    wakeups: Arc<Wakeups>,
    heartbeats: Arc<Heartbeats>,
    store_timeout: Duration,
    /// Where those who ask for the same lock share what they are told.
    refusals: Option<Arc<SharedRefusals>>,
    max_waiters: usize,
    max_waiters_per_record: usize,
    /// One for each request that waits, for a lock or for a record.
    wait_permits: Arc<Semaphore>,
    hold_permits: Arc<Semaphore>,
    max_watchers: usize,
    watch_permits: Arc<Semaphore>,
    /// What keeps the locks that connections hold.
    holds: TaskTracker,
    /// Requests that go on without their clients.
    left_behind: TaskTracker,
    /// Their places.
    backlog: Arc<Backlog>,
    watch: Arc<Watch>,
    /// One turn for each page of a list that the store may be asked for at once.
    lists: Arc<Turns>,
    /// Which locks count for whom.
    ledger: Arc<Ledger>,
    /// Those who wait for records.
    records: Arc<RecordWaits>,
}

impl LockService {
    /// `store_timeout` is how long a request may take at the store, connecting and repetitions included;
    /// `tombstone_ttl` is how long the store remembers freed tokens.
    pub fn new(store: Arc<dyn LockStore>, store_timeout: Duration, tombstone_ttl: Duration) -> Self {
        let store = MeteredStore::new(store);
        let watch = Watch::new(store.clone(), store_timeout);
        let ledger = Arc::new(Ledger::default());
        let cleaner = Arc::new(Cleaner::new(
            store.clone(),
            watch.clone(),
            ledger.clone(),
            store_timeout,
            tombstone_ttl,
        ));
        let wakeups = Arc::new(Wakeups::default());
        let heartbeats = Heartbeats::new(store.clone(), wakeups.clone(), store_timeout / 2);
        let [wait_permits, hold_permits, watch_permits] =
            [MOST_WAITERS, MOST_HOLDS, MOST_WATCHERS].map(|most| Arc::new(Semaphore::new(most)));
        let (holds, left_behind) = (TaskTracker::new(), TaskTracker::new());
        let lists = Turns::new(admin::MOST_LISTS);
        let records = RecordWaits::start(store.clone());
        let refusals = store.asks_several_servers().then(Arc::default);
        Self {
            store,
            cleaner,
            wakeups,
            heartbeats,
            store_timeout,
            refusals,
            max_waiters: MOST_WAITERS,
            max_waiters_per_record: MOST_WAITERS,
            wait_permits,
            hold_permits,
            max_watchers: MOST_WATCHERS,
            watch_permits,
            holds,
            left_behind,
            backlog: Backlog::new(MOST_LEFT_BEHIND),
            watch,
            lists,
            ledger,
            records,
        }
    }

    /// Lets only so many wait at once, and only so many for one record. How many wait for one lock is the store's to say.
    #[must_use]
    pub fn with_max_waiters(self, max_waiters: usize, per_record: usize) -> Self {
        let max_waiters = max_waiters.min(Semaphore::MAX_PERMITS);
        let wait_permits = Arc::new(Semaphore::new(max_waiters));
        Self { max_waiters, max_waiters_per_record: per_record, wait_permits, ..self }
    }

    /// Lets only so many connections hold a lock, or wait to, at once.
    #[must_use]
    pub fn with_max_holds(self, max_holds: usize) -> Self {
        let permits = max_holds.min(Semaphore::MAX_PERMITS);
        Self { hold_permits: Arc::new(Semaphore::new(permits)), ..self }
    }

    /// How many wait at this moment.
    pub fn waiters(&self) -> usize {
        self.max_waiters - self.wait_permits.available_permits()
    }

    /// How much is being rolled back at this moment.
    pub fn roll_backs(&self) -> usize {
        self.cleaner.under_way()
    }

    /// Ends all waiting, watching and holding. Requests that wait are answered, and keep their tickets for a while.
    /// Connections that hold a lock are told, and the lock stays theirs for a while: the same token can go on at another
    /// gateway.
    pub fn stop_waiting(&self) {
        self.wakeups.close();
        self.records.closing.cancel();
        self.watch.close();
    }

    /// Sets the lease to the longer of what is left and `ttl`, but not past its `max_hold`, if the token holds the lock.
    pub async fn renew(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        ttl: Ttl,
        by: Renewer,
        account: Option<&Account>,
    ) -> Result<Renewed, StoreError> {
        let hash = token.hash();
        let left = |lease, sent_at| lease_left(lease, sent_at).ok_or_else(renewed_too_late);
        let asked_at = boottime();
        self.ledger.may_last(key, &hash, asked_at, self.store_timeout + ttl.as_duration());
        // Repeating is safe: the last renewal to arrive is the one that counts, and it is answered.
        let renew = &Renew { key: key.clone(), token: hash, ttl, by }.into();
        let settled = self
            .settle(self.deadline(), |until| async move {
                let sent_at = boottime();
                match self.store.ask::<Renew>(renew, until).await? {
                    Renewed::Renewed(lease) => left(lease, sent_at).map(Renewed::Renewed),
                    Renewed::MaxHoldReached(lease) => left(lease, sent_at).map(Renewed::MaxHoldReached),
                    other => Ok(other),
                }
            })
            .await;
        let renewed = self.watch.or_unclear(key, settled)?.answer;
        if let Renewed::Renewed(lease) = &renewed {
            self.watch.tell(key, || Doing::Renewed(lease.clone()));
        }
        match (&renewed, account) {
            (Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease), Some(account)) => {
                let asked = AskedLease { at: asked_at, min_hold: None };
                self.ledger.holds(key, hash, lease, asked, account, None);
            }
            (Renewed::NotHeld | Renewed::HeldByAnother, _) => {
                self.ledger.lost(key, &hash, asked_at, renewed == Renewed::NotHeld);
            }
            (Renewed::Released, _) => self.ledger.lost(key, &hash, asked_at, false),
            _ => {}
        }
        Ok(renewed)
    }

    /// Frees a lock, if the token holds it.
    pub async fn release(&self, key: &LockKey, token: &LeaseToken) -> Result<Released, StoreError> {
        let hash = token.hash();
        // A client's token stays freed, and its answer is kept, so that a late PUT or a repetition changes nothing.
        let tombstone = if token.is_server_made() { Tombstone::None } else { Tombstone::Final };
        let release = Release { key: key.clone(), token: hash, tombstone };
        let asked_at = boottime();
        let settled = self.settle_call(self.deadline(), release).await;
        let Settled { answer: ReleaseEffect { answer, ended }, in_doubt } =
            self.watch.or_unclear(key, settled)?;
        match ended {
            Some(ended) => self.ledger.ended(key, ended),
            // All that is known is that the token does not hold the lock any more.
            None => self.ledger.lost(key, &hash, asked_at, answer == Released::NotHeld),
        }
        match ended {
            Some(ended) => self.watch.tell(key, || Doing::Released(ended)),
            // An earlier copy of this request may have released the lock. Or the token had a ticket only.
            None if in_doubt || answer == Released::Released => self.watch.tell(key, || Doing::Unclear),
            None => {}
        }
        // Without a tombstone, the lock may be free because of the copy whose answer was lost.
        if in_doubt && tombstone == Tombstone::None && answer != Released::Released {
            return Err(StoreError::Unknown("an earlier copy of this release may have done it".into()));
        }
        Ok(answer)
    }

    /// Says who holds a lock, and whether `token` does.
    pub async fn inspect(&self, key: &LockKey, token: Option<&LeaseToken>) -> Result<Inspected, StoreError> {
        let look = &Inspect { key: key.clone(), token: token.map(LeaseToken::hash) }.into();
        let step = |until| async move {
            let sent_at = boottime();
            seen_by_now(self.store.ask::<Inspect>(look, until).await?, sent_at)
        };
        match token {
            None => self.look(step).await,
            // It may pin that token's grant.
            Some(_) => Ok(self.settle(self.deadline(), step).await?.answer),
        }
    }

    /// Whether the store can be reached and is safe to lock on.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.store.call(Check, self.deadline()).await
    }

    /// Whether the store can be used, as far as that is known without asking it.
    pub async fn seems_ready(&self) -> bool {
        self.store.seems_ready().await
    }

    /// Goes on with a request whose client has left, unless very many do, of all or on this account. It ends within the time that a
    /// request has.
    pub fn go_on_without_client(
        &self,
        account: Option<Account>,
        request: impl Future<Output = ()> + Send + 'static,
    ) {
        // Outside the runtime nothing can be spawned: the program has ended.
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some(place) = self.backlog.enter(account) {
            self.left_behind.spawn_on(request.map(move |()| drop(place)), &runtime);
        } else {
            tracing::warn!(
                "too many clients have left before they were answered: what one of them asked for may not be done"
            );
        }
    }

    /// Finishes holds, requests that go on without their clients, and roll-backs, and closes the store, each for at most `within`.
    /// Returns whether the store is closed: to drop one that is not waits for its disk.
    pub async fn close(&self, within: Duration) -> bool {
        // Connections that were cut a moment ago begin their roll-backs now.
        self.holds.close();
        let _ = timeout(within, self.holds.wait()).await;
        self.left_behind.close();
        let _ = timeout(within, self.left_behind.wait()).await;
        self.cleaner.finish(within).await;
        timeout(within, self.store.close()).await.is_ok()
    }

    /// Repeats a step that changes nothing until it is answered or the deadline has passed. It leaves no doubt.
    async fn look<T, F>(&self, step: impl Fn(Instant) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let looked = self.settle_from(None, self.deadline(), step).await;
        looked.map(|settled| settled.answer).map_err(nothing_done)
    }

    /// Repeats a request until it is answered or the deadline has passed.
    fn settle_call<C: Call>(
        &self,
        deadline: Instant,
        call: C,
    ) -> impl Future<Output = Result<Settled<C::Answer>, StoreError>> {
        let request = call.into();
        async move { self.settle(deadline, |until| self.store.ask::<C>(&request, until)).await }
    }

    /// Repeats a step until it is answered or the deadline has passed.
    async fn settle<T, F>(
        &self,
        deadline: Instant,
        step: impl Fn(Instant) -> F,
    ) -> Result<Settled<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let settled = self.settle_from(None, deadline, step).await;
        match &settled {
            Ok(settled) if settled.in_doubt => metrics().doubts.count(DoubtEnded::Answered),
            Err(StoreError::Unknown(_)) => metrics().doubts.count(DoubtEnded::Unknown),
            _ => {}
        }
        settled
    }

    /// As [`Self::settle`], where something may have happened already, for the reason in `doubt`.
    ///
    /// An error that leaves no doubt ends it at once. But once a copy may have been sent, every later error,
    /// "connection refused" too, is [`StoreError::Unknown`]: it speaks of the last copy only.
    async fn settle_from<T, F>(
        &self,
        mut doubt: Option<String>,
        deadline: Instant,
        step: impl Fn(Instant) -> F,
    ) -> Result<Settled<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match step(self.until(deadline)).await {
                Ok(answer) => return Ok(Settled { answer, in_doubt: doubt.is_some() }),
                Err(StoreError::Unknown(reason)) => doubt = Some(reason),
                Err(StoreError::Unavailable(reason)) if doubt.is_none() => {
                    return Err(StoreError::Unavailable(reason));
                }
                Err(StoreError::Unavailable(_)) => {}
            }
            if !pause_before(deadline).await {
                return Err(StoreError::Unknown(doubt.unwrap_or_default()));
            }
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.store_timeout
    }

    /// When a single try ends: early enough to leave room for another one within the deadline.
    fn until(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.store_timeout / 2)
    }
}

/// An answer, and whether an earlier copy of the step may have run or may yet run.
struct Settled<T> {
    answer: T,
    in_doubt: bool,
}
