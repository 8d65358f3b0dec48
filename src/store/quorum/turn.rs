//! What a request does at its own gateway before and after it asks the servers: it waits for its turn to try, and
//! others wait for it.

use std::time::Duration;

use tokio::time::Instant;

use super::QuorumStore;
use super::proposal::Proposal;
use super::waiters::{AT_ONCE, WaitState};
use crate::clock::boottime;
use crate::lock::{Acquired, Attempt, Confirmed, Enqueued, LastPolled, LockKey, Polled, Refusal, Slots};
use crate::store::wait_queue::{QueueFull, QueueTurn, SlotRoom};
use crate::store::{
    AnswerTo, Confirm, Enqueue, KnownTo, LastPoll, LockRequest, Poll, StoreError, TicketAfter, Try,
};

/// A request for a lock, of any kind.
#[derive(Clone, Copy)]
struct Asking<'a> {
    lock: &'a LockRequest,
    supersedes: &'a [Attempt],
    waits: bool,
    has_waited: bool,
}

impl<'a> Asking<'a> {
    fn at_once(lock: &'a LockRequest) -> Self {
        Self { lock, supersedes: &[], waits: false, has_waited: false }
    }

    fn waiting(lock: &'a LockRequest) -> Self {
        Self { waits: true, has_waited: true, ..Self::at_once(lock) }
    }
}

impl QuorumStore {
    /// Takes a lock that has no waiters here, or says why not.
    pub(super) async fn try_lock(&self, Try(lock): &Try, deadline: Instant) -> AnswerTo<Try> {
        let (LockRequest { key, token, .. }, asking) = (lock, Asking::at_once(lock));
        let _turn = self.waiters.turn(key, deadline).await?;
        let may_take = self.waiters.step(|state, now| {
            let held = state.held(key, now);
            !state.queues.has_queue(key, now) || state.queues.pass(key, token, Slots::ONE, held.into(), now)
        });
        if may_take {
            return self.attempt(asking, Trying::of(self, key), deadline).await;
        }
        // Waiters come first; but the token may hold the lock already.
        self.ask(asking, deadline).await
    }

    /// Says whether the token holds the lock already.
    pub(super) async fn confirm(&self, Confirm(lock): &Confirm, deadline: Instant) -> AnswerTo<Confirm> {
        Ok(match self.ask(Asking::at_once(lock), deadline).await? {
            Acquired::Granted(_) => Confirmed::AlreadyHeld(self.pin(lock, deadline).await?),
            Acquired::AlreadyHeld(lease) => Confirmed::AlreadyHeld(lease),
            Acquired::NotReplicated { reason, .. } => Confirmed::NotReplicated(reason),
            Acquired::TokenReleased
            | Acquired::NotTaken(Refusal { holder: None, holder_unknown: false, .. }) => {
                Confirmed::TokenReleased
            }
            Acquired::AttemptVoided => Confirmed::AttemptVoided,
            Acquired::HeldOtherwise(slots) => Confirmed::HeldOtherwise(slots),
            // Only a request that has waited is told this.
            Acquired::TakenOver => return Err(StoreError::Unknown("the lock was taken over".to_owned())),
            Acquired::NotTaken(refusal) => Confirmed::Refused(refusal),
        })
    }

    /// Takes a ticket of the wait queue, and looks whether it is this ticket's turn.
    pub(super) async fn enqueue(&self, request: &Enqueue, deadline: Instant) -> AnswerTo<Enqueue> {
        let Enqueue { lock, ticket, supersedes, takes_over } = request;
        let LockRequest { key, token, attempt, .. } = lock;
        let joined = self.waiters.step(|state, now| {
            state.queues.prepare(key, token, supersedes, *attempt, now);
            state.queues.join(request, now)
        });
        // What it supersedes was asked a while ago.
        let has_waited = !takes_over || !supersedes.is_empty();
        let asking = Asking { supersedes, has_waited, ..Asking::waiting(lock) };
        let answer = self.look_once_joined(asking, joined, deadline).await;
        if matches!(answer, Err(StoreError::Unavailable(_))) {
            // A request that is told that nothing happened must block no other.
            let ticket = if ticket.is_some() { TicketAfter::Kept } else { TicketAfter::Removed };
            self.waiters
                .step(|state, now| state.queues.vacate(key, token, *attempt, ticket, SlotRoom::FREE, now));
        }
        answer
    }

