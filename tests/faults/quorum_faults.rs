//! What becomes of the promises when nodes of a quorum die, forget, stand still, or are cut off from its gateways: at
//! random under load, and one after the other on purpose.

use std::time::Duration;

use crate::faults::run_all;
use crate::quorum_faults::chaos::{QuorumRig, Rules};

mod answers;
pub mod chaos;
mod first_start;
mod partitions;
mod rolling;
mod stale;
mod stalled;
pub mod ways;

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_random_faults_on_a_minority_breaks_no_promise() {
    let length = Duration::from_secs(60);
    run_all("quorum", 1, length, || QuorumRig::start(Rules::Minority)).await;
}

/// Nobody waits for the end of a quarantine before the next node forgets, so that all may forget in turn within one
/// lease. Who holds a lock is not judged then; all other promises are.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_of_nodes_that_forget_carelessly_break_no_promise_but_of_exclusion() {
    run_all("quorum-careless", 1, Duration::from_secs(30), || QuorumRig::start(Rules::Careless)).await;
}

/// While no node restarts, it is no matter how many fail: at worst nothing is granted. Leases may be long here, so what
/// is left of them at the end is seen.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_of_random_faults_on_nodes_that_run_on_break_no_promise() {
    run_all("quorum-running", 1, Duration::from_secs(30), || QuorumRig::start(Rules::Running)).await;
}
