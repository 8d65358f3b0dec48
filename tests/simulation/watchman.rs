//! Somebody who sees all waiters, and looks whether a free lock is kept from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kit::history::{Action, Answer, Terms};
use tokio::time::{Instant, sleep};

use crate::gateways::Request;
use crate::world::World;

const EVERY: Duration = Duration::from_millis(500);
/// For so long nothing may fail, and the lock may be free, while somebody waits. It is offered to each ticket of a client that
/// is away for 800 ms.
const LONGEST: Duration = Duration::from_secs(5);

/// Looks until the world is over.
pub async fn watch(world: Arc<World>) {
    // Since when which request waits for a lock that is free.
    let mut in_vain: BTreeMap<(String, String), Instant> = BTreeMap::new();
    let mut looks = 0;
    while !world.is_over() {
        sleep(EVERY).await;
        let waiting = world.line.waiting();
        if world.is_stormy() {
            in_vain.clear();
            continue;
        }
        in_vain.retain(|who, _| waiting.contains(who));
        for (key, id) in waiting {
            looks += 1;
            if !is_free(&world, &key, looks).await {
                in_vain.retain(|(other, _), _| *other != key);
                continue;
            }
            let since = *in_vain.entry((key.clone(), id.clone())).or_insert_with(Instant::now);
            if since.elapsed() > LONGEST {
                world.book.violated(format!("W1: {key} is free, and {id} waits: nobody gets it"));
                return;
            }
        }
    }
}

async fn is_free(world: &World, key: &str, looks: usize) -> bool {
    let request = Request {
        id: format!("watchman-{looks}"),
        key: key.to_owned(),
        token: None,
        action: Action::Look,
        wait: Duration::ZERO,
        terms: Terms::default(),
    };
    let gateway = world.gateway(looks);
    let reply = gateway.serve(request, std::future::pending(), &AtomicBool::new(false)).await;
    reply.is_some_and(|reply| reply.answer == Answer::NotHeld)
}
