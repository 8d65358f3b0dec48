//! What the database lies on, and whether what is read from there is on disk.
//!
//! After a sync that failed, the operating system counts what it could not write as written: reads still return it, and no
//! later sync writes it. So nothing is trusted after one, nor at a start, since the process before may have seen one, until
//! all that is read has been written once more, and synced.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::{Bound, Range};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::fs::{OFlags, SeekFrom, seek};

/// What only the owner of a file may do with it.
pub(super) const OTHERS: u32 = 0o077;
/// The file is for the gateway's user alone: it says who holds what, and every user that may open it may lock it.
pub(super) const PRIVATE: u32 = 0o600;
/// So much is read and written at a time.
const BLOCK_BYTES: usize = 64 * 1024;
/// So many bytes at the beginning say which state of the database it is: each commit changes them.
const HEAD_BYTES: usize = 512;
/// What a database begins with.
const MAGIC: &[u8] = b"redb";

/// A file, or what stands for one. It is locked for as long as this lives, even when the database in it is opened anew.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    backend: Box<dyn StorageBackend>,
    /// The file itself, where it is one,
    file: Option<File>,
    /// and by what its path was known to lead to it.
    place: Option<Place>,
    /// How long it is, as this process has left it.
    length: AtomicU64,
    /// Its first bytes, as this process has left them.
    head: Mutex<Vec<u8>>,
    /// Whether what is read may be missing on disk.
    is_doubtful: AtomicBool,
}

/// Device and number of the file at a path, by its name: some file systems say otherwise of a file that is open.
type Place = (u64, u64);

/// What the database is given. When it is closed, the file stays locked.
#[derive(Debug)]
pub(super) struct Handle(pub(super) Arc<Disk>);

