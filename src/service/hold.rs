//! A lock that a connection holds: renewed for as long as the connection lives, and rolled back when it ends.
//!
//! The guard of the grant stays armed until the hold ends, and no client is told of the hold's attempt. So the roll back
//! at the end ends this very hold, and never a lock that the same token has taken anew or was told to have. If another
//! request shows the token, it takes the lock out of the connection's hands, and the next renewal finds that.
//!
//! A lease that the token was told of before the connection had the lock lasts to its end. At the end of the hold the
//! store is told how long that is. It then ends the lock by itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::task::TaskTracker;

use super::roll_back::GrantOf;
use super::time::{ends_at, lease_left};
use super::{AcquireRequest, Acquisition, GrantGuard, LockService, NotAcquired, Outcome};
use crate::clock::{boottime, whole_ms};
use crate::lock::{Attempt, Lease, LeaseToken, LockKey, Terms};
use crate::store::{StoreError, TicketAfter};
use crate::telemetry::metrics::LeaseLost;

mod keeper;
mod several;

pub use keeper::Denial;
use keeper::{Keeper, third_of};
pub use several::{HeldSeveral, MOST_LOCKS, Several};

/// The longest silence toward a client.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// Events that wait for a client that does not read; further ones are dropped, but for the last.
const MOST_EVENTS: usize = 4;

/// The answer to a request to hold a lock by a connection.
pub enum Holding {
    /// It is held.
    Held(Hold),
    /// This token does not hold it.
    NotHeld(LeaseToken, NotAcquired),
    /// The gateway has as many holds as it may have.
    TooManyHolds,
}

/// A lock that is held for as long as this lives.
pub struct Hold {
    /// The lock.
    pub key: LockKey,
    /// The token that holds the lock.
    pub token: LeaseToken,
    /// The lease as it was granted.
    pub lease: Lease,
    events: Events,
    /// Goes off when nothing was said for too long.
    silence: Pin<Box<Sleep>>,
    longest_silence: Duration,
    /// What keeps it, until the client is told of it.
    keeper: Option<(Box<Keeper>, Denial, TaskTracker)>,
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
    /// It reached its `max_hold`. The lock is free, unless an earlier lease that the client was told of still runs.
    MaxHoldReached,
    /// The lock has no holder: it was released with the token or broken, or the store has lost it. It may stay taken
    /// for the rest of its `min_hold`.
    Released,
    /// The lease may be over, since it could not be renewed.
    Expired,
    /// Another token holds the lock.
    HeldByAnother,
    /// The token holds the lock, but by another request.
    TakenOver,
    /// The API key no longer allows this hold. The lock is being released.
    KeyRefused,
    /// The server stops. The token holds the lock by this lease, and nothing ends it before its time.
    ShuttingDown(Lease),
}

impl Loss {
    fn reason(&self) -> LeaseLost {
        match self {
            Self::MaxHoldReached => LeaseLost::MaxHoldReached,
            Self::Released => LeaseLost::Released,
            Self::Expired => LeaseLost::Expired,
            Self::HeldByAnother => LeaseLost::HeldByAnother,
            Self::TakenOver => LeaseLost::TakenOver,
            Self::KeyRefused => LeaseLost::KeyRefused,
            Self::ShuttingDown(_) => LeaseLost::ShuttingDown,
        }
    }
}

/// What a keeper has to say. A lease is measured when it is told.
enum Sent {
    Renewed(Known),
    Lost(Loss),
    /// With the guard that rolls the grant back if the client is never told.
    HandedOver(Known, GrantGuard),
}

/// Boxed: a channel has room for 32 at once, and most of it stays empty.
type Events = mpsc::Receiver<Box<Sent>>;

/// The answer to a request for a lock that the gateway is to renew.
enum Kept {
    Held(Box<Keeper>),
    /// This token does not hold it.
    NotHeld(LeaseToken, NotAcquired),
}

/// A lease as the gateway knows it.
#[derive(Clone)]
struct Known {
    lease: Lease,
    /// Its end on the clock of [`boottime`], counted from before it was asked for.
    ends_at: Duration,
}

