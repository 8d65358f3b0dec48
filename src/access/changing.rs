//! Changing a keys file while others may be at it: one command after the other.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a command waits for others.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// How long a change may be tried.
pub(super) struct Patience {
    ends_at: Instant,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { ends_at: Instant::now() + LONGEST_WAIT }
    }

    /// Makes a pause before the next try. The error says that there is none.
    pub(super) fn pause(&self, problem: &str) -> io::Result<()> {
        if Instant::now() >= self.ends_at {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("{problem}: try again")));
        }
        thread::sleep(PAUSE);
        Ok(())
    }

    /// Opens the file once no other command changes it. None does until it is closed.
    pub(super) fn open(&self, options: &OpenOptions, path: &Path) -> io::Result<File> {
        loop {
            let file = options.open(path)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, path)? => return Ok(file),
                // Its place was taken by a new one meanwhile.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => self.pause("another command is changing the file")?,
                // Not each file system has locks.
                Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }
}

/// Why a directory cannot be synced where nothing is wrong. Who may write to it need not be allowed to read it.
const NO_SYNC: [ErrorKind; 3] =
    [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied];

/// Sees to it that a new file, or one in the place of another, survives a power cut under its name, and not only what is in it.
pub(super) fn keep_name(file: &Path) -> io::Result<()> {
    let file = file.canonicalize()?;
    match File::open(file.parent().unwrap_or(&file)).and_then(|directory| directory.sync_all()) {
        // Some file systems cannot do this, and most of them do not need it.
        Err(error) if NO_SYNC.contains(&error.kind()) => Ok(()),
        kept => kept.map_err(|error| {
            io::Error::new(error.kind(), format!("the directory of the file cannot be synced: {error}"))
        }),
    }
}

/// Whether it is still what stands there. Editors and other programs put a new one in its place, and wait for nothing.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
