//! Acquire and release at 64 keep-alive connections on a quorum of five nodes, beside a single Redis; and on the same
//! quorum while one of its nodes stands still.
//!
//! Every round measures each of the three once, and what counts are ratios within the same round.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::process::{Command, ExitCode};
use std::time::Duration;

mod report;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "not every measurement needs everything")]
mod shared;

use report::Round;
use shared::load::{self, Load, Turn};
use shared::servers::Server;
use shared::workload::Workload;
use tokio::time::sleep;

const NODES: usize = 5;

/// How often and how long each is measured.
struct Plan {
    rounds: usize,
    warm_up: Duration,
    measured: Duration,
}

/// Time for a node that stood still to do what it was sent meanwhile.
const RECOVERY: Duration = Duration::from_secs(1);

const MEASUREMENT: Plan =
    Plan { rounds: 7, warm_up: Duration::from_millis(300), measured: Duration::from_secs(2) };
/// Just enough to see that everything still works together.
const TRIAL: Plan =
    Plan { rounds: 1, warm_up: Duration::from_millis(20), measured: Duration::from_millis(100) };

fn main() -> ExitCode {
    // `cargo bench` passes this. `cargo test --all-targets` does not, and should not take a minute longer.
    let plan = if std::env::args().any(|arg| arg == "--bench") { MEASUREMENT } else { TRIAL };
    measure(&plan)
}

// One thread, so that the generator can never take more than one core from the servers.
#[tokio::main(flavor = "current_thread")]
async fn measure(plan: &Plan) -> ExitCode {
    let single = Server::on_redis("Redis");
    let quorum = Server::on_quorum("quorum of 5", NODES);
    let mut rounds = Vec::new();
    for number in 1..=plan.rounds {
        eprintln!("round {number} of {}", plan.rounds);
        // No key is used twice: a lock may be left on a node that stood still.
        let measure = async |server: &Server, turn: usize| {
            let Plan { warm_up, measured, .. } = *plan;
            let load = Load { workload: Workload::Pairs, connections: 64, warm_up, measured };
            load::run(server, 3 * number + turn, &load).await
        };
        let single = measure(&single, 0).await;
        let undisturbed = measure(&quorum, 1).await;
        let node = quorum.redis_pids().nth(number % NODES).unwrap();
        signal(node, "STOP");
        let stalled = measure(&quorum, 2).await;
        signal(node, "CONT");
        sleep(RECOVERY).await;
        rounds.push(Round { single, undisturbed, stalled });
    }
    report::print(&rounds);
    explain_mismatches(&[&single, &quorum], &rounds)
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Fast but wrong is no result: one reply that does not fit its request fails the whole run.
fn explain_mismatches(servers: &[&Server], rounds: &[Round]) -> ExitCode {
    let turns = rounds.iter().flat_map(|round| [&round.single, &round.undisturbed, &round.stalled]);
    let mismatches: Vec<_> = turns.flat_map(|turn: &Turn| &turn.mismatches).collect();
    let Some(first) = mismatches.first() else { return ExitCode::SUCCESS };
    eprintln!("{} mismatches, the first: {first}", mismatches.len());
    for server in servers {
        eprintln!("the log of {}: {}", server.name, server.log());
    }
    ExitCode::FAILURE
}
