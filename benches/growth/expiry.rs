//! Leases that all end at the same moment, and what others notice of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::fill::{fill, key};
use crate::plan::Plan;
use crate::shared::connection::Connection;
use crate::shared::figures::percentile;
use crate::shared::servers::Server;
use crate::store::{Store, gateway_mb, redis_mb};

const CONNECTIONS: usize = 16;
/// How finely is told what others noticed.
const SLICE: Duration = Duration::from_millis(250);
/// How many of those that ended are looked at in the end.
const SAMPLE: usize = 100;
/// How many others are taken to find how long all of them will take.
const TRIED_FIRST: usize = 20_000;
/// The leases last longer than taking the locks should, by this factor and this much. Where that was not enough, it is
/// tried again with more.
const RESERVES: [f64; 3] = [1.3, 2.0, 3.0];
/// A gateway gives no shorter leases.
const SHORTEST_MS: u128 = 10;
const SPARE: Duration = Duration::from_secs(2);

#[derive(Serialize)]
pub struct Expiry {
    pub store: &'static str,
    pub locks: usize,
    pub before_p99_us: f64,
    pub after_p99_us: f64,
    pub before_longest_us: f64,
    pub after_longest_us: f64,
    pub full_mb: [Option<f64>; 2],
    /// At the end of the measurement: gateway and Redis.
    pub left_mb: [Option<f64>; 2],
    pub slices: Vec<Slice>,
}

/// What the others' requests took that were sent in a short time.
#[derive(Serialize)]
pub struct Slice {
    /// Of its middle, from the moment at which the leases end.
    pub at_s: f64,
    pub p99_us: f64,
    pub longest_us: f64,
    pub requests: usize,
}

pub async fn measure(plan: &Plan) -> Result<Vec<Expiry>, String> {
    let mut all = Vec::new();
    for store in Store::ALL {
        let mut found = None;
        for reserve in RESERVES {
            found = of_store(plan, store, reserve).await?;
            if found.is_some() {
                break;
            }
            eprintln!("{}: the leases were over before the locks were taken: once more", store.name());
        }
        all.push(found.ok_or("the locks take longer to take at some times than at others")?);
    }
    Ok(all)
}

/// Nothing where the locks took longer to take than the leases were to last.
async fn of_store(plan: &Plan, store: Store, reserve: f64) -> Result<Option<Expiry>, String> {
    let server = store.start();
    let end = end_of_leases(plan, &server, reserve).await?;
    let left_ms = move || end.saturating_duration_since(Instant::now()).as_millis().max(SHORTEST_MS);
    let query = move || format!("?ttl={}ms", left_ms());
    fill(&server, 0..plan.ending_locks, query).await?;
    let (from, to) = (end - plan.before_end, end + plan.after_end);
    if Instant::now() > from {
        return Ok(None);
    }
    let full_mb = [Some(gateway_mb(&server)), redis_mb(&server)];
    sleep_until(from.into()).await;
    let latencies = latencies_until(&server, to).await?;
    let left_mb = [Some(gateway_mb(&server)), redis_mb(&server)];
    are_free(plan, &server).await?;

    let within = |from: Instant, to: Instant| {
        let sent = latencies.iter().filter(|(sent, _)| (from..to).contains(sent));
        let mut sorted_ns: Vec<u64> = sent.map(|(_, ns)| *ns).collect();
        sorted_ns.sort_unstable();
        (
            percentile(&sorted_ns, 99) / 1e3,
            sorted_ns.last().map_or(0.0, |ns| *ns as f64 / 1e3),
            sorted_ns.len(),
        )
    };
    let mut slices = Vec::new();
    let mut begins = from;
    while begins + SLICE <= to {
        let (p99_us, longest_us, requests) = within(begins, begins + SLICE);
        let middle = begins + SLICE / 2;
        let at_s = if middle < end { -(end - middle).as_secs_f64() } else { (middle - end).as_secs_f64() };
        slices.push(Slice { at_s, p99_us, longest_us, requests });
        begins += SLICE;
    }
    let (before_p99_us, before_longest_us, _) = within(from, end);
    // A request that was under way when they ended has noticed it as well.
    let (after_p99_us, after_longest_us, _) = within(end, end + plan.before_end.min(plan.after_end));
    Ok(Some(Expiry {
        store: store.name(),
        locks: plan.ending_locks,
        before_p99_us,
        after_p99_us,
        before_longest_us,
        after_longest_us,
        full_mb,
        left_mb,
        slices,
    }))
}

/// When the leases can end at the soonest, as a few locks show that are given other names.
async fn end_of_leases(plan: &Plan, server: &Server, reserve: f64) -> Result<Instant, String> {
    let tried = plan.ending_locks.min(TRIED_FIRST);
    let numbers = plan.ending_locks..plan.ending_locks + tried;
    let started = Instant::now();
    fill(server, numbers, || "?ttl=1s".to_owned()).await?;
    let of_all = started.elapsed().mul_f64(plan.ending_locks as f64 / tried as f64 * reserve);
    Ok(Instant::now() + of_all + plan.before_end + SPARE)
}

/// When each request of the others was sent, and how many nanoseconds it took.
async fn latencies_until(server: &Server, to: Instant) -> Result<Vec<(Instant, u64)>, String> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut connections = JoinSet::new();
    for name in 0..CONNECTIONS {
        let mut connection = Connection::open(server.address).await?;
        let is_over = is_over.clone();
        connections.spawn(async move {
            let mut latencies = Vec::new();
            let mut pairs = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                pairs += 1;
                let key = format!("other-{name}-{pairs}");
                let sent = Instant::now();
                if !connection.acquire(&key, "").await? {
                    return Err(format!("{key}: a fresh key is held"));
                }
                let sent_next = Instant::now();
                connection.release(&key).await?;
                latencies.push((sent, nanoseconds(sent_next - sent)));
                latencies.push((sent_next, nanoseconds(sent_next.elapsed())));
            }
            Ok(latencies)
        });
    }
    sleep_until(to.into()).await;
    is_over.store(true, Ordering::Relaxed);
    let latencies: Result<Vec<_>, String> = connections.join_all().await.into_iter().collect();
    Ok(latencies?.concat())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// Some of the locks, all over, are held by nobody any more.
async fn are_free(plan: &Plan, server: &Server) -> Result<(), String> {
    let mut connection = Connection::open(server.address).await?;
    for number in (0..plan.ending_locks).step_by(plan.ending_locks.div_ceil(SAMPLE)) {
        let key = key(number);
        let reply = connection.ask("GET", &key).await?;
        if reply.status != "404" {
            return Err(reply.mismatch("GET", &key));
        }
    }
    Ok(())
}
