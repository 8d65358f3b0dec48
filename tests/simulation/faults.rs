//! What goes wrong between gateways and servers, and with both. Storms come and go: in between everything must go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kit::history::now_us;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use sim::{Conditions, Kept};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::settings::Store;
use crate::world::{Weather, World};
use crate::{failover, machine, resharding};

const PORT: u16 = 6379;
/// What ends at its start is started again.
const RESTARTED_AFTER: Duration = Duration::from_millis(100);
/// Longer than a disk fails.
const MOST_STARTS: usize = 100;

/// What may happen in a storm, as the report and `SIM_WITHOUT` call it.
pub const FAULTS: [&str; 17] = [
    "gateway killed",
    "gateway drained",
    "gateway cut off",
    "connections cut",
    "server silent",
    "server restarted",
    "server lost all",
    "server flushed",
    "server full",
    "disk failed",
    "server loading",
    "server busy",
    "server read-only",
    "replica lags",
    "failover",
    "slot moved",
    "cluster down",
];

/// How many times as frequent as others those are that only one store knows.
const MORE: usize = 4;

/// Those that need a replica.
const OF_REPLICAS: [&str; 2] = ["replica lags", "failover"];

/// Those that need a cluster.
const OF_CLUSTERS: [&str; 2] = ["slot moved", "cluster down"];

/// What may happen on the ways of messages, to servers and from clients.
pub const ON_THE_WAY: [&str; 10] = [
    "message cut",
    "message late",
    "message strayed",
    "request lost",
    "request late",
    "request doubled",
    "answer lost",
    "answer late",
    "client left",
    "departure hidden",
];

/// Storms, until the world is over. All is well when this returns.
pub async fn happen(world: Arc<World>) {
    let mut random = world.random(500);
    let mut gateways = 100;
    let all = world.machine.as_ref().map_or_else(|| FAULTS.to_vec(), |machine| machine.faults().collect());
    let faults: Vec<_> = all
        .into_iter()
        .filter(|fault| world.settings.has(fault))
        // There a failover does the same.
        .filter(|fault| world.settings.store != Store::Sentinel || *fault != "server read-only")
        .filter(|fault| world.settings.store == Store::Sentinel || !OF_REPLICAS.contains(fault))
        // Where a slot loses its data, its numbers go on from the clock of the node that has it by then.
        .filter(|fault| {
            !world.are_nodes_clocks_apart() || !["server lost all", "server flushed"].contains(fault)
        })
        // A primary that is flushed and then deposed may outgrow its successor.
        .filter(|fault| world.settings.store != Store::Sentinel || *fault != "server flushed")
        .filter(|fault| world.settings.store == Store::Cluster || !OF_CLUSTERS.contains(fault))
        .flat_map(|fault| vec![fault; if ["failover", "slot moved"].contains(&fault) { MORE } else { 1 }])
        .collect();
    while !world.is_over() {
        pause(&mut random, 1_000..10_000).await;
        begin_storm(&world, &mut random);
        let mut under_way = JoinSet::new();
        for _ in 0..random.random_range(1..8) {
            let Some(fault) = faults.choose(&mut random).filter(|_| !world.is_over()) else { break };
            gateways += 1;
            under_way.spawn(happens(world.clone(), fault, world.random(gateways), gateways));
            pause(&mut random, 0..1_500).await;
        }
        under_way.join_all().await;
        end_storm(&world);
        if world.machine.is_some() {
            machine::works_again(&world).await;
        }
    }
}

fn begin_storm(world: &World, random: &mut StdRng) {
    let mut weather = world.weather.lock().unwrap();
    weather.is_stormy = true;
    if world.settings.has("message cut") && random.random_bool(0.5) {
        weather.cut_per_mille = random.random_range(1..30);
    }
    if world.settings.has("message late") && random.random_bool(0.5) {
        weather.late_per_mille = random.random_range(1..30);
    }
    if world.settings.has("message strayed") && random.random_bool(0.5) {
        weather.stray_per_mille = random.random_range(1..60);
    }
    if world.settings.has("hint lost") && random.random_bool(0.5) {
        for (number, server) in (2_000..).zip(&world.fleet.servers) {
            let mut random = world.random(number);
            server.state().loses = Some(Box::new(move |_, _| random.random_bool(0.3)));
        }
    }
}

pub fn end_storm(world: &World) {
    let calm_since = Some(Instant::now());
    *world.weather.lock().unwrap() = Weather { calm_since, ..Weather::default() };
    for server in &world.fleet.servers {
        server.state().loses = None;
    }
}

