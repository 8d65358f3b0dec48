//! The wait queues of locks in a gateway's own memory, for stores that keep them nowhere else: the embedded store, and
//! the quorum, where each gateway knows only its own waiters. They end with the process, as the waiters do.
//!
//! Nothing here knows who holds a lock. Every step is given `now`, the time since boot. Some are also given `held`: how
//! much is left of the present lease, or `None` if the lock is free. A free lock is offered to a waiter. The store then
//! takes the lock and reports the result: `granted` or `withdrawn`. If that takes the store a while, it says meanwhile
//! that the lock is `held`.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::whole_ms;
use crate::lock::{Attempt, LockKey, QueuePosition, TokenHash, Ttl};
use crate::store::{Enqueue, Hint, LOOK_AHEAD, LineSettings, LockRequest, SHORT_LEASE, TicketAfter};

use queue::WaitQueue;

mod queue;

/// Which requests wait for which lock.
#[derive(Debug)]
pub(super) struct WaitQueues {
    queues: HashMap<LockKey, WaitQueue>,
    /// What is to be told to waiters, since [`WaitQueues::take_hints`].
    hints: Vec<Hint>,
    /// Names what is known of queues. It changes whenever waiters may have lost their tickets.
    session: u64,
    settings: LineSettings,
}

/// What a waiter finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueueTurn {
    /// The lock is free, and offered to this very attempt, which may take it now.
    Take,
    /// It waits here.
    InLine(QueuePosition),
    /// Another attempt of the token waits here instead.
    Moved(QueuePosition),
    /// It has no ticket.
    Lost,
}

