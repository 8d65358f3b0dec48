//! Clients that ask for much and take nothing of it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::ring::Ring;
use kit::PATIENCE;
use kit::h2::{PREFACE, SETTINGS, frame, request};
use kit::metrics::metrics_address;

const CONNECTIONS: usize = 300;
/// What all that they left unread may come to, with what their connections take.
const MOST_MIB: u64 = 64;

const H2_CONNECTIONS: usize = 400;
/// 16 MiB of answers, and what the connections take. All requests at once would take more than 300 MiB.
const MOST_H2_MIB: u64 = 160;

/// Asks for it on many connections that read nothing, and looks how much memory that takes.
fn is_left_unread(ring: &Ring, request: &'static str) {
    let (address, first_mib) = (ring.gateway.address, ring.memory_mib("VmRSS"));
    let open = ring.attackers.run(async move {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Those that are closed for what they leave unread may be gone already.
            let _ = stream.write_all(request.as_bytes()).await;
            open.push(stream);
        }
        sleep(Duration::from_secs(1)).await;
        open
    });
    let peak_mib = ring.memory_mib("VmHWM");
    println!("{request:?}: {first_mib} → at most {peak_mib} MiB");
    assert!(peak_mib - first_mib <= MOST_MIB, "{first_mib} → {peak_mib} MiB");
    // And others are served meanwhile.
    ring.pairs();
    drop(open);
}

#[test]
fn a_large_page_that_nobody_reads_takes_little_memory() {
    let ring = Ring::new(&[]);
    is_left_unread(&ring, "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

#[test]
fn lists_that_nobody_reads_take_little_memory() {
    let ring = Ring::new(&[]);
    ring.hold_many(1_000);
    is_left_unread(&ring, "GET /locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

/// All requests are there before the gateway reads one of them, as where many connections send at the same moment.
fn is_a_burst(ring: &Ring, address: SocketAddr, requests: Vec<u8>) {
    let first_mib = ring.memory_mib("VmRSS");
    let mut open = ring.attackers.run(async move {
        let mut open = Vec::new();
        for _ in 0..H2_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // SETTINGS_INITIAL_WINDOW_SIZE is 0: heads come through, and bodies do not.
            let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
            stream.write_all(&[PREFACE, &settings].concat()).await.unwrap();
            // The gateway has taken the connection when its own settings are here.
            timeout(PATIENCE, stream.read_u8()).await.expect("no settings").unwrap();
            open.push(stream);
        }
        open
    });
    ring.gateway.signal("STOP");
    open = ring.attackers.run(async move {
        for stream in &mut open {
            stream.write_all(&requests).await.unwrap();
        }
        open
    });
    ring.gateway.signal("CONT");
    open = ring.attackers.run(async move {
        for stream in &mut open {
            // Each is answered, or closed for what it leaves unread.
            let _ = timeout(PATIENCE, stream.read_exact(&mut [0; 1_000])).await.expect("neither");
        }
        open
    });
    let peak_mib = ring.memory_mib("VmHWM");
    println!("a burst of requests: {first_mib} → at most {peak_mib} MiB");
    assert!(peak_mib - first_mib <= MOST_H2_MIB, "{first_mib} → {peak_mib} MiB");
    ring.pairs();
    drop(open);
}

#[test]
fn a_burst_of_h2_requests_is_not_in_memory_as_a_whole() {
    let ring = Ring::new(&["--threads", "1", "--max-unread-bytes", "16777216"]);
    // They are refused at once, since they name another host.
    let requests = (1..500).step_by(2).flat_map(|number| request(number, "GET", "/x")).collect();
    is_a_burst(&ring, ring.gateway.address, requests);
}

/// Each answer is long. Where each of them was made and kept, this took more than 400 MiB.
#[test]
fn metrics_that_nobody_reads_take_little_memory() {
    let elsewhere = ["--metrics-listen", "127.0.0.1:0"];
    for listens in [&[][..], &elsewhere] {
        let limits = ["--threads", "1", "--max-unread-bytes", "16777216", "--allow-host", "t"];
        let ring = Ring::new(&[&limits, listens].concat());
        let address = if listens.is_empty() { ring.gateway.address } else { metrics_address(&ring.gateway) };
        let requests = (1..50).step_by(2).flat_map(|number| request(number, "GET", "/metrics")).collect();
        is_a_burst(&ring, address, requests);
    }
}
