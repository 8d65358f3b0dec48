//! The scripts of the store that free the lock or end a wait, and whom they hand the lock to.

use super::rules::{Mutant, Rules};
use super::state::{Attempt, Due, Gate, Lock, Offer, Process, Seat, State, Token, Wrong};

impl Rules {
    pub fn hand_off_if_free(&self, state: &mut State, caller: Option<Token>) -> Option<Token> {
        match state.lock {
            Lock::Free => self.hand_off(state, caller, None),
            Lock::Offered(offer) if offer.is_lapsed => self.hand_off(state, caller, Some(offer)),
            _ => None,
        }
    }

    /// Offers a free lock to the first who is present, and returns it.
    fn hand_off(&self, state: &mut State, caller: Option<Token>, lapsed: Option<Offer>) -> Option<Token> {
        let before = state.clone();
        let counts_old = lapsed.is_none() || self.has(Mutant::LapseCountsOldBeats);
        let since = if counts_old { Gate::Heard } else { Gate::HeardSinceOffer };
        let mut line: Vec<Token> = (0..state.seats.len()).collect();
        line.retain(|token| state.seats[*token].is_some_and(|seat| seat.is_in_line));
        line.sort_by_key(|token| state.seats[*token].map(|seat| seat.place));
        for token in line {
            let Some(seat) = state.seats[token] else { continue };
            let is_present = match seat.client {
                _ if caller == Some(token) => true,
                None => lapsed.is_none(),
                Some(client) => {
                    before.gates[self.gateway_of(client)] >= since
                        && (lapsed.is_none_or(|lapsed| lapsed.token != token)
                            || self.has(Mutant::LapserIsPresent))
                }
            };
            if is_present {
                if caller != Some(token) {
                    self.offer(state, token, seat.client);
                }
                self.check_turn(state, &before, Some(token), lapsed);
                return Some(token);
            }
            state.seats[token] = Some(Seat { is_in_line: false, ..seat });
            if self.has(Mutant::PassedOverLosesPlace) {
                state.seats[token] = None;
            }
            if let Some(gateway) = seat.client.map(|client| self.gateway_of(client)) {
                if before.gates[gateway] < since {
                    state.gates[gateway] = Gate::Unknown;
                } else if !self.has(Mutant::LapserIsNotTold) {
                    // It beats, but may have missed the hint: its next beat tells it that it is new.
                    state.is_beat_known[gateway] = false;
                }
            }
        }
        self.check_turn(state, &before, None, lapsed);
        state.lock = Lock::Free;
        state.due = Due::Never;
        None
    }

    fn offer(&self, state: &mut State, token: Token, attempt: Option<Attempt>) {
        state.lock = Lock::Offered(Offer { token, attempt, is_lapsed: false });
        state.due = if self.has(Mutant::OfferIsNotDue) { Due::Never } else { Due::Now };
        for gate in &mut state.gates {
            *gate = (*gate).min(Gate::Heard);
        }
        if let Some(attempt) = attempt
            && state.processes[self.gateway_of(attempt)] == Process::Runs
        {
            state.offer_hints.add(attempt);
        }
    }

    /// A mutant passes over the whole line.
    pub fn overtake(&self, state: &mut State, token: Token) -> bool {
        let before = state.clone();
        self.check_turn(state, &before, Some(token), None);
        true
    }

    /// Whether one was passed over that the store could know to be there; for the properties alone.
    pub fn check_turn(&self, state: &mut State, before: &State, token: Option<Token>, lapsed: Option<Offer>) {
        let since = if lapsed.is_some() { Gate::HeardSinceOffer } else { Gate::Heard };
        let own = token.and_then(|token| before.seats[token]).map(|seat| seat.place);
        let is_there = |client| {
            let is_known = before.gates[self.gateway_of(client)] >= since || before.left == self.may;
            is_known && self.is_awaited(before, client)
        };
        let is_passed_over = |other: Token, seat: Seat| {
            let is_in_line = match seat.client {
                Some(client) => seat.is_in_line && is_there(client),
                // Who knows its place must not find it given up by another request.
                None => {
                    self.is_strict
                        && self.requests(None).any(|request| {
                            let wait = &before.waits[request];
                            let is_its =
                                self.askers[request].token == other && wait.is_idle() && wait.place.is_some();
                            is_its && !seat.is_in_line && is_there(wait.current)
                        })
                }
            };
            let is_before = own.is_none_or(|own| seat.place < own);
            let is_lapser = lapsed.is_some_and(|lapsed| lapsed.token == other);
            Some(other) != token && is_in_line && is_before && !is_lapser
        };
        let mut seats = before.seats.iter().enumerate();
        if seats.any(|(other, seat)| seat.is_some_and(|seat| is_passed_over(other, seat))) {
            state.wrong = Some(Wrong::Overtaking);
        }
    }

