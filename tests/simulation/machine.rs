//! The machine of a gateway whose store is its own: a disk with its file, the clocks, and what goes wrong with them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::{Clock, SystemClock};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore, Writer};
use kit::history::now_us;
use rand::RngExt;
use rand::rngs::StdRng;
use sim::{Access, Disk, Lie, Outcome};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::faults::{pause, replace};
use crate::settings::Store;
use crate::world::World;

/// What may happen to such a gateway in a storm. What has no disk is only killed and drained.
pub const FAULTS: [&str; 8] = [
    "gateway killed",
    "gateway drained",
    "power cut",
    "disk full",
    "disk broken",
    "disk slow",
    "older file restored",
    "wall clock set",
];
const OF_MEMORY: usize = 2;

/// What a disk may say on purpose although it is not so: each must be found.
pub const LIES: [(&str, Lie); 5] = [
    ("a sync leaves everything in the cache", Lie::NoSync),
    ("a sync leaves a page in the cache", Lie::PageLeftOut),
    ("a sync that failed is told to have worked", Lie::FailureHidden),
    ("a write that failed is told to have worked", Lie::WriteHidden),
    ("two processes have the file", Lie::NoLock),
];

/// How often the writer looks for work.
const TURN: Duration = Duration::from_millis(1);
/// A disk that works, and a writer that has caught up, answer in this time.
const LONGEST_RECOVERY: Duration = Duration::from_secs(10);
/// After a boot, the gateway starts at this time.
const START_AFTER_BOOT: Duration = Duration::from_secs(7);
/// No disk is slow for longer.
const LONGEST_DELAY: Duration = Duration::from_secs(3);
const NO_SPACE: i32 = 28;
const IO_ERROR: i32 = 5;

pub struct Machine {
    has_file: bool,
    disk: Disk,
    clock: MachineClock,
    trouble: Arc<Mutex<Trouble>>,
    /// Somebody sets the wall clock in half of the worlds, and restores older files in the others: an older file and a wrong clock
    /// together have lower numbers, and nothing is promised of them.
    sets_the_clock: bool,
}

/// What is the matter with the disk.
struct Trouble {
    random: StdRng,
    /// How probable it is that an access finds no room,
    full: f64,
    /// and that it fails.
    broken: f64,
    is_slow: bool,
    /// How many accesses are left until the process is killed.
    dies_after: Option<u32>,
    /// How long the disk has taken that nobody has waited for yet.
    took: Duration,
    failures: u64,
}

/// Clocks that begin anew with each boot, and that somebody sets.
#[derive(Clone)]
struct MachineClock(Arc<Mutex<Times>>);

#[derive(Default)]
struct Times {
    booted: Duration,
    boots: u64,
    /// How much too late the wall clock is, and how much too early.
    ahead: Duration,
    behind: Duration,
    was_set: bool,
    /// Since when the power is away, for as long as no process has started after that.
    cut_us: Option<u64>,
}

/// A gateway's own part of the machine.
pub struct Process {
    disk: Disk,
    number: u32,
}

impl Process {
    pub fn kill(&self) {
        self.disk.kill(self.number);
    }
}

impl Clock for MachineClock {
    fn boot(&self) -> Duration {
        SystemClock.boot() - self.0.lock().unwrap().booted
    }

    fn wall(&self) -> Duration {
        let times = self.0.lock().unwrap();
        SystemClock.wall() + times.ahead - times.behind
    }

    fn boot_id(&self) -> String {
        format!("boot {}", self.0.lock().unwrap().boots)
    }
}

impl MachineClock {
    fn reboot(&self) {
        let mut times = self.0.lock().unwrap();
        times.cut_us = Some(now_us());
        times.booted = SystemClock.boot() - START_AFTER_BOOT;
        times.boots += 1;
    }

    fn set(&self, ahead: Duration, behind: Duration) {
        let mut times = self.0.lock().unwrap();
        (times.ahead, times.behind, times.was_set) = (ahead, behind, true);
    }

    fn is_back(&self) {
        self.0.lock().unwrap().cut_us = None;
    }

    /// Since when what was written may be read by a wrong wall clock: it counts over a reboot, so leases end too early or late.
    fn is_misread_since(&self) -> Option<u64> {
        let times = self.0.lock().unwrap();
        times.cut_us.filter(|_| times.was_set)
    }
}

