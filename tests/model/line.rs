//! The waiting line of one lock, as the store's scripts and the gateways keep it: waiters of two gateways,
//! clients that leave, retry elsewhere or give up, and whatever fails between them. The scenarios are small,
//! and searched in every order; each names what may go wrong in it, and how often.
//!
//! Time is what may happen next. An offer lapses, and a place runs out, where nothing prompt is left to do,
//! or at any moment for a delay; a gateway was heard since the offer began, or before, or not for long. A
//! command runs in one step with its answer; or the answer takes its time, or is lost; or nobody waits for
//! the command any more, and it stays on its way until it arrives, if it does.
//!
//! Rules that no search misses when they are left out, and that are kept as belt and braces:
//! - A last look that takes nothing voids its attempt. What was not answered before it is superseded by it,
//!   and a last look makes no place, so that no copy could take anything; but the mark costs nothing and
//!   rests on less.
//! - A look from aside leaves the offer that was made in the meantime. Withdrawing it would be safe, but
//!   whoever was told of it would look in vain, and a gateway that is slow again and again could hold up the
//!   line.
//! - Whoever puts itself back is present, also just after its own offer lapsed. Passed over once more, it
//!   would be told by the next beat of its gateway; but it would miss its turn although it is there.
//! - A token that asks without waiting is granted a lock that it is the first in line for. It would get it
//!   all the same when it asks again.
//!
//! Not modelled, as it is about cost and not about who gets the lock: the limit of waiters, how many places
//! are read or purged at once, jitter, hints before the end of a short lease, that a ticket is passed over
//! after a lapse. Marks do not age, the clock does not step, and nothing but requests of the token pins a
//! grant (that is in the model of retries).

use stateright::{Checker, HasDiscoveries, Model, Property};

mod actions;
mod gateway;
mod hand_off;
mod rest;
mod rules;
mod state;
mod store;

use actions::{Action, spend};
use gateway::Fate;
use rules::{Asker, Mutant, Rules, first_attempt};
use state::{
    Attempt, Attempts, Due, Faults, GATEWAYS, Gate, Gateway, HOLDER, Held, Lock, NO_FAULTS, Phase, Process,
    Request, State, TOKENS, Token, Wait,
};

const BELIEF: &str = "who believes that it holds, holds";
const FREED: &str = "after a DELETE the token has no lock, no offer and no place";
const VOIDED: &str = "a voided attempt has no lock, no offer and no place";
const STEPS: &str = "nobody overtakes, no place is lost, no offer lapses needlessly";
const REST: &str = "left alone all comes to rest, and then no lock is left behind and nobody waits in vain";

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let held = Held { token: HOLDER, attempt: None, granted_to: None, pinned_by: None };
        let mut state = State {
            lock: Lock::Held(held),
            due: Due::Never,
            seats: [None; TOKENS],
            freed: [false; TOKENS],
            voided: Attempts::default(),
            gates: [Gate::Unknown; GATEWAYS],
            is_beat_known: [false; GATEWAYS],
            next_place: 1,
            commands: Vec::new(),
            offer_hints: Attempts::default(),
            move_hints: Attempts::default(),
            processes: [Process::Runs; GATEWAYS],
            waits: std::array::from_fn(|request: Request| Wait::new(first_attempt(request))),
            errands: Attempts::default(),
            left: self.may,
            first_places: [None; TOKENS],
            lapses_left: 0,
            wrong: None,
        };
        for request in 0..self.joined {
            state = self.next_state(&state, Action::Ask(request, Fate::Answered)).unwrap();
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.prompt(state, actions);
        self.requests_and_faults(state, actions);
        self.releases(state, actions);
        self.time(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        spend(&mut state, action)?;
        self.step(&mut state, action)?;
        if !matches!(state.lock, Lock::Offered(_)) {
            for gate in &mut state.gates {
                *gate = (*gate).min(Gate::Heard);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |rules: &Rules, state: &State| {
                let mut believed =
                    rules.requests(None).filter(|request| state.waits[*request].phase == Phase::Holds);
                believed.all(|request| {
                    matches!(state.lock, Lock::Held(held) if held.token == rules.askers[request].token)
                })
            }),
            Property::always(FREED, |_, state: &State| {
                (0..TOKENS).filter(|token| state.freed[*token]).all(|token| {
                    let is_its = match state.lock {
                        Lock::Free => false,
                        Lock::Offered(offer) => offer.token == token,
                        Lock::Held(held) => held.token == token,
                    };
                    !is_its && state.seats[token].is_none()
                })
            }),
            Property::always(VOIDED, |_, state: &State| {
                let is_voided =
                    |attempt: Option<Attempt>| attempt.is_some_and(|attempt| state.voided.has(attempt));
                let lock = match state.lock {
                    Lock::Free => None,
                    Lock::Offered(offer) => offer.attempt,
                    Lock::Held(held) => held.attempt,
                };
                !is_voided(lock) && !state.seats.iter().flatten().any(|seat| is_voided(seat.client))
            }),
            Property::always(STEPS, |_, state: &State| state.wrong.is_none()),
            Property::always(REST, |rules: &Rules, state: &State| rules.unrest(state).is_none()),
        ];
        properties.extend(self.reachable());
        properties
    }
}

