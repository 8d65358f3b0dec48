//! The gateways: what they send, and what they make of the answers, the hints and their own beats.

use super::rules::{Mutant, Rules};
use super::state::{
    ATTEMPTS, Attempt, Attempts, Command, Due, Gate, Gateway, Join, Lock, Phase, Process, Request, State,
    Wait, Wrong, request_of,
};
use super::store::Reply;

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs at once and is answered.
    Answered,
    /// It runs at once, and its answer is lost.
    Unanswered,
    /// It is given up, and runs later or never.
    Late,
    /// It runs at once, and its answer takes its time.
    Slow,
}

impl Rules {
    pub fn runs(&self, state: &State, request: Request) -> bool {
        state.processes[self.askers[request].gateway] == Process::Runs
    }

    /// Whether somebody waits for what this attempt is to take.
    pub fn is_awaited(&self, state: &State, attempt: Attempt) -> bool {
        let wait = &state.waits[request_of(attempt)];
        self.runs(state, request_of(attempt))
            && wait.is_waiting()
            && (wait.former..=wait.current).contains(&attempt)
    }

    fn waiting(&self, state: &State, at: Gateway) -> Vec<Request> {
        self.requests(Some(at)).filter(|request| state.waits[*request].is_waiting()).collect()
    }

    pub fn run(&self, state: &mut State, command: Command) -> Reply {
        match command {
            Command::Join(join) if !self.askers[request_of(join.attempt)].waits => {
                self.try_now(state, join.attempt, join.supersedes)
            }
            Command::Join(join) => {
                let reply = self.join(state, join);
                if let Lock::Held(held) = &mut state.lock
                    && join.is_old
                    && held.attempt == Some(join.attempt)
                {
                    held.granted_to = None;
                }
                reply
            }
            Command::Look(attempt) => self.look(state, attempt, Attempts::default()),
            Command::LastLook(attempt, supersedes) => self.last_look(state, attempt, supersedes),
            Command::TakeBack(attempt) => {
                self.take_back(state, attempt);
                Reply::Refused
            }
            Command::Beat(gateway) => {
                self.beat(state, gateway, false);
                Reply::Refused
            }
        }
    }

    fn send(&self, state: &mut State, request: Request, command: Command, fate: Fate) {
        match fate {
            Fate::Late => {
                if let Err(at) = state.commands.binary_search(&command) {
                    state.commands.insert(at, command);
                }
                state.waits[request].is_in_doubt = true;
            }
            Fate::Unanswered => {
                self.run(state, command);
                state.waits[request].is_in_doubt = true;
            }
            Fate::Answered => {
                let reply = self.run(state, command);
                self.hear(state, request, reply, matches!(command, Command::Join(_)));
            }
            Fate::Slow => {
                let reply = self.run(state, command);
                let wait = &mut state.waits[request];
                wait.answer = Some((reply, matches!(command, Command::Join(_))));
                wait.is_in_doubt = false;
            }
        }
    }

    /// An answer is older than what was heard while it was on its way.
    pub fn hear_answer(&self, state: &mut State, request: Request) -> Option<()> {
        let wait = &mut state.waits[request];
        let (reply, is_to_join) = wait.answer.take()?;
        let is_overtaken = std::mem::take(&mut wait.is_overtaken) && !self.has(Mutant::OldAnswerIsBelieved);
        let puts_back = wait.puts_back;
        self.hear(state, request, reply, is_to_join);
        if is_overtaken && state.waits[request].is_idle() {
            if puts_back {
                state.waits[request].puts_back = true;
            } else {
                self.look_now(state, request, Fate::Answered);
            }
        }
        Some(())
    }

    fn hear(&self, state: &mut State, request: Request, reply: Reply, is_to_join: bool) {
        let wait = &mut state.waits[request];
        wait.is_in_doubt = false;
        wait.former = wait.current;
        match reply {
            Reply::Granted => wait.end(Phase::Holds),
            Reply::Freed | Reply::Refused => wait.end(Phase::HoldsNothing),
            // A last look that took nothing has voided itself.
            Reply::Voided if wait.phase == Phase::Ending => wait.end(Phase::HoldsNothing),
            Reply::Voided => state.wrong = Some(Wrong::LiveAttemptVoided),
            Reply::PutBack => wait.puts_back = true,
            Reply::Moved => {
                wait.is_moved = true;
                wait.puts_back = false;
            }
            Reply::InLine { place, offered_to } => {
                wait.place = Some(place);
                wait.is_moved = false;
                wait.puts_back &= !is_to_join;
                // The lock is offered to another of this gateway's: its hint may have been lost.
                let at = Some(self.askers[request].gateway);
                let other = self.requests(at).find(|other| {
                    *other != request
                        && Some(self.askers[*other].token) == offered_to
                        && state.waits[*other].is_waiting()
                });
                if let Some(other) = other
                    && !self.has(Mutant::OtherOfferIsIgnored)
                {
                    self.wake(state, other);
                }
            }
        }
    }

    pub fn ask(&self, state: &mut State, request: Request, fate: Fate) {
        let gateway = self.askers[request].gateway;
        if self.waiting(state, gateway).is_empty() && !self.has(Mutant::FirstJoinWithoutBeat) {
            self.beat_and_look(state, gateway);
        }
        state.waits[request].phase = Phase::Waiting;
        self.send_join(state, request, fate);
    }

