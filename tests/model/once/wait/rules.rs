//! What a gateway does for those who wait, and what the store says to them.

use super::state::{
    Answer, Asker, Gateway, Look, NOTHING, Phase, Place, Record, Rules, State, Token, Waiter,
};
use super::{ALONE, ONCE, ROUNDS, STRANGER};

/// What is left out of the rules, or done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// Nobody looks but at the end of the lease: what a lost message said is not found out.
    NobodyLooks,
    /// The time between two looks doubles for ever.
    DelayHasNoLimit,
    NobodyLooksAtTheEnd,
    /// A waiter that leaves takes the next look with it.
    LeaverStopsTheLooks,
    /// The others are not looked for any more.
    GrantStopsTheLooks,
    /// An answer that is the looker's alone ends the round,
    OwnAnswerEndsTheRound,
    /// or is told to all.
    OwnAnswerIsEverybodys,
    /// So does a look that was not answered.
    LostLookEndsTheRound,
    /// Who is told nothing looks again in the same round.
    RoundsHaveNoEnd,
    /// A waiter whose own token holds the place waits for itself.
    OwnTokenSleeps,
    NewerDoesNotDisplace,
    WorkerIsLookedFor,
    /// A result is told to all, whatever their fingerprints.
    ResultIsNotCompared,
}

/// The store, in one step each.
impl Rules {
    pub fn answer(&self, state: &mut State, waiter: Waiter) -> Answer {
        let asker = self.askers[waiter];
        let print = match state.record {
            Record::Free => None,
            Record::Place(place) => Some(place.print),
            Record::Done { print } => Some(print),
        };
        if print.is_some_and(|print| print != asker.print) {
            return Answer::Refused;
        }
        if let Record::Done { print } = state.record {
            return Answer::Result { print };
        }
        if state.freed.has(asker.token) {
            return Answer::Refused;
        }
        let mut is_first = true;
        if let Some(Place { holder, left, .. }) = state.place() {
            match holder.filter(|_| left > 0) {
                Some(holder) if holder == asker.token => return Answer::Granted { is_new: false },
                Some(holder) => return Answer::Busy { holder, left, is_current: true },
                None if !asker.takes_over => return Answer::Abandoned,
                None => is_first = false,
            }
        }
        state.renew();
        state.record = Record::Place(Place {
            holder: Some(asker.token),
            left: self.lease,
            is_first,
            print: asker.print,
        });
        Answer::Granted { is_new: true }
    }

    /// The place is left; the gateways are told, if no message is lost.
    pub fn leave_place(&self, state: &mut State, is_clean: bool) {
        let Some(place) = state.place() else { return };
        state.record = if is_clean && place.is_first {
            Record::Free
        } else {
            Record::Place(Place { holder: None, left: 0, is_first: false, ..place })
        };
        self.tell(state);
    }

    pub fn tell(&self, state: &mut State) {
        for gateway in &mut state.gateways {
            gateway.is_told = gateway.next_look.is_some() || gateway.lease_end.is_some();
        }
    }
}

/// The gateways.
impl Rules {
    pub fn is_waited(&self, state: &State, gateway: Gateway) -> bool {
        self.at(gateway).any(|waiter| state.waits[waiter].phase == Phase::Waits)
    }

    pub fn come(&self, state: &mut State, waiter: Waiter) {
        let Asker { token, gateway, .. } = self.askers[waiter];
        let is_older = |state: &State, other: &Waiter| {
            *other != waiter
                && self.askers[*other].token == token
                && state.waits[*other].phase == Phase::Waits
        };
        let older: Vec<_> = self.at(gateway).filter(|other| is_older(state, other)).collect();
        state.waits[waiter].phase = Phase::Waits;
        state.waits[waiter].look = Some(Look { is_shared: false, answer: None });
        for other in older {
            if self.is(Mutant::NewerDoesNotDisplace) {
                state.break_promise(ONCE, true);
            } else {
                self.leave(state, other);
            }
        }
        let knows = &mut state.gateways[gateway];
        if knows.next_look.is_none() && !self.is(Mutant::NobodyLooks) {
            (knows.next_look, knows.delay) = (Some(1), 1);
        }
    }

    /// What it looked for is voided, and what it was granted taken back.
    pub fn leave(&self, state: &mut State, waiter: Waiter) {
        let look = state.waits[waiter].look.take();
        state.waits[waiter].phase = Phase::Gone;
        let gateway = self.askers[waiter].gateway;
        if matches!(look, Some(Look { answer: Some(Answer::Granted { is_new: true }), .. })) {
            self.leave_place(state, true);
        }
        if look.is_some_and(|look| look.is_shared) {
            self.go_on(state, gateway, self.is(Mutant::LostLookEndsTheRound));
        }
        if self.is(Mutant::LeaverStopsTheLooks) {
            (state.gateways[gateway].next_look, state.gateways[gateway].lease_end) = (None, None);
        }
        self.rest(state, gateway);
    }

    /// Another waiter looks at once, that has not looked in this round.
    fn go_on(&self, state: &mut State, gateway: Gateway, is_over: bool) {
        state.gateways[gateway].is_due = !is_over;
    }

    pub fn begin_round(&self, state: &mut State, gateway: Gateway) {
        for waiter in self.at(gateway) {
            state.waits[waiter].has_looked = false;
        }
        state.gateways[gateway].is_due = true;
    }

