//! What a request does at its own gateway, before the servers are asked and after: it waits for its turn to try, and others
//! wait for it.

use std::time::Duration;

use tokio::time::Instant;

use super::QuorumStore;
use super::proposal::Proposal;
use super::waiters::{AT_ONCE, WaitState};
use crate::clock::boottime;
use crate::lock::{Acquired, LockKey, Refusal, TokenHash};
use crate::store::wait_queue::{QueueFull, QueueTurn};
use crate::store::{AcquireRequest, Intent, Join, KnownTo, PlaceAfter, StoreError};

impl QuorumStore {
    /// Takes a lock that nobody waits for here, or says why not.
    pub(super) async fn take(
        &self,
        request: &AcquireRequest,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, .. } = request;
        let _turn = self.waiters.turn(key, deadline).await?;
        let may_take = self.waiters.step(|state, now| {
            let held = state.held(key, now);
            !state.queues.has_queue(key, now) || state.queues.pass(key, token, held, now)
        });
        if may_take {
            return self.attempt(request, Trying::of(self, key), deadline).await;
        }
        // Whoever waits comes first; but the token may hold the lock already.
        self.ask(request, deadline).await
    }

    /// Takes a place in the wait queue, and looks whether it is this place's turn.
    pub(super) async fn join(
        &self,
        request: &AcquireRequest,
        join: &Join,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let joined = self.waiters.step(|state, now| {
            state.queues.prepare(key, token, &join.supersedes, *attempt, now);
            state.queues.join(key, token, *attempt, join, now)
        });
        let answer = self.look_once_joined(request, joined, deadline).await;
        if matches!(answer, Err(StoreError::Unavailable(_))) {
            // Whoever is told that nothing happened must not stand in anybody's way.
            let place = if join.place.is_some() { PlaceAfter::Kept } else { PlaceAfter::Removed };
            self.waiters.step(|state, now| state.queues.vacate(key, token, *attempt, place, false, now));
        }
        answer
    }

    async fn look_once_joined(
        &self,
        request: &AcquireRequest,
        joined: Result<(), QueueFull>,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        if joined.is_ok()
            && let Some(answer) = self.look(request, deadline).await?
        {
            return Ok(answer);
        }
        // The token may hold the lock already, or have been released; and only now do the servers know who waits.
        match self.ask(request, deadline).await? {
            Acquired::Refused(_) if joined.is_err() => Ok(Acquired::LineFull),
            // Nobody may hold it after all.
            Acquired::Refused(_) => {
                Ok(self.look(request, deadline).await?.unwrap_or_else(|| self.place_of(request)))
            }
            answer => Ok(answer),
        }
    }

    /// Goes on waiting: takes the lock if it is the turn of the attempt's place.
    pub(super) async fn go_on(
        &self,
        request: &AcquireRequest,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        if let Some(answer) = self.look(request, deadline).await? {
            return Ok(answer);
        }
        let standing = self.place_of(request);
        if standing != Acquired::PlaceLost {
            return Ok(standing);
        }
        // Another request of the token may have been granted the lock, or have released it.
        match self.ask(request, deadline).await? {
            Acquired::Refused(_) => Ok(Acquired::PlaceLost),
            answer => Ok(answer),
        }
    }

    /// Takes the lock if it is the turn of the attempt's place. Nothing, where that is not so.
    async fn look(
        &self,
        request: &AcquireRequest,
        deadline: Instant,
    ) -> Result<Option<Acquired>, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        let turn = self.waiters.step(|state, now| {
            let turn = state.queues.look(key, token, *attempt, state.held(key, now), now);
            if turn == QueueTurn::Take {
                // Nobody else is to try meanwhile, and the offer does not lapse.
                state.note_held(key, deadline.saturating_duration_since(Instant::now()), now);
            }
            turn
        });
        if turn != QueueTurn::Take {
            return Ok(None);
        }
        let trying = Trying::of(self, key);
        let _turn = self.waiters.turn(key, deadline).await?;
        let answer = self.attempt(request, trying, deadline).await?;
        Ok((!matches!(answer, Acquired::Refused(_))).then_some(answer))
    }

    /// Looks for the last time: whoever is not granted the lock now leaves.
    pub(super) async fn last_look(
        &self,
        request: &AcquireRequest,
        place: PlaceAfter,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, attempt, .. } = request;
        // A look never makes what it did not find: a copy of it that comes late would make it for nobody.
        let (is_spent, is_lost) = self.waiters.step(|state, now| {
            let is_free = state.held(key, now).is_none() && !state.queues.has_queue(key, now);
            (state.is_spent(attempt), is_free)
        });
        let answer = match is_spent {
            false if is_lost => return Ok(Acquired::PlaceLost),
            false => self.look_or_ask(request, deadline).await,
            // What the same last look did before may still be on its way to be undone: it is granted nothing any more.
            true => Ok(Acquired::AttemptVoided),
        };
        let ended = match answer {
            Ok(Acquired::Refused(refusal)) => self.end(request, place, refusal, deadline).await,
            Ok(Acquired::AttemptVoided) => {
                let refusal = Refusal { holder_unknown: true, ..Refusal::default() };
                self.end(request, place, refusal, deadline).await
            }
            other => other,
        };
        if ended.is_err() {
            self.waiters.step(|state, now| state.spend(*attempt, now));
        }
        ended
    }

    async fn look_or_ask(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        match self.look(request, deadline).await? {
            Some(answer) => Ok(answer),
            None => self.ask(request, deadline).await,
        }
    }

    /// Ends the wait of an attempt that was not granted the lock. Whatever was found: a copy of an earlier command of it may
    /// still be on its way.
    async fn end(
        &self,
        request: &AcquireRequest,
        place: PlaceAfter,
        refusal: Refusal,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, attempt, .. } = request;
        self.roll_back_all(key, token, *attempt, KnownTo::Nobody, deadline).await?;
        self.waiters.step(|state, now| state.queues.end(key, token, *attempt, place, now));
        Ok(Acquired::Refused(self.with_line(key, token, refusal)))
    }

    /// Where an attempt stands that was not granted the lock.
    fn place_of(&self, request: &AcquireRequest) -> Acquired {
        let AcquireRequest { key, token, attempt, .. } = request;
        self.waiters.step(|state, now| {
            match state.queues.look(key, token, *attempt, state.held(key, now), now) {
                QueueTurn::InLine(standing) => Acquired::InLine(standing),
                QueueTurn::Moved(standing) => Acquired::Moved(standing),
                QueueTurn::Lost => Acquired::PlaceLost,
                // It has become free just now: another look takes it.
                QueueTurn::Take => {
                    state.queues.withdrawn(key, now);
                    match state.queues.look(key, token, *attempt, Some(AT_ONCE), now) {
                        QueueTurn::InLine(standing) => Acquired::InLine(standing),
                        _ => Acquired::PlaceLost,
                    }
                }
            }
        })
    }

    /// Tries to take the lock, as those who wait here have agreed to.
    async fn attempt(
        &self,
        request: &AcquireRequest,
        trying: Trying<'_>,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, .. } = request;
        let proposal = Proposal { request, grants: true, channel: self.channel_for(request) };
        let asked_at = boottime();
        let answer = self.propose(proposal, deadline).await?;
        trying.ends(|state, now| {
            if !matches!(answer, Acquired::Granted(_)) {
                state.queues.withdrawn(key, now);
                state.note_free(key);
            }
            state.learn(request, &answer, asked_at, now);
        });
        Ok(self.with_line_if_refused(key, token, answer))
    }

    /// Asks who holds the lock, and pins it if it is the token. Takes nothing.
    pub(super) async fn ask(
        &self,
        request: &AcquireRequest,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        let AcquireRequest { key, token, .. } = request;
        let proposal = Proposal { request, grants: false, channel: self.channel_for(request) };
        let asked_at = boottime();
        let answer = self.propose(proposal, deadline).await?;
        self.waiters.step(|state, now| {
            state.learn(request, &answer, asked_at, now);
            if matches!(answer, Acquired::Refused(Refusal { holder: None, .. })) {
                state.queues.freed(key, now);
            }
        });
        Ok(self.with_line_if_refused(key, token, answer))
    }

    /// Where servers are to tell that the lock is free, if somebody waits for it here.
    fn channel_for(&self, request: &AcquireRequest) -> Option<&str> {
        let waits = !matches!(request.intent, Intent::Grant | Intent::Confirm);
        let has_queue = waits || self.waiters.step(|state, now| state.queues.has_queue(&request.key, now));
        has_queue.then_some(&self.channel)
    }

    fn with_line_if_refused(&self, key: &LockKey, token: &TokenHash, answer: Acquired) -> Acquired {
        match answer {
            Acquired::Refused(refusal) => Acquired::Refused(self.with_line(key, token, refusal)),
            answer => answer,
        }
    }

    fn with_line(&self, key: &LockKey, token: &TokenHash, refusal: Refusal) -> Refusal {
        self.waiters.step(|state, _| {
            let (waiters, position) = (state.queues.waiters(key), state.queues.position(key, token));
            Refusal { waiters, position, ..refusal }
        })
    }
}

/// A try to take a lock. However it ends, nobody is kept from trying next.
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
