//! A lock that a connection holds: renewed for as long as the connection lives, and taken back when it ends.
//!
//! The guard of the grant stays armed until the hold ends, and nobody is told of the hold's attempt: so what is taken
//! back at the end is this very hold, and never a lock that the same token has taken anew or was told to have. Whoever
//! else shows the token takes the lock out of the connection's hands, which its next renewal finds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::take_back::Cleaner;
use super::{Acquire, Acquisition, LockService, Outcome, RETRY_PAUSE, TakeBack, lease_left, pause_before};
use crate::clock::{Backoff, boottime, whole_ms};
use crate::lock::{Attempt, Lease, LeaseToken, LockKey, Renewed, Terms, Ttl};
use crate::store::{LockStore, PlaceAfter, Renewer, StoreError};

/// The longest silence towards a client.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// Events that wait for a client that does not read; further ones are dropped, but for the last.
const MOST_EVENTS: usize = 4;
/// The shortest time between two renewals, towards the end of `max_hold`.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// What a sleep may be too short by.
const TICK: Duration = Duration::from_millis(2);
/// The longest pause before a renewal that failed is sent again: it doubles up to there.
const LONGEST_PAUSE: Duration = Duration::from_millis(640);

/// What became of the wish to hold a lock by a connection.
pub enum Holding {
    /// It is held.
    Held(Hold),
    /// It is not, for a reason that is neither [`Outcome::Granted`] nor [`Outcome::AlreadyHeld`].
    NotHeld(Acquisition),
    /// As many hold a lock here as may.
    TooManyHolds,
}

/// A lock that is held for as long as this lives.
pub struct Hold {
    /// The token that holds the lock.
    pub token: LeaseToken,
    /// The lease as it was granted.
    pub lease: Lease,
    events: mpsc::Receiver<Sent>,
    /// Goes off when nothing was said for too long.
    silence: Pin<Box<Sleep>>,
    longest_silence: Duration,
    /// What keeps it, until the client is told of it.
    keeper: Option<Box<(Keeper, TaskTracker)>>,
}

/// What a client is told.
#[derive(Debug)]
pub enum HoldEvent {
    /// The lease goes on.
    Renewed(Lease),
    /// Nothing has happened for a while.
    Heartbeat,
    /// It is over; nothing follows.
    Lost(Loss),
}

/// How a hold ended before its connection did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It lasted as long as it may. The lock is free.
    MaxHoldReached,
    /// Nobody holds the lock: it was released with the token, or the store has lost it.
    Released,
    /// The lease may be over, since it could not be renewed.
    Expired,
    /// Another token holds the lock.
    HeldByAnother,
    /// The token holds the lock, but by another request.
    TakenOver,
    /// The server stops. The token holds the lock by this lease, and nothing ends it before its time.
    ShuttingDown(Lease),
}

/// What a keeper has to say. A lease is measured when it is told.
enum Sent {
    Renewed(Known),
    Lost(Loss),
}

/// A lease as the gateway knows it.
#[derive(Clone)]
struct Known {
    lease: Lease,
    /// Its end on the clock of [`boottime`], counted from before it was asked for.
    ends_at: Duration,
}

impl Known {
    fn of(lease: Lease) -> Self {
        Self { ends_at: boottime() + Duration::from_millis(lease.left_ms), lease }
    }

    /// The lease as it is now; `None` when it is over.
    fn now(&self) -> Option<Lease> {
        let left_ms = whole_ms(self.left());
        (left_ms > 0).then(|| Lease { left_ms, ..self.lease.clone() })
    }

    fn left(&self) -> Duration {
        self.ends_at.saturating_sub(boottime())
    }
}

