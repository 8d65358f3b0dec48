//! The table: medians over the rounds, with the least and the most.

use crate::figures::spread;
use crate::load::Turn;
use crate::servers::Server;

/// Prints one line for each server, as Markdown. The first server is the one that the others are compared with.
pub fn print(servers: &[Server], turns: &[Vec<Turn>]) {
    println!(
        "| target | requests/s, thousands | × no-op | p50 µs | p99 µs | server CPU µs/request | Redis CPU µs/request | generator, cores | others, cores |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (server, rounds) in servers.iter().zip(turns) {
        let of = |value: fn(&Turn) -> f64| spread(rounds.iter().map(value).collect());
        // Within one round the machine was the same for both; between rounds it need not be.
        let ratios =
            rounds.iter().zip(&turns[0]).map(|(turn, noop)| turn.requests_per_s / noop.requests_per_s);
        let redis_us: Option<Vec<_>> = rounds.iter().map(|turn| turn.redis_cpu_us).collect();
        println!(
            "| {} | {:.1} | {:.2} | {:.0} | {:.0} | {:.1} | {} | {:.2} | {:.2} |",
            server.name,
            of(|turn| turn.requests_per_s / 1e3),
            spread(ratios.collect()),
            of(|turn| turn.p50_us),
            of(|turn| turn.p99_us),
            of(|turn| turn.server_cpu_us),
            redis_us.map_or("–".to_owned(), |us| format!("{:.1}", spread(us))),
            of(|turn| turn.generator_cores),
            of(|turn| turn.others_cores),
        );
    }
}
