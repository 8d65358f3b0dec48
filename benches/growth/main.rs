//! What becomes of a gateway when there is more of everything: locks that are held, keys that were ever used, clients that
//! wait or hold, leases that end at the same moment, connections, and API keys.
//!
//! Wherever something is compared, it is with a gateway beside it that has little of all that, in the same round.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::process::ExitCode;
use std::time::Instant;

mod api_keys;
mod beside;
mod connections;
mod crowd;
mod expiry;
mod fill;
mod keys;
mod live;
#[path = "../gateway/machine.rs"]
mod machine;
mod plan;
mod report;
mod results;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "not every measurement needs everything")]
mod shared;
mod store;
mod waiters;

use plan::{MEASUREMENT, Plan, TRIAL};
use results::Results;
use shared::by_heart;
use shared::page::Page;
use shared::servers::Build;

/// What can be measured, by names that choose some of it.
const ALL: [&str; 6] = ["live", "keys", "waiters", "expiry", "connections", "api-keys"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if by_heart::serve_if_asked(&arguments) {
        return ExitCode::SUCCESS;
    }
    // `cargo bench` passes this. `cargo test --all-targets` does not, and should not take minutes longer.
    let plan = if arguments.iter().any(|argument| argument == "--bench") { MEASUREMENT } else { TRIAL };
    let chosen: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| *name != "--bench").collect();
    if let Some(unknown) = chosen.iter().find(|name| !ALL.contains(name)) {
        eprintln!("nothing is called {unknown}; what can be measured are {}", ALL.join(", "));
        return ExitCode::FAILURE;
    }
    let page = Page::read("make bench-growth");
    let mut results = Results::here();
    let ended = measure(&plan, &chosen, &mut results);
    println!("{}", results.to_markdown());
    if let Err(mismatch) = ended {
        // Fast but wrong is no result.
        eprintln!("{mismatch}");
        return ExitCode::FAILURE;
    }
    // What is no full run replaces no full run's results.
    if plan.is_full && chosen.is_empty() && Build::is_usual() {
        results.keep(&page).iter().for_each(|path| eprintln!("written: {}", path.display()));
    }
    ExitCode::SUCCESS
}

// One thread, so that the generator can never take more than one core from the servers.
#[tokio::main(flavor = "current_thread")]
async fn measure(plan: &Plan, chosen: &[&str], results: &mut Results) -> Result<(), String> {
    let is_chosen = |name: &str| chosen.is_empty() || chosen.contains(&name);
    let started = Instant::now();
    let say = |name: &str| eprintln!("{:>4} s  {name}", started.elapsed().as_secs());
    if is_chosen("live") {
        say("live locks");
        results.live = live::measure(plan).await?;
    }
    if is_chosen("keys") {
        say("distinct keys");
        results.keys = keys::measure(plan).await?;
    }
    if is_chosen("waiters") {
        say("waiters");
        results.waiters = waiters::measure(plan).await?;
    }
    if is_chosen("expiry") {
        say("leases that end at once");
        results.expiry = expiry::measure(plan).await?;
    }
    if is_chosen("connections") {
        say("connections");
        results.connections = connections::measure(plan).await?;
    }
    if is_chosen("api-keys") {
        say("API keys");
        results.api_keys = api_keys::measure(plan).await?;
    }
    say("done");
    Ok(())
}
