//! The connection ends, and with it the hold.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::stopping::leaves;
use super::{Held, Pair, SOON, hold, hold_with, is_free, is_granted_to_another, on_each_pair, stand};
use kit::metrics::Scrape;
use kit::{eventually, fresh_token};

on_each_pair!(
    a_hold_is_granted_renewed_at_each_third_and_ends_with_its_connection,
    the_end_of_a_curl_frees_the_lock_at_once,
    a_token_whose_connection_closed_may_be_used_again,
);

async fn a_hold_is_granted_renewed_at_each_third_and_ends_with_its_connection(pair: Pair) {
    let began = Instant::now();
    let mut held = hold(&pair.here(), "ttl=1500ms&owner=me").await;
    let granted = held.granted.clone();
    assert_eq!(granted.data["key"], "k");
    assert_eq!(granted.data["owner"], "me");
    assert!(granted.ttl_ms() <= 1_500);
    // Beyond the lease that was granted.
    for thirds in 1..=4 {
        let renewed = held.next().await.unwrap();
        assert_eq!((renewed.name.as_str(), renewed.fencing_token()), ("renewed", granted.fencing_token()));
        assert!(began.elapsed() >= Duration::from_millis(500 * thirds), "{:?}", began.elapsed());
        assert!((1_000..=1_500).contains(&renewed.ttl_ms()), "{renewed:?}");
    }
    let refused = pair.there().put("/locks/k").send().await.expect_problem(423, "lock-held");
    assert_eq!(refused.json()["holder"]["owner"], "me");
    let look = pair.there().get("/locks/k").token(&held.token()).send().await.expect(200);
    assert_eq!(look.json()["yours"], true);
    let there = pair.there();
    let waiting = tokio::spawn(async move { is_granted_to_another(&there).await });
    stand(&pair.there(), 1).await;
    let left = Instant::now();
    drop(held);
    let freed = waiting.await.unwrap();
    assert!(freed - left < SOON, "freed after {:?}", freed - left);
}

/// However it ends: told to, or not asked.
async fn the_end_of_a_curl_frees_the_lock_at_once(pair: Pair) {
    for signal in ["TERM", "KILL"] {
        let url = format!("http://{}/hold", pair.here.address);
        let mut curl = Command::new("curl")
            .args(["-sN", "-X", "POST", "-G", "-d", "key=k", "-d", "ttl=1m", &url])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("curl holds the lock", async || !is_free(&pair.here()).await).await;
        let there = pair.there();
        let waiting = tokio::spawn(async move { is_granted_to_another(&there).await });
        stand(&pair.there(), 1).await;
        let ended = Instant::now();
        kit::signal(curl.id(), signal);
        let freed = waiting.await.unwrap();
        curl.wait().unwrap();
        assert!(freed - ended < SOON, "SIG{signal}: freed after {:?}", freed - ended);
    }
}

async fn a_token_whose_connection_closed_may_be_used_again(pair: Pair) {
    let token = fresh_token();
    let mut last = 0;
    for client in [pair.here(), pair.there(), pair.here()] {
        let held = hold_with(&client, "ttl=1m", &token).await;
        assert_eq!(held.token(), token);
        assert!(held.granted.fencing_token() > last);
        last = held.granted.fencing_token();
        drop(held);
        eventually("the lock is free", async || is_free(&pair.here()).await).await;
    }
    // Nothing of a hold that waited is left in the line either.
    let first = hold(&pair.here(), "ttl=1m").await;
    let waiting = {
        let (there, token) = (pair.there(), token.clone());
        tokio::spawn(async move { hold_with(&there, "ttl=1m&wait=15s", &token).await })
    };
    stand(&pair.there(), 1).await;
    let next = tokio::spawn(pair.there().put("/locks/k?ttl=1m&wait=15s").send());
    stand(&pair.there(), 2).await;
    drop(first);
    drop(waiting.await.unwrap());
    next.await.unwrap().expect(201);
    let other = tokio::spawn(pair.there().put("/locks/k?wait=15s").send());
    stand(&pair.there(), 1).await;
    let refused = pair.there().put("/locks/k?wait=100ms").token(&token).send().await.expect(423);
    assert_eq!(refused.json()["position"], 2, "it comes back to its old place");
    other.abort();
}

/// It is kept for as long as its `min_hold` says, also when the connection ends before.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_ends_early_keeps_the_lock_until_its_min_hold_is_over() {
    for pair in [Pair::embedded().await, Pair::redis().await] {
        let began = Instant::now();
        let held = hold(&pair.here(), "ttl=1s&min_hold=2500ms").await;
        drop(held);
        let freed = is_granted_to_another(&pair.there()).await;
        let kept = freed - began;
        assert!(kept >= Duration::from_millis(2_450), "freed after {kept:?}");
        assert!(kept < Duration::from_millis(2_500) + SOON, "freed after {kept:?}");
    }
}

/// A client that is gone before it is answered leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_waits_leaves_nothing() {
    let pair = Pair::redis().await;
    let holder = hold(&pair.there(), "ttl=1m").await;
    let here = pair.here();
    let waiting = tokio::spawn(async move { hold(&here, "ttl=1m&wait=15s").await });
    stand(&pair.there(), 1).await;
    waiting.abort();
    stand(&pair.there(), 0).await;
    drop(holder);
    eventually("the lock is free", async || is_free(&pair.here()).await).await;
    // Nothing comes up later.
    sleep(Duration::from_millis(300)).await;
    assert!(is_free(&pair.here()).await);
}

/// It says "released" of none that is still taken.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_why_a_lock_stays_taken_whose_connection_has_closed() {
    for pair in [Pair::embedded().await, Pair::redis().await] {
        let token = fresh_token();
        pair.here().put("/locks/k?ttl=1m").token(&token).send().await.expect(201);
        leaves(hold_with(&pair.here(), "ttl=2m", &token).await, &pair.here).await;
        let says = |text: &'static str, number: &'static str| {
            pair.here.logs(text, move |line| line.contains(text) && line.contains(number))
        };
        says("is left to its token, which had a lease before", "\"left_ms\"").await;
        assert!(!is_free(&pair.there()).await);
        eventually("it is counted apart", async || {
            let scrape = Scrape::of(pair.here.address).await;
            let of = |result| scrape.get(&format!("fencepost_takes_back_total{{result=\"{result}\"}}"));
            (of("left-to-token"), of("voided")) == (1.0, 0.0)
        })
        .await;
        leaves(Held::take_of(&pair.here(), "kept", "ttl=1m&min_hold=30s").await, &pair.here).await;
        says("min_hold keeps it taken", "\"kept_ms\"").await;
        assert!(!pair.here.log().iter().any(|line| line.contains("the lock is released")));
    }
}
