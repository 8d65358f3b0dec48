//! Connections by HTTP/1 that say nothing for a while, and then go on: hyper has them no more in between.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{GET, LARGE_BYTES, TestServer, get_ok, read_response, read_to_close, settings};
use kit::PATIENCE;

/// Longer than it takes until a connection is dormant.
const QUIET: Duration = Duration::from_millis(1_400);

#[tokio::test]
async fn a_connection_that_was_quiet_is_answered_as_before() {
    let server = TestServer::start(settings(|_| ())).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        get_ok(&mut stream).await;
        sleep(QUIET).await;
    }
    // Two at once, the second of which is complete only later.
    stream.write_all(&[GET, &GET[..9]].concat()).await.unwrap();
    assert_eq!(read_response(&mut stream).await.unwrap().1, "ok");
    sleep(QUIET).await;
    stream.write_all(&GET[9..]).await.unwrap();
    assert_eq!(read_response(&mut stream).await.unwrap().1, "ok");
    // A byte for itself, and the rest when whoever looks only once would have looked.
    sleep(QUIET).await;
    stream.write_all(&GET[..1]).await.unwrap();
    sleep(QUIET).await;
    stream.write_all(&[&GET[1..], GET].concat()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(read_response(&mut stream).await.unwrap().1, "ok");
    }
    sleep(QUIET).await;
    drop(stream);
    assert_eq!(server.drained().await.cut_connections, 0);
}

/// Hyper may still hold most of an answer long after its handler has ended.
#[tokio::test]
async fn an_answer_that_is_read_late_arrives_whole() {
    let server = TestServer::start(settings(|_| ())).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
    sleep(QUIET).await;
    let (_, body) = timeout(PATIENCE, read_response(&mut stream)).await.expect("no answer").unwrap();
    assert_eq!(body.len(), LARGE_BYTES);
    get_ok(&mut stream).await;
}

#[tokio::test]
async fn the_idle_timeout_counts_from_the_last_answer() {
    let idle = Duration::from_secs(3);
    let server = TestServer::start(settings(|settings| settings.idle_timeout = idle)).await;
    for more in ["", "GET / HTTP/1.1\r\nHost: t\r\nX-Slow: and-so-on"] {
        let mut stream = server.connect().await;
        get_ok(&mut stream).await;
        let (answered, mut slowly) = (Instant::now(), more.bytes());
        sleep(QUIET).await;
        // One byte after the other, for as long as the connection is open.
        let closed = async {
            let mut nothing = [0];
            loop {
                match timeout(Duration::from_millis(50), stream.read(&mut nothing)).await {
                    Ok(Ok(0) | Err(_)) => return answered.elapsed(),
                    Ok(Ok(_)) => panic!("an answer to nothing"),
                    Err(_) => {
                        if let Some(byte) = slowly.next() {
                            // It fails where the connection was closed since: the next look says so.
                            let _ = stream.write_all(&[byte]).await;
                        }
                    }
                }
            }
        };
        let closed = timeout(PATIENCE, closed).await.expect("still open");
        assert!(closed >= idle - Duration::from_millis(50), "{more:?}: closed after {closed:?}");
        assert!(closed < idle * 2, "{more:?}: closed after {closed:?}");
    }
}

#[tokio::test]
async fn a_drain_answers_those_that_were_quiet_and_closes_the_rest() {
    let server = TestServer::start(settings(|_| ())).await;
    let (mut speaks, mut silent) = (server.connect().await, server.connect().await);
    get_ok(&mut speaks).await;
    get_ok(&mut silent).await;
    sleep(QUIET).await;
    server.shutdown.cancel();
    let head = get_ok(&mut speaks).await;
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!(read_to_close(&mut speaks).await, b"");
    assert_eq!(read_to_close(&mut silent).await, b"");
    assert_eq!(server.drained().await.cut_connections, 0);
}

/// A stray byte must not hold up a drain until its very end.
#[tokio::test]
async fn a_drain_waits_for_no_head_that_a_quiet_connection_has_begun() {
    let server = TestServer::start(settings(|_| ())).await;
    let mut stream = server.connect().await;
    get_ok(&mut stream).await;
    sleep(QUIET).await;
    stream.write_all(&GET[..1]).await.unwrap();
    let begun = Instant::now();
    assert_eq!(server.drained().await.cut_connections, 0);
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    assert_eq!(read_to_close(&mut stream).await, b"");
}

/// What comes after an early answer is the rest of its request, and no request of somebody else's making.
#[tokio::test]
async fn a_body_that_comes_late_is_not_taken_for_a_request() {
    let server = TestServer::start(settings(|_| ())).await;
    for more in ["", "Expect: 100-continue\r\n"] {
        let mut stream = server.connect().await;
        let head = format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n{more}\r\n", GET.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        let (head, _) = timeout(PATIENCE, read_response(&mut stream)).await.expect("no answer").unwrap();
        assert!(head.contains(" 405 "), "{head}");
        sleep(QUIET).await;
        // It fails where the connection was closed already.
        let _ = stream.write_all(GET).await;
        assert_eq!(read_to_close(&mut stream).await, b"");
    }
}

/// The time in which it is read is not idle.
#[tokio::test]
async fn the_idle_timeout_counts_from_when_the_last_answer_was_taken() {
    let idle = Duration::from_millis(900);
    let server = TestServer::start(settings(|settings| settings.idle_timeout = idle)).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
    sleep(QUIET).await;
    let (_, body) = timeout(PATIENCE, read_response(&mut stream)).await.expect("no answer").unwrap();
    let taken = Instant::now();
    assert_eq!(body.len(), LARGE_BYTES);
    assert_eq!(read_to_close(&mut stream).await, b"");
    assert!(taken.elapsed() > idle / 2, "closed {:?} after the answer was taken", taken.elapsed());
}
