//! A real server against the table of the embedded store: see `differential.rs`.

use std::time::Duration;

use fencepost::store::redis::RedisAddress;

use crate::differential::{Place, first_difference, numbers};
use kit::{RedisServer, seed};

/// As many of these as a busy machine begins in the time.
const SEQUENCES: u64 = 10_000;
const ALL_BEGIN_IN: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn random_sequences_have_the_answers_of_the_table() {
    let seed = seed();
    let server = RedisServer::start().await;
    let address = RedisAddress::parse(server.url(), None).unwrap();
    let place = async |_| Place {
        address: address.clone(),
        connection: server.connect().await,
        is_in_real_time: true,
    };
    if let Some(difference) = first_difference(place, seed, numbers(SEQUENCES), ALL_BEGIN_IN).await {
        panic!("TEST_SEED={seed} {difference}");
    }
}
