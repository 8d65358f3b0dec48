//! A request that waits for its turn, from its first command to its answer.

use std::future::ready;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::acquire::not_granted;
use super::ledger::Counted;
use super::time::RETRY_PAUSE;
use super::wakeups::Waiting;
use super::{AcquireRequest, Acquisition, Doing, GrantGuard, LockService, NotAcquired, Outcome};
use crate::clock::{Backoff, boottime, jittered};
use crate::lock::{Acquired, Attempt, Enqueued, LastPolled, LeaseToken, Polled, TokenHash};
use crate::store::{Enqueue, LastPoll, MeteredStore, Poll, StoreError};
use crate::telemetry::metrics::{DoubtEnded, metrics};

/// The longest pause before an unanswered command is followed by another. Pauses double up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// After that, a poll of which nothing was done is followed by another at most so long later: in an outage the first waiters of all
/// locks poll. A bell ends this pause.
const POLL_IN_OUTAGE: Duration = Duration::from_secs(2);
/// How often a request polls if another request of the same token has taken over its ticket.
const LOOK_WHEN_MOVED: Duration = Duration::from_secs(1);

/// A request that waits.
struct Waiter {
    token: TokenHash,
    attempt: Attempt,
    waiting: Waiting,
    guard: GrantGuard,
    /// Whether its token may have left a ticket here before.
    had_ticket: bool,
    step: Step,
    /// How many attempts before this one had a last command that was not answered.
    superseded: u32,
    /// Whether a command was not answered, and none since.
    is_in_doubt: bool,
    backoff: Backoff,
    /// For the time in which it puts its ticket back.
    permit: Option<OwnedSemaphorePermit>,
    /// The end of the wait. The answer is given up later, by the time that the store is given.
    ends_at: Instant,
}

/// What a request does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To take a ticket, or the token's own.
    Enqueue,
    /// To take the ticket again, if no other request of the same token waits with it.
    PutBack,
    /// To look whether it is its turn.
    Poll,
    /// The same for the last time.
    LastPoll,
}

/// What follows an answer of the store.
enum Next {
    /// It sleeps until it is rung, at the latest until then.
    Sleep(Instant),
    /// It asks again.
    Ask,
    /// It is over.
    HandOut(Acquired<NotAcquired>),
}

/// What a store answers to a command of a request that waits.
enum Told {
    Waits(Polled),
    Ends(NotAcquired),
}

impl From<Enqueued> for Told {
    fn from(enqueued: Enqueued) -> Self {
        match enqueued {
            Enqueued::Polled(polled) => Self::Waits(polled),
            Enqueued::QueueFull => Self::Ends(NotAcquired::TooManyWaiters),
        }
    }
}

impl From<LastPolled> for Told {
    fn from(polled: LastPolled) -> Self {
        match polled {
            LastPolled::Refused(refusal) => Self::Ends(NotAcquired::Refused(refusal)),
            LastPolled::TicketLost => Self::Waits(Polled::TicketLost),
        }
    }
}

