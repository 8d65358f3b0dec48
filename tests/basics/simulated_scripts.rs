//! The scripts in the simulated Redis against the table of the embedded store: see `tests/stores/differential.rs`. The clock of
//! that Redis stands still but where a sequence moves it, so a difference is one at each try.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use fencepost::store::redis::Network as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use sim::{Clock, Fleet};

use crate::stores::differential::{Place, first_difference, numbers};
use kit::seed;

const SEQUENCES: u64 = 10_000;
/// Many times as many as find any of the mistakes.
const MOST_SEQUENCES: u64 = 100_000;
const NOW_US: u64 = 1_760_000_000_000_000;

/// What the mistake is, what stands in the scripts, and what stands there by mistake.
const MUTANTS: [(&str, &str, &str); 14] = [
    ("a renewal shortens", "return math.max(left_ms, ttl_ms), false end", "return ttl_ms, false end"),
    ("a renewal of a pinned lock shortens", "if ttl_ms > left_ms then redis", "if true then redis"),
    ("max_hold is no limit", "local most_ms = terms_left(lock)", "local most_ms = nil"),
    (
        "min_hold is forgotten at a release",
        "if not least_ms or least_ms <= 0 then",
        "if least_ms or true then",
    ),
    ("a release leaves no tombstone", "set_tombstone(KEYS[7], outcome, ARGV[3])", ""),
    (
        "an attempt that is rolled back is not voided",
        "if voids then void(KEYS[7]",
        "if nil then void(KEYS[7]",
    ),
    ("another attempt's grant is rolled back", " and attempt_of(lock) == ARGV[2] then", " then"),
    ("a grant is broken by any number", "~= ARGV[5] then return { 2 }", "== '' then return { 2 }"),
    (
        "a look pins what a connection holds",
        "if by ~= PINNED and not is_of_connection(by) then",
        "if by ~= PINNED then",
    ),
    (
        "a confirmation takes the lock",
        "if MODE == 'confirm' and (not lock or was_held_by(lock, TOKEN)) then return { 3 } end",
        "if MODE == 'confirm' and not lock then MODE = 'grant' end",
    ),
    ("one who is refused loses its ticket", "queue.leave_place(TOKEN, ticket)", "queue.remove_place(TOKEN)"),
    ("a position is one too low", "rank and rank + 1 or 0, place", "rank or 0, place"),
    ("an offer is not passed on", "if offer and offer.token == token then hand_off() end", ""),
    ("a ticket has no end", "if #lost == 0 then return end", "do return end"),
];

#[test]
fn ten_thousand_random_sequences_have_the_answers_of_the_table() {
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
    let seed = seed();
    for (name, stands, mistake) in MUTANTS {
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
