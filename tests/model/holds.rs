//! A lock that is held by a connection: what its client, late copies of its request, other requests of the same token,
//! rivals and the network may do, and what must hold whatever they do, in every order.

use stateright::{Checker, HasDiscoveries, Model, Property};

mod rules;
mod state;

use rules::{Mutant, Retries, Rules};
use state::{Attempt, Command, Hold, Lock, Party, Phase, Put, Request, State, is_claim, party_of};

const BELIEF: &str = "whoever is there and was told that the token holds, is right until the lease is over";
const FREED: &str = "after an answered DELETE the token never holds again";
const ORPHAN: &str = "what a connection held is free when it is closed";
const TURNS: &str = "a connection is renewed until another request takes the lock over, and never after";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Hold(usize),
    Put,
    Patch,
    Delete,
    /// A command runs, and its answer arrives, or is lost.
    Run {
        command: Command,
        is_answered: bool,
    },
    /// An acquire is sent once more by the same attempt, as the last look of those who wait is.
    LookAgain(Attempt),
    StopWaiting(usize),
    Renew {
        hold: usize,
        copy: u8,
    },
    PatchAgain,
    OutliveTheFound(usize),
    /// The same, where the lock ends with it.
    OutliveTheCut(usize),
    /// The client of a connection is gone, and its gateway has not seen it.
    Die(usize),
    /// The gateway sees it, or ends the connection by itself.
    Close(usize),
    HandOver(usize),
    StopHandingOver(usize),
    AnswerPut,
    LeavePut,
    Expire,
    RivalTakes,
    RivalReleases,
}

impl Rules {
    fn hold_actions(state: &State, number: usize, hands_over: bool, actions: &mut Vec<Action>) {
        let hold = state.holds[number];
        match hold.phase {
            Phase::NotSent => {
                // Connections are alike, so they need only one order.
                if number == 0 || state.holds[number - 1].phase != Phase::NotSent {
                    actions.push(Action::Hold(number));
                }
                return;
            }
            Phase::Acquiring(attempt) => {
                actions.extend([Action::StopWaiting(number), Action::Close(number)]);
                if state.repeats_left > 0 {
                    actions.push(Action::LookAgain(attempt));
                }
            }
            Phase::Voiding(_) => actions.push(Action::Close(number)),
            Phase::Holding(by) => {
                actions.push(Action::Close(number));
                if is_claim(by) && !hold.outlived_the_found {
                    actions.push(Action::OutliveTheFound(number));
                }
                if hands_over {
                    actions.push(Action::HandOver(number));
                }
            }
            Phase::HandingOver(_) => actions.push(Action::StopHandingOver(number)),
            Phase::HandedOver | Phase::Over => return,
        }
        if let Phase::Holding(by) | Phase::HandingOver(by) = hold.phase {
            let is_last = matches!(hold.phase, Phase::HandingOver(_));
            let is_late = |copy| state.commands.contains(&Command::Renew { hold: number, by, is_last, copy });
            if !is_late(0) {
                actions.push(Action::Renew { hold: number, copy: 0 });
            } else if !is_late(1) && state.repeats_left > 0 {
                actions.push(Action::Renew { hold: number, copy: 1 });
            }
        }
        if hold.is_heard {
            actions.push(Action::Die(number));
        }
    }

    fn request_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.put {
            Put::NotSent if self.has_put => actions.push(Action::Put),
            Put::Acquiring => actions.push(Action::LeavePut),
            Put::Granting { .. } => actions.extend([Action::AnswerPut, Action::LeavePut]),
            Put::NotSent | Put::Holds | Put::Over => {}
        }
        // Before there is something to renew or to free, nothing is.
        if state.put == Put::NotSent && state.holds[0].phase == Phase::NotSent {
            return;
        }
        match state.patch {
            Request::NotSent if self.has_patch => actions.push(Action::Patch),
            Request::Waits if state.repeats_left > 0 => actions.push(Action::PatchAgain),
            _ => {}
        }
        if self.has_delete && state.delete == Request::NotSent {
            actions.push(Action::Delete);
        }
    }
}

