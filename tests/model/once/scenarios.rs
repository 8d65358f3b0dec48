//! What is searched.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use super::promises::{
    BLOCKED, BROKEN_RIGHT, DENIED, EARLIER, FORBIDDEN, KEPT, LARGER, LAST_GRANT, LEFT, LOST_PLACE,
    ONE_RESULT, OWN_NUMBER, REPLAY, SAME_TOKEN, STRANGER, SUPERSEDED,
};
use super::rules::{Mutant, Rules, Worker};
use super::state::Token;

const fn worker(token: Token) -> Worker {
    Worker {
        token,
        is_made: false,
        print: None,
        takes_over: true,
        says_number: false,
        begins: 1,
        posts: 1,
        gives_up: 0,
        renews: 0,
    }
}

const A: Worker = worker(0);
const B: Worker = worker(1);
const C: Worker = worker(2);

const fn rules(workers: &'static [Worker]) -> Rules {
    Rules { workers, repeats: 0, ends: 0, losses: 0, breaks: 0, marks_run_out: false, mutant: Mutant::None }
}

const POSTED: Rules = Rules {
    repeats: 1,
    ends: 1,
    ..rules(&[Worker { posts: 2, gives_up: 1, renews: 1, ..A }, Worker { gives_up: 1, ..B }])
};
const REPEATED: Rules = Rules { repeats: 1, ends: 1, ..rules(&[Worker { begins: 2, renews: 1, ..A }, B]) };
const GIVEN_UP: Rules =
    Rules { repeats: 1, ..rules(&[Worker { begins: 2, gives_up: 1, ..A }, Worker { gives_up: 1, ..B }]) };
const THREE: Rules =
    Rules { repeats: 1, ..rules(&[Worker { gives_up: 1, ..A }, Worker { gives_up: 1, ..B }, C]) };
const THREE_END: Rules = Rules { ends: 1, ..rules(&[Worker { gives_up: 1, ..A }, B, C]) };
const LOST: Rules = Rules {
    losses: 1,
    repeats: 1,
    ..rules(&[Worker { begins: 2, posts: 2, ..A }, Worker { renews: 1, ..B }])
};
const BROKEN: Rules = Rules { breaks: 1, repeats: 1, ..rules(&[Worker { begins: 2, ..A }, B]) };
/// Two runs of one token, and another worker.
const TWO_RUNS: Rules = Rules {
    repeats: 1,
    ..rules(&[
        Worker { says_number: true, renews: 1, ..A },
        Worker { says_number: true, gives_up: 1, ..A },
        B,
    ])
};
const MARKED: Rules =
    Rules { repeats: 1, marks_run_out: true, ..rules(&[Worker { gives_up: 1, ..A }, A, B]) };
const STRANGERS: Rules = Rules {
    ends: 1,
    ..rules(&[Worker { print: Some(1), gives_up: 1, ..A }, B, Worker { print: Some(2), ..C }])
};
const FORBIDDING: Rules =
    rules(&[Worker { takes_over: false, gives_up: 1, ..A }, Worker { takes_over: false, begins: 2, ..B }, C]);
const MADE: Rules = Rules {
    repeats: 1,
    ends: 1,
    ..rules(&[Worker { is_made: true, begins: 2, gives_up: 1, ..A }, Worker { gives_up: 1, ..B }])
};

const SHORT: &[(&str, Rules)] = &[
    ("posts that are late or lost", POSTED),
    ("repeated begins", REPEATED),
    ("given up", GIVEN_UP),
    ("three workers", THREE),
    ("three workers, a record ends", THREE_END),
    ("all data is lost", LOST),
    ("broken", BROKEN),
    ("two runs of one token, and another", TWO_RUNS),
    ("marks run out, three runs", MARKED),
    ("three fingerprints", STRANGERS),
    ("three workers, takeover=false", FORBIDDING),
    ("server-made tokens", MADE),
];

