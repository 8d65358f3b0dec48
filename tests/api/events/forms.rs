//! How streams are asked for, what is refused, and how they end.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::Instant;

use super::Stream;
use kit::{Client, Gateway, Stage, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn events_are_lines_of_json_for_those_who_want_them() {
    let stage = Stage::embedded().await;
    let client = stage.client();
    let call = client.call("GET", "/events?key=k").header("Accept", "application/x-ndjson");
    let mut lines = Stream::by(call).await;
    assert!(lines.is_ndjson);
    lines.next().await.is("resync");
    let grant = client.put("/locks/k?owner=me").send().await.expect(201);
    let granted = lines.next_news().await.is("granted");
    assert_eq!((granted.fencing_token(), &granted.data["owner"]), (grant.fencing_token(), &"me".into()));
    drop(lines);
    let call = client.call("GET", "/events?key=k").header("Accept", "application/x-ndjson");
    let mut back = Stream::by(call.header("Last-Event-ID", &granted.id)).await;
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    back.next_news().await.is("released");
}

/// The name of the next event but those that have one look again.
async fn but_looks(stream: &mut Stream) -> String {
    loop {
        let event = stream.read_any().await.unwrap();
        if event.name != "resync" {
            return event.name;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_has_a_heartbeat() {
    let stage = Stage::embedded().await;
    let client = stage.client();
    let call = client.call("GET", "/events?key=k").header("Accept", "application/x-ndjson");
    let (mut events, mut lines) = (Stream::open(&client, "key=k").await, Stream::by(call).await);
    lines.next().await.is("resync");
    let opened = Instant::now();
    assert_eq!(but_looks(&mut events).await, "heartbeat");
    let silent = opened.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&silent), "{silent:?}");
    assert_eq!(but_looks(&mut lines).await, "heartbeat");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_watched_is_refused() {
    let stage = Stage::embedded().await;
    let client = stage.client();
    let long = format!("prefix={}", "x".repeat(513));
    for (query, parameter) in [
        ("", "key"),
        ("key=k&prefix=p", "prefix"),
        ("prefix=%ff", "prefix"),
        ("prefix=a%0A", "prefix"),
        (&long, "prefix"),
        ("key=k&ttl=5s", "ttl"),
        ("prefix=%zz", "prefix"),
    ] {
        let refused = client.get(&format!("/events?{query}")).send().await;
        assert_eq!(refused.expect_problem(400, "bad-parameter").json()["parameter"], parameter, "{query}");
    }
    client.get("/events?key=").send().await.expect_problem(400, "bad-key");
    client.get("/events?key=k").body("x").send().await.expect_problem(400, "unexpected-body");
    client.call("POST", "/events?key=k").send().await.expect_problem(405, "method-not-allowed");
    client.call("HEAD", "/events?key=k").send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_watch_than_may_and_by_http1_fewer_than_there_are_connections() {
    let gateway = Gateway::start(&["--store", "memory:", "--max-watchers", "2"]).await;
    let client = Client::new(gateway.address);
    let first = Stream::open(&client, "key=k").await;
    let _second = Stream::open(&client, "key=k").await;
    client.get("/events?key=k").send().await.expect_problem(429, "too-many-watchers");
    drop(first);
    eventually("there is room again", async || {
        let answer = client.call("GET", "/events?key=k").open().await;
        answer.status() == 200
    })
    .await;
    let gateway = Gateway::start(&[
        "--store",
        "memory:",
        "--max-connections",
        "12",
        "--max-connections-per-address",
        "12",
    ])
    .await;
    let client = Client::new(gateway.address);
    let mut streams = Vec::new();
    for _ in 0..9 {
        streams.push(Stream::open(&client, "key=k").await);
    }
    client.get("/events?key=k").send().await.expect_problem(429, "too-many-watchers");
    client.put("/locks/k").send().await.expect(201);
    drop((streams, client));
    // By HTTP/2 they share one, as soon as there is one again.
    let client = Client::h2c(gateway.address);
    eventually("a connection is taken", async || client.get("/healthz").try_send().await.is_ok()).await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(Stream::open(&client, "key=k").await);
    }
    let token = client.put("/locks/other").send().await.expect(201).token();
    client.delete("/locks/other").token(&token).send().await.expect(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_ends_all_streams_at_once() {
    let mut gateway = Gateway::start(&["--store", "memory:", "--drain-timeout", "15s"]).await;
    let client = Client::new(gateway.address);
    let mut streams = [Stream::open(&client, "key=k").await, Stream::open(&client, "prefix=").await];
    gateway.signal("TERM");
    let told = Instant::now();
    for stream in &mut streams {
        assert_eq!(stream.rest().await, []);
        assert!(stream.body.frame().await.is_none());
    }
    assert!(gateway.exit_status().await.success());
    assert!(told.elapsed() < Duration::from_secs(8), "{:?}", told.elapsed());
}
