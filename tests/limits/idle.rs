//! Ten thousand connections that do nothing.

use std::net::{Ipv4Addr, SocketAddr};

use futures_util::StreamExt;
use futures_util::stream;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::BufStream;
use tokio::net::{TcpSocket, TcpStream};

use crate::ring::Ring;
use kit::secure::call;

const CONNECTIONS: usize = 10_000;
/// So many addresses share them: none may have more than half of what there is room for.
const ADDRESSES: usize = 4;
const WINDOWS: usize = 3;
/// About 30 KiB for each of them, as long as each has the buffers of its last request.
const MOST_MIB: u64 = 400;
/// What each of them may take once these are given back.
const MOST_BYTES_PER_CONNECTION: u64 = 20_000;

/// One that has asked once, and may therefore stay for as long as clients may be idle.
async fn connect(gateway: SocketAddr, number: usize) -> BufStream<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    let last_byte = u8::try_from(2 + number % ADDRESSES).unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last_byte), 0).into()).unwrap();
    let mut stream = BufStream::new(socket.connect(gateway).await.unwrap());
    call(&mut stream, "GET", "/healthz", "").await.unwrap().expect(200);
    stream
}

#[test]
fn ten_thousand_idle_connections_cost_others_little() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = 12_500;
    assert!(
        maximum.is_none_or(|most| most >= wanted),
        "this needs {wanted} open files (ulimit -Hn): {maximum:?}"
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap();

    let ring = Ring::new(&["--max-connections", "12000"]);
    let quiet: Vec<_> = (0..WINDOWS).map(|_| ring.pairs()).collect();
    let gateway = ring.gateway.address;
    let open = ring.attackers.run(async move {
        let connections = stream::iter(0..CONNECTIONS).map(|number| connect(gateway, number));
        connections.buffer_unordered(64).collect::<Vec<_>>().await
    });
    assert_eq!(open.len(), CONNECTIONS);
    let windows: Vec<_> = quiet.into_iter().map(|quiet| (quiet, ring.pairs())).collect();
    ring.judge("10,000 idle connections", &windows, MOST_MIB);
    let most_mib = (CONNECTIONS as u64 * MOST_BYTES_PER_CONNECTION) >> 20;
    ring.until("idle connections give their buffers back", |ring| {
        ring.memory_mib("VmRSS") - ring.first_mib <= most_mib
    });
    drop(open);
}
