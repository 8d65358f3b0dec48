//! A cluster of servers that save nothing, each of which has an equal part of the slots.

use std::net::SocketAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How a cluster counts slots.
const SLOTS: usize = 16_384;
/// How long the nodes may take to know each other.
const PATIENCE: Duration = Duration::from_secs(20);

/// What makes a server a node, whose other port is for nodes alone.
pub fn of_node(bus: SocketAddr) -> Vec<String> {
    let (bus, file) = (bus.port().to_string(), format!("nodes-{}.conf", bus.port()));
    ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-config-file", &file]
        .map(str::to_owned)
        .to_vec()
}

/// Makes these nodes a cluster; with each stands its port for nodes.
pub fn join(nodes: &[(SocketAddr, SocketAddr)]) {
    let (first, first_bus) = nodes[0];
    for (at, (node, _)) in nodes.iter().enumerate() {
        let [from, end] = [at, at + 1].map(|at| at * SLOTS / nodes.len());
        ask(*node, &["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &(end - 1).to_string()]);
        ask(*node, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        let [ip, port, bus] =
            [first.ip().to_string(), first.port().to_string(), first_bus.port().to_string()];
        ask(*node, &["CLUSTER", "MEET", &ip, &port, &bus]);
    }
    let give_up = Instant::now() + PATIENCE;
    let all_know = format!("cluster_known_nodes:{}", nodes.len());
    let is_whole = |info: &str| info.contains("cluster_state:ok") && info.contains(&all_know);
    while !nodes.iter().all(|(node, _)| is_whole(&ask(*node, &["CLUSTER", "INFO"]))) {
        assert!(Instant::now() < give_up, "the nodes do not become a cluster");
        sleep(Duration::from_millis(50));
    }
}

fn ask(node: SocketAddr, words: &[&str]) -> String {
    let (ip, port) = (node.ip().to_string(), node.port().to_string());
    let asked = Command::new("redis-cli").args(["-h", &ip, "-p", &port]).args(words).output();
    String::from_utf8_lossy(&asked.expect("redis-cli must be installed").stdout).into_owned()
}
