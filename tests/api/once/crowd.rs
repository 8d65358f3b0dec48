//! A thousand who wait for one record: what they cost the store does not depend on how many there are.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Pair, begin, store, sum, wait_there};
use kit::{Client, eventually, fresh_token};

const WAITERS: usize = 1_000;
const PER_CONNECTION: usize = 100;
const IDLE: Duration = Duration::from_secs(5);
pub(super) const BEGINS: &str = "fencepost_store_seconds_count{step=\"begin\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cost_the_embedded_store_no_more_than_one() {
    a_thousand_cost_no_more_than_one(Pair::embedded_with(&[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cost_redis_no_more_than_one_at_each_gateway() {
    a_thousand_cost_no_more_than_one(super::on_redis().await).await;
}

async fn a_thousand_cost_no_more_than_one(pair: Pair) {
    let (here, worker) = (pair.here(), fresh_token());
    let gateways = if pair.there.is_some() { 2.0 } else { 1.0 };
    begin(&here, "ttl=2m", &worker).send().await.expect(201);
    let addresses: Vec<_> = [Some(&pair.here), pair.there.as_ref()]
        .into_iter()
        .flatten()
        .map(|gateway| gateway.address)
        .collect();
    let mut waiting = JoinSet::new();
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..WAITERS {
        if number.is_multiple_of(PER_CONNECTION) {
            clients = addresses.iter().map(|address| Client::h2c(*address)).collect();
        }
        let client = &clients[number % clients.len()];
        // Some may take over, and some may not.
        let query = format!("ttl=1m&wait=60s&takeover={}", number % 4 < 2);
        waiting.spawn(begin(client, &query, &fresh_token()).within(Duration::from_secs(80)).send());
    }
    wait_there(&pair, WAITERS as f64).await;
    // Each looks for itself when it comes.
    eventually("all have looked", async || sum(&pair, BEGINS).await > WAITERS as f64).await;
    let (before, started) = (sum(&pair, BEGINS).await, Instant::now());
    let calls = async || match &pair.redis {
        Some(redis) => redis.calls("evalsha").await,
        None => 0,
    };
    let calls_before = calls().await;
    // Nothing is waited for: this is how long is counted.
    tokio::time::sleep(IDLE).await;
    let (idle, elapsed) = (sum(&pair, BEGINS).await - before, started.elapsed().as_secs_f64());
    println!("{WAITERS} idle waiters: {idle} looks in {elapsed:.1} s at {gateways} gateway(s)");
    // A look each second, and one more at either end of what is counted.
    assert!(idle <= gateways * (elapsed + 2.0), "{idle} looks in {elapsed:.1} s");
    let calls_idle = calls().await - calls_before;
    assert!(calls_idle as f64 <= idle + gateways * (elapsed + 2.0), "{calls_idle} scripts in {elapsed:.1} s");
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    let (before, calls_before, started) = (sum(&pair, BEGINS).await, calls().await, Instant::now());
    store(&here, &worker, "for all").send().await.expect(200);
    while let Some(answer) = waiting.join_next().await {
        assert_eq!(answer.unwrap().expect(200).body, "for all");
    }
    let elapsed = started.elapsed().as_secs_f64();
    let looks = sum(&pair, BEGINS).await - before;
    println!("{WAITERS} were answered in {elapsed:.2} s, after {looks} looks");
    // Two for the event, and those that were due all the same.
    assert!(looks <= gateways * (2.0 + elapsed), "{looks} looks");
    let scripts = calls().await - calls_before;
    assert!(scripts as f64 <= 1.0 + gateways * (3.0 + 2.0 * elapsed), "{scripts} scripts");
}

/// Those who wait for records and those who wait for locks share the places of a gateway.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_wait_than_may_for_one_record_and_at_one_gateway() {
    let pair = Pair::embedded_with(&["--max-waiters-per-key", "2", "--max-waiters", "3"]).await;
    let (here, worker) = (pair.here(), fresh_token());
    begin(&here, "ttl=2m", &worker).send().await.expect(201);
    let mut waiting = JoinSet::new();
    let asks_twice = fresh_token();
    for token in [&fresh_token(), &asks_twice] {
        waiting.spawn(begin(&here, "wait=50s", token).send());
    }
    wait_there(&pair, 2.0).await;
    let refused = begin(&here, "wait=1s", &fresh_token()).send().await;
    assert!(refused.expect_problem(429, "too-many-waiters").header("retry-after").is_some());
    // A newer request of a token that waits takes the place of the older.
    waiting.spawn(begin(&here, "wait=50s", &asks_twice).send());
    waiting.join_next().await.unwrap().unwrap().expect_problem(423, "once-in-progress");
    wait_there(&pair, 2.0).await;
    // Who does not wait needs no place, and other records have places of their own.
    begin(&here, "", &fresh_token()).send().await.expect_problem(423, "once-in-progress");
    here.put("/once/other?wait=1s").send().await.expect(201);

    here.put("/locks/k?ttl=2m").send().await.expect(201);
    waiting.spawn(here.put("/locks/k?wait=50s").send());
    eventually("one waits for the lock", async || here.get("/locks/k").send().await.json()["waiters"] == 1)
        .await;
    for path in ["/once/other", "/locks/other"] {
        let refused = here.put(&format!("{path}?wait=1s")).send().await;
        refused.expect_problem(429, "too-many-waiters");
    }
    store(&here, &worker, "for all").send().await.expect(200);
    while waiting.len() > 1 {
        waiting.join_next().await.unwrap().unwrap().expect(200);
    }
    here.put("/locks/other?wait=1s").send().await.expect(201);
}

/// Redis closes a connection that has subscribed once some megabytes of answers wait in it. Results come on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_who_ask_at_once_for_a_long_result_all_get_it() {
    // 64 MB take a busy machine longer than a gateway waits by default.
    let pair = Pair::on(super::redis().await, &["--store-timeout", "10s"]).await;
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 128kb 128kb 1"];
    let _: () = pair.redis().command(&limit).await;
    let (here, worker) = (pair.here(), fresh_token());
    here.put("/once/long").token(&worker).send().await.expect(201);
    here.post("/once/long").token(&worker).body(vec![b'x'; 65_536]).send().await.expect(200);
    let clients: Vec<_> = (0..WAITERS / PER_CONNECTION).map(|_| Client::h2c(pair.here.address)).collect();
    let ask = |number: usize| clients[number % clients.len()].put("/once/long").send();
    for answer in futures_util::future::join_all((0..WAITERS).map(ask)).await {
        assert_eq!(answer.expect(200).body.len(), 65_536);
    }
}
