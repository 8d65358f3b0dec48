//! The scripts of the store that may grant, and the beat.

use super::rules::{Mutant, Rules};
use super::state::{
    Attempt, Attempts, Due, Gate, Gateway, Held, Join, Lock, Process, Seat, State, Token, Wrong, request_of,
};

/// What a script answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    Granted,
    /// The token is freed.
    Freed,
    Voided,
    /// Held by another, and no place is taken.
    Refused,
    /// It stands in line, or aside, at this place.
    InLine {
        place: u8,
        offered_to: Option<Token>,
    },
    /// Its place is gone, or that of one that is absent.
    PutBack,
    /// Another request of its token stands in its place.
    Moved,
}

impl Rules {
    /// What comes first in each script that may grant: the marks, and a lock of the token's own.
    fn begin(&self, state: &mut State, attempt: Attempt, supersedes: Attempts) -> Option<Reply> {
        let token = self.token_of(attempt);
        if state.freed[token] && !self.has(Mutant::FreedIsForgotten) {
            return Some(Reply::Freed);
        }
        if state.voided.has(attempt) {
            return Some(Reply::Voided);
        }
        if !self.has(Mutant::SupersededIsNotVoided) {
            state.voided.0 |= supersedes.0;
        }
        self.rename(state, attempt, supersedes);
        let Lock::Held(held) = &mut state.lock else { return None };
        if held.token != token {
            return None;
        }
        if held.attempt != Some(attempt) {
            held.attempt = None;
            held.pinned_by = Some(request_of(attempt));
        }
        Some(Reply::Granted)
    }

    /// Whatever has the name of a superseded attempt is the new one's.
    fn rename(&self, state: &mut State, attempt: Attempt, supersedes: Attempts) {
        let rename = |name: &mut Option<Attempt>, unless: Mutant| {
            if name.is_some_and(|name| supersedes.has(name)) && !self.has(unless) {
                *name = Some(attempt);
            }
        };
        match &mut state.lock {
            Lock::Free => {}
            Lock::Offered(offer) => rename(&mut offer.attempt, Mutant::SupersededOfferStays),
            Lock::Held(held) => rename(&mut held.attempt, Mutant::SupersededLockIsPinned),
        }
        if let Some(seat) = &mut state.seats[self.token_of(attempt)] {
            rename(&mut seat.client, Mutant::SupersededSeatIsForeign);
            rename(&mut seat.from, Mutant::SupersededStaysNoted);
        }
    }

    pub fn join(&self, state: &mut State, join: Join) -> Reply {
        let Join { attempt, supersedes, displaces, .. } = join;
        if let Some(reply) = self.begin(state, attempt, supersedes) {
            return reply;
        }
        let token = self.token_of(attempt);
        let client = Some(attempt);
        let seat = match state.seats[token] {
            None => self.new_seat(state, join),
            Some(seat) if seat.client == client => Seat { is_in_line: true, ..seat },
            Some(seat) if !seat.is_present() => {
                // A retry that came after a loss of data has a place behind the one that is remembered.
                let place = seat.place.min(join.place.unwrap_or(seat.place));
                Seat { place, client, from: None, is_in_line: true }
            }
            Some(seat) if displaces => {
                self.tell_moved(state, seat.client);
                Seat { client, from: seat.client, ..seat }
            }
            Some(_) => {
                if !self.has(Mutant::MovedHandsOffNothing) {
                    self.hand_off_if_free(state, None);
                }
                return Reply::Moved;
            }
        };
        self.check_place(state, join, seat.place);
        state.seats[token] = Some(seat);
        let gateway = self.gateway_of(attempt);
        if self.has(Mutant::JoinMakesKnown) && state.gates[gateway] == Gate::Unknown {
            state.gates[gateway] = Gate::Heard;
            state.is_beat_known[gateway] = true;
        }
        if self.has(Mutant::JoinDoesNotLook) && state.lock == Lock::Free {
            return Reply::InLine { place: seat.place, offered_to: None };
        }
        if self.has(Mutant::NewcomerOvertakes) && state.lock == Lock::Free && join.place.is_none() {
            self.overtake(state, token);
            return self.grant(state, attempt);
        }
        if let Lock::Offered(offer) = state.lock
            && offer.is_lapsed
            && offer.token == token
            && join.place.is_some()
            && self.has(Mutant::PutBackIsAbsent)
        {
            self.hand_off_if_free(state, None);
            return Reply::InLine { place: seat.place, offered_to: None };
        }
        self.look_in_line(state, attempt, seat.place)
    }

    fn new_seat(&self, state: &mut State, Join { attempt, place, .. }: Join) -> Seat {
        let place = place.filter(|_| !self.has(Mutant::PutBackIsLast)).unwrap_or_else(|| {
            state.next_place += 1;
            state.next_place - 1
        });
        Seat { place, client: Some(attempt), from: None, is_in_line: true }
    }

    /// A token keeps its first place, and a request the one that it was told; for the properties alone.
    fn check_place(&self, state: &mut State, join: Join, place: u8) {
        let first = state.first_places[self.token_of(join.attempt)].get_or_insert(place);
        let is_behind = place > *first;
        *first = place.min(*first);
        let told = state.waits[request_of(join.attempt)].place;
        if !join.is_old && (is_behind || told.is_some_and(|told| place > told)) {
            state.wrong = Some(Wrong::PlaceLost);
        }
    }

