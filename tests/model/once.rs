//! Records with results, as the store's scripts keep them: who may begin the work of a key, whose result counts, and
//! what is told to those who come later. Workers repeat, leave, crash, give up and post twice; requests are late or
//! run twice; gateways end; leases and records end at any time, and all data may be lost.
//!
//! Time has no numbers. A lease may end at any step. A record ends once its lease is over (7 days later), or once it
//! has a result (after `keep`) and no post is under way: `keep` outlasts whoever repeats one. Marks run out when no
//! request of their token is under way, as none is for 2 minutes.
//!
//! Not modelled, as it does not decide who begins and what is stored: limits and sizes, content types, rights. How a
//! `DELETE` is answered twice is in the model of retries, and what numbers are after a loss in that of the fence.

use stateright::{Model, Property};

use self::rules::{Mutant, Rules};
use self::state::{Command, Number, Phase, Record, Run, RunState, Sent, State, Token, Truth, attempt_of};
use self::workers::Act;

mod promises;
mod rules;
mod scenarios;
mod state;
mod store;
mod wait;
mod workers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Act(Run, Act),
    /// A person breaks the record that has this number.
    Break {
        number: Number,
        is_clean: bool,
    },
    Run {
        sent: Sent,
        /// It will run once more.
        stays: bool,
        is_answered: bool,
    },
    LeaseEnds,
    RecordEnds,
    MarkRunsOut(Token),
    LoseAll,
}

impl Rules {
    fn commands(&self, state: &State, actions: &mut Vec<Action>) {
        for &sent in &state.commands {
            let may_stay =
                state.repeats_left > 0 && !sent.is_copy && !matches!(sent.command, Command::Begin { .. });
            for stays in [false, true].into_iter().filter(|stays| may_stay || !stays) {
                actions.push(Action::Run { sent, stays, is_answered: false });
                if !sent.is_copy && self.is_awaited(state, sent.command) {
                    actions.push(Action::Run { sent, stays, is_answered: true });
                }
            }
        }
    }

    fn time(&self, state: &State, actions: &mut Vec<Action>) {
        let is_posted = state.commands.iter().any(|sent| matches!(sent.command, Command::Post { .. }))
            || state.runs.iter().any(|run| run.phase == Phase::Posts);
        let may_end = match state.record {
            Some(Record::Place(place)) => {
                if !place.is_lapsed {
                    actions.push(Action::LeaseEnds);
                }
                place.is_lapsed && (place.is_short || !is_posted)
            }
            Some(Record::Done(stored)) => stored.is_short || !is_posted,
            None => false,
        };
        if may_end && state.ends_left > 0 {
            actions.push(Action::RecordEnds);
        }
        let is_under_way = |token| {
            let of_token = |run: Run| self.token(run) == token;
            state.commands.iter().any(|sent| sent.command.run().is_some_and(of_token))
        };
        for token in (0..8).filter(|token| state.freed.has(*token)) {
            let may_run_out = !is_under_way(token) || self.is(Mutant::MarksRunOutEarly);
            if self.marks_run_out && may_run_out {
                actions.push(Action::MarkRunsOut(token));
            }
        }
    }

    fn end_record(&self, state: &mut State) {
        state.ends_left -= 1;
        let is_early = match state.record {
            Some(Record::Place(place)) => place.is_short,
            Some(Record::Done(stored)) => stored.is_short,
            None => false,
        };
        if is_early {
            state.record = None;
            (state.truth.grant, state.truth.result, state.truth.print) = (None, None, None);
        } else {
            state.forget();
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let run = |run: Run| {
            let worker = self.workers.get(run);
            RunState {
                phase: Phase::Idle,
                number: 0,
                begins_left: worker.map_or(0, |worker| worker.begins),
                posts_left: worker.map_or(0, |worker| worker.posts),
                gives_up_left: worker.map_or(0, |worker| worker.gives_up),
                renews_left: worker.map_or(0, |worker| worker.renews),
                is_stored: false,
            }
        };
        vec![State {
            record: None,
            fence: 0,
            freed: Default::default(),
            voided: Default::default(),
            commands: Default::default(),
            runs: std::array::from_fn(run),
            was_killed: false,
            repeats_left: self.repeats,
            ends_left: self.ends,
            losses_left: self.losses,
            breaks_left: self.breaks,
            truth: Truth::default(),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let mut acts = Vec::new();
        for run in 0..self.workers.len() {
            self.acts(state, run, &mut acts);
            actions.extend(acts.drain(..).map(|act| Action::Act(run, act)));
        }
        self.commands(state, actions);
        self.time(state, actions);
        if let Some(record) = state.record.filter(|_| state.breaks_left > 0) {
            let number = record.number();
            actions.extend([true, false].map(|is_clean| Action::Break { number, is_clean }));
        }
        if state.losses_left > 0 && state.fence > 0 {
            actions.push(Action::LoseAll);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Act(run, act) => self.act(&mut state, run, act),
            Action::Break { number, is_clean } => {
                state.breaks_left -= 1;
                state.send(Command::Break { number, is_clean });
            }
            Action::Run { sent, stays, is_answered } => {
                state.commands.remove(&sent);
                if stays {
                    state.repeats_left -= 1;
                    state.commands.insert(Sent { is_copy: true, ..sent });
                }
                self.run(&mut state, sent.command, is_answered);
            }
            Action::LeaseEnds => {
                let place = state.place()?;
                state.record = Some(Record::Place(state::Place { is_lapsed: true, ..place }));
            }
            Action::RecordEnds => self.end_record(&mut state),
            Action::MarkRunsOut(token) => {
                state.freed.remove(token);
                for run in (0..self.workers.len()).filter(|run| self.token(*run) == token) {
                    (0..state::BEGINS).for_each(|begin| state.voided.remove(attempt_of(run, begin)));
                }
                if !self.is(Mutant::MarksRunOutEarly) {
                    state.truth.gave_up.remove(token);
                }
            }
            Action::LoseAll => {
                state.losses_left -= 1;
                (state.freed, state.voided) = Default::default();
                state.forget();
                state.truth.gave_up = Default::default();
            }
        }
        self.check_step(last, &action, &mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.promises()
    }
}
