//! The table, and whether the goals were reached.

use crate::shared::figures::{percentile, spread};
use crate::unrelated::Latency;

/// A hand-off takes less than this, half of the times.
const GOAL_HAND_OFF_MS: f64 = 2.0;
/// By how much it takes longer to hand a slot on, half of the times.
const GOAL_SLOT_RATIO: f64 = 1.2;
/// By how much a crowd may lengthen the p99 of an unrelated client.
const GOAL_RATIO: f64 = 1.3;

/// A client that waits has the result of another within this, half of the times: at the worker's gateway, and at another.
const GOAL_WOKEN_MS: f64 = 1.0;
const GOAL_WOKEN_ELSEWHERE_MS: f64 = 5.0;
/// By how much 1,000 results of 64 KiB a second may lengthen the p99 of a client that takes locks.
const GOAL_RATIO_BESIDE_STORES: f64 = 1.5;

/// Rounds in which other processes used more of a core than this do not count.
const MOST_OTHERS_CORES: f64 = 0.25;
/// Where fewer count than this, all are shown, and nothing is said about goals.
const FEWEST_ROUNDS: usize = 3;

/// What was measured on one store.
pub struct Findings {
    pub store: &'static str,
    pub rounds: Vec<Round>,
}

#[derive(Default)]
pub struct Round {
    pub hand_offs_ns: Vec<u64>,
    /// The same of a slot of a lock that others hold, too.
    pub slots_ns: Vec<u64>,
    pub polled_ns: Vec<u64>,
    /// The unrelated client, where one waits and where many do.
    pub with_few: Latency,
    pub with_many: Latency,
    /// How many cores all other processes of the machine used.
    pub others_cores: f64,
}

/// What was measured of records on one store.
pub struct RecordFindings {
    pub store: &'static str,
    pub rounds: Vec<RecordRound>,
}

#[derive(Default)]
pub struct RecordRound {
    /// From the worker's `POST` until the result was read at the same gateway, and at another, where there is one.
    pub same_ns: Vec<u64>,
    pub other_ns: Vec<u64>,
    /// A client that takes locks, without large results, and beside so many of them.
    pub alone: Latency,
    pub beside: Latency,
    pub stores_per_s: f64,
    pub others_cores: f64,
}

/// Whether the machine did little else in a round.
pub fn is_undisturbed(others_cores: f64) -> bool {
    others_cores <= MOST_OTHERS_CORES
}

impl Findings {
    pub fn undisturbed(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| is_undisturbed(round.others_cores))
    }

    fn can_be_judged(&self) -> bool {
        self.undisturbed().count() >= FEWEST_ROUNDS
    }

    fn counted(&self) -> Vec<&Round> {
        if self.can_be_judged() { self.undisturbed().collect() } else { self.rounds.iter().collect() }
    }
}

/// Prints one line for each store, as Markdown, and then the goals.
pub fn print(crowd: usize, all: &[Findings]) {
    println!(
        "| store | hand-off p50 ms | p99 ms | of a slot p50 ms | p99 ms | polling p50 ms | p99 ms | unrelated p50 µs | p99 µs, 1 waits | p99 µs, {crowd} wait | ratio of p99 | rounds | others, cores |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut goals = Vec::new();
    for findings in all {
        let rounds = findings.counted();
        let times_ms = |times_ns: fn(&Round) -> &Vec<u64>| {
            let mut sorted_ns: Vec<u64> = rounds.iter().flat_map(|round| times_ns(round)).copied().collect();
            sorted_ns.sort_unstable();
            [50, 99].map(|percent| percentile(&sorted_ns, percent) / 1e6)
        };
        let (line, polled) = (times_ms(|round| &round.hand_offs_ns), times_ms(|round| &round.polled_ns));
        let slot = times_ms(|round| &round.slots_ns);
        let of = |value: fn(&Round) -> f64| spread(rounds.iter().map(|round| value(round)).collect());
        // Within one round the machine was the same for both; between rounds it need not be.
        let ratio = of(|round| round.with_many.p99_us / round.with_few.p99_us);
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} | {:.2} | {} of {} | {:.2} |",
            findings.store,
            line[0],
            line[1],
            slot[0],
            slot[1],
            polled[0],
            polled[1],
            of(|round| round.with_few.p50_us),
            of(|round| round.with_few.p99_us),
            of(|round| round.with_many.p99_us),
            ratio,
            rounds.len(),
            findings.rounds.len(),
            of(|round| round.others_cores),
        );
        let goal = |what: &str, value: f64, goal: f64| {
            judged(findings.can_be_judged(), findings.store, what, value, goal)
        };
        goals.push(goal("hand-off p50 in ms", line[0], GOAL_HAND_OFF_MS));
        goals.push(goal("hand-off p50 of a slot, times as long", slot[0] / line[0], GOAL_SLOT_RATIO));
        goals.push(goal("ratio of the p99 of an unrelated client", ratio.median, GOAL_RATIO));
    }
    println!();
    for goal in goals {
        println!("{goal}");
    }
}

