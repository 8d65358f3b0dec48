//! A disk with one file on it, behind a cache of pages, which fails when a test says so.
//!
//! As with real ones, pages whose write has failed count as written from then on: they are lost with the cache, and some file
//! systems forget them at once.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::StorageBackend;

const PAGE_BYTES: usize = 4_096;
/// What a disk writes at once. Of a page, a power cut may leave some of these.
const SECTOR_BYTES: usize = 512;

/// What a process asks of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// To make it longer or shorter.
    Resize,
    Sync,
}

/// What becomes of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It fails with this number of the system.
    Failed(i32),
    /// The process is killed before it.
    Killed,
}

/// Decides what becomes of each access.
pub type Outcomes = Box<dyn FnMut(Access) -> Outcome + Send>;

/// What a disk says although it is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A sync leaves everything in the cache.
    NoSync,
    /// A sync leaves one page in the cache for good.
    PageLeftOut,
    /// A sync that failed is told to have worked.
    FailureHidden,
    /// A write that failed is told to have worked.
    WriteHidden,
    /// Several processes have the file at once.
    NoLock,
}

/// A disk. Clones are the same disk.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

struct State {
    /// What is read and written.
    cache: Vec<u8>,
    /// What a power cut leaves.
    disk: Vec<u8>,
    /// The pages that the next sync writes to the disk.
    dirty: BTreeSet<usize>,
    /// The processes that had the file open so far.
    processes: u32,
    /// Those that live.
    alive: BTreeSet<u32>,
    outcomes: Outcomes,
    /// Whether a page whose write has failed is read from the disk again.
    forgets: bool,
    lie: Option<Lie>,
    choices: StdRng,
}

/// The file, as one process has it open.
pub struct OpenFile {
    disk: Disk,
    process: u32,
}

impl Disk {
    /// An empty file, and nothing fails.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            cache: Vec::new(),
            disk: Vec::new(),
            dirty: BTreeSet::new(),
            processes: 0,
            alive: BTreeSet::new(),
            outcomes: Box::new(|_| Outcome::Done),
            forgets: false,
            lie: None,
            choices: StdRng::seed_from_u64(seed),
        })))
    }

    /// From now on this decides what becomes of each access.
    pub fn decide_by(&self, outcomes: Outcomes) {
        self.0.lock().outcomes = outcomes;
    }

    /// Says whether a page whose write has failed is read from the disk again.
    pub fn forget_failed_writes(&self, forgets: bool) {
        self.0.lock().forgets = forgets;
    }

    /// From now on it says what is not so.
    pub fn lie(&self, lie: Lie) {
        self.0.lock().lie = Some(lie);
    }

    /// Opens the file for a process. Nothing while another one has it.
    pub fn open(&self) -> Option<OpenFile> {
        let mut state = self.0.lock();
        if !state.alive.is_empty() && state.lie != Some(Lie::NoLock) {
            return None;
        }
        state.processes += 1;
        let process = state.processes;
        state.alive.insert(process);
        Some(OpenFile { disk: self.clone(), process })
    }

    /// Ends this process at once, whatever it does. What it wrote stays in the cache.
    pub fn kill(&self, process: u32) {
        self.0.lock().alive.remove(&process);
    }

    /// The same for every process.
    pub fn kill_all(&self) {
        self.0.lock().alive.clear();
    }

    /// Whether this process has the file open.
    pub fn is_alive(&self, process: u32) -> bool {
        self.0.lock().alive.contains(&process)
    }

    /// Cuts the power: of what was not synced, some has reached the disk.
    pub fn cut_power(&self) {
        let mut state = self.0.lock();
        state.alive.clear();
        state.write_some();
        state.cache = state.disk.clone();
        state.dirty.clear();
    }

    /// The file as it is now.
    pub fn copy(&self) -> Vec<u8> {
        self.0.lock().cache.clone()
    }

    /// Puts such a copy in the place of the file.
    pub fn restore(&self, copy: Vec<u8>) {
        let mut state = self.0.lock();
        (state.disk, state.cache) = (copy.clone(), copy);
        state.dirty.clear();
    }
}

impl State {
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

