//! Waiting for a record, at two gateways: is whoever sleeps told within a bound what there is to be told?
//!
//! The record lists no gateways. What one gateway tells the others may be lost. So each gateway looks, for all who wait
//! there: after a tenth of a second, then after twice as long each time, up to a second; and at the end of the lease as
//! last told. Time has a number here, in tenths of a second, and looks take none of it. Between a look, its answer
//! and its being heard everything else may happen.
//!
//! That what was looked for by one who left is voided and taken back is in the model of records: here it is done in
//! one step. Not modelled: that a waiter which has not been answered for 1 min begins nothing.

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::rules::Mutant;
use self::state::{
    Asker, FIRST, GATEWAYS, Gateway, NOTHING, Phase, Place, Record, Rules, State, WAITERS, Wait, Waiter,
};

mod rules;
mod state;

const SLEEPS: &str = "nobody sleeps for longer than between two looks though there is something to be told";
const OVERSLEEPS: &str = "nobody sleeps beyond the end of a lease that its gateway was told of";
const ONCE: &str = "no waiter begins twice, and one token waits once at a gateway";
const ROUNDS: &str = "each waiter looks once in a round";
const ALONE: &str = "an answer that is the looker's alone ends no other wait";
const STRANGER: &str = "no waiter is told the result of another request";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Stores,
    GivesUp { is_clean: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Come(Waiter),
    Leave(Waiter),
    Look(Waiter),
    /// The store answers a look.
    Answer(Waiter),
    Hear(Waiter),
    /// The gateway hears nothing, and answers its client that it does not know.
    LoseAnswer(Waiter),
    /// A message of another gateway arrives.
    HearOthers(Gateway),
    FirstEnds(End),
    Ends(Waiter, End),
    Renew,
    Break {
        is_clean: bool,
    },
    Pass,
}

impl Rules {
    /// Whether a look would tell it something.
    fn has_news(&self, state: &State, waiter: Waiter) -> bool {
        let asker = self.askers[waiter];
        match state.record {
            Record::Free | Record::Done { .. } => true,
            Record::Place(place) if place.is_lapsed() => asker.takes_over,
            Record::Place(place) => place.holder == Some(asker.token),
        }
    }

    /// Waiters that are alike need only one order.
    fn is_next(&self, state: &State, waiter: Waiter) -> bool {
        let is = |waiter: Waiter| {
            let Asker { gateway, print, takes_over, .. } = self.askers[waiter];
            (gateway, print, takes_over)
        };
        (0..waiter).all(|other| is(other) != is(waiter) || state.waits[other].phase != Phase::NotCome)
    }

    fn holds(&self, state: &State, token: u8) -> bool {
        state.place().is_some_and(|place| place.holder == Some(token))
    }

    fn end(&self, state: &mut State, token: u8, print: u8, end: End) {
        if !self.holds(state, token) {
            return;
        }
        match end {
            End::Stores => {
                state.record = Record::Done { print };
                self.tell(state);
            }
            End::GivesUp { is_clean } => {
                self.leave_place(state, is_clean);
                state.freed.add(token);
            }
        }
    }

    fn break_record(&self, state: &mut State, is_clean: bool) {
        if let Record::Done { print } = state.record {
            state.record = Record::Place(Place { holder: None, left: 0, is_first: false, print });
        }
        self.leave_place(state, false);
        if is_clean {
            state.record = Record::Free;
        }
    }

