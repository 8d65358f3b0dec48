//! The wait queues of locks in a gateway's own memory, for stores that keep them nowhere else: the embedded store, and
//! the quorum, where each gateway knows only its own waiters. They end with the process, as the waiters do.
//!
//! Nothing here knows who holds a lock. Every step is given `now`, the time since boot. Some are also given its `room`: how many
//! hold it, and how much is left of the lease that ends first. A lock with room is offered to a waiter. The store then takes it,
//! and reports the result: `granted` or `withdrawn`. If that takes the store a while, it says meanwhile that one holds it alone.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::whole_ms;
use crate::lock::{Attempt, LockKey, QueuePosition, Slots, TokenHash};
use crate::store::{Enqueue, Hint, LOOK_AHEAD, LineSettings, LockRequest, SHORT_LEASE, TicketAfter};

use queue::{QueueTicket, WaitQueue};
pub(super) use room::SlotRoom;

mod queue;
mod room;

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
    /// There is room in the lock, and it is offered to this very attempt, which may take it now.
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
            queue.rests_until.get() > now || {
                queue.purge(now);
                !queue.is_over(now)
            }
        });
    }

    /// All steps since then are undone, or may be: what they offered or took is void. Who lost a ticket by that puts it back.
    pub(super) fn undo(&mut self, since: Duration) {
        self.queues.values_mut().for_each(|queue| queue.undo(since));
        (self.hints, self.session) = (Vec::new(), rand::random());
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
        if let Some(queue) = touched(&mut self.queues, key) {
            queue.purge(now);
            queue.rename(token, superseded, attempt);
        }
    }

    /// Whether a request that does not wait may take the lock: it has room, and no other token waits for that.
    pub(super) fn pass(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        slots: Slots,
        room: SlotRoom,
        now: Duration,
    ) -> bool {
        self.make_offers(key, room, None, Some((token, slots)), now);
        self.forget_if_over(key, now);
        let Some(queue) = self.queues.get(key) else { return room.admits(slots) };
        let is_its_turn = queue.is_offered(token) || queue.next().is_none_or(|next| next == token);
        is_its_turn && queue.room_beside(room, Some(token), now).admits(slots)
    }

    /// Takes a ticket, or takes the token's own over. To be followed by a [`look`](Self::look).
    pub(super) fn join(&mut self, request: &Enqueue, now: Duration) -> Result<(), QueueFull> {
        let LockRequest { key, token, attempt, .. } = &request.lock;
        let queue = self.queues.entry(key.clone()).or_default();
        queue.rests_until.take();
        let ticket = queue.ticket(token).cloned();
        let before = ticket.as_ref().and_then(|ticket| ticket.attempt).filter(|before| before != attempt);
        let former = ticket.as_ref().and_then(|own| own.former_for(*attempt, queue.is_present(token)));
        if before.is_some() && former.is_some() && !request.takes_over {
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
        queue.enqueue(*token, place, request.lock.terms.slots, *attempt, former);
        self.hints.extend(before.map(|before| Hint::Look(key.clone(), before)));
        Ok(())
    }

    /// Says the position of an attempt, and whether it is its turn to take the lock, as one of so many.
    pub(super) fn look(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        slots: Slots,
        room: SlotRoom,
        now: Duration,
    ) -> QueueTurn {
        let mut has_ticket = false;
        let mut is_taken_over = false;
        if let Some(queue) = touched(&mut self.queues, key)
            && let Some(waiting) = queue.ticket(token).and_then(|ticket| ticket.attempt)
        {
            has_ticket = waiting == attempt;
            is_taken_over = !has_ticket && queue.is_present(token);
            if has_ticket {
                queue.stand(token);
                // It may want less company than when it was offered a slot. Then its ticket stays, and the slot is offered only to
                // tickets before it.
                if queue.has_open_offer(token, now)
                    && !queue.room_beside(room, Some(token), now).admits(slots)
                {
                    queue.end_offer(token);
                }
            }
        }
        self.make_offers(key, room, Some(token).filter(|_| has_ticket), None, now);
        if has_ticket && self.takes(key, token, slots, room, now) {
            return QueueTurn::Take;
        }
        // The offer may just have lapsed, and the attempt that took the ticket over may have stepped aside.
        is_taken_over &= self.queues.get(key).is_some_and(|queue| queue.is_present(token));
        if !has_ticket {
            self.forget_if_over(key, now);
        }
        match self.queues.get(key).and_then(|queue| queue.queue_position(token, room, now)) {
            Some(queue_position) if has_ticket => QueueTurn::InLine(queue_position),
            Some(queue_position) if is_taken_over => QueueTurn::Moved(queue_position),
            _ => QueueTurn::Lost,
        }
    }

    /// Ends the wait of an attempt that was not granted the lock by its last poll. Returns whether it had a ticket.
    pub(super) fn end(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        now: Duration,
    ) -> bool {
        let Some(queue) = touched(&mut self.queues, key) else { return false };
        let left = queue.end(token, attempt, place, now + self.settings.ticket_ttl);
        self.hints.extend(left.flatten().map(|former| Hint::Look(key.clone(), former)));
        self.forget_if_over(key, now);
        left.is_some()
    }

    /// The token holds the lock now, by this attempt, and leaves the wait queue.
    pub(super) fn granted(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        room: SlotRoom,
        now: Duration,
    ) {
        let Some(queue) = touched(&mut self.queues, key) else { return };
        if room.is_closed() {
            queue.end_offers();
        } else {
            queue.end_offer(token);
        }
        // Another request of this token that waits with the ticket is told that its token holds the lock.
        let waiting =
            queue.ticket(token).and_then(|ticket| ticket.attempt).filter(|waiting| *waiting != attempt);
        self.hints.extend(waiting.map(|waiting| Hint::Look(key.clone(), waiting)));
        queue.remove(token);
        if let Some(left) = room.left().filter(|left| queue.first().is_some() && *left < SHORT_LEASE) {
            self.hints.push(Hint::Due(key.clone(), whole_ms(left)));
        }
        // There may be room for others, of whom only so many are made offers at once.
        self.freed(key, room, now);
    }

    /// The present offer ends without a grant, because a try to take the lock failed. No ticket loses its turn by that,
    /// as it would if it let the offer lapse. The next poll of the free lock makes another offer.
    pub(super) fn withdrawn(&mut self, key: &LockKey, now: Duration) {
        let Some(queue) = touched(&mut self.queues, key) else { return };
        queue.end_offers();
        self.forget_if_over(key, now);
    }

    /// The token is released: it loses its ticket, and with `frees` it held the lock until now. `room` is what is left then.
    /// Returns whether it had a ticket.
    pub(super) fn released(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        frees: bool,
        room: SlotRoom,
        now: Duration,
    ) -> bool {
        let Some(queue) = touched(&mut self.queues, key) else { return false };
        queue.purge(now);
        let ticket = queue.ticket(token).cloned();
        let was_offered = queue.is_offered(token);
        queue.remove(token);
        let waiting = ticket.iter().flat_map(QueueTicket::attempts);
        self.hints.extend(waiting.map(|attempt| Hint::Look(key.clone(), attempt)));
        // An offer that is given back has not lapsed.
        queue.end_offer(token);
        if frees || was_offered || ticket.is_some() && !room.is_free() {
            self.make_offers(key, room, None, None, now);
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

    /// Takes an attempt out of the wait queue of a lock. If it was offered the room in the lock, or kept others from it, they are.
    /// A ticket without an attempt is kept anew, unless `place` says otherwise. Returns for how long a ticket of the token is kept.
    pub(super) fn vacate(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        room: SlotRoom,
        now: Duration,
    ) -> Option<Duration> {
        let queue = touched(&mut self.queues, key)?;
        queue.purge(now);
        let left = queue.vacate(token, attempt, place, now + self.settings.ticket_ttl);
        let kept = queue.ticket(token).map(|_| self.settings.ticket_ttl);
        let (former, was_offered) = left.unwrap_or_default();
        self.hints.extend(former.map(|former| Hint::Look(key.clone(), former)));
        if was_offered || left.is_some() && !room.is_free() {
            queue.end_offer(token);
            self.make_offers(key, room, None, None, now);
        }
        self.forget_if_over(key, now);
        kept
    }

    /// Keeps the ticket from which a token was granted the lock, before that was rolled back.
    pub(super) fn keep(
        &mut self,
        key: &LockKey,
        token: &TokenHash,
        ticket: TicketAfter,
        slots: Slots,
        now: Duration,
    ) {
        let lost_at = now + self.settings.ticket_ttl;
        if let TicketAfter::KeptAt(granted_at) = ticket
            && let Some(queue) = touched(&mut self.queues, key)
        {
            queue.keep(token, granted_at, slots, lost_at);
        }
    }

    /// There may be room in the lock now. It is offered to the first of its wait queue, unless it is offered already. A store
    /// may hear of one release more than once.
    pub(super) fn freed(&mut self, key: &LockKey, room: SlotRoom, now: Duration) {
        self.make_offers(key, room, None, None, now);
        self.forget_if_over(key, now);
    }

    /// Says which locks with waiters are due, and in how many milliseconds. Also returns the session, which changes
    /// whenever waiters may have lost their tickets.
    ///
    /// If `may_rest`, the room of a lock changes only by steps that come here too, or when a lease ends. So a queue is not looked at
    /// before that: there may be 100,000 of them.
    pub(super) fn beat(
        &self,
        now: Duration,
        may_rest: bool,
        room_of: impl Fn(&LockKey) -> SlotRoom,
    ) -> (u64, Vec<(LockKey, u64)>) {
        let mut due = Vec::new();
        for (key, queue) in self.queues.iter().filter(|(_, queue)| queue.rests_until.get() <= now) {
            let room = room_of(key);
            // Somebody before the next one may have gone, without anything that says so.
            let left = room.left().filter(|_| !queue.is_due(room, now)).unwrap_or_default();
            if left <= LOOK_AHEAD {
                due.push((key.clone(), whole_ms(left)));
            } else if may_rest {
                queue.rest(now + left - LOOK_AHEAD);
            }
        }
        (self.session, due)
    }

    /// Whether the lock has a waiter or an offer.
    pub(super) fn has_queue(&self, key: &LockKey, now: Duration) -> bool {
        self.queues.get(key).is_some_and(|queue| !queue.is_over(now))
    }

    /// How many tickets the wait queue of a lock has.
    pub(super) fn waiters(&self, key: &LockKey, now: Duration) -> u64 {
        self.queues.get(key).map_or(0, |queue| queue.waiters(now) as u64)
    }

    /// The token's position, from 1 on.
    pub(super) fn position(&self, key: &LockKey, token: &TokenHash) -> Option<u64> {
        self.queues.get(key)?.position(token)?.try_into().ok()
    }

    /// What was noted for the waiters since the last call.
    pub(super) fn take_hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// Whether a token may take the room that it is offered. What the request says counts, whatever its ticket says.
    fn takes(&self, key: &LockKey, token: &TokenHash, slots: Slots, room: SlotRoom, now: Duration) -> bool {
        self.queues.get(key).is_some_and(|queue| {
            queue.has_open_offer(token, now) && queue.room_beside(room, Some(token), now).admits(slots)
        })
    }

    /// Offers the room in a lock to the first of its wait queue, and tells them.
    fn make_offers(
        &mut self,
        key: &LockKey,
        room: SlotRoom,
        caller: Option<&TokenHash>,
        taker: Option<(&TokenHash, Slots)>,
        now: Duration,
    ) {
        let lost_at = now + self.settings.ticket_ttl;
        let Some(queue) = touched(&mut self.queues, key).filter(|_| !room.is_closed()) else { return };
        let (made, lapsed) = queue.hand_off(room, now, lost_at, caller, taker);
        for late in lapsed {
            if let Some(attempt) = late.attempt
                && !queue.is_present(&late.token)
            {
                // It may come back as soon as it learns of it, at the latest from the next heartbeat.
                self.hints.push(Hint::Look(key.clone(), attempt));
                self.session = rand::random();
            }
        }
        let asks = caller.or(taker.map(|(token, _)| token));
        for offer in made.iter().filter(|offer| asks != Some(&offer.token)) {
            self.hints.extend(offer.attempt.map(|attempt| Hint::Offered(key.clone(), offer.token, attempt)));
        }
    }

    fn forget_if_over(&mut self, key: &LockKey, now: Duration) {
        if self.queues.get(key).is_some_and(|queue| queue.is_over(now)) {
            self.queues.remove(key);
        }
    }
}

/// The queue of a lock, for a step that may change what is due there.
fn touched<'q>(queues: &'q mut HashMap<LockKey, WaitQueue>, key: &LockKey) -> Option<&'q mut WaitQueue> {
    let queue = queues.get_mut(key)?;
    queue.rests_until.take();
    Some(queue)
}

#[cfg(test)]
mod tests;
