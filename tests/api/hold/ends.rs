//! A lock that is lost while its connection lives, and is said to be.

use std::time::Duration;

use tokio::time::Instant;

use super::{Pair, SOON, hold, hold_with, is_free, on_each_pair};
use kit::{Client, Gateway, eventually, fresh_token};

on_each_pair!(
    max_hold_ends_a_hold_for_good,
    max_hold_ends_the_hold_of_a_lock_that_its_token_held_before,
    the_min_hold_of_a_lock_outlives_each_connection_that_held_it,
    a_lock_that_is_released_by_its_token_is_lost,
    a_lock_that_its_token_takes_out_of_the_connections_hands_stays_held,
    of_two_holds_with_one_token_the_later_one_goes_on,
    several_locks_that_are_refused_end_a_hold_of_their_token_and_leave_its_lease,
    of_two_that_wait_with_one_token_the_later_hold_is_granted_the_lock,
);

async fn max_hold_ends_a_hold_for_good(pair: Pair) {
    let began = Instant::now();
    let mut held = hold(&pair.here(), "ttl=1s&max_hold=2s").await;
    let lost = held.lost().await;
    let lasted = began.elapsed();
    assert_eq!(lost.reason(), "max-hold-reached");
    assert!(is_free(&pair.there()).await, "it is free from then on");
    assert!(lasted >= Duration::from_millis(1_800), "it lasted {lasted:?}");
    assert!(lasted < Duration::from_secs(2) + SOON, "it lasted {lasted:?}");
}

/// Be it that of the grant, however soon it ends, or that which the connection asks for.
async fn max_hold_ends_the_hold_of_a_lock_that_its_token_held_before(pair: Pair) {
    for (put, asked) in [("ttl=1s&max_hold=3s", "ttl=15s"), ("ttl=1s", "ttl=1s&max_hold=3s")] {
        let token = fresh_token();
        pair.here().put(&format!("/locks/k?{put}")).token(&token).send().await.expect(201);
        let began = Instant::now();
        let lost = hold_with(&pair.here(), asked, &token).await.lost().await;
        let lasted = began.elapsed();
        assert_eq!(lost.reason(), "max-hold-reached", "{put}, then {asked}");
        assert!(is_free(&pair.there()).await, "{put}, then {asked}: it is free from then on");
        assert!(lasted >= Duration::from_millis(2_500), "{put}, then {asked}: it lasted {lasted:?}");
        assert!(lasted < Duration::from_secs(3) + SOON, "{put}, then {asked}: it lasted {lasted:?}");
    }
}

async fn the_min_hold_of_a_lock_outlives_each_connection_that_held_it(pair: Pair) {
    let token = fresh_token();
    let mut first = hold_with(&pair.here(), "ttl=1s&min_hold=20s", &token).await;
    let mut second = hold_with(&pair.there(), "ttl=1s&min_hold=20s", &token).await;
    assert_eq!(first.lost().await.reason(), "taken-over");
    drop(first);
    for _ in 0..6 {
        assert_eq!(second.next().await.unwrap().name, "renewed");
    }
    drop(second);
    eventually("it is released, and kept", async || {
        let seen = pair.here().get("/locks/k").send().await.expect(200).json();
        seen.get("released") == Some(&true.into())
    })
    .await;
}

async fn a_lock_that_is_released_by_its_token_is_lost(pair: Pair) {
    let mut held = hold(&pair.here(), "ttl=1500ms").await;
    let token = held.token();
    pair.there().delete("/locks/k").token(&token).send().await.expect(204);
    assert_eq!(held.lost().await.reason(), "released");
    // Where another has taken the lock in the meantime, that is said.
    let mut held = hold(&pair.here(), "ttl=1500ms").await;
    pair.there().delete("/locks/k").token(&held.token()).send().await.expect(204);
    let other = pair.there().put("/locks/k?ttl=1m").send().await.expect(201).token();
    assert_eq!(held.lost().await.reason(), "held-by-another");
    drop(held);
    pair.there().patch("/locks/k").token(&other).send().await.expect(200);
}

async fn a_lock_that_its_token_takes_out_of_the_connections_hands_stays_held(pair: Pair) {
    for method in ["PUT", "PATCH"] {
        let mut held = hold_with(&pair.here(), "ttl=1500ms", &fresh_token()).await;
        let number = held.granted.fencing_token();
        let told = pair.there().call(method, "/locks/k?ttl=1m").token(&held.token()).send().await.expect(200);
        assert_eq!(told.fencing_token(), number);
        assert_eq!(held.lost().await.reason(), "taken-over", "{method}");
        let token = held.token();
        drop(held);
        // The hold is over, and with it what it would have taken back.
        let late = pair.there().patch("/locks/k?ttl=1m").token(&token).send().await.expect(200);
        assert_eq!(late.fencing_token(), number);
        pair.there().delete("/locks/k").token(&token).send().await.expect(204);
    }
}

/// The request takes the lock over before it comes to the one that another has.
async fn several_locks_that_are_refused_end_a_hold_of_their_token_and_leave_its_lease(pair: Pair) {
    pair.there().put("/locks/z?ttl=1m").send().await.expect(201);
    let mut held = hold_with(&pair.here(), "ttl=3s", &fresh_token()).await;
    let several = pair.there().put("/lock?key=k&key=z&ttl=1m").token(&held.token());
    several.send().await.expect_problem(423, "lock-held");
    let seen = pair.there().get("/locks/k").token(&held.token()).send().await.expect(200).json();
    assert_eq!(seen["yours"], true, "{seen}");
    let lost = held.lost().await;
    assert_eq!(lost.reason(), "taken-over");
    assert!(!lost.data["detail"].as_str().unwrap().contains("holds"), "it may be over: {lost:?}");
    eventually("what was told is over", async || is_free(&pair.there()).await).await;
}