impl State {
    /// Whether somebody waits for the answer to this command.
    fn is_awaited(&self, command: Command) -> bool {
        match command {
            // One of two copies is answered: which of them makes no difference.
            Command::Acquire { copy: 1.., .. } => false,
            Command::Acquire { attempt, .. } => match party_of(attempt) {
                Party::Hold(hold) => self.holds[hold].phase == Phase::Acquiring(attempt),
                _ => self.put == Put::Acquiring,
            },
            Command::Renew { hold, is_last, .. } => match self.holds[hold].phase {
                Phase::Holding(_) => !is_last,
                Phase::HandingOver(_) => is_last,
                _ => false,
            },
            Command::TakeBack { .. } | Command::Cut { .. } => true,
            Command::Patch { .. } => self.patch == Request::Waits,
            Command::Release => self.delete == Request::Waits,
        }
    }

    /// Whether a client believes that its token holds, or is about to: it has not given it up.
    fn is_believed(&self) -> bool {
        let by_request = matches!(self.put, Put::Granting { .. } | Put::Holds) || self.patch == Request::Done;
        (by_request || self.holds.iter().any(|hold| hold.is_told)) && self.delete == Request::NotSent
    }

    fn is_held(&self) -> bool {
        matches!(self.lock, Lock::Held { .. })
    }

    /// The connection that was the last to take the lock, where nothing is under way any more.
    fn left_behind(&self) -> Option<Hold> {
        let is_over = |hold: &Hold| matches!(hold.phase, Phase::NotSent | Phase::HandedOver | Phase::Over);
        let is_at_rest = self.commands.is_empty()
            && self.holds.iter().all(is_over)
            && matches!(self.put, Put::NotSent | Put::Holds | Put::Over);
        match self.lock {
            Lock::Held { last: Party::Hold(hold), .. } if is_at_rest => Some(self.holds[hold]),
            _ => None,
        }
    }

    /// What was handed over is to stay. And what was claimed stays, if its connection closes while others may believe in a lease
    /// that they were told of before, until that is over.
    fn is_excused(&self, hold: Hold) -> bool {
        let is_cut = matches!(self.lock, Lock::Held { cut: Some(_), .. });
        hold.phase == Phase::HandedOver || is_cut
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.repeats)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for hold in 0..self.holds {
            Self::hold_actions(state, hold, self.hands_over, actions);
        }
        self.request_actions(state, actions);
        for &command in &state.commands {
            actions.push(Action::Run { command, is_answered: false });
            if state.is_awaited(command) {
                actions.push(Action::Run { command, is_answered: true });
            }
        }
        if let Lock::Held { cut: Some(hold), .. } = state.lock {
            actions.push(Action::OutliveTheCut(hold));
        }
        actions.push(match state.lock {
            Lock::Free => Action::RivalTakes,
            Lock::Rivals => Action::RivalReleases,
            Lock::Held { .. } => Action::Expire,
        });
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Hold(hold) => state.send_hold(hold),
            Action::Put => state.send_put(),
            Action::Patch => {
                state.patch = Request::Waits;
                state.commands.insert(Command::Patch { copy: 0 });
            }
            Action::PatchAgain => {
                state.repeats_left -= 1;
                state.commands.insert(Command::Patch { copy: 1 });
            }
            Action::Delete => {
                state.delete = Request::Waits;
                state.commands.insert(Command::Release);
            }
            Action::Run { command, is_answered } => self.run(&mut state, command, is_answered),
            Action::LookAgain(attempt) => {
                state.repeats_left -= 1;
                state.commands.insert(Command::Acquire { attempt, supersedes: None, copy: 1 });
            }
            Action::StopWaiting(hold) => self.retry(&mut state, hold),
            Action::Renew { hold, copy } => {
                let (by, is_last) = match state.holds[hold].phase {
                    Phase::Holding(by) => (by, false),
                    Phase::HandingOver(by) => (by, true),
                    _ => return None,
                };
                state.repeats_left -= copy;
                state.commands.insert(Command::Renew { hold, by, is_last, copy });
            }
            Action::OutliveTheFound(hold) => self.outlive_the_found(&mut state, hold),
            Action::OutliveTheCut(hold) => self.end_what_was_found(&mut state, hold),
            Action::Die(hold) => {
                (state.holds[hold].is_heard, state.holds[hold].is_told) = (false, false);
            }
            Action::Close(hold) => self.close(&mut state, hold),
            Action::HandOver(hold) => {
                let Phase::Holding(by) = state.holds[hold].phase else { return None };
                state.holds[hold].phase = Phase::HandingOver(by);
            }
            Action::StopHandingOver(hold) => self.hand_over(&mut state, hold),
            Action::AnswerPut => state.put = Put::Holds,
            Action::LeavePut => state.leave_put(),
            Action::Expire => {
                state.lock = Lock::Free;
                state.end_leases(u8::MAX);
            }
            Action::RivalTakes => state.lock = Lock::Rivals,
            Action::RivalReleases => state.lock = Lock::Free,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |_, state: &State| !state.is_believed() || state.is_held()),
            Property::always(FREED, |_, state: &State| state.delete != Request::Done || !state.is_held()),
            Property::always(ORPHAN, |_, state: &State| {
                state.left_behind().is_none_or(|hold| state.is_excused(hold))
            }),
            Property::always(TURNS, |_, state: &State| !state.is_out_of_turn),
        ];
        properties.extend(self.reachable());
        properties
    }
}

