//! The wait queue of one lock, in memory: what the keys of a wait queue hold in Redis (`wait_queue.lua`), for waiters
//! at a single gateway.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::room::SlotRoom;
use crate::clock::whole_ms;
use crate::lock::{Attempt, QueuePosition, Slots, Ticket, TokenHash};
use crate::store::{OFFER, TicketAfter};

/// The most offers that stand at once.
const MOST_OFFERS: usize = 30;

/// A token's ticket, and the attempt that waits with it.
#[derive(Clone, Debug)]
pub(super) struct QueueTicket {
    pub(super) place: Ticket,
    /// How many may hold the lock at once, as the token says.
    pub(super) slots: Slots,
    /// The attempt that waits; `None` for a ticket without a client.
    pub(super) attempt: Option<Attempt>,
    /// The attempt from which this one took the ticket over, and how many may hold the lock at once as that one says.
    former: Option<(Attempt, Slots)>,
    /// When the ticket ends, if its client does not come back.
    lost_at: Option<Duration>,
}

/// An offer of a free lock, or of a slot of one that is shared. It counts as a holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) token: TokenHash,
    /// `None` for a ticket without a client, which may come back in time.
    pub(super) attempt: Option<Attempt>,
    slots: Slots,
    started: Duration,
}

/// The waiters of one lock. A map has room for some more than it holds, so what is large stands in boxes: most queues have one
/// waiter.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    tickets: HashMap<TokenHash, Box<QueueTicket>>,
    /// The tickets believed present, first come first.
    present: BTreeMap<Ticket, Box<TokenHash>>,
    /// When tickets end, soonest first.
    away: BTreeSet<(Duration, TokenHash)>,
    /// In the order in which they were made; those that have lapsed stay until others are made.
    offers: Vec<Offer>,
    /// The last ticket that was given, even if its client is away now.
    last: Option<Ticket>,
    /// Until when the queue need not be looked at, unless a step comes; zero where that is not known.
    pub(super) rests_until: Cell<Duration>,
}

impl QueueTicket {
    /// The attempts that are told of what becomes of it.
    pub(super) fn attempts(&self) -> impl Iterator<Item = Attempt> {
        self.attempt.into_iter().chain(self.former.map(|(attempt, _)| attempt))
    }

    /// What it goes back to, where another attempt waits with it now.
    pub(super) fn former_for(&self, attempt: Attempt, is_present: bool) -> Option<(Attempt, Slots)> {
        match self.attempt {
            Some(before) if before == attempt => self.former,
            before => before.filter(|_| is_present).map(|before| (before, self.slots)),
        }
    }
}

impl Offer {
    /// How long the offer stands yet; nothing once it has lapsed.
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        (self.started + OFFER).checked_sub(now).filter(|left| !left.is_zero())
    }
}

