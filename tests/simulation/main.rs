//! Whole fleets in one process, in simulated time. Each seed is a process of its own, which this program starts: so nothing is
//! left of another, and the same seed comes to the same history, byte for byte. The README beside this says more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod alike;
mod book;
mod clients;
mod failover;
mod faults;
mod gateways;
mod holes;
mod line;
mod machine;
mod many;
mod once;
mod one;
mod resharding;
mod settings;
mod shrink;
mod tap;
mod watchman;
mod world;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use settings::Settings;

fn main() {
    if let Ok(what) = std::env::var(alike::VARIABLE) {
        std::process::exit(i32::from(!alike::play(&what)));
    }
    let is_well = match (Settings::from_environment(), std::env::var("SIM_FOR")) {
        (Some(settings), _) => one::play(&settings),
        (None, Ok(seconds)) => {
            many::simulate(Duration::from_secs(seconds.parse().expect("SIM_FOR is in seconds")))
        }
        (None, Err(_)) if std::env::var_os("SIM_HOLES").is_some() => many::find_all_holes(),
        (None, Err(_)) => run_the_tests(),
    };
    if !is_well {
        std::process::exit(1);
    }
}

/// As the tests of other programs: they are listed, and chosen by their names.
fn run_the_tests() -> bool {
    let test = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut tests = vec![
        test("the_same_seed_has_the_same_history", many::the_same_seed_has_the_same_history),
        test("each_hole_stands_in_a_script", holes::each_stands_in_a_script),
        test("a_watchman_counts_no_storm", watchman::a_watchman_counts_no_storm),
        test("who_asks_for_several_has_a_place_in_line", line::who_asks_for_several_has_a_place_in_line),
        test("six_stores_answer_alike", alike::six_stores_answer_alike),
        test("promises_are_kept_under_every_fault", many::promises_are_kept_under_every_fault),
    ];
    tests.extend(once::TESTS_OF_THE_JUDGE.map(|(name, of_it)| test(name, of_it)));
    !libtest_mimic::run(&Arguments::from_args(), tests).has_failed()
}