impl Trouble {
    fn outcome(&mut self, access: Access) -> Outcome {
        if access == Access::Sync {
            let most_ms = if self.is_slow { 1_000 } else { 2 };
            self.took += Duration::from_millis(self.random.random_range(0..=most_ms));
        }
        match &mut self.dies_after {
            Some(0) => {
                self.dies_after = None;
                return Outcome::Killed;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let (finds_no_room, fails) = match access {
            // What is there already has its room, and a file system that gives room late finds none at a sync.
            Access::Read => (0.0, self.broken / 8.0),
            Access::Write => (self.full / 8.0, self.broken / 8.0),
            Access::Resize => (self.full, self.broken),
            Access::Sync => (self.full / 2.0, self.broken),
        };
        let drawn = self.random.random_range(0.0..1.0);
        if drawn >= finds_no_room + fails {
            return Outcome::Done;
        }
        self.failures += 1;
        Outcome::Failed(if drawn < finds_no_room { NO_SPACE } else { IO_ERROR })
    }
}

impl Machine {
    pub fn new(store: Store, mut random: StdRng, lie: Option<Lie>) -> Self {
        let disk = Disk::new(random.random());
        let sets_the_clock = random.random_bool(0.5);
        let trouble = Trouble {
            random,
            full: 0.0,
            broken: 0.0,
            is_slow: false,
            dies_after: None,
            took: Duration::ZERO,
            failures: 0,
        };
        let trouble = Arc::new(Mutex::new(trouble));
        let its = trouble.clone();
        disk.decide_by(Box::new(move |access| its.lock().unwrap().outcome(access)));
        if let Some(lie) = lie {
            disk.lie(lie);
        }
        let clock = MachineClock(Arc::default());
        Self { has_file: store == Store::File, disk, clock, trouble, sets_the_clock }
    }

    /// Which faults there are.
    pub fn faults(&self) -> impl Iterator<Item = &'static str> {
        let number = if self.has_file { FAULTS.len() } else { OF_MEMORY };
        let is_left_out = if self.sets_the_clock { "older file restored" } else { "wall clock set" };
        FAULTS.into_iter().take(number).filter(move |fault| *fault != is_left_out)
    }

    /// Starts a process. Nothing if the file is not free, or if the disk fails. Without a reason it must start.
    pub fn start(&self) -> Result<Option<(EmbeddedStore, Process, Running)>, String> {
        let Some(file) = self.disk.open() else { return Ok(None) };
        let process = Process { disk: self.disk.clone(), number: file.process() };
        let failures = self.trouble().failures;
        let settings = EmbeddedSettings { mark_ttl: Store::File.mark_ttl(), ..EmbeddedSettings::default() };
        let clock = Arc::new(self.clock.clone());
        // What has no file has at least its address for itself.
        let (opened, _address) = if self.has_file {
            let opened = EmbeddedStore::without_thread(file, settings, clock);
            (opened.map(|(store, writer)| (store, Some(writer))), None)
        } else {
            (Ok((EmbeddedStore::in_memory_without_thread(settings, clock), None)), Some(file))
        };
        match opened {
            Ok((store, writer)) => {
                self.clock.is_back();
                let (disk, trouble, number) = (self.disk.clone(), self.trouble.clone(), process.number);
                Ok(Some((store, process, Running { writer, disk, trouble, number, _address })))
            }
            Err(_) if self.trouble().failures > failures || !self.disk.is_alive(process.number) => Ok(None),
            Err(error) => Err(format!("M1: the gateway does not start: {error}")),
        }
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap()
    }
}

/// A store's writer, where it has one, and the disk that it waits for.
pub struct Running {
    writer: Option<Writer>,
    disk: Disk,
    trouble: Arc<Mutex<Trouble>>,
    number: u32,
    _address: Option<sim::OpenFile>,
}

impl Running {
    /// Works until the store stops, or until its process is gone.
    pub async fn run(self, gone: CancellationToken) {
        let (disk, number) = (self.disk.clone(), self.number);
        tokio::select! {
            biased;
            () = gone.cancelled() => {}
            () = self.work() => {}
        }
        disk.kill(number);
        gone.cancel();
    }

