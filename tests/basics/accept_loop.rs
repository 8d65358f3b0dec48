//! The accept loop against raw sockets: time limits, caps, departures and draining.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Extension, Router};
use fencepost::server::{BodyWasRead, DrainOutcome, ServerSettings, serve};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use kit::PATIENCE;

mod behind;
mod dormant;
mod greedy;
mod h2;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";
const GET_HANG: &[u8] = b"GET /hang HTTP/1.1\r\nHost: t\r\n\r\n";

/// More than the kernel takes of an answer that nobody reads.
const LARGE_BYTES: usize = 32 << 20;
/// Of each frame of a stream that goes on and on.
const PLENTY_BYTES: usize = 64 << 10;

/// Handlers that never answer: how many began, how often they were asked, and how many were dropped.
#[derive(Default)]
struct Hanging {
    begun: AtomicUsize,
    asked: AtomicUsize,
    dropped: AtomicUsize,
}

struct OnDrop(Arc<Hanging>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        // Slow enough that whoever does not wait for it is seen not to.
        std::thread::sleep(Duration::from_millis(1));
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A body that has neither a piece nor an end.
fn endless() -> Body {
    Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())
}

/// A body that has always more.
fn plenty() -> Body {
    Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from(vec![b'x'; PLENTY_BYTES]))))
}

struct TestServer {
    address: SocketAddr,
    shutdown: CancellationToken,
    hanging: Arc<Hanging>,
    done: JoinHandle<DrainOutcome>,
}

