//! What the store's scripts do to one record. Each runs in one step.

use super::promises::{
    BROKEN_RIGHT, EARLIER, FORBIDDEN, LARGER, LAST_GRANT, LOST_PLACE, OWN_NUMBER, REPLAY, SAME_TOKEN,
    STRANGER, STRANGERS_TOKEN, SUPERSEDED,
};
use super::rules::{Mutant, Rules, Worker};
use super::state::{Attempt, BEGINS, Body, Former, Number, Place, Record, Run, State, Stored, Token};

/// The answer to a begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    Mismatch,
    Result,
    Released,
    /// Its attempt was voided.
    Voided,
    /// The token's own place.
    Own,
    Busy,
    Abandoned,
    Granted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    Stored,
    Differs,
    Superseded,
    NotBegun,
}

impl Rules {
    /// The order of these judgments is part of the contract.
    pub fn judge(&self, state: &State, worker: &Worker, attempt: Option<Attempt>) -> Begun {
        let is_stranger = state.record.and_then(Record::print).is_some_and(|print| match worker.print {
            None => !self.is(Mutant::MissingPrintMatches),
            Some(asked) => asked != print,
        });
        let is_done = state.result().is_some();
        if is_stranger && !(is_done && self.is(Mutant::ResultBeforePrint)) {
            return Begun::Mismatch;
        }
        let is_freed = state.freed.has(worker.token);
        if is_done && !(is_freed && self.is(Mutant::ReleasedBeforeResult)) {
            return Begun::Result;
        }
        let running = state.place().filter(|place| !place.is_lapsed);
        let is_own = running.is_some_and(|place| place.token == Some(worker.token));
        let is_busy = running.is_some() && !is_own;
        if is_busy && self.is(Mutant::BusyBeforeReleased) || is_own && self.is(Mutant::BusyBeforeOwn) {
            return Begun::Busy;
        }
        let is_first = attempt.is_none_or(|attempt| attempt.is_multiple_of(BEGINS));
        let may_begin = !worker.is_made || is_first || self.is(Mutant::ServerMadeBegins);
        if is_freed || !may_begin && !is_own {
            return Begun::Released;
        }
        if attempt.is_some_and(|attempt| state.voided.has(attempt)) {
            return Begun::Voided;
        }
        if is_own {
            return Begun::Own;
        }
        if is_busy {
            return Begun::Busy;
        }
        let is_taken_over = match state.place() {
            Some(place) => place.token.is_some() || !self.is(Mutant::NobodyIsTakenOver),
            None => false,
        };
        if is_taken_over && !worker.takes_over {
            return Begun::Abandoned;
        }
        Begun::Granted
    }

    pub fn begin(&self, state: &mut State, run: Run, attempt: Attempt) -> Begun {
        let worker = &self.workers[run];
        let answer = self.judge(state, worker, Some(attempt));
        let passes = state.truth.print.is_none_or(|print| worker.print == Some(print));
        state.break_promise(STRANGER, passes == (answer == Begun::Mismatch));
        state.break_promise(REPLAY, passes && state.result().is_some() && answer != Begun::Result);
        let is_own = state.place().is_some_and(|place| !place.is_lapsed && place.token == Some(worker.token));
        let has_given_up = state.truth.gave_up.has(worker.token);
        let is_final = matches!(answer, Begun::Mismatch | Begun::Result | Begun::Released);
        let is_its_own = matches!(answer, Begun::Mismatch | Begun::Own | Begun::Voided);
        state.break_promise(SAME_TOKEN, has_given_up && !is_final || is_own && !has_given_up && !is_its_own);
        match (answer, state.place()) {
            (Begun::Own, Some(mut place)) => {
                if place.attempt != Some(attempt) && !self.is(Mutant::RepetitionDoesNotPin) {
                    place.attempt = None;
                }
                state.record = Some(Record::Place(place));
            }
            (Begun::Granted, found) => self.grant(state, run, attempt, found),
            _ => {}
        }
        answer
    }

