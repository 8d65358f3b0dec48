//! Heads of requests that say something else than they seem to: what the HTTP library lets pass.

mod bodies;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use kit::certificates::Certificates;
use kit::h2::{self, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame};
use kit::http::{Answer, Client, parse, raw};
use kit::secure::SecureClient;
use kit::{Gateway, PATIENCE, eventually};

/// Longer than it takes until a connection is taken from hyper.
const QUIET: Duration = Duration::from_millis(1_400);

const REST: &str = " HTTP/1.1\r\nHost: localhost\r\n\r\n";

async fn memory() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// One answer off a connection that may stay open.
async fn next_answer(stream: &mut (impl AsyncRead + Unpin)) -> Answer {
    let read = async {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.expect("it is closed without an answer"));
        }
        let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        bytes.extend(body);
        parse(&bytes)
    };
    timeout(PATIENCE, read).await.expect("no answer")
}

/// That one request is refused in words, and that nothing follows it.
async fn is_refused(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), what: &str) {
    let answer = next_answer(stream).await.expect_problem(400, "malformed-request");
    assert!(answer.json()["detail"].as_str().unwrap().contains(what), "{}", answer.json());
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.header("x-request-id").is_some());
    is_closed(stream).await;
}

/// That nothing more comes.
async fn is_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it stays open");
    assert_eq!(String::from_utf8_lossy(&rest), "");
}

async fn is_free(gateway: &Gateway, key: &str) {
    let target = format!("/locks/{key}");
    Client::new(gateway.address).get(&target).send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_hash_in_a_target_takes_no_lock_of_another_name() {
    let gateway = memory().await;
    for target in [
        "/locks/job#1",
        "/locks/job?ttl=10m#",
        "/lock?key=job#1",
        "http://localhost/locks/job#1",
        "http://localhost#/locks/job",
        "/locks/job?owner=a#&ttl=24h",
    ] {
        let mut stream = connect(gateway.address).await;
        stream.write_all(format!("PUT {target}{REST}").as_bytes()).await.unwrap();
        is_refused(&mut stream, "%23").await;
    }
    is_free(&gateway, "job").await;
}

/// However it arrives, and whatever came before it on the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_hash_is_found_in_pieces_between_requests_and_after_a_while() {
    let gateway = memory().await;
    let bad = format!("PUT /locks/job#1{REST}");
    for split in 1..24 {
        let mut stream = connect(gateway.address).await;
        stream.write_all(&bad.as_bytes()[..split]).await.unwrap();
        sleep(Duration::from_millis(5)).await;
        stream.write_all(&bad.as_bytes()[split..]).await.unwrap();
        is_refused(&mut stream, "%23").await;
    }
    let good = format!("GET /locks/job{REST}");
    let empty_chunks = "PUT /locks/other HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n\r\n";
    for (before, statuses) in [
        (good.clone(), vec![404]),
        (format!("\r\n{good}\r\n"), vec![404]),
        (good.repeat(5), vec![404; 5]),
        (empty_chunks.to_owned(), vec![201]),
    ] {
        for pause in [None, Some(Duration::from_millis(50)), Some(QUIET)] {
            let mut stream = connect(gateway.address).await;
            match pause {
                None => stream.write_all(format!("{before}{bad}").as_bytes()).await.unwrap(),
                Some(_) => stream.write_all(format!("{before}{}", &bad[..9]).as_bytes()).await.unwrap(),
            }
            for status in &statuses {
                let status = if *status == 201 && pause.is_some() { 200..=423 } else { *status..=*status };
                let answer = next_answer(&mut stream).await;
                assert!(status.contains(&answer.status), "{before:?}: {answer:?}");
            }
            if let Some(pause) = pause {
                sleep(pause).await;
                stream.write_all(&bad.as_bytes()[9..]).await.unwrap();
            }
            is_refused(&mut stream, "%23").await;
        }
    }
    is_free(&gateway, "job").await;
}