impl TestServer {
    async fn start(settings: ServerSettings) -> Self {
        let hanging = Arc::new(Hanging::default());
        let state = Arc::clone(&hanging);
        let hang = async move || {
            state.begun.fetch_add(1, Ordering::SeqCst);
            let _on_drop = OnDrop(Arc::clone(&state));
            std::future::poll_fn(|_| {
                state.asked.fetch_add(1, Ordering::SeqCst);
                Poll::<()>::Pending
            })
            .await;
        };
        let slow = async || {
            sleep(Duration::from_secs(1)).await;
            "slow"
        };
        let app = Router::new()
            .route("/", get(async || "ok"))
            .route("/length", post(async |body: String| (Extension(BodyWasRead), body.len().to_string())))
            .route("/slow", get(slow))
            .route("/large", get(async || "x".repeat(LARGE_BYTES)))
            .route("/hang", get(hang.clone()).post(async move |_: Bytes| hang().await))
            .route("/stream", get(async || endless()))
            .route("/plenty", get(async || plenty()))
            .route("/headers", get(async |headers: HeaderMap| headers.len().to_string()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let done = tokio::spawn(serve(listener, app, settings, shutdown.clone()));
        Self { address, shutdown, hanging, done }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn until_begun(&self, count: usize) {
        poll_until(|| self.hanging.begun.load(Ordering::SeqCst) == count, PATIENCE).await;
    }

    async fn until_dropped(&self, count: usize, within: Duration) {
        poll_until(|| self.hanging.dropped.load(Ordering::SeqCst) == count, within).await;
    }

    async fn drained(self) -> DrainOutcome {
        self.shutdown.cancel();
        timeout(PATIENCE, self.done).await.expect("serve did not return").unwrap()
    }
}

async fn poll_until(condition: impl Fn() -> bool, within: Duration) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < within, "not within {within:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Settings under which only `change` can end anything within a test's time.
fn settings(change: impl FnOnce(&mut ServerSettings)) -> ServerSettings {
    let mut settings = ServerSettings {
        first_request_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        ..ServerSettings::default()
    };
    change(&mut settings);
    settings
}

/// Reads until the server closes, by FIN or by RST; returns what came before.
async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("still open").ok();
    bytes
}

/// Reads one response with a `Content-Length`: its head, and its body.
async fn read_response(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ").expect("a length");
    let mut body = vec![0; length.split_once("\r\n").unwrap().0.parse().unwrap()];
    stream.read_exact(&mut body).await?;
    Ok((head, String::from_utf8(body).unwrap()))
}

async fn get_ok(stream: &mut TcpStream) -> String {
    stream.write_all(GET).await.unwrap();
    let (head, body) = timeout(PATIENCE, read_response(stream)).await.expect("no answer").unwrap();
    assert_eq!(body, "ok");
    head
}

/// Sends `bytes`, and expects the server to close 300 ms after the connection was made, not much earlier.
async fn closed_by_first_deadline(bytes: &[u8]) {
    let deadline = Duration::from_millis(300);
    let server = TestServer::start(settings(|s| s.first_request_timeout = deadline)).await;
    let begun = Instant::now();
    let mut stream = server.connect().await;
    stream.write_all(bytes).await.unwrap();
    read_to_close(&mut stream).await;
    assert!(begun.elapsed() >= deadline, "closed after {:?}", begun.elapsed());
    assert_eq!(server.drained().await.cut_connections, 0);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    closed_by_first_deadline(b"").await;
}

#[tokio::test]
async fn half_a_request_head_is_closed() {
    closed_by_first_deadline(b"GET / HTTP/1.1\r\nHost: t\r\nX-Half: ").await;
}

#[tokio::test]
async fn half_a_preface_is_closed() {
    closed_by_first_deadline(&h2::PREFACE[..12]).await;
}

#[tokio::test]
async fn an_h2_connection_without_a_request_is_closed() {
    closed_by_first_deadline(&[h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat()).await;
}

#[tokio::test]
async fn the_first_deadline_ends_with_the_first_request() {
    let server = TestServer::start(settings(|s| s.first_request_timeout = Duration::from_millis(200))).await;
    let mut stream = server.connect().await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(600) {
        get_ok(&mut stream).await;
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn an_idle_connection_and_a_second_half_head_are_closed() {
    let idle = Duration::from_millis(300);
    let server = TestServer::start(settings(|s| s.idle_timeout = idle)).await;
    for rest in ["", "GET / HTTP/1.1\r\nHost: "] {
        let mut stream = server.connect().await;
        get_ok(&mut stream).await;
        let begun = Instant::now();
        stream.write_all(rest.as_bytes()).await.unwrap();
        assert_eq!(read_to_close(&mut stream).await, b"");
        let elapsed = begun.elapsed();
        assert!(elapsed > idle / 2, "closed after {elapsed:?}");
    }
}

#[tokio::test]
async fn an_idle_h2_connection_is_told_and_closed() {
    let idle = Duration::from_millis(300);
    let change = |s: &mut ServerSettings| {
        (s.idle_timeout, s.first_request_timeout) = (idle, Duration::from_millis(100));
    };
    let server = TestServer::start(settings(change)).await;
    let mut stream = h2::connect(&server).await;
    // Busy for longer than it may be idle: that must not count.
    stream.write_all(&h2::request(1, "/slow")).await.unwrap();
    assert_eq!(h2::next(&mut stream).await, Some((h2::HEADERS, 4, 1)));
    let begun = Instant::now();
    assert_eq!(h2::next(&mut stream).await, Some((h2::DATA, 1, 1)));
    assert_eq!(h2::next(&mut stream).await, Some((h2::GOAWAY, 0, 0)));
    assert!(begun.elapsed() > idle / 2, "closed after {:?}", begun.elapsed());
    while let Some((kind, ..)) = h2::next(&mut stream).await {
        assert_eq!(kind, h2::GOAWAY);
    }
}

/// Its handler has answered long ago.
#[tokio::test]
async fn an_h2_connection_with_an_answer_that_goes_on_is_not_idle() {
    let idle = Duration::from_millis(200);
    let change = |s: &mut ServerSettings| (s.idle_timeout, s.first_request_timeout) = (idle, idle);
    let server = TestServer::start(settings(change)).await;
    let mut stream = h2::connect(&server).await;
    stream.write_all(&h2::request(1, "/stream")).await.unwrap();
    assert_eq!(h2::next(&mut stream).await, Some((h2::HEADERS, 4, 1)));
    assert!(timeout(4 * idle, h2::next(&mut stream)).await.is_err(), "it was told to go");
    stream.write_all(&h2::cancel(1)).await.unwrap();
    assert_eq!(h2::next(&mut stream).await, Some((h2::GOAWAY, 0, 0)));
}

#[tokio::test]
async fn connections_beyond_the_cap_wait() {
    let server = TestServer::start(settings(|s| s.max_connections = 2)).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    get_ok(&mut first).await;
    get_ok(&mut second).await;
    let mut third = server.connect().await;
    third.write_all(GET).await.unwrap();
    assert!(timeout(Duration::from_millis(300), third.read_u8()).await.is_err());
    drop(first);
    let (_, body) = timeout(PATIENCE, read_response(&mut third)).await.unwrap().unwrap();
    assert_eq!(body, "ok");
}

/// An answer that is ready in the moment in which its client leaves would be nobody's: a lock that is handed on, for one.
#[tokio::test]
async fn a_handler_is_not_asked_again_once_its_client_has_left() {
    let server = TestServer::start(settings(|_| {})).await;
    for count in 1..=20 {
        let mut client = server.connect().await;
        client.write_all(GET_HANG).await.unwrap();
        server.until_begun(count).await;
        let asked = server.hanging.asked.load(Ordering::SeqCst);
        drop(client);
        server.until_dropped(count, PATIENCE).await;
        assert_eq!(server.hanging.asked.load(Ordering::SeqCst), asked);
    }
}

/// Taking back rests on this: a handler is dropped very soon after its client has left.
#[tokio::test]
async fn a_client_that_leaves_drops_its_handler() {
    let soon = Duration::from_millis(250);
    let server = TestServer::start(settings(|_| {})).await;

    let mut fin = server.connect().await;
    fin.write_all(GET_HANG).await.unwrap();
    server.until_begun(1).await;
    drop(fin);
    server.until_dropped(1, soon).await;

    let mut half_closed = server.connect().await;
    half_closed.write_all(GET_HANG).await.unwrap();
    server.until_begun(2).await;
    half_closed.shutdown().await.unwrap();
    server.until_dropped(2, soon).await;

    let mut reset = server.connect().await;
    reset.write_all(GET_HANG).await.unwrap();
    server.until_begun(3).await;
    socket2::SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    server.until_dropped(3, soon).await;

    let mut h2 = h2::connect(&server).await;
    h2.write_all(&[h2::request(1, "/hang"), h2::request(3, "/hang")].concat()).await.unwrap();
    server.until_begun(5).await;
    h2.write_all(&h2::cancel(1)).await.unwrap();
    server.until_dropped(4, soon).await;
    drop(h2);
    server.until_dropped(5, soon).await;
}

#[tokio::test]
async fn a_request_with_a_hundred_headers_reaches_the_application_and_one_more_is_refused() {
    let server = TestServer::start(settings(|_| {})).await;
    let ask = async |count: usize| {
        let mut stream = server.connect().await;
        let fields: String = (1..count).map(|n| format!("x-{n}: {n}\r\n")).collect();
        stream
            .write_all(format!("GET /headers HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes())
            .await
            .unwrap();
        timeout(PATIENCE, read_response(&mut stream)).await.unwrap().unwrap()
    };
    assert_eq!(ask(100).await.1, "100");
    let (head, _) = ask(101).await;
    assert!(head.starts_with("http/1.1 431") || head.starts_with("HTTP/1.1 431"), "{head}");
}

/// A client that sends the next request as soon as it has the answer, until it is told to close; then it opens the
/// next connection. Returns how many answers it had when the server was gone.
async fn closed_loop(address: SocketAddr) -> usize {
    let mut answers = 0;
    'connections: while let Ok(mut stream) = TcpStream::connect(address).await {
        let mut answered_here = 0;
        loop {
            if let Err(error) = stream.write_all(GET).await {
                assert_eq!(answered_here, 0, "cut off before request {answered_here}: {error}");
                break 'connections;
            }
            match read_response(&mut stream).await {
                Ok((head, body)) => {
                    assert_eq!(body, "ok");
                    (answers, answered_here) = (answers + 1, answered_here + 1);
                    if head.contains("connection: close") {
                        continue 'connections;
                    }
                }
                // Reset as the listener was closed, in the moment between being connected and being accepted.
                Err(error) => {
                    assert_eq!(answered_here, 0, "request {answered_here} unanswered: {error}");
                    break 'connections;
                }
            }
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_under_load_cuts_nobody_off() {
    let server = TestServer::start(settings(|_| {})).await;
    let clients: Vec<_> = (0..32).map(|_| tokio::spawn(closed_loop(server.address))).collect();
    let mut stream = server.connect().await;
    for _ in 0..200 {
        get_ok(&mut stream).await;
    }
    let begun = Instant::now();
    assert_eq!(server.drained().await.cut_connections, 0);
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_secs(3), "drained in {elapsed:?}");
    for client in clients {
        let answers = timeout(PATIENCE, client).await.unwrap().unwrap();
        assert!(answers > 0);
    }
}

#[tokio::test]
async fn a_slow_request_finishes_during_the_drain() {
    let server = TestServer::start(settings(|_| {})).await;
    let address = server.address;
    let mut stream = server.connect().await;
    get_ok(&mut stream).await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
    let mut h2 = h2::connect(&server).await;
    h2.write_all(&[h2::request(1, "/hang"), h2::request(3, "/slow")].concat()).await.unwrap();
    server.until_begun(1).await;
    h2.write_all(&h2::cancel(1)).await.unwrap();
    server.until_dropped(1, PATIENCE).await;

    let begun = Instant::now();
    let drained = tokio::spawn(server.drained());
    assert_eq!(h2::next(&mut h2).await, Some((h2::GOAWAY, 0, 0)));
    assert!(begun.elapsed() < Duration::from_millis(250), "told after {:?}", begun.elapsed());
    // New clients are still welcome, and told to close.
    assert!(get_ok(&mut TcpStream::connect(address).await.unwrap()).await.contains("connection: close"));

    let (head, body) = timeout(PATIENCE, read_response(&mut stream)).await.unwrap().unwrap();
    assert_eq!(body, "slow");
    assert!(head.contains("connection: close"));
    // It is told a second time which requests are still answered, and when is a matter of who is faster.
    let mut next = async || loop {
        match h2::next(&mut h2).await {
            Some((h2::GOAWAY, ..)) => {}
            frame => return frame,
        }
    };
    assert_eq!(next().await, Some((h2::HEADERS, 4, 3)));
    assert_eq!(next().await, Some((h2::DATA, 1, 3)));
    assert_eq!(next().await, None);
    assert_eq!(drained.await.unwrap().cut_connections, 0);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_never_end_are_cut_and_counted() {
    const STREAMS: u32 = 200;
    let drain = Duration::from_millis(900);
    let server = TestServer::start(settings(|s| s.drain_timeout = drain)).await;
    let mut stream = server.connect().await;
    stream.write_all(GET_HANG).await.unwrap();
    let mut h2 = h2::connect(&server).await;
    for stream in 0..STREAMS {
        h2.write_all(&h2::request(2 * stream + 1, "/hang")).await.unwrap();
    }
    let mut idle = server.connect().await;
    // It has been accepted: one that comes during the drain is served, and cut at its end.
    get_ok(&mut idle).await;
    let begun = usize::try_from(STREAMS).unwrap() + 1;
    server.until_begun(begun).await;

    let (asked, hanging) = (Instant::now(), Arc::clone(&server.hanging));
    server.shutdown.cancel();
    let outcome = timeout(PATIENCE, server.done).await.expect("serve did not return").unwrap();
    assert_eq!(hanging.dropped.load(Ordering::SeqCst), begun, "no handler outlives serve");
    assert_eq!(outcome, DrainOutcome { cut_connections: 2 });
    assert!(asked.elapsed() >= drain && asked.elapsed() < drain * 3, "took {:?}", asked.elapsed());
    assert_eq!(read_to_close(&mut stream).await, b"");
    drop(idle);
}

#[tokio::test]
async fn a_request_that_waits_in_the_backlog_is_served_by_the_drain() {
    let server = TestServer::start(settings(|s| {
        (s.max_connections, s.drain_timeout) = (1, Duration::from_secs(2));
    }))
    .await;
    let mut holder = server.connect().await;
    holder.write_all(GET_HANG).await.unwrap();
    server.until_begun(1).await;
    let mut waiting = server.connect().await;
    waiting.write_all(GET).await.unwrap();
    let drained = tokio::spawn(server.drained());
    let (head, body) = timeout(PATIENCE, read_response(&mut waiting)).await.unwrap().unwrap();
    assert_eq!(body, "ok");
    assert!(head.contains("connection: close"));
    assert_eq!(drained.await.unwrap().cut_connections, 1);
}

#[tokio::test]
async fn an_http_1_0_client_is_not_told_both_to_close_and_to_stay() {
    let server = TestServer::start(settings(|_| {})).await;
    let mut stream = server.connect().await;
    let request = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let (head, _) = timeout(PATIENCE, read_response(&mut stream)).await.unwrap().unwrap();
    assert!(head.contains("keep-alive"), "{head}");
    let drained = tokio::spawn(server.drained());
    loop {
        stream.write_all(request).await.unwrap();
        let (head, _) = timeout(PATIENCE, read_response(&mut stream)).await.unwrap().unwrap();
        if head.contains("close") {
            assert!(!head.contains("keep-alive"), "{head}");
            break;
        }
    }
    assert_eq!(drained.await.unwrap().cut_connections, 0);
}

#[tokio::test]
async fn dropping_the_server_cuts_its_connections() {
    let server = TestServer::start(settings(|_| {})).await;
    let mut stream = server.connect().await;
    stream.write_all(GET_HANG).await.unwrap();
    server.until_begun(1).await;
    server.done.abort();
    server.until_dropped(1, PATIENCE).await;
    assert_eq!(read_to_close(&mut stream).await, b"");
}
