//! Connections that all ask as soon as they are answered.

use serde::Serialize;

use crate::beside::any_pairs;
use crate::plan::Plan;
use crate::shared::figures::{Spread, spread};
use crate::shared::load::Turn;
use crate::store::Store;

#[derive(Serialize)]
pub struct Connections {
    pub store: &'static str,
    pub connections: usize,
    pub requests_per_s: Spread,
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub gateway_cpu_us: Spread,
    pub redis_cpu_us: Option<Spread>,
    pub gateway_mb: f64,
    /// How many were told, in all rounds, that the store cannot be used. They asked no more in that round.
    pub unavailable: usize,
}

/// What an answer says of its status that is right, and yet not what was asked for.
const UNAVAILABLE: &str = "HTTP/1.1 503 ";

/// Each number of connections at a gateway of its own, whose memory nobody has used before.
pub async fn measure(plan: &Plan) -> Result<Vec<Connections>, String> {
    let mut all = Vec::new();
    for store in Store::ALL {
        for &connections in plan.connections {
            let (server, mut turn, mut turns) = (store.start(), 0, Vec::new());
            for _ in 0..plan.rounds {
                turns.push(any_pairs(plan, &server, connections, &mut turn).await);
            }
            let mut mismatches = turns.iter().flat_map(|turn| &turn.mismatches);
            if let Some(wrong) = mismatches.clone().find(|mismatch| !mismatch.contains(UNAVAILABLE)) {
                return Err(format!("{}, {connections} connections: {wrong}", store.name()));
            }
            let unavailable = mismatches.by_ref().count();
            let of = |value: fn(&Turn) -> f64| spread(turns.iter().map(value).collect());
            let redis_us: Option<Vec<_>> = turns.iter().map(|turn| turn.redis_cpu_us).collect();
            all.push(Connections {
                store: store.name(),
                connections,
                requests_per_s: of(|turn| turn.requests_per_s),
                p50_us: of(|turn| turn.p50_us),
                p99_us: of(|turn| turn.p99_us),
                gateway_cpu_us: of(|turn| turn.server_cpu_us.unwrap_or(f64::NAN)),
                redis_cpu_us: redis_us.map(spread),
                gateway_mb: of(|turn| turn.rss_kb.unwrap_or(0) as f64 * 1024.0 / 1e6).most,
                unavailable,
            });
        }
    }
    Ok(all)
}
