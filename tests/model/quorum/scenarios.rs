//! What is searched.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use super::promises::{
    CERTAIN, DENIED, EXCLUSION, FREED, LEFT, ONE_NUMBER, ORDER, REPAIRED_BELOW, UNIQUE, ZOMBIE,
};
use super::{Asked, Kind, Mutant, Rules, Stale};

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

const A_THRICE: Asked = Asked { proposals: 3, ..A };
const A_RAISES: Asked = Asked { proposals: 2, ..A };
const B_RAISES: Asked = Asked { proposals: 2, ..B };
const B_YIELDS: Asked = Asked { yields: true, proposals: 2, ..B };
const C_BY_TWO: Asked = Asked { token: 2, ..B_BY_TWO };
const PATCH_BY_LATTER: Asked = Asked { epoch: 2, ..PATCH_A };
const B_OF_LATTER: Asked = Asked { epoch: 2, ..B_BY_TWO };

const SMALL: Rules = Rules {
    requests: &[A, B],
    holds_at_first: None,
    waits: true,
    leases_end: true,
    repeats: 0,
    restarts: 0,
    keeps: false,
    stale: Stale::Never,
    flushes: false,
    bumps: 0,
    changes_members: false,
    outlives: false,
    mutant: Mutant::None,
};
const RAISED: Rules = Rules { requests: &[Asked { proposals: 2, ..A }, B_AGAIN], ..SMALL };
const SPLIT: Rules = Rules { requests: &[A_YIELDS, B_AGAIN], waits: false, leases_end: false, ..SMALL };
const SPLIT_BOTH: Rules = Rules {
    requests: &[A_YIELDS, Asked { yields: true, ..B_BY_TWO }],
    waits: false,
    leases_end: false,
    ..SMALL
};
const VOIDED: Rules = Rules { requests: &[A_VOIDS, B_BY_ANY], leases_end: false, ..SMALL };
const VOIDED_TO: Rules = Rules { requests: &[A_VOIDS, Asked { numbers: &[3], ..B }], ..VOIDED };
const REPEATED: Rules = Rules { requests: &[A, A_BY_ANY, B_BY_TWO], ..SMALL };
const THREE_TIMES: Rules = Rules { requests: &[A, A_BY_TWO, A_BY_ANY], leases_end: false, ..SMALL };
const REPEATED_SPLIT: Rules =
    Rules { requests: &[Asked { yields: true, ..A }, Asked { yields: true, ..A_BY_ANY }], ..SMALL };
const REPEATED_VOIDED: Rules = Rules { requests: &[A_LEAVES, A, B_BY_TWO], leases_end: false, ..SMALL };
const RELEASED: Rules =
    Rules { requests: &[Asked { yields: true, ..A }, DELETE_A, A], leases_end: false, ..SMALL };
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
const CHANGED_AND_RESTARTED: Rules = Rules {
    requests: &[A_BY_TWO, Asked { epoch: 2, numbers: &[1, 3], ..B }],
    restarts: 1,
    leases_end: false,
    ..CHANGED
};
const SURE: Rules =
    Rules { requests: &[A, PATCH_A, PATCH_A], holds_at_first: Some(1), restarts: 1, keeps: true, ..SMALL };
/// One node at a time comes back with what was kept, and that may be old.
const OLD_FILE: Rules = Rules {
    requests: &[A, B_BY_TWO],
    restarts: 2,
    keeps: true,
    stale: Stale::SwitchedOff,
    leases_end: false,
    ..SMALL
};
const OLDER_FILE: Rules = Rules { stale: Stale::RunsWithout, ..OLD_FILE };
const FOLLOWED: Rules = Rules { restarts: 1, stale: Stale::FollowsAnother, ..OLD_FILE };
const FOLLOWED_ITS_COPY: Rules = Rules { stale: Stale::FollowsItsCopy, ..OLD_FILE };
const OUTLIVED: Rules = Rules {
    requests: &[A, PATCH_A, PATCH_A],
    holds_at_first: Some(1),
    restarts: 1,
    leases_end: false,
    outlives: true,
    ..SMALL
};
const REPEATED_IN_A_SPLIT: Rules =
    Rules { requests: &[A_YIELDS, A_BY_TWO], waits: false, leases_end: false, ..SMALL };
const MISLED: Rules = Rules { requests: &[A, Asked { is_misled: true, ..B_BY_ANY }], ..SMALL };

const SHORT: &[(&str, Rules)] = &[
    ("raised", RAISED),
    ("split", SPLIT),
    ("split, both", SPLIT_BOTH),
    ("voided", VOIDED),
    ("voided, and granted to another", VOIDED_TO),
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
    ("changed and restarted", CHANGED_AND_RESTARTED),
    ("sure", SURE),
    ("switched its file off", OLD_FILE),
    ("ran without its file", OLDER_FILE),
    ("followed another", FOLLOWED),
    ("followed its copy", FOLLOWED_ITS_COPY),
    ("outlived", OUTLIVED),
    ("repeated in a split", REPEATED_IN_A_SPLIT),
    ("misled", MISLED),
];

