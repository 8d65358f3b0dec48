//! Clients that wait, or hold a lock by their connection, and what they cost others.

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
    let mut all = Vec::new();
    for store in Store::ALL {
        for (wish, counts) in [Wish::One, Wish::Another, Wish::Hold].into_iter().zip(plan.waiters) {
            let (without, with, handler) = (store.start(), store.start(), noop());
            let (mut crowd, mut silent, mut turn) = (Crowd::default(), Crowd::default(), 0);
            // What any load needs is there before anybody waits.
            compare(plan, plan.rounds, &without, &with, &mut turn).await?;
            let before_mb = [gateway_mb(&with), gateway_mb(&handler)];
            for &count in counts {
                let weigh = async |crowd: &mut Crowd, server: &Server, wish, before_mb: f64| {
                    crowd.grow(server, count, wish).await?;
                    let kb = (gateway_mb(server) - before_mb).max(0.0) * 1e3 / count as f64;
                    // Few cannot be told from what any load needs.
                    Ok::<_, String>((count >= FEWEST_WEIGHED).then_some(kb))
                };
                let kb_per_waiter = weigh(&mut crowd, &with, wish, before_mb[0]).await?;
                let kb_of_request = weigh(&mut silent, &handler, Wish::Silence, before_mb[1]).await?;
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
                    kb_without_connection: kb_per_waiter.zip(kb_of_request).map(|(all, open)| all - open),
                    waiting_cores,
                });
            }
        }
    }
    Ok(all)
}
