//! Handshakes that cost the gateway much and their clients nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::ring::Ring;
use kit::PATIENCE;

/// Without turns, they take the only thread for some six seconds, and on slow machines for longer.
const GREETINGS: usize = 2_000;
const WINDOW: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(1);

/// The first byte of an answer.
const HANDSHAKE_RECORD: u8 = 0x16;

/// From an address that no other client here has.
async fn connect(gateway: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, 7), 0).into()).unwrap();
    socket.connect(gateway).await.unwrap()
}

#[test]
fn greetings_that_are_sent_again_and_again_hold_up_neither_requests_nor_other_addresses() {
    let ring = Ring::with_slow_tls(&["--max-connections", "10000", "--tls-handshake-timeout", "2m"]);
    let (address, greeting) = (ring.gateway.address, ring.greeting());
    let mut open = ring.attackers.run(async move {
        let mut open = Vec::new();
        for _ in 0..GREETINGS {
            open.push(connect(address).await);
        }
        open
    });
    let attack = || {
        for stream in &mut open {
            assert_eq!(stream.try_write(&greeting).unwrap(), greeting.len());
        }
    };
    let (slowest, new) = ring.slowest_beside(attack, WINDOW);
    println!("{GREETINGS} greetings: the slowest request took {slowest:.1?}, a new connection {new:.1?}");
    assert!(slowest < LONGEST, "a request took {slowest:.1?}");
    assert!(new < LONGEST, "a new connection took {new:.1?}");
    // They are answered all the same.
    let answered = ring.attackers.run(async move { timeout(PATIENCE, open[0].read_u8()).await });
    assert_eq!(answered.expect("no answer").unwrap(), HANDSHAKE_RECORD);
}

/// To answer all of them takes a second or more, and to send them a few milliseconds. So few have their turn before they leave.
#[test]
fn clients_that_leave_while_they_wait_for_their_turn_are_not_answered() {
    let ring = Ring::with_slow_tls(&["--max-connections", "10000", "--tls-handshake-timeout", "2m"]);
    let (address, greeting) = (ring.gateway.address, ring.greeting());
    let answered = ring.attackers.run(async move {
        let mut open = Vec::new();
        for _ in 0..GREETINGS {
            open.push(connect(address).await);
        }
        for stream in &mut open {
            stream.write_all(&greeting).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        let mut answered = 0;
        for stream in &mut open {
            let first = timeout(PATIENCE, stream.read_u8()).await.expect("neither an answer nor an end");
            answered += usize::from(first.is_ok_and(|first| first == HANDSHAKE_RECORD));
        }
        answered
    });
    println!("{answered} of {GREETINGS} were answered");
    assert!(answered < GREETINGS / 2, "{answered} were answered");
}
