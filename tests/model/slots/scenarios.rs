//! What is searched.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use super::promises::{BESIDE, COUNTED, FREED, HELD, IN_TURN, LEFT, NOT_IDLE, OWN_SLOT};
use super::rules::{Asker, Mutant, Rules};
use super::state::{Left, Token, Width};

/// Of those who read beside any number of others.
const ANY: Width = 9;

const fn tries(token: Token, width: Width) -> Asker {
    Asker { token, width, waits: false }
}

const fn waits(token: Token, width: Width) -> Asker {
    Asker { token, width, waits: true }
}

const fn rules(askers: &'static [Asker], ends: u8, timeouts: u8, leaves: u8) -> Rules {
    Rules {
        askers,
        may: Left { ends, timeouts, leaves },
        releases: &[0],
        most_offers: usize::MAX,
        kills: false,
        mutant: Mutant::None,
    }
}

const TRY_TWICE: Rules = rules(&[tries(0, 2), tries(0, 2), tries(1, 2), tries(2, 2)], 1, 1, 0);
const WAIT_TWICE: Rules =
    Rules { releases: &[1], ..rules(&[waits(0, 2), waits(0, 2), tries(1, 2), tries(2, 2)], 1, 0, 1) };
const WRITER_WAITS: Rules = rules(&[waits(0, ANY), waits(1, 1), waits(2, ANY)], 1, 0, 1);
const READERS_TRY: Rules = rules(&[tries(0, ANY), waits(1, 1), tries(2, ANY), tries(3, ANY)], 1, 0, 0);
const THREE_AND_TWO: Rules = rules(&[tries(0, 3), waits(1, 2), tries(2, 3), waits(3, 3)], 1, 0, 0);
const READERS_BEHIND: Rules =
    Rules { releases: &[0, 1], ..rules(&[tries(0, 1), waits(1, ANY), waits(2, ANY)], 2, 0, 1) };
const FEW_OFFERS: Rules = Rules { releases: &[0], most_offers: 1, ..READERS_BEHIND };
const LATE: Rules = Rules { releases: &[0, 1], ..rules(&[tries(0, 2), tries(0, 2), tries(1, 2)], 2, 2, 1) };
const FIVE: Rules = rules(&[tries(0, 2), tries(1, 2), waits(2, 2), waits(3, 2), tries(4, 2)], 2, 0, 0);
const LATE_WAITING: Rules =
    Rules { releases: &[0, 1], ..rules(&[waits(0, 2), waits(0, 2), waits(1, 2)], 2, 1, 1) };
const BOTH_RETRY: Rules =
    Rules { releases: &[0, 1], ..rules(&[waits(0, ANY), tries(0, ANY), waits(1, 1)], 1, 2, 1) };
const WRITER_DIES: Rules =
    Rules { kills: true, ..rules(&[tries(0, ANY), waits(1, 1), waits(1, 1), waits(2, ANY)], 1, 0, 2) };
const MIXED: Rules = rules(&[tries(0, 1), waits(0, 1), waits(1, 2), waits(2, ANY)], 1, 1, 1);
// With another width when a token asks again.
const TRIES_WITH_LESS: Rules = rules(&[tries(0, 1), waits(1, ANY), waits(2, ANY), tries(2, 1)], 1, 0, 1);
const WAITS_WITH_LESS: Rules = rules(&[tries(0, 1), waits(1, ANY), waits(2, ANY), waits(2, 1)], 0, 0, 1);
const WAITS_WITH_MORE: Rules = rules(&[tries(0, 1), waits(1, ANY), waits(2, 1), waits(2, ANY)], 0, 0, 1);
const MORE_BEHIND_TWO: Rules = rules(&[tries(0, 2), tries(1, 2), waits(2, 2), waits(2, ANY)], 1, 1, 1);

const SCENARIOS: &[(&str, Rules)] = &[
    ("two slots, three who do not wait, one asks again", TRY_TWICE),
    ("two slots, one asks again and waits", WAIT_TWICE),
    ("readers, and a writer that waits", WRITER_WAITS),
    ("readers that do not wait, and a writer that does", READERS_TRY),
    ("different numbers: 3, 2, 3 and 3", THREE_AND_TWO),
    ("a writer leaves, and two readers come, one offer at a time", FEW_OFFERS),
    ("a writer leaves, and two readers come", READERS_BEHIND),
    ("a lone token, and all is late", LATE),
    ("two slots, two who wait, and one who does not", FIVE),
    ("two slots, all wait, and all is late", LATE_WAITING),
    ("a reader and a writer ask again", BOTH_RETRY),
    ("the gateway of a writer is killed before a reader", WRITER_DIES),
    ("a writer, slots and a reader", MIXED),
    ("one asks for less, and does not wait", TRIES_WITH_LESS),
    ("one asks for less, and waits", WAITS_WITH_LESS),
    ("one asks for more, and waits", WAITS_WITH_MORE),
    ("one of two slots asks for more", MORE_BEHIND_TWO),
];

/// Fewer would mean that something is not searched.
const LEAST_STATES: usize = 500_000;

#[test]
fn slots_keep_their_promises() {
    let mut states = 0;
    for (name, rules) in SCENARIOS {
        let begun = Instant::now();
        let checker = crate::search(*rules, HasDiscoveries::AnyFailures);
        println!("{name}: {} states in {:.1?}", checker.unique_state_count(), begun.elapsed());
        assert!(checker.is_done());
        checker.assert_properties();
        states += checker.unique_state_count();
    }
    assert!(states >= LEAST_STATES, "{states} states");
}

#[test]
fn each_rule_of_slots_is_missed_when_it_is_left_out() {
    let mutants = [
        (Mutant::OwnEntryIsIgnored, TRY_TWICE, HELD),
        (Mutant::OwnWidthAlone, THREE_AND_TWO, COUNTED),
        (Mutant::OffersDoNotCount, FIVE, COUNTED),
        (Mutant::NewcomerOvertakes, READERS_TRY, IN_TURN),
        (Mutant::WhoFitsOvertakes, WRITER_WAITS, IN_TURN),
        (Mutant::OneOffer, READERS_BEHIND, NOT_IDLE),
        (Mutant::GrantHandsOffNothing, FEW_OFFERS, NOT_IDLE),
        (Mutant::RefusalHandsOffNothing, WAIT_TWICE, NOT_IDLE),
        (Mutant::NobodyLooksEachSecond, WRITER_DIES, NOT_IDLE),
        (Mutant::NothingIsDue, WRITER_WAITS, NOT_IDLE),
        (Mutant::WhatIsOverStays, TRY_TWICE, HELD),
        (Mutant::TakeBackIgnoresAttempt, LATE, HELD),
        (Mutant::RepetitionDoesNotPin, LATE, HELD),
        (Mutant::TakeBackVoidsNothing, LATE, LEFT),
        (Mutant::ReleaseLeavesNoMark, LATE, FREED),
        (Mutant::OfferIsTakenByAnyWidth, TRIES_WITH_LESS, BESIDE),
        (Mutant::FewerIsToldAsHeld, TRIES_WITH_LESS, BESIDE),
        (Mutant::SlotIsCounted, FIVE, OWN_SLOT),
    ];
    for (mutant, rules, property) in mutants {
        crate::is_missed(&format!("{mutant:?}"), Rules { mutant, ..rules }, property);
    }
}