    async fn look_once_joined(
        &self,
        asking: Asking<'_>,
        joined: Result<(), QueueFull>,
        deadline: Instant,
    ) -> Result<Acquired<Enqueued>, StoreError> {
        if joined.is_ok()
            && let Some(answer) = self.look(asking, deadline).await?
        {
            return Ok(answer);
        }
        // The token may hold the lock already, or have been released; and only now do the servers know who waits.
        match self.ask(asking, deadline).await?.or_not_taken() {
            Ok(answer) => Ok(answer),
            Err(_) if joined.is_err() => Ok(Acquired::NotTaken(Enqueued::QueueFull)),
            // The lock may be free after all.
            Err(_) => Ok(match self.look(asking, deadline).await? {
                Some(answer) => answer,
                None => Acquired::NotTaken(Enqueued::Polled(self.position_of(asking))),
            }),
        }
    }

    /// Goes on waiting: takes the lock if it is the turn of the attempt's ticket.
    pub(super) async fn poll(&self, Poll(lock): &Poll, deadline: Instant) -> AnswerTo<Poll> {
        let asking = Asking::waiting(lock);
        if let Some(answer) = self.look(asking, deadline).await? {
            return Ok(answer);
        }
        let polled = self.position_of(asking);
        if polled != Polled::TicketLost {
            return Ok(Acquired::NotTaken(polled));
        }
        // Another request of the token may have been granted the lock, or have released it.
        Ok(self.ask(asking, deadline).await?.map(|_| Polled::TicketLost))
    }

    /// Takes the lock if it is the turn of the attempt's ticket. Nothing, where that is not so.
    async fn look<T>(
        &self,
        asking: Asking<'_>,
        deadline: Instant,
    ) -> Result<Option<Acquired<T>>, StoreError> {
        let LockRequest { key, token, attempt, .. } = asking.lock;
        let turn = self.waiters.step(|state, now| {
            let turn = state.queues.look(key, token, *attempt, Slots::ONE, state.held(key, now).into(), now);
            if turn == QueueTurn::Take {
                // No other request is to try meanwhile, and the offer does not lapse.
                state.note_held(key, deadline.saturating_duration_since(Instant::now()), now);
            }
            turn
        });
        if turn != QueueTurn::Take {
            return Ok(None);
        }
        let trying = Trying::of(self, key);
        let _turn = self.waiters.turn(key, deadline).await?;
        Ok(self.attempt(asking, trying, deadline).await?.or_not_taken().ok())
    }

    /// The last poll: if it is not granted the lock, the request leaves.
    pub(super) async fn last_poll(
        &self,
        LastPoll { lock, ticket }: &LastPoll,
        deadline: Instant,
    ) -> AnswerTo<LastPoll> {
        let LockRequest { key, attempt, .. } = lock;
        // A poll never makes a ticket that it did not find: a late copy would make one without a client.
        let (is_spent, is_lost) = self.waiters.step(|state, now| {
            let is_free = state.held(key, now).is_none() && !state.queues.has_queue(key, now);
            (state.is_spent(attempt), is_free)
        });
        let answer = match is_spent {
            false if is_lost => return Ok(Acquired::NotTaken(LastPolled::TicketLost)),
            false => self.look_or_ask(Asking::waiting(lock), deadline).await,
            // What the same last look did before may still be on its way to be undone: it is granted nothing any more.
            true => Ok(Acquired::AttemptVoided),
        };
        let ended = match answer {
            Ok(Acquired::AttemptVoided) => {
                let refusal = Refusal { holder_unknown: true, ..Refusal::default() };
                self.end(lock, *ticket, refusal, deadline).await
            }
            Ok(answer) => match answer.or_not_taken() {
                Ok(answer) => Ok(answer),
                Err(refusal) => self.end(lock, *ticket, refusal, deadline).await,
            },
            Err(error) => Err(error),
        };
        if ended.is_err() {
            self.waiters.step(|state, now| state.spend(*attempt, now));
        }
        ended
    }

    async fn look_or_ask(
        &self,
        asking: Asking<'_>,
        deadline: Instant,
    ) -> Result<Acquired<Refusal>, StoreError> {
        match self.look(asking, deadline).await? {
            Some(answer) => Ok(answer),
            None => self.ask(asking, deadline).await,
        }
    }

