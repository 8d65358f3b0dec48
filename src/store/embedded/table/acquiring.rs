//! Asking for a lock, with and without a wait queue: the same steps as `redis/scripts/acquire.lua`.

use std::time::Duration;

use super::super::life::Life;
use super::super::record::{HeldLock, RecordId, Verdict};
use super::Table;
use crate::lock::{
    Acquired, Attempt, Confirmed, Enqueued, LastPolled, Lease, Polled, Refusal, Slot, Slots, Ttl,
};
use crate::store::wait_queue::{QueueFull, QueueTurn};
use crate::store::{AnswerTo, Confirm, Enqueue, LastPoll, LockRequest, Poll, StoreError, Try};

/// Why an attempt is granted nothing.
enum Barred {
    TokenReleased,
    AttemptVoided,
}

impl<T> From<Barred> for Acquired<T> {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::TokenReleased => Self::TokenReleased,
            Barred::AttemptVoided => Self::AttemptVoided,
        }
    }
}

impl Table {
    /// Takes a lock that is free and has no waiters.
    pub(in super::super) fn try_lock(&mut self, Try(lock): &Try, now: Duration) -> AnswerTo<Try> {
        if let Some(answer) = self.known(lock, false, now) {
            return Ok(answer);
        }
        let room = self.room(&lock.key, now);
        match self.queues.pass(&lock.key, &lock.token, lock.terms.slots, room, now) {
            true => self.grant(lock, now),
            false => Ok(Acquired::NotTaken(self.refusal(lock, now))),
        }
    }

    /// Says whether the token holds the lock already.
    pub(in super::super) fn confirm(&mut self, Confirm(lock): &Confirm, now: Duration) -> Confirmed {
        let LockRequest { key, token, .. } = lock;
        match self.barred(lock, now) {
            Some(Barred::TokenReleased) => return Confirmed::TokenReleased,
            Some(Barred::AttemptVoided) => return Confirmed::AttemptVoided,
            None => self.queues.prepare(key, token, &[], lock.attempt, now),
        }
        match self.own(key, token, now).cloned() {
            Some(held) if held.slots() > lock.terms.slots => Confirmed::HeldOtherwise(held.slots()),
            Some(held) => Confirmed::AlreadyHeld(self.pin(held, lock, now)),
            None if self.room(key, now).is_free() || self.is_kept_for(key, token, now) => {
                Confirmed::TokenReleased
            }
            None => Confirmed::Refused(self.refusal(lock, now)),
        }
    }

    /// Takes a ticket of the wait queue, or the token's own, and the lock if it is this ticket's turn.
    pub(in super::super) fn enqueue(&mut self, request: &Enqueue, now: Duration) -> AnswerTo<Enqueue> {
        let Enqueue { lock, supersedes, takes_over, .. } = request;
        if let Some(barred) = self.barred(lock, now) {
            return Ok(barred.into());
        }
        for former in supersedes {
            self.void(&lock.key, &lock.token, *former, now);
        }
        // What it supersedes was asked a while ago.
        let has_waited = !takes_over || !supersedes.is_empty();
        if let Some(answer) = self.told_own(lock, supersedes, has_waited, now) {
            return Ok(answer);
        }
        let mut joined = self.queues.join(request, now);
        if joined.is_err() {
            // The first of the queue may have let an offer lapse, and makes room.
            self.queues.freed(&lock.key, self.room(&lock.key, now), now);
            joined = self.queues.join(request, now);
        }
        match joined {
            Ok(()) => Ok(self.look(lock, now)?.map(Enqueued::Polled)),
            Err(QueueFull) => Ok(Acquired::NotTaken(Enqueued::QueueFull)),
        }
    }

    /// Takes the lock if it is the turn of the attempt's ticket.
    pub(in super::super) fn poll(&mut self, Poll(lock): &Poll, now: Duration) -> AnswerTo<Poll> {
        match self.known(lock, true, now) {
            Some(answer) => Ok(answer),
            None => self.look(lock, now),
        }
    }

