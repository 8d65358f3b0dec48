//! Servers, gateways and clients, in one thread and in simulated time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::SystemClock;
use fencepost::store::LockStore;
use fencepost::store::quorum::QuorumStore;
use fencepost::store::redis::{OnceMemory, RedisSettings, RedisStore};
use kit::history::Span;
use kit::resource::Resource;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sim::{Clock, Direction, Fate, Fleet};
use tokio::time::{Instant, sleep};

use crate::book::{Book, Closed};
use crate::clients::{Client, POOL, look};
use crate::failover::{self, Roles};
use crate::gateways::{Gateway, Way};
use crate::line::Line;
use crate::machine::{LIES, Machine};
use crate::once::{self, Disturbances, Records, WORKERS, Worker};
use crate::settings::{Settings, Store};
use crate::{faults, holes, tap, watchman};

const OF_THE_MACHINE: u64 = 3_000;
const OF_THE_CLOCKS: u64 = 3_001;
const NOW_US: u64 = 1_760_000_000_000_000;
/// A lock has another name after so long, so that the judge compares no more than what belongs together.
const ERA: Duration = Duration::from_secs(10);
/// What the product allows between the clocks of a quorum is 10 s, and one in a hundred.
const MOST_APART_US: u64 = 9_000_000;
const DRIFT_PPM: i64 = 4_000;
const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// How many there are of those at a time.
const POOLS: usize = 3;
/// What asks for a lock by no name of an era.
const WITHOUT_ERA: &str = "ever";
/// Time for requests that are under way to end, when nothing fails any more.
const SETTLING: Duration = Duration::from_secs(3);
/// More than all of them take.
const ROOM_FOR_RECORDS: u64 = 1 << 30;
const SHORT_LEASES_END: Duration = Duration::from_secs(3);

/// What becomes of messages between gateways and servers.
#[derive(Default)]
pub struct Weather {
    pub cut_per_mille: u32,
    pub late_per_mille: u32,
    pub stray_per_mille: u32,
    /// Whether anything may fail between gateways and servers.
    pub is_stormy: bool,
    /// When the last storm ended.
    pub calm_since: Option<Instant>,
}

impl Weather {
    pub fn loses_messages(&self) -> bool {
        self.cut_per_mille + self.late_per_mille + self.stray_per_mille > 0
    }
}

pub struct World {
    pub settings: Settings,
    pub fleet: Fleet,
    /// Of a gateway that has no servers.
    pub machine: Option<Machine>,
    pub book: Book,
    pub weather: Mutex<Weather>,
    /// Of the servers under Sentinel.
    pub roles: Mutex<Roles>,
    /// Had by who changes what they are to each other, or restarts one of them.
    pub turn: tokio::sync::Mutex<()>,
    gateways: Mutex<Vec<Arc<Gateway>>>,
    resources: Mutex<BTreeMap<String, Resource>>,
    pub line: Line,
    /// Since when no gateway is cut off from all servers; the largest number while one is.
    pub free_since_us: AtomicU64,
    /// What is asked about records.
    pub records: Records,
    began: Instant,
    is_over: AtomicBool,
}

impl World {
    pub fn new(settings: Settings) -> Arc<Self> {
        let clock = Clock::running(NOW_US);
        let fleet = match settings.store {
            Store::Redis => Fleet::alone(&clock),
            Store::Sentinel => Fleet::with_sentinels(&clock),
            Store::Cluster => Fleet::cluster(&clock),
            Store::Quorum => Fleet::quorum(&clock),
            Store::Memory | Store::File => Fleet::none(),
        };
        if settings.has_clocks_that_differ() {
            let mut random = random(settings.seed, OF_THE_CLOCKS);
            for server in &fleet.servers {
                let us = NOW_US + random.random_range(0..MOST_APART_US);
                let drift_ppm = random.random_range(-DRIFT_PPM..=DRIFT_PPM);
                server.set_clock(match settings.store {
                    Store::Quorum => Clock::drifting(us, drift_ppm),
                    _ => Clock::running(us),
                });
            }
        }
        let lie =
            LIES.into_iter().find(|(name, _)| settings.hole.as_deref() == Some(name)).map(|(_, lie)| lie);
        if lie.is_none()
            && let Some((stands, mistake)) = settings.hole.as_deref().map(holes::named)
        {
            fleet.servers.iter().for_each(|server| server.make_mistake(stands, mistake));
        }
        tap::listen(&fleet);
        let random = random(settings.seed, OF_THE_MACHINE);
        let machine = settings.store.is_embedded().then(|| Machine::new(settings.store, random, lie));
        let world = Arc::new(Self {
            settings,
            fleet,
            machine,
            book: Book::default(),
            weather: Mutex::default(),
            roles: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            gateways: Mutex::default(),
            resources: Mutex::default(),
            line: Line::default(),
            free_since_us: AtomicU64::new(0),
            records: Records::default(),
            began: Instant::now(),
            is_over: AtomicBool::new(false),
        });
        for slot in 0..world.settings.store.gateways() {
            let gateway = world.start_gateway(slot as u64).unwrap();
            world.gateways.lock().unwrap().push(gateway);
        }
        world
    }

