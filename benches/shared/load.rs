//! The load of one turn: many connections to one server, each asking again as soon as it is answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::Client;
use super::cpu::Cpu;
use super::figures::percentile;
use super::memory::rss_kb;
use super::neighbor::Neighbor;
use super::servers::Server;
use super::watchers::Watchers;
use super::workload::{Beside, CONTENDED, Holder, Part, Window, Workload, shared};

/// How long the last replies of a turn may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked of a server in one turn.
#[derive(Clone, Copy)]
pub struct Load {
    pub workload: Workload,
    pub connections: usize,
    pub warm_up: Duration,
    pub measured: Duration,
}

/// What one server did in one round.
#[derive(Serialize)]
pub struct Turn {
    pub requests_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Nothing where Redis itself is the server.
    pub server_cpu_us: Option<f64>,
    pub redis_cpu_us: Option<f64>,
    /// What of the server was in memory at the end.
    pub rss_kb: Option<u64>,
    /// How much of one core the generator used. Near 1, it is the generator that is measured.
    pub generator_cores: f64,
    /// How many cores all other processes of the machine used. Far from 0, the machine was busy with something else.
    pub others_cores: f64,
    /// All replies that fitted their requests, those of the time to warm up too.
    pub replies: u64,
    pub mismatches: Vec<String>,
}

/// Loads one server for one turn, the parameters of which no other has had at this server.
pub async fn run(server: &Server, turn: usize, load: &Load) -> Turn {
    let window = Arc::new(Window::default());
    let mut mismatches = Vec::new();
    let holder = match load.workload {
        Workload::FailFast => Holder::take(server).await.map_err(|mismatch| mismatches.push(mismatch)).ok(),
        _ => None,
    };
    let beside = match (load.workload, load.workload.beside()) {
        (Workload::SlotsRefused, Some(count)) => {
            Some(Beside::take(server, CONTENDED.to_owned(), count, "4").await)
        }
        (_, Some(count)) => Some(Beside::take(server, shared(turn), count, "any").await),
        _ => None,
    };
    let beside = beside.and_then(|taken| taken.map_err(|mismatch| mismatches.push(mismatch)).ok());
    let watchers = match load.workload {
        Workload::Watched => Watchers::open(server).await.map_err(|mismatch| mismatches.push(mismatch)).ok(),
        _ => None,
    };
    let neighbor = (load.workload == Workload::Crowded).then(Neighbor::start);
    let number_beside = beside.as_ref().map_or(0, |beside| beside.number);
    let mut connections = JoinSet::new();
    for number in 0..load.connections {
        let client = Client::open(server).await.expect("a server takes some hundred connections");
        // Keys are fresh in each turn too: nobody takes a lock that was ever held before.
        let name = (turn << 16) + number;
        let part = Part {
            client,
            name,
            kind: server.kind,
            held: holder.as_ref().map_or(number_beside, |holder| holder.number),
            window: window.clone(),
        };
        connections.spawn(part.play(load.workload));
    }
    sleep(load.warm_up).await;
    let before = Cpu::read(&[server]);
    let started = Instant::now();
    window.is_measured.store(true, Ordering::Relaxed);
    sleep(load.measured).await;
    window.is_measured.store(false, Ordering::Relaxed);
    let elapsed = started.elapsed();
    let used = Cpu::read(&[server]).since(&before);
    window.is_over.store(true, Ordering::Relaxed);
    let ended = timeout(PATIENCE, connections.join_all()).await.unwrap_or_else(|_| {
        mismatches.push("a reply never came".to_owned());
        Vec::new()
    });
    drop((watchers, neighbor));
    if let Some(holder) = holder {
        mismatches.extend(holder.give_back().await.err());
    }
    if let Some(beside) = beside {
        mismatches.extend(beside.give_back().await.err());
    }

    let replies = ended.iter().map(|seen| seen.replies).sum();
    let mut latencies_ns: Vec<u64> = ended.iter().flat_map(|seen| &seen.latencies_ns).copied().collect();
    latencies_ns.sort_unstable();
    mismatches.extend(ended.into_iter().filter_map(|seen| seen.mismatch));
    let requests = latencies_ns.len();
    let us_per_request = |used: Duration| used.as_secs_f64() * 1e6 / requests as f64;
    let cores = |used: Duration| used.as_secs_f64() / elapsed.as_secs_f64();
    Turn {
        requests_per_s: requests as f64 / elapsed.as_secs_f64(),
        p50_us: percentile(&latencies_ns, 50) / 1e3,
        p99_us: percentile(&latencies_ns, 99) / 1e3,
        server_cpu_us: server.pid().map(|_| us_per_request(used.server)),
        redis_cpu_us: used.redis.map(us_per_request),
        rss_kb: server.pid().map(rss_kb),
        generator_cores: cores(used.generator),
        others_cores: cores(used.others()),
        replies,
        mismatches,
    }
}
