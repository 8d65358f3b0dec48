//! What locks cost through the gateway: acquire and release, being refused, and renewing, on every store; and records:
//! beginning and storing, and getting a result. It is measured in turns against a handler that does nothing and against Redis itself.
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

mod goals;
mod idle;
mod machine;
mod measure;
mod plan;
mod plots;
mod replies;
mod report;
mod results;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "not every measurement needs everything")]
mod shared;
mod summary;
mod telling;

use machine::Machine;
use plan::{MEASUREMENT, Plan, QUICK, TRIAL};
use results::Results;
use shared::by_heart;
use shared::page::{Page, today};
use shared::servers::Build;

/// What chooses idle connections, where it stands among names of rows.
const IDLE: &str = "idle";
/// The same of what watchers are told.
const TOLD: &str = "told";
const FLAGS: [&str; 3] = ["--bench", "--quick", "--replies"];
/// The rows of a trial: each server, each load, and what most goals are set for.
const TRIED: [&str; 17] = [
    "pairs/16",
    "pairs/64/redis",
    "own-tokens/64/redis",
    "watched/64/redis",
    "crowded/64/redis",
    "spread/64/redis",
    "once/64/redis",
    "replay/64",
    "fail-fast/16/redis",
    "fail-fast/16/redis-direct",
    "fail-fast/16/file",
    "renew/16/redis+keys+tls",
    "renew/16/redis-direct",
    "renew/16/memory",
    "slots-4/64/redis",
    "slots-refused/64/memory",
    "slots-renew/64/redis",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if by_heart::serve_if_asked(&arguments) {
        return ExitCode::SUCCESS;
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("--")).cloned().collect();
    // `cargo bench` passes this. `cargo test --all-targets` does not, and should not take ten minutes longer.
    if !has("--bench") {
        return run(&TRIAL, &TRIED.map(str::to_owned), Extent::Trial);
    }
    // What is misspelt must not be taken for a full run, which replaces results.
    let flags = arguments.iter().filter(|argument| argument.starts_with("--"));
    if let Some(unknown) = flags.into_iter().find(|flag| !FLAGS.contains(&flag.as_str())) {
        eprintln!("{unknown} means nothing; what does are {FLAGS:?}");
        return ExitCode::FAILURE;
    }
    match (has("--replies"), has("--quick")) {
        (true, _) => {
            let requests = filters.first().map(|number| number.parse().expect("how many replies"));
            check_replies(requests.unwrap_or(MEASUREMENT.replies))
        }
        // What is no full run replaces no full run's results.
        (false, false) if filters.is_empty() && Build::is_usual() => {
            run(&MEASUREMENT, &filters, Extent::Full)
        }
        (false, false) => run(&MEASUREMENT, &filters, Extent::Part),
        (false, true) => run(&QUICK, &filters, Extent::Part),
    }
}

/// How much is done beside the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Everything, and the results are kept.
    Full,
    /// Nothing that was not asked for.
    Part,
    /// Everything a little.
    Trial,
}

#[tokio::main(flavor = "current_thread")]
async fn check_replies(requests: u64) -> ExitCode {
    match replies::check(requests).await {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

// One thread, so that the generator can never take more than one core from the servers.
#[tokio::main(flavor = "current_thread")]
async fn run(plan: &Plan, filters: &[String], extent: Extent) -> ExitCode {
    let rows = plan::rows(filters);
    let is_asked =
        |what: &str| extent != Extent::Part || filters.is_empty() || filters.iter().any(|f| f == what);
    let means_nothing =
        |filter: &&String| *filter != IDLE && *filter != TOLD && plan::rows(&[(*filter).clone()]).is_empty();
    if let Some(unknown) = filters.iter().find(means_nothing) {
        eprintln!("nothing is called {unknown}; what can be measured are {IDLE}, {TOLD} and");
        plan::rows(&[]).iter().for_each(|row| eprintln!("{}", row.name()));
        return ExitCode::FAILURE;
    }
    let page = Page::read("make bench");
    let run = measure::measure(plan, &rows).await;
    let told_ms = match is_asked(TOLD) {
        true => telling::median_ms(plan.locks_told).await.map(Some),
        false => Ok(None),
    };
    let idle = if is_asked(IDLE) { idle::measure(plan.idle_connections).await } else { Ok(Vec::new()) };
    let (idle, told_ms) = match idle.and_then(|idle| Ok((idle, told_ms?))) {
        Ok(measured) => measured,
        Err(mismatch) => {
            eprintln!("{mismatch}");
            return ExitCode::FAILURE;
        }
    };
    let rows = summary::summaries(&run);
    let goals = goals::goals(&run, &rows, &idle, told_ms);
    let (machine, replies_checked) = (Machine::here(), run.replies());
    let results = Results { date: today(), machine, replies_checked, goals, idle_connections: idle, rows };
    println!("{}\n{}", results.to_markdown(), report::comparison(&results.rows));
    // Fast but wrong is no result: one reply that does not fit its request fails the whole run.
    if let Some((server, first)) = run.mismatches().next() {
        eprintln!("{} mismatches, the first at {}: {first}", run.mismatches().count(), server.name);
        eprintln!("its log: {}", server.log());
        return ExitCode::FAILURE;
    }
    match extent {
        Extent::Full => results.keep(&page).iter().for_each(|file| eprintln!("written: {}", file.display())),
        Extent::Part => {}
        Extent::Trial => {
            // What would be written must be able to be.
            drop((results.to_json(), page.with(&results.to_markdown())));
            if replies::check(plan.replies).await > 0 {
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
