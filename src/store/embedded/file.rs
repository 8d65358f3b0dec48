//! The file of the embedded store: what lies where in it, reading all of it, and writing one batch durably.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redb::{
    Builder, CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableHandle, WriteTransaction,
};

use crate::clock::Clock;
use crate::store::StoreError;

use super::batch_tables::BatchTables;
use super::disk::{Disk, Handle, create_private, lock};
use super::life::{MOST_APART, Moment, WrittenIn, judge_clock, nanoseconds, warn_if_ahead};
use super::record::{Format, Record};
use super::rows::{LOCKS, MARKS, SLOTS, TERMS, read_lock, read_mark, read_slot};
use super::table::{Change, Table};
use super::work_rows::{FORMER, ONCE, RESULTS, read_work};
use super::{EmbeddedSettings, OpenError, UnusableFile};

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");

/// In `NUMBERS`: the version of this layout.
const FORMAT: &str = "format";
/// In `NUMBERS`: the last fencing token.
const FENCE: &str = "fence";
/// In `NUMBERS`: how many batches were written, by which a batch in doubt is found or missed.
const BATCH: &str = "batch";
/// In `NUMBERS`: what the wall clock would have said at boot, by the last batch, in nanoseconds,
const WALL_AT_BOOT: &str = "wall-at-boot";
/// and the number of that batch: an earlier version of the program writes batches without both.
const WALL_AT_BOOT_OF: &str = "wall-at-boot-of";
/// In `TEXTS`: the boot during which the file was written.
const BOOT: &str = "boot";

/// The layouts that this program reads. A file has the least in which its records can be written: until there is the first of a
/// new kind, the program before this one can use it.
const FORMATS: RangeInclusive<u64> = 1..=Format::Slots as u64;
/// The memory that redb may use for pages. The table is in memory anyway, so this only saves reads while writing.
pub(super) const PAGE_CACHE_BYTES: usize = 32 * 1024 * 1024;
/// Ends the name of a file that is being made.
const UNFINISHED: &str = ".unfinished";

/// What to do without a file.
pub(super) const START_ANEW: &str = "wait for the longest ttl, move it away, and start: a new file is made. \
     It has no records, so work may be done again";

/// Why a row is refused that this program cannot have written.
const BAD_ROW: &str = "it holds a record that no version of Fencepost wrote";

pub(super) type AnyError = Box<dyn Error + Send + Sync>;

/// An open file, which no other process can open.
#[derive(Debug)]
pub(super) struct StoreFile {
    database: Database,
    boot_id: String,
    /// By the last batch of this process; `None` before its first, with which the file gets the boot and the layout.
    wall_at_boot: Option<Duration>,
    format: u64,
    batch: u64,
}

/// What a file says before any of its records; nothing, if it is not ours.
#[derive(Default)]
pub(super) struct Head {
    /// The version of the layout: the present one for a database without tables.
    format: Option<u64>,
    /// The number of the last batch.
    pub(super) batch: u64,
}

impl StoreFile {
    /// Opens the database on `disk`, once all that can be read there is on disk.
    pub(super) fn open(disk: &Arc<Disk>, clock: &dyn Clock) -> Result<Self, OpenError> {
        let path = disk.path();
        judge_clock(clock).map_err(|error| failed(path, &error))?;
        disk.settle().map_err(|error| failed(path, &error))?;
        let mut builder = Builder::new();
        builder.set_cache_size(PAGE_CACHE_BYTES);
        let database =
            builder.create_with_backend(Handle(Arc::clone(disk))).map_err(|error| open_error(path, error))?;
        let head = Head::of(&database).map_err(|error| failed(path, &*error))?;
        let format = head.judge(path)?.max(Format::Terms as u64);
        Ok(Self { database, boot_id: clock.boot_id(), wall_at_boot: None, format, batch: head.batch })
    }

    /// Reads all of it into a table. Writes nothing.
    ///
    /// After a reboot every record counts as changed in that table, since its end since boot is a new one.
    pub(super) fn read(
        &self,
        disk: &Disk,
        settings: &EmbeddedSettings,
        clock: &dyn Clock,
    ) -> Result<Table, OpenError> {
        self.load(settings, Moment::now(clock)).map_err(|error| failed(disk.path(), &*error))
    }

    /// The number of the last batch that the file holds.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// Whether the wall clock was set since the last batch of this process.
    pub(super) fn is_stepped(&self, now: Moment) -> bool {
        self.wall_at_boot.is_some_and(|at_boot| now.wall_at_boot().abs_diff(at_boot) > MOST_APART)
    }