impl LockService {
    /// Takes a lock, after waiting for its turn for at most the request's `wait`.
    ///
    /// After a command without an answer comes one of a fresh attempt, which supersedes the attempts before. One step
    /// takes over what they were given, and voids what copies of them could still do. So no attempt ends in doubt, and a
    /// grant whose answer was lost is found.
    pub(super) fn acquire_in_turn<'a>(
        &'a self,
        attempt: Attempt,
        token: LeaseToken,
        request: Box<AcquireRequest>,
        room: &'a mut Option<Counted>,
    ) -> impl Future<Output = Result<Acquisition, StoreError>> + Send + 'a {
        let Ok(place) = self.wait_permits.try_acquire() else {
            return Either::Left(ready(Ok(not_taken(token, NotAcquired::TooManyWaiters))));
        };
        let bucket = self.store.bucket_of(&request.key);
        let waiting = self.wakeups.enter(&request.key, bucket, attempt);
        let mut waiter = Waiter::new(token.hash(), attempt, waiting, Instant::now() + request.wait);
        // All of this is borrowed below: what is moved takes room twice.
        Either::Right(async move {
            let _place = &place;
            if self.wakeups.closing.is_cancelled() {
                return Ok(not_taken(token, NotAcquired::ShuttingDown));
            }
            // The store must hear of the gateway before it hears of a waiter.
            match timeout_at(self.deadline(), Box::pin(self.heartbeats.be_heard(bucket))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(StoreError::Unavailable(error.into_reason())),
                Err(_) => return Err(StoreError::Unavailable("the store does not answer".into())),
            }
            // From the first command on, since its answer may be lost.
            waiter.had_ticket = request.tenant.keeps_ticket(true);
            let ticket = request.ticket_after();
            let guard = self.cleaner.guard(&request.lock_request(waiter.token, waiter.attempt), ticket);
            waiter.guard = guard.on_account(request.tenant.account.as_ref());
            loop {
                let sent_at = boottime();
                // What soon passes is boxed, so that a request that waits has no room for it.
                let until = self.until(waiter.ends_at + self.store_timeout);
                let asked = Box::pin(waiter.ask_or_pause(&self.store, &request, until, self.store_timeout));
                let Some(answer) = asked.await? else {
                    if self.wakeups.closing.is_cancelled() {
                        // The guard is dropped armed.
                        let reason = "the gateway is stopping".to_owned();
                        return if waiter.is_in_doubt {
                            metrics().doubts.count(DoubtEnded::Unknown);
                            Err(StoreError::Unknown(reason))
                        } else {
                            Ok(not_taken(token, NotAcquired::ShuttingDown))
                        };
                    }
                    continue;
                };
                drop(waiter.permit.take());
                let looks_again_at = match self.next_step(&mut waiter, &request, answer, room) {
                    Next::Sleep(until) => until,
                    Next::Ask => continue,
                    Next::HandOut(answer) => {
                        let Waiter { attempt, guard, ends_at, .. } = waiter;
                        let deadline = ends_at + self.store_timeout;
                        let handed = self.hand_out(&request, answer, attempt, sent_at, guard, deadline);
                        return Box::pin(handed).await.map(|outcome| Acquisition { token, outcome });
                    }
                };
                waiter.sleep(looks_again_at).await;
                if self.wakeups.closing.is_cancelled() {
                    // Its ticket is kept for a while, for the same token at another gateway. Where that fails, it goes on
                    // in the background.
                    drop(waiter.guard.roll_back_now(self.deadline()).await);
                    return Ok(not_taken(token, NotAcquired::ShuttingDown));
                }
            }
        })
    }

    /// Notes what the store has answered to a request that waits, and says what follows.
    fn next_step(
        &self,
        waiter: &mut Waiter,
        request: &AcquireRequest,
        answer: Acquired<Told>,
        room: &mut Option<Counted>,
    ) -> Next {
        let was_last = waiter.is_answered();
        let answer = match answer.or_not_taken() {
            Err(Told::Waits(polled)) => {
                // It has no lock yet, and may never get one. Its grant is counted when it comes.
                *room = None;
                return match polled {
                    Polled::Queued(position) => {
                        if waiter.waiting.ticket().is_none() {
                            self.watch.tell(&request.key, || Doing::Line);
                        }
                        waiter.waiting.note(&position);
                        waiter.guard.has_ticket(position.ticket);
                        Next::Sleep(waiter.ends_at)
                    }
                    Polled::Moved(position) => {
                        waiter.waiting.note(&position);
                        Next::Sleep(waiter.ends_at.min(Instant::now() + LOOK_WHEN_MOVED))
                    }
                    Polled::TicketLost => {
                        // A late copy of a last poll would end what comes after it.
                        if was_last {
                            waiter.supersede();
                        }
                        waiter.step = Step::PutBack;
                        Next::Ask
                    }
                };
            }
            Err(Told::Ends(why)) => Acquired::NotTaken(why),
            Ok(answer) => answer,
        };
        if waiter.waiting.ticket().is_some() {
            self.watch.tell(&request.key, || Doing::Line);
        }
        // The ticket is also kept if the grant then reaches no client, or has not reached enough replicas.
        let keeps_ticket = match answer {
            Acquired::Granted(_) | Acquired::NotTaken(NotAcquired::Refused(_)) => true,
            Acquired::NotReplicated { is_new: true, .. } => waiter.waiting.ticket().is_some(),
            _ => false,
        };
        request.tenant.keeps_ticket(keeps_ticket);
        Next::HandOut(answer)
    }
}

fn not_taken(token: LeaseToken, why: NotAcquired) -> Acquisition {
    Acquisition { token, outcome: Outcome::NotTaken(why) }
}

/// The pauses between commands that are not answered.
fn retries() -> Backoff {
    Backoff::new(RETRY_PAUSE, LONGEST_PAUSE)
}