    /// What a hint says to a killed gateway is lost on it.
    fn tell_moved(&self, state: &mut State, client: Option<Attempt>) {
        let client = client.filter(|client| state.processes[self.gateway_of(*client)] == Process::Runs);
        client.into_iter().for_each(|client| state.move_hints.add(client));
    }

    /// What a look does once its place is found.
    fn look_in_line(&self, state: &mut State, attempt: Attempt, place: u8) -> Reply {
        let token = self.token_of(attempt);
        match state.lock {
            Lock::Offered(offer) if offer.token == token => return self.grant(state, attempt),
            Lock::Offered(offer) if self.has(Mutant::LookIgnoresOffer) => {
                let before = state.clone();
                self.check_turn(state, &before, Some(token), offer.is_lapsed.then_some(offer));
                return self.grant(state, attempt);
            }
            _ => {}
        }
        if self.hand_off_if_free(state, Some(token)) == Some(token) {
            return self.grant(state, attempt);
        }
        state.due = match state.lock {
            Lock::Held(_) => Due::AtItsEnd,
            _ if self.has(Mutant::OfferIsNotDue) => Due::Never,
            _ => Due::Now,
        };
        let offered_to = match state.lock {
            Lock::Offered(offer) => Some(offer.token),
            _ => None,
        };
        Reply::InLine { place, offered_to }
    }

    pub fn look(&self, state: &mut State, attempt: Attempt, supersedes: Attempts) -> Reply {
        if let Some(reply) = self.begin(state, attempt, supersedes) {
            return reply;
        }
        let token = self.token_of(attempt);
        if state.seats[token].is_none() && self.has(Mutant::LookCreatesPlace) {
            let join = Join { attempt, supersedes, displaces: false, place: None, is_old: true };
            return self.join(state, join);
        }
        let Some(mut seat) = state.seats[token] else { return Reply::PutBack };
        if seat.client == Some(attempt) || self.has(Mutant::LookTakesPlace) {
            if !seat.is_in_line
                && self.has(Mutant::LookWithdrawsOffer)
                && matches!(state.lock, Lock::Offered(_))
            {
                state.lock = Lock::Free;
            }
            seat.client = Some(attempt);
            seat.is_in_line = true;
            state.seats[token] = Some(seat);
            self.look_in_line(state, attempt, seat.place)
        } else if seat.is_present() {
            if !self.has(Mutant::MovedHandsOffNothing) {
                self.hand_off_if_free(state, None);
            }
            Reply::Moved
        } else {
            Reply::PutBack
        }
    }

    pub fn last_look(&self, state: &mut State, attempt: Attempt, supersedes: Attempts) -> Reply {
        let reply = self.look(state, attempt, supersedes);
        if matches!(reply, Reply::Granted | Reply::Freed | Reply::Voided) {
            return reply;
        }
        let is_own = state.seats[self.token_of(attempt)].is_some_and(|seat| seat.client == Some(attempt));
        if !self.has(Mutant::LastLookVoidsNothing) {
            state.voided.add(attempt);
        }
        if is_own || !self.has(Mutant::LastLookGivesNothingBack) {
            self.step_back(state, attempt, true);
        }
        self.take_back_offer(state, attempt);
        Reply::Refused
    }

    /// Without `wait`.
    pub fn try_now(&self, state: &mut State, attempt: Attempt, supersedes: Attempts) -> Reply {
        if let Some(reply) = self.begin(state, attempt, supersedes) {
            return reply;
        }
        let token = self.token_of(attempt);
        match state.lock {
            Lock::Held(_) => return Reply::Refused,
            Lock::Offered(offer) if offer.token == token => {}
            Lock::Offered(offer) if !offer.is_lapsed => return Reply::Refused,
            _ => {
                let is_first = self.has(Mutant::NewcomerOvertakes)
                    && state.lock == Lock::Free
                    && self.overtake(state, token);
                let first = if is_first { None } else { self.hand_off_if_free(state, None) };
                if first.is_some_and(|first| first != token || self.has(Mutant::TicketIsNotGranted)) {
                    return Reply::Refused;
                }
            }
        }
        self.grant(state, attempt)
    }

    fn grant(&self, state: &mut State, attempt: Attempt) -> Reply {
        let token = self.token_of(attempt);
        let seat = state.seats[token].take();
        let other = seat.and_then(|seat| seat.client).filter(|client| *client != attempt);
        self.tell_moved(state, other.filter(|_| !self.has(Mutant::GrantTellsNobody)));
        state.first_places[token] = None;
        let has_line = state.seats.iter().flatten().any(|seat| seat.is_in_line);
        state.due = if has_line { Due::AtItsEnd } else { Due::Never };
        let granted_to = Some(request_of(attempt));
        state.lock = Lock::Held(Held { token, attempt: Some(attempt), granted_to, pinned_by: None });
        Reply::Granted
    }

    /// The beat names the one before it that was answered: whatever else the store has, the gateway is told
    /// that it is new. Returns that, and whether somebody must look at the lock.
    pub fn beat(&self, state: &mut State, gateway: Gateway, is_answered: bool) -> (bool, bool) {
        let is_known = state.is_beat_known[gateway] || self.has(Mutant::AnyBeatIsKnown);
        let is_new = match state.gates[gateway] {
            Gate::Unknown => true,
            Gate::Silent if !self.has(Mutant::SilentIsKnown) => true,
            _ => !is_known,
        };
        state.gates[gateway] = Gate::HeardSinceOffer;
        state.is_beat_known[gateway] = is_answered;
        (is_new, state.due == Due::Now)
    }
}