async fn of_two_holds_with_one_token_the_later_one_goes_on(pair: Pair) {
    // At one gateway, and at two.
    for other in [pair.here(), pair.there()] {
        let token = fresh_token();
        let mut first = hold_with(&pair.here(), "ttl=1500ms", &token).await;
        let mut second = hold_with(&other, "ttl=1500ms", &token).await;
        assert_eq!(first.granted.fencing_token(), second.granted.fencing_token());
        assert_eq!(first.lost().await.reason(), "taken-over");
        drop(first);
        for _ in 0..3 {
            assert_eq!(second.next().await.unwrap().name, "renewed");
        }
        assert!(!is_free(&pair.there()).await);
        drop(second);
        eventually("the lock is free", async || is_free(&pair.there()).await).await;
    }
}

/// The first one may be a client's that has gone.
async fn of_two_that_wait_with_one_token_the_later_hold_is_granted_the_lock(pair: Pair) {
    the_later_hold_is_granted_the_lock(&pair, &pair.here()).await;
}

/// On a quorum each gateway has a wait queue of its own.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_wait_at_two_gateways_the_later_hold_is_granted_the_lock() {
    let pair = Pair::redis().await;
    the_later_hold_is_granted_the_lock(&pair, &pair.there()).await;
}

async fn the_later_hold_is_granted_the_lock(pair: &Pair, there: &Client) {
    for is_hold in [true, false] {
        let (holder, token) = (fresh_token(), fresh_token());
        pair.here().put("/locks/k?ttl=1m").token(&holder).send().await.expect(201);
        let waits_there = async || {
            let metrics = there.get("/metrics").send().await.body;
            let metrics = String::from_utf8_lossy(&metrics);
            let line = metrics.lines().find_map(|line| line.strip_prefix("fencepost_waiters "));
            line.unwrap().parse::<u64>().unwrap()
        };
        let waiters = async || {
            let seen = pair.here().get("/locks/k").send().await.expect(200).json();
            seen["waiters"].as_u64().unwrap()
        };
        let first = match is_hold {
            true => pair.here().call("POST", "/hold?key=k&ttl=1500ms&wait=20s"),
            false => pair.here().put("/locks/k?ttl=1500ms&wait=20s"),
        };
        let first = tokio::spawn(first.token(&token).send());
        eventually("it waits", async || waiters().await == 1).await;
        let (before, other) = (waits_there().await, there.clone());
        let second = tokio::spawn({
            let token = token.clone();
            async move { hold_with(&other, "ttl=1500ms&wait=20s", &token).await }
        });
        // It has the ticket now. The first one looks each second.
        eventually("the later one waits", async || waits_there().await == before + 1).await;
        pair.here().delete("/locks/k").token(&holder).send().await.expect(204);
        let mut second = second.await.unwrap();
        for _ in 0..4 {
            assert_eq!(second.next().await.unwrap().name, "renewed");
        }
        first.await.unwrap().expect_problem(503, "outcome-unknown");
        drop(second);
        eventually("the lock is free", async || is_free(&pair.there()).await).await;
    }
}

/// For less than the lease: nothing is lost, and heartbeats go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_for_less_than_the_lease_is_survived() {
    let pair = Pair::redis_with(&["--store-timeout", "500ms"]).await;
    let mut held = hold(&pair.here(), "ttl=6s").await;
    pair.redis_server().signal("STOP");
    let is_silent_since = Instant::now();
    assert_eq!(held.next_of_any_kind().await.unwrap().name, "heartbeat");
    assert!(is_silent_since.elapsed() < Duration::from_secs(3) + SOON);
    pair.redis_server().signal("CONT");
    assert_eq!(held.next().await.unwrap().name, "renewed");
    assert!(!is_free(&pair.there()).await);
}

/// For longer: the client is told before the lease may be over, and the lock is free when the store is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_for_longer_than_the_lease_ends_the_hold() {
    let pair = Pair::redis_with(&["--store-timeout", "500ms"]).await;
    let mut held = hold(&pair.here(), "ttl=1500ms").await;
    pair.redis_server().signal("STOP");
    let began = Instant::now();
    assert_eq!(held.lost().await.reason(), "expired");
    assert!(began.elapsed() < Duration::from_millis(1_500) + SOON, "told after {:?}", began.elapsed());
    pair.redis_server().signal("CONT");
    eventually("the lock is free", async || is_free(&pair.there()).await).await;
}

/// A store that has lost everything is as good as a release.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgot_the_lock_ends_the_hold() {
    let pair = Pair::redis().await;
    let mut held = hold(&pair.here(), "ttl=1500ms").await;
    let _: () = pair.redis_server().command(&["FLUSHALL"]).await;
    assert_eq!(held.lost().await.reason(), "released");
}

/// As a power cut would end it: there is nobody left to free the lock, and its lease does.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_leaves_the_lock_to_its_ttl() {
    let pair = Pair::redis().await;
    let mut doomed = Gateway::on_redis(pair.redis_server(), &[]).await;
    let mut held = hold(&kit::Client::new(doomed.address), "ttl=2s").await;
    assert_eq!(held.next().await.unwrap().name, "renewed");
    let killed = Instant::now();
    doomed.kill();
    assert!(!is_free(&pair.here()).await);
    assert_eq!(held.next().await, None);
    let freed = super::is_granted_to_another(&pair.here()).await;
    assert!(freed - killed < Duration::from_secs(2) + SOON, "freed after {:?}", freed - killed);
}
