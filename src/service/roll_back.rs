//! Rolling back what no client will ever be told of: a grant, or a ticket of the wait queue.
//!
//! A [`GrantGuard`] is armed before a grant's command is sent and travels with the grant into the response. The code
//! that hands the answer to the socket disarms it. In every other case it is dropped, and the grant is undone in the
//! background until that succeeds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::crowd::RecordWaits;
use super::ledger::{Account, Ledger};
use super::time::pause_before;
use super::turns::Backlog;
use super::watch::{Doing, Watch};
use crate::clock::{Backoff, boottime};
use crate::lock::{Attempt, Ended, FencingToken, Lease, LockKey, RolledBack, Ticket, TokenHash, Ttl};
use crate::store::{Begin, KnownTo, LockRequest, MeteredStore, RollBack, StoreError, TicketAfter, UndoBegin};
use crate::telemetry::metrics::{TakenBack, metrics};

/// How many roll-backs may be under way at once. Beyond that, or beyond its tenant's share of them, a grant ends at its ttl.
const MOST_UNDER_WAY: usize = 10_000;
/// The pause before a roll-back is tried again: it doubles from the first to the last, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// How much too early a store may end a lease, as it counts in milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// How long a store that cannot be reached is waited for. It may be a server that stands still with a command before
/// it, whose lease will begin when the server goes on: so neither the ttl nor the life of a tombstone bounds this.
const LONGEST_OUTAGE: Duration = Duration::from_secs(60 * 60);

/// Runs roll-backs in the background, bounded in number and time.
pub(super) struct Cleaner {
    store: MeteredStore,
    pub(super) watch: Arc<Watch>,
    pub(super) ledger: Arc<Ledger>,
    store_timeout: Duration,
    tombstone_ttl: Duration,
    backlog: Arc<Backlog>,
    tasks: TaskTracker,
}

impl Cleaner {
    pub(super) fn new(
        store: MeteredStore,
        watch: Arc<Watch>,
        ledger: Arc<Ledger>,
        store_timeout: Duration,
        tombstone_ttl: Duration,
    ) -> Self {
        let (backlog, tasks) = (Backlog::new(MOST_UNDER_WAY), TaskTracker::new());
        Self { store, watch, ledger, store_timeout, tombstone_ttl, backlog, tasks }
    }

    /// A guard for a request that is about to be sent, and what becomes of its ticket.
    pub(super) fn guard(self: &Arc<Self>, lock: &LockRequest, ticket: TicketAfter) -> GrantGuard {
        let LockRequest { key, token, attempt, ttl, .. } = lock;
        self.guard_attempt(GrantOf::Lock, key, *token, *attempt, *ttl, ticket)
    }

    /// A guard for a begin that is about to be sent.
    pub(super) fn guard_begin(self: &Arc<Self>, begin: &Begin, records: Arc<RecordWaits>) -> GrantGuard {
        let Begin { key, token, attempt, ttl, .. } = begin;
        self.guard_attempt(GrantOf::Record(records), key, *token, *attempt, *ttl, TicketAfter::Removed)
    }

    /// A guard for an attempt that a store is about to hear of.
    pub(super) fn guard_attempt(
        self: &Arc<Self>,
        of: GrantOf,
        key: &LockKey,
        token: TokenHash,
        attempt: Attempt,
        ttl: Ttl,
        ticket: TicketAfter,
    ) -> GrantGuard {
        GrantGuard(Some(Armed {
            of,
            cleaner: self.clone(),
            key: key.clone(),
            token,
            attempts: vec![attempt],
            done: RolledBack::Nothing,
            granted: None,
            ticket,
            told: None,
            account: None,
            // A late copy can arrive for as long as tombstones live, also when the lease would be over by then.
            patience: ttl.as_duration().max(self.tombstone_ttl),
        }))
    }

    /// Begins a roll-back, unless too many are under way already, of all or on its account. Returns whether it does.
    fn begin(&self, armed: Armed) -> bool {
        // Outside the runtime nothing can be spawned: the program has ended, and the ttl is all that is left.
        let Ok(runtime) = Handle::try_current() else { return true };
        let Some(place) = self.backlog.enter(armed.account.clone()) else { return false };
        self.tasks.spawn_on(armed.roll_back().map(move |()| drop(place)), &runtime);
        true
    }

    pub(super) fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Waits for what is under way, for at most `within`.
    pub(super) async fn finish(&self, within: Duration) {
        self.tasks.close();
        if timeout(within, self.tasks.wait()).await.is_err() {
            let left = self.tasks.len();
            warn!(left, "some locks could not be released whose clients have left: they end at their ttl");
        }
    }
}

/// Undoes a grant when dropped, unless it was disarmed, or never armed.
#[derive(Default)]
#[must_use = "dropping it rolls the grant back"]
pub struct GrantGuard(Option<Armed>);

