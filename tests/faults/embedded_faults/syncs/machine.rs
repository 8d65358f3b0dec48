//! A machine with a disk behind a cache of pages, whose syncs fail when a test says so.
//!
//! As with real ones, pages whose write has failed count as written from then on: they are lost with the cache, and some
//! file systems forget them at once.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore, OpenError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::StorageBackend;

use super::super::clock::TestClock;

const PAGE_BYTES: usize = 4_096;

#[derive(Clone, Debug)]
pub(super) struct Machine {
    parts: Arc<Mutex<Parts>>,
    clock: TestClock,
}

#[derive(Debug)]
struct Parts {
    /// What is read and written.
    cache: Vec<u8>,
    /// What a power cut leaves.
    disk: Vec<u8>,
    /// The pages that the next sync writes to the disk.
    dirty: BTreeSet<usize>,
    /// Only the last process has the file open.
    process: u32,
    /// How many syncs there were.
    syncs: usize,
    /// Which of them fail.
    failing: Range<usize>,
    /// Whether a page whose write has failed is read from the disk again.
    forgets: bool,
    choices: StdRng,
}

/// The file, as one process has it open.
#[derive(Debug)]
struct Storage {
    parts: Arc<Mutex<Parts>>,
    process: u32,
}

impl Machine {
    pub(super) fn new(forgets: bool, seed: u64) -> Self {
        let choices = StdRng::seed_from_u64(seed);
        let (cache, disk, dirty) = (Vec::new(), Vec::new(), BTreeSet::new());
        let parts = Parts { cache, disk, dirty, process: 0, syncs: 0, failing: 0..0, forgets, choices };
        Self { parts: Arc::new(Mutex::new(parts)), clock: TestClock::new() }
    }

    /// Has some of the syncs fail that are still to come.
    pub(super) fn fail(&self, failing: Range<usize>) {
        let mut parts = self.parts();
        (parts.syncs, parts.failing) = (0, failing);
    }

    /// Starts a process on the file.
    pub(super) fn start(&self, settings: EmbeddedSettings) -> Result<EmbeddedStore, OpenError> {
        let process = self.parts().process;
        let storage = Storage { parts: self.parts.clone(), process };
        EmbeddedStore::open_on(storage, settings, Arc::new(self.clock.clone()))
    }

    /// Ends the process at once, whatever it does. What it wrote stays in the cache.
    pub(super) fn kill(&self) {
        self.parts().process += 1;
    }

    /// Cuts the power: of what was not synced, some has reached the disk.
    pub(super) fn cut_power(&self) {
        let mut parts = self.parts();
        parts.process += 1;
        parts.write_some();
        parts.cache = parts.disk.clone();
        parts.dirty.clear();
        drop(parts);
        self.clock.reboot();
    }

    pub(super) fn syncs(&self) -> usize {
        self.parts().syncs
    }

    /// Whether no further sync fails.
    pub(super) fn is_sound(&self) -> bool {
        let parts = self.parts();
        parts.syncs >= parts.failing.end
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap()
    }
}

impl Parts {
    fn page(&self, page: usize) -> Range<usize> {
        page * PAGE_BYTES..self.cache.len().min((page + 1) * PAGE_BYTES)
    }

    fn write_to_disk(&mut self, page: usize) {
        let range = self.page(page);
        if self.disk.len() < range.end {
            self.disk.resize(range.end, 0);
        }
        self.disk[range.clone()].copy_from_slice(&self.cache[range]);
    }

    /// Writes some of the dirty pages, in any order.
    fn write_some(&mut self) {
        let share = [0.0, 0.1, 0.5, 0.9][self.choices.random_range(0..4)];
        if self.choices.random_bool(share) {
            let length = self.cache.len();
            self.disk.resize(length, 0);
        }
        for page in self.dirty.clone() {
            if self.choices.random_bool(share) {
                self.write_to_disk(page);
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let fails = self.failing.contains(&self.syncs);
        self.syncs += 1;
        if fails {
            self.write_some();
            for page in std::mem::take(&mut self.dirty) {
                if self.forgets {
                    let range = self.page(page);
                    let known = self.disk.len().clamp(range.start, range.end);
                    self.cache[range.start..known].copy_from_slice(&self.disk[range.start..known]);
                    self.cache[known..range.end].fill(0);
                }
            }
            return Err(io::Error::from_raw_os_error(5));
        }
        let length = self.cache.len();
        self.disk.resize(length, 0);
        for page in std::mem::take(&mut self.dirty) {
            self.write_to_disk(page);
        }
        Ok(())
    }
}

impl Storage {
    fn parts(&self) -> io::Result<MutexGuard<'_, Parts>> {
        let parts = self.parts.lock().unwrap();
        if parts.process == self.process { Ok(parts) } else { Err(io::Error::other("killed")) }
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.parts()?.cache.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let parts = self.parts()?;
        let found = parts.cache.get(offset..offset + out.len()).ok_or(ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut parts = self.parts()?;
        parts.cache.resize(usize::try_from(len).unwrap(), 0);
        let pages = parts.cache.len().div_ceil(PAGE_BYTES);
        parts.dirty.retain(|page| *page < pages);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.parts()?.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut parts = self.parts()?;
        let end = offset + data.len();
        if parts.cache.len() < end {
            parts.cache.resize(end, 0);
        }
        parts.cache[offset..end].copy_from_slice(data);
        parts.dirty.extend(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        Ok(())
    }
}
