//! Clients that want more than their share.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::mem;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::routing::get;
use axum::{Extension, Router};
use fencepost::server::{Peer, ServerSettings, serve};
use fencepost::telemetry::{ConnectionRefused, Connections};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::{GET, TestServer, get_ok, h2, poll_until, read_response, read_to_close, settings};
use kit::PATIENCE;
use kit::h2::{END_HEADERS, END_STREAM, header_block};

/// A connection from another address of this machine.
async fn connect_from(server: &TestServer, last_byte: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last_byte), 0).into()).unwrap();
    socket.connect(server.address).await.unwrap()
}

fn counted(change: impl FnOnce(&mut ServerSettings)) -> (ServerSettings, Arc<Connections>) {
    let settings = settings(change);
    let counts = Arc::clone(&settings.counts);
    (settings, counts)
}

#[tokio::test]
async fn one_address_cannot_have_all_connections() {
    let (settings, counts) = counted(|s| (s.max_connections, s.max_connections_per_address) = (3, 2));
    let server = TestServer::start(settings).await;
    let (mut first, mut second) = (connect_from(&server, 7).await, connect_from(&server, 7).await);
    get_ok(&mut first).await;
    get_ok(&mut second).await;
    for _ in 0..20 {
        assert_eq!(read_to_close(&mut connect_from(&server, 7).await).await, b"");
    }
    assert_eq!(counts.refused.get(ConnectionRefused::AddressFull), 20);
    // Those that were refused took nothing from others.
    get_ok(&mut connect_from(&server, 8).await).await;
    drop(first);
    poll_until(|| counts.open.get() == 1, PATIENCE).await;
    get_ok(&mut connect_from(&server, 7).await).await;
    get_ok(&mut second).await;
}

/// Its requests are answered long ago, so that it would never be busy again, and never done.
#[tokio::test]
async fn an_h2_client_that_makes_no_room_for_its_answers_is_cut() {
    let idle = Duration::from_millis(300);
    let (settings, counts) = counted(|s| (s.idle_timeout, s.first_request_timeout) = (idle, idle));
    let server = TestServer::start(settings).await;
    let mut stream = server.connect().await;
    stream.write_all(h2::PREFACE).await.unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0: heads come through, and bodies do not.
    stream.write_all(&h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    stream.write_all(&h2::request(1, "/")).await.unwrap();
    assert_eq!(h2::next(&mut stream).await, Some((h2::HEADERS, 4, 1)));
    while let Some((kind, ..)) = h2::next(&mut stream).await {
        assert_eq!(kind, h2::GOAWAY);
    }
    poll_until(|| counts.open.get() == 0, PATIENCE).await;
}

/// SETTINGS_INITIAL_WINDOW_SIZE is 0: heads come through, and bodies do not.
async fn connect_without_room(server: &TestServer) -> TcpStream {
    let mut stream = server.connect().await;
    let settings = h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    stream.write_all(&[h2::PREFACE, &settings].concat()).await.unwrap();
    stream
}

/// It would never be idle, since it makes one more request after the other.
#[tokio::test]
async fn an_h2_client_that_leaves_one_answer_unread_is_cut_whatever_else_it_does() {
    let idle = Duration::from_millis(500);
    let (settings, counts) = counted(|s| (s.idle_timeout, s.first_request_timeout) = (idle, idle));
    let server = TestServer::start(settings).await;
    let mut good = h2::connect(&server).await;
    let mut stream = connect_without_room(&server).await;
    let begun = tokio::time::Instant::now();
    for number in (1..).step_by(2) {
        assert!(begun.elapsed() < PATIENCE, "it is still served");
        good.write_all(&h2::request(number, "/")).await.unwrap();
        assert_eq!(h2::next(&mut good).await, Some((h2::HEADERS, 4, number)));
        assert_eq!(h2::next(&mut good).await, Some((h2::DATA, 1, number)));
        // All but its first answer are of no interest to it.
        let mut sent = stream.write_all(&h2::request(number, "/")).await;
        if number > 1 && sent.is_ok() {
            sent = stream.write_all(&h2::cancel(number)).await;
        }
        if sent.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    poll_until(|| counts.open.get() == 1 && counts.unread_bytes.get() == 0, PATIENCE).await;
}

const UNREAD_BYTES: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn h2_clients_that_read_no_answers_have_only_so_many_in_memory() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES);
    let server = TestServer::start(settings).await;
    let requests: Vec<u8> = (1..500).step_by(2).flat_map(|number| h2::request(number, "/")).collect();
    let mut greedy = Vec::new();
    for _ in 0..36 {
        let mut stream = connect_without_room(&server).await;
        stream.write_all(&requests).await.unwrap();
        greedy.push(stream);
        assert!(usize::try_from(counts.unread_bytes.get()).unwrap() <= UNREAD_BYTES);
    }
    // 9,000 are wanted, of which a third is too much.
    poll_until(|| counts.cut_unread.get() >= 20, PATIENCE).await;
    assert!(usize::try_from(counts.unread_bytes.get()).unwrap() <= UNREAD_BYTES);
    // Others get their answers, by HTTP/2 as well.
    let mut other = h2::connect(&server).await;
    other.write_all(&h2::request(1, "/")).await.unwrap();
    assert_eq!(h2::next(&mut other).await, Some((h2::HEADERS, 4, 1)));
    assert_eq!(h2::next(&mut other).await, Some((h2::DATA, 1, 1)));
    drop(greedy);
    poll_until(|| counts.unread_bytes.get() == 0, PATIENCE).await;
}

