//! What keeps a lock for a connection: renews it, and ends it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::roll_back::Cleaner;
use super::super::time::{RETRY_PAUSE, lease_left, pause_before};
use super::super::{Doing, GrantGuard};
use super::{Known, Loss, Sent};
use crate::clock::{Backoff, boottime, whole_ms};
use crate::lock::{Attempt, Lease, LeaseToken, LockKey, Renewed, Ttl};
use crate::store::{MeteredStore, Renew, Renewer, StoreError};
use crate::telemetry::metrics::metrics;

/// The shortest time between two renewals, toward the end of `max_hold`.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// How much too early a sleep may end.
const TICK: Duration = Duration::from_millis(2);
/// The longest pause before a renewal that failed is sent again: it doubles up to there.
const LONGEST_PAUSE: Duration = Duration::from_millis(640);

/// Completes when the caller may no longer hold the lock.
pub type Denial = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What keeps a lock for a connection. Dropped, it rolls the lock back, if that is still this connection's.
pub(super) struct Keeper {
    pub(super) store: MeteredStore,
    pub(super) cleaner: Arc<Cleaner>,
    pub(super) store_timeout: Duration,
    pub(super) closing: CancellationToken,
    pub(super) key: LockKey,
    pub(super) token: LeaseToken,
    pub(super) ttl: Ttl,
    /// By which the lock is held.
    pub(super) attempt: Attempt,
    pub(super) known: Known,
    /// The end of what was asked for as `max_hold`, also where the token held the lock before without such an end, by the
    /// clock of [`boottime`].
    pub(super) most_until: Duration,
    pub(super) renews_at: Instant,
    /// Whether the lease has become as long as it may ever be.
    pub(super) is_at_its_end: bool,
    /// When every lease is over that was told before this connection had the lock, by the clock of [`boottime`]. What was told
    /// is true to its end, whatever becomes of this connection, which may be that of a late copy of a request.
    pub(super) told_until: Duration,
    pub(super) guard: GrantGuard,
    /// Whether its client is being told of the lease.
    pub(super) is_told: bool,
    /// Its other end is dropped with the connection.
    pub(super) events: mpsc::Sender<Box<Sent>>,
    pub(super) permit: Arc<OwnedSemaphorePermit>,
}

impl Keeper {
    pub(super) async fn keep(mut self, mut denied: Denial) {
        let started = Instant::now();
        self.is_told = true;
        self.guard.is_held(self.known.lease.clone(), self.told_until);
        // The last word has a place of its own.
        let Ok(last_word) = self.events.clone().reserve_owned().await else {
            return self.release(Some(denied));
        };
        let (events, closing) = (self.events.clone(), self.closing.clone());
        let loss = tokio::select! {
            biased;
            () = events.closed() => None,
            // Here and not where the client is told: one that takes nothing is not told of it, and must not go on either.
            () = &mut denied => Some(Loss::KeyRefused),
            () = closing.cancelled() => Some(match self.renew_until_answered().await {
                Ok(Some(loss)) => loss,
                // Where nothing is known, the lease is what it was.
                Ok(None) | Err(_) => self.known.now().map_or(Loss::Expired, Loss::ShuttingDown),
            }),
            loss = self.renew_until_lost() => Some(loss),
        };
        // This hold counts for its caller until its lock is released, if that is still to be done, or over; else no longer.
        let counted = loss.is_none().then_some(denied);
        let is_to_be_released = matches!(loss, None | Some(Loss::KeyRefused));
        let held_ms = whole_ms(started.elapsed());
        let key = self.key.as_str();
        match loss {
            None => {
                // What becomes of the lock, the roll-back says.
                tracing::info!(
                    key,
                    held_ms,
                    "a connection that held a lock was closed: the lock is being released"
                );
            }
            Some(loss) => {
                metrics().leases_lost.count(loss.reason());
                tracing::info!(
                    key,
                    held_ms,
                    reason = loss.reason().name(),
                    "a connection lost the lock that it held"
                );
                last_word.send(Box::new(match loss {
                    Loss::ShuttingDown(_) => Sent::HandedOver(self.known.clone(), self.guard.take()),
                    loss => Sent::Lost(loss),
                }));
            }
        }
        if is_to_be_released {
            self.release(counted);
        }
    }

    /// Has the lock released in the background. Until then, or until its lease is over, it counts as one of those at this gateway, and for
    /// its caller while `counted` lives.
    fn release(&mut self, counted: Option<Denial>) {
        let lease_ends = Instant::now() + self.known.left();
        self.guard.take().roll_back_in((self.permit.clone(), counted), lease_ends);
    }