impl WaitQueue {
    /// Whether there is no waiter and no offer any more.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.tickets.is_empty() && self.open_offers(now).next().is_none()
    }

    /// Whether somebody has to look: an offer stands, or the next one waits for nothing but an offer of the room that is left.
    pub(super) fn is_due(&self, room: SlotRoom, now: Duration) -> bool {
        let is_lost = |ticket: &QueueTicket| ticket.lost_at.is_some_and(|lost_at| lost_at <= now);
        let mut tickets = self.present.values().filter(|token| !self.is_offered(token));
        let next = tickets.find_map(|token| self.ticket(token).filter(|ticket| !is_lost(ticket)));
        let is_admitted = |next: &QueueTicket| self.room_beside(room, None, now).admits(next.slots);
        !room.is_closed() && (!self.offers.is_empty() || next.is_some_and(is_admitted))
    }

    /// The queue need not be looked at until then, or until the first ticket ends that was left: the next one may be due by that.
    pub(super) fn rest(&self, until: Duration) {
        self.rests_until.set(self.away.first().map_or(until, |(lost_at, _)| until.min(*lost_at)));
    }

    /// How many tickets it has. Those that were left for too long are not counted, even before they are removed.
    pub(super) fn waiters(&self, now: Duration) -> usize {
        let lost = self.away.iter().take_while(|(lost_at, _)| *lost_at <= now);
        self.present.len() - lost.filter(|(_, token)| self.is_present(token)).count()
    }

    /// The offers that have not lapsed.
    pub(super) fn open_offers(&self, now: Duration) -> impl Iterator<Item = &Offer> {
        self.offers.iter().filter(move |offer| offer.left(now).is_some())
    }

    pub(super) fn has_open_offer(&self, token: &TokenHash, now: Duration) -> bool {
        self.open_offers(now).any(|offer| offer.token == *token)
    }

    /// Whether a token was made an offer, even if that has lapsed.
    pub(super) fn is_offered(&self, token: &TokenHash) -> bool {
        self.offers.iter().any(|offer| offer.token == *token)
    }

    /// What the offers leave of the room in a lock; those to `token` do not count.
    pub(super) fn room_beside(&self, room: SlotRoom, token: Option<&TokenHash>, now: Duration) -> SlotRoom {
        let others = self.open_offers(now).filter(|offer| Some(&offer.token) != token);
        others.fold(room, |room, offer| room.less(offer.slots))
    }

    /// The first ticket that waits for an offer, present or not.
    pub(super) fn next(&self) -> Option<&TokenHash> {
        self.present.values().map(Box::as_ref).find(|token| !self.is_offered(token))
    }

    pub(super) fn ticket(&self, token: &TokenHash) -> Option<&QueueTicket> {
        self.tickets.get(token).map(Box::as_ref)
    }

    /// The first of the wait queue, present or not.
    pub(super) fn first(&self) -> Option<&TokenHash> {
        self.present.values().next().map(Box::as_ref)
    }

    pub(super) fn is_present(&self, token: &TokenHash) -> bool {
        self.tickets.get(token).is_some_and(|ticket| self.is_at(ticket.place, token))
    }

    fn is_at(&self, place: Ticket, token: &TokenHash) -> bool {
        self.present.get(&place).is_some_and(|at| **at == *token)
    }

    /// The token's position, from 1 on. This counts the tickets before it, so it is for answers and not for every poll.
    pub(super) fn position(&self, token: &TokenHash) -> Option<usize> {
        let place = self.tickets.get(token)?.place;
        self.is_present(token).then(|| self.present.range(..=place).count())
    }

    /// What a waiter is told of its place.
    pub(super) fn queue_position(
        &self,
        token: &TokenHash,
        room: SlotRoom,
        now: Duration,
    ) -> Option<QueuePosition> {
        let place = self.ticket(token)?.place;
        // An offer that was made before the lock was held, or taken to be, is worth nothing. A waiter that is told of it looks at
        // once, again and again.
        let own = self.open_offers(now).find(|offer| offer.token == *token);
        let offer = own.or(self.open_offers(now).next()).filter(|_| !room.is_closed());
        let due = offer.and_then(|offer| offer.left(now)).or(room.left()).unwrap_or_default();
        Some(QueuePosition {
            ticket: place,
            is_first: self.first() == Some(token),
            due_in_ms: whole_ms(due),
            offered_to: offer.and_then(|offer| offer.attempt),
        })
    }

    /// A ticket behind all others.
    pub(super) fn last_place(&self, now: Duration) -> Ticket {
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let after_last = self.last.map_or(0, |last| last.get() + 1);
        Ticket::new(now_us.max(after_last))
    }

    /// Lets an attempt wait with a ticket of its token.
    pub(super) fn enqueue(
        &mut self,
        token: TokenHash,
        place: Ticket,
        slots: Slots,
        attempt: Attempt,
        former: Option<(Attempt, Slots)>,
    ) {
        self.remove(&token);
        let ticket = QueueTicket { place, slots, attempt: Some(attempt), former, lost_at: None };
        self.tickets.insert(token, Box::new(ticket));
        self.present.insert(place, Box::new(token));
        self.last = self.last.max(Some(place));
    }

    /// Puts the attempt of the token's ticket into the wait queue again.
    pub(super) fn stand(&mut self, token: &TokenHash) {
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        if let Some(lost_at) = ticket.lost_at.take() {
            self.away.remove(&(lost_at, *token));
        }
        self.present.insert(ticket.place, Box::new(*token));
    }

    /// Removes a token with its ticket.
    pub(super) fn remove(&mut self, token: &TokenHash) {
        let Some(ticket) = self.tickets.remove(token) else { return };
        if let Some(lost_at) = ticket.lost_at {
            self.away.remove(&(lost_at, *token));
        }
        if self.is_at(ticket.place, token) {
            self.present.remove(&ticket.place);
        }
    }

    /// Ends the wait of an attempt after its last poll. Its ticket goes back to the attempt that it was taken from.
    /// Otherwise it stays in the wait queue without a client until `lost_at`, or is removed. Returns which attempt has
    /// the ticket back; `None` where the attempt had none.
    pub(super) fn end(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        lost_at: Duration,
    ) -> Option<Option<Attempt>> {
        let had_ticket = self.tickets.get(token).is_some_and(|ticket| ticket.attempt == Some(attempt));
        // A copy that comes late keeps no ticket for longer.
        let place = if had_ticket { place } else { TicketAfter::Removed };
        let left = self.vacate(token, attempt, place, lost_at);
        if let Some(ticket) = self.tickets.get(token).filter(|ticket| had_ticket && ticket.attempt.is_none())
        {
            self.present.insert(ticket.place, Box::new(*token));
        }
        left.map(|(former, _)| former)
    }

    /// Keeps the ticket from which a token was granted the lock, until `lost_at`: the grant was undone.
    pub(super) fn keep(&mut self, token: &TokenHash, place: Ticket, slots: Slots, lost_at: Duration) {
        let ticket = QueueTicket { place, slots, attempt: None, former: None, lost_at: None };
        self.tickets.entry(*token).or_insert_with(|| Box::new(ticket));
        self.step_aside(token, lost_at);
    }

    /// Lets an attempt stand for others of the same request: at its ticket, and where its ticket may go back to.
    pub(super) fn rename(&mut self, token: &TokenHash, before: &[Attempt], now: Attempt) {
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        let former = ticket.former.as_mut().map(|(attempt, _)| attempt);
        for attempt in ticket.attempt.iter_mut().chain(former) {
            if before.contains(attempt) {
                *attempt = now;
            }
        }
    }

    /// Takes an attempt that has ended out of the wait queue. Its ticket goes back to the attempt that it was taken
    /// from. Otherwise it is kept aside until `lost_at`, or is removed. Returns which attempt has the ticket back, and
    /// whether the lock was offered to the ticket; `None` where the attempt has none.
    pub(super) fn vacate(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        lost_at: Duration,
    ) -> Option<(Option<Attempt>, bool)> {
        let ticket = self.tickets.get_mut(token)?;
        if ticket.attempt != Some(attempt) {
            ticket.former = ticket.former.filter(|(former, _)| *former != attempt);
            if ticket.attempt.is_none() && place != TicketAfter::Removed {
                self.keep_until(token, lost_at);
            }
            return None;
        }
        let former = ticket.former.take();
        if let Some((former, slots)) = former {
            (ticket.attempt, ticket.slots) = (Some(former), slots);
            self.stand(token);
        } else if place == TicketAfter::Removed {
            self.remove(token);
        } else {
            ticket.attempt = None;
            self.step_aside(token, lost_at);
        }
        Some((former.map(|(attempt, _)| attempt), self.is_offered(token)))
    }

    /// Makes offers to the first tickets that are present, for as long as there is room for them. All tickets that are passed
    /// over step aside until `lost_at`. `caller` is certainly present. `taker` takes what it is offered,
    /// with so many slots. Returns the offers, and those that had lapsed before.
    ///
    /// If an offer lapsed, the ticket that let it lapse steps aside, together with all tickets without a client before the
    /// next that is present. So each absence does not cost an offer of its own.
    pub(super) fn hand_off(
        &mut self,
        room: SlotRoom,
        now: Duration,
        lost_at: Duration,
        caller: Option<&TokenHash>,
        taker: Option<(&TokenHash, Slots)>,
    ) -> (Vec<Offer>, Vec<Offer>) {
        self.purge(now);
        let (open, lapsed): (Vec<_>, Vec<_>) =
            self.offers.drain(..).partition(|offer| offer.left(now).is_some());
        self.offers = open;
        let mut room = self.room_beside(room, None, now);
        let mut made = Vec::new();
        while let Some(token) = self.next().copied() {
            let Some(&QueueTicket { attempt, slots, .. }) = self.ticket(&token) else { break };
            let is_late = lapsed.iter().any(|late| late.token == token) && caller != Some(&token);
            if is_late || attempt.is_none() && !lapsed.is_empty() {
                self.step_aside(&token, lost_at);
                continue;
            }
            let slots = taker.filter(|(taker, _)| **taker == token).map_or(slots, |(_, slots)| slots);
            // No client is looked for behind it: else those who need little room would keep it waiting for ever.
            // One that asks itself takes its offer at once, so that it is none too many.
            if !room.admits(slots) || self.offers.len() >= MOST_OFFERS && caller != Some(&token) {
                break;
            }
            let offer = Offer { token, attempt, slots, started: now };
            room = room.less(slots);
            self.offers.push(offer);
            made.push(offer);
            if slots == Slots::ONE {
                break;
            }
        }
        (made, lapsed)
    }

    /// Ends the offer to a token: it is taken, or withdrawn.
    pub(super) fn end_offer(&mut self, token: &TokenHash) {
        self.offers.retain(|offer| offer.token != *token);
    }

    /// Ends all offers.
    pub(super) fn end_offers(&mut self) {
        self.offers.clear();
    }

    /// All steps since then are undone, or may be. Their callers were not told of the tickets that they gave.
    pub(super) fn undo(&mut self, since: Duration) {
        self.rests_until.take();
        self.offers.clear();
        let first_new = Ticket::new(u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        let unknown: Vec<_> = self.present.range(first_new..).map(|(_, token)| **token).collect();
        unknown.iter().for_each(|token| self.remove(token));
    }

    /// Removes tickets whose time away is over.
    pub(super) fn purge(&mut self, now: Duration) {
        while let Some((lost_at, token)) = self.away.first().copied() {
            if lost_at > now {
                return;
            }
            self.remove(&token);
        }
    }

    /// Passes a token over. Its ticket is kept until `lost_at`, or as long as it was to be kept before.
    fn step_aside(&mut self, token: &TokenHash, lost_at: Duration) {
        let Some(ticket) = self.tickets.get(token) else { return };
        let (place, is_away) = (ticket.place, ticket.lost_at.is_some());
        if !is_away {
            self.keep_until(token, lost_at);
        }
        if self.is_at(place, token) {
            self.present.remove(&place);
        }
    }

    /// From now on the ticket is lost at that time, and not at the one before.
    fn keep_until(&mut self, token: &TokenHash, lost_at: Duration) {
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        if let Some(before) = ticket.lost_at.replace(lost_at) {
            self.away.remove(&(before, *token));
        }
        self.away.insert((lost_at, *token));
    }
}