/// A stream has no length, and may go on for days. It counts all the same.
#[tokio::test]
async fn h2_streams_that_nobody_reads_have_only_so_many_bytes_in_memory() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES);
    let server = TestServer::start(settings).await;
    let requests: Vec<u8> = (1..120).step_by(2).flat_map(|number| h2::request(number, "/plenty")).collect();
    let mut greedy = Vec::new();
    // Of each of 240 streams, one frame of 64 KiB waits: twice as much as may.
    for _ in 0..4 {
        let mut stream = server.connect().await;
        // SETTINGS_INITIAL_WINDOW_SIZE is 1: a frame is begun, and not ended.
        let settings = h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
        stream.write_all(&[h2::PREFACE, &settings, &requests].concat()).await.unwrap();
        greedy.push(stream);
        assert!(usize::try_from(counts.unread_bytes.get()).unwrap() <= UNREAD_BYTES);
    }
    poll_until(|| counts.cut_unread.get() > 0, PATIENCE).await;
    assert!(usize::try_from(counts.unread_bytes.get()).unwrap() <= UNREAD_BYTES);
    get_ok(&mut connect_from(&server, 9).await).await;
    drop(greedy);
    poll_until(|| counts.unread_bytes.get() == 0, PATIENCE).await;
}

/// What is unread of a stream counts, but its connection may go on: it may hold a lock, and its program may read nothing.
#[tokio::test]
async fn an_h2_stream_that_nobody_reads_for_long_is_not_cut_for_that() {
    let idle = Duration::from_millis(300);
    let (settings, counts) = counted(|s| (s.idle_timeout, s.first_request_timeout) = (idle, idle));
    let server = TestServer::start(settings).await;
    let mut stream = server.connect().await;
    let settings = h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
    stream.write_all(&[h2::PREFACE, &settings, &h2::request(1, "/plenty")].concat()).await.unwrap();
    assert_eq!(h2::next(&mut stream).await, Some((h2::HEADERS, 4, 1)));
    assert_eq!(h2::next(&mut stream).await, Some((h2::DATA, 0, 1)));
    assert!(timeout(4 * idle, h2::next(&mut stream)).await.is_err(), "it was told something");
    assert!(counts.open.get() == 1 && counts.unread_bytes.get() > 0);
    drop(stream);
    poll_until(|| counts.unread_bytes.get() == 0, PATIENCE).await;
}