impl Disk {
    /// Opens and locks the file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let before = place_of(&fs::metadata(path)?)?;
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() || about.len() == 0 {
            return Err(io::Error::from(ErrorKind::InvalidData).into());
        }
        if !lock(&file)? {
            return Err(DatabaseError::DatabaseAlreadyOpen);
        }
        let disk = Self::at(path, FileBackend::new(file.try_clone()?)?, file)?;
        // Another gateway may have the one that stands there by now.
        if disk.place != Some(before) {
            return Err(io::Error::other("it was replaced while it was opened: start again").into());
        }
        Ok(disk)
    }

    /// The same of a file that is locked: a process that closes it may cut it before that.
    pub(super) fn at(path: &Path, backend: impl StorageBackend, file: File) -> io::Result<Self> {
        // A relative one leads elsewhere once the working directory is renamed. It is kept where this user may not enter all
        // directories above that.
        let absolute = path::absolute(path).ok().filter(|absolute| fs::metadata(absolute).is_ok());
        let path = absolute.as_deref().unwrap_or(path);
        let mut disk = Self::new(path, backend, Some(file));
        let length = disk.backend.len()?;
        let head = vec![0; HEAD_BYTES.min(usize::try_from(length).unwrap_or(HEAD_BYTES))];
        disk.place = Some(place_of(&fs::metadata(path)?)?);
        (disk.length, disk.head) = (AtomicU64::new(length), Mutex::new(head));
        Ok(disk)
    }

    /// A database that lies on something else than a file.
    pub(super) fn on(backend: impl StorageBackend) -> Self {
        Self::new(Path::new("the storage"), backend, None)
    }

    fn new(path: &Path, backend: impl StorageBackend, file: Option<File>) -> Self {
        let (path, backend) = (path.into(), Box::new(backend));
        let (length, is_doubtful) = (AtomicU64::new(0), AtomicBool::new(true));
        Self { path, backend, file, place: None, length, head: Mutex::default(), is_doubtful }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// That the file is still where it was opened, and that its length and its beginning are as they were left. What else stands
    /// there, or will, is another gateway's. What was cut off or copied over it is not what was told.
    pub(super) fn check_place(&self) -> io::Result<()> {
        let Some(opened) = self.place else { return Ok(()) };
        let there = fs::metadata(&self.path);
        let is_there = there.as_ref().is_ok_and(|there| place_of(there).is_ok_and(|place| place == opened));
        match there {
            Ok(there) if is_there && self.is_as_left(there.len()) => Ok(()),
            Ok(_) if is_there => Err(io::Error::new(
                ErrorKind::InvalidData,
                "another program has changed it: put it right, and restart the gateway",
            )),
            // What cannot be looked at may be another gateway's by now.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(io::Error::other(format!("its path cannot be looked at ({error}): put it right")))
            }
            _ => Err(io::Error::other(
                "it has been moved, removed or replaced: put it back, or restart the gateway",
            )),
        }
    }

    /// Whether the file that is open here is as this process has left it, wherever it is by now. To close the database writes to it.
    pub(super) fn may_be_closed(&self) -> bool {
        self.place.is_none() || self.backend.len().is_ok_and(|length| self.is_as_left(length))
    }

    /// Whether its length, which is this one, and its beginning are as they were left: an older copy may be as long.
    fn is_as_left(&self, length: u64) -> bool {
        let head = self.head.lock();
        let mut now = vec![0; head.len()];
        // After a write or a sync that failed, it is not known what is there. What cannot be read is not known to have changed.
        length == self.length.load(Ordering::Relaxed)
            && (self.is_doubtful.load(Ordering::Acquire)
                || self.backend.read(0, &mut now).is_err()
                || now == *head)
    }

    /// Sees to it that all that is read is on disk. To write again what is there already does no harm where that is cut short.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.check_place()?;
        if !self.is_doubtful.load(Ordering::Acquire) {
            return Ok(());
        }
        let length = self.backend.len()?;
        let mut block = vec![0; BLOCK_BYTES];
        let mut offset = 0;
        while offset < length {
            block.truncate(usize::try_from(length - offset).unwrap_or(BLOCK_BYTES));
            self.backend.read(offset, &mut block)?;
            // A file that was named by mistake is not touched.
            if offset == 0 && !block.starts_with(MAGIC) {
                return Ok(());
            }
            if block.iter().any(|byte| *byte != 0) || !self.is_hole(offset) {
                self.backend.write(offset, &block)?;
            }
            offset += block.len() as u64;
        }
        self.backend.sync_data()?;
        self.backend.read(0, &mut self.head.lock())?;
        self.is_doubtful.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether a block takes no room on disk. To write it would cost room, which there may not be.
    fn is_hole(&self, offset: u64) -> bool {
        self.file.as_ref().is_some_and(|file| match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data >= offset + BLOCK_BYTES as u64,
            Err(error) => error == rustix::io::Errno::NXIO,
        })
    }

    /// Takes from others what they may do with the file.
    pub(super) fn make_private(&self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = make_private(file) {
            tracing::warn!(%error, "other users of this machine may open the file of the store: chmod 600");
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What is not unlocked here is unlocked with the end of the process.
        let _ = self.backend.close();
    }
}

/// Locks a file for as long as it is open. No, if another process has it. One that cannot be locked is refused: two gateways
/// would grant one lock by it.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    let other_kind = || {
        let backend = FileBackend::new(file.try_clone()?).map_err(io::Error::other)?;
        Ok(backend.try_lock_range(Bound::Unbounded, Bound::Unbounded)?)
    };
    is_locked(file.try_lock(), other_kind)
}

/// What two kinds of locks say, since some file systems know only the second.
fn is_locked(
    locked: Result<(), TryLockError>,
    other_kind: impl FnOnce() -> io::Result<bool>,
) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => other_kind().map_err(|_| {
            io::Error::other(format!(
                "its file system does not lock it, so two gateways could grant one lock: use another file system ({error})"
            ))
        }),
    }
}

/// A file that was mounted by itself is still at its path when it has been removed, or replaced, where it came from.
pub(super) fn place_of(file: &Metadata) -> io::Result<Place> {
    match file.nlink() {
        0 => Err(io::Error::other(
            "it has been removed where it was mounted from: put it back, and mount it again. Or its file system does not count the \
             names of files: use another",
        )),
        _ => Ok((file.dev(), file.ino())),
    }
}