    /// Randomness of its own for one part, so that what others draw makes no difference to it.
    pub fn random(&self, part: u64) -> StdRng {
        random(self.settings.seed, part)
    }

    /// Starts a gateway. Nothing if it cannot start now.
    pub fn start_gateway(self: &Arc<Self>, number: u64) -> Option<Arc<Gateway>> {
        if let Some(machine) = &self.machine {
            let started = machine.start().unwrap_or_else(|why| {
                self.book.violated(why);
                None
            });
            let (store, process, running) = started?;
            let mark_ttl = self.settings.store.mark_ttl();
            let gateway = Gateway::start(number, Arc::new(store), mark_ttl, Way::Own(process));
            tokio::spawn(running.run(gateway.gone.clone()));
            return Some(gateway);
        }
        let (world, mut random) = (Arc::downgrade(self), self.random(1_000 + number));
        let view = self.fleet.network.view(Box::new(move |direction| {
            let Some(world) = world.upgrade() else { return Fate::Arrives };
            world.fate(direction, &mut random)
        }));
        let address = self.fleet.address().unwrap().through(Arc::new(view.clone()));
        let max_ttl = Duration::from_millis(self.settings.store.longest_ttl_ms());
        let settings = RedisSettings {
            max_ttl,
            mark_ttl: self.settings.store.mark_ttl(),
            replicas_ack: u32::from(self.settings.asks_replicas()),
            once_memory: OnceMemory::Bytes(ROOM_FOR_RECORDS),
            ..RedisSettings::default()
        };
        let store: Arc<dyn LockStore> = match self.settings.store {
            Store::Quorum => {
                Arc::new(QuorumStore::start(&address, &settings, Arc::new(SystemClock)).unwrap())
            }
            _ => Arc::new(RedisStore::start(&address, &settings).unwrap()),
        };
        Some(Gateway::start(number, store, settings.mark_ttl, Way::Servers(view)))
    }

    fn fate(&self, direction: Direction, random: &mut StdRng) -> Fate {
        let weather = self.weather.lock().unwrap();
        let mut drawn = random.random_range(0..1_000);
        let mut falls_on = |per_mille: u32| {
            let falls = drawn < per_mille;
            drawn = drawn.saturating_sub(per_mille);
            falls
        };
        if falls_on(weather.cut_per_mille) {
            self.book.count("message cut");
            return Fate::Cut;
        }
        let late = Duration::from_millis(random.random_range(20..1_500));
        if falls_on(weather.late_per_mille) {
            self.book.count("message late");
            return Fate::Late(late);
        }
        if direction == Direction::ToServer && falls_on(weather.stray_per_mille) {
            self.book.count("message strayed");
            return Fate::Stray(late);
        }
        match random.random_range(0..4) {
            0 => Fate::Arrives,
            ms => Fate::Late(Duration::from_millis(ms)),
        }
    }

    pub fn gateway(&self, slot: usize) -> Arc<Gateway> {
        let gateways = self.gateways.lock().unwrap();
        gateways[slot % gateways.len()].clone()
    }

    pub fn replace_gateway(&self, slot: usize, successor: Arc<Gateway>) {
        let mut gateways = self.gateways.lock().unwrap();
        let slots = gateways.len();
        gateways[slot % slots] = successor;
    }