impl LockService {
    /// Takes a lock for a connection, or says why not. What [`acquire`](Self::acquire) says of dropping holds here too,
    /// and for the [`Hold`] as long as it lives.
    pub async fn hold(&self, wish: Acquire) -> Result<Holding, StoreError> {
        let Ok(permit) = self.hold_permits.clone().try_acquire_owned() else {
            return Ok(Holding::TooManyHolds);
        };
        let wish = Acquire { by_connection: true, ..wish };
        if self.lines.closing.is_cancelled() {
            let token = wish.token.unwrap_or_else(LeaseToken::generate);
            return Ok(Holding::NotHeld(Acquisition { token, outcome: Outcome::ShuttingDown }));
        }
        let (key, ttl, min_hold) = (wish.key.clone(), wish.ttl, wish.terms.min_hold);
        let max_hold = wish.terms.max_hold.unwrap_or(Terms::LONGEST_MAX_HOLD);
        let asked_at = boottime();
        let Acquisition { token, outcome } = self.acquire(wish).await?;
        let answered_at = boottime();
        let (lease, attempt, guard) = match outcome {
            Outcome::Granted(lease, guard) => (lease, guard.attempt(), Some(guard)),
            Outcome::AlreadyHeld(lease, attempt) => (lease, Some(attempt.claim()), None),
            outcome => return Ok(Holding::NotHeld(Acquisition { token, outcome })),
        };
        // A guard that is armed has an attempt.
        let Some(attempt) = attempt else {
            return Err(StoreError::Unknown("the grant is not known any more".into()));
        };
        let (events, received) = mpsc::channel(MOST_EVENTS + 1);
        let keeper = Keeper {
            store: self.store.clone(),
            cleaner: self.cleaner.clone(),
            store_timeout: self.store_timeout,
            closing: self.lines.closing.clone(),
            key,
            token: token.clone(),
            ttl,
            attempt,
            known: Known::of(lease.clone()),
            // Of a lock that was held before, the store knows it, and whoever took it.
            stays_until: min_hold.filter(|_| guard.is_some()).map(|length| Instant::now() + length),
            most_until: answered_at + max_hold,
            renews_at: Instant::now() + third_of(ttl, &lease),
            is_at_its_end: false,
            told_until: answered_at + (answered_at - asked_at) + Duration::from_millis(lease.left_ms),
            guard,
            events,
            _permit: permit,
        };
        let longest_silence = LONGEST_SILENCE.min(ttl.as_duration() / 2);
        Ok(Holding::Held(Hold {
            token,
            lease,
            events: received,
            silence: Box::pin(sleep(longest_silence)),
            longest_silence,
            keeper: Some(Box::new((keeper, self.holds.clone()))),
        }))
    }

    /// How many locks are held by connections at this moment.
    pub fn holds(&self) -> usize {
        self.holds.len()
    }
}

impl Hold {
    /// The client is being told of the grant: from here on the lock is renewed, and its place in the line forgotten.
    /// Where this is never called, what was granted is taken back, and what the token held already is left as it is.
    ///
    /// Returns the lease as it is now. `None` where it is over, since the answer was not read for so long; then nothing
    /// more comes.
    pub fn delivered(&mut self) -> Option<Lease> {
        let (keeper, tasks) = *self.keeper.take()?;
        let lease = keeper.known.now()?;
        tasks.spawn(keeper.keep());
        Some(lease)
    }

    /// The next thing to tell the client; `None` when there is nothing more.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<HoldEvent>> {
        loop {
            let event = match self.events.poll_recv(context) {
                Poll::Ready(Some(Sent::Renewed(known))) => match known.now() {
                    Some(lease) => HoldEvent::Renewed(lease),
                    // It was not read in time.
                    None => continue,
                },
                Poll::Ready(Some(Sent::Lost(loss))) => HoldEvent::Lost(loss),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(self.silence.as_mut().poll(context));
                    HoldEvent::Heartbeat
                }
            };
            self.silence.as_mut().reset(Instant::now() + self.longest_silence);
            return Poll::Ready(Some(event));
        }
    }
}