/// Opens a file that is being made. No other user may have put it there.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE);
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = options.custom_flags(no_link).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        let text = format!("{} has the name that a new file needs: remove it", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, text));
    }
    make_private(&file)?;
    Ok(file)
}

fn make_private(file: &File) -> io::Result<()> {
    match file.metadata()?.mode() & OTHERS {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(PRIVATE)),
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let done = self.0.backend.set_len(len);
        // A failure may come after it was done.
        let length = if done.is_ok() { len } else { self.0.backend.len()? };
        self.0.length.store(length, Ordering::Relaxed);
        done
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.0.backend.sync_data();
        if synced.is_err() {
            self.0.is_doubtful.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let begins_at = usize::try_from(offset).unwrap_or(HEAD_BYTES);
        if begins_at >= HEAD_BYTES {
            return self.0.backend.write(offset, data);
        }
        let head = &mut *self.0.head.lock();
        self.0
            .backend
            .write(offset, data)
            .inspect_err(|_| self.0.is_doubtful.store(true, Ordering::Release))?;
        let ends_at = HEAD_BYTES.min(begins_at + data.len());
        head.resize(head.len().max(ends_at), 0);
        head[begins_at..ends_at].copy_from_slice(&data[..ends_at - begins_at]);
        Ok(())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.backend.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.backend.unlock_range(start, end)
    }
}

/// A file that is only read. What is written to it is kept in memory, so that it takes no more than what changes.
#[derive(Debug)]
pub(super) struct Scratch {
    file: File,
    written: Mutex<Written>,
}

/// What was written to a [`Scratch`], by the number of its block.
#[derive(Debug)]
struct Written {
    length: u64,
    /// So much of the file still counts: what was cut off is zeros where it is there again.
    of_file: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

/// So much of a scratch is kept together: a page of the database.
const SCRATCH_BLOCK_BYTES: u64 = 4096;

impl Scratch {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, written: Mutex::new(Written { length, of_file: length, blocks: BTreeMap::new() }) })
    }

    /// Block by block, the part of each that lies between `offset` and the end: with its place there, and among those bytes.
    fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
        let end = offset + bytes as u64;
        (offset / SCRATCH_BLOCK_BYTES..end.div_ceil(SCRATCH_BLOCK_BYTES)).map(move |block| {
            let (first, last) = (block * SCRATCH_BLOCK_BYTES, (block + 1) * SCRATCH_BLOCK_BYTES);
            let (from, to) = (offset.max(first), end.min(last));
            (block, (from - first) as usize, (from - offset) as usize..(to - offset) as usize)
        })
    }

    /// A block of the file, of which so much counts, with zeros behind that.
    fn read_block(&self, block: u64, of_file: u64) -> io::Result<Vec<u8>> {
        let (mut bytes, first) = (vec![0; SCRATCH_BLOCK_BYTES as usize], block * SCRATCH_BLOCK_BYTES);
        let there = SCRATCH_BLOCK_BYTES.min(of_file.saturating_sub(first)) as usize;
        self.file.read_exact_at(&mut bytes[..there], first)?;
        Ok(bytes)
    }
}

impl StorageBackend for Scratch {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        for (block, at, part) in Self::parts(offset, out.len()) {
            let length = part.len();
            match written.blocks.get(&block) {
                Some(bytes) => out[part].copy_from_slice(&bytes[at..at + length]),
                None => out[part].copy_from_slice(&self.read_block(block, written.of_file)?[at..at + length]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let written = &mut *self.written.lock();
        (written.length, written.of_file) = (len, len.min(written.of_file));
        written.blocks.split_off(&len.div_ceil(SCRATCH_BLOCK_BYTES));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Written { blocks, of_file, .. } = &mut *self.written.lock();
        for (block, at, part) in Self::parts(offset, data.len()) {
            let bytes = match blocks.entry(block) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(empty) => empty.insert(self.read_block(block, *of_file)?),
            };
            bytes[at..at + part.len()].copy_from_slice(&data[part]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
