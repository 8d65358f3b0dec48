//! Random faults under load, on each store, and the judge's verdict on it.
//!
//! The seed decides which faults come when and what each client does next; `TEST_SEED` makes a run begin with the
//! same one again. The history of a run that failed is saved, and `TEST_HISTORY` has it judged again (`judge.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::faults::cluster::ClusterRig;
use crate::faults::rig::{EmbeddedRig, RedisRig, Rig};
use crate::faults::states::RefusingRig;
use kit::history::{Answer, History, Witness, is_kept, summary};
use kit::seed;
use kit::visitors::{self, Resources, Visitor, look_at_what_is_left};

pub mod cluster;
pub mod entrance;
pub mod rig;
pub mod states;

const A_MINUTE: Duration = Duration::from_secs(60);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 8;
/// Runs beside each other, each with a seed of its own.
const RUNS: u64 = 3;

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

/// So many runs beside each other, each judged.
pub async fn run_all<R: Rig>(store: &'static str, count: u64, length: Duration, start: impl AsyncFn() -> R) {
    let seed = seed();
    let mut runs = Vec::new();
    for number in 0..count {
        runs.push(run(start().await, length, seed.wrapping_add(number)));
    }
    let histories = futures_util::future::join_all(runs).await;
    let mut is_right = true;
    for (number, history) in histories.into_iter().enumerate() {
        is_right &= is_kept(&format!("{store}-{seed}-{number}"), &history);
    }
    assert!(is_right, "promises were broken on {store}, TEST_SEED={seed}");
}

async fn run<R: Rig>(mut rig: R, length: Duration, seed: u64) -> History {
    let mut random = StdRng::seed_from_u64(seed);
    let began = Instant::now();
    let history = round(&mut rig, &mut random, &visitors::resources(), |witness| {
        // On a busy machine it takes longer until enough has happened.
        began.elapsed() < length || began.elapsed() < 3 * length && !was_worth_it(&witness.history())
    })
    .await;
    assert!(was_worth_it(&history), "{}", summary(&history));
    history
}

/// Clients at work while things fail, for as long as this is so; then all is mended, and they look at what is left.
pub async fn round<R: Rig>(
    rig: &mut R,
    random: &mut StdRng,
    resources: &Resources,
    goes_on: impl Fn(&Witness) -> bool,
) -> History {
    let witness = Witness::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let visitors: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let random = StdRng::seed_from_u64(random.random());
            let visitor = Visitor::new(rig.doors(), witness.clone(), resources.clone(), random);
            let visitor = visitor.with_ttls(rig.ttls()).who_shares(rig.may_share());
            let is_over = is_over.clone();
            tokio::spawn(visitor.work_while(move || !is_over.load(Ordering::Relaxed)))
        })
        .collect();
    while goes_on(&witness) {
        rig.fail(random, &witness).await;
        // Between two faults things come right again, more or less.
        tokio::time::sleep(Duration::from_millis(random.random_range(50..800))).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for visitor in visitors {
        visitor.await.unwrap();
    }
    rig.heal().await;
    look_at_what_is_left(&rig.safe_door(), &witness).await;
    let mut history = witness.history();
    history.learn_from_log(&rig.logs());
    rig.explain(&mut history);
    history
}

/// A run in which hardly anything happened would prove nothing.
fn was_worth_it(history: &History) -> bool {
    let count = |is_such: fn(&Answer) -> bool| {
        history.operations.iter().filter(|operation| is_such(&operation.answer)).count()
    };
    let is_fault =
        |answer: &Answer| matches!(answer, Answer::Lost { .. } | Answer::NotDone | Answer::Unknown);
    count(|answer| matches!(answer, Answer::Granted { .. })) > 100
        && count(is_fault) > 40
        && history.updates.len() > 30
}