/// The same of records.
pub fn print_records(all: &[RecordFindings]) {
    println!(
        "\n| store | woken p50 ms | p99 ms | at another gateway p50 ms | p99 ms | locks p99 µs | p99 µs, beside results | ratio of p99 | results/s | rounds | others, cores |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut goals = Vec::new();
    for RecordFindings { store, rounds: all_rounds } in all {
        let undisturbed = || all_rounds.iter().filter(|round| is_undisturbed(round.others_cores));
        let can_be_judged = undisturbed().count() >= FEWEST_ROUNDS;
        let rounds: Vec<_> =
            if can_be_judged { undisturbed().collect() } else { all_rounds.iter().collect() };
        let times_ms = |times_ns: fn(&RecordRound) -> &Vec<u64>| {
            let mut sorted_ns: Vec<u64> = rounds.iter().flat_map(|round| times_ns(round)).copied().collect();
            sorted_ns.sort_unstable();
            [50, 99].map(|percent| percentile(&sorted_ns, percent) / 1e6)
        };
        let (same, other) = (times_ms(|round| &round.same_ns), times_ms(|round| &round.other_ns));
        let of = |value: fn(&RecordRound) -> f64| spread(rounds.iter().map(|round| value(round)).collect());
        let ratio = of(|round| round.beside.p99_us / round.alone.p99_us);
        let elsewhere = other.map(|ms| if ms.is_nan() { "–".to_owned() } else { format!("{ms:.2}") });
        println!(
            "| {store} | {:.2} | {:.2} | {} | {} | {:.0} | {:.0} | {ratio:.2} | {:.0} | {} of {} | {:.2} |",
            same[0],
            same[1],
            elsewhere[0],
            elsewhere[1],
            of(|round| round.alone.p99_us),
            of(|round| round.beside.p99_us),
            of(|round| round.stores_per_s),
            rounds.len(),
            all_rounds.len(),
            of(|round| round.others_cores),
        );
        let mut goal = |what: &str, value: f64, goal: f64| {
            goals.push(judged(can_be_judged, store, what, value, goal));
        };
        goal("result to one who waits, p50 in ms", same[0], GOAL_WOKEN_MS);
        if !other[0].is_nan() {
            goal("the same at another gateway", other[0], GOAL_WOKEN_ELSEWHERE_MS);
        }
        goal("ratio of the p99 of locks beside results", ratio.median, GOAL_RATIO_BESIDE_STORES);
    }
    println!();
    for goal in goals {
        println!("{goal}");
    }
}

fn judged(can_be_judged: bool, store: &str, what: &str, value: f64, goal: f64) -> String {
    let verdict = match value < goal {
        _ if !can_be_judged => "THE MACHINE IS BUSY WITH SOMETHING ELSE",
        true => "PASS",
        false => "FAIL",
    };
    format!("{verdict}: {store}: {what} {value:.2}, the goal is below {goal:.1}")
}
