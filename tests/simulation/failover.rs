//! A primary and its replica under Sentinel: what is copied, and how the replica takes the place of the primary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::history::{Action, Answer, Failover, Span, Terms, now_us};
use rand::RngExt;
use rand::rngs::StdRng;
use sim::{Kept, Reply, Server, host};
use tokio::time::sleep;

use crate::faults::{pause, set};
use crate::gateways::Request;
use crate::world::World;

const PORT: u16 = 6379;
const GATEWAYS: usize = 3;
/// The product asks for that much between two promotions.
const BETWEEN_PROMOTIONS: Duration = Duration::from_secs(1);

/// Within that, a gateway hears of a failover that can reach the sentinels.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// Which of the two is what.
#[derive(Default)]
pub struct Roles {
    primary: usize,
    /// How many failovers there were.
    epoch: u64,
    /// Until when nothing is copied.
    lags_until_us: u64,
    /// When the replica last had all that the primary had; nothing from a restart of either on.
    copied_us: Option<u64>,
}

impl Roles {
    /// One of them begins anew: who has what is not known.
    pub fn restarted(&mut self) {
        self.copied_us = None;
    }

    /// Nothing keeps the replica from following any more.
    fn follows_again(&mut self) {
        (self.lags_until_us, self.copied_us) = (0, Some(now_us()));
    }
}

/// Has the replica follow, for as long as there is a world.
pub async fn replicate(world: Arc<World>) {
    let mut random = world.random(600);
    loop {
        pause(&mut random, 1..20).await;
        let mut roles = world.roles.lock().unwrap();
        let are_there = (0..2).all(|server| world.fleet.network.is_open(&host(server), PORT));
        if are_there && roles.lags_until_us < now_us() {
            let [primary, replica] = [roles.primary, 1 - roles.primary].map(|at| &world.fleet.servers[at]);
            replica.catch_up(primary, usize::MAX);
            roles.copied_us = Some(now_us());
        }
    }
}

/// The replica lags for a while.
pub fn lag(world: &World, random: &mut StdRng) {
    let until_us = now_us() + random.random_range(50_000..3_000_000);
    let mut roles = world.roles.lock().unwrap();
    roles.lags_until_us = roles.lags_until_us.max(until_us);
}

/// Why there is a failover.
#[derive(Clone, Copy, Debug)]
enum Cause {
    ByHand,
    PrimaryDied,
    /// It goes on, for those gateways that reach it.
    PrimaryCutOff,
}

/// The replica is promoted. The old primary is its replica when this returns. Returns whether there was a failover: both must be
/// there, and a gateway must have met the primary, or the product promises less.
pub async fn fail_over(world: &World, random: &mut StdRng) -> bool {
    let Ok(_turn) = world.turn.try_lock() else { return false };
    let (old, epoch, copied_us) = {
        let mut roles = world.roles.lock().unwrap();
        let Some(copied_us) = roles.copied_us.filter(|_| is_met(&world.fleet.servers[roles.primary])) else {
            return false;
        };
        roles.lags_until_us = u64::MAX;
        roles.epoch += 1;
        (roles.primary, roles.epoch, copied_us)
    };
    let new = 1 - old;
    let causes = [Cause::ByHand, Cause::PrimaryDied, Cause::PrimaryCutOff];
    let cause = causes[random.random_range(0..causes.len())];
    world.book.trace(|| format!("failover {epoch} from server {old} to server {new}: {cause:?}"));
    match cause {
        Cause::ByHand => {}
        Cause::PrimaryDied => {
            set(world, old, |way| way.refuses = true);
            world.fleet.servers[old].disconnect_all();
        }
        Cause::PrimaryCutOff => cut_off(world, old, random),
    }
    if !matches!(cause, Cause::ByHand) {
        pause(random, 200..3_000).await;
    }
    let promoted_us = now_us();
    let successor_from = world.fleet.servers[new].now_us();
    world.fleet.servers[new].promote();
    world.roles.lock().unwrap().primary = new;
    // The third one may be on the other side of a cut.
    for sentinel in 0..2 {
        pause(random, 0..700).await;
        world.fleet.name_primary(sentinel, new, epoch);
    }
    let named_us = now_us();
    sleep(BETWEEN_PROMOTIONS).await;
    pause(random, 0..5_000).await;
    if matches!(cause, Cause::ByHand) {
        is_left(world, named_us, successor_from).await;
    }
    (0..GATEWAYS).for_each(|slot| world.gateway(slot).view().cut_off(BTreeSet::new()));
    if !matches!(cause, Cause::PrimaryDied) && random.random_bool(0.3) {
        // What the replica lacked is there again after that, and was not in between.
        let called_back_us = call_back(world, random, old, promoted_us).await;
        world.book.failed_over(Failover {
            lost: Span { start_us: copied_us, end_us: called_back_us },
            split: Span { start_us: promoted_us, end_us: called_back_us },
            successor_from,
        });
        return true;
    }
    world.fleet.name_primary(2, new, epoch);
    // A primary that is back, or was never gone, may serve for a while as if nothing had happened.
    match cause {
        Cause::PrimaryDied => world.fleet.servers[old].restart(Kept::Everything),
        Cause::ByHand | Cause::PrimaryCutOff => pause(random, 0..1_500).await,
    }
    world.fleet.follow(old, new);
    world.fleet.servers[old].disconnect_all();
    set(world, old, |way| way.refuses = false);
    let end_us = now_us();
    world.book.failed_over(Failover {
        lost: Span { start_us: copied_us, end_us },
        split: Span { start_us: promoted_us, end_us },
        successor_from,
    });
    world.roles.lock().unwrap().follows_again();
    sleep(BETWEEN_PROMOTIONS).await;
    true
}

