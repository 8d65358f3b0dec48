//! How many instructions each request costs the gateway: a figure that hardly moves with the machine or with what else
//! runs on it, and is held against the number that was committed.
//!
//! `count [PROFILE] [--commit]` counts the program of that profile, which must have been built; of `dev` it is the one
//! that the tests use. With `--commit` it writes the numbers instead of comparing them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a measurement that cannot go on must fail"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod committed;
mod counted;
mod requests;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "not every measurement needs everything")]
mod shared;

use committed::{Committed, Counts, Verdict};
use counted::{Cost, Counted};
use requests::{Client, Request};
use shared::by_heart;
use shared::servers::{directory, free_address, redis_server};
use shared::verdict::verdict;

/// The profile whose program is built together with the tests.
const OF_TESTS: &str = "dev";
/// How many of all turns of a row lie below the one that is taken. In a turn with work of the background in it, or in
/// which threads met by chance, there are more instructions, and never fewer: so it is a low one, and not the lowest,
/// which is rare.
const TURNS_BELOW: usize = 3;
const TURNS: usize = 25;
const REQUESTS_PER_TURN: usize = 20;
/// Requests of each kind that come first: they fill caches and make what is made only once.
const WARM_UP: usize = 50;
/// Connections that ask at the same time, where system calls are counted.
const MANY: usize = 64;
/// What must be reached, in comparison to the handler that does nothing, and what is to be reached: instructions of an acquire and a
/// release on Redis, and system calls of [`MANY`] on Redis and in memory.
const MOST_INSTRUCTIONS: [f64; 2] = [2.0, 1.5];
const MOST_CALLS_ON_REDIS: [f64; 2] = [1.5, 1.2];
const MOST_CALLS_IN_MEMORY: [f64; 2] = [1.2, 1.05];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if by_heart::serve_if_asked(&args) {
        return ExitCode::SUCCESS;
    }
    let profile = args.iter().find(|arg| !arg.starts_with("--")).map_or(OF_TESTS, String::as_str);
    // The handler that does nothing is in this program, and is compared where both are built alike.
    let (counts, goals) = count(&program(profile), profile != OF_TESTS && !cfg!(debug_assertions));
    goals.iter().for_each(|goal| println!("{goal}"));
    let mut committed = Committed::read();
    if args.iter().any(|arg| arg == "--commit") {
        committed.replace(profile, counts);
        committed.write();
        return ExitCode::SUCCESS;
    }
    compare(profile, &counts, &committed)
}

/// The gateway as it was built with this profile, beside that of the tests.
fn program(profile: &str) -> PathBuf {
    let of_tests = Path::new(env!("CARGO_BIN_EXE_fencepost"));
    match profile {
        OF_TESTS => of_tests.to_owned(),
        other => of_tests.parent().and_then(Path::parent).unwrap().join(other).join("fencepost"),
    }
}

/// Counts each request on each store. Where the handler that does nothing was built like the gateway, compares the two.
fn count(program: &Path, compares: bool) -> (Counts, Vec<String>) {
    let (redis, directory) = (free_address(), directory());
    let _redis = redis_server(redis, &directory, &[]);
    let (mut counts, mut calls) = (Counts::new(), Vec::new());
    let stores = [
        ("memory", "memory:".to_owned(), MOST_CALLS_IN_MEMORY),
        ("redis", format!("redis://{redis}"), MOST_CALLS_ON_REDIS),
    ];
    for (name, store, most) in stores {
        let gateway = Counted::gateway(program, &store);
        for (request, count) in of_each(&gateway, &requests::ALL) {
            eprintln!("{name:<8}{request:<10}{count:>10}");
            counts.insert(format!("{name} {request}"), count);
        }
        if compares {
            calls.push((name, most, calls_of_many(&gateway)));
        }
    }
    if !compares {
        return (counts, Vec::new());
    }
    let noop = Counted::noop();
    let of_noop: u64 = of_each(&noop, &requests::PAIR).iter().map(|(_, count)| count).sum();
    let of_redis = counts["redis acquire"] + counts["redis release"];
    let what = format!(
        "instructions of an acquire and a release on Redis ({of_redis}), × those of the no-op handler ({of_noop})"
    );
    let mut goals = vec![judged(&what, of_redis as f64 / of_noop as f64, MOST_INSTRUCTIONS)];
    let of_noop = calls_of_many(&noop);
    for (name, most, of_store) in calls {
        let what = format!(
            "system calls of a request at {MANY} connections, {name} ({of_store:.2}), × those of the no-op handler ({of_noop:.2})"
        );
        goals.push(judged(&what, of_store / of_noop, most));
    }
    (counts, goals)
}

