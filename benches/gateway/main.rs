//! Acquire and release at 64 keep-alive connections, measured in turns against a handler that does nothing.
//!
//! The figures of one machine at one moment say little, so every round measures each server once, and what counts is
//! the ratio to the no-op handler within the same round.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::process::ExitCode;
use std::time::Duration;

#[path = "../shared/connection.rs"]
mod connection;
#[path = "../shared/cpu.rs"]
mod cpu;
#[path = "../shared/figures.rs"]
mod figures;
#[path = "../shared/load.rs"]
mod load;
mod noop;
mod report;
#[path = "../shared/servers.rs"]
mod servers;
#[path = "../shared/table.rs"]
mod table;

use load::Turn;
use servers::Server;

/// How often and how long each server is measured.
struct Plan {
    rounds: usize,
    warm_up: Duration,
    measured: Duration,
}

const MEASUREMENT: Plan =
    Plan { rounds: 5, warm_up: Duration::from_millis(300), measured: Duration::from_secs(2) };
/// Just enough to see that everything still works together.
const TRIAL: Plan =
    Plan { rounds: 1, warm_up: Duration::from_millis(20), measured: Duration::from_millis(100) };

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [noop::ARGUMENT, address] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        noop::serve(address.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    // `cargo bench` passes this. `cargo test --all-targets` does not, and should not take a minute longer.
    let plan = if args.iter().any(|arg| arg == "--bench") { MEASUREMENT } else { TRIAL };
    measure(&plan)
}

// One thread, so that the generator can never take more than one core from the servers.
#[tokio::main(flavor = "current_thread")]
async fn measure(plan: &Plan) -> ExitCode {
    // The no-op handler stands first: the others are compared with it.
    let servers = [
        noop::server(),
        Server::on_redis("Redis"),
        Server::embedded("memory", "memory:"),
        Server::embedded("file, durable", "file:locks.redb"),
    ];
    let mut turns: Vec<Vec<Turn>> = servers.iter().map(|_| Vec::new()).collect();
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        for (server, turns) in servers.iter().zip(&mut turns) {
            turns.push(load::run(server, round, plan.warm_up, plan.measured).await);
        }
    }
    report::print(&servers, &turns);
    explain_mismatches(&servers, &turns)
}

/// Fast but wrong is no result: one reply that does not fit its request fails the whole run.
fn explain_mismatches(servers: &[Server], turns: &[Vec<Turn>]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (server, turns) in servers.iter().zip(turns) {
        let mismatches: Vec<_> = turns.iter().flat_map(|turn| &turn.mismatches).collect();
        if let Some(first) = mismatches.first() {
            eprintln!("{}: {} mismatches, the first: {first}", server.name, mismatches.len());
            eprintln!("its log: {}", server.log());
            code = ExitCode::FAILURE;
        }
    }
    code
}
