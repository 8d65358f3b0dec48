//! Less and less of a simulation in which a promise is broken, for as long as it stays broken.

use std::time::{Duration, Instant};

use crate::faults::{FAULTS, ON_THE_WAY};
use crate::machine;
use crate::one::Outcome;
use crate::settings::Settings;

/// The time that a person waits for it.
const LONGEST: Duration = Duration::from_secs(60);
/// They are not counted when they happen.
const NOT_COUNTED: [&str; 2] = ["hint lost", "clocks differ"];

/// The smallest that was found in which the same promise is broken, and what came of it.
pub fn shrink(settings: Settings, outcome: Outcome) -> (Settings, Outcome) {
    let promise = outcome.violations[0].split(':').next().unwrap_or_default().to_owned();
    let give_up = Instant::now() + LONGEST;
    let mut best = (settings, outcome);
    let mut is_smaller = true;
    while is_smaller {
        is_smaller = false;
        for smaller in smaller_than(&best.0) {
            if Instant::now() > give_up {
                return best;
            }
            let outcome = Outcome::of(&smaller);
            if outcome.violations.iter().any(|violation| violation.starts_with(&promise)) {
                best = (smaller, outcome);
                is_smaller = true;
                break;
            }
        }
    }
    best
}

fn smaller_than(settings: &Settings) -> Vec<Settings> {
    let mut smaller = Vec::new();
    for part in [2, 4] {
        let seconds = settings.seconds - settings.seconds.div_ceil(part);
        if (1..settings.seconds).contains(&seconds) {
            smaller.push(Settings { seconds, ..settings.clone() });
        }
        let clients = settings.clients - settings.clients.div_ceil(part);
        if (1..settings.clients).contains(&clients) {
            smaller.push(Settings { clients, ..settings.clone() });
        }
    }
    for fault in FAULTS
        .into_iter()
        .chain(machine::FAULTS)
        .chain(ON_THE_WAY)
        .chain(NOT_COUNTED)
        .filter(|fault| settings.has(fault))
    {
        let mut without = settings.without.clone();
        without.push(fault.to_owned());
        smaller.push(Settings { without, ..settings.clone() });
    }
    smaller
}
