//! How many may wait, and what becomes of them when a gateway stops.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Pair, count, hold, release, stand, wait};
use kit::metrics::Scrape;
use kit::{Client, eventually, fresh_token, h2};

/// On each store, with these arguments.
async fn pairs(args: &[&str]) -> [Pair; 2] {
    [Pair::embedded_with(args).await, Pair::redis_with(args).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_full_refuses_the_next_and_changes_nothing() {
    for pair in pairs(&["--max-waiters-per-key", "3"]).await {
        let holder = hold(&pair.here(), "1h").await;
        let waiting: Vec<_> =
            (0..3).map(|number| wait(&pair.client(number), "wait=50s&ttl=1h", "")).collect();
        stand(&pair.here(), 3).await;
        for client in [pair.here(), pair.there()] {
            let refused = client.put("/locks/k?wait=1s").token(&fresh_token()).send().await;
            let refused = refused.expect_problem(429, "too-many-waiters");
            assert!(refused.header("retry-after").is_some());
        }
        assert_eq!(count(&pair.here()).await, 3);
        // Other locks have lines of their own, and who does not wait needs no place.
        pair.here().put("/locks/other?wait=1s").send().await.expect(201);
        pair.here().put("/locks/k").send().await.expect_problem(423, "lock-held");
        release(&pair.here(), &holder).await;
        let (first, _, others) = futures_util::future::select_all(waiting).await;
        first.unwrap().answer.expect(201);
        stand(&pair.here(), 2).await;
        let joined = wait(&pair.there(), "wait=50s", "");
        stand(&pair.here(), 3).await;
        joined.abort();
        others.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// What one who waits costs is mostly the room that its request keeps for whatever it may yet do.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_takes_little_memory() {
    const WAITERS: usize = 2_000;
    const PER_CONNECTION: usize = 200;
    const MOST_KIB_PER_WAITER: f64 = 8.0;
    for pair in pairs(&[]).await {
        hold(&pair.here(), "1h").await;
        let mut waiting = JoinSet::new();
        let mut before_kib = 0.0;
        for number in 0..WAITERS / PER_CONNECTION {
            let client = Client::h2c(pair.here.address);
            (0..PER_CONNECTION).for_each(|_| drop(waiting.spawn(client.put("/locks/k?wait=50s").send())));
            stand(&pair.here(), waiting.len() as u64).await;
            if number == 0 {
                // Whatever is made once is there by now.
                before_kib = pair.here.memory_kib("VmRSS") as f64;
            }
        }
        let grown_kib = pair.here.memory_kib("VmRSS") as f64 - before_kib;
        let per_waiter_kib = grown_kib / (WAITERS - PER_CONNECTION) as f64;
        assert!(per_waiter_kib <= MOST_KIB_PER_WAITER, "{per_waiter_kib:.1} KiB for each");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_at_which_too_many_wait_refuses_the_next() {
    for pair in pairs(&["--max-waiters", "2"]).await {
        hold(&pair.here(), "1h").await;
        let waiting: Vec<_> = (0..2).map(|_| wait(&pair.here(), "wait=50s&ttl=1h", "")).collect();
        stand(&pair.here(), 2).await;
        // Also for a lock that is free: whether one has to wait is not known before.
        for key in ["k", "free"] {
            let refused = pair.here().put(&format!("/locks/{key}?wait=1s")).send().await;
            assert!(refused.expect_problem(429, "too-many-waiters").header("retry-after").is_some());
        }
        pair.here().put("/locks/free").send().await.expect(201);
        // Nobody of them is left behind.
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        stand(&pair.here(), 0).await;
        pair.here().put("/locks/again?wait=1s").send().await.expect(201);
    }
}

/// Each who waits by HTTP/1 keeps a connection, and the holder needs one as well.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_leave_connections_to_those_who_hold() {
    // `t` is the name by which the kit's requests of HTTP/2 call a gateway.
    let args = ["--max-connections", "8", "--max-connections-per-address", "8", "--allow-host", "t"];
    let pair = Pair::embedded_with(&args).await;
    let holder = {
        let client = pair.here();
        hold(&client, "1h").await
    };
    let mut waiting = Vec::new();
    // Those of HTTP/2 share a connection, and take no place of others.
    let mut many = TcpStream::connect(pair.here.address).await.unwrap();
    let requests = (1..16).step_by(2).flat_map(|n| h2::request(n, "PUT", "/locks/k?wait=50s&ttl=1h"));
    let greeting = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
    many.write_all(&greeting.into_iter().chain(requests).collect::<Vec<_>>()).await.unwrap();
    stand(&pair.here(), 8).await;
    // It keeps one connection of those that are left to others, and the next is for the holder.
    for waiters in 9..=14 {
        waiting.push(super::put_and_stay(&pair.here, "wait=50s&ttl=1h", "").await);
        stand(&pair.here(), waiters).await;
    }
    let refused = pair.here().put("/locks/k?wait=50s").send().await;
    refused.expect_problem(429, "too-many-waiters");
    pair.here().patch("/locks/k?ttl=2h").token(&holder).send().await.expect(200);
    release(&pair.here(), &holder).await;
    stand(&pair.here(), 13).await;
}

/// Also while its Redis does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_answers_its_waiters_while_its_store_is_silent() {
    let mut pair = Pair::redis_with(&["--store-timeout", "1s"]).await;
    let _holder = hold(&pair.here(), "1h").await;
    let waiting: Vec<_> = (0..5).map(|_| wait(&pair.here(), "wait=50s&ttl=1h", &fresh_token())).collect();
    stand(&pair.there(), 5).await;
    pair.redis().signal("STOP");
    eventually("the outage is known", async || {
        pair.here().put("/locks/k").send().await.json()["type"] == "/problems/store-unavailable"
    })
    .await;
    let asked = Instant::now();
    pair.here.signal("TERM");
    for answered in join_all(waiting).await {
        let answered = answered.unwrap();
        assert!(answered.at - asked < Duration::from_secs(6), "{:?}", answered.at - asked);
        answered.answer.expect(503);
    }
    assert!(pair.here.exit_status().await.success());
    pair.redis().signal("CONT");
}

/// The first waiter of each lock polls: after an outage all that wait would come at once, and a core would do nothing else in it.
#[tokio::test(flavor = "multi_thread")]
async fn one_who_waits_asks_seldom_while_nothing_listens_at_its_store() {
    let pair = Pair::redis_with(&["--store-timeout", "1s"]).await;
    hold(&pair.here(), "3s").await;
    let waiting = wait(&pair.here(), "wait=9s&ttl=1h", "");
    stand(&pair.there(), 1).await;
    pair.redis().signal("KILL");
    waiting.await.unwrap().answer.expect_problem(503, "store-unavailable");
    let numbers = Scrape::of(pair.here.address).await;
    let unanswered = numbers.get("fencepost_store_errors_total{kind=\"unavailable\",step=\"acquire\"}");
    // It first polls at the end of the lease, with short pauses. Without longer ones it asks 28 times in its last 6 seconds.
    assert!((1.0..22.0).contains(&unanswered), "{unanswered} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_answers_its_waiters_and_takes_them_out_of_the_line() {
    for mut pair in pairs(&[]).await {
        let _holder = hold(&pair.here(), "1h").await;
        let tokens: Vec<_> =
            (0..20).map(|number| if number % 2 == 0 { fresh_token() } else { String::new() }).collect();
        let waiting: Vec<_> =
            tokens.iter().map(|token| wait(&pair.here(), "wait=50s&ttl=1h", token)).collect();
        stand(&pair.there(), 20).await;
        let asked = Instant::now();
        pair.here.signal("TERM");
        for answered in join_all(waiting).await {
            let answered = answered.unwrap();
            assert!(answered.at - asked < Duration::from_secs(5), "they are answered at once");
            let answer = answered.answer.expect_problem(503, "shutting-down");
            assert!(answer.header("retry-after").is_some());
        }
        assert!(pair.here.exit_status().await.success());
    }
}

/// Who was answered by a gateway that stops goes on at another one, from the same place.
#[tokio::test(flavor = "multi_thread")]
async fn places_at_a_gateway_that_stops_are_good_at_another_one() {
    let mut pair = Pair::redis_with(&[]).await;
    let holder = hold(&pair.there(), "1h").await;
    let token = fresh_token();
    let first = wait(&pair.here(), "wait=50s&ttl=1h", &token);
    stand(&pair.there(), 1).await;
    let second = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.there(), 2).await;
    pair.here.signal("TERM");
    first.await.unwrap().answer.expect_problem(503, "shutting-down");
    assert!(pair.here.exit_status().await.success());
    assert_eq!(count(&pair.there()).await, 1, "it has left the line");
    let back = wait(&pair.there(), "wait=50s&ttl=1h", &token);
    stand(&pair.there(), 2).await;
    release(&pair.there(), &holder).await;
    back.await.unwrap().answer.expect(201);
    assert!(!second.is_finished());
    release(&pair.there(), &token).await;
    second.await.unwrap().answer.expect(201);
}
