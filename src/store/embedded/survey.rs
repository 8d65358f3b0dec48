//! A look at an embedded store, for operators.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use parking_lot::Mutex;
use redb::{Builder, DatabaseError, StorageBackend};
use rustix::fs::{Access, access, statfs, statvfs};
use rustix::process::geteuid;

use super::disk::{OTHERS, PRIVATE, Scratch, lock, place_of};
use super::file::{AnyError, Head, PAGE_CACHE_BYTES, directory_of, open_error, unfinished};
use super::life::judge_clock;
use super::{OpenError, UnusableFile, work_rows};
use crate::clock::SystemClock;
use crate::store::diagnostics::{Block, Diagnostics, PromiseStatus, promises};

const IN_USE: &str = "in use by another process";
/// What is said of a file that is [`LeftAs::OpenWithoutNewest`].
const WITHOUT_NEWEST: &str = "the newest commit in the file cannot be read, so the one before it is used. A crash, a power cut or a full disk while \
     it was written does this, and then nothing that was answered is lost. If the disk has damaged it, locks and results of the \
     last moments may be missing: stop the gateway for the longest ttl, or stop the holders. Work may be done again";

/// What is said of a file that lies in memory.
const IN_MEMORY: &str = "the file lies in memory (tmpfs or ramfs) and not on a disk: once that is unmounted, at the latest when the machine \
     restarts, all locks are free, and work may be done again";
/// Those file systems, by what Linux calls them in `statfs`.
const THEIR_MAGIC: [u32; 2] = [0x0102_1994, 0x8584_58f6];
/// A new file takes less, and so does what a start writes, unless the machine has restarted.
const ROOM_BYTES: u64 = 64 * 1024;
/// Said where it may be too little then: the rows of all records are written anew.
const NO_ROOM_AFTER_A_RESTART: &str = "the disk may have too little room for a start after the machine has restarted: such a start writes \
     all records anew, beside those in the file";
/// In these the room of a file is counted, whatever the blocks of its disk are.
const STAT_BLOCK_BYTES: u64 = 512;

/// Of what makes the database panic.
const UNREADABLE: &str = "it cannot be read";
/// Of a byte that the database does not check.
const WRONG_FLAGS: &str = "its flags are not as they were written";
/// Where the database has its flags,
const FLAGS_AT: usize = 9;
/// and in each of its two commits the number of that commit.
const COMMITS_AT: [usize; 2] = [168, 296];
/// The flag by which the second of both is used and not the first,
const SECOND_COMMIT: u8 = 1;
/// the one by which that commit is used as it is, or not at all,
const NO_OTHER_COMMIT: u8 = 4;
/// and all that there are.
const ALL_FLAGS: u8 = 7;

/// Looks at the store in the file at `path`. It makes no file, and does not disturb a process that has it open.
pub fn survey(path: &Path) -> Diagnostics {
    let mut rows = vec![("store", format!("embedded, in the file {}", path.display()))];
    let mut survey = Diagnostics::default();
    let place = if path.exists() { path } else { directory_of(path) };
    let is_in_memory = is_in_memory(place);
    if is_in_memory {
        survey.warnings.push(IN_MEMORY.to_owned());
    }
    let taken = path.metadata().map_or(0, |about| about.blocks() * STAT_BLOCK_BYTES);
    match free_bytes(place) {
        Some(..ROOM_BYTES) => {
            survey.unready.push("the disk is full: a start, or the next change, may find no room".to_owned());
        }
        Some(free) if free < taken + ROOM_BYTES => survey.warnings.push(NO_ROOM_AFTER_A_RESTART.to_owned()),
        _ => {}
    }
    match look(path) {
        Ok((state, mode, left)) => {
            if left == Some(LeftAs::OpenWithoutNewest) {
                survey.warnings.push(WITHOUT_NEWEST.to_owned());
            }
            if mode & OTHERS != 0 {
                survey.warnings.push(format!(
                    "other users may open the file (mode {:o}); the next start makes it {PRIVATE:o}",
                    mode & 0o777
                ));
            }
            if state.ends_with(IN_USE) {
                survey.warnings.push(
                    "another process has the file open, perhaps your gateway; no second gateway can use it"
                        .to_owned(),
                );
            }
            rows.push(("file", state));
            if let Some((records, bytes)) = work_rows::count(path) {
                rows.push(("records", format!("{records}, with {bytes} bytes of results")));
            }
        }
        Err(reason) => survey.refusals.push(reason),
    }
    let mut statuses = [const { PromiseStatus::Holds }; 5];
    let persistence = if is_in_memory {
        statuses[2] = PromiseStatus::unless(&["the machine restarts (it forgets all locks)"]);
        "none over a restart of the machine: the file lies in memory"
    } else {
        "each grant is on disk before it is answered"
    };
    rows.push(("persistence", persistence.to_owned()));
    rows.push(("gateways", "one at a time".to_owned()));
    survey.blocks.push(Block(rows));
    if survey.refusals.is_empty() {
        survey.promises = promises(statuses);
    }
    survey
}

