//! What becomes of the locks that a request has while it waits for the others.

use super::*;
use http_body_util::BodyExt;

const TTL: Duration = Duration::from_secs(2);

/// The lock `b` is held by another, and a request for both waits for it.
async fn waits_for_the_second(client: &Client, query: &str, token: &str) -> tokio::task::JoinHandle<Answer> {
    let call = client.put(&format!("/lock?key=b&key=a&wait=20s&{query}")).token(token);
    let waits = tokio::spawn(async move { call.send().await });
    somebody_waits(client, "b").await;
    assert!(!is_free(client, "a").await, "it has the first one");
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_renewed_while_the_request_waits_and_all_last_for_the_ttl_at_the_end() {
    each_store(async |client| {
        let other = client.put("/locks/b?ttl=1m").send().await.expect(201);
        let began = Instant::now();
        let waits = waits_for_the_second(client, "ttl=1s", &fresh_token()).await;
        // Three times as long as a lease.
        while began.elapsed() < Duration::from_secs(3) {
            assert!(!is_free(client, "a").await, "its lease ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client.delete("/locks/b").token(&other.token()).send().await.expect(204);
        let taken = waits.await.unwrap().expect(201);
        let left_ms = taken.json()["ttl_ms"].as_u64().unwrap();
        assert!((300..=1_000).contains(&left_ms), "{left_ms}");
        // From here on the gateway renews nothing.
        eventually("both have ended", async || is_free(client, "a").await && is_free(client, "b").await)
            .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_two_keys_the_gateway_leaves_nothing_beyond_the_ttl() {
    let redis = RedisServer::start().await;
    let (mut here, there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let (client, other) = (Client::new(here.address), Client::new(there.address));
    other.put("/locks/b?ttl=1m").send().await.expect(201);
    let ttl_ms = TTL.as_millis();
    let call = client.put(&format!("/lock?key=a&key=b&wait=20s&ttl={ttl_ms}ms"));
    let waits = tokio::spawn(async move { call.try_send().await });
    somebody_waits(&other, "b").await;
    assert!(!is_free(&other, "a").await);
    here.kill();
    let killed = Instant::now();
    assert!(waits.await.unwrap().is_err(), "nobody was there to answer");
    eventually("it is free", async || is_free(&other, "a").await).await;
    until(killed, TTL + Duration::from_millis(500));
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_given_back_when_the_client_leaves() {
    each_store(async |client| {
        let other = client.put("/locks/b?ttl=1m").send().await.expect(201);
        let waits = waits_for_the_second(client, "ttl=1m", &fresh_token()).await;
        waits.abort();
        eventually("it is free", async || is_free(client, "a").await).await;
        client.delete("/locks/b").token(&other.token()).send().await.expect(204);
        client.put("/lock?key=a&key=b&wait=20s").send().await.expect(201);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_lost_meanwhile_ends_the_request_and_is_named() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/b?ttl=1m").send().await.expect(201);
    // It is broken, or its own token releases it, or its `max_hold` is over: no fault of the store.
    for (query, released, status, problem) in [
        ("ttl=1s", Some(false), 409, "token-released"),
        ("ttl=1s", Some(true), 409, "token-released"),
        ("ttl=1s&max_hold=1s", None, 400, "bad-parameter"),
    ] {
        let token = fresh_token();
        let waits = waits_for_the_second(&client, query, &token).await;
        match released {
            Some(true) => drop(client.delete("/lock?key=a").token(&token).send().await.expect(204)),
            Some(false) => drop(client.delete("/lock?key=a&force=true").send().await.expect(204)),
            None => {}
        }
        let answer = waits.await.unwrap().expect_problem(status, problem);
        assert_eq!(answer.json()["key"], json!("a"));
        eventually("the queue is empty", async || {
            client.get("/locks/b").send().await.json()["waiters"] == json!(0)
        })
        .await;
        assert!(is_free(&client, "a").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_comes_in_time_when_the_store_stands_still() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "1s"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/b?ttl=1m").send().await.expect(201);
    let waits = waits_for_the_second(&client, "ttl=30s", &fresh_token()).await;
    waits.abort();
    eventually("it is given back", async || is_free(&client, "a").await).await;
    let call = client.put("/lock?key=a&key=b&wait=2s&ttl=30s");
    let began = Instant::now();
    let waits = tokio::spawn(async move { call.send().await });
    eventually("it has the first", async || !is_free(&client, "a").await).await;
    redis.signal("STOP");
    // What it has is in doubt, and is given back once the store goes on.
    waits.await.unwrap().expect_problem(503, "outcome-unknown");
    until(began, Duration::from_millis(2_000 + 1_000 + 800));
    redis.signal("CONT");
    eventually("it is given back", async || is_free(&client, "a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_at_another_gateway_takes_over() {
    let redis = RedisServer::start().await;
    let (here, there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let (here, there) = (Client::new(here.address), Client::new(there.address));
    let (token, other) = (fresh_token(), there.put("/locks/b?ttl=1m").send().await.expect(201));
    let first = waits_for_the_second(&here, "ttl=1s", &token).await;
    let call = there.put("/lock?key=a&key=b&ttl=1s&wait=20s").token(&token);
    let second = tokio::spawn(async move { call.send().await });
    // The first one does not know what the second will be told.
    first.await.unwrap().expect_problem(503, "outcome-unknown");
    there.delete("/locks/b").token(&other.token()).send().await.expect(204);
    second.await.unwrap().expect(201);
}

/// It is not said to be held by a connection: no request here holds by one.
#[tokio::test(flavor = "multi_thread")]
async fn whose_later_request_is_granted_the_lock_is_told_so() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let (token, other) = (fresh_token(), client.put("/locks/b?ttl=1m").send().await.expect(201));
    let first = waits_for_the_second(&client, "ttl=30s", &token).await;
    let call = client.put("/lock?key=b&key=c&ttl=30s&wait=20s").token(&token);
    let second = tokio::spawn(async move { call.send().await });
    eventually("it waits as well", async || {
        let seats: Vec<String> = redis.command(&["HVALS", "fencepost:{0}:seats:b"]).await;
        seats.iter().any(|ticket| ticket.split(' ').count() > 3)
    })
    .await;
    client.delete("/locks/b").token(&other.token()).send().await.expect(204);
    second.await.unwrap().expect(201);
    let told = first.await.unwrap().expect_problem(503, "outcome-unknown").json();
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.contains("another request of the same token was granted the lock"), "{detail}");
}

/// The next event of a stream of lines that is no heartbeat; `None` at its end.
async fn next(body: &mut hyper::body::Incoming) -> Option<Value> {
    loop {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("no event comes")?;
        let event: Value = serde_json::from_slice(&frame.unwrap().into_data().unwrap()).unwrap();
        if event["event"] != json!("heartbeat") {
            return Some(event);
        }
    }
}

async fn holds_both(client: &Client) -> hyper::body::Incoming {
    let call = client.post("/hold?key=b&key=a&ttl=1s").header("accept", "application/x-ndjson");
    let response = call.open().await;
    assert_eq!((response.status().as_u16(), response.headers().get("fencing-token")), (200, None));
    let mut body = response.into_body();
    let granted = next(&mut body).await.unwrap();
    let locks = granted["locks"].as_array().unwrap();
    assert_eq!(
        (&granted["event"], &locks[0]["key"], &locks[1]["key"]),
        (&json!("granted"), &json!("b"), &json!("a"))
    );
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_holds_several_and_gives_all_up_with_the_first_that_is_lost() {
    each_store(async |client| {
        let mut held = holds_both(client).await;
        let mut renewed = std::collections::BTreeSet::new();
        while renewed.len() < 2 {
            let event = next(&mut held).await.unwrap();
            assert_eq!(event["event"], json!("renewed"), "{event}");
            renewed.insert(event["key"].as_str().unwrap().to_owned());
        }
        drop(held);
        eventually("both are free", async || is_free(client, "a").await && is_free(client, "b").await).await;

        let mut held = holds_both(client).await;
        client.delete("/lock?key=a&force=true").send().await.expect(204);
        let lost = loop {
            let event = next(&mut held).await.unwrap();
            if event["event"] != json!("renewed") {
                break event;
            }
        };
        assert_eq!(
            (&lost["event"], &lost["key"], &lost["reason"]),
            (&json!("lost"), &json!("a"), &json!("released"))
        );
        assert_eq!(next(&mut held).await, None);
        eventually("the other is free", async || is_free(client, "b").await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_leaves_all_of_them_to_the_token() {
    let redis = RedisServer::start().await;
    let (here, there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let mut held = holds_both(&Client::new(here.address)).await;
    here.signal("TERM");
    let mut left = std::collections::BTreeSet::new();
    while let Some(event) = next(&mut held).await {
        if event["event"] == json!("lost") {
            assert_eq!(event["reason"], json!("shutting-down"));
            let (key, token) = (event["key"].as_str().unwrap(), event["token"].as_str().unwrap());
            let path = format!("/locks/{key}?ttl=30s");
            Client::new(there.address).patch(&path).token(token).send().await.expect(200);
            left.insert(key.to_owned());
        }
    }
    assert_eq!(left.len(), 2);
}
