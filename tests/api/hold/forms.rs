//! How events are written: as server-sent events or as lines, to clients old and new.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::{Event, Pair, check_line, hold, is_free, stand};
use kit::{Client, PATIENCE, eventually};

/// A request as it is, and the answer line by line.
async fn post(pair: &Pair, version: &str, headers: &str) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(pair.here.address).await.unwrap();
    let request =
        format!("POST /hold?key=k&ttl=1s&max_hold=2s HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    BufReader::new(stream).lines()
}

async fn read(lines: &mut Lines<BufReader<TcpStream>>) -> String {
    timeout(PATIENCE, lines.next_line()).await.expect("no line comes").unwrap().expect("the stream ends")
}

/// The next line of an event.
async fn line_of_event(lines: &mut Lines<BufReader<TcpStream>>) -> String {
    loop {
        let line = read(lines).await;
        if !line.is_empty() {
            return line;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_json_are_given_to_those_who_accept_them() {
    let pair = Pair::embedded().await;
    let mut lines = post(&pair, "1.1", "Accept: application/x-ndjson\r\n").await;
    let mut names = Vec::new();
    loop {
        let line = read(&mut lines).await;
        if line.starts_with("content-type") {
            assert_eq!(line, "content-type: application/x-ndjson");
        }
        if line.starts_with('{') {
            let event: Value = serde_json::from_str(&line).unwrap();
            check_line(&event);
            names.push(event["event"].as_str().unwrap().to_owned());
            if event["event"] == "lost" {
                break;
            }
        }
    }
    assert_eq!(names[..2], ["granted", "renewed"]);
    assert!(is_free(&pair.here()).await);
}

/// It knows neither chunks nor kept connections: the end of the stream is that of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_speaks_http_1_0_holds_a_lock() {
    let pair = Pair::embedded().await;
    let mut lines = post(&pair, "1.0", "").await;
    assert_eq!(read(&mut lines).await, "HTTP/1.0 200 OK");
    while !read(&mut lines).await.is_empty() {}
    assert_eq!(line_of_event(&mut lines).await, "event: granted");
    assert!(line_of_event(&mut lines).await.starts_with("data: {\"key\":\"k\","));
    assert_eq!(line_of_event(&mut lines).await, "event: renewed");
    let mut rest = String::new();
    let mut stream = lines.into_inner();
    timeout(PATIENCE, stream.read_to_string(&mut rest)).await.expect("the connection stays open").unwrap();
    assert!(rest.contains("event: lost"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_speaks_http_2_holds_many_locks_on_one_connection() {
    let pair = Pair::embedded().await;
    let client = Client::h2c(pair.here.address);
    let mut held = hold(&client, "ttl=1500ms").await;
    let others: Vec<_> = futures_util::future::join_all(
        (0..20).map(|number| client.call("POST", &format!("/hold?key=other{number}&ttl=1500ms")).open()),
    )
    .await;
    for _ in 0..4 {
        assert_eq!(held.next().await.unwrap().name, "renewed");
    }
    // Each of them ends by itself.
    drop(held);
    eventually("the lock is free", async || is_free(&pair.here()).await).await;
    pair.here().get("/locks/other7").send().await.expect(200);
    drop(others);
    eventually("the others are free", async || pair.here().get("/locks/other7").send().await.status == 404)
        .await;
}

/// A client that reads it late counts from when it asked, and so never for longer than the lease lasts.
#[tokio::test(flavor = "multi_thread")]
async fn each_event_with_a_lease_says_how_long_ago_the_request_came() {
    let pair = Pair::embedded().await;
    let holder = pair.here().put("/locks/k?ttl=1m").send().await.expect(201).token();
    let (asked, here) = (Instant::now(), pair.here());
    let waiting = tokio::spawn(async move { hold(&here, "ttl=1s&wait=15s").await });
    stand(&pair.here(), 1).await;
    let came = Instant::now();
    sleep(Duration::from_millis(300)).await;
    let at_least = came.elapsed();
    pair.here().delete("/locks/k").token(&holder).send().await.expect(204);
    let mut held = waiting.await.unwrap();
    let age = |event: &Event| Duration::from_millis(event.data["request_age_ms"].as_u64().unwrap() + 1);
    let mut last = age(&held.granted);
    assert!(last > at_least, "{:?}: {at_least:?}", held.granted);
    for _ in 0..3 {
        let renewed = held.next().await.unwrap();
        assert!(age(&renewed) > last + Duration::from_millis(100), "{renewed:?} after {last:?}");
        last = age(&renewed);
        assert!(last <= asked.elapsed() + Duration::from_millis(1), "{renewed:?}");
    }
}
