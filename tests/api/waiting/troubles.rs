//! Gateways that die, and a Redis that forgets or restarts, while many wait.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Pair, count, hold, median, put_and_stay, release, stand, wait};
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

#[tokio::test(flavor = "multi_thread")]
async fn the_waiters_of_a_killed_gateway_hold_the_line_up_for_less_than_two_seconds_together() {
    let pair = Pair::redis_with(&[]).await;
    let mut delays = Vec::new();
    for _ in 0..3 {
        let holder = hold(&pair.here(), "1h").await;
        let mut doomed = Gateway::on_redis(pair.redis(), &[]).await;
        let mut clients = Vec::new();
        for _ in 0..40 {
            clients.push(put_and_stay(&doomed, "wait=50s&ttl=1h", &fresh_token()).await);
        }
        stand(&pair.here(), 40).await;
        let live = wait(&pair.there(), "wait=50s&ttl=1h", "");
        stand(&pair.here(), 41).await;
        doomed.kill();
        let released = release(&pair.here(), &holder).await;
        let answered = live.await.unwrap();
        delays.push(answered.at - released);
        release(&pair.here(), &answered.answer.expect(201).token()).await;
    }
    println!("from the release to the first who lives: {delays:?}");
    assert!(median(delays.clone()) < Duration::from_secs(2), "{delays:?}");
}

/// A gateway that stood still for a while is not dead: its waiters keep their places.
#[tokio::test(flavor = "multi_thread")]
async fn the_waiters_of_a_gateway_that_stood_still_come_back_to_their_places() {
    let pair = Pair::redis_with(&[]).await;
    let holder = hold(&pair.there(), "1h").await;
    let slow = wait(&pair.here(), "wait=50s&ttl=1h", "");
    stand(&pair.there(), 1).await;
    let first = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.there(), 2).await;
    let last = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.there(), 3).await;
    pair.here.signal("STOP");
    release(&pair.there(), &holder).await;
    let passed = first.await.unwrap().answer.expect(201);
    assert_eq!(count(&pair.there()).await, 1);
    pair.here.signal("CONT");
    stand(&pair.there(), 2).await;
    release(&pair.there(), &passed.token()).await;
    let served = slow.await.unwrap().answer.expect(201);
    assert!(!last.is_finished(), "it came later");
    release(&pair.there(), &served.token()).await;
    last.await.unwrap().answer.expect(201);
}

/// A hundred wait, half of them at each gateway, and each releases at once what it gets.
async fn a_hundred_are_served_or_told(pair: &Pair, trouble: impl AsyncFnOnce()) {
    let holder = hold(&pair.here(), "1h").await;
    let started = Instant::now();
    let visit = async |number: usize| {
        let client = pair.client(number);
        let token = if number.is_multiple_of(3) { String::new() } else { fresh_token() };
        let answered = wait(&client, "wait=12s&ttl=2s", &token).await.unwrap();
        let status = answered.answer.status;
        assert!([201, 423, 503].contains(&status), "{}", answered.answer.json());
        assert!(answered.at - started < Duration::from_secs(17), "it hung");
        if status == 201 {
            // What is unknown ends with the lease.
            client.delete("/locks/k").token(&answered.answer.token()).send().await;
        }
        status
    };
    let crowd = join_all((0..100).map(visit));
    let trouble = async {
        stand(&pair.there(), 100).await;
        trouble().await;
        // Whoever held the lock before may find it gone.
        release_or_not(&pair.here(), &holder).await;
    };
    let (statuses, ()) = tokio::join!(crowd, trouble);
    let served = statuses.iter().filter(|status| **status == 201).count();
    println!("{served} of 100 were served");
    assert!(served >= 95, "only {served} were served");
    eventually("the lock is free, and nobody waits", async || {
        let look = pair.here().get("/locks/k").send().await;
        look.status == 404 && look.json()["waiters"] == 0
    })
    .await;
}

async fn release_or_not(client: &Client, token: &str) {
    eventually("the release is answered", async || {
        client.delete("/locks/k").token(token).send().await.status != 503
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_under_a_hundred_waiters_leaves_nobody_hanging() {
    let pair = Pair::redis_with(&[]).await;
    a_hundred_are_served_or_told(&pair, async || {
        let _: () = pair.redis().command(&["FLUSHALL"]).await;
    })
    .await;
}

/// A failover may lose the newest writes: the lock is held yet, and those who wait for it are not known any more.
#[tokio::test(flavor = "multi_thread")]
async fn places_that_the_server_lost_are_put_back_as_they_were() {
    // More than come back at once.
    const WAITERS: usize = 50;
    let pair = Pair::redis_with(&[]).await;
    hold(&pair.here(), "1h").await;
    let waiting: Vec<_> =
        (0..WAITERS).map(|number| wait(&pair.client(number), "wait=50s&ttl=1h", "")).collect();
    stand(&pair.here(), WAITERS as u64).await;
    let places = async || -> Vec<String> {
        pair.redis().command(&["ZRANGE", "fencepost:{0}:line:k", "0", "-1", "WITHSCORES"]).await
    };
    let before = places().await;
    let lost = ["line:k", "seats:k", "gates"].map(|name| format!("fencepost:{{0}}:{name}"));
    let _: () = pair.redis().command(&["DEL", &lost[0], &lost[1], &lost[2]]).await;
    stand(&pair.here(), WAITERS as u64).await;
    assert_eq!(places().await, before);
    waiting.iter().for_each(JoinHandle::abort);
}

/// The lock goes to whoever asks first, and of one gateway's waiters the first do: so many at once as it sends.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_the_first_of_a_gateway_come_back_first() {
    const AT_ONCE: u64 = 16;
    let redis = RedisServer::start().await;
    let pair = Pair { here: Gateway::on_redis(&redis, &[]).await, there: None, redis: Some(redis) };
    hold(&pair.here(), "1h").await;
    let mut waiting = Vec::new();
    for waiters in [AT_ONCE, 2 * AT_ONCE] {
        waiting.extend((0..AT_ONCE).map(|_| wait(&pair.here(), "wait=50s&ttl=1h", "")));
        stand(&pair.here(), waiters).await;
    }
    let _: () = pair.redis().command(&["FLUSHALL"]).await;
    let (answered, number, others) = futures_util::future::select_all(waiting).await;
    answered.unwrap().answer.expect(201);
    others.iter().for_each(JoinHandle::abort);
    assert!(number < usize::try_from(AT_ONCE).unwrap(), "{number} came back before them");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_data_under_a_hundred_waiters_leaves_nobody_hanging() {
    let mut redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let [here, there] = gateways;
    let pair = Pair { here, there: Some(there), redis: None };
    a_hundred_are_served_or_told(&pair, async || {
        redis.kill();
        redis.lose_data();
        redis.start_again().await;
    })
    .await;
}
