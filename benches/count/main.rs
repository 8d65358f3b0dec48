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

use committed::{Committed, Counts, Verdict};
use counted::{Counted, Redis};
use requests::Client;

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

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let profile = args.iter().find(|arg| !arg.starts_with("--")).map_or(OF_TESTS, String::as_str);
    let counts = count(&program(profile));
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

fn count(program: &Path) -> Counts {
    let redis = Redis::start();
    let mut counts = Counts::new();
    for (name, store) in [("memory", "memory:".to_owned()), ("redis", format!("redis://{}", redis.address))] {
        let gateway = Counted::start(program, &store);
        for (request, count) in of_store(&gateway) {
            eprintln!("{name:<8}{request:<10}{count:>10}");
            counts.insert(format!("{name} {request}"), count);
        }
    }
    counts
}

/// Every kind of request in turns of its own, in an order in which all of them can be answered.
fn of_store(gateway: &Counted) -> Vec<(&'static str, u64)> {
    let mut client = Client::connect(gateway.address);
    for number in 0..WARM_UP {
        requests::ALL.iter().for_each(|request| client.ask(request, &format!("warm-up-{number:04}")));
    }
    // What came until now is not counted.
    gateway.instructions(&mut client);
    let of_reading = of_turns(|_| gateway.instructions(&mut client));
    let of_request = |request: &requests::Request| {
        let of_turn = of_turns(|turn| {
            for number in 0..REQUESTS_PER_TURN {
                client.ask(request, &format!("count-{turn:02}-{number:04}"));
            }
            gateway.instructions(&mut client)
        });
        (request.name, (of_turn - of_reading) / REQUESTS_PER_TURN as u64)
    };
    requests::ALL.iter().map(of_request).collect()
}

fn of_turns(of_turn: impl FnMut(usize) -> u64) -> u64 {
    let mut turns: Vec<u64> = (0..TURNS).map(of_turn).collect();
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
