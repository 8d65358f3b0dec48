//! A client that takes and gives back locks that nobody else wants.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::shared::connection::Connection;
use crate::shared::figures::percentile;

/// What half of its requests took at most, and 99 of a hundred.
#[derive(Default)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Measures one connection that asks again as soon as it is answered.
pub async fn measure(address: SocketAddr, round: usize, measured: Duration) -> Result<Latency, String> {
    let mut connection = Connection::open(address).await?;
    let mut latencies_ns = Vec::new();
    let (warm_up, started) = (measured / 8, Instant::now());
    let mut pairs = 0_u64;
    while started.elapsed() < warm_up + measured {
        pairs += 1;
        let key = format!("bench-{round}-{pairs}");
        let before_put = Instant::now();
        if !connection.acquire(&key, "").await? {
            return Err(format!("PUT {key}: a fresh key is held"));
        }
        let before_delete = Instant::now();
        connection.release(&key).await?;
        if before_put - started >= warm_up {
            latencies_ns.push(before_delete - before_put);
            latencies_ns.push(before_delete.elapsed());
        }
    }
    let mut latencies_ns: Vec<_> =
        latencies_ns.into_iter().map(|latency| u64::try_from(latency.as_nanos()).unwrap()).collect();
    latencies_ns.sort_unstable();
    let percentile_us = |percent| percentile(&latencies_ns, percent) / 1e3;
    Ok(Latency { p50_us: percentile_us(50), p99_us: percentile_us(99) })
}
