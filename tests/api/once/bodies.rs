//! The one request with a body: how long it may be, how long it may take, and what is kept of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use kit::http::{parse, raw};
use kit::{Answer, Client, Gateway, PATIENCE, eventually, fresh_token};

const MOST: usize = 2_048;

async fn gateway(most: usize) -> Gateway {
    Gateway::start(&["--store", "memory:", "--max-result-bytes", &most.to_string()]).await
}

/// Begins a record of this name.
async fn begin(client: &Client, key: &str) -> String {
    let token = fresh_token();
    let begun = client.put(&format!("/once/{key}?ttl=5m")).token(&token).send().await.expect(201);
    assert!(begun.json()["max_result_bytes"].as_u64().unwrap() >= MOST as u64);
    token
}

fn head(key: &str, token: &str, more: &str) -> String {
    format!(
        "POST /once/{key} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLease-Token: {token}\r\n{more}\r\n"
    )
}

async fn post(address: SocketAddr, key: &str, token: &str, more: &str, body: &[u8]) -> Answer {
    parse(&raw(address, &[head(key, token, more).as_bytes(), body].concat()).await)
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    for chunk in body.chunks(1_000) {
        sent.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\n\r\n");
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_has_the_length_that_it_may_have_and_comes_back_byte_for_byte() {
    let gateway = gateway(MOST).await;
    let (client, address) = (Client::new(gateway.address), gateway.address);
    let all: Vec<u8> = (0..=MOST).map(|at| (at % 256) as u8).collect();
    for length in [1, 255, MOST - 1, MOST, MOST + 1] {
        let body = &all[..length];
        for (form, more, sent) in [
            ("announced", format!("Content-Length: {length}\r\n"), body.to_vec()),
            ("chunked", "Transfer-Encoding: chunked\r\n".to_owned(), chunked(body)),
        ] {
            let key = format!("{form}{length}");
            let token = begin(&client, &key).await;
            let answer = post(address, &key, &token, &more, &sent).await;
            if length > MOST {
                answer.expect_problem(413, "result-too-large");
                // The place is still the worker's.
                client.post(&format!("/once/{key}")).token(&token).body("short").send().await.expect(200);
                continue;
            }
            answer.expect(200);
            let read = client.put(&format!("/once/{key}")).send().await.expect(200);
            assert_eq!(read.body, body, "{form} {length}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_result_must_be_meant() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    let token = begin(&client, "k").await;
    let empty = client.post("/once/k").token(&token).send().await.expect_problem(400, "bad-parameter");
    assert_eq!(empty.json()["parameter"], "status");
    let answer = post(gateway.address, "k", &token, "Transfer-Encoding: chunked\r\n", b"0\r\n\r\n").await;
    answer.expect_problem(400, "bad-parameter");
    client.post("/once/k?status=0").token(&token).send().await.expect(200);
    let read = client.put("/once/k").send().await.expect(200);
    assert_eq!((read.body.len(), read.header("Once-Status")), (0, Some("0")));
}

/// Else a client that still writes is cut off before it reads the answer.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_read_before_that_is_said() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    let token = begin(&client, "k").await;
    let body = vec![b'x'; 1024 * 1024];
    let more = format!("Content-Length: {}\r\n", body.len());
    for _ in 0..5 {
        post(gateway.address, "k", &token, &more, &body).await.expect_problem(413, "result-too-large");
        let (unannounced, sent) = ("Transfer-Encoding: chunked\r\n", chunked(&body[..900_000]));
        let answer = post(gateway.address, "k", &token, unannounced, &sent).await;
        answer.expect_problem(413, "result-too-large");
        // So is what is refused for another reason.
        post(gateway.address, "k", "", &more, &body).await.expect_problem(400, "bad-token");
    }
    // One who asks first need not send it.
    let asks = format!("{more}Expect: 100-continue\r\n");
    post(gateway.address, "k", &token, &asks, b"").await.expect_problem(413, "result-too-large");
    // What does not come is not waited for.
    let started = Instant::now();
    post(gateway.address, "k", &token, "Content-Length: 1000000000\r\n", b"").await.expect(413);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_encoded_is_refused_before_it_is_read() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    let token = begin(&client, "k").await;
    for encoding in ["gzip", "identity"] {
        let more = format!("Content-Encoding: {encoding}\r\nContent-Length: 4\r\n");
        post(gateway.address, "k", &token, &more, b"done").await.expect_problem(415, "result-encoded");
    }
    // So is what may not be stored at all.
    let stranger = post(gateway.address, "k", &fresh_token(), "Content-Length: 4\r\n", b"done").await;
    stranger.expect_problem(409, "superseded");
    client.post("/once/k").token(&token).body("done").send().await.expect(200);
}

/// Sends the beginning of a result, and stays; what comes back is read to the end.
async fn stall(
    address: SocketAddr,
    key: &str,
    token: &str,
    announced: usize,
) -> tokio::task::JoinHandle<Answer> {
    let request = head(key, token, &format!("Content-Length: {announced}\r\n")) + "x";
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::spawn(async move {
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        parse(&answer)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_stall_are_cut_off_and_take_no_more_than_their_share() {
    const MIB: usize = 1024 * 1024;
    let gateway = gateway(MIB).await;
    let client = Client::new(gateway.address);
    let token = begin(&client, "k").await;
    let started = Instant::now();
    let mut stalled = Vec::new();
    for _ in 0..64 {
        stalled.push(stall(gateway.address, "k", &token, MIB).await);
    }
    let short = || client.post("/once/k").token(&token).body("short");
    eventually("there is room for no further one", async || {
        // It differs from what is stored once there is no room.
        let other = begin(&client, &fresh_token()[..8]).await;
        let answer = client.post("/once/none").token(&other).body("x").send().await;
        answer.status == 429
    })
    .await;
    let refused = short().send().await.expect_problem(429, "too-many-results");
    assert!(refused.header("retry-after").is_some());
    // Everything else goes on.
    client.patch("/once/k?ttl=5m").token(&token).send().await.expect(200);
    client.put("/locks/k").send().await.expect(201);
    for answer in stalled {
        answer.await.unwrap().expect_problem(408, "result-stalled");
    }
    let took = started.elapsed();
    assert!((10..16).contains(&took.as_secs()), "{took:?}");
    short().send().await.expect(200);
}
