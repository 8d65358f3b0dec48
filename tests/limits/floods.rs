//! Clients that send more than they should.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::attackers::send;
use crate::ring::Ring;
use kit::h2::{END_STREAM, HEADERS, PREFACE, SETTINGS, cancel, frame, header_block, request};

const SOME: usize = 8;
/// Where what they may do is real work, which no limit of connections is against: how much of it is.
const FEW: usize = 2;
const PAUSE: Duration = Duration::from_millis(5);

/// So many pages of 1,000 locks take a second or more.
const PAGES: usize = 2_000;
const WINDOW: Duration = Duration::from_secs(3);
/// Some pages are made before a request is read, and some more before it is answered.
const LONGEST: Duration = Duration::from_secs(1);

#[test]
fn addresses_of_a_megabyte_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let path = vec![b'a'; 1024 * 1024];
        let first = [b"PUT /locks/", path.as_slice(), b" HTTP/1.1\r\nHost: localhost\r\n\r\n"].concat();
        send(address, &first, Duration::ZERO, Vec::new).await;
    }
    let mut ring = Ring::new(&[]);
    ring.endures("addresses of a megabyte", SOME, attack);
    ring.ends(attack);
}

#[test]
fn heads_without_end_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let mut number = 0;
        let first = b"PUT /locks/k HTTP/1.1\r\nHost: localhost\r\n";
        let some = || {
            number += 100;
            (number..number + 100).map(|n| format!("X-{n}: {n}\r\n")).collect::<String>().into_bytes()
        };
        send(address, first, Duration::ZERO, some).await;
    }
    let mut ring = Ring::new(&[]);
    ring.endures("heads without end", SOME, attack);
    ring.ends(attack);
}

fn h2_greeting() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The numbers of a client's streams.
fn streams() -> impl Iterator<Item = u32> {
    (1..).step_by(2)
}

#[test]
fn streams_beyond_number_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let mut streams = streams();
        // Each of those that are let in would wait for as long as it may.
        let some =
            || streams.by_ref().take(10).flat_map(|n| request(n, "PUT", "/locks/held?wait=50s")).collect();
        send(address, &h2_greeting(), PAUSE, some).await;
    }
    let mut ring = Ring::new(&[]);
    ring.hold();
    ring.endures("streams beyond number", FEW, attack);
    ring.ends(attack);
}

/// CVE-2023-44487.
#[test]
fn streams_that_are_reset_at_once_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let mut streams = streams();
        let some = || {
            let pair = |n| [request(n, "PUT", "/locks/k?ttl=1s"), cancel(n)].concat();
            streams.by_ref().take(50).flat_map(pair).collect()
        };
        send(address, &h2_greeting(), Duration::ZERO, some).await;
    }
    let mut ring = Ring::new(&[]);
    ring.endures("rapid resets", SOME, attack);
    ring.ends(attack);
}

/// So few at a time that each is begun before it is reset.
#[test]
fn streams_that_are_reset_once_begun_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let mut streams = streams();
        let mut last = Vec::new();
        let some = || {
            let begun = std::mem::take(&mut last);
            last = streams.by_ref().take(10).collect();
            let resets = begun.into_iter().flat_map(cancel);
            resets.chain(last.iter().flat_map(|n| request(*n, "PUT", "/locks/held?wait=50s"))).collect()
        };
        send(address, &h2_greeting(), PAUSE, some).await;
    }
    let mut ring = Ring::new(&[]);
    ring.hold();
    ring.endures("resets of what was begun", FEW, attack);
}

const CONTINUATION: u8 = 9;

/// CVE-2024-27316.
#[test]
fn continuations_without_end_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let begin = frame(HEADERS, END_STREAM, 1, &header_block("PUT", "/locks/k"));
        // A literal header that is never indexed: `x` and 1,000 bytes.
        let field = [&[0x10, 1, b'x', 0x7f, 0xe9, 0x06][..], &[b'y'; 1000]].concat();
        let some = move || (0..50).flat_map(|_| frame(CONTINUATION, 0, 1, &field)).collect();
        send(address, &[h2_greeting(), begin].concat(), Duration::ZERO, some).await;
    }
    let mut ring = Ring::new(&[]);
    ring.endures("continuations without end", SOME, attack);
    ring.ends(attack);
}

/// The memory store waits for nothing. So a page is found and written in one go.
#[test]
fn pages_that_are_asked_for_in_one_moment_hold_others_up_for_a_few_of_them_only() {
    let ring = Ring::new(&["--threads", "1"]);
    ring.hold_many(1_000);
    let address = ring.gateway.address;
    let mut open: Vec<_> = (0..PAGES).map(|_| TcpStream::connect(address).unwrap()).collect();
    let attack = || {
        ring.gateway.signal("STOP");
        for stream in &mut open {
            stream.write_all(b"GET /locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        }
        ring.gateway.signal("CONT");
    };
    let (slowest, _) = ring.slowest_beside(attack, WINDOW);
    println!("{PAGES} pages: the slowest request took {slowest:.1?}");
    assert!(slowest < LONGEST, "a request took {slowest:.1?}");
}