    /// Who may make the shared look that is due.
    pub fn lookers(&self, state: &State, gateway: Gateway) -> Vec<Waiter> {
        let is_looking = |waiter: Waiter| state.waits[waiter].look.is_some_and(|look| look.is_shared);
        if !state.gateways[gateway].is_due || self.at(gateway).any(is_looking) {
            return Vec::new();
        }
        let may_look = |waiter: &Waiter| {
            let wait = state.waits[*waiter];
            let is_in_line = wait.phase == Phase::Waits
                || wait.phase == Phase::Works && self.is(Mutant::WorkerIsLookedFor);
            is_in_line && wait.look.is_none() && (!wait.has_looked || self.is(Mutant::RoundsHaveNoEnd))
        };
        self.at(gateway).filter(may_look).collect()
    }

    pub fn look(&self, state: &mut State, waiter: Waiter) {
        let wait = &mut state.waits[waiter];
        wait.look = Some(Look { is_shared: true, answer: None });
        let has_looked = std::mem::replace(&mut wait.has_looked, true);
        state.gateways[self.askers[waiter].gateway].is_due = false;
        state.break_promise(ROUNDS, has_looked);
    }

    pub fn hear(&self, state: &mut State, waiter: Waiter, look: Look, answer: Answer) {
        let gateway = self.askers[waiter].gateway;
        state.waits[waiter].look = None;
        match answer {
            Answer::Busy { holder, left, is_current } => {
                let knows = &mut state.gateways[gateway];
                // The timer leaves the store some time to notice.
                knows.lease_end = (!self.is(Mutant::NobodyLooksAtTheEnd)).then_some(left + 1);
                knows.is_current = is_current;
                self.look_for_itself(state, gateway, holder);
            }
            Answer::Granted { is_new } => {
                let wait = &mut state.waits[waiter];
                wait.phase = Phase::Works;
                let has_begun = is_new && std::mem::replace(&mut wait.has_begun, true);
                state.break_promise(ONCE, has_begun);
                let knows = &mut state.gateways[gateway];
                if self.is(Mutant::GrantStopsTheLooks) {
                    (knows.next_look, knows.lease_end) = (None, None);
                }
            }
            Answer::Result { print } => {
                let all: Vec<_> =
                    self.at(gateway).filter(|other| look.is_shared || *other == waiter).collect();
                for other in all {
                    if state.waits[other].phase == Phase::Waits && state.waits[other].look.is_none() {
                        let is_its =
                            self.askers[other].print == print || self.is(Mutant::ResultIsNotCompared);
                        state.waits[other].phase = if is_its { Phase::Told } else { Phase::Refused };
                        state.break_promise(STRANGER, is_its && self.askers[other].print != print);
                    }
                }
            }
            Answer::Abandoned | Answer::Refused => {
                if answer == Answer::Refused {
                    state.waits[waiter].phase = Phase::Refused;
                }
                if look.is_shared {
                    self.go_on(state, gateway, self.is(Mutant::OwnAnswerEndsTheRound));
                    if answer == Answer::Refused && self.is(Mutant::OwnAnswerIsEverybodys) {
                        self.refuse_all(state, gateway);
                    }
                }
            }
        }
        self.rest(state, gateway);
    }

    /// A waiter of a place that its own token holds, by a request elsewhere.
    fn look_for_itself(&self, state: &mut State, gateway: Gateway, holder: Token) {
        for waiter in self.at(gateway) {
            let wait = &mut state.waits[waiter];
            let waits = wait.phase == Phase::Waits && wait.look.is_none();
            if waits && self.askers[waiter].token == holder && !self.is(Mutant::OwnTokenSleeps) {
                wait.look = Some(Look { is_shared: false, answer: None });
            }
        }
    }

    fn refuse_all(&self, state: &mut State, gateway: Gateway) {
        for waiter in self.at(gateway) {
            if state.waits[waiter].phase == Phase::Waits {
                let is_its = matches!(self.answer(&mut state.clone(), waiter), Answer::Refused);
                state.break_promise(ALONE, !is_its);
                state.waits[waiter].phase = Phase::Refused;
            }
        }
    }

    /// Where nobody waits, nothing is looked for.
    fn rest(&self, state: &mut State, gateway: Gateway) {
        let lookers = self.at(gateway).filter(|waiter| !state.waits[*waiter].has_looked);
        let mut lookers = lookers.filter(|waiter| state.waits[*waiter].phase == Phase::Waits);
        let is_done = lookers.next().is_none() && !self.is(Mutant::RoundsHaveNoEnd);
        if !self.is_waited(state, gateway) {
            state.gateways[gateway] = NOTHING;
        } else if is_done {
            state.gateways[gateway].is_due = false;
        }
    }

    /// A tenth of a second passes.
    pub fn pass(&self, state: &mut State) {
        if let Record::Place(place) = &mut state.record {
            place.left = place.left.saturating_sub(1);
        }
        for gateway in 0..state.gateways.len() {
            let knows = &mut state.gateways[gateway];
            knows.lease_end = knows.lease_end.map(|left| left - 1);
            knows.next_look = knows.next_look.map(|left| left - 1);
            let is_end = knows.lease_end == Some(0);
            let is_next = knows.next_look == Some(0);
            if is_end {
                knows.lease_end = None;
            }
            if is_next {
                let limit = if self.is(Mutant::DelayHasNoLimit) { 4 * self.longest } else { self.longest };
                knows.delay = (2 * knows.delay).min(limit);
                knows.next_look = Some(knows.delay);
            }
            if is_end || is_next {
                self.begin_round(state, gateway);
            }
        }
    }
}