    /// The name of one of the locks that several ask for now.
    pub fn key(&self, random: &mut StdRng) -> String {
        let letter = LETTERS[random.random_range(0..LETTERS.len())];
        if random.random_bool(0.03) {
            return format!("{letter}-{WITHOUT_ERA}");
        }
        format!("{letter}-{}", self.began.elapsed().as_secs() / ERA.as_secs())
    }

    /// The name of one of the locks that several hold at once now.
    pub fn pool(&self, random: &mut StdRng) -> String {
        let letter = LETTERS[random.random_range(0..POOLS)];
        format!("{POOL}{letter}-{}", self.began.elapsed().as_secs() / ERA.as_secs())
    }

    /// The name of one of the records that several ask for now.
    pub fn record_key(&self, number: u64, era_s: u64) -> String {
        // Names have different lengths, by which workers choose what they are for.
        let letters = "x".repeat(number as usize);
        format!("record-{letters}-{:04}", self.began.elapsed().as_secs() / era_s)
    }

    /// Does something to what a lock protects.
    pub fn with_resource<T>(&self, key: &str, act: impl FnOnce(&mut Resource) -> T) -> T {
        act(self.resources.lock().unwrap().entry(key.to_owned()).or_default())
    }

    pub fn is_stormy(&self) -> bool {
        self.weather.lock().unwrap().is_stormy
    }

    /// Since when nothing fails; nothing while it does.
    pub fn calm_since(&self) -> Option<Instant> {
        let weather = self.weather.lock().unwrap();
        (!weather.is_stormy).then(|| weather.calm_since.unwrap_or(self.began))
    }

    /// Whether each node of a Cluster has a clock of its own.
    pub fn are_nodes_clocks_apart(&self) -> bool {
        self.settings.store == Store::Cluster && self.settings.has_clocks_that_differ()
    }

    /// Everybody ends what is begun, and begins nothing more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

fn random(seed: u64, part: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Plays it to its end.
pub async fn play(settings: Settings) -> Closed {
    let world = World::new(settings);
    sleep(Duration::from_secs(2)).await;
    let clients: Vec<_> = (0..world.settings.clients)
        .map(|number| tokio::spawn(Client::new(world.clone(), number).live()))
        .collect();
    let workers = if world.settings.store == Store::Quorum { 0 } else { WORKERS };
    let workers: Vec<_> =
        (0..workers).map(|number| tokio::spawn(Worker::new(world.clone(), number).live())).collect();
    let faults = tokio::spawn(faults::happen(world.clone()));
    if world.settings.store == Store::Sentinel {
        tokio::spawn(failover::replicate(world.clone()));
    }
    let watchman = tokio::spawn(watchman::watch(world.clone()));
    sleep(world.settings.duration()).await;
    world.end();
    faults.await.unwrap();
    watchman.await.unwrap();
    for client in clients.into_iter().chain(workers) {
        client.await.unwrap();
    }
    sleep(SETTLING).await;
    world.book.is_quiet();
    for wait in [Duration::from_millis(1_100), SHORT_LEASES_END] {
        sleep(wait).await;
        for key in world.book.keys() {
            look(&world, &key).await;
        }
    }
    let blocked = once::nobody_blocks(&world).await;
    if world.settings.forgets() {
        once::forget(&world).await;
    }
    let mut closed = world.book.close();
    closed.violations.extend(blocked);
    closed.records = world.records.all();
    let history = &closed.history;
    let returns = history.failovers.iter().flat_map(|failover| [failover.lost, failover.split]);
    let returns: Vec<_> = history.returns.iter().copied().chain(returns).collect();
    let disturbances = Disturbances {
        losses: history.losses.iter().chain(&returns).copied().collect(),
        returns,
        splits: history.failovers.iter().map(|failover| failover.split).collect(),
        kills: history.kills.clone(),
        // A slot takes the ends of its leases to a node that has another clock.
        moves: Vec::from_iter(
            world.are_nodes_clocks_apart().then_some(Span { start_us: 0, end_us: u64::MAX }),
        ),
        misread: if world.settings.store == Store::File { history.losses.clone() } else { Vec::new() },
    };
    closed.violations.extend(once::judge(&closed.records, &disturbances));
    closed.history.asks_replicas = world.settings.asks_replicas();
    closed.history.is_of_quorum = world.settings.store == Store::Quorum;
    closed
}
