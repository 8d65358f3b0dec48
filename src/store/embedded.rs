//! The store that needs no server: a table in memory, and a file that every change reaches before it is answered.
//!
//! `table` holds the rules, `file` the way to `disk`, and `writer` is the only one that uses both, in a thread of its own. Where there
//! is no file, there is no writer, and a step is done `at_once`. Who waits stands in `store::wait_queue`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::{self, BoxFuture, FutureExt, TryFutureExt};
use redb::StorageBackend;
use thiserror::Error;
use tokio::sync::{broadcast, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::lock::{LockKey, Page, Reach};
use crate::store::{
    Bucket, Call, HeartbeatAnswer, Hint, LineSettings, List, LockStore, Reply, Replying, Request, StoreError,
};

use at_once::AtOnce;
use cursor::CursorSeal;
use disk::Disk;
use life::Moment;
use queue::{CommandQueue, Kind};
use table::{Piece, TIDY_EVERY, Table};
use writer::State;

mod at_once;
mod batch_tables;
mod cursor;
mod disk;
mod file;
mod life;
mod once;
mod queue;
mod record;
mod rows;
mod survey;
mod table;
mod work;
mod work_rows;
mod writer;

pub use survey::{survey, survey_memory};
pub use writer::{Batch, Writer};

/// The most steps that one page of a list of locks takes.
const MOST_STEPS: usize = 20;
/// Hints that may wait to be heard; past it, the oldest are lost.
const MOST_HINTS: usize = 4_096;

/// What can be set about an [`EmbeddedStore`].
#[derive(Clone, Debug)]
pub struct EmbeddedSettings {
    /// How long the tombstone of a released token or of a voided attempt lives.
    pub mark_ttl: Duration,
    /// How wait queues behave.
    pub line: LineSettings,
    /// Above so much, no new piece of work is begun; a third above it, only short results are stored.
    pub once_memory_bytes: u64,
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be used.
    #[error("{0} {1}")]
    File(PathBuf, UnusableFile),
    /// The operating system gave us no thread.
    #[error("the thread of the store cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum UnusableFile {
    /// Another process, or another store in this one, has it open.
    #[error("is in use by another process")]
    InUse,
    /// Its directory is missing, or what a link names, or it has vanished since it was opened first.
    #[error("cannot be opened: there is no such file or directory")]
    Missing,
    /// The operating system does not let us read and write it, or create it.
    #[error("cannot be opened: permission denied")]
    NoPermission,
    /// It holds something else.
    #[error("is not a Fencepost store; if it was one, {way}", way = file::START_ANEW)]
    NotAStore,
    /// A later version of this program wrote it, in a format of this version.
    #[error("was written by a newer version (file format {0})")]
    NewerFormat(u64),
    /// Not all of it is as it was written.
    #[error("is damaged: {0}. You can {way}", way = file::START_ANEW)]
    Damaged(String),
    /// Anything else, for this reason.
    #[error("cannot be opened: {0}")]
    Failed(String),
}

/// A store within this process. Dropping it waits for what is queued and closes the file.
pub struct EmbeddedStore {
    way: Way,
    hints: broadcast::Sender<Hint>,
    /// What the last heartbeat that was answered was told.
    session: AtomicU64,
    cursors: CursorSeal,
    /// Of the writer, or of what removes what has ended; `None` where there is none.
    thread: Option<JoinHandle<()>>,
}

/// How the table is reached.
enum Way {
    /// By its writer.
    Queue(CommandQueue),
    /// By each caller itself.
    AtOnce(Arc<AtOnce>),
}

impl Default for EmbeddedSettings {
    fn default() -> Self {
        Self {
            mark_ttl: Duration::from_secs(120),
            line: LineSettings::default(),
            once_memory_bytes: 256 * 1024 * 1024,
        }
    }
}

impl EmbeddedStore {
    /// Opens the store in the file at `path`, which is created where it is missing. Blocks on the disk.
    pub fn open(path: &Path, settings: EmbeddedSettings, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        file::create_if_missing(path)?;
        // Anything else than a file is refused below.
        path.is_file().then(|| survey::look_before_opening(path)).transpose()?;
        let disk = Disk::open(path).map_err(|error| file::open_error(path, error))?;
        file::sync_directory(path)?;
        let state = Self::read(disk, &settings, &*clock)?;
        survey::warn_if_in_memory(path);
        Self::start(Self::with(state, settings, clock))
    }

    /// Opens the store on something else than a file, which may still be empty.
    pub fn open_on(
        storage: impl StorageBackend,
        settings: EmbeddedSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(Self::without_thread(storage, settings, clock)?)
    }

    /// Makes an empty store that keeps nothing.
    pub fn in_memory(settings: EmbeddedSettings, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let (mut store, tidied) = Self::at_once(settings, clock);
        let thread = thread::Builder::new().name("store-tidier".to_owned());
        store.thread = Some(thread.spawn(move || tidied.tidy_until_closed()).map_err(OpenError::Thread)?);
        Ok(store)
    }

    /// The same without a thread: what has ended is removed when the next step is asked for.
    pub fn in_memory_without_thread(settings: EmbeddedSettings, clock: Arc<dyn Clock>) -> Self {
        Self::at_once(settings, clock).0
    }

    /// Opens the store on something else than a file, without a thread: it answers when its writer is had to work.
    pub fn without_thread(
        storage: impl StorageBackend,
        settings: EmbeddedSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), OpenError> {
        let state = Self::read(Disk::on(storage), &settings, &*clock)?;
        Ok(Self::with(state, settings, clock))
    }

    fn at_once(settings: EmbeddedSettings, clock: Arc<dyn Clock>) -> (Self, Arc<AtOnce>) {
        let hints = broadcast::Sender::new(MOST_HINTS);
        let table = Arc::new(AtOnce::new(settings, clock, hints.clone()));
        (Self::reached(Way::AtOnce(table.clone()), hints), table)
    }

    /// Reads what lies on a disk, and shows that it can be written.
    fn read(disk: Disk, settings: &EmbeddedSettings, clock: &dyn Clock) -> Result<State, OpenError> {
        let disk = Arc::new(disk);
        let (mut state, now) = (State::read(Arc::clone(&disk), settings, clock)?, Moment::now(clock));
        disk.make_private();
        state.save(now, now.boot).map_err(|error| file::failed(disk.path(), &error))?;
        Ok(state)
    }

    fn with(state: State, settings: EmbeddedSettings, clock: Arc<dyn Clock>) -> (Self, Writer) {
        let (queue, receiver, disk_watch) = CommandQueue::new();
        let hints = broadcast::Sender::new(MOST_HINTS);
        let writer = Writer {
            queue: receiver,
            settings,
            tidied_at_boot: clock.boot(),
            clock,
            hints: hints.clone(),
            disk_watch,
            state,
            tidied: std::time::Instant::now(),
            pause: TIDY_EVERY,
        };
        (Self::reached(Way::Queue(queue), hints), writer)
    }

    fn reached(way: Way, hints: broadcast::Sender<Hint>) -> Self {
        Self { way, hints, session: AtomicU64::new(0), cursors: CursorSeal::new(), thread: None }
    }

    /// Gives the writer a thread.
    fn start((mut store, writer): (Self, Writer)) -> Result<Self, OpenError> {
        let thread = thread::Builder::new().name("store-writer".to_owned());
        store.thread = Some(thread.spawn(|| writer.run()).map_err(OpenError::Thread)?);
        Ok(store)
    }

    /// Takes no more steps. Returns what completes once those that were queued are done, where there is a queue.
    fn stop(&self) -> Option<oneshot::Receiver<()>> {
        match &self.way {
            Way::Queue(queue) => Some(queue.close()),
            Way::AtOnce(table) => {
                table.close();
                None
            }
        }
    }

    /// Has one step done, by `deadline`.
    async fn submit<T, F>(&self, deadline: Instant, kind: Kind, step: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Table, Duration) -> Result<T, StoreError> + Send + 'static,
    {
        match &self.way {
            Way::Queue(queue) => queue.submit(deadline, kind, step).await,
            Way::AtOnce(table) => table.apply(deadline, step),
        }
    }

    /// Does what one kind of request asks for.
    fn change<'a, C: Call>(
        &'a self,
        request: &C,
        deadline: Instant,
        step: fn(&mut Table, &C, Duration) -> C::Answer,
    ) -> Replying<'a> {
        self.try_change(request, deadline, move |table, request, now| Ok(step(table, request, now)))
    }

    /// The same for a step that may fail.
    fn try_change<'a, C: Call>(
        &'a self,
        request: &C,
        deadline: Instant,
        step: impl FnOnce(&mut Table, &C, Duration) -> Result<C::Answer, StoreError> + Send + 'static,
    ) -> Replying<'a> {
        let request = request.clone();
        let step = move |table: &mut Table, now| step(table, &request, now).map(C::reply);
        self.submit(deadline, Kind::CHANGE, step).boxed()
    }

    /// Looks, and changes the table only where a grant is to be pinned before it is told of.
    async fn look<C: Call>(
        &self,
        request: &C,
        deadline: Instant,
        see: fn(&Table, &C, Duration) -> Option<C::Answer>,
        pin: fn(&mut Table, &C, Duration) -> C::Answer,
    ) -> Result<Reply, StoreError> {
        let asked = request.clone();
        let look = move |table: &mut Table, now| Ok(see(table, &asked, now).map(C::reply));
        let seen = self.submit(deadline, Kind::Look, look).await?;
        let Some(seen) = seen else { return self.change(request, deadline, pin).await };
        Ok(seen)
    }

    /// A page of a list, and the cursor of the next one: step by step, between which others have their turn.
    async fn page<T: Send + 'static>(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        deadline: Instant,
        list: fn(&mut Table, &Reach, Option<&LockKey>, usize, Duration) -> Piece<T>,
    ) -> Result<(Vec<T>, Option<String>), StoreError> {
        // A list of locks and one of records have cursors of their own.
        let of = format!("{} {}", std::any::type_name::<T>(), reach.name());
        let (mut page, mut after) = (Vec::new(), cursor.and_then(|cursor| self.cursors.open(&of, cursor)));
        for _ in 0..MOST_STEPS {
            let (reach, left) = (reach.clone(), limit - page.len());
            let step = move |table: &mut Table, now| Ok(list(table, &reach, after.as_ref(), left, now));
            let (found, next) = self.submit(deadline, Kind::Look, step).await?;
            page.extend(found);
            after = next;
            if after.is_none() || page.len() == limit {
                break;
            }
            yield_now().await;
        }
        let next = after.map(|key| self.cursors.seal(&of, &key)).transpose();
        let next = next.map_err(|_| {
            StoreError::Unavailable("the gateway could not make the cursor of this page".to_owned())
        })?;
        Ok((page, next))
    }

    async fn list(
        &self,
        List { reach, cursor, limit }: &List,
        deadline: Instant,
    ) -> Result<Page, StoreError> {
        let (locks, next) = self.page(reach, cursor.as_deref(), *limit, deadline, Table::list).await?;
        Ok(Page { locks, next })
    }

    async fn heartbeat(&self, deadline: Instant) -> Result<HeartbeatAnswer, StoreError> {
        let (session, due) = self.submit(deadline, Kind::Look, |table, now| Ok(table.heartbeat(now))).await?;
        // Compared with the last heartbeat that was answered. If its caller has gone, the answer reached no waiter.
        Ok(HeartbeatAnswer { is_new: self.session.swap(session, Ordering::AcqRel) != session, due })
    }
}