    /// As [`Table::poll`], and gives the attempt up that is not granted the lock.
    pub(in super::super) fn last_poll(
        &mut self,
        LastPoll { lock, ticket }: &LastPoll,
        now: Duration,
    ) -> AnswerTo<LastPoll> {
        let LockRequest { key, token, attempt, .. } = lock;
        let barred = self.barred(lock, now);
        // It has voided itself if it was sent before, and must not claim the token's own lock anew.
        let is_repeated = matches!(barred, Some(Barred::AttemptVoided)) && !self.claims(lock, now);
        if let Some(barred) = barred.filter(|_| !is_repeated) {
            return Ok(barred.into());
        }
        let own = self.own(key, token, now);
        // One that was answered before may come late. Only a fresh attempt may pin what the token was granted since.
        if is_repeated && own.is_some_and(|own| own.attempt != Some(*attempt)) {
            return Ok(Acquired::NotTaken(LastPolled::TicketLost));
        }
        if let Some(answer) = self.told_own(lock, &[], true, now) {
            return Ok(answer);
        }
        let room = self.room(key, now);
        // A poll never makes a ticket that it did not find: a late copy would make one without a client.
        if !is_repeated && room.is_free() && !self.queues.has_queue(key, now) {
            return Ok(Acquired::NotTaken(LastPolled::TicketLost));
        }
        if self.queues.look(key, token, *attempt, lock.terms.slots, room, now) == QueueTurn::Take {
            return self.grant(lock, now);
        }
        // It may have kept others waiting for whom there is room.
        if self.queues.end(key, token, *attempt, *ticket, now) && !room.is_free() {
            self.queues.freed(key, room, now);
        }
        // This is always done: a copy of an earlier command of this attempt may still be on its way.
        self.void(key, token, *attempt, now);
        Ok(Acquired::NotTaken(LastPolled::Refused(self.refusal(lock, now))))
    }

    /// The answer that does not depend on the wait queue, if there is one.
    fn known<T>(&mut self, lock: &LockRequest, has_waited: bool, now: Duration) -> Option<Acquired<T>> {
        match self.barred(lock, now) {
            Some(barred) => Some(barred.into()),
            None => self.told_own(lock, &[], has_waited, now),
        }
    }

    /// Whether the token was released, or the attempt voided.
    fn barred(&self, lock: &LockRequest, now: Duration) -> Option<Barred> {
        let LockRequest { key, token, attempt, .. } = lock;
        match self.verdict(key, token, now)? {
            Verdict::Final(_) | Verdict::GaveUp(_) => Some(Barred::TokenReleased),
            // An attempt that has claimed the lock is voided: a copy that comes late must not claim it anew.
            Verdict::Voided(attempts) if attempts.contains(attempt) => {
                let own = self.own(key, token, now);
                let has_claimed = attempt.is_of_connection()
                    && own.is_some_and(|held| held.attempt == Some(attempt.claim()));
                (!has_claimed).then_some(Barred::AttemptVoided)
            }
            Verdict::Voided(_) => None,
        }
    }

    /// Whether a connection takes over a lock that its token holds.
    fn claims(&self, lock: &LockRequest, now: Duration) -> bool {
        lock.attempt.is_of_connection() && self.own(&lock.key, &lock.token, now).is_some()
    }

