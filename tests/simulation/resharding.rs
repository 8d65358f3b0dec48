//! Slots of a cluster that move while they are in use.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use sim::slot_of;

use crate::faults::pause;
use crate::world::World;

/// What the name of a lock that is held has in it.
const LOCK: &[u8] = b":lock:";
/// A node knows within that who has a slot by now.
const HEARD_WITHIN_MS: u64 = 1_500;

/// Moves a slot in which there is a lock to another node, as `redis-cli --cluster reshard` does.
pub async fn move_a_slot(world: &World, random: &mut StdRng) {
    let _turn = world.turn.lock().await;
    let servers = &world.fleet.servers;
    let from = random.random_range(0..servers.len());
    let to = (from + random.random_range(1..servers.len())) % servers.len();
    let is_lock = |key: &&Vec<u8>| key.windows(LOCK.len()).any(|part| part == LOCK);
    let slots: Vec<_> = servers[from].keys().iter().filter(is_lock).map(|key| slot_of(key)).collect();
    let Some(slot) = slots.choose(random).copied().filter(|slot| knows(world, from, *slot)) else { return };
    world.book.trace(|| format!("slot {slot} moves from server {from} to server {to}"));
    change(world, to, |cluster| cluster.arriving.extend([(slot, from)]));
    change(world, from, |cluster| cluster.leaving.extend([(slot, to)]));
    // Keys that are made meanwhile go to the other node. Those that are there may be changed, and some end.
    loop {
        pause(random, 1..400).await;
        let keys: Vec<_> = servers[from].keys().into_iter().filter(|key| slot_of(key) == slot).collect();
        let Some(key) = keys.choose(random) else { break };
        servers[from].give(key, &servers[to]);
    }
    // Each learns it in its time; the one that has it, first.
    change(world, to, |cluster| cluster.learn(slot, to));
    pause(random, 1..200).await;
    change(world, from, |cluster| cluster.learn(slot, to));
    for node in (0..servers.len()).filter(|node| ![from, to].contains(node)) {
        pause(random, 1..HEARD_WITHIN_MS).await;
        change(world, node, |cluster| cluster.learn(slot, to));
    }
}

/// Says whether a node takes it that the cluster works.
pub fn set_up(world: &World, node: usize, is_up: bool) {
    change(world, node, |cluster| cluster.is_up = is_up);
}

fn knows(world: &World, node: usize, slot: usize) -> bool {
    world.fleet.servers[node].state().cluster.as_ref().is_some_and(|cluster| cluster.has(slot))
}

fn change(world: &World, node: usize, change: impl FnOnce(&mut sim::Cluster)) {
    if let Some(cluster) = &mut world.fleet.servers[node].state().cluster {
        change(cluster);
    }
}
