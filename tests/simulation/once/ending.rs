//! What is asked of each record when nothing fails any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::asking::{Way, ask_by};
use super::workers::FINGERPRINTS;
use super::{ALONE, Action, Answer, Operation, PATIENCE, SHORT_KEEP_S};
use crate::world::World;

/// Until all is over that was kept for as short as may be, also what was stored late by a copy of a request.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(SHORT_KEEP_S + 40);

/// When all leases are over, whoever begins is the worker, or is told the result (O4). Says of which records that is not so.
pub async fn nobody_blocks(world: &Arc<World>) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, key) in keys(world).into_iter().enumerate() {
        look(world, number, &key).await;
        if key.starts_with(ALONE) {
            continue;
        }
        let told = begin(world, number, &key, &format!("the-last-one-of-all-{number}")).await;
        if !matches!(told.answer, Answer::Work { .. } | Answer::Done { .. }) {
            violations.push(format!("O4: the record is blocked, though all leases are over: {told:?}"));
        }
    }
    violations
}

/// Asks for all of them again when what was kept for a short time is over. The judge decides about what is told then: that a
/// result is forgotten, and a worker is not.
pub async fn forget(world: &Arc<World>) {
    sleep(FORGOTTEN_AFTER).await;
    for (number, key) in keys(world).into_iter().enumerate() {
        if !key.starts_with(ALONE) {
            begin(world, number, &key, &format!("one-who-comes-late-{number}")).await;
        }
    }
}

fn keys(world: &World) -> BTreeSet<String> {
    world.records.all().into_iter().map(|operation| operation.key).collect()
}

async fn look(world: &Arc<World>, gateway: usize, key: &str) {
    ask_by(world.clone(), gateway, key, None, Action::Look, Way::CERTAIN, PATIENCE).await;
}

/// Begins by the fingerprint that the record has.
async fn begin(world: &Arc<World>, gateway: usize, key: &str, token: &str) -> Operation {
    let mut told = None;
    for fingerprint in FINGERPRINTS {
        let begin = Action::Begin {
            ttl_ms: 1_000,
            keep_s: SHORT_KEEP_S,
            may_take_over: true,
            wait: Duration::ZERO,
            fingerprint: fingerprint.map(str::to_owned),
        };
        let answer = ask_by(world.clone(), gateway, key, Some(token), begin, Way::CERTAIN, PATIENCE).await;
        let differs = answer.answer == Answer::FingerprintDiffers;
        told = Some(answer);
        if !differs {
            break;
        }
    }
    told.expect("there are fingerprints")
}
