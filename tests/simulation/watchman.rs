//! Somebody who sees all waiters, and looks whether a free lock is kept from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kit::history::{Action, Answer, Share, Terms};
use tokio::time::{Instant, sleep};

use crate::faults;
use crate::gateways::Request;
use crate::settings::{Settings, Store};
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
            let least = world.line.least_slots(&key);
            if !is_open(&world, &key, least, looks).await {
                in_vain.retain(|(other, _), _| *other != key);
                continue;
            }
            let since = *in_vain.entry((key.clone(), id.clone())).or_insert_with(Instant::now);
            // A look may outlast a storm.
            if world.calm_since().is_some_and(|calm| calm.max(since).elapsed() > LONGEST) {
                world.book.violated(format!("W1: there is room in {key}, and {id} waits: nobody gets it"));
                return;
            }
        }
    }
}

/// Whether nobody holds the lock, or so few that all who wait could come in.
async fn is_open(world: &World, key: &str, least: u16, looks: usize) -> bool {
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
    reply.is_some_and(|reply| {
        let Share { held, slots, .. } = reply.share;
        let has_room = slots.is_some_and(|slots| held < u64::from(slots.min(least)));
        reply.answer == Answer::NotHeld || has_room
    })
}

/// A test: what failed while a look was under way is no calm.
pub fn a_watchman_counts_no_storm() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        assert_eq!(seen_of_one_who_waits_in_vain(false).await.len(), 1);
        assert_eq!(seen_of_one_who_waits_in_vain(true).await, Vec::<String>::new());
    });
}

/// The gateways know nothing of who waits here. For a part of the time nothing gets through to the server.
async fn seen_of_one_who_waits_in_vain(has_storm: bool) -> Vec<String> {
    let world = World::new(Settings::new(1, Store::Redis, 60));
    let (action, terms, wait) = (Action::Acquire { ttl_ms: 1_000 }, Terms::default(), LONGEST * 2);
    let (id, key) = ("1.1".to_owned(), "a-0".to_owned());
    let _place = world.line.comes(&Request { id, key, token: None, action, wait, terms }, 1);
    let watching = tokio::spawn(watch(world.clone()));
    sleep(LONGEST - EVERY).await;
    if has_storm {
        faults::set(&world, 0, |way| way.is_silent = true);
        sleep(EVERY * 2).await;
        world.weather.lock().unwrap().is_stormy = true;
        sleep(EVERY * 2).await;
        faults::set(&world, 0, |way| way.is_silent = false);
        faults::end_storm(&world);
    }
    sleep(EVERY * 3).await;
    world.end();
    watching.await.unwrap();
    world.book.close().violations
}