/// They are more than may be read ahead of their handlers.
#[tokio::test]
async fn h2_requests_that_come_in_one_moment_are_all_answered() {
    let (settings, counts) = counted(|_| {});
    let server = TestServer::start(settings).await;
    let requests: Vec<u8> = (1..500).step_by(2).flat_map(|number| h2::request(number, "/")).collect();
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(h2::connect(&server).await);
    }
    for stream in &mut open {
        stream.write_all(&requests).await.unwrap();
    }
    for stream in &mut open {
        let mut answered = 0;
        while answered < 250 {
            match h2::next(stream).await {
                Some((h2::DATA, 1, _)) => answered += 1,
                frame => assert!(matches!(frame, Some((h2::HEADERS, 4, _))), "{frame:?}"),
            }
        }
    }
    assert_eq!(counts.cut_unread.get(), 0);
}

/// However many connections they are on: the one whose answers lie there pays for them.
#[tokio::test]
async fn others_of_an_address_are_answered_beside_a_greedy_one() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES);
    let server = TestServer::start(settings).await;
    let requests: Vec<u8> = (1..400).step_by(2).flat_map(|number| h2::request(number, "/")).collect();
    let mut greedy = Vec::new();
    for _ in 0..45 {
        let mut stream = connect_without_room(&server).await;
        stream.write_all(&requests).await.unwrap();
        greedy.push(stream);
    }
    poll_until(|| counts.cut_unread.get() >= 10, PATIENCE).await;
    let mut other = h2::connect(&server).await;
    for round in 0..20 {
        // As many at once as a page may ask for.
        let numbers: Vec<u32> = (round * 96..(round + 1) * 96).map(|n| 2 * n + 1).collect();
        let requests: Vec<u8> = numbers.iter().flat_map(|number| h2::request(*number, "/")).collect();
        other.write_all(&requests).await.unwrap();
        let mut answered = BTreeSet::new();
        while answered.len() < numbers.len() {
            match h2::next(&mut other).await {
                Some((h2::DATA, 1, number)) => assert!(answered.insert(number)),
                frame => assert!(matches!(frame, Some((h2::HEADERS, 4, _))), "{frame:?} in round {round}"),
            }
        }
    }
}

/// By HTTP/1 the requests that follow are not even read, however many there are.
#[tokio::test]
async fn whoever_reads_no_answers_by_http_1_is_not_read_either() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES);
    let server = TestServer::start(settings).await;
    let mut greedy = server.connect().await;
    let requests = super::GET.repeat(1_000);
    let mut sent = 0;
    while let Ok(more) = timeout(Duration::from_secs(1), greedy.write(&requests)).await {
        sent += more.unwrap();
        assert!(sent < 500 * 1024 * 1024, "all of it was read");
        assert!(counts.unread_bytes.get() < 1024 * 1024, "{} bytes wait", counts.unread_bytes.get());
    }
    get_ok(&mut server.connect().await).await;
    // It finds all answers once it reads, and its connection goes on.
    let read = async {
        let ok = b"HTTP/1.1 200 OK";
        let (mut answers, mut bytes) = (0, Vec::new());
        while answers < sent / super::GET.len() {
            greedy.read_buf(&mut bytes).await.unwrap();
            answers += memchr::memmem::find_iter(&bytes, ok).count();
            // The rest may be the beginning of another.
            bytes.drain(..bytes.len().saturating_sub(ok.len() - 1));
        }
    };
    timeout(PATIENCE, read).await.expect("answers are missing");
    assert_eq!(counts.unread_bytes.get(), 0);
}