    fn send_join(&self, state: &mut State, request: Request, fate: Fate) {
        let wait = state.waits[request];
        let join = Join {
            attempt: wait.current,
            supersedes: wait.formers(),
            displaces: wait.place.is_none() && !wait.is_moved || self.has(Mutant::PutBackDisplaces),
            place: wait.place,
            is_old: false,
        };
        self.send(state, request, Command::Join(join), fate);
    }

    pub fn put_back(&self, state: &mut State, request: Request, fate: Fate) {
        self.send_join(state, request, fate);
    }

    pub fn look_now(&self, state: &mut State, request: Request, fate: Fate) {
        let attempt = state.waits[request].current;
        self.send(state, request, Command::Look(attempt), fate);
    }

    /// What was not answered is superseded.
    pub fn send_again(&self, state: &mut State, request: Request, fate: Fate) -> Option<()> {
        let wait = state.waits[request];
        if wait.phase == Phase::Ending {
            self.send(state, request, Command::LastLook(wait.current, wait.formers()), fate);
            return Some(());
        }
        state.waits[request].current = fresh(&wait)?;
        self.send_join(state, request, fate);
        Some(())
    }

    pub fn end_wait(&self, state: &mut State, request: Request, fate: Fate) -> Option<()> {
        let wait = state.waits[request];
        if wait.is_in_doubt && !self.has(Mutant::LastLookSupersedesNothing) {
            state.waits[request].current = fresh(&wait)?;
        }
        state.waits[request].phase = Phase::Ending;
        let wait = state.waits[request];
        self.send(state, request, Command::LastLook(wait.current, wait.formers()), fate);
        Some(())
    }

    pub fn leave(&self, state: &mut State, request: Request) {
        let wait = &mut state.waits[request];
        let first = if self.has(Mutant::FormersAreForgotten) { wait.current } else { wait.former };
        let attempts: Attempts = (first..=wait.current).collect();
        state.errands.0 |= attempts.0;
        wait.end(Phase::Unanswered);
    }

    pub fn hear_offer(&self, state: &mut State, attempt: Attempt) {
        state.offer_hints.remove(attempt);
        let request = request_of(attempt);
        let wait = state.waits[request];
        if !self.is_awaited(state, attempt) {
            self.decline(state, attempt);
        } else if wait.current == attempt {
            self.wake(state, request);
        }
    }

    /// It looks: now, or as soon as it is answered. Whoever is in doubt sends its command again anyway.
    fn wake(&self, state: &mut State, request: Request) {
        if state.waits[request].is_idle() {
            self.look_now(state, request, Fate::Answered);
        } else {
            let wait = &mut state.waits[request];
            wait.is_overtaken = wait.answer.is_some();
        }
    }

    pub fn hear_move(&self, state: &mut State, attempt: Attempt) {
        state.move_hints.remove(attempt);
        let wait = &mut state.waits[request_of(attempt)];
        if wait.is_waiting() && wait.current == attempt {
            wait.is_moved = true;
            wait.is_overtaken = wait.answer.is_some();
        }
    }

    /// A hint is lost with the connection that it came on: all who wait put themselves back.
    pub fn put_all_back(&self, state: &mut State, gateway: Gateway) {
        for request in self.waiting(state, gateway) {
            let wait = &mut state.waits[request];
            wait.puts_back = wait.phase == Phase::Waiting;
            wait.is_overtaken = wait.answer.is_some();
        }
    }

    pub fn beat_and_look(&self, state: &mut State, gateway: Gateway) {
        let (is_new, is_due) = self.beat(state, gateway, true);
        if state.processes[gateway] != Process::Runs {
            return;
        }
        if is_new && !self.has(Mutant::NewBeatIsIgnored) {
            self.put_all_back(state, gateway);
        }
        if is_due {
            let mut waiting = self.waiting(state, gateway);
            waiting.retain(|request| !state.waits[*request].is_in_doubt);
            // Who has not been told a place yet is not the first.
            waiting.sort_by_key(|request| state.waits[*request].place.unwrap_or(u8::MAX));
            let first = waiting.iter().position(|request| !state.waits[*request].is_moved);
            for (number, request) in waiting.into_iter().enumerate() {
                if Some(number) == first || state.waits[request].is_moved {
                    self.wake(state, request);
                }
            }
        }
    }

    pub fn kill(&self, state: &mut State, gateway: Gateway) {
        // A beat just before it died counts for one offer more.
        state.lapses_left += if state.gates[gateway] == Gate::HeardSinceOffer { 2 } else { 1 };
        state.processes[gateway] = Process::Killed;
        for request in self.waiting(state, gateway) {
            state.waits[request].end(Phase::Unanswered);
        }
        let is_other = |attempt: &Attempt| self.gateway_of(*attempt) != gateway;
        state.errands = state.errands.iter().filter(is_other).collect();
        state.offer_hints = state.offer_hints.iter().filter(is_other).collect();
        state.move_hints = state.move_hints.iter().filter(is_other).collect();
    }

    pub fn flush(&self, state: &mut State) {
        state.lock = Lock::Free;
        state.due = Due::Never;
        state.seats = Default::default();
        state.freed = Default::default();
        state.voided = Attempts::default();
        state.gates = [Gate::Unknown; 2];
        state.first_places = Default::default();
        for command in &mut state.commands {
            if let Command::Join(join) = command {
                join.is_old = true;
            }
        }
        for wait in &mut state.waits {
            wait.lose_grant();
        }
    }
}

fn fresh(wait: &Wait) -> Option<Attempt> {
    Some(wait.current + 1).filter(|next| !next.is_multiple_of(ATTEMPTS))
}
