//! API keys with limits that are counted at each request.

use serde::Serialize;

use crate::beside::{Compared, compare};
use crate::plan::Plan;
use crate::store::{gateway_mb, start_for};

/// They are never reached, and count all the same.
const LIMITS: [&str; 6] = ["--rate", "1000000", "--burst", "1000000", "--max-locks", "1000"];

#[derive(Serialize)]
pub struct ApiKeys {
    pub api_keys: usize,
    #[serde(flatten)]
    pub compared: Compared,
    pub gateway_mb: f64,
}

/// At the gateway beside it there is one key without a limit.
pub async fn measure(plan: &Plan) -> Result<Vec<ApiKeys>, String> {
    let mut all = Vec::new();
    for &api_keys in plan.api_keys {
        let (one, many, mut turn) = (start_for(1, &[]), start_for(api_keys, &LIMITS), 0);
        let compared = compare(plan, plan.rounds, &one, &many, &mut turn).await?;
        all.push(ApiKeys { api_keys, compared, gateway_mb: gateway_mb(&many) });
    }
    Ok(all)
}