type Condition = fn(&Rules, &State) -> bool;

/// What a search must come across where it can, or it would prove nothing.
impl Rules {
    fn reachable(&self) -> impl Iterator<Item = Property<Self>> {
        let may = self.may;
        let is_slow = may.delays > 0 || may.kills > 0 || may.only_beats > 0;
        let loses_places = may.flushes > 0 || may.failovers > 0 || may.lost_beats > 0;
        let last = self.askers[self.askers.len() - 1];
        let has_retry = last.token == 0 && last.waits;
        let conditions: [(_, _, Condition); 6] = [
            ("the last of all requests is granted the lock", true, |rules, state| {
                state.waits[rules.askers.len() - 1].phase == Phase::Holds
            }),
            ("an offer lapses, and the lock goes to the next", is_slow, |_, state| {
                let is_aside =
                    state.seats.iter().flatten().any(|seat| !seat.is_in_line && seat.client.is_some());
                is_aside && matches!(state.lock, Lock::Held(held) if held.token != HOLDER)
            }),
            (
                "an attempt is superseded, and its request is granted the lock",
                may.doubts > 0,
                |rules, state| {
                    let mut holding =
                        rules.requests(None).filter(|request| state.waits[*request].phase == Phase::Holds);
                    holding.any(|request| state.voided.has(first_attempt(request)))
                },
            ),
            ("a place is taken over from one who is present", has_retry, |_, state| {
                state.seats.iter().flatten().any(|seat| seat.from.is_some())
            }),
            (
                "a ticket is offered the lock",
                may.ends > 0 && !self.made,
                |_, state| matches!(state.lock, Lock::Offered(offer) if offer.attempt.is_none()),
            ),
            ("a waiter is told to put itself back", loses_places, |rules, state| {
                rules.requests(None).any(|request| state.waits[request].puts_back)
            }),
        ];
        let expected = conditions.into_iter().filter(|(_, is_possible, _)| *is_possible);
        expected.map(|(name, _, condition)| Property::sometimes(name, condition))
    }
}

const fn asker(token: Token, gateway: Gateway) -> Asker {
    Asker { token, gateway, waits: true }
}

/// Without `wait`.
const fn passer(token: Token, gateway: Gateway) -> Asker {
    Asker { waits: false, ..asker(token, gateway) }
}

const fn rules(askers: &'static [Asker], joined: usize) -> Rules {
    Rules { askers, joined, made: false, is_strict: false, may: NO_FAULTS, mutant: Mutant::None }
}

const THREE: Rules = rules(&[asker(0, 0), asker(1, 1), asker(2, 0)], 2);
/// Two waiters of one gateway, and nobody else.
const NEIGHBOURS: Rules = rules(&[asker(0, 0), asker(1, 0)], 2);
/// Two waiters of one gateway stand before one of the other.
const CROWD: Rules = Rules { is_strict: true, ..rules(&[asker(0, 0), asker(1, 0), asker(2, 1)], 3) };
/// The first sends its request through the other gateway too.
const RETRY: Rules = rules(&[asker(0, 0), asker(1, 1), asker(0, 1)], 2);
const RETRY_AT_SAME: Rules = rules(&[asker(0, 0), asker(1, 1), asker(0, 0)], 2);
const TWO_RETRIES: Rules = rules(&[asker(0, 0), asker(1, 1), asker(0, 1), asker(0, 0)], 2);
const PASSERS: Rules = rules(&[asker(0, 0), asker(1, 1), passer(2, 1), passer(0, 1)], 2);
const MADE: Rules = Rules { made: true, ..rules(&[asker(0, 0), asker(1, 1)], 1) };

