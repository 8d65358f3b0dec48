//! The one request with a body: how long it may be, how long it may take, and what is kept of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use kit::h2::{self, pong};
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
async fn a_result_of_two_types_is_refused() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    let token = begin(&client, "k").await;
    let store = || client.post("/once/k").token(&token).body("x").header("Content-Type", "text/plain");
    for other in ["text/html", "text/plain"] {
        let refused = store().header("Content-Type", other).send().await.expect_problem(400, "bad-parameter");
        assert_eq!(refused.json()["parameter"], "Content-Type");
    }
    store().send().await.expect(200);
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

/// A body that was refused is not trusted to end where it says.
#[tokio::test(flavor = "multi_thread")]
async fn who_stores_a_result_keeps_the_connection() {
    let gateway = gateway(MOST).await;
    let token = begin(&Client::new(gateway.address), "k").await;
    let post = head("k", &token, "Content-Length: 4\r\n").replace("Connection: close\r\n", "") + "done";
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answers = raw(gateway.address, format!("{post}{post}{last}").as_bytes()).await;
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    let other = post.replace("done", "more");
    let answers = String::from_utf8(raw(gateway.address, format!("{other}{last}").as_bytes()).await).unwrap();
    assert!(answers.contains("result-differs") && !answers.contains("HTTP/1.1 200"), "{answers}");
}

/// Without a length, a body of HTTP/1.0 is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_without_a_length_is_refused_over_http_1_0() {
    let gateway = gateway(MOST).await;
    let token = begin(&Client::new(gateway.address), "k").await;
    let old = |more| head("k?status=0", &token, more).replace("HTTP/1.1", "HTTP/1.0");
    let answer = raw(gateway.address, (old("") + "done").as_bytes()).await;
    parse(&answer).expect_problem(411, "length-missing");
    let answer = raw(gateway.address, (old("Content-Length: 4\r\n") + "done").as_bytes()).await;
    parse(&answer).expect(200);
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

/// Sends so much of a result that was announced, and stays; what comes back is read to the end.
async fn stall(
    address: SocketAddr,
    token: &str,
    announced: usize,
    sent: usize,
) -> tokio::task::JoinHandle<Answer> {
    let request = head("k", token, &format!("Content-Length: {announced}\r\n")) + &"x".repeat(sent);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::spawn(async move {
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        parse(&answer)
    })
}

/// What is cut off by its time is cut off later on a busy machine.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn results_that_stall_are_cut_off_and_take_what_has_arrived_of_them_and_no_more_than_a_share() {
        const MIB: usize = 1024 * 1024;
        let gateway = gateway(MIB).await;
        let client = Client::new(gateway.address);
        let token = begin(&client, "k").await;
        let started = Instant::now();
        // All at once, as each is cut off by its own time.
        let stall = async |sent: &[usize]| {
            join_all(sent.iter().map(|sent| stall(gateway.address, &token, MIB, *sent))).await
        };
        let mut stalled = stall(&[1; 80]).await;
        // What is only announced takes no room.
        let short = async || {
            let (key, token) = (fresh_token(), fresh_token());
            client.put(&format!("/once/{key}")).token(&token).send().await.expect(201);
            client.post(&format!("/once/{key}")).token(&token).body("short").send().await
        };
        short().await.expect(200);
        // A quarter of all room is the most that one address may take: 16 MiB, in pages of 4 KiB, with the 80 of those above.
        let mut rest = [MIB - 5; 16];
        rest[15] -= 80 * 4096;
        stalled.extend(stall(&rest).await);
        eventually("the address has its share", async || short().await.status == 429).await;
        let refused = short().await.expect_problem(429, "too-many-results");
        assert!(refused.header("retry-after").is_some());
        // Everything else goes on.
        client.patch("/once/k?ttl=5m").token(&token).send().await.expect(200);
        client.put("/locks/k").send().await.expect(201);
        for answer in stalled {
            answer.await.unwrap().expect_problem(408, "result-stalled");
        }
        let took = started.elapsed();
        assert!((10..20).contains(&took.as_secs()), "{took:?}");
        short().await.expect(200);
    }
}

/// The head of a `POST` over HTTP/2 behind which a body comes.
fn h2_head(key: &str, token: &str, length: Option<usize>) -> Vec<u8> {
    let length = length.map(|length| length.to_string());
    let length = length.iter().map(|length| ("content-length", length.as_str()));
    let headers: Vec<_> = [("lease-token", token)].into_iter().chain(length).collect();
    let block = h2::header_block_with("POST", &format!("/once/{key}"), &headers);
    h2::frame(h2::HEADERS, h2::END_HEADERS, 1, &block)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_its_client_cuts_off_over_http_2_is_not_stored() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    // A reset without an error is what some clients send when their program gives the request up.
    for (key, length, reason) in [("with", Some(40), 0_u32), ("without", None, 0), ("canceled", Some(40), 8)]
    {
        let token = begin(&client, key).await;
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
        bytes.extend(h2_head(key, &token, length));
        bytes.extend(h2::frame(h2::DATA, 0, 1, b"{\"charged\": 1, \"cut"));
        stream.write_all(&bytes).await.unwrap();
        // The body is being read by then.
        pong(&mut stream, 1).await;
        stream.write_all(&h2::frame(h2::RST_STREAM, 0, 1, &reason.to_be_bytes())).await.unwrap();
        pong(&mut stream, 2).await;
        let other = client.put(&format!("/once/{key}")).token(&fresh_token()).send().await;
        other.expect_problem(423, "once-in-progress");
        client.post(&format!("/once/{key}")).token(&token).body("whole").send().await.expect(200);
    }
}

/// Its end is lost where both arrive together, but its length is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_arrived_whole_over_http_2_is_stored_though_its_client_left_or_gave_it_up() {
    let gateway = gateway(MOST).await;
    let client = Client::new(gateway.address);
    for number in 0..20 {
        let (key, resets) = (format!("k{number}"), number % 2 == 1);
        let token = begin(&client, &key).await;
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
        bytes.extend(h2_head(&key, &token, Some(4)));
        bytes.extend(h2::frame(h2::DATA, h2::END_STREAM, 1, b"done"));
        if resets {
            bytes.extend(h2::cancel(1));
        }
        stream.write_all(&bytes).await.unwrap();
        let stays = resets.then_some(stream);
        let other = client.put(&format!("/once/{key}?wait=30s")).token(&fresh_token()).send().await;
        assert_eq!(other.expect(200).body, "done", "{key}");
        drop(stays);
    }
}