type Condition = fn(&Rules, &State) -> bool;

/// What a search must come across where it can, or it would prove nothing.
impl Rules {
    fn reachable(&self) -> impl Iterator<Item = Property<Self>> {
        let can_claim = self.holds > 1 || self.has_put;
        let conditions: [(_, _, Condition); 7] = [
            ("a rival gets its turn after a connection that claimed the lock", can_claim, |_, state| {
                let mut holds = state.holds.iter();
                state.lock == Lock::Rivals && holds.any(|hold| hold.outlived_the_found && !hold.is_heard)
            }),
            ("a lock stays because who claimed it closed early", can_claim, |_, state| {
                state.left_behind().is_some_and(|hold| hold.phase == Phase::Over)
            }),
            ("a lock that was cut to what was told before is free", can_claim, |_, state| {
                let is_cut_by = |hold: &Hold| hold.phase == Phase::Over && hold.outlived_the_found;
                state.lock == Lock::Free && state.commands.is_empty() && state.holds.iter().any(is_cut_by)
            }),
            ("two connections believe at once", self.holds > 1, |_, state| {
                state.holds.iter().all(|hold| hold.is_told)
            }),
            ("a connection goes on with what was handed over", self.hands_over, |_, state| {
                let [first, second] = state.holds;
                first.phase == Phase::HandedOver && second.is_told && second.outlived_the_found
            }),
            ("a PATCH takes the lock from a connection", self.has_patch, |_, state| {
                let is_told = state.holds.iter().any(|hold| hold.is_told);
                is_told && state.patch == Request::Done && state.lock.is_pinned()
            }),
            ("a client is told after an acquire was voided", self.retries != Retries::None, |_, state| {
                state.voided & 1 != 0 && state.holds[0].is_told
            }),
        ];
        let expected = conditions.into_iter().filter(|(_, is_possible, _)| *is_possible);
        expected.map(|(name, _, condition)| Property::sometimes(name, condition))
    }
}

const ONE: Rules = Rules {
    holds: 1,
    retries: Retries::None,
    hands_over: false,
    has_put: false,
    has_patch: false,
    has_delete: false,
    repeats: 0,
    mutant: Mutant::None,
};
const TWO: Rules = Rules { holds: 2, ..ONE };
const WITH_PUT: Rules = Rules { has_put: true, ..ONE };
const WITH_PATCH: Rules = Rules { has_patch: true, ..ONE };
const WITH_PATCH_AND_PUT: Rules = Rules { has_patch: true, ..WITH_PUT };
const WITH_DELETE: Rules = Rules { has_delete: true, ..ONE };
const VOIDED: Rules = Rules { retries: Retries::Voided, ..ONE };
const SUPERSEDED: Rules = Rules { retries: Retries::Superseded, ..ONE };
const HANDING_OVER: Rules = Rules { hands_over: true, ..TWO };

