//! The line of one lock, in memory: what the keys of a line hold in Redis (`line.lua`), for those who wait at a
//! single gateway.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::lock::{Attempt, Place, TokenHash};
use crate::store::{OFFER, PlaceAfter};

/// A token's place, and who waits at it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) place: Place,
    /// The attempt that waits; `None` for a place without a client.
    pub(super) attempt: Option<Attempt>,
    /// The attempt from which this one took the place over.
    pub(super) former: Option<Attempt>,
    /// When the place is lost, if nobody comes back to it.
    lost_at: Option<Duration>,
}

/// A promise of the free lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) token: TokenHash,
    /// `None` for a place without a client, which may come back in time.
    pub(super) attempt: Option<Attempt>,
    started: Duration,
}

/// Who waits for one lock.
#[derive(Debug, Default)]
pub(super) struct Line {
    seats: HashMap<TokenHash, Seat>,
    /// Those believed present, first come first.
    standing: BTreeMap<Place, TokenHash>,
    /// When places are lost, soonest first.
    away: BTreeSet<(Duration, TokenHash)>,
    offer: Option<Offer>,
    /// The last place that was given, also to one who is away now.
    last: Option<Place>,
}

impl Offer {
    /// How long the offer stands yet; nothing once it has lapsed.
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        (self.started + OFFER).checked_sub(now).filter(|left| !left.is_zero())
    }
}

impl Line {
    /// Whether nobody waits, and the lock is promised to nobody any more.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.seats.is_empty() && self.offer.is_none_or(|offer| offer.left(now).is_none())
    }

    /// How many stand in it.
    pub(super) fn waiters(&self) -> usize {
        self.standing.len()
    }

    pub(super) fn offer(&self) -> Option<Offer> {
        self.offer
    }

    pub(super) fn seat(&self, token: &TokenHash) -> Option<&Seat> {
        self.seats.get(token)
    }

    /// The first of the line, present or not.
    pub(super) fn first(&self) -> Option<&TokenHash> {
        self.standing.values().next()
    }

    pub(super) fn is_standing(&self, token: &TokenHash) -> bool {
        self.seats.get(token).is_some_and(|seat| self.standing.get(&seat.place) == Some(token))
    }

    /// Where the token stands, from 1 on. It counts those before it, which is for answers and not for every look.
    pub(super) fn position(&self, token: &TokenHash) -> Option<usize> {
        let place = self.seats.get(token)?.place;
        self.is_standing(token).then(|| self.standing.range(..=place).count())
    }

    /// A place behind all others.
    pub(super) fn last_place(&self, now: Duration) -> Place {
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let after_last = self.last.map_or(0, |last| last.get() + 1);
        Place::new(now_us.max(after_last))
    }

    /// Has an attempt wait at a place of its token.
    pub(super) fn sit(&mut self, token: TokenHash, place: Place, attempt: Attempt, former: Option<Attempt>) {
        self.remove(&token);
        self.seats.insert(token, Seat { place, attempt: Some(attempt), former, lost_at: None });
        self.standing.insert(place, token);
        self.last = self.last.max(Some(place));
    }

    /// Has the attempt at the token's place stand in the line again.
    pub(super) fn stand(&mut self, token: &TokenHash) {
        let Some(seat) = self.seats.get_mut(token) else { return };
        if let Some(lost_at) = seat.lost_at.take() {
            self.away.remove(&(lost_at, *token));
        }
        self.standing.insert(seat.place, *token);
    }

    /// Removes a token with its place.
    pub(super) fn remove(&mut self, token: &TokenHash) {
        let Some(seat) = self.seats.remove(token) else { return };
        if let Some(lost_at) = seat.lost_at {
            self.away.remove(&(lost_at, *token));
        }
        if self.standing.get(&seat.place) == Some(token) {
            self.standing.remove(&seat.place);
        }
    }

    /// Ends the wait of an attempt that looked for the last time: its place goes back to the one that it was taken
    /// from, or stays in the line without a client until `lost_at`, or is removed. Returns who has the place back.
    pub(super) fn end(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        lost_at: Duration,
    ) -> Option<Attempt> {
        let was_seated = self.seats.get(token).is_some_and(|seat| seat.attempt == Some(attempt));
        let (former, _) = self.vacate(token, attempt, place, lost_at);
        if let Some(seat) = self.seats.get(token).filter(|seat| was_seated && seat.attempt.is_none()) {
            self.standing.insert(seat.place, *token);
        }
        former
    }

    /// Keeps the place of a token that was granted the lock from it, until `lost_at`: the grant was undone.
    pub(super) fn keep(&mut self, token: &TokenHash, place: Place, lost_at: Duration) {
        let seat = Seat { place, attempt: None, former: None, lost_at: None };
        self.seats.entry(*token).or_insert(seat);
        self.step_aside(token, lost_at);
    }

    /// Has attempts stand for others of the same request: at its place, or where its place may come back to.
    pub(super) fn rename(&mut self, token: &TokenHash, before: &[Attempt], now: Attempt) {
        let Some(seat) = self.seats.get_mut(token) else { return };
        for attempt in [&mut seat.attempt, &mut seat.former].into_iter().flatten() {
            if before.contains(attempt) {
                *attempt = now;
            }
        }
    }

    /// Takes an attempt that will be heard of no more out of the line: its place goes back to the one that it was taken
    /// from, or is kept aside until `lost_at`, or is removed. Returns who has the place back, and whether the lock was
    /// offered to the place.
    pub(super) fn vacate(
        &mut self,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        lost_at: Duration,
    ) -> (Option<Attempt>, bool) {
        let Some(seat) = self.seats.get_mut(token) else { return (None, false) };
        if seat.attempt != Some(attempt) {
            seat.former = seat.former.filter(|former| *former != attempt);
            return (None, false);
        }
        let former = seat.former.take();
        if former.is_some() {
            seat.attempt = former;
            self.stand(token);
        } else if place == PlaceAfter::Removed {
            self.remove(token);
        } else {
            seat.attempt = None;
            self.step_aside(token, lost_at);
        }
        (former, self.offer.is_some_and(|offer| offer.token == *token))
    }

    /// Offers the lock, which nobody holds, to the first who is present. All that stand before step aside until
    /// `lost_at`. `caller` is certainly present. Returns the offer; nothing where nobody is present.
    ///
    /// Where the lock is free because an offer lapsed, the one that let it lapse steps aside, and so do all places
    /// without a client: no absence costs the line an offer of its own.
    pub(super) fn hand_off(
        &mut self,
        now: Duration,
        lost_at: Duration,
        caller: Option<&TokenHash>,
    ) -> Option<Offer> {
        self.purge(now);
        let lapsed = self.offer.take().filter(|offer| offer.left(now).is_none());
        while let Some(token) = self.first().copied() {
            let attempt = self.seats.get(&token).and_then(|seat| seat.attempt);
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

    /// Removes places whose time away is over.
    pub(super) fn purge(&mut self, now: Duration) {
        while let Some((lost_at, token)) = self.away.first().copied() {
            if lost_at > now {
                return;
            }
            self.remove(&token);
        }
    }

    /// Passes a token over. Its place is kept until `lost_at`, or as long as it was to be kept before.
    fn step_aside(&mut self, token: &TokenHash, lost_at: Duration) {
        let Some(seat) = self.seats.get_mut(token) else { return };
        if seat.lost_at.is_none() {
            seat.lost_at = Some(lost_at);
            self.away.insert((lost_at, *token));
        }
        if self.standing.get(&seat.place) == Some(token) {
            self.standing.remove(&seat.place);
        }
    }
}