/// Pages are handed on piece by piece; the one that takes none of them pays when there are too many.
#[tokio::test]
async fn large_answers_that_nobody_reads_have_only_so_many_bytes_in_memory() {
    let (settings, counts) = counted(|_| {});
    let server = TestServer::start(settings).await;
    let mut greedy = Vec::new();
    for _ in 0..8 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
        greedy.push(stream);
        assert!(usize::try_from(counts.unread_bytes.get()).unwrap() <= 64 << 20);
    }
    poll_until(|| counts.cut_unread.get() > 0, PATIENCE).await;
    get_ok(&mut connect_from(&server, 9).await).await;
    drop(greedy);
    poll_until(|| counts.unread_bytes.get() == 0, PATIENCE).await;
}

/// A field of HTTP/2 takes many times as much as it has bytes. What is malformed is not answered before its end either.
#[tokio::test]
async fn heads_without_an_end_have_only_so_many_bytes_in_memory() {
    let fields = (b'a'..=b'z').flat_map(|a| (b'a'..=b'z').flat_map(move |b| [0, 3, b'x', a, b, 0]));
    let block: Vec<u8> = header_block("GET", "/").into_iter().chain(fields).collect();
    let settings_frame = h2::frame(h2::SETTINGS, 0, 0, &[]);
    let short_fields =
        [h2::PREFACE, &settings_frame, &h2::frame(h2::HEADERS, END_STREAM, 1, &block)].concat();
    let long = "a".repeat(28_000);
    let heads = [
        short_fields,
        format!("GET / HTTP/1.1\r\nHost: t\r\nX-Long: {long}").into_bytes(),
        format!("GET / HTTP/1.1\nHost: t\r\nX-Long: {long}").into_bytes(),
        [GET, format!("GET / HTTP/1.1\r\nX-Long: {long}").as_bytes()].concat(),
    ];
    for (number, head) in heads.into_iter().enumerate() {
        let (settings, counts) = counted(|s| s.max_unread_bytes = 2 << 20);
        let server = TestServer::start(settings).await;
        let mut greedy = Vec::new();
        for _ in 0..150 {
            let mut stream = server.connect().await;
            // It may be cut before it has sent all.
            let _ = stream.write_all(&head).await;
            greedy.push(stream);
        }
        println!("head {number}");
        poll_until(|| counts.cut_unread.get() >= 60, PATIENCE).await;
        assert!(counts.unread_bytes.get() <= 2 << 20);
        get_ok(&mut server.connect().await).await;
        // A long head that comes to its end is nothing to pay for.
        let mut other = connect_from(&server, 8).await;
        other.write_all(format!("GET / HTTP/1.1\r\nHost: t\r\nX-Long: {long}").as_bytes()).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        other.write_all(b"\r\n\r\n").await.unwrap();
        assert_eq!(read_response(&mut other).await.unwrap().1, "ok");
        drop(greedy);
        poll_until(|| counts.unread_bytes.get() == 0, PATIENCE).await;
    }
}

/// A request whose `:path` goes into the table of fields, with another header of this length.
fn indexed_request(number: u32, length: usize) -> Vec<u8> {
    let path = format!("/?{number}");
    let mut block = vec![0x82, 0x86, 0x44, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    // `:authority` is `t`, and the other header is `b`. The last three bytes are its length.
    let [low, high] = [(length - 127) % 128, (length - 127) / 128].map(|part| u8::try_from(part).unwrap());
    block.extend([0x01, 1, b't', 0x10, 1, b'b', 0x7f, low | 0x80, high]);
    block.resize(block.len() + length, b'x');
    h2::frame(h2::HEADERS, END_STREAM | END_HEADERS, number, &block)
}

/// Whether the request was answered and nothing else was told.
async fn is_answered(stream: &mut TcpStream, number: u32) -> bool {
    h2::next(stream).await == Some((h2::HEADERS, 4, number))
        && h2::next(stream).await == Some((h2::DATA, 1, number))
}

#[tokio::test]
async fn an_h2_client_with_ordinary_heads_is_not_told_to_go_for_what_its_table_keeps() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES);
    let server = TestServer::start(settings).await;
    let mut stream = h2::connect(&server).await;
    for number in (1..2_000).step_by(2) {
        stream.write_all(&indexed_request(number, 950)).await.unwrap();
        assert!(is_answered(&mut stream, number).await, "request {number}");
    }
    assert_eq!(counts.cut_unread.get(), 0);
}