/// Each gateway that could ask the sentinels has left the old primary by now: what it grants is of the successor (K17).
async fn is_left(world: &World, named_us: u64, successor_from: u64) {
    let heard_us = named_us
        .max(world.free_since_us.load(Ordering::SeqCst))
        .saturating_add(HEARD_WITHIN.as_micros() as u64);
    if now_us() < heard_us || world.weather.lock().unwrap().loses_messages() {
        return;
    }
    for slot in 0..GATEWAYS {
        let request = Request {
            id: format!("successor-{slot}-{named_us}"),
            key: format!("successor-{slot}-{named_us}"),
            token: None,
            action: Action::Acquire { ttl_ms: 300 },
            wait: Duration::ZERO,
            terms: Terms::default(),
        };
        let asked = world.gateway(slot).serve(request, sleep(HEARD_WITHIN), &AtomicBool::new(false)).await;
        world.book.count("successor asked");
        if let Some(Answer::Granted { number, .. }) = asked.map(|reply| reply.answer)
            && number < successor_from
        {
            world.book.violated(format!("K17: gateway {slot} is granted {number} by a deposed primary"));
        }
    }
}

/// The old primary becomes the primary once more, and never heard of its successor, of which all is lost. Returns
/// when this was done with.
async fn call_back(world: &World, random: &mut StdRng, old: usize, promoted_us: u64) -> u64 {
    let epoch = {
        let mut roles = world.roles.lock().unwrap();
        (roles.primary, roles.epoch) = (old, roles.epoch + 1);
        roles.epoch
    };
    world.book.trace(|| format!("failover {epoch} back to server {old}"));
    world.book.count("primary called back");
    for sentinel in 0..3 {
        pause(random, 0..700).await;
        world.fleet.name_primary(sentinel, old, epoch);
    }
    world.fleet.follow(1 - old, old);
    world.fleet.servers[1 - old].disconnect_all();
    // Until here a gateway may have met the other one for the first time, which began its numbers then.
    let successor_from = world.fleet.servers[old].now_us();
    let lost = Span { start_us: promoted_us, end_us: now_us() };
    world.roles.lock().unwrap().follows_again();
    // Whoever never left it goes on with its former numbers until it hears of this.
    sleep(HEARD_WITHIN).await;
    let split = Span { start_us: promoted_us, end_us: now_us() };
    world.book.failed_over(Failover { lost, split, successor_from });
    lost.end_us
}

/// Nothing gets through between the two sides of a cut. On one of them are the primary and a sentinel, and each gateway is on
/// either.
fn cut_off(world: &World, old: usize, random: &mut StdRng) {
    let [with_old, with_new] = [[host(old), "sentinel3".to_owned()].to_vec(), {
        [host(1 - old), "sentinel1".to_owned(), "sentinel2".to_owned()].to_vec()
    }];
    for slot in 0..GATEWAYS {
        let others = if random.random_bool(0.5) { &with_old } else { &with_new };
        world.gateway(slot).view().cut_off(others.iter().cloned().collect());
    }
}

/// Whether a gateway has given it a run of numbers since it was started.
fn is_met(server: &Server) -> bool {
    let run_id = server.state().identity.run_id.clone();
    let words = ["hget", "fencepost:{0}:fence", &run_id[..run_id.len() / 2]];
    matches!(server.ask(0, &words.map(|word| word.as_bytes().to_vec())), Reply::Bulk(_))
}
