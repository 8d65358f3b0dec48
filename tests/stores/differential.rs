//! The scripts against the table of the embedded store, which is pure: random sequences of requests go to both, and at each
//! step the answers agree, and so does who holds the lock.
//!
//! A sequence (`plan.rs`) is drawn from the seed and its number. Time passes in it for the table by its clock, and for Redis by
//! moving back all that is written there (`pair.rs`), by steps so large that the milliseconds of the real clock decide
//! nothing. `TEST_SEED=… TEST_RUN=…` plays one sequence again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use fencepost::store::redis::RedisAddress;
use redis::aio::MultiplexedConnection;

use self::pair::Pair;
use self::plan::Step;

mod agreement;
mod pair;
mod plan;

/// On a busy machine so many must do, if not all begin in time.
const FEWEST: u64 = 1_000;
const AT_ONCE: u64 = 8;
/// What takes longer on a busy machine shows nothing where it differs.
const TIMELY: Duration = Duration::from_millis(250);
const MOST_TRIES: usize = 20;
/// How many sequences are tried to find a shorter one that differs.
const MOST_SHORTER: usize = 300;

/// Where a Redis is, and a connection to it of the test's own.
pub struct Place {
    pub address: RedisAddress,
    pub connection: MultiplexedConnection,
    /// Whether its clock goes on while a sequence is played. A busy machine lets seconds pass.
    pub is_in_real_time: bool,
}

/// The numbers of the sequences to play: so many, or the one that was asked for.
pub fn numbers(count: u64) -> Range<u64> {
    let asked = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let count = asked("TEST_SEQUENCES").unwrap_or(count);
    asked("TEST_RUN").map_or(0..count, |number| number..number + 1)
}

/// Plays sequences, several at once, until one of them differs. Each of those has a place, by its number.
pub async fn first_difference(
    place: impl AsyncFn(u64) -> Place,
    seed: u64,
    numbers: Range<u64>,
    all_begin_in: Duration,
) -> Option<String> {
    let (next, began) = (Arc::new(AtomicU64::new(numbers.start)), Instant::now());
    let must_do = numbers.start + FEWEST;
    let mut tasks = Vec::new();
    for task in 0..AT_ONCE {
        let mut pair = Pair::start(place(task).await, &format!("differential{task}"));
        let (next, end) = (next.clone(), numbers.end);
        tasks.push(tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end || number >= must_do && began.elapsed() > all_begin_in {
                    return None;
                }
                let steps = plan::draw(seed, number);
                if let Some(difference) = differs(&mut pair, &steps).await {
                    next.store(end, Ordering::Relaxed);
                    let shortest = shortened(&mut pair, steps, difference).await;
                    return Some(format!("TEST_RUN={number}: {shortest}"));
                }
            }
        }));
    }
    join_all(tasks).await.into_iter().find_map(Result::unwrap)
}

/// A difference, if the sequence shows one in time, or whenever it is played.
async fn differs(pair: &mut Pair, steps: &[Step]) -> Option<String> {
    let mut tries = 0;
    loop {
        let (difference, took) = pair.play(steps).await;
        tries += 1;
        if difference.is_none() || took < TIMELY || tries == MOST_TRIES {
            return difference;
        }
    }
}

/// Drops steps for as long as the rest still differs, and says what is left.
async fn shortened(pair: &mut Pair, mut steps: Vec<Step>, mut difference: String) -> String {
    let (mut at, mut tries, mut kept) = (0, 0, 0);
    while kept < steps.len() && tries < MOST_SHORTER {
        at = at.min(steps.len() - 1);
        let mut fewer = steps.clone();
        fewer.remove(at);
        tries += 1;
        match differs(pair, &fewer).await {
            Some(now) => (steps, difference, kept) = (fewer, now, 0),
            None => (at, kept) = ((at + 1) % steps.len(), kept + 1),
        }
    }
    let steps: Vec<_> = steps.iter().map(|step| format!("  {step}")).collect();
    format!("{}\nafter\n{}", plan::by_names(&difference), steps.join("\n"))
}
