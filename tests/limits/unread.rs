//! Clients that ask for much and take nothing of it.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::ring::Ring;

const CONNECTIONS: usize = 300;
/// What all that they left unread may come to, with what their connections take.
const MOST_MIB: u64 = 64;

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