impl GrantGuard {
    /// The client was handed the grant: from here on it ends by release or at its ttl.
    pub fn disarm(mut self) {
        self.0 = None;
    }

    /// On whose account the grant is rolled back.
    pub(super) fn on_account(mut self, account: Option<&Account>) -> Self {
        self.0.iter_mut().for_each(|armed| armed.account = account.cloned());
        self
    }

    /// Another attempt of the same request is about to be sent.
    pub(super) fn covers(&mut self, attempt: Attempt) {
        self.0.iter_mut().for_each(|armed| armed.attempts.push(attempt));
    }

    /// The attempt that is in use was granted the lock.
    pub(super) fn is_granted(&mut self, number: FencingToken) {
        self.0.iter_mut().for_each(|armed| armed.granted = Some(number));
    }

    /// The ticket with which the request waits, to which its client may come back.
    pub(super) fn has_ticket(&mut self, ticket: Ticket) {
        if let Some(armed) = &mut self.0
            && armed.ticket != TicketAfter::Removed
        {
            armed.ticket = TicketAfter::KeptAt(ticket);
        }
    }

    /// A connection holds the lock by this lease, and its client knows that it ends with the connection. It comes back to no
    /// ticket. All leases that its token was told of before are over at `told_until`, by the clock of [`boottime`].
    pub(super) fn is_held(&mut self, lease: Lease, told_until: Duration) {
        if let Some(armed) = &mut self.0 {
            (armed.ticket, armed.told) = (TicketAfter::Removed, Some(Box::new((lease, told_until))));
        }
    }

    /// The lease was made this long.
    pub(super) fn guards_for(&mut self, ttl: Ttl) {
        self.0.iter_mut().for_each(|armed| armed.patience = armed.patience.max(ttl.as_duration()));
    }

    /// Hands on what it guards, and guards nothing from then on.
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// The last attempt was answered, which voided those before it.
    pub(super) fn keep_last(&mut self) {
        self.0.iter_mut().for_each(|armed| drop(armed.attempts.drain(..armed.attempts.len() - 1)));
    }

    /// Rolls back in the background what a connection held. Until that is done, or the lease over, it keeps the `place` of the hold.
    pub(super) fn roll_back_in(mut self, place: impl Send + 'static, lease_ends: Instant) {
        let Some(armed) = self.0.take() else { return };
        armed.cleaner.tasks.clone().spawn(async move {
            let mut work = Box::pin(armed.roll_back());
            if timeout_at(lease_ends, &mut work).await.map(|()| drop(place)).is_err() {
                work.await;
            }
        });
    }

    /// Rolls back within the deadline, and returns whether a lock was deleted; where that fails, goes on in the
    /// background. Boxed: it is rare, and no request carries room for it.
    pub(super) fn roll_back_now(
        self,
        deadline: Instant,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        Box::pin(async move {
            let mut guard = self;
            let Some(armed) = &mut guard.0 else { return Ok(false) };
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match armed.try_all(left.min(armed.cleaner.store_timeout / 2)).await {
                    Ok(was_deleted) => {
                        armed.count_done();
                        guard.0 = None;
                        return Ok(was_deleted);
                    }
                    Err(error) if !pause_before(deadline).await => return Err(error),
                    Err(_) => {}
                }
            }
        })
    }
}

impl fmt::Debug for GrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GrantGuard(armed)" } else { "GrantGuard(disarmed)" })
    }
}

impl Drop for GrantGuard {
    fn drop(&mut self) {
        let Some(armed) = self.0.take() else { return };
        let (cleaner, key) = (armed.cleaner.clone(), armed.key.clone());
        if !cleaner.begin(armed) {
            metrics().takes_back.count(TakenBack::GivenUp);
            warn!(
                key = key.as_str(),
                "too many grants of clients that left wait to be released: this one ends at its ttl"
            );
        }
    }
}

/// What a grant is of.
pub(super) enum GrantOf {
    Lock,
    /// The place of a record, for which others may wait.
    Record(Arc<RecordWaits>),
}

impl GrantOf {
    /// For the log.
    fn name(&self) -> &'static str {
        if matches!(self, Self::Lock) { "lock" } else { "record" }
    }
}

struct Armed {
    cleaner: Arc<Cleaner>,
    of: GrantOf,
    key: LockKey,
    token: TokenHash,
    /// Not empty while anything is left to do; the last is the one that is in use.
    attempts: Vec<Attempt>,
    /// What was done for those that are no longer among them.
    done: RolledBack,
    /// The number of the grant that it is for, once there is one.
    granted: Option<FencingToken>,
    ticket: TicketAfter,
    /// What its client knew of, and when all is over that its token was told of before.
    told: Option<Box<(Lease, Duration)>>,
    /// Whose it is.
    account: Option<Account>,
    patience: Duration,
}