    /// Writes some of the sectors of a page. One that changes may end as neither what it was nor what it was to be, but for the
    /// first page, at which the file begins to be read: its first sector is written as a whole.
    fn tear(&mut self, page: usize) {
        let range = self.page(page);
        if self.disk.len() < range.end {
            self.disk.resize(range.end, 0);
        }
        for start in range.clone().step_by(SECTOR_BYTES) {
            let sector = start..range.end.min(start + SECTOR_BYTES);
            if self.disk[sector.clone()] == self.cache[sector.clone()] {
                continue;
            }
            match self.choices.random_range(0..5) {
                0 | 1 => {}
                2 if page > 0 => self.choices.fill(&mut self.disk[sector]),
                _ => self.disk[sector.clone()].copy_from_slice(&self.cache[sector]),
            }
        }
    }

    /// Writes some of the dirty pages, in any order.
    fn write_some(&mut self) {
        let share = [0.0, 0.1, 0.5, 0.9, 1.0][self.choices.random_range(0..5)];
        if self.choices.random_bool(share) {
            let length = self.cache.len();
            self.disk.resize(length, 0);
        }
        for page in self.dirty.clone() {
            if !self.choices.random_bool(share) {
                continue;
            }
            match self.choices.random_bool(0.2) {
                true => self.tear(page),
                false => self.write_to_disk(page),
            }
        }
    }

    fn sync(&mut self, outcome: Outcome) -> io::Result<()> {
        if matches!(outcome, Outcome::Failed(_)) {
            self.write_some();
            for page in std::mem::take(&mut self.dirty) {
                if self.forgets {
                    let range = self.page(page);
                    let known = self.disk.len().clamp(range.start, range.end);
                    self.cache[range.start..known].copy_from_slice(&self.disk[range.start..known]);
                    self.cache[known..range.end].fill(0);
                }
            }
            return if self.lie == Some(Lie::FailureHidden) { Ok(()) } else { outcome.told() };
        }
        if outcome == Outcome::Killed || self.lie == Some(Lie::NoSync) {
            return outcome.told();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        if self.lie == Some(Lie::PageLeftOut) && dirty.len() > 1 {
            let left_out = self.choices.random_range(0..dirty.len());
            let mut at = 0..;
            dirty.retain(|_| at.next() != Some(left_out));
        }
        let length = self.cache.len();
        self.disk.resize(length, 0);
        for page in dirty {
            self.write_to_disk(page);
        }
        Ok(())
    }

    fn write(&mut self, outcome: Outcome, offset: usize, data: &[u8]) -> io::Result<()> {
        // What fails may have begun.
        let written = match outcome {
            Outcome::Done => data.len(),
            _ => self.choices.random_range(0..=data.len()),
        };
        let end = offset + written;
        if self.cache.len() < end {
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(&data[..written]);
        self.dirty.extend(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        if self.lie == Some(Lie::WriteHidden) { Ok(()) } else { outcome.told() }
    }
}

impl Outcome {
    fn told(self) -> io::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Failed(code) => Err(io::Error::from_raw_os_error(code)),
            Self::Killed => Err(killed()),
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("killed")
}

impl OpenFile {
    /// Which process it is that has it open.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Does something to the file, if its process lives.
    fn access<T>(
        &self,
        access: Access,
        act: impl FnOnce(&mut State, Outcome) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.disk.0.lock();
        if !state.alive.contains(&self.process) {
            return Err(killed());
        }
        let outcome = (state.outcomes)(access);
        if outcome == Outcome::Killed {
            state.alive.remove(&self.process);
        }
        act(&mut state, outcome)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.disk.kill(self.process);
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file of process {}", self.process)
    }
}

impl StorageBackend for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().cache.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.access(Access::Read, |state, outcome| {
            outcome.told()?;
            let offset = offset as usize;
            let found = state.cache.get(offset..offset + out.len()).ok_or(ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(found);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.access(Access::Resize, |state, outcome| {
            outcome.told()?;
            state.cache.resize(len as usize, 0);
            let pages = state.cache.len().div_ceil(PAGE_BYTES);
            state.dirty.retain(|page| *page < pages);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.access(Access::Sync, State::sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.access(Access::Write, |state, outcome| state.write(outcome, offset as usize, data))
    }
}
