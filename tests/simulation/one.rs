//! One seed, in this process or in another.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fmt, thread};

use kit::history::{check, summary};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::book::Closed;
use crate::settings::Settings;
use crate::world;

/// What the last line begins with that a simulation prints.
const OUTCOME: &str = "outcome: ";
/// Of the processor, at one moment of simulated time.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// How many violations are printed.
const MOST_PRINTED: usize = 10;

/// What came of one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub operations: usize,
    /// How often what was done.
    pub counts: BTreeMap<String, u64>,
    /// Of the history, to the byte.
    pub hash: String,
    /// Of the processor.
    pub played: Duration,
    pub judged: Duration,
}

/// Plays it in this process, which must have done nothing else. Returns whether all promises were kept.
pub fn play(settings: &Settings) -> bool {
    let violations = vec!["no time passes: something goes round in circles".to_owned()];
    let stuck = Outcome { violations, ..Outcome::default() };
    let line = format!("{OUTCOME}{}\n{stuck}\n{settings}", serde_json::to_string(&stuck).unwrap());
    system::end_if_time_stands_still_for(STUCK_AFTER, line);
    system::simulate(settings.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Closed { history, records, counts, violations } = runtime.unwrap().block_on(async {
        system::follow_tokio();
        world::play(settings.clone()).await
    });
    let played = system::processor_time();
    let json = serde_json::to_vec_pretty(&history).unwrap();
    let of_records = serde_json::to_vec_pretty(&records).unwrap();
    if let Ok(path) = env::var("SIM_HISTORY") {
        std::fs::write(Path::new(&path), &json).unwrap();
        std::fs::write(Path::new(&path).with_extension("records.json"), &of_records).unwrap();
    }
    println!("{}", summary(&history));
    let found = check(&history);
    let violations: Vec<_> = violations.into_iter().chain(found.iter().map(ToString::to_string)).collect();
    let outcome = Outcome {
        operations: history.operations.len() + records.len(),
        counts: counts.into_iter().map(|(what, count)| (what.to_owned(), count)).collect(),
        hash: Sha256::digest([json, of_records].concat()).iter().map(|byte| format!("{byte:02x}")).collect(),
        judged: system::processor_time() - played,
        played,
        violations,
    };
    println!("{OUTCOME}{}", serde_json::to_string(&outcome).unwrap());
    println!("{outcome}");
    println!("{settings}");
    outcome.violations.is_empty()
}

impl Outcome {
    /// Plays it in a process of its own.
    pub fn of(settings: &Settings) -> Self {
        Self::by(Command::new(env::current_exe().unwrap()), settings)
    }

    /// As [`Self::of`], where nothing is as it is here but the seed: as on another machine.
    pub fn elsewhere(settings: &Settings) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        // What is on the stack besides moves everything on it.
        let padding = "x".repeat(3_001);
        let environment = [("TZ", "Asia/Kathmandu"), ("LC_ALL", "tr_TR.UTF-8"), ("PADDING", &padding)];
        command.env_clear().envs(environment).current_dir("/");
        let play = || {
            system::stay_on_one_core();
            Self::by(command, settings)
        };
        thread::scope(|scope| scope.spawn(play).join().unwrap())
    }

    fn by(mut command: Command, settings: &Settings) -> Self {
        command.envs(settings.variables()).env_remove("SIM_HISTORY");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let outcome = said.lines().find_map(|line| line.strip_prefix(OUTCOME));
        match outcome {
            Some(outcome) => serde_json::from_str(outcome).unwrap(),
            None => {
                let violations = vec![format!("it ended early: {}", String::from_utf8_lossy(&output.stderr))];
                Self { violations, ..Self::default() }
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in self.violations.iter().take(MOST_PRINTED) {
            writeln!(f, "  {violation}")?;
        }
        write!(
            f,
            "{} operations, {} violations, {:.1?} to play and {:.1?} to judge",
            self.operations,
            self.violations.len(),
            self.played,
            self.judged
        )
    }
}