    fn grant(&self, state: &mut State, run: Run, attempt: Attempt, found: Option<Place>) {
        let worker = &self.workers[run];
        if let Some(place) = found
            && place.token == Some(worker.token)
            && self.is(Mutant::OwnLapsedRunsOn)
        {
            state.record = Some(Record::Place(Place { is_lapsed: false, attempt: Some(attempt), ..place }));
            return;
        }
        let is_counted = |place: &Place| {
            let is_own = place.token == Some(worker.token);
            place.token.is_some() && !(is_own && self.is(Mutant::OwnRunIsNotCounted))
        };
        let earlier = match found {
            Some(place) if !self.is(Mutant::LeaseEndForgets) => place.earlier + u8::from(is_counted(&place)),
            _ => 0,
        };
        state.fence += 1;
        let number = match found {
            _ if !self.is(Mutant::RecordCountsNumbers) => state.fence,
            Some(place) => place.number + 1,
            None => 1,
        };
        let print = match found {
            Some(place) if !self.is(Mutant::TakeOverChangesPrint) => place.print,
            _ => worker.print,
        };
        let former = found.and_then(|Place { token, attempt, number, earlier, .. }| {
            Some(Former { token: token?, attempt, number, earlier })
        });
        let is_short = found.is_some() && self.is(Mutant::TakeOverShortensMemory);
        state.record = Some(Record::Place(Place {
            token: Some(worker.token),
            attempt: Some(attempt),
            number,
            is_lapsed: false,
            earlier,
            print,
            former,
            is_short,
        }));
        state.break_promise(LARGER, number <= state.truth.largest);
        state.truth.largest = state.truth.largest.max(number);
        state.truth.former = state.truth.grant.replace((worker.token, number));
        if found.is_none() {
            state.truth.print = worker.print;
        }
    }

    /// The client hears that it is the worker. Returns the number.
    pub fn tell(&self, state: &mut State, run: Run, is_new: bool) -> Option<Number> {
        let place = state.place()?;
        let mut others = state.truth.told;
        others.remove(place.number);
        state.break_promise(EARLIER, place.earlier < others.count());
        state.break_promise(FORBIDDEN, is_new && place.earlier > 0 && !self.workers[run].takes_over);
        state.truth.told.add(place.number);
        Some(place.number)
    }

    pub fn post(&self, state: &mut State, run: Run, body: Body, number: Option<Number>) -> Posted {
        let token = self.token(run);
        let is_number = |of: Number| self.is(Mutant::PostIgnoresNumber) || number.is_none_or(|it| it == of);
        let is_token = |of: Option<Token>| of == Some(token) || self.is(Mutant::AnyTokenStores);
        let answer = match state.record {
            None if self.is(Mutant::PostCreates) && state.fence > 0 => {
                self.store(state, run, body, number, None);
                Posted::Stored
            }
            None => Posted::NotBegun,
            Some(Record::Done(stored)) if is_token(Some(stored.token)) && is_number(stored.number) => {
                if stored.body == (run, body) {
                    Posted::Stored
                } else if self.is(Mutant::SecondPostReplaces) {
                    state.record = Some(Record::Done(Stored { body: (run, body), ..stored }));
                    Posted::Stored
                } else {
                    Posted::Differs
                }
            }
            Some(Record::Place(place)) if is_token(place.token) && is_number(place.number) => {
                self.store(state, run, body, number, Some(place));
                Posted::Stored
            }
            Some(Record::Place(Place { token: None, .. })) if !self.is(Mutant::NobodySupersedes) => {
                Posted::NotBegun
            }
            Some(_) => Posted::Superseded,
        };
        let is_others =
            state.truth.grant.is_some_and(|(of, its)| of != token || number.is_some_and(|it| it != its));
        state.break_promise(SUPERSEDED, answer == Posted::Superseded && !is_others);
        let is_refused = matches!(answer, Posted::Superseded | Posted::NotBegun);
        state.break_promise(LOST_PLACE, is_refused && state.truth.grant.is_some() && !is_others);
        answer
    }

    fn store(&self, state: &mut State, run: Run, body: Body, said: Option<Number>, place: Option<Place>) {
        let is_last = state.truth.grant.is_some_and(|(token, number)| {
            token == self.token(run) && said.is_none_or(|said| said == number)
        });
        state.break_promise(LAST_GRANT, !is_last || state.truth.result.is_some());
        let is_late = place.is_some_and(|place| place.is_lapsed);
        let is_short = self.is(Mutant::KeepIsShort) || is_late && self.is(Mutant::KeepCountsFromBeginning);
        state.record = Some(Record::Done(Stored {
            token: self.token(run),
            number: place.map_or(0, |place| place.number),
            body: (run, body),
            print: place.and_then(|place| place.print),
            is_late,
            is_short,
        }));
        state.truth.result = Some((run, body));
        state.runs[run].is_stored = true;
    }

    pub fn renew(&self, state: &mut State, run: Run, number: Option<Number>) {
        let Some(mut place) = state.place() else { return };
        let is_number = number.is_none_or(|number| number == place.number);
        let is_its = is_number || self.is(Mutant::RenewalIgnoresNumber);
        if place.token != Some(self.token(run)) || !is_its {
            return;
        }
        if place.is_lapsed && !self.is(Mutant::RenewalRevives) {
            return;
        }
        state.break_promise(OWN_NUMBER, !is_number);
        place.is_lapsed = false;
        place.attempt = None;
        state.record = Some(Record::Place(place));
    }