impl Armed {
    fn count_done(&self) {
        metrics().takes_back.count(match self.done {
            RolledBack::Ended { .. } if self.told.is_some() => TakenBack::Ended,
            RolledBack::Ended { .. } => TakenBack::Freed,
            RolledBack::LeftToToken { .. } => TakenBack::LeftToToken,
            RolledBack::Nothing => TakenBack::Voided,
        });
    }

    fn log_done(&self) {
        use RolledBack::{Ended, LeftToToken, Nothing};
        let (key, what) = (self.key.as_str(), self.of.name());
        match (self.done, self.told.is_some()) {
            (Ended { kept_ms: 0 }, true) => debug!(key, "released a lock that a connection held"),
            (Ended { kept_ms }, true) => {
                info!(key, kept_ms, "released a lock that a connection held: min_hold keeps it taken");
            }
            (LeftToToken { left_ms }, _) => {
                info!(key, left_ms, "a lock is left to its token, which had a lease before");
            }
            (Nothing, true) => debug!(key, "nothing was left to release of a lock that a connection held"),
            (Ended { .. }, false) => info!(key, "released a {what} whose answer could not be delivered"),
            (Nothing, false) => debug!(key, "undid a request whose answer could not be delivered"),
        }
    }

    /// Rolls back one attempt after the other, each of which may take `patience`. Whether a lock was deleted.
    async fn try_all(&mut self, patience: Duration) -> Result<bool, StoreError> {
        while let Some(attempt) = self.attempts.first().copied() {
            let (key, token, until) = (self.key.clone(), self.token, Instant::now() + patience);
            let done = match &self.of {
                GrantOf::Lock => {
                    let call = RollBack { key, token, attempt, ticket: self.ticket, known: self.known() };
                    let asked_at = boottime();
                    let rolled_back = self.cleaner.store.call(call, until).await?;
                    self.tell(rolled_back, asked_at);
                    rolled_back
                }
                GrantOf::Record(records) => {
                    let undo = UndoBegin { key, token, attempt };
                    if self.cleaner.store.call(undo, until).await? {
                        records.ended(&self.key);
                        RolledBack::Ended { kept_ms: 0 }
                    } else {
                        RolledBack::Nothing
                    }
                }
            };
            // One attempt at most was granted something.
            if done != RolledBack::Nothing {
                self.done = done;
            }
            // An attempt that was answered is not asked for again, even if the others take long.
            self.attempts.remove(0);
        }
        Ok(matches!(self.done, RolledBack::Ended { .. }))
    }

    fn known(&self) -> KnownTo {
        let Some((lease, told_until)) = self.told.as_deref() else { return KnownTo::Nobody };
        let left = told_until.saturating_sub(boottime());
        let told_for = if left.is_zero() { left } else { left + ROUNDING };
        KnownTo::Connection { number: lease.fencing_token, told_for }
    }

    /// Tells those who watch what has become of it, as the store was asked at that time.
    fn tell(&self, rolled_back: RolledBack, asked_at: Duration) {
        let lease = self.told.as_deref().map(|(lease, _)| lease);
        let number = self.granted.or(lease.map(|lease| lease.fencing_token));
        let doing = match (rolled_back, number, lease) {
            (RolledBack::Ended { kept_ms }, Some(fencing_token), _) => {
                Doing::Released(Ended { fencing_token, kept_ms })
            }
            (RolledBack::LeftToToken { left_ms }, _, Some(lease)) => {
                Doing::Renewed(Lease { left_ms, ..lease.clone() })
            }
            // It may have had a ticket.
            (RolledBack::Nothing, ..) => Doing::Line,
            _ => Doing::Unclear,
        };
        let ledger = &self.cleaner.ledger;
        match &doing {
            Doing::Released(ended) => ledger.ended(&self.key, *ended),
            Doing::Renewed(lease) => ledger.lasts(&self.key, lease, asked_at),
            _ if matches!(rolled_back, RolledBack::Ended { .. }) => {
                ledger.lost(&self.key, &self.token, asked_at, true);
            }
            _ => {}
        }
        self.cleaner.watch.tell(&self.key, || doing);
    }

    /// Tries until the store has answered, until no copy can arrive any more, or until the store has been out of
    /// reach for too long.
    async fn roll_back(mut self) {
        let started = Instant::now();
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let error = match self.try_all(self.cleaner.store_timeout / 2).await {
                Ok(_) => {
                    self.count_done();
                    return self.log_done();
                }
                Err(error) => error,
            };
            let patience = match error {
                StoreError::Unknown(_) => self.patience,
                StoreError::Unavailable(_) => self.patience.max(LONGEST_OUTAGE),
            };
            if started.elapsed() >= patience {
                if matches!(self.of, GrantOf::Lock) {
                    self.cleaner.watch.tell(&self.key, || Doing::Unclear);
                }
                let key = self.key.as_str();
                metrics().takes_back.count(TakenBack::GivenUp);
                let what = self.of.name();
                warn!(key, %error, "could not release a {what} whose client has left: it ends at its ttl");
                return;
            }
            backoff.pause().await;
        }
    }
}
