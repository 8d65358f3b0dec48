//! The load of one turn: many connections to one server, each asking again as soon as it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::connection::Connection;
use crate::cpu::Cpu;
use crate::figures::percentile;
use crate::servers::Server;

const CONNECTIONS: usize = 64;
/// How long the last replies of a turn may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one server did in one round.
pub struct Turn {
    pub requests_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub server_cpu_us: f64,
    pub redis_cpu_us: Option<f64>,
    /// How much of one core the generator used. Near 1, it is the generator that is measured.
    pub generator_cores: f64,
    /// How many cores all other processes of the machine used. Far from 0, the machine was busy with something else.
    pub others_cores: f64,
    pub mismatches: Vec<String>,
}

/// What the connections are told. It is set together with the readings of CPU time, so that the requests that are
/// counted are those that the time was spent on.
#[derive(Default)]
struct Window {
    is_measured: AtomicBool,
    is_over: AtomicBool,
}

/// Loads one server for one turn.
pub async fn run(server: &Server, round: usize, warm_up: Duration, measured: Duration) -> Turn {
    let window = Arc::new(Window::default());
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        // Keys are fresh in each round too: nobody takes a lock that was ever held before.
        let name = round * CONNECTIONS + number;
        let connection = Connection::open(server.address).await.expect("a server takes 64 connections");
        connections.spawn(take_and_give_back(connection, name, window.clone()));
    }
    sleep(warm_up).await;
    let before = Cpu::read(&[server]);
    let started = Instant::now();
    window.is_measured.store(true, Ordering::Relaxed);
    sleep(measured).await;
    window.is_measured.store(false, Ordering::Relaxed);
    let elapsed = started.elapsed();
    let used = Cpu::read(&[server]).since(&before);
    window.is_over.store(true, Ordering::Relaxed);
    let ended = timeout(PATIENCE, connections.join_all()).await.expect("a reply never came");

    let (latencies, mismatches): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    let mut latencies_ns = latencies.concat();
    latencies_ns.sort_unstable();
    let requests = latencies_ns.len();
    let us_per_request = |used: Duration| used.as_secs_f64() * 1e6 / requests as f64;
    let cores = |used: Duration| used.as_secs_f64() / elapsed.as_secs_f64();
    Turn {
        requests_per_s: requests as f64 / elapsed.as_secs_f64(),
        p50_us: percentile(&latencies_ns, 50) / 1e3,
        p99_us: percentile(&latencies_ns, 99) / 1e3,
        server_cpu_us: us_per_request(used.server),
        redis_cpu_us: used.redis.map(us_per_request),
        generator_cores: cores(used.generator),
        others_cores: cores(used.others()),
        mismatches: mismatches.into_iter().flatten().collect(),
    }
}

/// One connection's part. Returns what each measured request took, in nanoseconds, and why it ended early if it did.
async fn take_and_give_back(
    mut connection: Connection,
    name: usize,
    window: Arc<Window>,
) -> (Vec<u64>, Option<String>) {
    let mut latencies_ns = Vec::new();
    let mut note = |started: Instant| {
        if window.is_measured.load(Ordering::Relaxed) {
            latencies_ns.push(u64::try_from(started.elapsed().as_nanos()).unwrap());
        }
    };
    let mut pairs = 0_u64;
    // A pair is always completed, so that no turn leaves locks behind for the next one.
    while !window.is_over.load(Ordering::Relaxed) {
        pairs += 1;
        let key = format!("bench-{name}-{pairs}");
        let started = Instant::now();
        match connection.acquire(&key, "").await {
            Ok(true) => {}
            Ok(false) => return (latencies_ns, Some(format!("PUT {key}: a fresh key is held"))),
            Err(mismatch) => return (latencies_ns, Some(mismatch)),
        }
        note(started);
        let started = Instant::now();
        if let Err(mismatch) = connection.release(&key).await {
            return (latencies_ns, Some(mismatch));
        }
        note(started);
    }
    (latencies_ns, None)
}
