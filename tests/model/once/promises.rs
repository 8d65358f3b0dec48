//! What must hold whatever happens, and what must happen for a search to prove something.

use std::collections::BTreeSet;

use stateright::Property;

use super::Action;
use super::rules::Rules;
use super::state::{Command, End, Phase, Record, RunState, State, Token};

pub const ONE_RESULT: &str = "O1: a result that is stored does not change";
pub const SAME_RESULT: &str = "O2: all who are told a result are told the one that was stored";
pub const LAST_GRANT: &str = "O3: a result is taken only from the last grant of this life, and one only";
pub const BLOCKED: &str = "O4: a lease that is over stays over, and the next who comes is granted the place";
pub const KEPT: &str = "O5: a place whose worker knows of it is ended only by it, by a break or by its lease";
pub const LARGER: &str = "O7: each grant has a larger number";
pub const DENIED: &str = "O8: \"not stored\" is not said of what is stored";
pub const EARLIER: &str = "O9: a worker is told of all who may have done the work before";
pub const SAME_TOKEN: &str = "O10: a token is told its one grant, the result or its final refusal";
pub const LEFT: &str = "O11: no place runs for a worker that left and never heard of it";
pub const SUPERSEDED: &str = "\"superseded\" is said only where another was granted the place";
pub const LOST_PLACE: &str = "O3: the worker of the last grant is not refused its result";
pub const OWN_NUMBER: &str = "a renewal that says its number renews no other grant";
pub const FORBIDDEN: &str = "takeover=false is never told to begin where somebody was before";
pub const STRANGER: &str =
    "another fingerprint than the first one's is told that it does not match, and no other";
pub const REPLAY: &str = "whoever may know the result is told it, also a token that gave up";
pub const BROKEN_RIGHT: &str = "a break ends nothing but what it names";

/// The promises that the steps themselves watch.
macro_rules! watched {
    ($($promise:ident),+ $(,)?) => {
        vec![$(Property::always($promise, |_, state: &State| state.broken != Some($promise))),+]
    };
}

type Condition = fn(&Rules, &State) -> bool;

/// Nobody has it.
pub const STRANGERS_TOKEN: Token = 15;

impl RunState {
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    fn is(&self, end: End) -> bool {
        self.phase == Phase::Over(end)
    }
}

impl Rules {
    /// What holds of two states and the step between them.
    pub fn check_step(&self, before: &State, action: &Action, after: &mut State) {
        if matches!(action, Action::RecordEnds | Action::LoseAll) {
            return;
        }
        let command = match action {
            Action::Run { sent, .. } => Some(sent.command),
            _ => None,
        };
        let is_break = matches!(command, Some(Command::Break { .. }));
        let (old, new) = (before.record, after.record);
        match old {
            Some(Record::Done(_)) => after.break_promise(ONE_RESULT, new != old && !is_break),
            Some(Record::Place(place)) => {
                let next = after.place().filter(|next| next.number == place.number);
                let is_revived = place.is_lapsed && next.is_some_and(|next| !next.is_lapsed);
                after.break_promise(BLOCKED, is_revived);
                let Some(token) = place.token else { return };
                let is_own_end = match command {
                    Some(Command::GiveUp { run, .. }) => self.token(run) == token,
                    _ => is_break,
                };
                let stays = match new {
                    Some(Record::Done(_)) => true,
                    _ => next.is_some_and(|next| next.token == Some(token)),
                };
                let is_known = !place.is_lapsed && self.is_known(before, token, place.number);
                after.break_promise(KEPT, is_known && !stays && !is_own_end);
            }
            None => {}
        }
    }

    /// Whether somebody is at it by this number.
    fn is_known(&self, state: &State, token: Token, number: u8) -> bool {
        let mut runs = self.workers.iter().zip(&state.runs);
        runs.any(|(worker, run)| worker.token == token && run.number == number && !run.is_over())
    }

