//! What is searched.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use super::promises::{CERTAIN, EXCLUSION, FREED, LEFT, ONE_NUMBER, ORDER, REPAIRED_BELOW, UNIQUE, ZOMBIE};
use super::{Asked, Kind, Mutant, Rules, search};

const fn asked(kind: Kind, token: u8) -> Asked {
    Asked {
        kind,
        token,
        epoch: 1,
        is_misled: false,
        numbers: &[1],
        proposals: 1,
        attempts: 1,
        yields: false,
        voids: false,
    }
}

const A: Asked = asked(Kind::Put, 0);
const A_BY_TWO: Asked = Asked { numbers: &[2], ..A };
const A_BY_ANY: Asked = Asked { numbers: &[1, 2], ..A };
const A_YIELDS: Asked = Asked { yields: true, proposals: 2, ..A };
const A_VOIDS: Asked = Asked { voids: true, proposals: 2, attempts: 2, ..A };
const A_LEAVES: Asked = Asked { voids: true, ..A };
const DELETE_A: Asked = asked(Kind::Delete, 0);
const PATCH_A: Asked = asked(Kind::Patch, 0);
const B: Asked = asked(Kind::Put, 1);
const B_BY_TWO: Asked = Asked { numbers: &[2], ..B };
const B_BY_ANY: Asked = Asked { numbers: &[1, 2], ..B };
const B_AGAIN: Asked = Asked { proposals: 2, ..B };

const SMALL: Rules = Rules {
    requests: &[A, B],
    holds_at_first: None,
    waits: true,
    leases_end: true,
    repeats: 0,
    restarts: 0,
    flushes: false,
    bumps: 0,
    changes_members: false,
    mutant: Mutant::None,
};
const RAISED: Rules = Rules { requests: &[Asked { proposals: 2, ..A }, B_AGAIN], ..SMALL };
const SPLIT: Rules = Rules { requests: &[A_YIELDS, B_AGAIN], waits: false, leases_end: false, ..SMALL };
const SPLIT_BOTH: Rules =
    Rules { requests: &[A_YIELDS, Asked { yields: true, ..B }], waits: false, leases_end: false, ..SMALL };
const VOIDED: Rules = Rules { requests: &[A_VOIDS, B_BY_ANY], leases_end: false, ..SMALL };
const REPEATED: Rules = Rules { requests: &[A, A_BY_ANY, B_BY_TWO], ..SMALL };
const THREE_TIMES: Rules = Rules { requests: &[A, A_BY_TWO, A_BY_ANY], ..SMALL };
const REPEATED_SPLIT: Rules =
    Rules { requests: &[Asked { yields: true, ..A }, Asked { yields: true, ..A_BY_ANY }], ..SMALL };
const REPEATED_VOIDED: Rules = Rules { requests: &[A_LEAVES, A, B_BY_TWO], leases_end: false, ..SMALL };
const RELEASED: Rules = Rules { requests: &[Asked { yields: true, ..A }, DELETE_A, A], ..SMALL };
const RELEASED_TO: Rules = Rules { requests: &[A, DELETE_A, B_BY_ANY], ..SMALL };
const RENEWED: Rules = Rules { requests: &[A, PATCH_A, PATCH_A, B_BY_TWO], holds_at_first: Some(1), ..SMALL };
const RENEWED_REPEATED: Rules =
    Rules { requests: &[A, PATCH_A, A_BY_TWO, Asked { numbers: &[3], ..B }], ..RENEWED };
const RENEWED_RELEASED: Rules = Rules { requests: &[A, PATCH_A, DELETE_A, B_BY_TWO], ..RENEWED };
const BUMPED: Rules = Rules { requests: &[A, PATCH_A], bumps: 2, ..RENEWED };
const RESTARTED: Rules = Rules { requests: &[A_BY_ANY, B_BY_ANY], restarts: 1, ..SMALL };
const FLUSHED: Rules = Rules { flushes: true, ..RESTARTED };
const CHANGED: Rules =
    Rules { requests: &[A_BY_ANY, Asked { epoch: 2, ..B_BY_ANY }], changes_members: true, ..SMALL };
const MISLED: Rules = Rules { requests: &[A, Asked { is_misled: true, ..B_BY_ANY }], ..SMALL };