/// With larger bounds: minutes, and gigabytes.
const LONG: &[(&str, Rules)] = &[
    ("raised three times", Rules { requests: &[A_THRICE, Asked { proposals: 3, ..B }], ..SMALL }),
    ("split twice", Rules { requests: &[A_YIELDS, B_YIELDS], waits: false, leases_end: false, ..SMALL }),
    ("split, and leases end", Rules { leases_end: true, ..SPLIT }),
    ("split with doubled commands", Rules { repeats: 1, ..SPLIT }),
    ("split among three", Rules { requests: &[A_YIELDS, B, C_BY_TWO], leases_end: false, ..SMALL }),
    ("voided, and leases end", Rules { leases_end: true, ..VOIDED }),
    ("voided with doubled commands", Rules { repeats: 1, requests: &[A_VOIDS, B], ..VOIDED }),
    ("repeated, voided, and leases end", Rules { leases_end: true, ..REPEATED_VOIDED }),
    ("repeated, both voided", Rules { requests: &[A_VOIDS, A_LEAVES], leases_end: false, ..SMALL }),
    (
        "repeated, voided and split",
        Rules { requests: &[A_LEAVES, A_YIELDS, B_BY_TWO], leases_end: false, ..SMALL },
    ),
    (
        "released, repeated",
        Rules { requests: &[A_LEAVES, DELETE_A, A, B_BY_TWO], leases_end: false, ..SMALL },
    ),
    ("released with doubled commands", Rules { repeats: 1, ..RELEASED }),
    ("renewed with doubled commands", Rules { repeats: 1, ..RENEWED }),
    ("renewed, repeated with doubled commands", Rules { repeats: 1, ..RENEWED_REPEATED }),
    ("renewed, released, repeated", Rules { requests: &[A, PATCH_A, DELETE_A, A_BY_TWO], ..RENEWED }),
    ("renewed and restarted", Rules { restarts: 1, ..RENEWED }),
    ("restarted twice in turn", Rules { requests: &[A, PATCH_A, PATCH_A, PATCH_A], restarts: 2, ..OUTLIVED }),
    (
        "switched its file off, and leases end",
        Rules { leases_end: true, requests: &[A_BY_ANY, B_BY_ANY], ..OLD_FILE },
    ),
    ("flushed, and raised", Rules { requests: &[A_RAISES, B_RAISES], ..FLUSHED }),
    ("changed, and restarted while leases end", Rules { leases_end: true, ..CHANGED_AND_RESTARTED }),
    (
        "changed, and renewed",
        Rules { requests: &[A, PATCH_A, PATCH_BY_LATTER, B_OF_LATTER], holds_at_first: Some(1), ..CHANGED },
    ),
];

#[test]
fn the_quorum_keeps_its_promises() {
    let bounds = if crate::is_long() { LONG } else { SHORT };
    for (name, rules) in bounds {
        let begun = Instant::now();
        let checker = crate::search(*rules, HasDiscoveries::AnyFailures);
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
        (Mutant::TakenBackIsProposedAgain, VOIDED_TO, EXCLUSION),
        (Mutant::AnyTakenBackIsUndone, REPEATED_VOIDED, CERTAIN),
        (Mutant::TakeBackIgnoresAttempt, REPEATED_VOIDED, EXCLUSION),
        (Mutant::YieldIgnoresThePin, REPEATED_SPLIT, CERTAIN),
        (Mutant::ReleaseMarksOnlySuccess, RELEASED, FREED),
        (Mutant::RecreatesBlindly, RENEWED, ZOMBIE),
        (Mutant::RepairHasNoDeadline, RENEWED, ZOMBIE),
        (Mutant::RepairIgnoresTheMark, RENEWED_RELEASED, FREED),
        (Mutant::RepairReplacesAtAnyTime, RENEWED_REPEATED, EXCLUSION),
        (Mutant::RepairReplacesAtAnyTime, RENEWED_REPEATED, ZOMBIE),
        (Mutant::NoQuarantine, RESTARTED, UNIQUE),
        (Mutant::NoQuarantine, RESTARTED, EXCLUSION),
        (Mutant::RecordOfAnotherProcess, RESTARTED, UNIQUE),
        (Mutant::DurableIsBelieved, OLD_FILE, EXCLUSION),
        (Mutant::DurableIsBelieved, OLDER_FILE, EXCLUSION),
        (Mutant::DurableIsBelieved, FOLLOWED, EXCLUSION),
        (Mutant::ProcessIsBelieved, FOLLOWED_ITS_COPY, EXCLUSION),
        (Mutant::RestoredAtRestart, RESTARTED, UNIQUE),
        (Mutant::RestoredAtRestart, RESTARTED, ORDER),
        (Mutant::FromItsClockAlone, RESTARTED, UNIQUE),
        (Mutant::FromItsClockAlone, RESTARTED, ORDER),
        (Mutant::OneNodeByTwoNames, MISLED, EXCLUSION),
        (Mutant::EpochIsNotChecked, CHANGED, EXCLUSION),
        (Mutant::AddedWithoutQuarantine, CHANGED, EXCLUSION),
        (Mutant::QuarantineBegunBefore, CHANGED, EXCLUSION),
        (Mutant::CountsTheFirstThatStored, CHANGED, EXCLUSION),
        (Mutant::FormerListTakesIn, CHANGED_AND_RESTARTED, EXCLUSION),
        (Mutant::SettlesWithoutFloor, CHANGED_AND_RESTARTED, ORDER),
        (Mutant::OutHoldsNothing, SURE, DENIED),
        (Mutant::YieldIgnoresAnOlderPin, REPEATED_IN_A_SPLIT, CERTAIN),
        (Mutant::RepetitionOverwrites, REPEATED, ONE_NUMBER),
        (Mutant::RepetitionDoesNotPin, REPEATED_VOIDED, EXCLUSION),
        (Mutant::DifferentOwnAddUp, THREE_TIMES, ONE_NUMBER),
    ];
    for (mutant, rules, property) in mutants {
        crate::is_missed(&format!("{mutant:?}"), Rules { mutant, ..rules }, property);
    }
}

#[test]
fn a_repair_that_minds_the_fence_is_refused_beside_newer_locks() {
    let rules = Rules { mutant: Mutant::RepairNeedsTheFence, ..BUMPED };
    let checker = crate::search(rules, HasDiscoveries::AnyFailures);
    assert!(checker.is_done() && checker.discovery(REPAIRED_BELOW).is_none());
}