impl Known {
    /// What the store has said of the lease, as far as the connection may use it: at most until `most_until`. `None` when it is over.
    fn of(lease: Lease, sent_at: Duration, most_until: Duration) -> Option<Self> {
        let ends_at = ends_at(&lease, sent_at).min(most_until);
        Some(Self { ends_at, lease: lease_left(lease, sent_at)? })
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
    /// and for the [`Hold`] as long as it lives. Once it is held, it ends when `denied` completes, whatever its client does.
    pub async fn hold(
        &self,
        request: AcquireRequest,
        denied: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Holding, StoreError> {
        let Ok(permit) = self.hold_permits.clone().try_acquire_owned() else {
            return Ok(Holding::TooManyHolds);
        };
        if self.wakeups.closing.is_cancelled() {
            let token = request.token.unwrap_or_else(LeaseToken::generate);
            return Ok(Holding::NotHeld(token, NotAcquired::ShuttingDown));
        }
        match self.keep(None, request, Arc::new(permit)).await? {
            Kept::Held(keeper) => Ok(Holding::Held(self.for_connection(keeper, Box::pin(denied)))),
            Kept::NotHeld(token, why) => Ok(Holding::NotHeld(token, why)),
        }
    }

    /// Leaves a lock to a connection, which ends when `denied` completes.
    fn for_connection(&self, mut keeper: Box<Keeper>, denied: Denial) -> Hold {
        let (events, received) = mpsc::channel(MOST_EVENTS + 1);
        keeper.events = events;
        let longest_silence = LONGEST_SILENCE.min(keeper.ttl.as_duration() / 2);
        Hold {
            key: keeper.key.clone(),
            token: keeper.token.clone(),
            lease: keeper.known.lease.clone(),
            events: received,
            silence: Box::pin(sleep(longest_silence)),
            longest_silence,
            keeper: Some((keeper, denied, self.holds.clone())),
        }
    }

    /// Takes a lock that the gateway itself is to renew. Where the request has no token, `made` is the one that was made for it.
    async fn keep(
        &self,
        made: Option<LeaseToken>,
        request: AcquireRequest,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<Kept, StoreError> {
        let (key, ttl, account) = (request.key.clone(), request.ttl, request.tenant.account.clone());
        let max_hold = request.terms.max_hold.unwrap_or(Terms::LONGEST_MAX_HOLD);
        let attempt = Attempt::for_connection();
        let Acquisition { token, outcome } = self.acquire_by(attempt, made, Box::new(request)).await?;
        let answered_at = boottime();
        let most_until = answered_at + max_hold;
        let (lease, attempt, guard, ends_at, told_until) = match outcome {
            Outcome::Granted(lease, guard, attempt, ends_at) => {
                (lease, attempt, guard, ends_at, Duration::ZERO)
            }
            Outcome::AlreadyHeld(lease, attempt, [ends_at, told_until]) => {
                let claim = attempt.claim();
                let (of, ticket) = (GrantOf::Lock, TicketAfter::Removed);
                let guard = self.cleaner.guard_attempt(of, &key, token.hash(), claim, ttl, ticket);
                let guard = guard.on_account(account.as_ref());
                (lease, claim, guard, ends_at, told_until)
            }
            Outcome::NotTaken(why) => return Ok(Kept::NotHeld(token, why)),
        };
        let mut keeper = Box::new(Keeper {
            store: self.store.clone(),
            cleaner: self.cleaner.clone(),
            store_timeout: self.store_timeout,
            closing: self.wakeups.closing.clone(),
            key,
            token,
            ttl,
            attempt,
            known: Known { lease: lease.clone(), ends_at: ends_at.min(most_until) },
            most_until,
            renews_at: Instant::now() + third_of(ttl, &lease),
            is_at_its_end: false,
            told_until,
            guard,
            is_told: false,
            // What becomes of it is told to no client, until it is a connection's.
            events: mpsc::channel(1).0,
            permit,
        });
        if !told_until.is_zero() {
            // Whatever becomes of it: what the token was told of before stays true.
            keeper.guard.is_held(lease, told_until);
            keeper.lengthen().await?;
        }
        Ok(Kept::Held(keeper))
    }

    /// How many locks are held by connections at this moment.
    pub fn holds(&self) -> usize {
        self.holds.len()
    }
}

impl Hold {
    /// The client is being told of the grant: from here on the lock is renewed, and its ticket forgotten.
    /// Where this is never called, what was granted is rolled back, and what the token held already lasts as long as it was
    /// told.
    ///
    /// Returns the lease as it is now. `None` where it is over, since the answer was not read for so long; then nothing
    /// more comes.
    pub fn delivered(&mut self) -> Option<Lease> {
        let (keeper, denied, tasks) = self.keeper.take()?;
        let lease = keeper.known.now()?;
        tasks.spawn(keeper.keep(denied));
        Some(lease)
    }

    /// The next thing to tell the client; `None` when there is nothing more.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<HoldEvent>> {
        loop {
            let event = match self.events.poll_recv(context) {
                Poll::Ready(Some(sent)) => match *sent {
                    Sent::Renewed(known) => match known.now() {
                        Some(lease) => HoldEvent::Renewed(lease),
                        // It was not read in time.
                        None => continue,
                    },
                    Sent::Lost(loss) => HoldEvent::Lost(loss),
                    Sent::HandedOver(known, guard) => match known.now() {
                        Some(lease) => {
                            guard.disarm();
                            HoldEvent::Lost(Loss::ShuttingDown(lease))
                        }
                        None => HoldEvent::Lost(Loss::Expired),
                    },
                },
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;
    use crate::lock::{FencingToken, Note};

    #[test]
    fn a_stall_of_the_gateway_lengthens_no_lease_that_it_renews() {
        let fencing_token = FencingToken::new(1).unwrap();
        let lease =
            Lease { fencing_token, left_ms: 60_000, note: Note::default(), is_released: false, slot: None };
        let sent_at = boottime().saturating_sub(Duration::from_secs(20));
        let known = Known::of(lease.clone(), sent_at, Duration::MAX).unwrap();
        // However much later it was counted.
        assert_eq!(known.ends_at, sent_at + Duration::from_millis(59_999));
        let cut = sent_at + Duration::from_secs(30);
        assert_eq!(Known::of(lease.clone(), sent_at, cut).unwrap().ends_at, cut);
        let too_late = Known::of(Lease { left_ms: 20_000, ..lease }, sent_at, Duration::MAX);
        assert!(too_late.is_none(), "it is over");
    }
}