    async fn work(self) {
        let Self { writer: Some(mut writer), disk, trouble, number, _address } = self else {
            return std::future::pending().await;
        };
        loop {
            sleep(TURN).await;
            let batch = writer.commit_queued();
            let took = std::mem::take(&mut trouble.lock().unwrap().took).min(LONGEST_DELAY);
            if !took.is_zero() {
                sleep(took).await;
            }
            if !disk.is_alive(number) {
                return;
            }
            let Some(next) = writer.answer(batch) else { return };
            writer = next;
        }
    }
}

/// Has one fault happen, and lets it pass.
pub async fn happens(world: Arc<World>, fault: &'static str, mut random: StdRng, number: u64) {
    let Some(machine) = &world.machine else { panic!("it has servers") };
    world.book.count(fault);
    let start_us = now_us();
    match fault {
        "gateway killed" => {
            machine.dies_soon(&mut random).await;
            machine.ends(&world, start_us);
            pause(&mut random, 10..3_000).await;
            replace(&world, 0, number).await;
        }
        "gateway drained" => {
            // Whoever has two of them run at once finds that the file is not free.
            let successor = world.start_gateway(number);
            let gateway = world.gateway(0);
            if let Some(successor) = successor {
                world.replace_gateway(0, successor);
            }
            gateway.drain().await;
            world.book.killed_since(start_us);
            if !machine.has_file {
                world.book.lost_since(start_us);
            }
            replace(&world, 0, number).await;
        }
        "power cut" => {
            machine.dies_soon(&mut random).await;
            machine.ends(&world, start_us);
            machine.loses_power(&world);
            for _ in 0..random.random_range(0..3) {
                // Also while it starts.
                machine.trouble().dies_after = Some(random.random_range(0..200));
                let starts = world.start_gateway(number);
                if let Some(gateway) = starts {
                    gateway.kill();
                }
                machine.loses_power(&world);
            }
            pause(&mut random, 10..3_000).await;
            replace(&world, 0, number).await;
        }
        "older file restored" => {
            let copy = machine.disk.copy();
            pause(&mut random, 100..8_000).await;
            machine.ends(&world, now_us());
            machine.disk.restore(copy);
            world.book.came_back();
            replace(&world, 0, number).await;
        }
        "wall clock set" => {
            let far = Duration::from_millis(random.random_range(0..3_600_000));
            match random.random_bool(0.5) {
                true => machine.clock.set(far, Duration::ZERO),
                false => machine.clock.set(Duration::ZERO, far),
            }
            machine.is_misread(&world);
            pause(&mut random, 50..6_000).await;
            if random.random_bool(0.5) {
                machine.clock.set(Duration::ZERO, Duration::ZERO);
            }
        }
        of_the_disk => {
            let probability = [0.05, 0.3, 1.0][random.random_range(0..3)];
            let set = |probability, is_slow| {
                let mut trouble = machine.trouble();
                match of_the_disk {
                    "disk full" => trouble.full = probability,
                    "disk broken" => trouble.broken = probability / 2.0,
                    "disk slow" => trouble.is_slow = is_slow,
                    other => panic!("there is no fault {other}"),
                }
            };
            machine.disk.forget_failed_writes(random.random_bool(0.5));
            set(probability, true);
            pause(&mut random, 50..3_000).await;
            set(0.0, false);
        }
    }
}

/// After a storm nothing is wrong any more: the store must work without a restart.
pub async fn works_again(world: &World) {
    let give_up = sleep(LONGEST_RECOVERY);
    let works = async {
        while let Err(error) = world.gateway(0).service.check().await {
            world.book.trace(|| format!("not yet: {error}"));
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = works => {}
        () = give_up => world.book.violated("M2: the disk works again, and the store does not".to_owned()),
    }
}

impl Machine {
    /// Has the process die in the middle of what it does, unless it does nothing.
    async fn dies_soon(&self, random: &mut StdRng) {
        self.trouble().dies_after = Some(random.random_range(0..60));
        pause(random, 0..100).await;
        self.trouble().dies_after = None;
    }

    fn loses_power(&self, world: &World) {
        self.trouble().dies_after = None;
        self.disk.cut_power();
        self.clock.reboot();
        self.is_misread(world);
    }

    /// Notes that leases are lost, where that is so.
    fn is_misread(&self, world: &World) {
        if let Some(since_us) = self.clock.is_misread_since() {
            world.book.lost_since(since_us);
        }
    }

    /// The process that runs ends here at the latest.
    fn ends(&self, world: &World, start_us: u64) {
        world.gateway(0).kill();
        world.book.trace(|| "the process is gone".to_owned());
        world.book.killed_since(start_us);
        if !self.has_file {
            world.book.lost_since(start_us);
        }
    }
}