    /// As if this worker had never begun, but for those before it.
    fn undo(&self, state: &mut State, place: Place, is_short: bool) {
        let former = state.truth.former.take();
        if place.earlier == 0 || self.is(Mutant::LeaverForgetsEarlier) {
            state.record = None;
            state.truth.print = None;
        } else if let Some(former) = place.former.filter(|_| !self.is(Mutant::LeaverThrowsOut)) {
            let Former { token, attempt, number, earlier } = former;
            let (token, is_short) = (Some(token), is_short || place.is_short);
            let found =
                Place { token, attempt, number, earlier, is_lapsed: true, former: None, is_short, ..place };
            state.record = Some(Record::Place(found));
        } else {
            self.leave_to_nobody(state, place, place.earlier, is_short);
        }
        state.truth.grant = former;
    }

    fn leave_to_nobody(&self, state: &mut State, place: Place, earlier: u8, is_short: bool) {
        let is_short = is_short || place.is_short;
        let place =
            Place { token: None, attempt: None, is_lapsed: true, earlier, former: None, is_short, ..place };
        state.record = Some(Record::Place(place));
        (state.truth.grant, state.truth.former) = (None, None);
    }

    pub fn give_up(&self, state: &mut State, run: Run, is_clean: bool) {
        let (token, is_made) = (self.token(run), self.workers[run].is_made);
        if let Some(place) = state.place()
            && place.former.is_some_and(|former| former.token == token)
            && !state.freed.has(token)
            && !self.is(Mutant::FormerIsNotGivenUp)
        {
            state.record = Some(Record::Place(Place { former: None, ..place }));
        }
        state.truth.former = state.truth.former.filter(|(former, _)| *former != token);
        let own = state.place().filter(|place| place.token == Some(token) && !state.freed.has(token));
        if let Some(place) = own {
            let is_short = self.is(Mutant::GivingUpShortensMemory);
            if is_clean {
                state.truth.told.remove(place.number);
            }
            if is_clean || self.is(Mutant::GivingUpIsClean) {
                self.undo(state, place, is_short);
            } else {
                self.leave_to_nobody(state, place, place.earlier + 1, is_short);
            }
        }
        // A server-made token never begins again, and needs no mark.
        if !is_made && !self.is(Mutant::GivingUpLeavesNoMark) {
            state.freed.add(token);
        }
        state.truth.gave_up.add(token);
    }

    pub fn take_back(&self, state: &mut State, run: Run, attempt: Attempt) {
        if !self.is(Mutant::TakeBackVoidsNothing) {
            state.voided.add(attempt);
        }
        let Some(place) = state.place().filter(|place| place.token == Some(self.token(run))) else { return };
        let is_any = !place.is_lapsed && self.is(Mutant::TakeBackIgnoresAttempt);
        if place.attempt == Some(attempt) || is_any {
            self.undo(state, place, self.is(Mutant::TakeBackShortensMemory));
        }
    }

    /// What a person says of the record counts for all who were at it.
    pub fn break_record(&self, state: &mut State, number: Number, is_clean: bool) {
        let Some(found) = state.record else { return };
        if found.number() != number && !self.is(Mutant::BreakIgnoresNumber) {
            return;
        }
        state.break_promise(BROKEN_RIGHT, found.number() != number);
        for run in &mut state.runs {
            run.is_stored = false;
        }
        if is_clean {
            state.forget();
            return;
        }
        (state.truth.grant, state.truth.result) = (None, None);
        if self.is(Mutant::BreakForgets) {
            state.record = None;
            state.truth.print = None;
            return;
        }
        match found {
            Record::Place(place) => {
                let earlier = place.earlier + u8::from(place.token.is_some());
                self.leave_to_nobody(state, place, earlier, false);
            }
            // Only one is counted: a result has no room for more.
            Record::Done(stored) => {
                let Stored { token, number, print, .. } = stored;
                let place = Place {
                    token: Some(token),
                    attempt: None,
                    number,
                    is_lapsed: true,
                    earlier: 0,
                    print,
                    former: None,
                    is_short: false,
                };
                self.leave_to_nobody(state, place, 1, false);
                state.truth.told = Default::default();
                state.truth.told.add(number);
            }
        }
    }

    /// Whoever comes to a place whose lease is over is granted it.
    pub fn blocks_nobody(&self, state: &State) -> bool {
        let Some(place) = state.place().filter(|place| place.is_lapsed) else { return true };
        let stranger = Worker {
            token: STRANGERS_TOKEN,
            is_made: false,
            print: place.print,
            takes_over: true,
            ..self.workers[0]
        };
        self.judge(state, &stranger, None) == Begun::Granted
    }
}