/// A `#` elsewhere says what it always said, and so do bytes that only look like a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_hash_that_is_not_in_a_target_is_nobodys_business() {
    let gateway = memory().await;
    let mut stream = connect(gateway.address).await;
    let head = "PUT /locks/a%231 HTTP/1.1\r\nHost: localhost\r\nReferer: /x#y\r\nX-#: GET /#\r\n\r\n";
    let body = "PUT /locks/b#c HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let with_body =
        format!("GET /locks/c HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(format!("{head}{with_body}{head}").as_bytes()).await.unwrap();
    next_answer(&mut stream).await.expect(201);
    next_answer(&mut stream).await.expect_problem(400, "unexpected-body");
    // The server may close behind a body, or go on.
    let mut rest = Vec::new();
    let _ = timeout(QUIET, stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty() || parse(&rest).status == 423, "{}", String::from_utf8_lossy(&rest));
}

/// Readers disagree on where a body ends, and none is welcome: no request follows it.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_body_comes_no_request() {
    let gateway = memory().await;
    for (length, body) in [
        ("Transfer-Encoding: chunked", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked", "3\r\na#b\r\n0\r\n\r\n"),
        ("Content-Length: 3", "a#b"),
    ] {
        let mut stream = connect(gateway.address).await;
        let head = format!("PUT /locks/other HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n");
        let bad = format!("PUT /locks/job#1{REST}");
        stream.write_all(format!("{head}{body}{bad}").as_bytes()).await.unwrap();
        let answer = next_answer(&mut stream).await;
        assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
        is_closed(&mut stream).await;
    }
    is_free(&gateway, "job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_hash_is_found_behind_tls() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let gateway =
        Gateway::start(&["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key]).await;
    let client = SecureClient::new(&certificates);
    let mut stream = client.connect(gateway.address).await.unwrap();
    stream.write_all(format!("PUT /locks/job#1{REST}").as_bytes()).await.unwrap();
    is_refused(&mut stream, "%23").await;
}

/// HTTP/1.1 wants one `Host` (RFC 9112, section 3.2), and HTTP/2 no second opinion on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_missing_or_said_twice_is_refused() {
    let gateway = memory().await;
    for (request, status) in [
        ("PUT /locks/k HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("PUT /locks/k HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("PUT /locks/k HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n", 400),
        ("PUT /locks/k HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("PUT http://localhost/locks/k HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("PUT http://evil.example/locks/k HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("PUT http://evil@localhost/locks/k HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("PUT /locks/k HTTP/1.1\r\nHost: evil@localhost\r\nConnection: close\r\n\r\n", 400),
        ("PUT http://evil@localhost/locks/k HTTP/1.1\r\nHost: evil@localhost\r\n\r\n", 400),
        ("GET http://evil@localhost/healthz HTTP/1.0\r\n\r\n", 400),
        ("GET /healthz HTTP/1.0\r\n\r\n", 200),
    ] {
        let answer = parse(&raw(gateway.address, request.as_bytes()).await);
        if status == 400 {
            let answer = answer.expect_problem(400, "malformed-request");
            assert!(answer.json()["detail"].as_str().unwrap().contains("Host"), "{request:?}");
        } else {
            answer.expect(status);
        }
    }
    is_free(&gateway, "k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_http_2_may_name_no_server_and_no_user() {
    let gateway = memory().await;
    let put = |authority: &[u8]| {
        [&[0x02, 3, b'P', b'U', b'T', 0x86, 0x04, 8], b"/locks/k".as_slice(), authority].concat()
    };
    let with_user = [&[0x01, 14], b"evil@localhost".as_slice()].concat();
    // `Host` may stand in the place of `:authority`: this is its name, by its index.
    let host_with_user = [&[0x0f, 38 - 15, 14], b"evil@localhost".as_slice()].concat();
    for authority in [&with_user, &host_with_user] {
        assert_eq!(h2_answers(&gateway, &put(authority), &[]).await, [HEADERS, h2::DATA]);
        is_free(&gateway, "k").await;
    }
    for authority in [&[][..], &[&[0x0f, 38 - 15, 9], b"localhost".as_slice()].concat()] {
        let gateway = memory().await;
        assert_eq!(h2_answers(&gateway, &put(authority), &[]).await, [HEADERS, h2::DATA]);
        Client::new(gateway.address).get("/locks/k").send().await.expect(200);
    }
}

/// What reads a line feed as the end of a line, and what does not, disagree on where a request ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_ends_without_a_carriage_return_is_refused() {
    let gateway = memory().await;
    for request in [
        "PUT /locks/k HTTP/1.1\nHost: localhost\r\n\r\n",
        "PUT /locks/k HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        "PUT /locks/k HTTP/1.1\r\nHost: localhost\r\n\n",
        "PUT /locks/k HTTP/1.1\nHost: localhost\n\n",
        "\nPUT /locks/k HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PUT /locks/k HTTP/1.0\n\n",
    ] {
        for split in (1..request.len()).step_by(7) {
            let mut stream = connect(gateway.address).await;
            stream.write_all(&request.as_bytes()[..split]).await.unwrap();
            sleep(Duration::from_millis(2)).await;
            stream.write_all(&request.as_bytes()[split..]).await.unwrap();
            is_refused(&mut stream, "line").await;
        }
    }
    is_free(&gateway, "k").await;
}

/// The kinds of the frames that answer a stream, until one of them ends it, or the connection.
async fn h2_answers(gateway: &Gateway, block: &[u8], pieces: &[usize]) -> Vec<u8> {
    h2_answers_to(gateway, &frame(HEADERS, END_STREAM | h2::END_HEADERS, 1, block), pieces).await
}

async fn h2_answers_to(gateway: &Gateway, frames: &[u8], pieces: &[usize]) -> Vec<u8> {
    h2_answers_on(gateway, 1, frames, pieces).await
}

async fn h2_answers_on(gateway: &Gateway, stream_id: u8, frames: &[u8], pieces: &[usize]) -> Vec<u8> {
    let mut stream = connect(gateway.address).await;
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(frames);
    let mut sent = 0;
    for at in pieces.iter().copied().filter(|at| *at < bytes.len()).chain([bytes.len()]) {
        stream.write_all(&bytes[sent..at]).await.unwrap();
        sleep(Duration::from_millis(2)).await;
        sent = at;
    }
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        let read = timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("no frame");
        if read.is_err() {
            return kinds;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        if head[8] == stream_id {
            kinds.push(head[3]);
            if head[3] == RST_STREAM || head[4] & END_STREAM != 0 {
                return kinds;
            }
        }
    }
}

/// `:path` as it is, and as Huffman codes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_hash_in_a_path_of_http_2_takes_no_lock() {
    let gateway = memory().await;
    let plain = h2::header_block("PUT", "/locks/job#1");
    // `/locks/job#1`, coded: the code of `#` is 0xffa, of 12 bits.
    let coded = huffman("/locks/job#1");
    let mut block =
        vec![0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't', 0x04, 0x80 | u8::try_from(coded.len()).unwrap()];
    block.extend(coded);
    let mut named = vec![0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't', 0x00, 5];
    named.extend(b":path");
    named.push(12);
    named.extend(b"/locks/job#1");
    let mut indexed = vec![0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't', 0x44, 12];
    indexed.extend(b"/locks/job#1");
    for (what, block) in [("plain", plain), ("coded", block), ("named", named), ("indexed", indexed)] {
        for pieces in [vec![], (24..200).collect::<Vec<_>>()] {
            assert_eq!(h2_answers(&gateway, &block, &pieces).await, [RST_STREAM], "{what}");
            is_free(&gateway, "job").await;
        }
    }
    // Behind a character whose code is long, and in a block that is padded, has a priority, and goes on in another frame.
    let long = huffman("/locks/{job#1");
    let mut block =
        vec![0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't', 0x04, 0x80 | u8::try_from(long.len()).unwrap()];
    block.extend(long);
    for cut in [block.len(), 4, 12] {
        let payload = [&[3, 0, 0, 0, 0, 16], &block[..cut], b"#/#"].concat();
        let is_whole = if cut == block.len() { h2::END_HEADERS } else { 0 };
        let mut frames = frame(HEADERS, END_STREAM | is_whole | 0x8 | 0x20, 1, &payload);
        if cut < block.len() {
            frames.extend(frame(9, h2::END_HEADERS, 1, &block[cut..]));
        }
        assert_eq!(h2_answers_to(&gateway, &frames, &[]).await, [RST_STREAM], "{cut}");
    }
    let good = [&[0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't', 0x04, 8], b"/locks/g".as_slice()].concat();
    let payload = [&[3, 0, 0, 0, 0, 16], good.as_slice(), b"#/#"].concat();
    let frames = frame(HEADERS, END_STREAM | h2::END_HEADERS | 0x8 | 0x20, 1, &payload);
    assert_eq!(h2_answers_to(&gateway, &frames, &[]).await, [HEADERS, h2::DATA]);
    // And elsewhere it is welcome.
    let mut block = h2::header_block("PUT", "/locks/other");
    block.extend([0x00, 3, b'x', b'-', b'y', 2, b'a', b'#']);
    assert_eq!(h2_answers(&gateway, &block, &[]).await, [HEADERS, h2::DATA]);
}

/// A header field may take its name from one that was sent before, as `:path` may.
#[tokio::test(flavor = "multi_thread")]
async fn a_hash_in_a_header_field_of_http_2_is_left_as_it_is() {
    let gateway = memory().await;
    let begun = [0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't'];
    // Puts a path and then an id into the table.
    let first =
        [&begun, [0x44, 9].as_slice(), b"/locks/p1", &[0x40, 12], b"x-request-id", &[1, b'a']].concat();
    // The id is its latest entry, 62, and by this one there are two of them before the path.
    let second = [&begun, [0x04, 9].as_slice(), b"/locks/p2", &[0x7e, 3], b"b#c"].concat();
    let third = [&begun, [0x0f, 64 - 15, 12].as_slice(), b"/locks/job#1"].concat();
    let frames = [(1, first), (3, second), (5, third)]
        .map(|(stream, block)| frame(HEADERS, END_STREAM | h2::END_HEADERS, stream, &block))
        .concat();
    assert_eq!(h2_answers_on(&gateway, 5, &frames, &[]).await, [RST_STREAM]);
    is_free(&gateway, "job").await;
    eventually("its line says the id", async || {
        gateway.log().iter().any(|line| line.contains("\"request_id\":\"b#c\""))
    })
    .await;
}

/// The library resets a stream that depends on itself, and does not read its block.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_http_2_that_is_not_read_puts_nothing_into_the_table() {
    let gateway = memory().await;
    let begun = [0x02, 3, b'P', b'U', b'T', 0x86, 0x01, 1, b't'];
    let first = [&begun, [0x44, 9].as_slice(), b"/locks/p1"].concat();
    let unread =
        [&[0, 0, 0, 3, 16], begun.as_slice(), &[0x04, 9], b"/locks/p2", &[0x40, 3], b"x-a", &[1, b'b']];
    let third = [&begun, [0x0f, 62 - 15, 12].as_slice(), b"/locks/job#1"].concat();
    let end = END_STREAM | h2::END_HEADERS;
    let frames = [(1, end, first), (3, end | 0x20, unread.concat()), (5, end, third)]
        .map(|(stream, flags, block)| frame(HEADERS, flags, stream, &block))
        .concat();
    assert_eq!(h2_answers_on(&gateway, 5, &frames, &[]).await, [RST_STREAM]);
    is_free(&gateway, "job").await;
}

/// The characters of the test's addresses, as RFC 7541 codes them.
fn huffman(text: &str) -> Vec<u8> {
    let mut bits = String::new();
    for character in text.chars() {
        bits += match character {
            '/' => "011000",
            'l' => "101000",
            'o' => "00111",
            'c' => "00100",
            'k' => "1110101",
            's' => "01000",
            'j' => "1110100",
            'b' => "100011",
            '#' => "111111111010",
            '1' => "00001",
            '{' => "111111111111110",
            _ => unreachable!(),
        };
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    bits.as_bytes()
        .chunks(8)
        .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
        .collect()
}
