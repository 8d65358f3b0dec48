//! Many seeds, several at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::faults::{FAULTS, ON_THE_WAY};
use crate::holes;
use crate::machine;
use crate::one::Outcome;
use crate::settings::{Settings, Store};
use crate::shrink::shrink;

/// What a simulation does in `make simulate`.
const SECONDS: u64 = 60;
/// Those that are always played.
const FIXED_SEEDS: u64 = 4;

/// In which everything happens: a test holds the fixed ones of all stores to that.
const ENOUGH_SEEDS: u64 = FIXED_SEEDS * Store::ALL.len() as u64;
/// In which a hole is found.
const MOST_SEEDS: u64 = 40;

/// What clients do beyond taking and releasing, and how it ends.
const MORE: [&str; 25] = [
    "hold of a token that asked before",
    "hold lost",
    "hold ended",
    "hold handed over",
    "break",
    "slot taken",
    "slot renewed",
    "slot held otherwise",
    "lock of several full",
    "work begun",
    "work taken over",
    "work continued",
    "work superseded",
    "work given up",
    "result stored",
    "result told",
    "record broken",
    "record seen",
    "work busy",
    "work not begun",
    "work abandoned",
    "lease of work over",
    "token of work released",
    "fingerprint differs",
    "result differs",
];

#[derive(Default)]
struct Sum {
    seeds: u64,
    simulated: Duration,
    outcome: Outcome,
    failed: Vec<(Settings, Outcome)>,
}

impl Sum {
    fn add(&mut self, settings: &Settings, outcome: Outcome) {
        self.seeds += 1;
        self.simulated += settings.duration();
        self.outcome.operations += outcome.operations;
        self.outcome.played += outcome.played;
        self.outcome.judged += outcome.judged;
        for (what, count) in &outcome.counts {
            *self.outcome.counts.entry(what.clone()).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            self.failed.push((settings.clone(), outcome));
        }
    }

    fn print(&self) {
        let Outcome { operations, counts, played, judged, .. } = &self.outcome;
        let per_core = |time: Duration| self.simulated.as_secs_f64() / time.as_secs_f64();
        println!("{} seeds, {:?} simulated, {operations} operations judged", self.seeds, self.simulated);
        println!(
            "{:.0} simulated seconds per second of a core, {:.0} with the judge",
            per_core(*played),
            per_core(*played + *judged)
        );
        let done: Vec<_> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        println!("done: {}", done.join(", "));
    }

    /// What never happened, although it should.
    fn missing(&self) -> Vec<&'static str> {
        let happened = |what: &&'static str| self.outcome.counts.contains_key(*what);
        FAULTS
            .into_iter()
            .chain(machine::FAULTS)
            .chain(ON_THE_WAY)
            .chain(MORE)
            .filter(|what| !happened(what))
            .collect()
    }

    /// Whether all is well. If not, it says of the first seed how to play it again, and what little is needed.
    fn ends_well(&self) -> bool {
        let Some((settings, outcome)) = self.failed.first() else { return true };
        let (less, came_of_it) = shrink(settings.clone(), outcome.clone());
        println!("\nA promise was broken in {} of them, first so:\n{outcome}\n{settings}", self.failed.len());
        println!("\nThe least that was found in which it is broken too:\n{came_of_it}\n{less}");
        false
    }
}

/// Plays them, as many at once as there are cores, until they end or the time is over. A hole is looked for until it is found once.
fn play(all: impl Iterator<Item = Settings> + Send, until: Option<Instant>) -> Sum {
    let (all, sum) = (Mutex::new(all), Mutex::new(Sum::default()));
    let is_found = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !is_found.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
                    let Some(settings) = all.lock().unwrap().next() else { break };
                    let outcome = Outcome::of(&settings);
                    match (outcome.violations.is_empty(), &settings.hole) {
                        (true, _) => {}
                        (false, Some(_)) => is_found.store(true, Ordering::Relaxed),
                        (false, None) => println!("{outcome}\n{settings}"),
                    }
                    sum.lock().unwrap().add(&settings, outcome);
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

/// A test: what does not follow from the seed differs between two machines.
pub fn the_same_seed_has_the_same_history() {
    for store in Store::ALL {
        let settings = Settings::new(1, store, 10);
        let (here, elsewhere) = (Outcome::of(&settings), Outcome::elsewhere(&settings));
        assert_eq!((&here.hash, &here.counts), (&elsewhere.hash, &elsewhere.counts), "{settings}");
        assert_ne!(here.hash, Outcome::of(&Settings { seed: 2, ..settings }).hash, "another seed");
    }
}

/// A test: a few seeds, which are always the same.
pub fn promises_are_kept_under_every_fault() {
    let each = |store| (1..=FIXED_SEEDS).map(move |seed| Settings::new(seed, store, SECONDS));
    let sum = play(Store::ALL.into_iter().flat_map(each), None);
    sum.print();
    assert!(sum.ends_well(), "a promise was not kept");
    assert_eq!(sum.missing(), Vec::<&str>::new(), "never happened");
}

/// Fresh seeds beside the fixed ones, for so long.
pub fn simulate(time: Duration) -> bool {
    let until = Instant::now() + time;
    let first: u64 = rand::random_range(1_000_000..1_000_000_000_000);
    println!("{FIXED_SEEDS} fixed seeds, and fresh ones from {first} on");
    let seeds = (1..=FIXED_SEEDS).chain(first..);
    let all = seeds.flat_map(|seed| Store::ALL.map(|store| Settings::new(seed, store, SECONDS)));
    let sum = play(all, Some(until));
    sum.print();
    let missing = sum.missing();
    if !missing.is_empty() {
        println!("never happened: {missing:?}");
    }
    // On a busy machine there are few.
    sum.ends_well() && (missing.is_empty() || sum.seeds < ENOUGH_SEEDS)
}

/// Puts each hole back, and says after how many operations it is found. Returns whether all are.
pub fn find_all_holes() -> bool {
    let mut are_all_found = true;
    let of_scripts = holes::all().map(|(name, store, ..)| (name, store));
    let of_disks = machine::LIES.map(|(name, _)| (name, Store::File));
    // All of them, or those from this one on.
    let from = std::env::var("SIM_HOLES").unwrap_or_default();
    let is_before = |(name, _): &(&str, Store)| from != "1" && *name != from;
    for (name, store) in of_scripts.chain(of_disks).skip_while(is_before) {
        let seeds = (1..=MOST_SEEDS)
            .map(|seed| Settings { hole: Some(name.to_owned()), ..Settings::new(seed, store, SECONDS) });
        let sum = play(seeds, None);
        let found = sum.failed.first().and_then(|(_, outcome)| outcome.violations.first());
        let found = found.map_or("NOT FOUND", String::as_str).chars().take(100).collect::<String>();
        are_all_found &= !sum.failed.is_empty();
        println!("{} | {name} | {} | {found}", store.name(), sum.outcome.operations);
    }
    are_all_found
}
