//! Results that clients send and do not finish, or ask for and do not take.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::ring::Ring;
use kit::h2::{DATA, HEADERS, PREFACE, SETTINGS, frame, request};
use kit::http::parse;
use kit::{Answer, Client, PATIENCE, RedisServer, fresh_token};

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

#[test]
fn results_that_stall_at_their_end_take_no_more_than_their_room() {
    /// What 2,000 connections take themselves: each reads into a buffer of up to 32 KiB, and has more of its own.
    const CONNECTIONS_MIB: u64 = 125;
    let (more_mib, statuses) = stall(65_000);
    assert!(more_mib <= ROOM_MIB + CONNECTIONS_MIB, "{more_mib} MiB more");
    assert!(statuses.contains(&408) && statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| [408, 429].contains(status)), "{statuses:?}");
}

/// Asks for a result many times on one connection by HTTP/2, and lets none of its bytes come. Returns how many were answered
/// with it until the gateway closed the connection, and the connection.
async fn take_nothing(gateway: SocketAddr, number: usize, streams: u32) -> (u32, TcpStream) {
    let mut stream = connect(gateway, number).await;
    // A window of nothing: each result stays with the gateway.
    let greeting = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    stream.write_all(&greeting).await.unwrap();
    let mut answered = 0;
    // One after the other, so that the store is no bottleneck.
    while answered < streams && stream.write_all(&request(2 * answered + 1, "PUT", "/once/k")).await.is_ok() {
        let mut head = [0; 9];
        while head[3] != HEADERS {
            let read = timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("no answer");
            let mut rest = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            if read.is_err() || stream.read_exact(&mut rest).await.is_err() {
                return (answered, stream);
            }
            assert!(head[3] != DATA || rest.len() < 1024, "a result came, though there was no window for it");
        }
        answered += 1;
    }
    (answered, stream)
}

#[test]
fn results_that_nobody_takes_take_no_more_than_their_room() {
    const CLIENTS: usize = 16;
    const STREAMS: u32 = 20;
    const RESULT_BYTES: usize = 1024 * 1024;
    // Each reply of a Redis is a copy. An embedded store has one for all.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(RedisServer::start_with(&["--maxmemory", "1gb"]));
    // The name is that of requests by hand.
    let more = ["--allow-host", "t", "--max-result-bytes", "1048576"];
    let ring = Ring::on(redis.url(), &more);
    let address = ring.gateway.address;
    ring.attackers.run(async move {
        let (client, token) = (Client::new(address), fresh_token());
        client.put("/once/k?ttl=10m").token(&token).send().await.expect(201);
        client.post("/once/k").token(&token).body(vec![b'x'; RESULT_BYTES]).send().await.expect(200);
    });
    let clients = ring.attackers.run(async move {
        let asking = (0..CLIENTS).map(|number| tokio::spawn(take_nothing(address, number, STREAMS)));
        let mut clients = Vec::new();
        for asking in asking.collect::<Vec<_>>() {
            clients.push(asking.await.unwrap());
        }
        clients
    });
    let peak_mib = ring.memory_mib("VmHWM");
    let answered = clients.iter().map(|(answered, _)| *answered as usize).sum::<usize>();
    let all = CLIENTS * STREAMS as usize;
    println!("{} → at most {peak_mib} MiB; {answered} of {all} were answered", ring.first_mib);
    assert!(peak_mib - ring.first_mib <= ROOM_MIB + 32, "{} MiB more", peak_mib - ring.first_mib);
    assert!(answered < all, "no connection was closed for what it left unread");
    ring.attackers.run(async move {
        let (client, give_up) = (Client::new(address), Instant::now() + PATIENCE);
        loop {
            let whole = client.put("/once/k").token(&fresh_token()).send().await;
            if whole.status == 200 {
                assert_eq!(whole.body.len(), RESULT_BYTES);
                return;
            }
            // What they asked for last may fill the room still.
            assert!(Instant::now() < give_up, "{whole:?}");
            sleep(Duration::from_millis(50)).await;
        }
    });
}
