//! Clients that wait, and what they cost others.

use std::time::Instant;

use serde::Serialize;
use tokio::time::sleep;

use crate::beside::{Compared, compare};
use crate::crowd::{Crowd, waiters};
use crate::plan::Plan;
use crate::shared::cpu::Cpu;
use crate::store::{Store, gateway_mb};

const FEWEST_WEIGHED: usize = 1_000;

#[derive(Serialize)]
pub struct Waiters {
    pub store: &'static str,
    /// Whether they all want the same lock.
    pub is_for_one: bool,
    pub waiters: usize,
    #[serde(flatten)]
    pub compared: Compared,
    /// Nothing where too few wait to tell their memory from what any load needs.
    pub kb_per_waiter: Option<f64>,
    /// What gateway and Redis use while nothing happens but waiting.
    pub waiting_cores: f64,
}

/// At the gateway beside it nobody waits.
pub async fn measure(plan: &Plan) -> Result<Vec<Waiters>, String> {
    let mut all = Vec::new();
    for store in Store::ALL {
        for is_for_one in [true, false] {
            let (without, with) = (store.start(), store.start());
            let (mut crowd, mut turn) = (Crowd::default(), 0);
            // What any load needs is there before anybody waits.
            compare(plan, plan.rounds, &without, &with, &mut turn).await?;
            let before_mb = gateway_mb(&with);
            for &count in plan.waiters {
                crowd.grow(&with, count, is_for_one).await?;
                let grown_mb = gateway_mb(&with) - before_mb;
                let (before, started) = (Cpu::read(&[&with]), Instant::now());
                sleep(plan.measured).await;
                let used = Cpu::read(&[&with]).since(&before);
                let used = used.server + used.redis.unwrap_or_default();
                let waiting_cores = used.as_secs_f64() / started.elapsed().as_secs_f64();
                let compared = compare(plan, plan.rounds, &without, &with, &mut turn).await?;
                // Those who did not wait all the time were no crowd.
                let still = waiters(with.address).map_err(|error| error.to_string())?;
                if still != count {
                    return Err(format!("{}: {still} of {count} still wait", store.name()));
                }
                all.push(Waiters {
                    store: store.name(),
                    is_for_one,
                    waiters: count,
                    compared,
                    kb_per_waiter: (count >= FEWEST_WEIGHED).then(|| grown_mb.max(0.0) * 1e3 / count as f64),
                    waiting_cores,
                });
            }
        }
    }
    Ok(all)
}
