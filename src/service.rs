//! What a lock *does*, once, for every store: acquire, renew, release, inspect, and what happens when an answer is
//! lost on either side.
//!
//! A store tries a step once and may not know what became of it. This module repeats the step within the request's
//! deadline, decides when doubt has ended, and takes back what nobody will ever learn of (`take_back.rs`). A request that
//! waits (`wait.rs`) is rung when it may be its turn (`line.rs`), by what the store tells and by heartbeats (`heart.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::clock::boottime;
use crate::lock::{
    Acquired, Attempt, Inspected, Lease, LeaseToken, LockKey, Release, Released, Renewed, Ttl, Undone,
};
use crate::store::{
    AcquireRequest, KnownTo, LockStore, MeteredStore, PlaceAfter, ReleaseMark, Renewer, StoreError,
};
use crate::telemetry::metrics::{DoubtEnded, WaitEnded, metrics};

mod heart;
mod hold;
mod ledger;
mod line;
mod operate;
mod take_back;
mod turns;
mod wait;
mod watch;
mod wish;

use heart::Heart;
pub use hold::{Hold, HoldEvent, Holding, Loss};
pub use ledger::Account;
use ledger::Ledger;
use line::Lines;
pub use take_back::TakeBack;
use take_back::{Cleaner, pause_before};
pub use turns::Turn;
use turns::Turns;
use watch::{Doing, Watch};
pub use watch::{MOST_WATCHERS, News, Selection, Told, Wanted, Watched, Watching};
pub use wish::{Acquire, Acquisition, Outcome, Tenant};

/// The pause before an unanswered step is sent again: half of it, plus up to as much again by chance.
const RETRY_PAUSE: Duration = Duration::from_millis(40);

/// Acquires that one request may send, each after the one before was voided: each leaves a mark behind.
const MOST_ACQUIRES: usize = 3;

/// The most that may wait at one gateway, where no setting says otherwise.
pub const MOST_WAITERS: usize = 100_000;
/// The most connections that may hold a lock at one gateway, or wait to, where no setting says otherwise.
pub const MOST_HOLDS: usize = 10_000;

/// The operations on locks, over any store.
pub struct LockService {
    store: MeteredStore,
    cleaner: Arc<Cleaner>,
    lines: Arc<Lines>,
    heart: Arc<Heart>,
    store_timeout: Duration,
    max_waiters: usize,
    hold_permits: Arc<Semaphore>,
    /// What keeps the locks that connections hold.
    holds: TaskTracker,
    watch: Arc<Watch>,
    /// One turn for each page of a list that the store may be asked for at once.
    lists: Arc<Turns>,
    /// Which locks count for whom.
    ledger: Arc<Ledger>,
}

impl LockService {
    /// `store_timeout` is how long a request may take at the store, connecting and repetitions included; `mark_ttl`
    /// is how long the store remembers freed tokens.
    pub fn new(store: Arc<dyn LockStore>, store_timeout: Duration, mark_ttl: Duration) -> Self {
        let store = MeteredStore::new(store);
        let watch = Watch::new(store.clone(), store_timeout);
        let ledger = Arc::new(Ledger::default());
        let cleaner =
            Arc::new(Cleaner::new(store.clone(), watch.clone(), ledger.clone(), store_timeout, mark_ttl));
        let lines = Arc::new(Lines::default());
        let heart = Heart::new(store.clone(), lines.clone(), store_timeout / 2);
        let (max_waiters, hold_permits) = (MOST_WAITERS, Arc::new(Semaphore::new(MOST_HOLDS)));
        let (holds, lists) = (TaskTracker::new(), Turns::new(operate::MOST_LISTS));
        Self {
            store,
            cleaner,
            lines,
            heart,
            store_timeout,
            max_waiters,
            hold_permits,
            holds,
            watch,
            lists,
            ledger,
        }
    }

