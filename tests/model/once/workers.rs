//! What the workers do, and what they make of their answers.

use super::promises::DENIED;
use super::rules::Rules;
use super::state::{Command, End, Phase, Run, RunState, State, attempt_of};
use super::store::{Begun, Posted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Begin {
        /// The gateway of the attempt before has ended. Else it sees its client leave, and takes back.
        is_killed: bool,
    },
    Leave,
    Crash,
    Post,
    Renew,
    GiveUp {
        /// It says that it certainly did nothing.
        is_clean: bool,
    },
}

impl RunState {
    /// What it might still have done is of no interest: states that differ in it are one.
    fn end(&mut self, end: End) {
        let Self { number, is_stored, .. } = *self;
        *self = Self {
            phase: Phase::Over(end),
            number,
            begins_left: 0,
            posts_left: 0,
            gives_up_left: 0,
            renews_left: 0,
            is_stored,
        };
    }

    fn go_idle(&mut self) {
        self.number = 0;
        self.phase = Phase::Idle;
    }
}

impl Rules {
    pub fn acts(&self, state: &State, run: Run, acts: &mut Vec<Act>) {
        let (worker, is) = (&self.workers[run], &state.runs[run]);
        let is_at_it = matches!(is.phase, Phase::Works | Phase::Posts);
        // A server-made token is not known to its client before it was answered.
        let may_ask = match is.phase {
            Phase::Idle => !worker.is_made || is.begins_left == worker.begins,
            Phase::Asks(_) => !worker.is_made || is.number > 0,
            Phase::Works => true,
            Phase::Posts | Phase::Over(_) => false,
        };
        if may_ask && is.begins_left > 0 {
            acts.push(Act::Begin { is_killed: false });
            if matches!(is.phase, Phase::Asks(_)) {
                acts.push(Act::Begin { is_killed: true });
            }
        }
        if matches!(is.phase, Phase::Asks(_)) {
            acts.push(Act::Leave);
            if is.gives_up_left > 0 && (!worker.is_made || is.number > 0) {
                acts.push(Act::GiveUp { is_clean: true });
            }
        }
        if is.phase == Phase::Works {
            acts.push(Act::Crash);
            if is.renews_left > 0 {
                acts.push(Act::Renew);
            }
        }
        if is_at_it && is.posts_left > 0 {
            acts.push(Act::Post);
        }
        // Also a client that errs: it has posted, was not answered, and says that it did nothing.
        if is_at_it && is.gives_up_left > 0 {
            acts.extend([Act::GiveUp { is_clean: true }, Act::GiveUp { is_clean: false }]);
        }
    }

    pub fn act(&self, state: &mut State, run: Run, act: Act) {
        let worker = &self.workers[run];
        let is = &mut state.runs[run];
        let said = worker.says_number.then_some(is.number);
        let asked = match is.phase {
            Phase::Asks(attempt) => Some(attempt),
            _ => None,
        };
        match act {
            Act::Begin { is_killed } => {
                let attempt = attempt_of(run, worker.begins - is.begins_left);
                is.begins_left -= 1;
                is.phase = Phase::Asks(attempt);
                state.send(Command::Begin { run, attempt });
                state.was_killed |= is_killed;
                if let Some(attempt) = asked.filter(|_| !is_killed) {
                    state.send(Command::TakeBack { run, attempt });
                }
            }
            Act::Leave => {
                is.end(End::Left);
                if let Some(attempt) = asked {
                    state.send(Command::TakeBack { run, attempt });
                }
            }
            Act::Crash => is.end(End::Crashed),
            Act::Post => {
                let body = worker.posts - is.posts_left;
                is.posts_left -= 1;
                is.phase = Phase::Posts;
                state.send(Command::Post { run, body, number: said });
            }
            Act::Renew => {
                is.renews_left -= 1;
                state.send(Command::Renew { run, number: said });
            }
            // Where it still asks, it does so at another gateway, as the one that it asked has ended.
            Act::GiveUp { is_clean } => {
                is.end(End::Left);
                state.send(Command::GiveUp { run, is_clean });
            }
        }
    }

    /// A command runs. Nobody hears the answer to a copy, or to what nobody waits for any more.
    pub fn run(&self, state: &mut State, command: Command, is_answered: bool) {
        match command {
            Command::Begin { run, attempt } => {
                let answer = self.begin(state, run, attempt);
                if is_answered {
                    self.hear_begun(state, run, answer);
                } else if state.runs[run].phase == Phase::Asks(attempt) {
                    state.send(Command::TakeBack { run, attempt });
                }
            }
            Command::TakeBack { run, attempt } => self.take_back(state, run, attempt),
            Command::Post { run, body, number } => {
                let was_stored = state.runs[run].is_stored;
                let answer = self.post(state, run, body, number);
                if is_answered {
                    let is_denied = matches!(answer, Posted::NotBegun | Posted::Superseded);
                    state.break_promise(DENIED, is_denied && was_stored);
                    self.hear_posted(state, run, answer);
                }
            }
            Command::Renew { run, number } => self.renew(state, run, number),
            Command::GiveUp { run, is_clean } => self.give_up(state, run, is_clean),
            Command::Break { number, is_clean } => self.break_record(state, number, is_clean),
        }
    }

    pub fn is_awaited(&self, state: &State, command: Command) -> bool {
        match command {
            Command::Begin { run, attempt } => state.runs[run].phase == Phase::Asks(attempt),
            Command::Post { run, .. } => state.runs[run].phase == Phase::Posts,
            _ => false,
        }
    }

    fn hear_begun(&self, state: &mut State, run: Run, answer: Begun) {
        match answer {
            Begun::Own | Begun::Granted => {
                let number = self.tell(state, run, answer == Begun::Granted);
                let is = &mut state.runs[run];
                is.number = number.unwrap_or_default();
                is.phase = Phase::Works;
            }
            Begun::Result => state.runs[run].end(End::Replayed),
            Begun::Mismatch => state.runs[run].end(End::Refused),
            Begun::Released | Begun::Voided | Begun::Busy | Begun::Abandoned => state.runs[run].go_idle(),
        }
    }

    /// Who finds nothing begins once more with the same token, and stores then.
    fn hear_posted(&self, state: &mut State, run: Run, answer: Posted) {
        let is = &mut state.runs[run];
        match answer {
            Posted::Stored => is.end(End::Stored),
            Posted::Differs => is.end(End::Refused),
            Posted::Superseded => is.end(End::Superseded),
            Posted::NotBegun if is.begins_left > 0 && is.posts_left > 0 && !self.workers[run].is_made => {
                is.go_idle();
            }
            Posted::NotBegun => is.end(End::Refused),
        }
    }
}
