//! What waiting in line costs: the time from one holder to the next, beside that of clients which ask every 50 ms; and
//! what a crowd that waits means for a client that has nothing to do with it.
//!
//! Everything is measured in small turns, one after the other and round after round, so that a machine that is slow for
//! a while is slow for all that is compared. Then the same of records: the time from storing a result until who waits for it
//! has it, and what large results mean for a client that only wants locks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

mod crowd;
mod hand_off;
mod records;
mod report;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "not every measurement needs everything")]
mod shared;
mod stores;
mod unrelated;
mod woken;

use crowd::Crowd;
use hand_off::{EXCLUSIVE, Pair, SLOT};
use report::{Findings, Round};
use shared::cpu::Cpu;
use shared::servers::Server;

/// How much is measured on each store.
struct Plan {
    /// Rounds that count: those in which the machine did little else.
    rounds: usize,
    /// Rounds in all, at most.
    most_rounds: usize,
    /// From one holder to the next, in each round.
    hand_offs: usize,
    polled_hand_offs: usize,
    /// From a result that is stored to one who waits for it, at each gateway.
    woken: usize,
    /// How many wait where many do. On the server beside it one waits.
    crowd: usize,
    /// How long the unrelated client is measured in each round, with few waiters and with many.
    measured: Duration,
}

const MEASUREMENT: Plan = Plan {
    rounds: 10,
    most_rounds: 12,
    hand_offs: 50,
    polled_hand_offs: 12,
    woken: 15,
    crowd: 1_000,
    measured: Duration::from_millis(400),
};
/// Just enough to see that everything still works together.
const TRIAL: Plan = Plan {
    rounds: 1,
    most_rounds: 1,
    hand_offs: 3,
    polled_hand_offs: 1,
    woken: 1,
    crowd: 20,
    measured: Duration::from_millis(50),
};

type Start = fn() -> Server;

fn main() -> ExitCode {
    // `cargo bench` passes this. `cargo test --all-targets` does not, and should not take a minute longer.
    let has = |wanted: &str| std::env::args().any(|arg| arg == wanted);
    let plan = if has("--bench") { MEASUREMENT } else { TRIAL };
    measure(&plan, has("records"))
}

// One thread, so that the generator can never take more than one core from the servers.
#[tokio::main(flavor = "current_thread")]
async fn measure(plan: &Plan, only_records: bool) -> ExitCode {
    let stores: &[Start] = &[
        || Server::on_redis("Redis"),
        || Server::embedded("memory", "memory:"),
        || Server::embedded("file, durable", "file:locks.redb"),
    ];
    let mut all = Vec::new();
    // What is left out is not printed either.
    for start in if only_records { &[] } else { stores } {
        let (quiet, crowded) = (start(), start());
        eprintln!("{}", quiet.name);
        match of_store(plan, &quiet, &crowded).await {
            Ok(findings) => all.push(findings),
            Err(mismatch) => {
                // Fast but wrong is no result.
                eprintln!("{}: {mismatch}", quiet.name);
                eprintln!("the logs: {}{}", quiet.log(), crowded.log());
                return ExitCode::FAILURE;
            }
        }
    }
    if !only_records {
        report::print(plan.crowd, &all);
    }
    eprintln!("records");
    let of_records =
        async { Ok::<_, String>([records::on_redis(plan).await?, records::in_memory(plan).await?]) };
    match of_records.await {
        Ok(findings) => report::print_records(&findings),
        Err(mismatch) => {
            eprintln!("{mismatch}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Measures one store: two servers of their own, at one of which a crowd waits.
async fn of_store(plan: &Plan, quiet: &Server, crowded: &Server) -> Result<Findings, String> {
    let few = Crowd::gather(quiet.address, 1).await?;
    let many = Crowd::gather(crowded.address, plan.crowd).await?;
    let mut pair = Pair::open(quiet.address, &EXCLUSIVE).await?;
    let mut slot = Pair::open(quiet.address, &SLOT).await?;
    let mut findings = Findings { store: quiet.name, rounds: Vec::new() };
    for number in 1..=plan.most_rounds {
        let (before, started) = (Cpu::read(&[quiet, crowded]), Instant::now());
        let mut round = Round::default();
        for _ in 0..plan.hand_offs {
            round.hand_offs_ns.push(pair.hand_off_in_line().await?);
            round.slots_ns.push(slot.hand_off_in_line().await?);
        }
        for _ in 0..plan.polled_hand_offs {
            round.polled_ns.push(pair.hand_off_by_polling().await?);
        }
        // Each goes first in every other round: what the machine does at the turn of a round falls to both.
        let measure = async |server: &Server| unrelated::measure(server.address, number, plan.measured).await;
        if number % 2 == 0 {
            round.with_few = measure(quiet).await?;
            round.with_many = measure(crowded).await?;
        } else {
            round.with_many = measure(crowded).await?;
            round.with_few = measure(quiet).await?;
        }
        let others = Cpu::read(&[quiet, crowded]).since(&before).others();
        round.others_cores = others.as_secs_f64() / started.elapsed().as_secs_f64();
        findings.rounds.push(round);
        if findings.undisturbed().count() >= plan.rounds {
            break;
        }
    }
    // Those who did not wait all the time were no crowd.
    few.still_waits().await?;
    many.still_waits().await?;
    Ok(findings)
}
