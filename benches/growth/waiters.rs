//! Clients that wait, or hold a lock by their connection, and what they cost others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::Serialize;
use tokio::time::sleep;

use crate::beside::{Compared, compare};
use crate::crowd::{Crowd, Wish};
use crate::plan::Plan;
use crate::shared::by_heart::noop;
use crate::shared::cpu::Cpu;
use crate::shared::servers::Server;
use crate::store::{Store, gateway_mb};

const FEWEST_WEIGHED: usize = 1_000;

#[derive(Serialize)]
pub struct Waiters {
    pub store: &'static str,
    pub wish: Wish,
    pub waiters: usize,
    #[serde(flatten)]
    pub compared: Compared,
    pub kb_per_waiter: Option<f64>,
    /// The same without what an open request takes of a handler that does nothing.
    pub kb_without_connection: Option<f64>,
    /// What gateway and Redis use while nothing happens but waiting.
    pub waiting_cores: f64,
}

/// At the gateway beside it nobody waits.
pub async fn measure(plan: &Plan) -> Result<Vec<Waiters>, String> {
    let open_kb = weigh_open_requests(plan).await?;
    let mut all = Vec::new();
    for store in Store::ALL {
        for (wish, counts) in [Wish::One, Wish::Another, Wish::Hold].into_iter().zip(plan.waiters) {
            let (without, with) = (store.start(), store.start());
            let (mut crowd, mut turn) = (Crowd::default(), 0);
            // What any load needs is there before anybody waits.
            compare(plan, plan.rounds, &without, &with, &mut turn).await?;
            let before_mb = gateway_mb(&with);
            for &count in counts {
                crowd.grow(&with, count, wish).await?;
                let open_kb = open_kb.get(&count);
                let kb_per_waiter = open_kb.map(|_| kb_each(&with, before_mb, count));
                let (before, started) = (Cpu::read(&[&with]), Instant::now());
                sleep(plan.measured).await;
                let used = Cpu::read(&[&with]).since(&before);
                let used = used.server + used.redis.unwrap_or_default();
                let waiting_cores = used.as_secs_f64() / started.elapsed().as_secs_f64();
                let compared = compare(plan, plan.rounds, &without, &with, &mut turn).await?;
                // Those who did not wait all the time were no crowd.
                let still = wish.granted(with.address).map_err(|error| error.to_string())?;
                if still != count {
                    return Err(format!("{}, {}: {still} of {count} are left", store.name(), wish.name()));
                }
                all.push(Waiters {
                    store: store.name(),
                    wish,
                    waiters: count,
                    compared,
                    kb_per_waiter,
                    kb_without_connection: kb_per_waiter.zip(open_kb).map(|(all, open)| all - open),
                    waiting_cores,
                });
            }
        }
    }
    Ok(all)
}

/// What an open request takes of a handler that never answers, in kB, by how many there are. Few cannot be told from what any
/// load needs.
async fn weigh_open_requests(plan: &Plan) -> Result<BTreeMap<usize, f64>, String> {
    let (handler, mut crowd) = (noop(), Crowd::default());
    let before_mb = gateway_mb(&handler);
    let counts: BTreeSet<_> = plan.waiters.into_iter().flatten().copied().collect();
    let mut open_kb = BTreeMap::new();
    for count in counts.into_iter().filter(|count| *count >= FEWEST_WEIGHED) {
        crowd.grow(&handler, count, Wish::Silence).await?;
        open_kb.insert(count, kb_each(&handler, before_mb, count));
    }
    Ok(open_kb)
}

/// By how much a server has grown for each of so many.
fn kb_each(server: &Server, before_mb: f64, count: usize) -> f64 {
    (gateway_mb(server) - before_mb).max(0.0) * 1e3 / count as f64
}
