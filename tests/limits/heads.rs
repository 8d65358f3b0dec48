//! Requests that wait or go on, and what stays of their heads meanwhile.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::ring::Ring;
use kit::{Client, PATIENCE};

const REQUESTS: usize = 400;
/// What one with a long head may take besides what one with a short head takes: its connection has a larger buffer.
const MOST_BYTES_MORE: u64 = 6_000;
const ORIGIN: &str = "https://app.example";

/// With both headers of which something is kept, and so many others, of 160 bytes each.
fn head(target: &str, others: usize) -> String {
    let mut head = format!("{target} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\nOrigin: {ORIGIN}\r\n");
    for number in 0..others {
        write!(head, "X-{number}: {}\r\n", "x".repeat(160)).unwrap();
    }
    head + "\r\n"
}

/// Sends this head on many connections, and looks until this gauge says that all wait.
async fn send(gateway: SocketAddr, head: String, gauge: String) -> Vec<TcpStream> {
    let (client, mut open) = (Client::new(gateway), Vec::new());
    for _ in 0..REQUESTS {
        let mut stream = TcpStream::connect(gateway).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        open.push(stream);
    }
    let all_wait = async {
        let says = |body: &[u8]| String::from_utf8_lossy(body).lines().any(|line| line == gauge);
        while !says(&client.get("/metrics").send().await.body) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, all_wait).await.expect("not all of them wait");
    open
}

#[test]
fn a_request_that_waits_or_goes_on_keeps_nothing_of_its_head() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum.or(Some(4_096)), maximum }).unwrap();
    for (target, gauge) in [
        ("PUT /lock?key=held&wait=50s", "fencepost_waiters"),
        ("PUT /lock?key=held&key=other&wait=50s", "fencepost_waiters"),
        ("POST /hold?key=held&wait=50s", "fencepost_waiters"),
        ("POST /hold?key=held&key=other&wait=50s", "fencepost_waiters"),
        ("PUT /once/held?wait=50s", "fencepost_once_waiters"),
        ("GET /events?key=held", "fencepost_watchers"),
    ] {
        let ring = Ring::new(&["--threads", "1", "--cors-origin", ORIGIN]);
        let gateway = ring.gateway.address;
        ring.hold();
        ring.attackers.run(async move {
            Client::new(gateway).put("/once/held?ttl=10m").send().await.expect(201);
        });
        let memory = || ring.gateway.memory_kib("VmRSS") * 1024;
        let first = memory();
        let gauge = |count| format!("{gauge} {count}");
        let short = ring.attackers.run(send(gateway, head(target, 0), gauge(REQUESTS)));
        let with_short = memory();
        let long = ring.attackers.run(send(gateway, head(target, 90), gauge(2 * REQUESTS)));
        let most = with_short.saturating_sub(first) + REQUESTS as u64 * MOST_BYTES_MORE;
        println!("{target}: {first}, {with_short} with short heads, {} with long ones", memory());
        ring.until("long heads take little more than short ones", |_| {
            memory().saturating_sub(with_short) <= most
        });
        drop((short, long));
    }
}
