//! What stands in a body is no head, and the head behind it is one.

use super::*;

const TOKEN: &str = "Lease-Token: a-token-of-this-test\r\n";

/// Bodies that look like heads, or like pieces of them.
const BODIES: [&str; 8] = [
    "one\n",
    "{\n  \"a\": \"#\"\n}\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET / HTTP/1.1\r\nX: ",
    "\r",
    "\n",
    "#",
];

/// A connection on which a piece of work was begun.
async fn begun(gateway: &Gateway, key: &str) -> TcpStream {
    let mut stream = connect(gateway.address).await;
    let begin = format!("PUT /once/{key} HTTP/1.1\r\nHost: localhost\r\n{TOKEN}\r\n");
    stream.write_all(begin.as_bytes()).await.unwrap();
    next_answer(&mut stream).await.expect(201);
    stream
}

/// A connection on which a result with this body was stored. The next request came right behind it, all in pieces of so many bytes.
async fn stored(gateway: &Gateway, key: &str, body: &str, next: &str, pieces: usize) -> TcpStream {
    let mut stream = begun(gateway, key).await;
    let (target, length) = (format!("POST /once/{key} HTTP/1.1"), body.len());
    let sent =
        format!("{target}\r\nhost: localhost\r\n{TOKEN}cOnTent-lengTh:  {length} \r\n\r\n{body}{next}");
    for piece in sent.as_bytes().chunks(pieces) {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
    next_answer(&mut stream).await.expect(200);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_a_result_spoils_no_request_behind_it() {
    let gateway = memory().await;
    for (number, body) in BODIES.into_iter().enumerate() {
        for pieces in [1, 3, 17, 4096] {
            let key = format!("good-{number}-{pieces}");
            let next = format!("PUT /locks/{key}{REST}");
            let mut stream = stored(&gateway, &key, body, &next, pieces).await;
            next_answer(&mut stream).await.expect(201);
            // And the connection goes on.
            stream.write_all(format!("GET /locks/{key}{REST}").as_bytes()).await.unwrap();
            next_answer(&mut stream).await.expect(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_a_result_hides_no_malformed_head_behind_it() {
    let gateway = memory().await;
    let malformed = [
        (format!("PUT /locks/job#x{REST}"), "%23"),
        ("PUT /locks/job HTTP/1.1\nHost: localhost\n\n".to_owned(), "carriage return"),
    ];
    for (number, body) in BODIES.into_iter().enumerate() {
        for (kind, (next, what)) in malformed.iter().enumerate() {
            for pieces in [1, 4096] {
                let key = format!("bad-{number}-{kind}-{pieces}");
                is_refused(&mut stored(&gateway, &key, body, next, pieces).await, what).await;
            }
        }
    }
    is_free(&gateway, "job").await;
}

/// Others may find another end of the chunks. So nothing is served behind them.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_result_in_chunks_comes_no_request() {
    let gateway = memory().await;
    let mut stream = begun(&gateway, "k").await;
    let head =
        format!("POST /once/k HTTP/1.1\r\nHost: localhost\r\n{TOKEN}Transfer-Encoding: chunked\r\n\r\n");
    let next = format!("PUT /locks/job{REST}");
    for zeros in [0, 62, 63, 64, 100] {
        let chunk = format!("{}4\r\na#b\n\r\n0\r\n\r\n", "0".repeat(zeros));
        stream.write_all(format!("{head}{chunk}{next}").as_bytes()).await.unwrap();
        let answer = next_answer(&mut stream).await.expect(200);
        assert_eq!(answer.header("connection"), Some("close"));
        is_closed(&mut stream).await;
        stream = connect(gateway.address).await;
    }
    is_free(&gateway, "job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_readers_may_read_differently_is_refused() {
    let gateway = memory().await;
    let long = format!("Content-Length:{}3\r\n", " ".repeat(64));
    for (fields, body) in [
        ("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"),
        (long.as_str(), "abc"),
        // By the one there is no body, and by the other one of nine bytes.
        ("Content-Length: 9\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("transfer-encoding: chunked\r\ncontent-length: 9\r\n", "0\r\n\r\n"),
    ] {
        let mut stream = connect(gateway.address).await;
        let head = format!("POST /once/k HTTP/1.1\r\nHost: localhost\r\n{TOKEN}{fields}\r\n");
        stream.write_all(format!("{head}{body}PUT /locks/job{REST}").as_bytes()).await.unwrap();
        is_refused(&mut stream, "Content-Length").await;
    }
    is_free(&gateway, "job").await;
}

/// The bytes that are stored would be those of the coding.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_in_another_transfer_coding_is_refused() {
    let gateway = memory().await;
    let mut stream = connect(gateway.address).await;
    let head = "POST /once/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n";
    stream.write_all(format!("{head}{TOKEN}\r\n1\r\na\r\n0\r\n\r\n").as_bytes()).await.unwrap();
    let answer = next_answer(&mut stream).await.expect_problem(415, "result-encoded");
    assert_eq!(answer.header("connection"), Some("close"));
}
