//! A machine with a disk behind a cache of pages, whose syncs fail when a test says so.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore, OpenError};
use sim::{Access, Disk, Outcome};

use super::super::clock::TestClock;

const IO_ERROR: i32 = 5;

#[derive(Clone)]
pub(super) struct Machine {
    disk: Disk,
    syncs: Arc<Mutex<Syncs>>,
    clock: TestClock,
}

#[derive(Default)]
struct Syncs {
    /// How many there were.
    count: usize,
    /// Which of them fail.
    failing: Range<usize>,
}

impl Syncs {
    fn next(&mut self) -> Outcome {
        let fails = self.failing.contains(&self.count);
        self.count += 1;
        if fails { Outcome::Failed(IO_ERROR) } else { Outcome::Done }
    }
}

impl Machine {
    pub(super) fn new(forgets: bool, seed: u64) -> Self {
        let (disk, syncs) = (Disk::new(seed), Arc::new(Mutex::new(Syncs::default())));
        disk.forget_failed_writes(forgets);
        let its = syncs.clone();
        disk.decide_by(Box::new(move |access| match access {
            Access::Sync => its.lock().unwrap().next(),
            _ => Outcome::Done,
        }));
        Self { disk, syncs, clock: TestClock::new() }
    }

    /// Has some of the syncs fail that are still to come.
    pub(super) fn fail(&self, failing: Range<usize>) {
        *self.syncs.lock().unwrap() = Syncs { count: 0, failing };
    }

    /// Starts a process on the file.
    pub(super) fn start(&self, settings: EmbeddedSettings) -> Result<EmbeddedStore, OpenError> {
        let file = self.disk.open().expect("another process has the file");
        EmbeddedStore::open_on(file, settings, Arc::new(self.clock.clone()))
    }

    /// Ends all processes at once, whatever they do. What they wrote stays in the cache.
    pub(super) fn kill(&self) {
        self.disk.kill_all();
    }

    /// Cuts the power: of what was not synced, some has reached the disk.
    pub(super) fn cut_power(&self) {
        self.disk.cut_power();
        self.clock.reboot();
    }

    /// Lets time pass.
    pub(super) fn sleep(&self, time: Duration) {
        self.clock.sleep(time);
    }

    pub(super) fn syncs(&self) -> usize {
        self.syncs.lock().unwrap().count
    }

    /// Whether no further sync fails.
    pub(super) fn is_sound(&self) -> bool {
        let syncs = self.syncs.lock().unwrap();
        syncs.count >= syncs.failing.end
    }
}