fn judged(what: &str, ratio: f64, [must, aim]: [f64; 2]) -> String {
    format!("{what}: {ratio:.2}, must be at most {must}: {}", verdict(ratio <= aim, ratio <= must))
}

/// Every kind of request in turns of its own, in an order in which all of them can be answered.
fn of_each(counted: &Counted, all: &[Request]) -> Vec<(&'static str, u64)> {
    let mut client = Client::connect(counted.address);
    for number in 0..WARM_UP {
        all.iter().for_each(|request| client.ask(request, &format!("warm-up-{number:04}")));
    }
    // What came until now is not counted.
    counted.cost(&mut client);
    let of_reading = of_turns(|_| counted.cost(&mut client)).instructions;
    let of_request = |request: &Request| {
        let of_turn = of_turns(|turn| {
            for number in 0..REQUESTS_PER_TURN {
                client.ask(request, &format!("count-{turn:02}-{number:04}"));
            }
            counted.cost(&mut client)
        });
        (request.name, (of_turn.instructions - of_reading) / REQUESTS_PER_TURN as u64)
    };
    all.iter().map(of_request).collect()
}

/// The system calls of one request, where many acquire at the same time, and then release.
fn calls_of_many(counted: &Counted) -> f64 {
    let mut clients: Vec<_> = (0..MANY).map(|_| Client::connect(counted.address)).collect();
    let mut one = Client::connect(counted.address);
    let of_reading = of_turns(|_| counted.cost(&mut one)).system_calls;
    let of_turn = of_turns(|turn| {
        for request in &requests::PAIR {
            for (at, client) in clients.iter_mut().enumerate() {
                client.send(request, &format!("many-{turn:02}-{at:02}"));
            }
            clients.iter_mut().for_each(|client| client.receive(request.status));
        }
        counted.cost(&mut one)
    });
    (of_turn.system_calls - of_reading) as f64 / (MANY * requests::PAIR.len()) as f64
}

fn of_turns(of_turn: impl FnMut(usize) -> Cost) -> Cost {
    let mut turns: Vec<Cost> = (0..TURNS).map(of_turn).collect();
    turns.sort_unstable();
    turns[TURNS_BELOW]
}

/// Prints each count beside the committed one; one that rose by too much fails.
fn compare(profile: &str, counts: &Counts, committed: &Committed) -> ExitCode {
    println!("instructions per request, profile {profile}");
    println!("{:<18}{:>10}{:>12}{:>9}", "", "counted", "committed", "");
    let mut code = ExitCode::SUCCESS;
    let mut is_outdated = false;
    for (name, count) in counts {
        let (before, verdict) = committed.judge(profile, name, *count);
        let committed = before.map_or("–".to_owned(), |before| before.to_string());
        let change =
            before.map_or(String::new(), |before| format!("{:+.1} %", change_percent(before, *count)));
        println!("{name:<18}{count:>10}{committed:>12}{change:>9}  {}", verdict.for_people());
        match verdict {
            Verdict::Same => {}
            Verdict::Fewer => is_outdated = true,
            Verdict::More | Verdict::New => code = ExitCode::FAILURE,
        }
    }
    if is_outdated || code == ExitCode::FAILURE {
        println!("to commit these numbers: make count PROFILE={profile} COMMIT=yes");
    }
    code
}

fn change_percent(before: u64, now: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}