    /// Ends the wait of an attempt that was not granted the lock. This is always done, since a copy of an earlier
    /// command of it may still be on its way.
    async fn end(
        &self,
        lock: &LockRequest,
        ticket: TicketAfter,
        refusal: Refusal,
        deadline: Instant,
    ) -> Result<Acquired<LastPolled>, StoreError> {
        let LockRequest { key, token, attempt, .. } = lock;
        self.roll_back_all(key, token, *attempt, KnownTo::Nobody, deadline).await?;
        self.waiters.step(|state, now| state.queues.end(key, token, *attempt, ticket, now));
        Ok(Acquired::NotTaken(LastPolled::Refused(self.with_line(lock, refusal))))
    }

    /// Where an attempt stands that was not granted the lock.
    fn position_of(&self, asking: Asking<'_>) -> Polled {
        let LockRequest { key, token, attempt, .. } = asking.lock;
        self.waiters.step(|state, now| {
            match state.queues.look(key, token, *attempt, Slots::ONE, state.held(key, now).into(), now) {
                QueueTurn::InLine(position) => Polled::Queued(position),
                QueueTurn::Moved(position) => Polled::Moved(position),
                QueueTurn::Lost => Polled::TicketLost,
                // It has become free just now: another look takes it.
                QueueTurn::Take => {
                    state.queues.withdrawn(key, now);
                    match state.queues.look(key, token, *attempt, Slots::ONE, Some(AT_ONCE).into(), now) {
                        QueueTurn::InLine(position) => Polled::Queued(position),
                        _ => Polled::TicketLost,
                    }
                }
            }
        })
    }

    /// Tries to take the lock; the queue of this gateway has given it the turn.
    async fn attempt(
        &self,
        asking: Asking<'_>,
        trying: Trying<'_>,
        deadline: Instant,
    ) -> Result<Acquired<Refusal>, StoreError> {
        let Asking { lock: request, supersedes, waits, has_waited } = asking;
        let channel = self.channel_for(asking);
        let proposal = Proposal { request, supersedes, grants: true, channel, waits, has_waited };
        let asked_at = boottime();
        let answer = self.propose(proposal, deadline).await?;
        trying.ends(|state, now| {
            if !matches!(answer, Acquired::Granted(_)) {
                state.queues.withdrawn(&request.key, now);
                state.note_free(&request.key);
            }
            state.learn(request, &answer, asked_at, now);
        });
        Ok(answer.map(|refusal| self.with_line(request, refusal)))
    }

    /// Asks who holds the lock, and pins it if it is the token. Takes nothing.
    async fn ask(&self, asking: Asking<'_>, deadline: Instant) -> Result<Acquired<Refusal>, StoreError> {
        let Asking { lock: request, supersedes, waits, has_waited } = asking;
        let channel = self.channel_for(asking);
        let proposal = Proposal { request, supersedes, grants: false, channel, waits, has_waited };
        let asked_at = boottime();
        let answer = self.propose(proposal, deadline).await?;
        self.waiters.step(|state, now| {
            state.learn(request, &answer, asked_at, now);
            if matches!(answer, Acquired::NotTaken(Refusal { holder: None, .. })) {
                state.queues.freed(&request.key, SlotRoom::FREE, now);
            }
        });
        Ok(answer.map(|refusal| self.with_line(request, refusal)))
    }

    /// Where servers are to tell that the lock is free, if a request waits for it here.
    fn channel_for(&self, asking: Asking<'_>) -> Option<&str> {
        let has_queue =
            asking.waits || self.waiters.step(|state, now| state.queues.has_queue(&asking.lock.key, now));
        has_queue.then_some(&self.channel)
    }

    fn with_line(&self, LockRequest { key, token, .. }: &LockRequest, refusal: Refusal) -> Refusal {
        self.waiters.step(|state, now| {
            let (waiters, position) = (state.queues.waiters(key, now), state.queues.position(key, token));
            Refusal { waiters, position, ..refusal }
        })
    }
}

/// A try to take a lock. Whatever its end, it lets the next request try.
struct Trying<'a> {
    store: &'a QuorumStore,
    key: &'a LockKey,
    is_over: bool,
}

impl<'a> Trying<'a> {
    fn of(store: &'a QuorumStore, key: &'a LockKey) -> Self {
        Self { store, key, is_over: false }
    }

    fn ends(mut self, step: impl FnOnce(&mut WaitState, Duration)) {
        self.is_over = true;
        self.store.waiters.step(step);
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.store.waiters.step(|state, now| {
            state.queues.withdrawn(self.key, now);
            state.note_free(self.key);
        });
    }
}