    /// Renews a lock that the token held before, whose lease may be about to end: what the client is told at first is to be as
    /// long as it asked for. Where that is not answered in time, it is the first renewal that does it.
    pub(super) async fn lengthen(&mut self) -> Result<(), StoreError> {
        let sent_at = boottime();
        let renewed = self.renew(self.untold(), self.store_timeout / 4).await;
        let is_longest = matches!(renewed, Ok(Renewed::MaxHoldReached(_)));
        match renewed {
            Ok(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => {
                if let Some(known) = Known::of(lease, sent_at, self.most_until) {
                    self.renews_at = Instant::now() + third_of(self.ttl, &known.lease);
                    self.learn(known, is_longest);
                }
                Ok(())
            }
            Ok(Renewed::NotHeld | Renewed::Released | Renewed::HeldByAnother) => {
                Err(StoreError::Unavailable("the lease of the token ended just then".to_owned()))
            }
            Ok(Renewed::TakenOver) | Err(_) => {
                self.renews_at = Instant::now();
                Ok(())
            }
        }
    }

    fn learn(&mut self, known: Known, is_longest: bool) {
        self.known = known;
        self.is_at_its_end = is_longest || self.most_until <= self.known.ends_at + SHORTEST_PERIOD;
    }

    /// Renews at each third of the lease, whatever the client does.
    pub(super) async fn renew_until_lost(&mut self) -> Loss {
        let mut backoff = retries();
        loop {
            sleep_until(self.renews_at.min(Instant::now() + self.known.left())).await;
            let left = self.known.left();
            if left.is_zero() {
                return self.ends_with_its_lease().await;
            }
            let (sent_at, asked_at) = (boottime(), Instant::now());
            let (lease, is_at_its_end) =
                match self.renew(Renewer::Connection, left.min(self.store_timeout / 2)).await {
                    Ok(Renewed::Renewed(lease)) => (lease, false),
                    Ok(Renewed::MaxHoldReached(lease)) => (lease, true),
                    Ok(Renewed::NotHeld) if self.known.left().is_zero() => return Loss::Expired,
                    Ok(Renewed::NotHeld | Renewed::Released) => return Loss::Released,
                    Ok(Renewed::HeldByAnother) => return Loss::HeldByAnother,
                    Ok(Renewed::TakenOver) => return Loss::TakenOver,
                    // It is safe to repeat, until the lease may be over.
                    Err(_) => {
                        backoff.pause().await;
                        continue;
                    }
                };
            let Some(known) = Known::of(lease, sent_at, self.most_until) else { continue };
            self.renews_at = asked_at + third_of(self.ttl, &known.lease);
            self.learn(known, is_at_its_end);
            backoff = retries();
            // A client that does not read misses it.
            let _ = self.events.try_send(Box::new(Sent::Renewed(self.known.clone())));
        }
    }

    async fn ends_with_its_lease(&mut self) -> Loss {
        if !self.is_at_its_end {
            return Loss::Expired;
        }
        // Where what was told before is over in a moment, the lock is to be free by then.
        let rest = self.told_until.saturating_sub(boottime());
        if !rest.is_zero() && rest < SHORTEST_PERIOD {
            sleep(rest + TICK).await;
        }
        // So that the lock is free when its client hears of it, unless the store is slow.
        let _ = self.guard.take().roll_back_now(Instant::now() + self.store_timeout / 4).await;
        Loss::MaxHoldReached
    }

    /// Who renews where the client is told of the lease next. Until then, those that come before need no replicas.
    fn untold(&self) -> fn(Attempt) -> Renewer {
        if self.is_told { Renewer::Connection } else { Renewer::NewConnection }
    }

    async fn renew(&self, by: fn(Attempt) -> Renewer, patience: Duration) -> Result<Renewed, StoreError> {
        let most = self.most_until.saturating_sub(boottime());
        // With nothing left to gain it still tells whether the lock is ours.
        let ttl = Ttl::from_ms(whole_ms(self.ttl.as_duration().min(most))).unwrap_or(Ttl::SHORTEST);
        let by = by(self.attempt);
        let sent_at = boottime();
        let (key, token) = (self.key.clone(), self.token.hash());
        let renewed = self.store.call(Renew { key, token, ttl, by }, Instant::now() + patience).await;
        let watch = &self.cleaner.watch;
        if let Ok(lost @ (Renewed::NotHeld | Renewed::Released | Renewed::HeldByAnother)) = &renewed {
            self.cleaner.ledger.lost(&self.key, &token, sent_at, *lost == Renewed::NotHeld);
        }
        if let Ok(Renewed::Renewed(lease)) = &renewed
            && let Some(lease) = lease_left(lease.clone(), sent_at)
        {
            self.cleaner.ledger.lasts(&self.key, &lease, sent_at);
            watch.tell(&self.key, || Doing::Renewed(lease));
        }
        watch.or_unclear(&self.key, renewed)
    }

    /// Renews once more: before the client is told of several locks at once, or before the lock is left to the token, for whatever
    /// request shows it next. Returns how it was lost, if it was.
    pub(super) async fn renew_until_answered(&mut self) -> Result<Option<Loss>, StoreError> {
        // Its client is told no later than when the lease is over.
        let deadline = Instant::now() + self.store_timeout.min(self.known.left());
        loop {
            let sent_at = boottime();
            let left = deadline.saturating_duration_since(Instant::now());
            match self.renew(self.untold(), left.min(self.store_timeout / 2)).await {
                Ok(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => {
                    if let Some(known) = Known::of(lease, sent_at, self.most_until) {
                        self.known = known;
                    }
                    return Ok(self.known.left().is_zero().then_some(Loss::Expired));
                }
                Ok(Renewed::NotHeld | Renewed::Released) => return Ok(Some(Loss::Released)),
                Ok(Renewed::HeldByAnother) => return Ok(Some(Loss::HeldByAnother)),
                Ok(Renewed::TakenOver) => return Ok(Some(Loss::TakenOver)),
                Err(error) if !pause_before(deadline).await => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// When a lease is renewed: after a third of the ttl, or of what is left of it, where it was cut.
pub(super) fn third_of(ttl: Ttl, lease: &Lease) -> Duration {
    let (ttl, left) = (ttl.as_duration(), Duration::from_millis(lease.left_ms));
    let is_cut = left < ttl / 2;
    (if is_cut { left / 3 } else { ttl / 3 }).max(SHORTEST_PERIOD)
}

fn retries() -> Backoff {
    Backoff::new(RETRY_PAUSE, LONGEST_PAUSE)
}