/// What a store in memory is.
pub fn survey_memory() -> Diagnostics {
    let rows = vec![
        ("store", "embedded, in memory".to_owned()),
        ("persistence", "none".to_owned()),
        ("gateways", "one".to_owned()),
    ];
    let exclusion = PromiseStatus::unless(&["the process ends (all locks are forgotten)"]);
    let holds = || PromiseStatus::Holds;
    Diagnostics {
        blocks: vec![Block(rows)],
        promises: promises([holds(), holds(), exclusion, holds(), holds()]),
        warnings: vec!["all locks are lost when the process ends".to_owned()],
        ..Diagnostics::default()
    }
}

/// Looks at the file at `path` before it is opened, and says in the log if not all of it is there.
pub(super) fn look_before_opening(path: &Path) -> Result<(), OpenError> {
    if left_as(path)? == LeftAs::OpenWithoutNewest {
        tracing::warn!(file = %path.display(), "{WITHOUT_NEWEST}");
    }
    Ok(())
}

/// Of a file that is open: a start that ends says one line only.
pub(super) fn warn_if_in_memory(path: &Path) {
    if is_in_memory(path) {
        tracing::warn!(file = %path.display(), "{IN_MEMORY}");
    }
}

fn is_in_memory(place: &Path) -> bool {
    statfs(place).is_ok_and(|about| THEIR_MAGIC.contains(&(about.f_type as u32)))
}

/// Without the blocks that are kept for root: the gateway may be another user than the one who asks. Some file systems do not say
/// how many they have.
fn free_bytes(place: &Path) -> Option<u64> {
    let about = statvfs(place).ok().filter(|about| about.f_blocks > 0)?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

/// How the last process left a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LeftAs {
    Closed,
    /// It was not closed, and all of it is there.
    Open,
    /// It was not closed, and the commit before the newest is what can be read.
    OpenWithoutNewest,
}

/// How the last process left the file at `path`. A file that is damaged, or that this program cannot read, is refused.
///
/// Nothing is written to it, which opening a database does: a refused file must stay as its own version left it. A process that
/// wants to open it meanwhile is refused.
fn left_as(path: &Path) -> Result<LeftAs, OpenError> {
    // Of some damages the database makes a panic.
    let open = || without_a_word(|| Builder::new().open_read_only(path));
    // As long as this is open, no process can open it for writing.
    let closed = match open() {
        Some(Ok(database)) => Some(database),
        Some(Err(DatabaseError::RepairAborted)) => None,
        Some(Err(error)) => return Err(open_error(path, error)),
        None => return Err(damaged(path, &UNREADABLE)),
    };
    let read = |change: fn(u8) -> u8| {
        without_a_word(|| head_of_copy(copy_with_flags(path, change)?))
            .unwrap_or_else(|| Err(UNREADABLE.into()))
    };
    let as_it_is: fn(u8) -> u8 = |flags| flags;
    let (mut left, mut head) = match &closed {
        Some(_) => (LeftAs::Closed, read(as_it_is)),
        None => (LeftAs::Open, read(|flags| flags | NO_OTHER_COMMIT)),
    };
    if closed.is_none() && head.is_err() {
        (left, head) = (LeftAs::OpenWithoutNewest, read(as_it_is));
    } else if let Ok(Head { batch, .. }) = head
        && passes_over_newer(path).unwrap_or(false)
        && read(|flags| (flags ^ SECOND_COMMIT) | NO_OTHER_COMMIT).is_ok_and(|other| other.batch > batch)
    {
        head = Err(WRONG_FLAGS.into());
    }
    // It may have changed while it was read.
    if left == LeftAs::OpenWithoutNewest || head.is_err() {
        match open() {
            Some(Err(error @ DatabaseError::DatabaseAlreadyOpen)) => return Err(open_error(path, error)),
            Some(Ok(_)) if closed.is_none() => return left_as(path),
            _ => {}
        }
    }
    match head {
        Ok(head) => head.judge(path).map(|_| left),
        Err(error) => Err(damaged(path, &*error)),
    }
}