async fn happens(world: Arc<World>, fault: &'static str, mut random: StdRng, number: u64) {
    if world.machine.is_some() {
        world.book.trace(|| fault.to_owned());
        return machine::happens(world, fault, random, number).await;
    }
    let slot = random.random_range(0..3);
    let at = random.random_range(0..world.fleet.servers.len());
    world.book.trace(|| format!("{fault}: gateway {slot} or server {at}"));
    if fault == "failover" {
        if failover::fail_over(&world, &mut random).await {
            world.book.count(fault);
        }
        return;
    }
    world.book.count(fault);
    match fault {
        "replica lags" => failover::lag(&world, &mut random),
        "slot moved" => resharding::move_a_slot(&world, &mut random).await,
        "cluster down" => {
            resharding::set_up(&world, at, false);
            pause(&mut random, 50..3_000).await;
            resharding::set_up(&world, at, true);
        }
        "gateway killed" => {
            let start_us = now_us();
            world.gateway(slot).kill();
            world.book.killed_since(start_us);
            pause(&mut random, 10..3_000).await;
            replace(&world, slot, number).await;
        }
        "gateway drained" => {
            let start_us = now_us();
            let gateway = world.gateway(slot);
            replace(&world, slot, number).await;
            gateway.drain().await;
            world.book.killed_since(start_us);
        }
        "gateway cut off" => {
            let gateway = world.gateway(slot);
            gateway.view().set(|way| way.is_silent = true);
            world.free_since_us.store(u64::MAX, Ordering::SeqCst);
            pause(&mut random, 50..6_000).await;
            gateway.view().set(|way| way.is_silent = false);
            world.free_since_us.store(now_us(), Ordering::SeqCst);
        }
        "connections cut" => world.gateway(slot).view().cut_all(),
        "server silent" => {
            set(&world, at, |way| way.is_silent = true);
            pause(&mut random, 50..4_000).await;
            set(&world, at, |way| way.is_silent = false);
        }
        "server read-only" => {
            // It follows another one that cannot be reached, and is made a primary again. The product asks for a second in between.
            world.fleet.servers[at].state().follows = Some(("elsewhere".to_owned(), PORT));
            pause(&mut random, 1_000..4_000).await;
            world.fleet.servers[at].promote();
        }
        "server restarted" => {
            restart(&world, at, &mut random, Kept::Everything).await;
        }
        "server lost all" => {
            let start_us = now_us();
            let is_replica = restart(&world, at, &mut random, Kept::Nothing).await;
            world.book.trace(|| format!("{fault}: server {at} is back"));
            // A quorum does without one of its servers.
            if world.settings.store != Store::Quorum && !is_replica {
                world.book.lost_since(start_us);
            }
        }
        "server flushed" => {
            let start_us = now_us();
            world.fleet.servers[at].ask(0, &[b"flushall".to_vec()]);
            if world.settings.store != Store::Quorum {
                world.book.lost_since(start_us);
            }
        }
        state => {
            let is = match state {
                "server full" => Conditions { is_full: true, ..Conditions::default() },
                "disk failed" => Conditions { disk_fails: true, has_file: true, ..Conditions::default() },
                "server loading" => Conditions { is_loading: true, ..Conditions::default() },
                "server busy" => Conditions { is_busy: true, ..Conditions::default() },
                other => panic!("there is no fault {other}"),
            };
            world.fleet.servers[at].state().conditions = is;
            pause(&mut random, 50..3_000).await;
            world.fleet.servers[at].state().conditions = Conditions::default();
        }
    }
}

/// Starts a successor as soon as that can be, unless there is one.
pub async fn replace(world: &Arc<World>, slot: usize, number: u64) {
    for _ in 0..MOST_STARTS {
        if let Some(successor) = world.start_gateway(number) {
            return world.replace_gateway(slot, successor);
        }
        sleep(RESTARTED_AFTER).await;
        if !world.gateway(slot).gone.is_cancelled() {
            return;
        }
    }
    world.book.violated("M1: a gateway does not start".to_owned());
}

/// Returns whether it was a replica.
async fn restart(world: &World, at: usize, random: &mut StdRng, kept: Kept) -> bool {
    let _turn = match world.settings.store {
        Store::Sentinel => Some(world.turn.lock().await),
        _ => None,
    };
    world.roles.lock().unwrap().restarted();
    let is_replica =
        world.settings.store == Store::Sentinel && world.fleet.servers[at].state().follows.is_some();
    set(world, at, |way| way.refuses = true);
    world.fleet.servers[at].restart(kept);
    pause(random, 10..1_500).await;
    set(world, at, |way| way.refuses = false);
    is_replica
}

pub fn set(world: &World, at: usize, change: impl FnOnce(&mut sim::Condition)) {
    world.fleet.network.set(&format!("server{}", at + 1), PORT, change);
}

pub async fn pause(random: &mut StdRng, ms: std::ops::Range<u64>) {
    sleep(Duration::from_millis(random.random_range(ms))).await;
}
