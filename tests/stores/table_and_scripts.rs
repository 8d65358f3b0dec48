//! A real server against the table of the embedded store: see `differential.rs`.

use std::ops::Range;
use std::time::Duration;

use fencepost::store::redis::RedisAddress;

use crate::differential::{Place, first_difference, numbers};
use kit::{RedisServer, seed};

/// As many of these as a busy machine begins in the time.
const SEQUENCES: u64 = 10_000;
const ALL_BEGIN_IN: Duration = Duration::from_secs(90);

/// Sequences that differed once, by seed and number.
///
/// A try by a token that waits took away the offer of a slot that its own waiting request had. A waiter that wants less company
/// than before gave its offer up, and the next one was not offered the slot at once.
const DIFFERED: [(u64, u64); 3] = [
    (13_219_256_690_615_052_026, 1_289),
    (8_374_126_627_394_345_449, 6_387),
    (2_684_875_975_080_416_663, 5_024),
];

#[tokio::test(flavor = "multi_thread")]
async fn random_sequences_have_the_answers_of_the_table() {
    have_the_answers_of_the_table(seed(), numbers(SEQUENCES)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_that_differed_once_have_the_answers_of_the_table() {
    for (seed, number) in DIFFERED {
        have_the_answers_of_the_table(seed, number..number + 1).await;
    }
}

async fn have_the_answers_of_the_table(seed: u64, numbers: Range<u64>) {
    let server = RedisServer::start().await;
    let address = RedisAddress::parse(server.url(), None).unwrap();
    let place = async |_| Place {
        address: address.clone(),
        connection: server.connect().await,
        is_in_real_time: true,
    };
    if let Some(difference) = first_difference(place, seed, numbers, ALL_BEGIN_IN).await {
        panic!("TEST_SEED={seed} {difference}");
    }
}
