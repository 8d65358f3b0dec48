//! The scripts of the store. Each is one step.

use super::promises::IN_TURN;
use super::rules::{Mutant, Rules};
use super::state::{Due, Entry, Grant, Phase, Place, Request, Script, Standing, State, Token, Width};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Granted(u8),
    InQueue,
    /// Another request has the place.
    Moved,
    Refused,
    Done,
}

impl Rules {
    /// What every script does: its own part, then handing off, whatever it found.
    pub fn run_script(&self, state: &mut State, script: Script, request: Request) -> Reply {
        let reply = match script {
            Script::Release => self.release(state, self.askers[request].token),
            Script::TakeBack => self.take_back(state, request),
            Script::Try | Script::Join | Script::Look => self.acquire(state, script, request),
        };
        let forgets = if matches!(reply, Reply::Granted(_)) {
            Mutant::GrantHandsOffNothing
        } else {
            Mutant::RefusalHandsOffNothing
        };
        if !self.is(forgets) {
            self.hand_off(state, None);
        }
        let present = state.queue.iter().filter(|place| place.standing == Standing::Present).count();
        let has_entries = state.entries().next().is_some();
        state.due = if present == 0 || !has_entries || self.is(Mutant::NothingIsDue) {
            Due::Never
        } else if present > 1 && !self.is(Mutant::NobodyLooksEachSecond) {
            // The first is not admitted, and others stand behind it: only who looks sees that it has gone.
            Due::EachSecond
        } else {
            Due::AtAnEnd
        };
        reply
    }

    /// Removes what is over. Who let an offer lapse steps aside.
    fn purge(&self, state: &mut State) {
        for token in 0..state.holders.len() {
            let Some(entry) = state.holders[token].entry.filter(|entry| entry.is_over) else { continue };
            if entry.grant.is_some() && self.is(Mutant::WhatIsOverStays) {
                continue;
            }
            state.holders[token].entry = None;
            if entry.grant.is_none() {
                state.place_of(token).into_iter().for_each(|place| place.standing = Standing::Aside);
            }
        }
    }

    fn admits(&self, state: &State, width: Width) -> bool {
        let held =
            || state.entries().filter(|entry| entry.grant.is_some() || !self.is(Mutant::OffersDoNotCount));
        let least = match self.mutant {
            Mutant::OwnWidthAlone => width,
            _ => held().map(|entry| entry.width).fold(width, Width::min),
        };
        held().count() < usize::from(least)
    }

    /// Who waits and is present, the first of them first. That a gateway is silent is found out here.
    fn present(&self, state: &mut State) -> Vec<Token> {
        for place in &mut state.queue {
            if place.standing != Standing::Present {
                continue;
            }
            if place.by.is_none_or(|by| state.phases[by] != Phase::Killed) {
                break;
            }
            place.standing = Standing::Aside;
        }
        let present = state.queue.iter().filter(|place| place.standing == Standing::Present);
        let present: Vec<_> = present.copied().collect();
        let fits = |place: &Place| self.is(Mutant::WhoFitsOvertakes) && self.admits(state, place.width);
        let first = present.iter().position(fits).unwrap_or(0);
        present[first..].iter().map(|place| place.token).collect()
    }

    /// Makes offers to the first in the queue, as long as they are admitted; or ends where it is `taker`'s turn.
    fn hand_off(&self, state: &mut State, taker: Option<Token>) -> bool {
        let mut offers = 0;
        loop {
            let Some(token) = self.present(state).first().copied() else { return false };
            let Some(place) = state.place_of(token).map(|place| *place) else { return false };
            if !self.admits(state, place.width) {
                return false;
            }
            self.check_turn(state, token);
            if taker == Some(token) {
                return true;
            }
            let standing = state.entries().filter(|entry| entry.grant.is_none()).count();
            if standing >= self.most_offers || self.is(Mutant::OneOffer) && offers > 0 {
                return false;
            }
            let offer = Entry { grant: None, by: place.by, is_over: false, width: place.width };
            state.holders[token].entry = Some(offer);
            state.place_of(token).into_iter().for_each(|place| place.standing = Standing::Offered);
            offers += 1;
        }
    }

    /// Nobody who came earlier, and is present, is passed over by this token.
    fn check_turn(&self, state: &mut State, token: Token) {
        let mut before = state.queue.iter().take_while(|place| place.token != token);
        if before.any(|place| place.standing == Standing::Present) {
            state.broken = Some(IN_TURN);
        }
    }

