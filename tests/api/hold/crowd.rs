//! A thousand locks held by connections of one gateway.

use std::time::Duration;

use futures_util::StreamExt;

use super::{hold, is_free};
use kit::{Client, Gateway, eventually};

const HOLDS: usize = 1_000;
const AT_ONCE: usize = 50;
/// Longer than a lease, so that each was renewed by then.
const HOLDING: Duration = Duration::from_secs(4);
/// What one of them may cost at most; it is a connection with its buffers, and a task.
const MOST_KIB_PER_HOLD: f64 = 24.0;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_hold_at_one_gateway() {
    let most = HOLDS.to_string();
    let gateway = Gateway::start(&["--store", "memory:", "--max-holds", &most]).await;
    let client = Client::new(gateway.address);
    // Whatever is made once is there before.
    drop(hold(&client, "ttl=60s").await);
    eventually("the lock is free", async || is_free(&client).await).await;
    let before = gateway.memory_kib("VmRSS") as f64;
    let holds: Vec<_> = futures_util::stream::iter(0..HOLDS)
        .map(|number| client.call("POST", &format!("/hold?key=held{number}&ttl=3s")).open())
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert!(holds.iter().all(|held| held.status() == 200));
    client.call("POST", "/hold?key=more").send().await.expect_problem(429, "too-many-holds");
    tokio::time::sleep(HOLDING).await;
    let held = async |number: usize| client.get(&format!("/locks/held{number}")).send().await.status == 200;
    for number in 0..HOLDS {
        assert!(held(number).await, "{number} was not renewed");
    }
    let per_hold = (gateway.memory_kib("VmRSS") as f64 - before) / HOLDS as f64;
    println!("{HOLDS} holds: {per_hold:.1} KiB of memory each");
    assert!(per_hold <= MOST_KIB_PER_HOLD, "{per_hold:.1} KiB for each");
    drop(holds);
    let mut next = 0;
    eventually("all of them are free", async || {
        while next < HOLDS && !held(next).await {
            next += 1;
        }
        next == HOLDS
    })
    .await;
}
