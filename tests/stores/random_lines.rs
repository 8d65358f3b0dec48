//! Ten thousand random runs of a line on each store, or as many as a busy machine plays in time. People wait, hang up, let
//! leases expire, release, come back and come twice, while hints are lost, commands are lost or late, connections are cut,
//! lines are forgotten and gateways are killed. Every run ends with the key free, the line empty, and no two holders at once.
//!
//! A run is one lock and the few who want it (`plan.rs`), drawn from the seed and the number of the run, and so is
//! what befalls its commands and hints (`faults.rs`); only what befalls whole gateways is drawn for a round of runs.
//! `TEST_SEED=… TEST_RUN=… cargo test random_lines` has a hundred copies of one run played again, at the same time:
//! what the threads of a machine make of it is not the same every time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::random_lines::faults::Faults;
use crate::random_lines::fleet::Base;
use crate::random_lines::round::Round;
use kit::{RedisServer, seed};

mod faults;
mod fleet;
mod people;
mod plan;
mod round;
mod verdict;
mod wire;

// What is checked stands in `verdict.rs`, run by run, and at the end of `round.rs`, for what is left.

const PREFIX: &str = "fencepost";
const MARK_TTL: Duration = Duration::from_secs(120);
/// Short, so that a run sees the end of places without clients.
const TICKET_TTL: Duration = Duration::from_secs(1);

const RUNS_PER_ROUND: u64 = 2_000;
const COPIES: usize = 100;
/// Of the runs that went wrong.
const SHOWN: usize = 5;

/// The rounds, which go on beside each other.
const ROUNDS: [(&str, Faults); 5] = [
    ("calm", FAIR),
    ("bad hints", Faults { hint_is_lost: 0.6, hint_is_late: 0.2, ..FAIR }),
    (
        "losses",
        Faults {
            hint_is_lost: 0.1,
            command_is_bad: 0.1,
            command_is_slow: 0.1,
            cuts: true,
            forgets: true,
            ..FAIR
        },
    ),
    ("kills", Faults { hint_is_lost: 0.1, hint_is_late: 0.1, kills: true, ..FAIR }),
    (
        "everything",
        Faults {
            hint_is_lost: 0.3,
            hint_is_late: 0.2,
            command_is_bad: 0.06,
            command_is_slow: 0.06,
            kills: true,
            cuts: true,
            forgets: true,
        },
    ),
];
const FAIR: Faults = Faults {
    hint_is_lost: 0.0,
    hint_is_late: 0.0,
    command_is_bad: 0.0,
    command_is_slow: 0.0,
    kills: false,
    cuts: false,
    forgets: false,
};

#[tokio::test(flavor = "multi_thread")]
async fn random_runs_end_with_free_keys_and_empty_lines_redis() {
    let mut servers = Vec::new();
    for _ in ROUNDS {
        servers.push(Arc::new(RedisServer::start().await));
    }
    run_all(|round, _| Base::Redis(servers[round].clone())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_runs_end_with_free_keys_and_empty_lines_embedded() {
    let directory = tempfile::tempdir().unwrap();
    run_all(|round, faults| match faults.kills {
        true => Base::File(directory.path().join(format!("{round}.redb"))),
        false => Base::Memory,
    })
    .await;
}

async fn run_all(base: impl Fn(usize, Faults) -> Base) {
    let seed = seed();
    let only: Option<u64> = std::env::var("TEST_RUN").ok().map(|number| number.parse().unwrap());
    let rounds = ROUNDS.into_iter().enumerate();
    let rounds = rounds.map(|(round, (name, faults))| {
        let numbers = round as u64 * RUNS_PER_ROUND..(round as u64 + 1) * RUNS_PER_ROUND;
        let numbers: Vec<u64> = match only {
            Some(run) if numbers.contains(&run) => vec![run; COPIES],
            Some(_) => Vec::new(),
            None => numbers.collect(),
        };
        tokio::spawn(Round::new(name, seed, faults, base(round, faults)).play(numbers))
    });
    let wrong: Vec<_> = join_all(rounds).await.into_iter().flat_map(Result::unwrap).collect();
    for (number, tape, what) in wrong.iter().take(SHOWN) {
        println!("TEST_SEED={seed} TEST_RUN={number}: {what}\n{}", tape.join("\n"));
    }
    assert!(wrong.is_empty(), "{} runs went wrong, TEST_SEED={seed}", wrong.len());
}