/// What keeps a lock for a connection. Dropped, it takes the lock back, if that is still this connection's.
struct Keeper {
    store: Arc<dyn LockStore>,
    cleaner: Arc<Cleaner>,
    store_timeout: Duration,
    closing: CancellationToken,
    key: LockKey,
    token: LeaseToken,
    ttl: Ttl,
    /// By which the lock is held.
    attempt: Attempt,
    known: Known,
    /// The end of what was asked for as `max_hold`, also where the token held the lock before without such an end, by the
    /// clock of [`boottime`].
    most_until: Duration,
    /// The end of the lock's `min_hold`.
    stays_until: Option<Instant>,
    renews_at: Instant,
    /// Whether the lease has become as long as it may ever be.
    is_at_its_end: bool,
    /// When every lease is over that was told before this connection had the lock, by the clock of [`boottime`].
    told_until: Duration,
    /// `None` until then, where the token held the lock before: what was told is true to its end, whatever becomes of this
    /// connection, which may be that of a late copy of a request.
    guard: Option<TakeBack>,
    /// Its other end is dropped with the connection.
    events: mpsc::Sender<Sent>,
    _permit: OwnedSemaphorePermit,
}

impl Keeper {
    async fn keep(mut self) {
        let started = Instant::now();
        if let Some(guard) = &mut self.guard {
            guard.is_delivered();
        }
        // The last word has a place of its own.
        let Ok(last_word) = self.events.clone().reserve_owned().await else { return };
        let (events, closing) = (self.events.clone(), self.closing.clone());
        let loss = tokio::select! {
            biased;
            () = events.closed() => None,
            () = closing.cancelled() => Some(self.hand_over().await),
            loss = self.renew_until_lost() => Some(loss),
        };
        let held_ms = whole_ms(started.elapsed());
        let key = self.key.as_str();
        match loss {
            None => {
                tracing::info!(key, held_ms, "a connection that held a lock has ended");
                self.stay().await;
                self.await_what_was_told().await;
            }
            Some(loss) => {
                tracing::info!(key, held_ms, ?loss, "a connection lost its lock");
                last_word.send(Sent::Lost(loss));
            }
        }
    }

    /// Keeps the lock until the end of its `min_hold`, without its client.
    async fn stay(&mut self) {
        let Some(until) = self.stays_until.filter(|until| *until > Instant::now()) else { return };
        let left = until - Instant::now();
        let Some(ttl) = Ttl::from_ms(whole_ms(left)) else { return };
        let mut backoff = retries();
        // A lease that lasts until then keeps the lock by itself, whatever becomes of the gateway.
        while self.known.left() < left {
            let patience = self.store_timeout / 2;
            match self.renew_for(ttl, patience).await {
                // It ends with its lease then.
                Ok(Renewed::Renewed(_) | Renewed::MaxHoldReached(_)) => return self.leave_to_its_lease(),
                Ok(_) => return,
                Err(_) if self.known.left().is_zero() => return,
                Err(_) => backoff.pause().await,
            }
        }
        tokio::select! {
            () = self.closing.cancelled() => self.leave_to_its_lease(),
            () = sleep_until(until) => {}
        }
    }

    /// Nobody else knows of the attempt, so nothing takes the lock back any more.
    fn leave_to_its_lease(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
    }

    /// Renews at each third of the lease, whatever the client does.
    async fn renew_until_lost(&mut self) -> Loss {
        let mut backoff = retries();
        loop {
            sleep_until(self.renews_at.min(Instant::now() + self.known.left())).await;
            let left = self.known.left();
            if left.is_zero() {
                return self.ends_with_its_lease().await;
            }
            let (sent_at, asked_at) = (boottime(), Instant::now());
            let (lease, is_at_its_end) = match self.renew(left.min(self.store_timeout / 2)).await {
                Ok(Renewed::Renewed(lease)) => (lease, false),
                Ok(Renewed::MaxHoldReached(lease)) => (lease, true),
                Ok(Renewed::NotHeld) if self.known.left().is_zero() => return Loss::Expired,
                Ok(Renewed::NotHeld) => return Loss::Released,
                Ok(Renewed::HeldByAnother) => return Loss::HeldByAnother,
                Ok(Renewed::TakenOver) => return Loss::TakenOver,
                // It is safe to repeat, until the lease may be over.
                Err(_) => {
                    backoff.pause().await;
                    continue;
                }
            };
            let Some(lease) = lease_left(lease, sent_at) else { continue };
            self.renews_at = asked_at + third_of(self.ttl, &lease);
            self.known = Known::of(lease);
            self.is_at_its_end = is_at_its_end || self.most_until <= self.known.ends_at + SHORTEST_PERIOD;
            backoff = retries();
            self.arm();
            // Whoever does not read misses it.
            let _ = self.events.try_send(Sent::Renewed(self.known.clone()));
        }
    }