/// With larger bounds: minutes, and gigabytes.
const LONG: &[(&str, Rules)] = &[
    ("posts that are late or lost, with more copies", Rules { repeats: 3, ends: 2, ..POSTED }),
    (
        "both repeat and give up",
        rules(&[Worker { begins: 2, gives_up: 1, ..A }, Worker { begins: 2, gives_up: 1, ..B }]),
    ),
    (
        "three workers, one repeats",
        Rules { ends: 1, ..rules(&[Worker { begins: 2, gives_up: 1, ..A }, B, C]) },
    ),
    ("three workers that give up", Rules { repeats: 2, ends: 1, ..THREE }),
    ("data is lost twice", Rules { losses: 2, ..LOST }),
    ("broken twice", Rules { breaks: 2, repeats: 1, ..rules(&[Worker { begins: 2, posts: 2, ..A }, B]) }),
    ("broken among three", Rules { breaks: 1, repeats: 1, ..THREE_END }),
    ("two runs of one token, with more copies", Rules { repeats: 3, ends: 1, ..TWO_RUNS }),
    ("marks run out, and a record ends", Rules { ends: 1, repeats: 2, ..MARKED }),
    ("three fingerprints with copies", Rules { repeats: 2, ..STRANGERS }),
    ("three fingerprints, broken", Rules { breaks: 1, ..STRANGERS }),
    ("three workers, takeover=false with copies", Rules { repeats: 1, ..FORBIDDING }),
    ("three workers, takeover=false, broken", Rules { breaks: 1, ..FORBIDDING }),
];

#[test]
fn records_with_results_keep_their_promises() {
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
fn each_rule_of_records_is_missed_when_it_is_left_out() {
    let mutants = [
        (Mutant::AnyTokenStores, POSTED, LAST_GRANT),
        (Mutant::SecondPostReplaces, POSTED, ONE_RESULT),
        (Mutant::PostCreates, POSTED, LAST_GRANT),
        (Mutant::TakeBackIgnoresAttempt, REPEATED, KEPT),
        (Mutant::RepetitionDoesNotPin, REPEATED, KEPT),
        (Mutant::GivingUpLeavesNoMark, GIVEN_UP, SAME_TOKEN),
        (Mutant::TakeBackVoidsNothing, REPEATED, LEFT),
        (Mutant::RenewalRevives, POSTED, BLOCKED),
        (Mutant::LeaverForgetsEarlier, THREE, EARLIER),
        (Mutant::LeaverThrowsOut, POSTED, LOST_PLACE),
        (Mutant::FormerIsNotGivenUp, POSTED, LAST_GRANT),
        (Mutant::GivingUpIsClean, POSTED, EARLIER),
        (Mutant::LeaseEndForgets, POSTED, EARLIER),
        (Mutant::KeepIsShort, POSTED, DENIED),
        (Mutant::KeepCountsFromBeginning, POSTED, DENIED),
        (Mutant::TakeOverShortensMemory, THREE_END, EARLIER),
        (Mutant::GivingUpShortensMemory, THREE_END, EARLIER),
        (Mutant::TakeBackShortensMemory, THREE_END, EARLIER),
        (Mutant::BreakForgets, BROKEN, EARLIER),
        (Mutant::BreakIgnoresNumber, BROKEN, BROKEN_RIGHT),
        (Mutant::NobodySupersedes, POSTED, SUPERSEDED),
        (Mutant::PostIgnoresNumber, TWO_RUNS, LAST_GRANT),
        (Mutant::RenewalIgnoresNumber, TWO_RUNS, OWN_NUMBER),
        (Mutant::OwnLapsedRunsOn, TWO_RUNS, BLOCKED),
        (Mutant::OwnRunIsNotCounted, TWO_RUNS, EARLIER),
        (Mutant::RecordCountsNumbers, GIVEN_UP, LARGER),
        (Mutant::NobodyIsTakenOver, FORBIDDING, FORBIDDEN),
        (Mutant::MissingPrintMatches, STRANGERS, STRANGER),
        (Mutant::TakeOverChangesPrint, STRANGERS, STRANGER),
        (Mutant::ResultBeforePrint, STRANGERS, STRANGER),
        (Mutant::ReleasedBeforeResult, POSTED, REPLAY),
        (Mutant::BusyBeforeReleased, GIVEN_UP, SAME_TOKEN),
        (Mutant::BusyBeforeOwn, REPEATED, SAME_TOKEN),
        (Mutant::ServerMadeBegins, MADE, SAME_TOKEN),
        (Mutant::MarksRunOutEarly, MARKED, SAME_TOKEN),
    ];
    for (mutant, rules, property) in mutants {
        crate::is_missed(&format!("{mutant:?}"), Rules { mutant, ..rules }, property);
    }
}
