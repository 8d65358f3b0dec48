//! Who waits is woken: by a result, by a worker that leaves, by the end of a lease, with messages between gateways or without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::lock::{LeaseToken, LockKey};
use fencepost::once::GivenUp;
use fencepost::service::LockService;

use super::crowd::BEGINS;
use super::{Pair, begin, earlier, on_each_pair, store, sum, wait_there, way};
use crate::waiting::median;
use kit::stores::redis_store;
use kit::{Client, PATIENCE, eventually, fresh_token};

on_each_pair!(
    a_result_wakes_who_waits,
    who_waits_at_the_gateway_that_stores_is_told_without_a_look,
    a_worker_that_leaves_wakes_who_waits,
    the_end_of_a_lease_wakes_who_waits,
    a_wait_that_ends_is_told_how_far_it_is,
);

const ROUNDS: usize = 5;
/// With a message, or without one, whose second is the longest pause between looks; the rest is for a busy machine.
const TOLD: Duration = Duration::from_millis(100);
const NOT_TOLD: Duration = Duration::from_millis(1_200);

/// Has a client wait at the other gateway for a worker that ends its place; returns how long it took to be woken.
async fn woken_after(pair: &Pair, ends: impl AsyncFn(&Client, &str)) -> Duration {
    let (here, there, worker) = (pair.here(), pair.there(), fresh_token());
    begin(&here, "ttl=1m", &worker).send().await.expect(201);
    let waits = tokio::spawn(async move {
        let answer = begin(&there, "ttl=1m&wait=30s", &fresh_token()).send().await;
        (answer, Instant::now())
    });
    wait_there(pair, 1.0).await;
    // Nothing is waited for: by now it looks once a second, unless it is told.
    tokio::time::sleep(Duration::from_millis(900)).await;
    let started = Instant::now();
    ends(&here, &worker).await;
    let (answer, at) = waits.await.unwrap();
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    here.delete("/once/k?force=true&clean=true").send().await.expect(204);
    at - started
}

async fn stores(client: &Client, token: &str) {
    store(client, token, "done").send().await.expect(200);
}

async fn gives_up(client: &Client, token: &str) {
    client.delete("/once/k").token(token).send().await.expect(204);
}

async fn delays(pair: &Pair, ends: impl AsyncFn(&Client, &str)) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..ROUNDS {
        delays.push(woken_after(pair, &ends).await);
    }
    println!("woken after {delays:.1?}");
    delays
}

async fn a_result_wakes_who_waits(pair: Pair) {
    assert!(median(delays(&pair, stores).await) < TOLD);
}

async fn who_waits_at_the_gateway_that_stores_is_told_without_a_look(pair: Pair) {
    let there = pair.there();
    let looks = async || {
        let (worker, before) = (fresh_token(), sum(&pair, BEGINS).await);
        begin(&there, "ttl=1m", &worker).send().await.expect(201);
        let waits = tokio::spawn(begin(&there, "ttl=1m&wait=30s", &fresh_token()).send());
        eventually("it has looked", async || sum(&pair, BEGINS).await >= before + 2.0).await;
        let before = sum(&pair, BEGINS).await;
        store(&there, &worker, "done").send().await.expect(200);
        assert_eq!(waits.await.unwrap().expect(200).body, "done");
        let looks = sum(&pair, BEGINS).await - before;
        there.delete("/once/k?force=true&clean=true").send().await.expect(204);
        looks
    };
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        seen.push(looks().await);
    }
    // Some may have been due all the same.
    assert!(seen.contains(&0.0), "{seen:?}");
}

async fn a_worker_that_leaves_wakes_who_waits(pair: Pair) {
    assert!(median(delays(&pair, gives_up).await) < TOLD);
    let breaks = async |client: &Client, _: &str| {
        client.delete("/once/k?force=true").send().await.expect(204);
    };
    assert!(median(delays(&pair, breaks).await) < TOLD);
}

async fn the_end_of_a_lease_wakes_who_waits(pair: Pair) {
    let here = pair.here();
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let (there, worker) = (pair.there(), fresh_token());
        let mut sent = Instant::now();
        begin(&here, "ttl=700ms", &worker).send().await.expect(201);
        let waits = tokio::spawn(async move {
            let next = fresh_token();
            let answer = begin(&there, "ttl=1m&wait=30s", &next).send().await.expect(201);
            (answer, Instant::now())
        });
        wait_there(&pair, 1.0).await;
        // A renewal that nobody told the other gateway of: it looks, and waits on.
        if round % 2 == 0 {
            sent = Instant::now();
            if here.patch("/once/k?ttl=700ms").token(&worker).send().await.status != 200 {
                // The machine stood still.
                sent -= Duration::from_millis(700);
            }
        }
        let (answer, at) = waits.await.unwrap();
        assert_eq!((way(&answer), earlier(&answer)), ("taken-over", 1));
        delays.push((at - sent).saturating_sub(Duration::from_millis(700)));
        here.delete("/once/k?force=true&clean=true").send().await.expect(204);
    }
    println!("woken {delays:.1?} after the end");
    assert!(median(delays.clone()) < Duration::from_millis(100), "{delays:?}");
}

async fn a_wait_that_ends_is_told_how_far_it_is(pair: Pair) {
    let (here, there, worker) = (pair.here(), pair.there(), fresh_token());
    begin(&here, "ttl=1m&owner=busy", &worker).send().await.expect(201);
    let started = Instant::now();
    let told = begin(&there, "wait=1s", &fresh_token()).send().await.expect_problem(423, "once-in-progress");
    assert!(started.elapsed() >= Duration::from_secs(1));
    let seen = &told.json()["worker"];
    assert_eq!(seen["owner"], "busy");
    assert!(seen["expires_in_ms"].as_u64().unwrap() <= 59_500, "{seen}");
    // The worker itself waits for nothing.
    let own = begin(&there, "wait=30s&ttl=1m", &worker).within(Duration::from_secs(5)).send().await;
    assert_eq!(way(&own.expect(201)), "continued");
}

/// As what it had begun before is still done.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_drains_wakes_those_who_wait_at_others() {
    const MARK_TTL: Duration = Duration::from_secs(60);
    let pair = super::on_redis().await;
    let store = Arc::new(redis_store(pair.redis.as_ref().unwrap(), MARK_TTL));
    let draining = LockService::new(store, PATIENCE, MARK_TTL);
    // By now it hears the others.
    draining.check().await.unwrap();
    draining.stop_waiting();
    let key = LockKey::parse(b"k").unwrap();
    let gives_up = async |_: &Client, worker: &str| {
        let worker = LeaseToken::parse(worker.as_bytes()).unwrap();
        assert_eq!(draining.give_up(&key, &worker, false).await, Ok(GivenUp::GivenUp));
    };
    assert!(median(delays(&pair, gives_up).await) < TOLD);
}

/// No gateway hears another: each looks for itself.
#[tokio::test(flavor = "multi_thread")]
async fn without_messages_between_gateways_they_look_for_themselves() {
    let pair = super::on_redis().await;
    let redis = pair.redis.as_ref().unwrap();
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-publish", "-spublish"]).await;
    for delays in [delays(&pair, stores).await, delays(&pair, gives_up).await] {
        assert!(delays.iter().max().unwrap() < &NOT_TOLD, "{delays:?}");
    }
    the_end_of_a_lease_wakes_who_waits(pair).await;
}