    /// Lets only so many wait at once.
    #[must_use]
    pub fn with_max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters, ..self }
    }

    /// Lets only so many connections hold a lock, or wait to, at once.
    #[must_use]
    pub fn with_max_holds(self, max_holds: usize) -> Self {
        let permits = max_holds.min(Semaphore::MAX_PERMITS);
        Self { hold_permits: Arc::new(Semaphore::new(permits)), ..self }
    }

    /// How many wait at this moment.
    pub fn waiters(&self) -> usize {
        self.lines.count()
    }

    /// How much is being taken back at this moment.
    pub fn takes_back(&self) -> usize {
        self.cleaner.under_way()
    }

    /// From now on nobody waits or watches, and no connection holds a lock: those who wait are answered, and keep their
    /// places for a while; those who hold are told, and keep their locks for a while, for the same token at another gateway.
    pub fn stop_waiting(&self) {
        self.lines.closing.cancel();
        self.watch.close();
    }

    /// As [`acquire`](Self::acquire), to nobody's account.
    async fn acquire_uncounted(&self, wish: Acquire) -> Result<Acquisition, StoreError> {
        if !wish.wait.is_zero() && !wish.only_confirms() {
            let entered = Instant::now();
            let answer = self.acquire_in_line(wish).await;
            let is_granted = matches!(
                &answer,
                Ok(Acquisition { outcome: Outcome::Granted(..) | Outcome::AlreadyHeld(..), .. })
            );
            let ended = if is_granted { WaitEnded::Granted } else { WaitEnded::NotGranted };
            metrics().wait_seconds.observe(ended, entered.elapsed());
            return answer;
        }
        let deadline = self.deadline();
        let mut acquires_left = MOST_ACQUIRES;
        // Whether all that earlier acquires of this request may have done is undone.
        let mut is_undone = true;
        loop {
            acquires_left -= 1;
            // A token of ours is sent once: if its only copy is late, no release has left a mark that would refuse it.
            let token = wish.token.clone().unwrap_or_else(LeaseToken::generate);
            let request = wish.request(&token);
            let guard = self.cleaner.guard(&request, wish.place_after());
            let sent_at = boottime();
            let doubt = match self.store.acquire(&request, self.until(deadline)).await {
                Ok(answer) => {
                    return match self.hand_out(&wish, answer, sent_at, guard, deadline).await {
                        Ok(Outcome::NotReplicated(reason)) if !is_undone => Err(StoreError::Unknown(reason)),
                        Ok(outcome) => Ok(Acquisition { token, outcome }),
                        Err(StoreError::Unavailable(reason)) => Err(not_granted(is_undone, reason)),
                        Err(unknown) => Err(unknown),
                    };
                }
                Err(StoreError::Unavailable(reason)) => {
                    guard.disarm();
                    return Err(not_granted(is_undone, reason));
                }
                Err(StoreError::Unknown(reason)) => reason,
            };
            // Doubt ends here for good: once its attempt is voided, no copy of that command takes anything, however
            // late it is. Sending the same attempt again would leave such a copy alive beyond the end of the lease.
            match self.void(&request, wish.place_after(), doubt.clone(), deadline).await {
                Ok(was_deleted) => {
                    metrics().doubts.count(DoubtEnded::Undone);
                    is_undone &= wish.is_undone(was_deleted);
                }
                // The guard is dropped armed: voiding goes on in the background.
                Err(_) => {
                    metrics().doubts.count(DoubtEnded::Unknown);
                    return Err(StoreError::Unknown(doubt));
                }
            }
            guard.disarm();
            if acquires_left == 0 || !pause_before(deadline).await {
                let undone = if is_undone { "; what it may have done was undone" } else { "" };
                return Err(not_granted(is_undone, format!("{doubt}{undone}")));
            }
        }
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
        let left = |lease, sent_at| {
            let over =
                || StoreError::Unknown("the lease was renewed, and was over before the answer came".into());
            lease_left(lease, sent_at).ok_or_else(over)
        };
        // Repeating is safe: the last renewal to arrive is the one that counts, and it is answered.
        let settled = self
            .settle(self.deadline(), |until| async move {
                let sent_at = boottime();
                match self.store.renew(key, &hash, ttl, by, until).await? {
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
                self.ledger.holds(key, hash, lease, account, None);
            }
            (Renewed::NotHeld | Renewed::HeldByAnother, _) => self.ledger.lost(key, &hash),
            _ => {}
        }
        Ok(renewed)
    }

    /// Frees a lock, if the token holds it.
    pub async fn release(&self, key: &LockKey, token: &LeaseToken) -> Result<Released, StoreError> {
        let hash = token.hash();
        // A client's token stays freed, and its answer is kept, so that a late PUT or a repetition changes nothing.
        let mark = if token.is_server_made() { ReleaseMark::None } else { ReleaseMark::Final };
        let settled = self.settle(self.deadline(), |until| self.store.release(key, &hash, mark, until)).await;
        let Settled { answer: Release { answer, ended }, in_doubt } = self.watch.or_unclear(key, settled)?;
        match ended {
            Some(ended) => self.ledger.ended(key, ended),
            // What is known is that the token holds it no more.
            None => self.ledger.lost(key, &hash),
        }
        match ended {
            Some(ended) => self.watch.tell(key, || Doing::Released(ended)),
            // An earlier copy may have freed it, or it was a place in the line.
            None if in_doubt || answer == Released::Released => self.watch.tell(key, || Doing::Unclear),
            None => {}
        }
        // Without a mark, "nobody holds it" may be the work of the copy whose answer was lost.
        if in_doubt && mark == ReleaseMark::None && answer != Released::Released {
            return Err(StoreError::Unknown("an earlier copy of this release may have done it".into()));
        }
        Ok(answer)
    }

    /// Says who holds a lock, and whether `token` does.
    pub async fn inspect(&self, key: &LockKey, token: Option<&LeaseToken>) -> Result<Inspected, StoreError> {
        let hash = token.map(LeaseToken::hash);
        let answer =
            self.settle(self.deadline(), |until| self.store.inspect(key, hash.as_ref(), until)).await;
        match answer {
            Ok(settled) => Ok(settled.answer),
            // A look changes nothing. With a token it may have pinned that token's grant.
            Err(StoreError::Unknown(reason)) if token.is_none() => Err(StoreError::Unavailable(reason)),
            Err(error) => Err(error),
        }
    }

    /// Whether the store can be reached and is safe to lock on.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.store.check(self.deadline()).await
    }

    /// Finishes what is being taken back, for at most `within`, and closes the store.
    pub async fn close(&self, within: Duration) {
        // Whose connection was cut a moment ago is about to be taken back.
        self.holds.close();
        let _ = timeout(within, self.holds.wait()).await;
        self.cleaner.finish(within).await;
        self.store.close().await;
    }

    /// Turns a store's answer into the caller's: what is left of a lease is counted from before it was asked for.
    async fn hand_out(
        &self,
        wish: &Acquire,
        answer: Acquired,
        sent_at: Duration,
        mut guard: TakeBack,
        deadline: Instant,
    ) -> Result<Outcome, StoreError> {
        let over = || "the lease was over before it could be answered".to_owned();
        if let Acquired::Granted(lease) = answer {
            guard.is_granted(lease.fencing_token);
            return match lease_left(lease, sent_at) {
                Some(lease) => {
                    self.watch.tell(&wish.key, || Doing::Granted(lease.clone()));
                    Ok(Outcome::Granted(lease, guard))
                }
                None => match guard.take_back_now(deadline).await {
                    Ok(was_deleted) => Err(not_granted(wish.is_undone(was_deleted), over())),
                    Err(_) => Err(StoreError::Unknown(over())),
                },
            };
        }
        if let Acquired::NotReplicated { is_new: true, reason } = answer {
            return match guard.take_back_now(deadline).await {
                Ok(was_deleted) if wish.is_undone(was_deleted) => {
                    Ok(Outcome::NotReplicated(format!("{reason}; it was taken back")))
                }
                Ok(_) => {
                    Err(StoreError::Unknown(format!("{reason}; it was not found when it was taken back")))
                }
                Err(_) => Err(StoreError::Unknown(format!("{reason}; it is being taken back"))),
            };
        }
        let attempt = guard.attempt();
        guard.disarm();
        match answer {
            Acquired::AlreadyHeld(lease) => {
                let lease = lease_left(lease, sent_at).ok_or_else(|| StoreError::Unknown(over()))?;
                // Of what a connection holds, its own renewals are told.
                if !wish.by_connection {
                    self.watch.tell(&wish.key, || Doing::Renewed(lease.clone()));
                }
                Ok(Outcome::AlreadyHeld(lease, attempt.unwrap_or_else(Attempt::for_connection)))
            }
            // Its client was told before that it holds the lock, or may have been: nothing can be taken back.
            Acquired::NotReplicated { reason, .. } => {
                Err(StoreError::Unknown(format!("the token holds the lock already, but {reason}")))
            }
            Acquired::Refused(refusal) => Ok(Outcome::Refused(refusal)),
            Acquired::TokenReleased => Ok(Outcome::TokenReleased),
            Acquired::LineFull => Ok(Outcome::TooManyWaiters),
            // Nobody but this request knows its attempt, and it has not given up yet.
            Acquired::Granted(_) | Acquired::AttemptVoided => {
                Err(StoreError::Unavailable("this request was taken back before it arrived".into()))
            }
            // Only those who wait are told so, and they go on waiting.
            Acquired::InLine(_) | Acquired::Moved(_) | Acquired::PlaceLost => {
                Err(StoreError::Unknown("the store spoke of waiting to one who does not".into()))
            }
        }
    }

    /// Undoes what an unanswered acquire may have done, and keeps its copies from doing it later. Returns whether a
    /// lock was deleted.
    async fn void(
        &self,
        request: &AcquireRequest,
        place: PlaceAfter,
        doubt: String,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let take_back = |until| self.store.take_back(key, token, *attempt, place, KnownTo::Nobody, until);
        let undone = self.settle_from(Some(doubt), deadline, take_back).await?.answer;
        let was_deleted = matches!(undone, Undone::Ended { .. });
        if was_deleted {
            self.watch.tell(key, || Doing::Unclear);
        }
        Ok(was_deleted)
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

/// The answer where nothing was granted, and what an earlier acquire may have done was undone, or perhaps was not.
fn not_granted(is_undone: bool, reason: String) -> StoreError {
    if is_undone { StoreError::Unavailable(reason) } else { StoreError::Unknown(reason) }
}

/// What is left of a lease now, counted from before its command was sent; `None` if nothing is.
fn lease_left(lease: Lease, sent_at: Duration) -> Option<Lease> {
    let elapsed_ms = boottime().saturating_sub(sent_at).as_nanos().div_ceil(1_000_000);
    // A lease may be told shorter than it is, never longer: a started millisecond counts as a whole one, and stores, which
    // count in milliseconds, may free a lock almost a whole one before its end.
    let elapsed_ms = u64::try_from(elapsed_ms).unwrap_or(u64::MAX).saturating_add(1);
    let left_ms = lease.left_ms.saturating_sub(elapsed_ms);
    (left_ms > 0).then_some(Lease { left_ms, ..lease })
}