#[test]
fn a_connection_holds_its_lock_and_frees_it_for_every_order_of_events() {
    let searches = [
        ("connection + PUT + PATCH, two commands twice", Rules { has_patch: true, repeats: 2, ..WITH_PUT }),
        ("connection + PUT + PATCH + DELETE", Rules { has_patch: true, has_delete: true, ..WITH_PUT }),
        ("2 connections, two commands twice", Rules { repeats: 2, ..TWO }),
        ("2 connections + PUT", Rules { has_put: true, ..TWO }),
        ("2 connections + PATCH, one command twice", Rules { has_patch: true, repeats: 1, ..TWO }),
        ("2 connections that are handed over + PATCH", Rules { has_patch: true, ..HANDING_OVER }),
        ("2 connections that are handed over, one command twice", Rules { repeats: 1, ..HANDING_OVER }),
        ("2 connections whose acquires are voided", Rules { holds: 2, ..VOIDED }),
        ("2 connections whose acquires are superseded", Rules { holds: 2, ..SUPERSEDED }),
    ];
    for (name, rules) in searches {
        let checker = crate::search(rules, HasDiscoveries::AnyFailures);
        println!("{name}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn each_rule_of_a_connection_is_missed_when_it_is_left_out() {
    let mutants = [
        (Mutant::NothingIsClaimed, TWO, BELIEF),
        (Mutant::ClaimIsTheAttempt, TWO, BELIEF),
        (Mutant::ClaimIsTheAttempt, WITH_PUT, BELIEF),
        (Mutant::ClaimVoidsNothing, Rules { repeats: 1, has_patch: true, ..WITH_PUT }, BELIEF),
        (Mutant::ClaimVoidsNothing, Rules { repeats: 1, has_patch: true, ..WITH_PUT }, TURNS),
        (Mutant::ClaimIsFreedEarly, TWO, BELIEF),
        (Mutant::ClaimIsFreedEarly, WITH_PUT, BELIEF),
        (Mutant::ClaimIsNeverFreed, TWO, ORPHAN),
        (Mutant::ClaimLengthensTheLease, TWO, ORPHAN),
        (Mutant::ClaimLengthensTheLease, WITH_PUT, ORPHAN),
        (Mutant::ClaimCountsItsOwnLease, TWO, ORPHAN),
        (Mutant::ClaimCountsItsOwnLease, WITH_PUT, ORPHAN),
        (Mutant::CutIgnoresAttempt, WITH_PATCH_AND_PUT, BELIEF),
        (Mutant::PutDoesNotPin, WITH_PUT, BELIEF),
        (Mutant::PatchDoesNotPin, WITH_PATCH, BELIEF),
        (Mutant::RenewalIgnoresAttempt, TWO, TURNS),
        (Mutant::RenewalIgnoresAttempt, WITH_PATCH, TURNS),
        (Mutant::RenewalAdopts, WITH_PATCH, BELIEF),
        (Mutant::RenewalAdopts, WITH_PUT, BELIEF),
        (Mutant::RenewalPins, ONE, ORPHAN),
        (Mutant::RenewalRevives, WITH_DELETE, FREED),
        (Mutant::GuardEndsWithTheAnswer, ONE, ORPHAN),
        (Mutant::TakeBackIgnoresAttempt, TWO, BELIEF),
        (Mutant::TakeBackIgnoresAttempt, WITH_PATCH, BELIEF),
        (Mutant::TakeBackVoidsNothing, ONE, ORPHAN),
        (Mutant::DoubtIsNotVoided, VOIDED, ORPHAN),
        (Mutant::SupersedingVoidsNothing, SUPERSEDED, ORPHAN),
        (Mutant::HandOverPins, HANDING_OVER, TURNS),
        (Mutant::HandOverStaysGuarded, HANDING_OVER, BELIEF),
    ];
    for (mutant, rules, property) in mutants {
        crate::is_missed(&format!("{mutant:?}"), Rules { mutant, ..rules }, property);
    }
}