    fn count_sleep(&self, state: &mut State, before: &State) {
        for waiter in 0..WAITERS {
            if before.waits[waiter].phase != Phase::Waits || !self.has_news(before, waiter) {
                continue;
            }
            state.waits[waiter].sleeps += 1;
            let sleeps = state.waits[waiter].sleeps;
            state.break_promise(SLEEPS, sleeps > self.longest);
            let is_current = before.gateways[self.askers[waiter].gateway].is_current;
            let has_lapsed = before.place().is_some_and(|place| place.is_lapsed() && place.holder.is_some());
            state.break_promise(OVERSLEEPS, is_current && has_lapsed && sleeps > 1);
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let place = Place { holder: Some(FIRST), left: self.lease, is_first: true, print: 0 };
        let wait = Wait { phase: Phase::NotCome, look: None, has_looked: false, sleeps: 0, has_begun: false };
        vec![State {
            record: Record::Place(place),
            does_first_work: true,
            freed: Default::default(),
            gateways: [NOTHING; GATEWAYS],
            waits: [wait; WAITERS],
            leaves_left: self.leaves,
            lost_answers_left: self.lost_answers,
            renewals_left: self.renewals,
            breaks_left: self.breaks,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        // Who crashes is one that never ends.
        let ends = [End::Stores, End::GivesUp { is_clean: true }, End::GivesUp { is_clean: false }];
        for (waiter, wait) in state.waits.iter().enumerate() {
            match wait.phase {
                Phase::NotCome if self.is_next(state, waiter) => actions.push(Action::Come(waiter)),
                Phase::Waits if state.leaves_left > 0 => actions.push(Action::Leave(waiter)),
                Phase::Works => actions.extend(ends.map(|end| Action::Ends(waiter, end))),
                _ => {}
            }
            let Some(look) = wait.look else { continue };
            match look.answer {
                None => actions.push(Action::Answer(waiter)),
                Some(_) => actions.push(Action::Hear(waiter)),
            }
            if state.lost_answers_left > 0 {
                actions.push(Action::LoseAnswer(waiter));
            }
        }
        let lookers: Vec<_> = (0..GATEWAYS).flat_map(|gateway| self.lookers(state, gateway)).collect();
        let is_quiet = lookers.is_empty() && state.waits.iter().all(|wait| wait.look.is_none());
        actions.extend(lookers.into_iter().map(Action::Look));
        let told = (0..GATEWAYS).filter(|gateway| state.gateways[*gateway].is_told);
        actions.extend(told.map(Action::HearOthers));
        if state.does_first_work {
            actions.extend(ends.map(Action::FirstEnds));
        }
        if state.renewals_left > 0 && state.place().is_some_and(|place| !place.is_lapsed()) {
            actions.push(Action::Renew);
        }
        if state.breaks_left > 0 && state.record != Record::Free {
            actions.extend([true, false].map(|is_clean| Action::Break { is_clean }));
        }
        if is_quiet {
            actions.push(Action::Pass);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Come(waiter) => self.come(&mut state, waiter),
            Action::Leave(waiter) => {
                state.leaves_left -= 1;
                self.leave(&mut state, waiter);
            }
            Action::Look(waiter) => self.look(&mut state, waiter),
            Action::Answer(waiter) => {
                let answer = self.answer(&mut state, waiter);
                state.waits[waiter].look.as_mut()?.answer = Some(answer);
            }
            Action::Hear(waiter) => {
                let look = state.waits[waiter].look?;
                self.hear(&mut state, waiter, look, look.answer?);
            }
            Action::LoseAnswer(waiter) => {
                state.lost_answers_left -= 1;
                self.leave(&mut state, waiter);
            }
            Action::HearOthers(gateway) => {
                state.gateways[gateway].is_told = false;
                self.begin_round(&mut state, gateway);
            }
            Action::FirstEnds(end) => {
                state.does_first_work = false;
                self.end(&mut state, FIRST, 0, end);
            }
            Action::Ends(waiter, end) => {
                let Asker { token, print, .. } = self.askers[waiter];
                state.waits[waiter].phase = Phase::Gone;
                self.end(&mut state, token, print, end);
            }
            Action::Renew => {
                state.renewals_left -= 1;
                state.renew();
                state.record = Record::Place(Place { left: self.lease, ..state.place()? });
            }
            Action::Break { is_clean } => {
                state.breaks_left -= 1;
                self.break_record(&mut state, is_clean);
            }
            Action::Pass => {
                self.pass(&mut state);
                self.count_sleep(&mut state, last);
            }
        }
        for waiter in 0..WAITERS {
            if state.waits[waiter].phase != Phase::Waits || !self.has_news(&state, waiter) {
                state.waits[waiter].sleeps = 0;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let has_two = (0..GATEWAYS).any(|gateway| self.at(gateway).count() > 1);
        assert!(has_two, "where each waits alone nothing is shared");
        vec![
            Property::always(SLEEPS, |_, state: &State| state.broken != Some(SLEEPS)),
            Property::always(OVERSLEEPS, |_, state: &State| state.broken != Some(OVERSLEEPS)),
            Property::always(ONCE, |_, state: &State| state.broken != Some(ONCE)),
            Property::always(ROUNDS, |_, state: &State| state.broken != Some(ROUNDS)),
            Property::always(ALONE, |_, state: &State| state.broken != Some(ALONE)),
            Property::always(STRANGER, |_, state: &State| state.broken != Some(STRANGER)),
            Property::sometimes("a waiter sleeps for as long as it may", |rules: &Self, state: &State| {
                state.waits.iter().any(|wait| wait.sleeps == rules.longest)
            }),
            Property::sometimes("a waiter begins, and another is told the result", |_, state: &State| {
                state.waits.iter().any(|wait| wait.has_begun)
                    && state.waits.iter().any(|wait| wait.phase == Phase::Told)
            }),
            Property::sometimes("the last of all requests begins", |_, state: &State| {
                state.waits[WAITERS - 1].phase == Phase::Works
            }),
        ]
    }
}

mod scenarios {

    use super::*;
    use crate::is_long;

    const X: Asker = Asker { token: 0, gateway: 0, print: 0, takes_over: true };
    const Y: Asker = Asker { token: 1, ..X };
    const Z: Asker = Asker { token: 2, gateway: 1, ..X };

    const fn rules(askers: &'static [Asker; WAITERS]) -> Rules {
        Rules {
            askers,
            lease: 2,
            longest: 2,
            leaves: 0,
            lost_answers: 0,
            renewals: 0,
            breaks: 0,
            mutant: Mutant::None,
        }
    }

    const NEIGHBORS: Rules = rules(&[X, Y, Z]);
    const LEFT: Rules = Rules { leaves: 1, ..NEIGHBORS };
    /// A client sends its request again, elsewhere or to the same gateway.
    const ELSEWHERE: Rules = rules(&[X, Asker { gateway: 1, ..X }, Y]);
    const AGAIN: Rules = Rules { longest: 3, ..rules(&[X, X, Y]) };
    const UNANSWERED: Rules = Rules { lost_answers: 1, ..AGAIN };
    const FORBIDDING: Rules = Rules {
        longest: 3,
        ..rules(&[
            Asker { takes_over: false, ..X },
            Asker { takes_over: false, ..Y },
            Asker { gateway: 0, ..Z },
        ])
    };
    const STRANGERS: Rules = rules(&[X, Asker { print: 1, ..Y }, Asker { print: 1, ..Z }]);

    const SHORT: &[(&str, Rules)] = &[
        ("neighbors", NEIGHBORS),
        ("a waiter leaves", LEFT),
        ("elsewhere", ELSEWHERE),
        ("again, renewed", Rules { renewals: 1, ..AGAIN }),
        ("again, unanswered", UNANSWERED),
        ("again, broken", Rules { breaks: 1, ..AGAIN }),
        ("takeover=false", FORBIDDING),
        ("strangers", STRANGERS),
    ];

    /// With larger bounds: minutes, and gigabytes.
    const LONG: &[(&str, Rules)] = &[
        ("neighbors for longer", Rules { lease: 3, longest: 4, ..NEIGHBORS }),
        ("an answer is lost", Rules { lost_answers: 1, longest: 3, ..NEIGHBORS }),
        ("renewed", Rules { renewals: 1, longest: 3, ..NEIGHBORS }),
        ("broken", Rules { breaks: 1, ..NEIGHBORS }),
        ("elsewhere, one leaves", Rules { leaves: 1, longest: 3, ..ELSEWHERE }),
        ("again, all at once", Rules { leaves: 1, renewals: 1, lost_answers: 1, breaks: 1, ..AGAIN }),
        ("takeover=false, broken", Rules { breaks: 1, leaves: 1, ..FORBIDDING }),
        ("strangers, broken", Rules { breaks: 1, leaves: 1, lost_answers: 1, ..STRANGERS }),
    ];

    #[test]
    fn nobody_sleeps_though_there_is_something_to_be_told() {
        let bounds = if is_long() { LONG } else { SHORT };
        for (name, rules) in bounds {
            let checker = crate::search(*rules, HasDiscoveries::AnyFailures);
            println!("waiting, {name}: {} states", checker.unique_state_count());
            assert!(checker.is_done());
            checker.assert_properties();
        }
    }

    #[test]
    fn each_rule_of_waiting_for_records_is_missed_when_it_is_left_out() {
        let mutants = [
            (Mutant::NobodyLooks, NEIGHBORS, SLEEPS),
            (Mutant::DelayHasNoLimit, NEIGHBORS, SLEEPS),
            (Mutant::NobodyLooksAtTheEnd, FORBIDDING, OVERSLEEPS),
            (Mutant::LeaverStopsTheLooks, LEFT, SLEEPS),
            (Mutant::GrantStopsTheLooks, NEIGHBORS, SLEEPS),
            (Mutant::OwnAnswerEndsTheRound, FORBIDDING, OVERSLEEPS),
            (Mutant::OwnAnswerIsEverybodys, STRANGERS, ALONE),
            (Mutant::LostLookEndsTheRound, UNANSWERED, OVERSLEEPS),
            (Mutant::RoundsHaveNoEnd, FORBIDDING, ROUNDS),
            (Mutant::OwnTokenSleeps, ELSEWHERE, SLEEPS),
            (Mutant::NewerDoesNotDisplace, AGAIN, ONCE),
            (Mutant::WorkerIsLookedFor, NEIGHBORS, ONCE),
            (Mutant::ResultIsNotCompared, STRANGERS, STRANGER),
        ];
        for (mutant, rules, property) in mutants {
            crate::is_missed(&format!("{mutant:?}"), Rules { mutant, ..rules }, property);
        }
    }
}