const ALL: &[(&str, Rules)] = &[
    ("raised", RAISED),
    ("split", SPLIT),
    ("split, both", SPLIT_BOTH),
    ("voided", VOIDED),
    ("repeated", REPEATED),
    ("three times", THREE_TIMES),
    ("repeated, split", REPEATED_SPLIT),
    ("repeated, voided", REPEATED_VOIDED),
    ("released", RELEASED),
    ("released to another", RELEASED_TO),
    ("renewed", RENEWED),
    ("renewed, repeated", RENEWED_REPEATED),
    ("renewed, released", RENEWED_RELEASED),
    ("renewed beside others", BUMPED),
    ("restarted", RESTARTED),
    ("flushed", FLUSHED),
    ("changed", CHANGED),
    ("misled", MISLED),
];

#[test]
fn the_quorum_keeps_its_promises() {
    for (name, rules) in ALL {
        let begun = Instant::now();
        let checker = search(*rules, HasDiscoveries::AnyFailures);
        println!("{name}: {} states in {:.1?}", checker.unique_state_count(), begun.elapsed());
        assert!(checker.is_done());
        checker.assert_properties();
    }
}

#[test]
fn each_rule_of_the_quorum_is_missed_when_it_is_left_out() {
    let mutants = [
        (Mutant::AcceptsTheSame, RAISED, UNIQUE),
        (Mutant::DifferentNumbersAddUp, RAISED, UNIQUE),
        (Mutant::DifferentNumbersAddUp, RAISED, EXCLUSION),
        (Mutant::YieldDoesNotBurn, SPLIT, CERTAIN),
        (Mutant::YieldIgnoresNumber, SPLIT, EXCLUSION),
        (Mutant::RefusalIsCertain, SPLIT_BOTH, CERTAIN),
        (Mutant::TakeBackDoesNotVoid, VOIDED, LEFT),
        (Mutant::SupersededMayStillPin, VOIDED, LEFT),
        (Mutant::AnyTakenBackIsUndone, REPEATED_VOIDED, CERTAIN),
        (Mutant::TakeBackIgnoresAttempt, REPEATED_VOIDED, EXCLUSION),
        (Mutant::YieldIgnoresThePin, REPEATED_SPLIT, CERTAIN),
        (Mutant::ReleaseMarksOnlySuccess, RELEASED, FREED),
        (Mutant::RecreatesBlindly, RENEWED, ZOMBIE),
        (Mutant::RepairHasNoDeadline, RENEWED, ZOMBIE),
        (Mutant::RepairIgnoresTheMark, RENEWED_RELEASED, FREED),
        (Mutant::RepairOverwritesLarger, RENEWED_REPEATED, EXCLUSION),
        (Mutant::RepairOverwritesLarger, RENEWED_REPEATED, ZOMBIE),
        (Mutant::NoQuarantine, RESTARTED, UNIQUE),
        (Mutant::NoQuarantine, RESTARTED, EXCLUSION),
        (Mutant::RecordOfAnotherProcess, RESTARTED, UNIQUE),
        (Mutant::RestoredAtRestart, RESTARTED, UNIQUE),
        (Mutant::RestoredAtRestart, RESTARTED, ORDER),
        (Mutant::FromItsClockAlone, RESTARTED, UNIQUE),
        (Mutant::FromItsClockAlone, RESTARTED, ORDER),
        (Mutant::OneNodeByTwoNames, MISLED, EXCLUSION),
        (Mutant::EpochIsNotChecked, CHANGED, EXCLUSION),
        (Mutant::AddedWithoutQuarantine, CHANGED, EXCLUSION),
        (Mutant::QuarantineBegunBefore, CHANGED, EXCLUSION),
        (Mutant::CountsTheFirstThatStored, CHANGED, EXCLUSION),
        (Mutant::RepetitionOverwrites, REPEATED, ONE_NUMBER),
        (Mutant::RepetitionDoesNotPin, REPEATED_VOIDED, EXCLUSION),
        (Mutant::DifferentOwnAddUp, THREE_TIMES, ONE_NUMBER),
    ];
    for (mutant, rules, property) in mutants {
        let checker = search(Rules { mutant, ..rules }, HasDiscoveries::AnyOf(BTreeSet::from([property])));
        let Some(trace) = checker.discovery(property) else {
            panic!("{mutant:?}: it is not missed that {property}")
        };
        println!("{mutant:?}: {} states, {:?}", checker.unique_state_count(), trace.into_actions());
    }
}

#[test]
fn a_repair_that_minds_the_fence_is_refused_beside_newer_locks() {
    let checker =
        search(Rules { mutant: Mutant::RepairNeedsTheFence, ..BUMPED }, HasDiscoveries::AnyFailures);
    assert!(checker.is_done() && checker.discovery(REPAIRED_BELOW).is_none());
}