    /// What is answered where the token holds the lock. Of two requests of a token, the younger one's connection keeps it: the one
    /// that has waited may be a client's that has gone.
    fn told_own<T>(
        &mut self,
        lock: &LockRequest,
        superseded: &[Attempt],
        has_waited: bool,
        now: Duration,
    ) -> Option<Acquired<T>> {
        let LockRequest { key, token, attempt, .. } = lock;
        self.queues.prepare(key, token, superseded, *attempt, now);
        let held = self.own(key, token, now)?;
        // Also the answer to a claim may be lost.
        let is_claim_of =
            |granted: Attempt| superseded.iter().chain([attempt]).any(|attempt| attempt.claim() == granted);
        Some(match held.attempt {
            Some(granted) if granted == *attempt => Acquired::Granted(held.lease(now)),
            Some(granted) if superseded.contains(&granted) => {
                let held = HeldLock { attempt: Some(*attempt), ..held.clone() };
                let lease = held.lease(now);
                self.put_lock(key, held);
                Acquired::Granted(lease)
            }
            Some(granted) if has_waited && granted.is_of_connection() && !is_claim_of(granted) => {
                Acquired::TakenOver
            }
            // A token that is told that it holds the lock must be able to rely on what it asked for.
            _ if held.slots() > lock.terms.slots => Acquired::HeldOtherwise(held.slots()),
            _ => Acquired::AlreadyHeld(self.pin(held.clone(), lock, now)),
        })
    }

    /// Pins the token's grant, or claims it for a connection.
    fn pin(&mut self, held: HeldLock, lock: &LockRequest, now: Duration) -> Lease {
        let LockRequest { key, token, attempt, ttl, .. } = lock;
        let claim = attempt.is_of_connection().then(|| attempt.claim());
        // A claim leaves the lease as it was told before.
        let ttl = if claim.is_some() { Ttl::SHORTEST } else { *ttl };
        let held = HeldLock { attempt: claim, ..held.extended(ttl, now) };
        let lease = held.lease(now);
        self.put_lock(key, held);
        if claim.is_some() {
            self.void(key, token, *attempt, now);
        }
        lease
    }

    /// Says where the attempt waits, and takes the lock if it is its turn.
    fn look(&mut self, lock: &LockRequest, now: Duration) -> Result<Acquired<Polled>, StoreError> {
        let LockRequest { key, token, attempt, .. } = lock;
        let room = self.room(key, now);
        Ok(Acquired::NotTaken(match self.queues.look(key, token, *attempt, lock.terms.slots, room, now) {
            QueueTurn::Take => return self.grant(lock, now),
            QueueTurn::InLine(position) => Polled::Queued(position),
            QueueTurn::Moved(position) => Polled::Moved(position),
            QueueTurn::Lost => Polled::TicketLost,
        }))
    }

    /// Grants the lock, which takes the token out of the wait queue.
    fn grant<T>(&mut self, lock: &LockRequest, now: Duration) -> Result<Acquired<T>, StoreError> {
        let LockRequest { key, token, attempt, ttl, note, terms } = lock;
        self.remove_ended(key, now);
        let slot =
            (terms.slots > Slots::ONE).then(|| Slot { number: self.free_slot(key), slots: terms.slots });
        // A grant of the lock alone takes the place of one that is over.
        if slot.is_some() {
            self.put(RecordId::Lock(key.clone()), None);
        }
        let held = HeldLock {
            token: *token,
            attempt: Some(*attempt),
            fence: self.mint()?,
            note: note.clone(),
            life: Life::starting(now, ttl.as_duration()),
            max_hold: terms.max_hold.map(|length| Life::starting(now, length)),
            min_hold: terms.min_hold.map(|length| Life::starting(now, length)),
            slot,
        };
        let (lease, left) = (held.lease(now), held.life.end.saturating_sub(now));
        self.put_lock(key, held);
        let room = if slot.is_some() { self.room(key, now) } else { Some(left).into() };
        self.queues.granted(key, token, *attempt, room, now);
        Ok(Acquired::Granted(lease))
    }

    fn refusal(&self, lock: &LockRequest, now: Duration) -> Refusal {
        Refusal {
            holder: self.first(&lock.key, now).map(|held| held.lease(now)),
            sharing: self.sharing(&lock.key, now),
            waiters: self.queues.waiters(&lock.key, now),
            position: self.queues.position(&lock.key, &lock.token),
            ..Refusal::default()
        }
    }
}
