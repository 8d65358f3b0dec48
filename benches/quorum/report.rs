//! The table: medians over the rounds, with the least and the most; and what a node that stands still costs.

use crate::figures::{Spread, spread};
use crate::load::Turn;

/// By how much a node that stands still may lengthen the p99.
const GOAL_RATIO: f64 = 2.0;

/// What was measured in one round.
pub struct Round {
    pub single: Turn,
    pub undisturbed: Turn,
    pub stalled: Turn,
}

/// Prints one line for each of the three, as Markdown, and then whether the goal was reached.
pub fn print(rounds: &[Round]) {
    println!(
        "| target | requests/s, thousands | × Redis | p50 µs | p99 µs | server CPU µs/request | Redis CPU µs/request | generator, cores | others, cores |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    line("Redis", rounds, |round| &round.single);
    line("quorum of 5", rounds, |round| &round.undisturbed);
    line("quorum of 5, one stands still", rounds, |round| &round.stalled);
    let p99 = of(rounds, |round| round.stalled.p99_us / round.undisturbed.p99_us);
    let verdict = if p99.median <= GOAL_RATIO { "PASS" } else { "FAIL" };
    println!(
        "\np99 with one node that stands still, × undisturbed: {p99:.2}, at most {GOAL_RATIO}: {verdict}"
    );
}

fn line(name: &str, rounds: &[Round], turn: fn(&Round) -> &Turn) {
    let all: Option<Vec<_>> = rounds.iter().map(|round| turn(round).redis_cpu_us).collect();
    println!(
        "| {name} | {:.1} | {:.2} | {:.0} | {:.0} | {:.1} | {} | {:.2} | {:.2} |",
        of(rounds, |round| turn(round).requests_per_s / 1e3),
        of(rounds, |round| turn(round).requests_per_s / round.single.requests_per_s),
        of(rounds, |round| turn(round).p50_us),
        of(rounds, |round| turn(round).p99_us),
        of(rounds, |round| turn(round).server_cpu_us),
        all.map_or("–".to_owned(), |us| format!("{:.1}", spread(us))),
        of(rounds, |round| turn(round).generator_cores),
        of(rounds, |round| turn(round).others_cores),
    );
}

fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Spread {
    spread(rounds.iter().map(value).collect())
}
