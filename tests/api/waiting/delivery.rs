//! Clients that leave, and clients that come back elsewhere.

use std::time::Duration;

use tokio::time::Instant;

use super::{Pair, count, hold, median, on_each_pair, put_and_stay, release, stand, wait};
use kit::{Gateway, eventually, fresh_token};

on_each_pair!(
    a_client_that_leaves_is_out_of_the_line_soon,
    a_grant_that_cannot_be_handed_over_passes_to_the_next,
    a_retry_takes_over_the_place_and_the_clean_up_of_the_first_request_does_not_remove_it,
    two_requests_of_one_token_get_the_same_grant,
    a_client_that_left_has_its_place_back_when_it_returns,
);

/// Waits until the gateway has seen so many clients leave.
async fn sees_leave(gateway: &Gateway, clients: usize) {
    eventually("the gateway sees its client leave", async || {
        gateway.log().iter().filter(|line| line.contains("the client left before the answer")).count()
            >= clients
    })
    .await;
}

async fn a_client_that_leaves_is_out_of_the_line_soon(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let mut delays = Vec::new();
    for number in 0..6 {
        let token = if number % 2 == 0 { String::new() } else { fresh_token() };
        let client = put_and_stay(&pair.here, "wait=30s", &token).await;
        stand(&pair.there(), 1).await;
        let left = Instant::now();
        drop(client);
        stand(&pair.there(), 0).await;
        delays.push(left.elapsed());
    }
    assert!(median(delays.clone()) < Duration::from_millis(250), "{delays:?}");
    release(&pair.here(), &holder).await;
}

async fn a_grant_that_cannot_be_handed_over_passes_to_the_next(pair: Pair) {
    let mut delays = Vec::new();
    for round in 0..12 {
        let holder = hold(&pair.here(), "1h").await;
        let token = if round % 2 == 0 { String::new() } else { fresh_token() };
        // An answer that was in the kernel when the client left is not seen to be lost: then the lease has to end.
        let gone = put_and_stay(&pair.here, "wait=30s&ttl=3s", &token).await;
        stand(&pair.there(), 1).await;
        let next = wait(&pair.there(), "wait=30s&ttl=1h", "");
        stand(&pair.there(), 2).await;
        // Before the release, and while the offer is on its way.
        if round % 3 == 0 {
            drop(gone);
            release(&pair.there(), &holder).await;
        } else {
            let client = pair.there();
            tokio::join!(release(&client, &holder), async { drop(gone) });
        }
        let started = Instant::now();
        // A gateway of a quorum that was told late of the holder before believes that for up to 15 s.
        let answered = tokio::time::timeout(Duration::from_secs(25), next).await;
        let answered = answered.expect("the lock stayed with a client that is gone").unwrap();
        delays.push(answered.at.saturating_duration_since(started));
        release(&pair.here(), &answered.answer.expect(201).token()).await;
    }
    assert!(median(delays.clone()) < Duration::from_millis(250), "{delays:?}");
}

async fn a_retry_takes_over_the_place_and_the_clean_up_of_the_first_request_does_not_remove_it(pair: Pair) {
    let mut left = 0;
    for _ in 0..5 {
        let holder = hold(&pair.here(), "1h").await;
        let token = fresh_token();
        let first = put_and_stay(&pair.here, "wait=30s&ttl=1h", &token).await;
        stand(&pair.there(), 1).await;
        let other = wait(&pair.there(), "wait=30s&ttl=1h", "");
        stand(&pair.there(), 2).await;
        let retry = wait(&pair.there(), "wait=30s&ttl=1h", &token);
        // The retry has no place of its own, so nothing that can be counted changes: the first one's departure tells.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(first);
        left += 1;
        sees_leave(&pair.here, left).await;
        release(&pair.here(), &holder).await;
        let answer = retry.await.unwrap().answer;
        assert!([200, 201].contains(&answer.status), "{}", answer.json());
        assert!(!other.is_finished(), "the retry went to the end of the line");
        release(&pair.here(), &token).await;
        let answer = other.await.unwrap().answer.expect(201);
        release(&pair.here(), &answer.token()).await;
    }
}

async fn two_requests_of_one_token_get_the_same_grant(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let token = fresh_token();
    let first = wait(&pair.here(), "wait=30s&ttl=1h", &token);
    stand(&pair.there(), 1).await;
    let second = wait(&pair.there(), "wait=30s&ttl=1h", &token);
    release(&pair.here(), &holder).await;
    let (first, second) = (first.await.unwrap().answer, second.await.unwrap().answer);
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201], "{} {}", first.json(), second.json());
    assert_eq!(first.fencing_token(), second.fencing_token());
    assert_eq!(count(&pair.here()).await, 0);
}

async fn a_client_that_left_has_its_place_back_when_it_returns(pair: Pair) {
    let holder = hold(&pair.here(), "1h").await;
    let token = fresh_token();
    let first = put_and_stay(&pair.here, "wait=30s&ttl=1h", &token).await;
    stand(&pair.there(), 1).await;
    let other = wait(&pair.there(), "wait=30s&ttl=1h", "");
    stand(&pair.there(), 2).await;
    drop(first);
    stand(&pair.there(), 1).await;
    let back = wait(&pair.there(), "wait=30s&ttl=1h", &token);
    stand(&pair.there(), 2).await;
    release(&pair.here(), &holder).await;
    back.await.unwrap().answer.expect(201);
    assert!(!other.is_finished());
    release(&pair.here(), &token).await;
    other.await.unwrap().answer.expect(201);
}