impl Rules {
    const fn with(self, may: Faults) -> Self {
        Self { may, ..self }
    }
}

#[rustfmt::skip]
const SCENARIOS: &[(&str, Rules)] = &[
    ("three: nothing fails", THREE),
    ("three: leave, 2 doubts", THREE.with(Faults { leaves: 1, doubts: 2, ..NO_FAULTS })),
    ("three: leave, end, doubt", THREE.with(Faults { leaves: 1, ends: 1, doubts: 1, ..NO_FAULTS })),
    ("three: 2 ends, doubt", THREE.with(Faults { ends: 2, doubts: 1, ..NO_FAULTS })),
    ("three: leave, DELETE, doubt", THREE.with(Faults { leaves: 1, deletes: 1, doubts: 1, ..NO_FAULTS })),
    ("three: 2 flushes, doubt", THREE.with(Faults { flushes: 2, doubts: 1, ..NO_FAULTS })),
    ("three: flush, lost beat", THREE.with(Faults { flushes: 1, lost_beats: 1, ..NO_FAULTS })),
    ("three: failover, hint, doubt",
        THREE.with(Faults { failovers: 1, lost_hints: 1, doubts: 1, ..NO_FAULTS })),
    ("three: kill, lost beat, doubt",
        THREE.with(Faults { kills: 1, lost_beats: 1, doubts: 1, ..NO_FAULTS })),
    ("three: only beats, doubt", THREE.with(Faults { only_beats: 1, doubts: 1, ..NO_FAULTS })),
    ("three: 2 delays, hint", THREE.with(Faults { delays: 2, lost_hints: 1, ..NO_FAULTS })),
    ("three: delay, hint, doubt", THREE.with(Faults { delays: 1, lost_hints: 1, doubts: 1, ..NO_FAULTS })),
    ("three: delay, hint, beat, expiry",
        THREE.with(Faults { delays: 1, lost_hints: 1, lost_beats: 1, expiries: 1, ..NO_FAULTS })),
    ("three: renewal, hint, beat, 2 expiries",
        THREE.with(Faults { renewals: 1, lost_hints: 1, lost_beats: 1, expiries: 2, ..NO_FAULTS })),
    ("neighbours: 2 delays, 2 hints, doubt",
        NEIGHBOURS.with(Faults { delays: 2, lost_hints: 2, doubts: 1, ..NO_FAULTS })),
    ("three: slow, flush", THREE.with(Faults { slow_answers: 1, flushes: 1, ..NO_FAULTS })),
    ("three: slow, leave, doubt", THREE.with(Faults { slow_answers: 1, leaves: 1, doubts: 1, ..NO_FAULTS })),
    ("three: slow, delay, hint",
        THREE.with(Faults { slow_answers: 1, delays: 1, lost_hints: 1, ..NO_FAULTS })),
    ("retry: slow, leave, hint",
        RETRY.with(Faults { slow_answers: 1, leaves: 1, lost_hints: 1, ..NO_FAULTS })),
    ("retry: slow, delay, hint",
        RETRY.with(Faults { slow_answers: 1, delays: 1, lost_hints: 1, ..NO_FAULTS })),
    ("retry: slow, expiry, DELETE",
        RETRY.with(Faults { slow_answers: 1, expiries: 1, deletes: 1, ..NO_FAULTS })),
    ("retry: slow, end, kill", RETRY.with(Faults { slow_answers: 1, ends: 1, kills: 1, ..NO_FAULTS })),
    ("crowd: kill", CROWD.with(Faults { kills: 1, ..NO_FAULTS })),
    ("retry: 2 doubts", RETRY.with(Faults { doubts: 2, ..NO_FAULTS })),
    ("retry: leave, hint, doubt", RETRY.with(Faults { leaves: 1, lost_hints: 1, doubts: 1, ..NO_FAULTS })),
    ("retry: leave, hint, strict",
        Rules { is_strict: true, ..RETRY.with(Faults { leaves: 1, lost_hints: 1, ..NO_FAULTS }) }),
    ("retry: end, strict", Rules { is_strict: true, ..RETRY.with(Faults { ends: 1, ..NO_FAULTS }) }),
    ("retry: leave, end, doubt", RETRY.with(Faults { leaves: 1, ends: 1, doubts: 1, ..NO_FAULTS })),
    ("retry: kill, hint, doubt", RETRY.with(Faults { kills: 1, lost_hints: 1, doubts: 1, ..NO_FAULTS })),
    ("retry: leave, delay, hint", RETRY.with(Faults { leaves: 1, delays: 1, lost_hints: 1, ..NO_FAULTS })),
    ("retry: leave, expiry, doubt", RETRY.with(Faults { leaves: 1, expiries: 1, doubts: 1, ..NO_FAULTS })),
    ("retry: leave, flush", RETRY.with(Faults { leaves: 1, flushes: 1, ..NO_FAULTS })),
    ("retry at the same: leave, end, doubt",
        RETRY_AT_SAME.with(Faults { leaves: 1, ends: 1, doubts: 1, ..NO_FAULTS })),
    ("two retries: leave, kill", TWO_RETRIES.with(Faults { leaves: 1, kills: 1, ..NO_FAULTS })),
    ("two retries: doubt", TWO_RETRIES.with(Faults { doubts: 1, ..NO_FAULTS })),
    ("passers: leave, end, expiry", PASSERS.with(Faults { leaves: 1, ends: 1, expiries: 1, ..NO_FAULTS })),
    ("passers: kill, expiry, doubt", PASSERS.with(Faults { kills: 1, expiries: 1, doubts: 1, ..NO_FAULTS })),
    ("passers: delay, hint, beat",
        PASSERS.with(Faults { delays: 1, lost_hints: 1, lost_beats: 1, ..NO_FAULTS })),
    ("made: leave, end, 2 doubts", MADE.with(Faults { leaves: 1, ends: 1, doubts: 2, ..NO_FAULTS })),
    ("made: delay, end, 2 doubts",
        MADE.with(Faults { delays: 1, ends: 1, doubts: 2, ..NO_FAULTS })),
    ("made: failover, end, 2 doubts", MADE.with(Faults { failovers: 1, ends: 1, doubts: 2, ..NO_FAULTS })),
];