impl LockStore for EmbeddedStore {
    fn run<'a>(&'a self, request: &'a Request, deadline: Instant) -> Replying<'a> {
        match request {
            Request::Try(request) => self.try_change(request, deadline, Table::try_lock),
            Request::Confirm(request) => self.change(request, deadline, Table::confirm),
            Request::Enqueue(request) => self.try_change(request, deadline, Table::enqueue),
            Request::Poll(request) => self.try_change(request, deadline, Table::poll),
            Request::LastPoll(request) => self.try_change(request, deadline, Table::last_poll),
            Request::Renew(request) => self.change(request, deadline, Table::renew),
            Request::Release(request) => self.change(request, deadline, Table::release),
            Request::RollBack(request) => self.change(request, deadline, Table::roll_back),
            Request::PassOn(request) => self.change(request, deadline, Table::pass_on),
            Request::Inspect(request) => self.look(request, deadline, Table::see, Table::inspect).boxed(),
            Request::Break(request) => self.change(request, deadline, Table::break_lock),
            Request::List(request) => self.list(request, deadline).map_ok(Reply::List).boxed(),
            Request::Heartbeat(_) => self.heartbeat(deadline).map_ok(Reply::Heartbeat).boxed(),
            // Changes nothing: it shows that the writer runs and has a number left, and that the file can be written again.
            Request::Check(request) => self.try_change(request, deadline, Table::check),
            Request::Begin(request) => self.try_change(request, deadline, Table::begin),
            Request::StoreResult(request) => {
                self.store_result(request, deadline).map_ok(Reply::StoreResult).boxed()
            }
            Request::RenewWork(request) => self.change(request, deadline, Table::renew_work),
            Request::GiveUp(request) => self.change(request, deadline, Table::give_up),
            Request::UndoBegin(request) => self.change(request, deadline, Table::undo_begin),
            Request::LookAtRecord(request) => {
                self.look(request, deadline, Table::see_record, Table::look_at_record).boxed()
            }
            Request::BreakRecord(request) => self.change(request, deadline, Table::break_record),
            Request::ListRecords(request) => {
                self.list_records(request, deadline).map_ok(Reply::ListRecords).boxed()
            }
        }
    }

    fn seems_ready(&self) -> BoxFuture<'_, bool> {
        let is_ready = match &self.way {
            Way::Queue(queue) => queue.seems_ready(),
            Way::AtOnce(table) => table.is_sound(),
        };
        future::ready(is_ready).boxed()
    }

    fn bucket_of(&self, _: &LockKey) -> Bucket {
        Bucket::default()
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(stopped) = self.stop() {
                // An error means that the writer has ended already, which is what was asked for.
                let _ = stopped.await;
            }
        }
        .boxed()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // It may have been stopped before.
        drop(self.stop());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If it panicked, that has been reported where it happened.
            let _ = thread.join();
        }
    }
}
