//! The ways from gateways to a node. All gateways must be told the same addresses, or each would take the others' list
//! for another quorum; so each node has one door, and behind it a way for each gateway, which says who it is by its
//! user name.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::faults::rig::BadWay;
use kit::proxy::{Fate, Framing, Gate};
use kit::quorum::url_of;
use kit::{Quorum, server_port};

/// A quorum, and all ways to it.
pub struct Divisible {
    pub quorum: Quorum,
    /// Those to each node.
    pub ways: Vec<Ways>,
}

/// The door of one node, and the ways behind it.
pub struct Ways {
    pub door: u16,
    pub to_node: Vec<Arc<BadWay>>,
    _until: DropGuard,
}

/// How gateways and a node are parted.
#[derive(Clone, Copy, Debug)]
pub enum Parting {
    /// Nothing passes, and what was sent is lost.
    Silence,
    /// Nothing passes until the end, and everything after that.
    Delay,
    /// The node hears everything, and nothing of what it answers comes back.
    Unanswered,
    /// The same, but that all answers come at the end.
    AnsweredLate,
    /// Connections are closed, and new ones too.
    Closed,
}

impl Divisible {
    /// Starts so many nodes with further arguments of `redis-server`, for so many gateways.
    pub async fn start(nodes: usize, gateways: usize, args: &[&str]) -> Self {
        let users = users(gateways);
        let args: Vec<_> = args.iter().copied().chain(users.iter().map(String::as_str)).collect();
        let quorum = Quorum::start_with(nodes, &args).await;
        let ways = join_all(quorum.nodes.iter().map(|node| Ways::open(node.port(), gateways))).await;
        Self { quorum, ways }
    }

    /// Where this gateway finds it.
    pub fn url(&self, gateway: usize) -> String {
        let url = url_of(&self.ways.iter().map(|ways| ways.door).collect::<Vec<_>>());
        url.replace("://", &format!("://{}:any@", user(gateway)))
    }
}

/// The user as whom a gateway connects.
pub fn user(gateway: usize) -> String {
    format!("gateway-{gateway}")
}

/// The arguments by which a server knows the users of so many gateways.
pub fn users(gateways: usize) -> Vec<String> {
    let words = |gateway| format!("--user {} on nopass ~* &* +@all", user(gateway));
    (0..gateways)
        .flat_map(|gateway| words(gateway).split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

impl Ways {
    /// Opens the door of the node at this port.
    pub async fn open(port: u16, gateways: usize) -> Self {
        let (door, listener) = loop {
            let door = server_port();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, door)).await {
                break (door, listener);
            }
        };
        let mut to_node = Vec::new();
        for _ in 0..gateways {
            to_node.push(Arc::new(BadWay::to(port, Framing::Resp).await));
        }
        let ports: Vec<_> = to_node.iter().map(|way| way.proxy.port()).collect();
        let until = CancellationToken::new();
        let accepting = accept(listener, ports, until.clone());
        tokio::spawn(until.clone().run_until_cancelled_owned(accepting));
        Self { door, to_node, _until: until.drop_guard() }
    }

    /// Parts the node from all gateways, or from one of them, for a while.
    pub async fn part(&self, random: &mut StdRng) {
        let all =
            [Parting::Silence, Parting::Delay, Parting::Unanswered, Parting::AnsweredLate, Parting::Closed];
        let parting = all[random.random_range(0..all.len())];
        let one = random.random_range(0..self.to_node.len());
        let is_of_all = random.random_bool(0.5);
        let parted: Vec<_> = if is_of_all { self.to_node.iter().collect() } else { vec![&self.to_node[one]] };
        let end = Gate::new();
        for way in &parted {
            begin(parting, way, &end);
        }
        // Longer than a request waits for the store, and than some leases.
        tokio::time::sleep(Duration::from_millis(random.random_range(100..2_500))).await;
        for way in &parted {
            way.become_good();
        }
        end.cancel();
    }
}

/// Parts what a way joins, until it becomes good again and the gate opens.
pub fn begin(parting: Parting, way: &BadWay, end: &Gate) {
    let (proxy, end) = (&way.proxy, end.clone());
    let open = || {
        let gate = Gate::new();
        gate.cancel();
        gate
    };
    match parting {
        Parting::Silence => proxy.set_policy(|_| Fate::HalfOpen),
        Parting::Unanswered => proxy.set_policy(|_| Fate::LoseAnswers),
        Parting::Delay => {
            proxy.set_policy(move |_| Fate::Hold { message: end.clone(), answer: open() });
        }
        Parting::AnsweredLate => {
            proxy.set_policy(move |_| Fate::Hold { message: open(), answer: end.clone() });
        }
        Parting::Closed => {
            proxy.set_closed_to_new(true);
            proxy.sever();
        }
    }
}

async fn accept(listener: TcpListener, ports: Vec<u16>, until: CancellationToken) {
    while let Ok((client, _)) = listener.accept().await {
        let visit = pass_on(client, ports.clone());
        tokio::spawn(until.clone().run_until_cancelled_owned(visit));
    }
}

/// Shows a gateway to its way, which is told by the first thing that it says.
async fn pass_on(mut client: TcpStream, ports: Vec<u16>) {
    let _ = client.set_nodelay(true);
    let mut said = Vec::new();
    let at = loop {
        let is_named = |gateway: &usize| {
            let user = format!("\r\n{}\r\n", user(*gateway));
            said.windows(user.len()).any(|window| window == user.as_bytes())
        };
        if let Some(at) = (0..ports.len()).find(is_named) {
            break at;
        }
        match client.read_buf(&mut said).await {
            Ok(0) | Err(_) => return,
            Ok(_) => assert!(said.len() < 4_096, "who is this? {}", String::from_utf8_lossy(&said)),
        }
    };
    let Ok(mut way) = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[at])).await else { return };
    let _ = way.set_nodelay(true);
    if way.write_all(&said).await.is_ok() {
        let _ = copy_bidirectional(&mut client, &mut way).await;
    }
}