fn rules_of(scenario: &str) -> Rules {
    SCENARIOS.iter().find(|(name, _)| *name == scenario).unwrap().1
}

#[test]
fn the_line_is_kept_for_every_order_of_events() {
    for (name, rules) in SCENARIOS {
        let checker = crate::search(*rules, HasDiscoveries::AnyFailures);
        println!("{name}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn each_rule_of_the_line_is_missed_when_it_is_left_out() {
    let mutants = [
        (Mutant::FreeingHandsOffNothing, "three: nothing fails", REST),
        (Mutant::NewcomerOvertakes, "three: delay, hint, beat, expiry", STEPS),
        (Mutant::NewcomerOvertakes, "passers: leave, end, expiry", STEPS),
        (Mutant::JoinDoesNotLook, "three: nothing fails", REST),
        (Mutant::LookTakesPlace, "retry: leave, hint, doubt", REST),
        (Mutant::LookCreatesPlace, "three: 2 flushes, doubt", REST),
        (Mutant::LeavingVoidsNothing, "three: leave, 2 doubts", REST),
        (Mutant::LeavingVoidsOnlySuccess, "three: leave, 2 doubts", REST),
        (Mutant::SupersededIsNotVoided, "three: leave, 2 doubts", REST),
        (Mutant::SupersededLockIsPinned, "three: leave, 2 doubts", REST),
        (Mutant::SupersededLockIsPinned, "made: leave, end, 2 doubts", REST),
        (Mutant::SupersededSeatIsForeign, "three: 2 ends, doubt", VOIDED),
        (Mutant::SupersededStaysNoted, "retry: leave, end, doubt", VOIDED),
        (Mutant::SupersededOfferStays, "made: failover, end, 2 doubts", VOIDED),
        (Mutant::FormersAreForgotten, "three: leave, 2 doubts", REST),
        (Mutant::FormersAreForgotten, "made: leave, end, 2 doubts", REST),
        (Mutant::LastLookSupersedesNothing, "made: leave, end, 2 doubts", REST),
        (Mutant::TicketKeepsAttempt, "three: 2 ends, doubt", VOIDED),
        (Mutant::NothingIsDeclined, "three: 2 flushes, doubt", STEPS),
        (Mutant::DecliningDeletesLock, "three: nothing fails", BELIEF),
        (Mutant::JoinMakesKnown, "three: flush, lost beat", REST),
        (Mutant::FirstJoinWithoutBeat, "three: nothing fails", STEPS),
        (Mutant::NewBeatIsIgnored, "three: flush, lost beat", REST),
        (Mutant::NewBeatIsIgnored, "three: 2 delays, hint", REST),
        (Mutant::OldAnswerIsBelieved, "three: slow, flush", REST),
        (Mutant::OldAnswerIsBelieved, "retry: slow, leave, hint", REST),
        (Mutant::AnyBeatIsKnown, "three: flush, lost beat", REST),
        (Mutant::AnyBeatIsKnown, "three: delay, hint, beat, expiry", REST),
        (Mutant::SilentIsKnown, "three: 2 delays, hint", REST),
        (Mutant::FailoverIsNotNoticed, "three: failover, hint, doubt", REST),
        (Mutant::LostMoveIsNotNoticed, "retry: kill, hint, doubt", REST),
        (Mutant::PassedOverLosesPlace, "three: delay, hint, doubt", STEPS),
        (Mutant::LookIgnoresOffer, "three: nothing fails", STEPS),
        (Mutant::LapseCountsOldBeats, "crowd: kill", STEPS),
        (Mutant::LapserIsPresent, "three: only beats, doubt", REST),
        (Mutant::LapserIsNotTold, "retry: slow, delay, hint", REST),
        (Mutant::GrantTellsNobody, "passers: delay, hint, beat", REST),
        (Mutant::OfferIsNotDue, "three: failover, hint, doubt", REST),
        (Mutant::LeaverKeepsOffer, "three: leave, 2 doubts", VOIDED),
        (Mutant::ReleaseKeepsOffer, "three: leave, DELETE, doubt", FREED),
        (Mutant::LeaverLosesPlace, "retry: leave, hint, doubt", STEPS),
        (Mutant::NothingIsGivenBack, "retry: leave, hint, strict", STEPS),
        (Mutant::MovedHandsOffNothing, "retry: kill, hint, doubt", REST),
        (Mutant::MovedDoesNotLook, "retry: leave, hint, doubt", REST),
        (Mutant::OtherOfferIsIgnored, "three: 2 delays, hint", STEPS),
        (Mutant::PutBackIsLast, "three: flush, lost beat", STEPS),
        (Mutant::PutBackDisplaces, "retry: leave, expiry, doubt", STEPS),
        (Mutant::LeaverStaysNoted, "retry: leave, end, doubt", VOIDED),
        (Mutant::LastLookGivesNothingBack, "retry: leave, end, doubt", VOIDED),
        (Mutant::ReleaseKeepsPlace, "three: leave, DELETE, doubt", FREED),
        (Mutant::FreedIsForgotten, "three: leave, DELETE, doubt", FREED),
    ];
    for (mutant, scenario, property) in mutants {
        crate::is_missed(
            &format!("{scenario}, {mutant:?}"),
            Rules { mutant, ..rules_of(scenario) },
            property,
        );
    }
}

/// They are kept for other reasons, which are told above.
#[test]
fn what_is_belt_and_braces_is_not_missed() {
    let mutants = [
        (Mutant::LastLookVoidsNothing, "three: leave, end, doubt"),
        (Mutant::LastLookVoidsNothing, "retry: leave, end, doubt"),
        (Mutant::LastLookVoidsNothing, "made: failover, end, 2 doubts"),
        (Mutant::LookWithdrawsOffer, "three: delay, hint, doubt"),
        (Mutant::LookWithdrawsOffer, "three: delay, hint, beat, expiry"),
        (Mutant::PutBackIsAbsent, "neighbours: 2 delays, 2 hints, doubt"),
        (Mutant::PutBackIsAbsent, "three: 2 delays, hint"),
        (Mutant::TicketIsNotGranted, "passers: leave, end, expiry"),
        (Mutant::TicketIsNotGranted, "passers: delay, hint, beat"),
    ];
    for (mutant, scenario) in mutants {
        let checker = crate::search(Rules { mutant, ..rules_of(scenario) }, HasDiscoveries::AnyFailures);
        checker.assert_properties();
    }
}
