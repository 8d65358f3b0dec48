//! What was measured, as a table; and what a node that stands still costs.

use crate::shared::figures::spread;
use crate::shared::load::Turn;
use crate::shared::table;

/// By how much a node that stands still may lengthen the p99.
const GOAL_RATIO: f64 = 2.0;

/// What was measured in one round.
pub struct Round {
    pub single: Turn,
    pub undisturbed: Turn,
    pub stalled: Turn,
}

/// Prints one line for each of the three, and then whether the goal was reached.
pub fn print(rounds: &[Round]) {
    table::print_head("Redis");
    let line = |name, turn: fn(&Round) -> &Turn| {
        table::print_line(name, rounds.iter().map(turn), rounds.iter().map(|round| &round.single));
    };
    line("Redis", |round| &round.single);
    line("quorum of 5", |round| &round.undisturbed);
    line("quorum of 5, one stands still", |round| &round.stalled);
    let ratios = rounds.iter().map(|round| round.stalled.p99_us / round.undisturbed.p99_us);
    let p99 = spread(ratios.collect());
    let verdict = if p99.median <= GOAL_RATIO { "PASS" } else { "FAIL" };
    println!(
        "\np99 with one node that stands still, × undisturbed: {p99:.2}, at most {GOAL_RATIO}: {verdict}"
    );
}
