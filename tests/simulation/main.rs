//! Whole fleets in one process, in simulated time. Each seed is a process of its own, which this program starts: so nothing is
//! left of another, and the same seed comes to the same history, byte for byte. `docs/internals/simulation.md` says more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod book;
mod clients;
mod faults;
mod gateways;
mod holes;
mod many;
mod one;
mod settings;
mod shrink;
mod watchman;
mod world;

use std::time::Duration;

use settings::Settings;

fn main() {
    let is_well = match (Settings::from_environment(), std::env::var("SIM_FOR")) {
        (Some(settings), _) => one::play(&settings),
        (None, Ok(seconds)) => {
            many::simulate(Duration::from_secs(seconds.parse().expect("SIM_FOR is in seconds")))
        }
        (None, Err(_)) if std::env::var_os("SIM_HOLES").is_some() => many::find_all_holes(),
        (None, Err(_)) => {
            many::the_same_seed_has_the_same_history();
            many::promises_are_kept_under_every_fault();
            true
        }
    };
    if !is_well {
        std::process::exit(1);
    }
}
