//! The table of what was measured at many connections: medians over the rounds, with the least and the most.

use super::figures::spread;
use super::load::Turn;

/// Prints the head, as Markdown; all are compared with the one of this name.
pub fn print_head(reference: &str) {
    println!(
        "| target | requests/s, thousands | × {reference} | p50 µs | p99 µs | server CPU µs/request | Redis CPU µs/request | generator, cores | others, cores |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
}

/// Prints a line, where each turn is compared with that of the reference in the same round.
pub fn print_line<'a>(
    name: &str,
    turns: impl Iterator<Item = &'a Turn> + Clone,
    reference: impl Iterator<Item = &'a Turn>,
) {
    let of = |value: fn(&Turn) -> f64| spread(turns.clone().map(value).collect());
    // Within one round the machine was the same for both; between rounds it need not be.
    let ratios = turns.clone().zip(reference).map(|(turn, other)| turn.requests_per_s / other.requests_per_s);
    let of_some = |value: fn(&Turn) -> Option<f64>| {
        let values: Option<Vec<_>> = turns.clone().map(value).collect();
        values.map_or("–".to_owned(), |values| format!("{:.1}", spread(values)))
    };
    println!(
        "| {name} | {:.1} | {:.2} | {:.0} | {:.0} | {} | {} | {:.2} | {:.2} |",
        of(|turn| turn.requests_per_s / 1e3),
        spread(ratios.collect()),
        of(|turn| turn.p50_us),
        of(|turn| turn.p99_us),
        of_some(|turn| turn.server_cpu_us),
        of_some(|turn| turn.redis_cpu_us),
        of(|turn| turn.generator_cores),
        of(|turn| turn.others_cores),
    );
}
