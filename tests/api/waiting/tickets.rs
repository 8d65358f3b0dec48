//! A place that outlives its request: how one who may only wait a little at a time queues for long, and fairly.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Pair, count, hold, on_each_pair, release, stand, wait};
use kit::fresh_token;

on_each_pair!(
    with & ["--ticket-ttl", "3s"];
    one_who_asks_again_and_again_keeps_its_place,
    a_ticket_that_is_not_called_for_holds_the_line_up_for_at_most_a_second,
    a_ticket_that_is_not_called_for_is_offered_a_lock_once_though_no_one_looks_meanwhile,
    a_ticket_ends,
    a_delete_with_the_token_leaves_the_line,
    no_ticket_without_waiting_or_without_a_token_of_ones_own,
);

async fn one_who_asks_again_and_again_keeps_its_place(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let patient = fresh_token();
    let ask = async |number: usize| {
        pair.client(number).put("/locks/k?ttl=1h&wait=200ms").token(&patient).send().await
    };
    let refused = ask(0).await.expect_problem(423, "lock-held");
    assert_eq!((refused.json()["position"].as_u64(), refused.json()["waiters"].as_u64()), (Some(1), Some(1)));
    let other = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.here(), 2).await;
    for number in 1..6 {
        sleep(Duration::from_millis(100)).await;
        let refused = ask(number).await.expect_problem(423, "lock-held");
        assert_eq!(refused.json()["position"], 1, "{}", refused.json());
        assert_eq!(refused.header("retry-after"), Some("1"), "to ask again at once is best");
    }
    // Its client is away for a moment while its turn comes.
    release(&pair.here(), &holder).await;
    ask(0).await.expect(201);
    assert!(!other.is_finished());
    release(&pair.here(), &patient).await;
    other.await.unwrap().answer.expect(201);
}

async fn a_ticket_that_is_not_called_for_holds_the_line_up_for_at_most_a_second(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let away = [fresh_token(), fresh_token(), fresh_token()];
    for (number, token) in away.iter().enumerate() {
        let put = pair.client(number).put("/locks/k?ttl=1h&wait=1ms").token(token);
        assert_eq!(put.send().await.expect_problem(423, "lock-held").json()["position"], number + 1);
    }
    let live = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.here(), 4).await;
    let released = release(&pair.here(), &holder).await;
    let answered = live.await.unwrap();
    let delay = answered.at - released;
    assert!(delay >= Duration::from_millis(700), "they were not offered the lock: {delay:?}");
    // A second is the offer with what it takes to see it lapse; the rest is the machine's. Three offers would take longer.
    assert!(delay < Duration::from_secs(2), "{delay:?}");
    // They were passed over, and keep their places in front of whoever comes later.
    let later = wait(&pair.here(), "wait=50s&ttl=1h", "");
    stand(&pair.here(), 1).await;
    let back = pair.there().put("/locks/k?ttl=1h&wait=1ms").token(&away[1]).send().await;
    assert_eq!(back.expect_problem(423, "lock-held").json()["position"], 1);
    later.abort();
}

/// The offer has lapsed, and whatever says so may have ended as well; the ticket has not.
async fn a_ticket_that_is_not_called_for_is_offered_a_lock_once_though_no_one_looks_meanwhile(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let put = pair.here().put("/locks/k?ttl=1h&wait=1ms").token(&fresh_token());
    put.send().await.expect_problem(423, "lock-held");
    release(&pair.here(), &holder).await;
    sleep(Duration::from_secs(2)).await;
    pair.there().put("/locks/k?ttl=1h").send().await.expect(201);
}

async fn a_ticket_ends(pair: Pair) {
    hold(&pair.here(), "1h").await;
    let token = fresh_token();
    let ask = async || {
        let put = pair.here().put("/locks/k?ttl=1h&wait=1ms").token(&token);
        put.send().await.expect_problem(423, "lock-held").json()["position"].as_u64()
    };
    assert_eq!(ask().await, Some(1));
    let asked = Instant::now();
    let other = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.here(), 2).await;
    assert!(asked.elapsed() < Duration::from_secs(3));
    assert_eq!(ask().await, Some(1), "each time it is asked for, it lives on");
    sleep(Duration::from_millis(3_200)).await;
    assert_eq!(ask().await, Some(2));
    other.abort();
}

async fn a_delete_with_the_token_leaves_the_line(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let (waiting, ticket) = (fresh_token(), fresh_token());
    let first = wait(&pair.here(), "wait=50s&ttl=1h", &waiting);
    stand(&pair.there(), 1).await;
    pair.here().put("/locks/k?wait=1ms").token(&ticket).send().await.expect(423);
    let other = wait(&pair.there(), "wait=50s&ttl=1h", "");
    stand(&pair.there(), 3).await;
    for token in [&waiting, &ticket] {
        // At whichever gateway, and again with the same answer.
        for client in [pair.there(), pair.here()] {
            client.delete("/locks/k").token(token).send().await.expect(204);
        }
    }
    first.await.unwrap().answer.expect_problem(409, "token-released");
    pair.here().put("/locks/k?wait=1s").token(&ticket).send().await.expect_problem(409, "token-released");
    assert_eq!(count(&pair.there()).await, 1);
    release(&pair.here(), &holder).await;
    other.await.unwrap().answer.expect(201);
}

async fn no_ticket_without_waiting_or_without_a_token_of_ones_own(pair: Pair) {
    hold(&pair.here(), "1h").await;
    for (query, token) in
        [("wait=0s", fresh_token()), ("ttl=1s", fresh_token()), ("wait=50ms", String::new())]
    {
        let refused =
            wait(&pair.there(), query, &token).await.unwrap().answer.expect_problem(423, "lock-held");
        assert_eq!(refused.json()["position"], Value::Null);
        assert_eq!(refused.json()["waiters"], 0);
        assert_eq!(count(&pair.here()).await, 0);
    }
    // One that asks without waiting, and has a ticket, is told of it, and keeps it.
    let token = fresh_token();
    wait(&pair.here(), "wait=50ms", &token).await.unwrap().answer.expect(423);
    let refused = wait(&pair.there(), "wait=0s", &token).await.unwrap().answer.expect(423);
    assert_eq!(refused.json()["position"], 1);
}