/// The wait queue of the lock is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl WaitQueues {
    /// No queues yet.
    pub(super) fn new(settings: LineSettings) -> Self {
        Self { queues: HashMap::new(), hints: Vec::new(), session: rand::random(), settings }
    }

    /// Removes tickets that were left for too long, and queues without tickets. To be called now and then.
    pub(super) fn purge(&mut self, now: Duration) {
        self.queues.retain(|_, queue| {
            queue.purge(now);
            !queue.is_over(now)
        });
    }

    /// Lets `attempt` stand for those that it supersedes, before any other step of it.
    pub(super) fn prepare(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        superseded: &[Attempt],
        attempt: Attempt,
        now: Duration,
    ) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.purge(now);
            queue.rename(token, superseded, attempt);
        }
    }

    /// Whether a request that does not wait may take the lock: it is free, and is offered to no other token.
    pub(super) fn pass(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        held: Option<Duration>,
        now: Duration,
    ) -> bool {
        held.is_none() && self.offered_to(key, None, now).is_none_or(|offered| offered == *token)
    }

    /// Takes a ticket, or takes the token's own over. To be followed by a [`look`](Self::look).
    pub(super) fn join(&mut self, request: &Enqueue, now: Duration) -> Result<(), QueueFull> {
        let LockRequest { key, token, attempt, .. } = &request.lock;
        let queue = self.queues.entry(key.clone()).or_default();
        let ticket = queue.ticket(token).cloned();
        let present = ticket.as_ref().and_then(|ticket| ticket.attempt).filter(|_| queue.is_present(token));
        let displaced = present.filter(|present| present != attempt);
        if displaced.is_some() && !request.takes_over {
            return Ok(());
        }
        if ticket.is_none()
            && request.ticket.is_none()
            && queue.waiters(now) >= self.settings.max_waiters_per_key
        {
            return Err(QueueFull);
        }
        // The earlier of the two: the ticket may have been lost, and an older request may have brought the token into
        // the wait queue anew.
        let place = ticket.as_ref().map(|ticket| ticket.place).into_iter().chain(request.ticket).min();
        let place = place.unwrap_or_else(|| queue.last_place(now));
        let before = ticket.as_ref().and_then(|ticket| ticket.attempt).filter(|before| before != attempt);
        let kept = ticket.filter(|ticket| ticket.attempt == Some(*attempt));
        let former = displaced.or_else(|| kept.and_then(|ticket| ticket.former));
        queue.enqueue(*token, place, *attempt, former);
        self.hints.extend(before.map(|before| Hint::Look(key.clone(), before)));
        Ok(())
    }

    /// Says the position of an attempt, and whether it is its turn to take the lock.
    pub(super) fn look(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        held: Option<Duration>,
        now: Duration,
    ) -> QueueTurn {
        let mut has_ticket = false;
        let mut is_taken_over = false;
        if let Some(queue) = self.queues.get_mut(key)
            && let Some(waiting) = queue.ticket(token).and_then(|ticket| ticket.attempt)
        {
            has_ticket = waiting == attempt;
            is_taken_over = !has_ticket && queue.is_present(token);
            if has_ticket {
                queue.stand(token);
            }
        }
        if held.is_none() {
            let offered = self.offered_to(key, Some(token).filter(|_| has_ticket), now);
            if has_ticket && offered == Some(*token) {
                return QueueTurn::Take;
            }
        }
        // The offer may just have lapsed, and the attempt that took the ticket over may have stepped aside.
        is_taken_over &= self.queues.get(key).is_some_and(|queue| queue.is_present(token));
        if !has_ticket {
            self.forget_if_over(key, now);
        }
        match self.queue_position(key, token, held, now) {
            Some(queue_position) if has_ticket => QueueTurn::InLine(queue_position),
            Some(queue_position) if is_taken_over => QueueTurn::Moved(queue_position),
            _ => QueueTurn::Lost,
        }
    }

    /// Ends the wait of an attempt that was not granted the lock by its last poll.
    pub(super) fn end(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        now: Duration,
    ) {
        let lost_at = now + self.settings.ticket_ttl;
        let Some(queue) = self.queues.get_mut(key) else { return };
        let former = queue.end(token, attempt, place, lost_at);
        self.hints.extend(former.map(|former| Hint::Look(key.clone(), former)));
        self.forget_if_over(key, now);
    }

    /// The token holds the lock now, by this attempt, and leaves the wait queue.
    pub(super) fn granted(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        ttl: Ttl,
        now: Duration,
    ) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.take_offer();
        // Another request of this token that waits with the ticket is told that its token holds the lock.
        let waiting =
            queue.ticket(token).and_then(|ticket| ticket.attempt).filter(|waiting| *waiting != attempt);
        self.hints.extend(waiting.map(|waiting| Hint::Look(key.clone(), waiting)));
        queue.remove(token);
        if queue.first().is_some() && ttl.as_duration() < SHORT_LEASE {
            self.hints.push(Hint::Due(key.clone(), ttl.as_ms()));
        }
        self.forget_if_over(key, now);
    }

    /// The present offer ends without a grant, because a try to take the lock failed. No ticket loses its turn by that,
    /// as it would if it let the offer lapse. The next poll of the free lock makes another offer.
    pub(super) fn withdrawn(&mut self, key: &LockKey, now: Duration) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.take_offer();
        self.forget_if_over(key, now);
    }

    /// The token is released: it loses its ticket, and with `frees` it held the lock until now. Returns whether it had
    /// a ticket.
    pub(super) fn released(&mut self, key: &LockKey, token: &TokenHash, frees: bool, now: Duration) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        queue.purge(now);
        let ticket = queue.ticket(token).cloned();
        let was_offered = queue.offer().is_some_and(|offer| offer.token == *token);
        queue.remove(token);
        let waiting = ticket.iter().flat_map(|ticket| [ticket.attempt, ticket.former]).flatten();
        self.hints.extend(waiting.map(|attempt| Hint::Look(key.clone(), attempt)));
        if frees || was_offered {
            // An offer that is given back has not lapsed.
            queue.take_offer();
            self.hand_off(key, None, now);
        }
        self.forget_if_over(key, now);
        ticket.is_some()
    }

    /// The lock has no holder any more, but stays taken for a while. Waiters are told when to poll.
    pub(super) fn kept(&mut self, key: &LockKey, left: Duration) {
        if self.queues.get(key).is_some_and(|queue| queue.first().is_some()) {
            self.hints.push(Hint::Due(key.clone(), whole_ms(left)));
        }
    }

    /// Takes an attempt out of the wait queue of a lock. It may have been granted the lock from there, before that was
    /// rolled back.
    pub(super) fn vacate(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        was_granted: bool,
        now: Duration,
    ) {
        let lost_at = now + self.settings.ticket_ttl;
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.purge(now);
        let (former, was_offered) = queue.vacate(token, attempt, place, lost_at);
        self.hints.extend(former.map(|former| Hint::Look(key.clone(), former)));
        if was_offered {
            queue.take_offer();
            self.hand_off(key, None, now);
        }
        if let TicketAfter::KeptAt(granted_at) = place
            && was_granted
            && let Some(queue) = self.queues.get_mut(key)
        {
            queue.keep(token, granted_at, lost_at);
        }
        self.forget_if_over(key, now);
    }

    /// The lock is free now. It is offered to the first of its wait queue, unless it is offered already. A store may
    /// hear of one release more than once.
    pub(super) fn freed(&mut self, key: &LockKey, now: Duration) {
        self.offered_to(key, None, now);
        self.forget_if_over(key, now);
    }

    /// Says which locks with waiters are due, and in how many milliseconds. Also returns the session, which changes
    /// whenever waiters may have lost their tickets.
    pub(super) fn beat(&self, held_of: impl Fn(&LockKey) -> Option<Duration>) -> (u64, Vec<(LockKey, u64)>) {
        let left_of = |key| (key, held_of(key).unwrap_or_default());
        let due = self.queues.keys().map(left_of).filter(|(_, left)| *left <= LOOK_AHEAD);
        (self.session, due.map(|(key, left)| (key.clone(), whole_ms(left))).collect())
    }

    /// Whether the lock has a waiter or an offer.
    pub(super) fn has_queue(&self, key: &LockKey, now: Duration) -> bool {
        self.queues.get(key).is_some_and(|queue| !queue.is_over(now))
    }

    /// How many tickets the wait queue of a lock has.
    pub(super) fn waiters(&self, key: &LockKey, now: Duration) -> u64 {
        let waiters = self.queues.get(key).map_or(0, |queue| queue.waiters(now));
        u64::try_from(waiters).unwrap_or(u64::MAX)
    }

    /// The token's position, from 1 on.
    pub(super) fn position(&self, key: &LockKey, token: &TokenHash) -> Option<u64> {
        let position = self.queues.get(key)?.position(token)?;
        u64::try_from(position).ok()
    }

    /// What was noted for the waiters since the last call.
    pub(super) fn take_hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// To which token a free lock is offered. If there is no offer, or it has lapsed, the first of the queue gets one.
    fn offered_to(&mut self, key: &LockKey, caller: Option<&TokenHash>, now: Duration) -> Option<TokenHash> {
        if self.open_offer(key, now).is_none() {
            self.hand_off(key, caller, now);
        }
        self.open_offer(key, now)
    }

    /// Offers a free lock to the first of its wait queue, and returns the offer.
    fn hand_off(&mut self, key: &LockKey, caller: Option<&TokenHash>, now: Duration) {
        let lost_at = now + self.settings.ticket_ttl;
        let Some(queue) = self.queues.get_mut(key) else { return };
        let lapsed = queue.offer().filter(|offer| offer.left(now).is_none());
        let offer = queue.hand_off(now, lost_at, caller);
        if let Some(lapsed) = lapsed
            && let Some(attempt) = lapsed.attempt
            && !queue.is_present(&lapsed.token)
        {
            // It may come back as soon as it learns of it, at the latest from the next heartbeat.
            self.hints.push(Hint::Look(key.clone(), attempt));
            self.session = rand::random();
        }
        if let Some(offer) = offer
            && let Some(attempt) = offer.attempt
            && caller != Some(&offer.token)
        {
            self.hints.push(Hint::Offered(key.clone(), offer.token, attempt));
        }
    }

    fn forget_if_over(&mut self, key: &LockKey, now: Duration) {
        if self.queues.get(key).is_some_and(|queue| queue.is_over(now)) {
            self.queues.remove(key);
        }
    }

    /// To which token the free lock is offered, unless that has lapsed.
    fn open_offer(&self, key: &LockKey, now: Duration) -> Option<TokenHash> {
        self.queues.get(key)?.open_offer(now).map(|offer| offer.token)
    }

    fn queue_position(
        &self,
        key: &LockKey,
        token: &TokenHash,
        held: Option<Duration>,
        now: Duration,
    ) -> Option<QueuePosition> {
        let queue = self.queues.get(key)?;
        let place = queue.ticket(token)?.place;
        // An offer that was made before the lock was held, or taken to be, is worth nothing. A waiter that is told of it looks at
        // once, again and again.
        let offer = queue.open_offer(now).filter(|_| held.is_none());
        let due = held.or_else(|| offer.and_then(|offer| offer.left(now))).unwrap_or_default();
        Some(QueuePosition {
            ticket: place,
            is_first: queue.first() == Some(token),
            due_in_ms: whole_ms(due),
            offered_to: offer.and_then(|offer| offer.attempt),
        })
    }
}

#[cfg(test)]
mod tests;