    /// Writes what changed in `table` as one batch, and returns once it is on disk.
    ///
    /// [`StoreError::Unknown`] means that the batch may be on disk. After any error the file must be opened again.
    pub(super) fn write(&mut self, table: &Table, changes: &[Change], now: Moment) -> Result<(), StoreError> {
        let formats = changes.iter().filter_map(|change| table.get(&change.id)).map(Record::format);
        let format = formats.max().map_or(self.format, |needed| self.format.max(needed as u64));
        let staged = self.stage(table, changes, format, now);
        let transaction = staged
            .map_err(|error| StoreError::Unavailable(format!("the file cannot be written: {error}")))?;
        transaction.commit().map_err(|error| {
            let text = format!("the file cannot be written: {error}");
            match error {
                // redb has rolled such a transaction back; any other failure may come after the decisive write.
                CommitError::TransactionPoisoned => StoreError::Unavailable(text),
                _ => StoreError::Unknown(text),
            }
        })?;
        (self.batch, self.format) = (self.batch + 1, format);
        self.wall_at_boot = Some(now.wall_at_boot());
        Ok(())
    }

    /// The transaction is dropped at the end, so tables made on the way are not kept.
    fn load(&self, settings: &EmbeddedSettings, now: Moment) -> Result<Table, AnyError> {
        let transaction = self.database.begin_write()?;
        let mut table = Table::new(settings.clone());
        let numbers = transaction.open_table(NUMBERS)?;
        let last = numbers.get(FENCE)?.map_or(0, |fence| fence.value());
        let texts = transaction.open_table(TEXTS)?;
        let boot = texts.get(BOOT)?.map(|boot| boot.value().to_owned()).unwrap_or_default();
        let of = numbers.get(WALL_AT_BOOT_OF)?.map(|batch| batch.value());
        let wall_at_boot = numbers.get(WALL_AT_BOOT)?.filter(|_| of == Some(self.batch));
        let written_in = match !boot.is_empty() && boot == self.boot_id {
            true => WrittenIn::ThisBoot,
            false => WrittenIn::AnotherBoot {
                wall_at_boot: wall_at_boot.map(|at_boot| Duration::from_nanos(at_boot.value())),
            },
        };
        let terms = transaction.open_table(TERMS)?;
        for row in transaction.open_table(LOCKS)?.iter()? {
            let (key, lock) = row?;
            let terms = terms.get(key.value())?.map(|terms| terms.value());
            let (id, record) = read_lock(key.value(), lock.value(), terms, now, written_in).ok_or(BAD_ROW)?;
            table.put(id, Some(record));
        }
        for row in transaction.open_table(MARKS)?.iter()? {
            let (key, mark) = row?;
            let (id, record) = read_mark(key.value(), mark.value(), now, written_in).ok_or(BAD_ROW)?;
            table.put(id, Some(record));
        }
        if self.format >= Format::Works as u64 {
            let (bodies, former) = (transaction.open_table(RESULTS)?, transaction.open_table(FORMER)?);
            for row in transaction.open_table(ONCE)?.iter()? {
                let (key, work) = row?;
                let body = bodies.get(key.value())?.map(|body| Bytes::copy_from_slice(body.value()));
                let former = former.get(key.value())?;
                let former = former.as_ref().map(|former| former.value());
                let found = read_work(key.value(), work.value(), former, body, now, written_in);
                let (id, record) = found.ok_or(BAD_ROW)?;
                table.put(id, Some(record));
            }
        }
        if self.format >= Format::Slots as u64 {
            for row in transaction.open_table(SLOTS)?.iter()? {
                let (key, slot) = row?;
                let found = read_slot(key.value(), slot.value(), now, written_in);
                let (id, record) = found.ok_or(BAD_ROW)?;
                table.put(id, Some(record));
            }
        }
        warn_if_ahead(last, now.wall);
        table.start_run(last, now.wall);
        table.take_changes();
        if written_in != WrittenIn::ThisBoot {
            table.touch_all();
        }
        Ok(table)
    }

