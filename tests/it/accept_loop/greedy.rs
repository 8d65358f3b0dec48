//! Clients that want more than their share.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost::server::ServerSettings;
use fencepost::telemetry::{ConnectionRefused, Connections};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::{TestServer, get_ok, h2, poll_until, read_to_close, settings};
use crate::support::PATIENCE;

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
    poll_until(|| counts.open.get() == 1 && counts.unread.load(Ordering::Relaxed) == 0, PATIENCE).await;
}

#[tokio::test]
async fn h2_clients_that_read_no_answers_have_only_so_many_in_memory() {
    let (settings, counts) = counted(|_| {});
    let server = TestServer::start(settings).await;
    let requests: Vec<u8> = (1..500).step_by(2).flat_map(|number| h2::request(number, "/")).collect();
    let mut greedy = Vec::new();
    for _ in 0..36 {
        let mut stream = connect_without_room(&server).await;
        stream.write_all(&requests).await.unwrap();
        greedy.push(stream);
    }
    // 9,000 are wanted.
    poll_until(|| counts.unread.load(Ordering::Relaxed) >= 8_192, PATIENCE).await;
    let mut last = connect_without_room(&server).await;
    last.write_all(&requests).await.unwrap();
    while h2::next(&mut last).await.expect("it is cut").0 != h2::RST_STREAM {}
    assert!(counts.unread.load(Ordering::Relaxed) < 8_400);
    // Others get their answers, by HTTP/2 as well.
    let mut other = h2::connect(&server).await;
    other.write_all(&h2::request(1, "/")).await.unwrap();
    assert_eq!(h2::next(&mut other).await, Some((h2::HEADERS, 4, 1)));
    assert_eq!(h2::next(&mut other).await, Some((h2::DATA, 1, 1)));
    drop((greedy, last));
    poll_until(|| counts.unread.load(Ordering::Relaxed) == 0, PATIENCE).await;
}
