//! Locks that are held while others take and give back theirs.

use serde::Serialize;

use crate::beside::{Compared, compare};
use crate::fill::fill;
use crate::plan::Plan;
use crate::store::{Store, gateway_mb, redis_mb};

#[derive(Serialize)]
pub struct Live {
    pub store: &'static str,
    pub locks: usize,
    #[serde(flatten)]
    pub compared: Compared,
    pub gateway_mb: f64,
    pub redis_mb: Option<f64>,
}

/// The gateway beside it has as many locks as the other has at first.
pub async fn measure(plan: &Plan) -> Result<Vec<Live>, String> {
    let mut all = Vec::new();
    for store in Store::ALL {
        let (few, many) = (store.start(), store.start());
        let mut held = 0;
        fill(&few, 0..plan.live_locks[0], || "?ttl=6h".to_owned()).await?;
        let mut turn = 0;
        for &locks in plan.live_locks {
            fill(&many, held..locks, || "?ttl=6h".to_owned()).await?;
            held = locks;
            let compared = compare(plan, plan.live_rounds, &few, &many, &mut turn).await?;
            let (gateway_mb, redis_mb) = (gateway_mb(&many), redis_mb(&many));
            all.push(Live { store: store.name(), locks, compared, gateway_mb, redis_mb });
        }
    }
    Ok(all)
}