    /// Undoes what an attempt did, and voids it.
    pub fn take_back(&self, state: &mut State, attempt: Attempt) {
        let token = self.token_of(attempt);
        let holds =
            matches!(state.lock, Lock::Held(held) if held.token == token && held.attempt == Some(attempt));
        let has_place = state.seats[token].is_some_and(|seat| seat.client == Some(attempt));
        match self.mutant {
            Mutant::LeavingVoidsNothing => {}
            Mutant::LeavingVoidsOnlySuccess if !holds && !has_place => {}
            _ => state.voided.add(attempt),
        }
        self.step_back(state, attempt, false);
        if has_place && self.has(Mutant::LeaverLosesPlace) {
            state.seats[token] = None;
        }
        if holds {
            self.free(state);
        }
        self.take_back_offer(state, attempt);
    }

    fn free(&self, state: &mut State) {
        if self.has(Mutant::FreeingHandsOffNothing) {
            state.lock = Lock::Free;
        } else {
            self.hand_off(state, None, None);
        }
    }

    /// An offer reached a gateway that does not know the attempt.
    pub fn decline(&self, state: &mut State, attempt: Attempt) {
        match self.mutant {
            Mutant::NothingIsDeclined => {}
            Mutant::DecliningDeletesLock => self.take_back(state, attempt),
            _ => {
                self.step_back(state, attempt, false);
                self.take_back_offer(state, attempt);
            }
        }
    }

    pub fn take_back_offer(&self, state: &mut State, attempt: Attempt) {
        if let Lock::Offered(offer) = state.lock
            && offer.attempt == Some(attempt)
            && !self.has(Mutant::LeaverKeepsOffer)
        {
            self.hand_off(state, None, None);
        }
    }

    /// The place goes back to whom it was taken from; or it is kept for a while for a client that chose its
    /// token.
    pub fn step_back(&self, state: &mut State, attempt: Attempt, makes_ticket: bool) {
        let token = self.token_of(attempt);
        let Some(mut seat) = state.seats[token] else { return };
        if seat.from == Some(attempt) && (makes_ticket || !self.has(Mutant::LeaverStaysNoted)) {
            seat.from = None;
        }
        if seat.client == Some(attempt) {
            if self.has(Mutant::NothingIsGivenBack)
                || makes_ticket && self.has(Mutant::LastLookGivesNothingBack)
            {
                seat.from = None;
            }
            if makes_ticket && self.has(Mutant::TicketKeepsAttempt) {
                return;
            }
            let is_kept = seat.from.is_some() || !self.made;
            seat.is_in_line = seat.from.is_some() || makes_ticket;
            seat.client = seat.from.take();
            if !is_kept {
                state.seats[token] = None;
                state.first_places[token] = None;
                return;
            }
        }
        state.seats[token] = Some(seat);
    }

    pub fn release(&self, state: &mut State, token: Token) {
        if !self.made {
            state.freed[token] = true;
        }
        if !self.has(Mutant::ReleaseKeepsPlace) {
            state.seats[token] = None;
            state.first_places[token] = None;
        }
        let is_its = match state.lock {
            Lock::Free => false,
            Lock::Offered(offer) => offer.token == token && !self.has(Mutant::ReleaseKeepsOffer),
            Lock::Held(held) => held.token == token,
        };
        if is_its {
            self.free(state);
        }
    }

    /// The one that holds the lock at first never waits, and is not seen again.
    pub fn release_holder(&self, state: &mut State) {
        self.free(state);
    }
}
