//! One server under load in turn with another, so that both have the same machine.

use serde::Serialize;

use crate::plan::Plan;
use crate::shared::figures::{Spread, spread};
use crate::shared::load::{Load, Turn, run};
use crate::shared::servers::Server;
use crate::shared::workload::Workload;

const CONNECTIONS: usize = 64;

/// What came of it: medians over the rounds, with the least and the most.
#[derive(Serialize)]
pub struct Compared {
    pub requests_per_s: Spread,
    /// Compared with the other server in the same round.
    pub kept: Spread,
    pub p99_us: Spread,
    pub p99_ratio: Spread,
    /// How many cores other processes used at most.
    pub others_cores: f64,
}

/// Pairs at 64 connections: at the server that has much of something, and at the one that has little.
pub async fn compare(
    plan: &Plan,
    rounds: usize,
    little: &Server,
    much: &Server,
    turn: &mut usize,
) -> Result<Compared, String> {
    let mut turns = Vec::new();
    for round in 0..rounds {
        // Each goes first in every other round: what the machine does at the turn of a round falls to both.
        turns.push(if round % 2 == 0 {
            let of_much = pairs(plan, much, CONNECTIONS, turn).await?;
            (pairs(plan, little, CONNECTIONS, turn).await?, of_much)
        } else {
            (pairs(plan, little, CONNECTIONS, turn).await?, pairs(plan, much, CONNECTIONS, turn).await?)
        });
    }
    let of = |value: fn(&(Turn, Turn)) -> f64| spread(turns.iter().map(value).collect());
    Ok(Compared {
        requests_per_s: of(|(_, much)| much.requests_per_s),
        kept: of(|(little, much)| much.requests_per_s / little.requests_per_s),
        p99_us: of(|(_, much)| much.p99_us),
        p99_ratio: of(|(little, much)| much.p99_us / little.p99_us),
        others_cores: of(|(little, much)| little.others_cores.max(much.others_cores)).most,
    })
}

/// One turn of pairs.
pub async fn pairs(
    plan: &Plan,
    server: &Server,
    connections: usize,
    turn: &mut usize,
) -> Result<Turn, String> {
    let turn = any_pairs(plan, server, connections, turn).await;
    match turn.mismatches.first() {
        Some(mismatch) => Err(format!("{}: {mismatch}", server.name)),
        None => Ok(turn),
    }
}

/// The same, whatever the answers are.
pub async fn any_pairs(plan: &Plan, server: &Server, connections: usize, turn: &mut usize) -> Turn {
    *turn += 1;
    let Plan { warm_up, measured, .. } = *plan;
    run(server, *turn, &Load { workload: Workload::Pairs, connections, warm_up, measured }).await
}
