//! The scripts in the simulated Redis against the table of the embedded store: see `tests/stores/differential.rs`. The clock of
//! that Redis stands still but where a sequence moves it, so a difference is one at each try.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use fencepost::store::redis::Network as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use sim::{Clock, Fleet, MISTAKES, scripts};

use crate::stores::differential::{Place, first_difference, numbers};
use kit::{COMPUTES, give_way, seed};

const SEQUENCES: u64 = 10_000;
/// Many times as many as find any of the mistakes.
const MOST_SEQUENCES: u64 = 100_000;
const NOW_US: u64 = 1_760_000_000_000_000;

#[test]
fn ten_thousand_random_sequences_have_the_answers_of_the_table() {
    give_way(COMPUTES);
    let seed = seed();
    let Range { start, end } = numbers(SEQUENCES);
    let half = start + (end - start) / 2;
    let play = |numbers| thread::spawn(move || found_on_one_thread(None, seed, numbers));
    for half in [start..half, half..end].map(play) {
        if let Some(difference) = half.join().unwrap() {
            panic!("TEST_SEED={seed} {difference}");
        }
    }
}

/// Threads that wake each other would take longer than what they do.
fn found_on_one_thread(
    mistake: Option<(&'static str, &'static str)>,
    seed: u64,
    numbers: Range<u64>,
) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = async |_| place(mistake).await;
    runtime.block_on(first_difference(place, seed, numbers, Duration::MAX))
}

/// Scripts with a mistake in one line: each is found by the sequences.
#[test]
fn each_of_these_mistakes_in_a_script_is_found() {
    give_way(COMPUTES);
    let seed = seed();
    let scripts = scripts().unwrap();
    for (name, stands, mistake) in MISTAKES {
        assert!(scripts.contains(stands), "no script has the line of: {name}");
        let found = found_on_one_thread(Some((stands, mistake)), seed, 0..MOST_SEQUENCES);
        println!("{name}: {}\n", found.unwrap_or_else(|| panic!("TEST_SEED={seed} not found: {name}")));
    }
}

/// A simulated Redis, whose scripts may have a mistake.
async fn place(mistake: Option<(&str, &str)>) -> Place {
    let fleet = Fleet::alone(&Clock::standing(NOW_US));
    if let Some((stands, mistake)) = mistake {
        fleet.servers[0].make_mistake(stands, mistake);
    }
    let stream = fleet.network.connect("server1", 6379).await.unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let settings = RedisConnectionInfo::default();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&settings, stream, config).await.unwrap();
    tokio::spawn(driver);
    Place { address: fleet.address().unwrap(), connection, is_in_real_time: false }
}