/// The library keeps a head for each `:path` in the table of fields, also when all requests are answered.
#[tokio::test]
async fn an_h2_client_whose_table_keeps_long_heads_is_told_to_go_and_cut_if_it_does_not() {
    let (settings, counts) = counted(|s| s.max_unread_bytes = UNREAD_BYTES / 8);
    let server = TestServer::start(settings).await;
    let mut stream = h2::connect(&server).await;
    // It has a reason to stay.
    stream.write_all(&h2::request(1, "/hang")).await.unwrap();
    let mut numbers = (3..300).step_by(2);
    let told_at = loop {
        let number = numbers.next().expect("it was not told to go");
        stream.write_all(&indexed_request(number, 15_000)).await.unwrap();
        if !is_answered(&mut stream, number).await {
            break number;
        }
    };
    // It has sent 128 KiB.
    assert!((17..23).contains(&told_at), "told at request {told_at}");
    assert_eq!(counts.cut_unread.get(), 0);
    for number in numbers {
        let _ = stream.write_all(&indexed_request(number, 15_000)).await;
    }
    poll_until(|| counts.cut_unread.get() == 1 && counts.unread_bytes.get() == 0, PATIENCE).await;
}

/// How many answers were taken, and how many were given up by the server, and by their client.
#[derive(Default)]
struct Ends {
    taken: AtomicUsize,
    cut: AtomicUsize,
    left: AtomicUsize,
}

/// An answer that counts when it is taken, as the grant of a lock does.
struct Grant {
    ends: Arc<Ends>,
    peer: Arc<Peer>,
    bytes: Bytes,
}

impl HttpBody for Grant {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = mem::take(&mut self.bytes);
        let is_taken = !bytes.is_empty();
        self.ends.taken.fetch_add(usize::from(is_taken), Ordering::SeqCst);
        Poll::Ready(is_taken.then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    /// It takes its time: meanwhile, other tasks write what was begun.
    fn size_hint(&self) -> SizeHint {
        block_in_place(|| thread::sleep(Duration::from_millis(100)));
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            let is_cut = self.peer.is_cut.load(Ordering::SeqCst);
            (if is_cut { &self.ends.cut } else { &self.ends.left }).fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// An answer of its length and what else it costs are too much together, and neither is alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_which_its_connection_is_cut_is_not_taken_and_is_given_up_by_the_server() {
    const BYTES: usize = 3 * 1024;
    let ends = Arc::new(Ends::default());
    let (told, bytes) = (Arc::clone(&ends), Bytes::from(vec![b'x'; BYTES]));
    let answer = async move |Extension(peer): Extension<Arc<Peer>>| {
        Body::new(Grant { ends: told.clone(), peer, bytes: bytes.clone() })
    };
    let (settings, counts) = counted(|s| s.max_unread_bytes = BYTES + 1024);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(serve(listener, Router::new().route("/", get(answer)), settings, Default::default()));
    let sent = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[]), &h2::request(1, "/")].concat();
    stream.write_all(&sent).await.unwrap();
    while let Some((kind, ..)) = h2::next(&mut stream).await {
        assert_ne!(kind, h2::HEADERS, "its head was sent");
    }
    // Another task than that of the connection drops it.
    poll_until(|| ends.cut.load(Ordering::SeqCst) == 1, PATIENCE).await;
    let ends = [&ends.taken, &ends.cut, &ends.left].map(|count| count.load(Ordering::SeqCst));
    assert_eq!((counts.cut_unread.get(), ends), (1, [0, 1, 0]));
}