    fn leaves_nothing(&self, state: &State) -> bool {
        let Some(place) = state.place() else { return true };
        let (Some(token), Some(_)) = (place.token, place.attempt) else { return true };
        let mut runs = self.workers.iter().zip(&state.runs).filter(|(worker, _)| worker.token == token);
        place.is_lapsed
            || state.was_killed
            || !state.commands.is_empty()
            || runs.any(|(_, run)| run.number == place.number || matches!(run.phase, Phase::Asks(_)))
    }

    pub fn promises(&self) -> Vec<Property<Self>> {
        let mut properties: Vec<Property<Self>> = watched![
            ONE_RESULT,
            LAST_GRANT,
            KEPT,
            LARGER,
            DENIED,
            EARLIER,
            SAME_TOKEN,
            SUPERSEDED,
            LOST_PLACE,
            OWN_NUMBER,
            FORBIDDEN,
            STRANGER,
            REPLAY,
            BROKEN_RIGHT,
        ];
        properties.extend([
            Property::always(SAME_RESULT, |_, state: &State| {
                state.result().is_none_or(|stored| state.truth.result == Some(stored.body))
            }),
            Property::always(BLOCKED, |rules: &Self, state: &State| {
                state.broken != Some(BLOCKED) && rules.blocks_nobody(state)
            }),
        ]);
        // What voids an attempt is lost with the data.
        if self.losses == 0 {
            properties
                .push(Property::always(LEFT, |rules: &Self, state: &State| rules.leaves_nothing(state)));
        }
        properties.extend(self.reachable());
        properties
    }

    /// What a search must come across where it can, or it would prove nothing.
    fn reachable(&self) -> Vec<Property<Self>> {
        let can_give_up = self.workers.iter().any(|worker| worker.gives_up > 0);
        let tokens: BTreeSet<_> = self.workers.iter().map(|worker| worker.token).collect();
        let has_others = tokens.len() > 1;
        let are_free = self.workers.iter().all(|worker| worker.print.is_none() && worker.takes_over);
        let conditions: [(_, _, Condition); 10] = [
            ("a result is stored in time", true, |_, state| {
                state.result().is_some_and(|stored| !stored.is_late)
            }),
            ("a result is stored late", true, |_, state| state.result().is_some_and(|stored| stored.is_late)),
            ("a result is told to another", has_others, |_, state| {
                state.runs.iter().any(|run| run.is(End::Replayed))
            }),
            ("all workers are told to begin", has_others && are_free, |rules, state| {
                usize::from(state.truth.told.count()) >= rules.workers.len()
            }),
            ("a worker is superseded by one that stored", has_others, |_, state| {
                state.runs.iter().any(|run| run.is(End::Superseded)) && state.result().is_some()
            }),
            ("a place is left to nobody, and a result is stored", can_give_up, |rules, state| {
                let mut runs = rules.workers.iter().zip(&state.runs);
                let all_left = runs.any(|(worker, run)| run.is(End::Left) && state.freed.has(worker.token));
                all_left && state.result().is_some_and(|stored| stored.number > 1)
            }),
            ("a place is broken, and its own worker stores in the next one", self.breaks > 0, |_, state| {
                let is_first = |run: &RunState| run.is(End::Stored) && run.number == 2;
                state.breaks_left == 0 && is_first(&state.runs[0])
            }),
            ("a record ends, and the key is new", self.ends > 0, |rules, state| {
                state.ends_left < rules.ends && state.place().is_some_and(|place| place.number > 1)
            }),
            (
                "a token that gave up begins again when its mark has run out",
                self.marks_run_out,
                |rules, state| {
                    let place = state.place().filter(|place| place.number > 1);
                    place.and_then(|place| place.token).is_some_and(|token| {
                        let mut runs = rules.workers.iter().zip(&state.runs);
                        runs.any(|(worker, run)| {
                            worker.token == token && run.is(End::Left) && run.number == 1
                        })
                    })
                },
            ),
            ("all data is lost while a worker is at it", self.losses > 0, |_, state| {
                state.losses_left == 0 && state.record.is_none() && state.runs[0].phase == Phase::Posts
            }),
        ];
        let expected = conditions.into_iter().filter(|(_, is_possible, _)| *is_possible);
        expected.map(|(name, _, condition)| Property::sometimes(name, condition)).collect()
    }
}