    fn stage(
        &self,
        table: &Table,
        changes: &[Change],
        format: u64,
        now: Moment,
    ) -> Result<WriteTransaction, AnyError> {
        // Each once, and in the order of the file's pages, with what the file has of it.
        let mut touched = BTreeMap::new();
        for change in changes {
            touched.entry(&change.id).or_insert(change.before.as_deref());
        }
        let transaction = self.database.begin_write()?;
        let mut tables = BatchTables::new(&transaction, now);
        for (id, before) in touched {
            tables.write(id, before, table.get(id))?;
        }
        drop(tables);
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert(FENCE, table.last_fence())?;
        numbers.insert(BATCH, self.batch + 1)?;
        numbers.insert(WALL_AT_BOOT, nanoseconds(now.wall_at_boot()))?;
        numbers.insert(WALL_AT_BOOT_OF, self.batch + 1)?;
        if self.wall_at_boot.is_none() || format != self.format {
            numbers.insert(FORMAT, format)?;
            transaction.open_table(TEXTS)?.insert(BOOT, self.boot_id.as_str())?;
        }
        drop(numbers);
        Ok(transaction)
    }
}

impl Head {
    pub(super) fn of(database: &impl ReadableDatabase) -> Result<Self, AnyError> {
        let transaction = database.begin_read()?;
        let names: Vec<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
        if names.is_empty() {
            return Ok(Self { format: Some(Format::Terms as u64), batch: 0 });
        }
        if !names.iter().any(|name| name == NUMBERS.name()) {
            return Ok(Self::default());
        }
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |name| numbers.get(name).map(|number| number.map(|number| number.value()));
        Ok(Self { format: number(FORMAT)?, batch: number(BATCH)?.unwrap_or(0) })
    }

    /// The layout, if this program can read it.
    pub(super) fn judge(&self, path: &Path) -> Result<u64, OpenError> {
        let reason = match self.format {
            Some(format) if FORMATS.contains(&format) => return Ok(format),
            Some(found) => UnusableFile::NewerFormat(found),
            None => UnusableFile::NotAStore,
        };
        Err(OpenError::File(path.into(), reason))
    }
}

/// Makes an empty store where nothing stands yet, not even a link to something that is not there at present.
pub(super) fn create_if_missing(path: &Path) -> Result<(), OpenError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create(path).map_err(|error| open_error(path, error))
        }
        // What is wrong with it is told when it is opened.
        _ => Ok(()),
    }
}

/// Where the file at `path` is while it is made.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    unfinished.into()
}

/// Makes an empty database, which gets its name only once it is complete. A start that is killed, or that finds the
/// disk full, must not leave a file that every later start refuses.
fn create(path: &Path) -> Result<(), DatabaseError> {
    let unfinished = unfinished(path);
    let file = create_private(&unfinished)?;
    // Another process may be doing the same. A process that has the lock, and finds that the store does not exist yet,
    // may cut off what an earlier start left: no other can have opened it under its name meanwhile.
    if !lock(&file)? {
        return Err(DatabaseError::DatabaseAlreadyOpen);
    }
    if !path.exists() {
        file.set_len(0)?;
        drop(Builder::new().create_file(file)?);
        std::fs::rename(&unfinished, path)?;
    }
    Ok(())
}

pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Sees to it that the name of a new file survives a power cut as its content does.
pub(super) fn sync_directory(path: &Path) -> Result<(), OpenError> {
    let synced = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
    match synced {
        Ok(()) => Ok(()),
        // Some file systems cannot do this, and most do not need it; and some directories may not be read.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied
            ) =>
        {
            tracing::warn!(%error, "the directory of the store cannot be synced: after a power cut, the file may be missing");
            Ok(())
        }
        Err(error) => Err(failed(path, &error)),
    }
}

pub(super) fn failed(path: &Path, error: &dyn Display) -> OpenError {
    OpenError::File(path.into(), UnusableFile::Failed(error.to_string()))
}

/// What went wrong on opening, in the words of the operator.
pub(super) fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    let reason = match error {
        DatabaseError::DatabaseAlreadyOpen => UnusableFile::InUse,
        DatabaseError::Storage(StorageError::Io(error)) => match error.kind() {
            ErrorKind::NotFound => UnusableFile::Missing,
            ErrorKind::PermissionDenied => UnusableFile::NoPermission,
            ErrorKind::InvalidData => UnusableFile::NotAStore,
            _ => UnusableFile::Failed(error.to_string()),
        },
        DatabaseError::Storage(StorageError::Corrupted(reason)) => UnusableFile::Damaged(reason),
        error => UnusableFile::Failed(error.to_string()),
    };
    OpenError::File(path.into(), reason)
}
