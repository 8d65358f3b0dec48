//! First come, first served.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;

use super::{Pair, hold, on_each_pair, put_and_stay, release, stand, wait};
use kit::fresh_token;

on_each_pair!(
    waiters_are_granted_in_the_order_of_their_arrival,
    a_newcomer_does_not_overtake_the_line,
    a_newcomer_that_meets_a_promised_lock_is_told_of_no_holder,
    the_lease_begins_at_the_grant_and_the_wait_may_be_longer_than_it,
    those_who_wait_are_counted,
);

async fn waiters_are_granted_in_the_order_of_their_arrival(pair: Pair) {
    let mut holder = hold(&pair.here(), "1h").await;
    let mut waiting = FuturesUnordered::new();
    for number in 0..10 {
        // With tokens of their own, and with such as the server makes.
        let token = if number % 3 == 0 { String::new() } else { fresh_token() };
        let answer = wait(&pair.client(number), "wait=30s&ttl=1h", &token);
        waiting.push(async move { (number, answer.await.unwrap()) });
        stand(&pair.client(number + 1), number as u64 + 1).await;
    }
    let mut last = 0;
    for expected in 0..10 {
        release(&pair.client(expected), &holder).await;
        let (number, answered) = waiting.next().await.unwrap();
        let answer = answered.answer.expect(201);
        assert_eq!(number, expected, "out of turn");
        assert!(answer.fencing_token() > last);
        (holder, last) = (answer.token(), answer.fencing_token());
    }
}

async fn a_newcomer_does_not_overtake_the_line(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let first = wait(&pair.there(), "wait=30s&ttl=1h", "");
    stand(&pair.here(), 1).await;
    // Newcomers ask all the time, while the lock changes hands.
    let (client, token) = (pair.here(), fresh_token());
    let pushy = tokio::spawn(async move {
        loop {
            let answer = client.put("/locks/k?ttl=1h").token(&token).send().await;
            if answer.status != 423 || answer.json()["holder"]["owner"] == "first" {
                return answer.status;
            }
        }
    });
    let second = wait(&pair.here(), "wait=200ms&ttl=1h", "");
    stand(&pair.here(), 2).await;
    release(&pair.there(), &holder).await;
    first.await.unwrap().answer.expect(201);
    second.await.unwrap().answer.expect_problem(423, "lock-held");
    pushy.abort();
    assert!(pushy.await.is_err(), "a newcomer took the lock");
}

async fn a_newcomer_that_meets_a_promised_lock_is_told_of_no_holder(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let (client, ticket) = (pair.there(), fresh_token());
    let put =
        async |wait: &str| client.put(&format!("/locks/k?ttl=1h&wait={wait}")).token(&ticket).send().await;
    put("1ms").await.expect_problem(423, "lock-held");
    // Nobody calls for the ticket, so the free lock is promised for a while.
    release(&pair.here(), &holder).await;
    let refused = pair.here().put("/locks/k").send().await.expect_problem(423, "lock-held");
    assert_eq!(refused.json()["holder"], Value::Null, "{}", refused.json());
    assert_eq!(refused.json()["waiters"], 1);
    assert_eq!(refused.json()["position"], Value::Null);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let free = pair.here().get("/locks/k").send().await.expect_problem(404, "not-held");
    assert_eq!(free.json()["waiters"], 1);
    // The ticket's own client finds it promised to itself, also without waiting.
    put("0s").await.expect(201);
}

async fn the_lease_begins_at_the_grant_and_the_wait_may_be_longer_than_it(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let waiting = wait(&pair.there(), "wait=20s&ttl=2s", "");
    stand(&pair.here(), 1).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    release(&pair.here(), &holder).await;
    let left_ms = waiting.await.unwrap().answer.expect(201).json()["ttl_ms"].as_u64().unwrap();
    assert!((500..=2_000).contains(&left_ms), "{left_ms}");
}

async fn those_who_wait_are_counted(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    assert_eq!(super::count(&pair.here()).await, 0);
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(put_and_stay(&pair.here, "wait=30s", "").await);
        stand(&pair.there(), number).await;
    }
    let look = pair.there().get("/locks/k").token(&holder).send().await.expect(200);
    assert_eq!((look.json()["waiters"].as_u64(), look.json()["yours"].as_bool()), (Some(3), Some(true)));
    let refused = pair.there().put("/locks/k").send().await.expect_problem(423, "lock-held");
    assert_eq!(refused.json()["waiters"], 3);
    assert!(refused.json()["holder"].is_object());
    drop(clients);
    stand(&pair.there(), 0).await;
}
