//! Results that clients send and do not finish.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::ring::Ring;
use kit::http::parse;
use kit::{Answer, Client, PATIENCE, fresh_token};

/// What results may take that are on their way.
const ROOM_MIB: u64 = 64;
/// How long a result may take to arrive, and what a busy machine may add.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);
const BUSY: Duration = Duration::from_secs(5);
/// Those who stall have so many addresses, as no caller has all of the room.
const ADDRESSES: usize = 8;
const CLIENTS: usize = 2_000;

async fn connect(gateway: SocketAddr, number: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let last_byte = u8::try_from(2 + number % ADDRESSES).unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last_byte), 0).into()).unwrap();
    socket.connect(gateway).await.unwrap()
}

/// Reads what the gateway says, whenever it comes.
async fn said(mut stream: TcpStream) -> Option<Answer> {
    let mut answer = Vec::new();
    // The gateway may close while something is unread, and then its last words may be lost.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection stays open");
    (!answer.is_empty()).then(|| parse(&answer))
}

/// Announces as many results of 64 KiB, sends so much of each, and stays. Returns how much memory that took, and what the
/// clients were told.
fn stall(bytes: usize) -> (u64, Vec<u16>) {
    let ring = Ring::new(&["--max-connections", "4000"]);
    let (address, token) = (ring.gateway.address, fresh_token());
    let begun = token.clone();
    ring.attackers.run(async move {
        Client::new(address).put("/once/k?ttl=10m").token(&begun).send().await.expect(201);
    });
    let head = format!(
        "POST /once/k HTTP/1.1\r\nHost: localhost\r\nLease-Token: {token}\r\nContent-Length: 65536\r\n\r\n"
    );
    let (stalled, last_sent) = ring.attackers.run(async move {
        let request = [head.as_bytes(), &vec![b'x'; bytes]].concat();
        let mut stalled = Vec::new();
        for number in 0..CLIENTS {
            let mut stream = connect(address, number).await;
            // Those that are refused may be cut off before they have sent all.
            let _ = stream.write_all(&request).await;
            stalled.push(tokio::spawn(said(stream)));
        }
        (stalled, Instant::now())
    });
    let until = Instant::now() + Duration::from_secs(2);
    let mut most_mib = 0;
    // Others are served meanwhile.
    while Instant::now() < until {
        ring.pairs();
        most_mib = most_mib.max(ring.memory_mib("VmRSS"));
    }
    let statuses: Vec<u16> = ring.attackers.run(async move {
        let mut statuses = Vec::new();
        for answer in stalled {
            statuses.extend(answer.await.unwrap().map(|answer| answer.status));
        }
        statuses
    });
    let took = last_sent.elapsed();
    println!("{bytes} bytes of each: {} → at most {most_mib} MiB, over after {took:.1?}", ring.first_mib);
    assert!(took < RESULT_TIMEOUT + BUSY, "{took:?}");
    // The place is still the worker's, and so is the room.
    ring.attackers.run(async move {
        Client::new(address).post("/once/k").token(&token).body("done").send().await.expect(200);
    });
    (most_mib.saturating_sub(ring.first_mib), statuses)
}

#[test]
fn two_thousand_results_that_stall_take_little_memory_and_are_cut_off() {
    let (more_mib, statuses) = stall(4_000);
    assert!(more_mib <= ROOM_MIB, "{more_mib} MiB more");
    assert!(statuses.len() == CLIENTS && statuses.iter().all(|status| *status == 408), "{statuses:?}");
}