/// A copy with changed flags.
fn copy_with_flags(path: &Path, change: fn(u8) -> u8) -> io::Result<Scratch> {
    let (copy, mut flags) = (Scratch::of(path)?, [0]);
    copy.read(FLAGS_AT as u64, &mut flags)?;
    match flags[0] & !ALL_FLAGS {
        0 => copy.write(FLAGS_AT as u64, &[change(flags[0])])?,
        _ => return Err(io::Error::other(WRONG_FLAGS)),
    }
    Ok(copy)
}

/// Whether the flags have the database use the older of its two commits, whatever the newer one is. The flags have no checksum.
/// The database leaves them so only where it was killed while it repaired a file or closed it: then both have the same batch.
fn passes_over_newer(path: &Path) -> io::Result<bool> {
    let mut head = [0; COMMITS_AT[1] + size_of::<u64>()];
    File::open(path)?.read_exact_at(&mut head, 0)?;
    let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let ([first, second], flags) = (COMMITS_AT.map(number), head[FLAGS_AT]);
    let is_older = if flags & SECOND_COMMIT == 0 { first < second } else { second < first };
    Ok(is_older && flags & NO_OTHER_COMMIT != 0)
}

/// The head of the database in a copy as it is once it is repaired, if all of it is as it was written.
fn head_of_copy(copy: Scratch) -> Result<Head, AnyError> {
    let mut builder = Builder::new();
    let mut database = builder.set_cache_size(PAGE_CACHE_BYTES).create_with_backend(copy)?;
    match database.check_integrity()? {
        true => Ok(Head::of(&database).unwrap_or_default()),
        // What it would be repaired to lacks what was told.
        false => Err("parts of it are not as they were written".into()),
    }
}

/// What this returns, or nothing if it panics. No line tells of that.
fn without_a_word<T>(read: impl FnOnce() -> T) -> Option<T> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    panic::set_hook(hook);
    read.ok()
}

fn damaged(path: &Path, error: &dyn Display) -> OpenError {
    OpenError::File(path.into(), UnusableFile::Damaged(error.to_string()))
}

/// What stands there with which mode, and how it was left if that can be seen; or why it cannot be used.
fn look(path: &Path) -> Result<(String, u32, Option<LeftAs>), String> {
    judge_clock(&SystemClock)?;
    let cannot_be_opened = |error: io::Error| format!("{} cannot be opened: {error}", path.display());
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        // A link to nothing is no place for a new file.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
            return will_be_made(path).map(|state| (state, PRIVATE, None));
        }
        Err(error) => return Err(cannot_be_opened(error)),
    };
    lock(&file).map_err(cannot_be_opened)?;
    let about = path.metadata().map_err(cannot_be_opened)?;
    place_of(&about).map_err(cannot_be_opened)?;
    // To open a pipe for reading alone would wait for one that writes.
    if !about.is_file() {
        return Err(OpenError::File(path.into(), UnusableFile::NotAStore).to_string());
    }
    let bytes = about.len();
    // It is read under another lock.
    drop(file);
    let (state, left) = match left_as(path) {
        Ok(LeftAs::Closed) => (format!("{bytes} bytes, not in use"), Some(LeftAs::Closed)),
        Ok(left) => {
            let state =
                format!("{bytes} bytes, not in use; it was not closed, and the next start repairs it");
            (state, Some(left))
        }
        Err(OpenError::File(_, UnusableFile::InUse)) => (format!("{bytes} bytes, {IN_USE}"), None),
        Err(error) => return Err(error.to_string()),
    };
    Ok((state, about.mode(), left))
}

/// The start makes a file of another name first, which an earlier one may have left.
fn will_be_made(path: &Path) -> Result<String, String> {
    let unfinished = unfinished(path);
    match unfinished.symlink_metadata() {
        Ok(about) if about.is_file() && about.uid() == geteuid().as_raw() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(_) => return Err(format!("{} is in the way", unfinished.display())),
        Err(error) => return Err(format!("{} cannot be made: {error}", path.display())),
    }
    match access(directory_of(&unfinished), Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok("there is none yet; a gateway makes it".to_owned()),
        Err(error) => Err(format!("{} cannot be made: {}", unfinished.display(), io::Error::from(error))),
    }
}
