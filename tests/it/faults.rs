//! Random faults under load, on each store, and the judge's verdict on it.
//!
//! The seed decides which faults come when and what each client does next; `TEST_SEED` makes a run begin with the
//! same one again. The history of a run that failed is saved, and `TEST_HISTORY` has it judged again (`judge.rs`).

use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::faults::clients::Visitor;
use crate::faults::cluster::ClusterRig;
use crate::faults::rig::{EmbeddedRig, RedisRig, Rig};
use crate::faults::states::RefusingRig;
use crate::support::history::{Answer, History, Witness, check};
use crate::support::seed;

mod clients;
mod cluster;
mod rig;
mod states;

const A_MINUTE: Duration = Duration::from_secs(60);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 8;
/// Runs beside each other, each with a seed of its own.
const RUNS: u64 = 3;
/// Time for requests that are under way to end, when nothing fails any more.
const SETTLING: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_random_faults_breaks_no_promise_embedded() {
    run_all("embedded", RUNS, A_MINUTE, EmbeddedRig::start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_random_faults_breaks_no_promise_redis() {
    run_all("redis", RUNS, A_MINUTE, RedisRig::start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_of_a_redis_that_refuses_break_no_promise() {
    run_all("refusing", RUNS, HALF_A_MINUTE, RefusingRig::start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_of_a_cluster_that_changes_break_no_promise() {
    run_all("cluster", 1, HALF_A_MINUTE, ClusterRig::start).await;
}

async fn run_all<R: Rig>(store: &'static str, count: u64, length: Duration, start: impl AsyncFn() -> R) {
    let seed = seed();
    let mut runs = Vec::new();
    for number in 0..count {
        runs.push(run(start().await, length, seed.wrapping_add(number)));
    }
    let histories = futures_util::future::join_all(runs).await;
    let mut is_right = true;
    for (number, history) in histories.into_iter().enumerate() {
        let violations = check(&history);
        println!("{store} {number}: {}", summary(&history));
        if violations.is_empty() {
            continue;
        }
        is_right = false;
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{store}-{seed}-{number}.json"));
        history.save(&file);
        println!("{store} {number}: {} violations; TEST_HISTORY={}", violations.len(), file.display());
        for violation in violations.iter().take(10) {
            println!("  {violation}");
        }
    }
    assert!(is_right, "promises were broken on {store}, TEST_SEED={seed}");
}

async fn run<R: Rig>(mut rig: R, length: Duration, seed: u64) -> History {
    let witness = Witness::default();
    let mut random = StdRng::seed_from_u64(seed);
    let end = Instant::now() + length;
    let resources = clients::resources();
    let visitors: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let random = StdRng::seed_from_u64(random.random());
            let visitor = Visitor::new(rig.doors(), witness.clone(), resources.clone(), random);
            tokio::spawn(visitor.work_until(end))
        })
        .collect();
    while Instant::now() < end {
        rig.fail(&mut random, &witness).await;
        // Between two faults things come right again, more or less.
        tokio::time::sleep(Duration::from_millis(random.random_range(50..800))).await;
    }
    for visitor in visitors {
        visitor.await.unwrap();
    }
    rig.heal().await;
    tokio::time::sleep(SETTLING).await;
    witness.is_quiet();
    let client = rig.safe_door();
    for wait in [Duration::from_millis(1_100), Duration::from_millis(clients::LONGEST_TTL_MS)] {
        tokio::time::sleep(wait).await;
        clients::look_at_all(&client, &witness).await;
    }
    let mut history = witness.history();
    history.learn_from_log(&rig.logs());
    assert_it_was_worth_it(&history);
    history
}

/// A run in which hardly anything happened would prove nothing.
fn assert_it_was_worth_it(history: &History) {
    let count = |is_such: fn(&Answer) -> bool| {
        history.operations.iter().filter(|operation| is_such(&operation.answer)).count()
    };
    assert!(count(|answer| matches!(answer, Answer::Granted { .. })) > 100, "{}", summary(history));
    let is_fault =
        |answer: &Answer| matches!(answer, Answer::Lost { .. } | Answer::NotDone | Answer::Unknown);
    assert!(count(is_fault) > 40, "{}", summary(history));
    assert!(history.updates.len() > 30, "{}", summary(history));
}

fn summary(history: &History) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for operation in &history.operations {
        let name = format!("{:?}", operation.answer);
        let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
        *counts.entry(name).or_insert(0) += 1;
    }
    format!("{} updates, {} losses of data, {counts:?}", history.updates.len(), history.losses.len())
}