    /// Grants the lock to a request whose turn it is, if its own width is admitted. Else its offer is withdrawn, and its place
    /// stays.
    fn grant(&self, state: &mut State, request: Request) -> Option<Reply> {
        let asker = self.askers[request];
        let offer = state.holders[asker.token].entry.take();
        let mut width = asker.width;
        if self.is(Mutant::OfferIsTakenByAnyWidth) {
            width = offer.map_or(width, |offer| offer.width);
        } else if !self.admits(state, width) && !self.is(Mutant::OwnEntryIsIgnored) {
            state.place_of(asker.token).into_iter().for_each(|place| place.standing = Standing::Present);
            return None;
        }
        state.leave_queue(asker.token);
        let is_free =
            |slot: &u8| !state.entries().any(|entry| entry.grant.is_some_and(|grant| grant.slot == *slot));
        let slot = match self.mutant {
            Mutant::SlotIsCounted => state.entries().filter(|entry| entry.grant.is_some()).count() as u8 + 1,
            _ => (1..).find(is_free)?,
        };
        let numbers = state.entries().filter_map(|entry| entry.grant).map(|grant| grant.number);
        let told = state.holders.iter().filter_map(|holder| holder.told).map(|told| told.number);
        let number = numbers.chain(told).max().unwrap_or(0) + 1;
        let grant = Some(Grant { slot, number });
        state.holders[asker.token].entry = Some(Entry { grant, by: Some(request), is_over: false, width });
        Some(Reply::Granted(number))
    }

    fn acquire(&self, state: &mut State, script: Script, request: Request) -> Reply {
        let asker = self.askers[request];
        let token = asker.token;
        if state.holders[token].is_final || state.voided[request] {
            return Reply::Refused;
        }
        self.purge(state);
        let own = state.holders[token].entry;
        if let Some((entry, grant)) = own.and_then(|own| Some((own, own.grant?)))
            && !self.is(Mutant::OwnEntryIsIgnored)
        {
            if entry.by == Some(request) {
                return Reply::Granted(grant.number);
            }
            if asker.width < entry.width && !self.is(Mutant::FewerIsToldAsHeld) {
                return Reply::Refused;
            }
            if !self.is(Mutant::RepetitionDoesNotPin) {
                state.holders[token].entry = Some(Entry { by: None, ..entry });
            }
            return Reply::Granted(grant.number);
        }
        let is_offered = own.is_some_and(|own| own.grant.is_none());
        match script {
            Script::Join => self.join(state, request, is_offered),
            Script::Look => {
                let Some(place) = state.place_of(token).filter(|place| place.by == Some(request)) else {
                    return Reply::Moved;
                };
                if place.standing == Standing::Aside {
                    place.standing = Standing::Present;
                }
            }
            _ => {}
        }
        let otherwise = if script == Script::Try { Reply::Refused } else { Reply::InQueue };
        if is_offered || self.hand_off(state, Some(token)) {
            return self.grant(state, request).unwrap_or(otherwise);
        }
        if script != Script::Try {
            return Reply::InQueue;
        }
        let is_awaited = state.queue.iter().any(|place| place.standing == Standing::Present);
        if is_awaited && !self.is(Mutant::NewcomerOvertakes) || !self.admits(state, asker.width) {
            return Reply::Refused;
        }
        let others = || state.queue.iter().filter(|place| place.token != token);
        if !self.is(Mutant::OwnEntryIsIgnored) && others().any(|place| place.standing == Standing::Present) {
            state.broken = Some(IN_TURN);
        }
        self.grant(state, request).unwrap_or(Reply::Refused)
    }

    /// Takes a place at the end of the queue, or the token's own over, which has the new width then.
    fn join(&self, state: &mut State, request: Request, is_offered: bool) {
        let asker = self.askers[request];
        let standing = if is_offered { Standing::Offered } else { Standing::Present };
        let place = Place { token: asker.token, by: Some(request), standing, width: asker.width };
        match state.place_of(asker.token) {
            Some(own) => *own = place,
            None => state.queue.push(place),
        }
    }

    fn release(&self, state: &mut State, token: Token) -> Reply {
        if state.holders[token].is_final {
            return Reply::Done;
        }
        self.purge(state);
        state.holders[token].entry = None;
        state.leave_queue(token);
        state.holders[token].is_final = !self.is(Mutant::ReleaseLeavesNoMark);
        Reply::Done
    }

    /// Undoes what an attempt did, and voids it. Its place is kept, and nobody's.
    fn take_back(&self, state: &mut State, request: Request) -> Reply {
        let token = self.askers[request].token;
        self.purge(state);
        let own = state.holders[token].entry;
        let is_its = |entry: &Entry| entry.by == Some(request) || self.is(Mutant::TakeBackIgnoresAttempt);
        if own.is_some_and(|own| own.grant.is_some() && is_its(&own)) {
            state.holders[token].entry = None;
        }
        if !self.is(Mutant::TakeBackVoidsNothing) {
            state.voided[request] = true;
        }
        if let Some(place) = state.place_of(token).filter(|place| place.by == Some(request)) {
            (place.by, place.standing) = (None, Standing::Aside);
            if own.is_some_and(|own| own.grant.is_none()) {
                state.holders[token].entry = None;
            }
        }
        Reply::Done
    }
}
