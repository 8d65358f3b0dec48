//! The wait queue of one lock, in memory: what the keys of a wait queue hold in Redis (`wait_queue.lua`), for waiters
//! at a single gateway.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::lock::{Attempt, Ticket, TokenHash};
use crate::store::{OFFER, TicketAfter};

/// A token's ticket, and the attempt that waits with it.
#[derive(Clone, Debug)]
pub(super) struct QueueTicket {
    pub(super) place: Ticket,
    /// The attempt that waits; `None` for a ticket without a client.
    pub(super) attempt: Option<Attempt>,
    /// The attempt from which this one took the ticket over.
    pub(super) former: Option<Attempt>,
    /// When the ticket ends, if its client does not come back.
    lost_at: Option<Duration>,
}

/// An offer of the free lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) token: TokenHash,
    /// `None` for a ticket without a client, which may come back in time.
    pub(super) attempt: Option<Attempt>,
    started: Duration,
}

/// The waiters of one lock.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    tickets: HashMap<TokenHash, QueueTicket>,
    /// The tickets believed present, first come first.
    present: BTreeMap<Ticket, TokenHash>,
    /// When tickets end, soonest first.
    away: BTreeSet<(Duration, TokenHash)>,
    offer: Option<Offer>,
    /// The last ticket that was given, even if its client is away now.
    last: Option<Ticket>,
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
        self.tickets.is_empty() && self.open_offer(now).is_none()
    }

    /// How many tickets it has. Those that were left for too long are not counted, even before they are removed.
    pub(super) fn waiters(&self, now: Duration) -> usize {
        let lost = self.away.iter().take_while(|(lost_at, _)| *lost_at <= now);
        self.present.len() - lost.filter(|(_, token)| self.is_present(token)).count()
    }

    /// The offer that was made last, even if it has lapsed.
    pub(super) fn offer(&self) -> Option<Offer> {
        self.offer
    }

    /// The offer, unless it has lapsed.
    pub(super) fn open_offer(&self, now: Duration) -> Option<Offer> {
        self.offer.filter(|offer| offer.left(now).is_some())
    }

    pub(super) fn ticket(&self, token: &TokenHash) -> Option<&QueueTicket> {
        self.tickets.get(token)
    }

    /// The first of the wait queue, present or not.
    pub(super) fn first(&self) -> Option<&TokenHash> {
        self.present.values().next()
    }

    pub(super) fn is_present(&self, token: &TokenHash) -> bool {
        self.tickets.get(token).is_some_and(|ticket| self.present.get(&ticket.place) == Some(token))
    }

    /// The token's position, from 1 on. This counts the tickets before it, so it is for answers and not for every poll.
    pub(super) fn position(&self, token: &TokenHash) -> Option<usize> {
        let place = self.tickets.get(token)?.place;
        self.is_present(token).then(|| self.present.range(..=place).count())
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
        attempt: Attempt,
        former: Option<Attempt>,
    ) {
        self.remove(&token);
        self.tickets.insert(token, QueueTicket { place, attempt: Some(attempt), former, lost_at: None });
        self.present.insert(place, token);
        self.last = self.last.max(Some(place));
    }

    /// Puts the attempt of the token's ticket into the wait queue again.
    pub(super) fn stand(&mut self, token: &TokenHash) {
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        if let Some(lost_at) = ticket.lost_at.take() {
            self.away.remove(&(lost_at, *token));
        }
        self.present.insert(ticket.place, *token);
    }

    /// Removes a token with its ticket.
    pub(super) fn remove(&mut self, token: &TokenHash) {
        let Some(ticket) = self.tickets.remove(token) else { return };
        if let Some(lost_at) = ticket.lost_at {
            self.away.remove(&(lost_at, *token));
        }
        if self.present.get(&ticket.place) == Some(token) {
            self.present.remove(&ticket.place);
        }
    }

    /// Ends the wait of an attempt after its last poll. Its ticket goes back to the attempt that it was taken from.
    /// Otherwise it stays in the wait queue without a client until `lost_at`, or is removed. Returns which attempt has
    /// the ticket back.
    pub(super) fn end(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        lost_at: Duration,
    ) -> Option<Attempt> {
        let had_ticket = self.tickets.get(token).is_some_and(|ticket| ticket.attempt == Some(attempt));
        let (former, _) = self.vacate(token, attempt, place, lost_at);
        if let Some(ticket) = self.tickets.get(token).filter(|ticket| had_ticket && ticket.attempt.is_none())
        {
            self.present.insert(ticket.place, *token);
        }
        former
    }

    /// Keeps the ticket from which a token was granted the lock, until `lost_at`: the grant was undone.
    pub(super) fn keep(&mut self, token: &TokenHash, place: Ticket, lost_at: Duration) {
        let ticket = QueueTicket { place, attempt: None, former: None, lost_at: None };
        self.tickets.entry(*token).or_insert(ticket);
        self.step_aside(token, lost_at);
    }

    /// Lets an attempt stand for others of the same request: at its ticket, and where its ticket may go back to.
    pub(super) fn rename(&mut self, token: &TokenHash, before: &[Attempt], now: Attempt) {
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        for attempt in [&mut ticket.attempt, &mut ticket.former].into_iter().flatten() {
            if before.contains(attempt) {
                *attempt = now;
            }
        }
    }

    /// Takes an attempt that has ended out of the wait queue. Its ticket goes back to the attempt that it was taken
    /// from. Otherwise it is kept aside until `lost_at`, or is removed. Returns which attempt has the ticket back, and
    /// whether the lock was offered to the ticket.
    pub(super) fn vacate(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: TicketAfter,
        lost_at: Duration,
    ) -> (Option<Attempt>, bool) {
        let Some(ticket) = self.tickets.get_mut(token) else { return (None, false) };
        if ticket.attempt != Some(attempt) {
            ticket.former = ticket.former.filter(|former| *former != attempt);
            return (None, false);
        }
        let former = ticket.former.take();
        if former.is_some() {
            ticket.attempt = former;
            self.stand(token);
        } else if place == TicketAfter::Removed {
            self.remove(token);
        } else {
            ticket.attempt = None;
            self.step_aside(token, lost_at);
        }
        (former, self.offer.is_some_and(|offer| offer.token == *token))
    }

    /// Offers the free lock to the first ticket that is present. All tickets before it step aside until `lost_at`.
    /// `caller` is certainly present. Returns the offer; nothing if no ticket is present.
    ///
    /// If the lock is free because an offer lapsed, the ticket that let it lapse steps aside, together with all tickets
    /// without a client. So each absence does not cost an offer of its own.
    pub(super) fn hand_off(
        &mut self,
        now: Duration,
        lost_at: Duration,
        caller: Option<&TokenHash>,
    ) -> Option<Offer> {
        self.purge(now);
        let lapsed = self.offer.take().filter(|offer| offer.left(now).is_none());
        while let Some(token) = self.first().copied() {
            let attempt = self.tickets.get(&token).and_then(|ticket| ticket.attempt);
            let is_absent = match lapsed {
                Some(lapsed) => attempt.is_none() || lapsed.token == token,
                None => false,
            };
            if !is_absent || caller == Some(&token) {
                self.offer = Some(Offer { token, attempt, started: now });
                break;
            }
            self.step_aside(&token, lost_at);
        }
        self.offer
    }

    /// Ends the offer: it is taken, or withdrawn.
    pub(super) fn take_offer(&mut self) {
        self.offer = None;
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
        let Some(ticket) = self.tickets.get_mut(token) else { return };
        if ticket.lost_at.is_none() {
            ticket.lost_at = Some(lost_at);
            self.away.insert((lost_at, *token));
        }
        if self.present.get(&ticket.place) == Some(token) {
            self.present.remove(&ticket.place);
        }
    }
}
