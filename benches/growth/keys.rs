//! Keys that were used once and never again: nothing may be left of them.

use std::time::Instant;

use serde::Serialize;

use crate::beside::pairs;
use crate::plan::Plan;
use crate::store::{Store, gateway_mb, redis_mb};

const CONNECTIONS: usize = 64;

#[derive(Serialize)]
pub struct Keys {
    pub store: &'static str,
    /// Those that were taken and given back until now.
    pub keys: u64,
    pub requests_per_s: f64,
    pub gateway_mb: f64,
    pub redis_mb: Option<f64>,
}

/// One turn after the other on one gateway, until enough keys were used or the time is over.
pub async fn measure(plan: &Plan) -> Result<Vec<Keys>, String> {
    let mut all = Vec::new();
    for store in Store::ALL {
        let server = store.start();
        let (started, mut turn, mut keys) = (Instant::now(), 0, 0);
        while keys < plan.distinct_keys as u64 && started.elapsed() < plan.keys_for {
            let done = pairs(plan, &server, CONNECTIONS, &mut turn).await?;
            keys += done.replies / 2;
            all.push(Keys {
                store: store.name(),
                keys,
                requests_per_s: done.requests_per_s,
                gateway_mb: gateway_mb(&server),
                redis_mb: redis_mb(&server),
            });
        }
    }
    Ok(all)
}