    async fn ends_with_its_lease(&mut self) -> Loss {
        if !self.is_at_its_end {
            return Loss::Expired;
        }
        // All that was told is over now, or will be in a moment.
        let rest = self.told_until.saturating_sub(boottime());
        if self.guard.is_none() && rest < SHORTEST_PERIOD {
            sleep(rest + TICK).await;
            self.arm();
        }
        // So that the lock is free when its client hears of it, unless the store is slow.
        if let Some(guard) = self.guard.take() {
            let _ = guard.take_back_now(Instant::now() + self.store_timeout / 4).await;
        }
        Loss::MaxHoldReached
    }

    /// Has the lock be taken back when the connection ends, once nothing that was told before stands in the way.
    fn arm(&mut self) {
        if self.guard.is_none() && boottime() >= self.told_until {
            let token = self.token.hash();
            let guard =
                self.cleaner.guard_attempt(&self.key, token, self.attempt, self.ttl, PlaceAfter::Removed);
            self.guard = Some(guard);
        }
    }

    /// Waits until the lock may be taken back, unless it ends by itself before.
    async fn await_what_was_told(&mut self) {
        let left = self.told_until.saturating_sub(boottime());
        if self.guard.is_none() && left < self.known.left() {
            tokio::select! {
                () = self.closing.cancelled() => {}
                // As long again as a clock's tick, so that the time is over for certain.
                () = sleep(left + TICK) => self.arm(),
            }
        }
    }

    async fn renew(&self, patience: Duration) -> Result<Renewed, StoreError> {
        let most = self.most_until.saturating_sub(boottime());
        // With nothing left to gain it still tells whether the lock is ours.
        let ttl = Ttl::from_ms(whole_ms(self.ttl.as_duration().min(most)).max(1)).unwrap_or(self.ttl);
        self.renew_for(ttl, patience).await
    }

    async fn renew_for(&self, ttl: Ttl, patience: Duration) -> Result<Renewed, StoreError> {
        let by = Renewer::Connection(self.attempt);
        self.store.renew(&self.key, &self.token.hash(), ttl, by, Instant::now() + patience).await
    }

    /// Renews once more, and leaves the lock to the token, for whatever request shows it next.
    async fn hand_over(&mut self) -> Loss {
        let deadline = Instant::now() + self.store_timeout;
        loop {
            let sent_at = boottime();
            match self.renew(self.store_timeout / 2).await {
                Ok(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => {
                    self.known = lease_left(lease, sent_at).map_or_else(|| self.known.clone(), Known::of);
                    break;
                }
                Ok(Renewed::NotHeld) => return Loss::Released,
                Ok(Renewed::HeldByAnother) => return Loss::HeldByAnother,
                Ok(Renewed::TakenOver) => return Loss::TakenOver,
                // Where nothing is known, the lease is what it was.
                Err(_) if !pause_before(deadline).await => break,
                Err(_) => {}
            }
        }
        let Some(lease) = self.known.now() else { return Loss::Expired };
        self.leave_to_its_lease();
        Loss::ShuttingDown(lease)
    }
}

/// When a lease is renewed: after a third of the ttl, or of what is left of it, where it was cut.
fn third_of(ttl: Ttl, lease: &Lease) -> Duration {
    let (ttl, left) = (ttl.as_duration(), Duration::from_millis(lease.left_ms));
    let is_cut = left < ttl / 2;
    (if is_cut { left / 3 } else { ttl / 3 }).max(SHORTEST_PERIOD)
}

fn retries() -> Backoff {
    Backoff::new(RETRY_PAUSE, LONGEST_PAUSE)
}