impl Waiter {
    fn new(token: TokenHash, attempt: Attempt, waiting: Waiting, ends_at: Instant) -> Self {
        let (guard, step, backoff) = (GrantGuard::default(), Step::Enqueue, retries());
        let (had_ticket, superseded, is_in_doubt, permit) = (false, 0, false, None);
        Self {
            token,
            attempt,
            waiting,
            guard,
            had_ticket,
            step,
            superseded,
            is_in_doubt,
            backoff,
            permit,
            ends_at,
        }
    }

    /// Sleeps until it is rung, at the latest until then.
    async fn sleep(&mut self, until: Instant) {
        // The end of the wait is no news.
        timeout_at(until, self.waiting.rung()).await.unwrap_or_default();
        self.permit = self.waiting.put_back();
        if self.permit.is_some() {
            self.step = Step::PutBack;
        }
    }

    /// Sends the next command. Where it is not answered, returns nothing once another one may be sent, or gives up.
    async fn ask_or_pause(
        &mut self,
        store: &MeteredStore,
        request: &AcquireRequest,
        until: Instant,
        store_timeout: Duration,
    ) -> Result<Option<Acquired<Told>>, StoreError> {
        match self.ask(store, request, until).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => self.goes_on_after(error, request, store_timeout).await.map(|()| None),
        }
    }

    async fn ask(
        &mut self,
        store: &MeteredStore,
        request: &AcquireRequest,
        until: Instant,
    ) -> Result<Acquired<Told>, StoreError> {
        if self.step == Step::Poll && Instant::now() >= self.ends_at {
            self.step = Step::LastPoll;
        }
        let lock = request.lock_request(self.token, self.attempt);
        match self.step {
            Step::Poll => Ok(store.call(Poll(lock), until).await?.map(Told::Waits)),
            Step::LastPoll => {
                let ticket = request.ticket_after();
                Ok(store.call(LastPoll { lock, ticket }, until).await?.map(Told::from))
            }
            Step::Enqueue | Step::PutBack => {
                let takes_over = self.step == Step::Enqueue;
                let ticket = if takes_over { None } else { self.waiting.ticket() };
                let supersedes = self.waiting.attempts_before(self.superseded);
                let enqueue = Enqueue { lock, takes_over, ticket, supersedes };
                Ok(store.call(enqueue, until).await?.map(Told::from))
            }
        }
    }

    /// The last command was answered, and with it what came before. Returns whether it was the last poll.
    fn is_answered(&mut self) -> bool {
        self.superseded = 0;
        if std::mem::take(&mut self.is_in_doubt) {
            metrics().doubts.count(DoubtEnded::Answered);
        }
        self.guard.keep_last();
        self.backoff = retries();
        std::mem::replace(&mut self.step, Step::Poll) == Step::LastPoll
    }

    /// Goes on under a fresh attempt, which stands for those before.
    fn supersede(&mut self) {
        self.superseded += 1;
        self.attempt = self.attempt.another();
        self.waiting.also_answers_to(self.attempt);
        self.guard.covers(self.attempt);
    }

    /// Prepares for another command, after a pause, where the last one was not answered; or gives up.
    async fn goes_on_after(
        &mut self,
        error: StoreError,
        request: &AcquireRequest,
        store_timeout: Duration,
    ) -> Result<(), StoreError> {
        let is_unknown = matches!(error, StoreError::Unknown(_));
        let reason = error.into_reason();
        self.is_in_doubt |= is_unknown;
        // A request without a ticket is told at once that the store cannot be reached.
        if self.waiting.ticket().is_none() && !self.is_in_doubt {
            self.guard.take().disarm();
            request.tenant.keeps_ticket(self.had_ticket);
            return Err(StoreError::Unavailable(reason));
        }
        if !is_unknown && self.step == Step::Poll && self.backoff.next() >= LONGEST_PAUSE {
            let pause = jittered(POLL_IN_OUTAGE);
            self.sleep(self.ends_at.min(Instant::now() + pause)).await;
            return Ok(());
        }
        if Instant::now() + self.backoff.next() >= self.ends_at + store_timeout {
            if self.is_in_doubt {
                metrics().doubts.count(DoubtEnded::Unknown);
            }
            // The guard is dropped armed: the ticket and what is in doubt are seen to in the background.
            return Err(not_granted(!self.is_in_doubt, reason));
        }
        // A last poll voids itself, so it may be sent again as it is.
        if is_unknown && self.step != Step::LastPoll {
            self.supersede();
            if self.step == Step::Poll {
                self.step = Step::PutBack;
            }
        }
        self.backoff.pause().await;
        Ok(())
    }
}
