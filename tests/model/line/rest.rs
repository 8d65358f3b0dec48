//! What all comes to when nothing fails any more.

use stateright::Model;

use super::actions::Action;
use super::gateway::Fate;
use super::rules::{Mutant, Rules};
use super::state::{HOLDER, Held, Lock, NO_FAULTS, Phase, State, Token};

/// What must not be left when all has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrest {
    Endless,
    LeftBehind,
    InVain,
    PlaceGone,
}

impl Rules {
    /// What happens if nothing fails any more and nobody releases.
    fn at_rest(&self, state: &State) -> Option<State> {
        let mut state = state.clone();
        state.left = NO_FAULTS;
        for _ in 0..100 {
            let next = self.next_prompt(&state).or_else(|| {
                let looks = self.requests(None).filter(|request| {
                    self.runs(&state, *request)
                        && state.waits[*request].is_moved
                        && state.waits[*request].is_idle()
                        && !self.has(Mutant::MovedDoesNotLook)
                });
                let looks = looks.map(|request| Action::Look(request, Fate::Answered));
                looks.chain([Action::Lapse]).find_map(|action| match action {
                    Action::Lapse if !matches!(state.lock, Lock::Offered(offer) if !offer.is_lapsed) => None,
                    _ => self.next_state(&state, action),
                })
            });
            match next {
                Some(next) => state = next,
                None => return Some(state),
            }
        }
        None
    }

    pub fn unrest(&self, state: &State) -> Option<Unrest> {
        let Some(state) = self.at_rest(state) else { return Some(Unrest::Endless) };
        if let Lock::Held(held) = state.lock
            && !self.is_believed(&state, held.token)
            && !self.is_excused(&state, held)
        {
            return Some(Unrest::LeftBehind);
        }
        let mut live = self.requests(None).filter(|request| {
            self.runs(&state, *request)
                && state.waits[*request].is_waiting()
                && !state.freed[self.askers[*request].token]
        });
        live.find_map(|request| {
            let seat = state.seats[self.askers[request].token];
            let is_there = seat.is_some_and(|seat| seat.is_in_line);
            match state.lock {
                Lock::Held(_) if is_there => None,
                Lock::Held(_) => Some(Unrest::PlaceGone),
                _ => Some(Unrest::InVain),
            }
        })
    }

    pub fn is_believed(&self, state: &State, token: Token) -> bool {
        token == HOLDER
            || self.requests(None).any(|request| {
                self.askers[request].token == token && state.waits[request].phase == Phase::Holds
            })
    }

    /// What no gateway can know ends at its ttl, and is no fault: what a killed gateway was granted, what two
    /// requests took that are both gone, and what a command took that was sent before the store lost its
    /// marks.
    fn is_excused(&self, state: &State, held: Held) -> bool {
        let Some(granted_to) = held.granted_to else { return true };
        let is_gone = |request| !self.runs(state, request);
        is_gone(granted_to) || held.pinned_by.is_some_and(|other| other != granted_to || is_gone(other))
    }
}
