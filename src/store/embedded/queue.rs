//! The queue of the writer: what it holds, and the end of those who have something to do.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{self, Duration};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::clock::whole_ms;
use crate::store::StoreError;

use super::table::Table;

/// The most commands that wait for the writer. Further ones wait here, until their deadline.
const QUEUE_LIMIT: usize = 4_096;

/// The most that the results in the queue may have together. A single longer one has all of it.
const QUEUED_RESULTS_KIB: usize = 64 * 1024;

/// How long the writer may be at one batch before its disk counts as hanging: half of the usual `--store-timeout`.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// For how long it counts as hanging after such a batch. Another may hang behind it, and an alarm is to see no gap between the two.
const HAS_HUNG_FOR: Duration = Duration::from_secs(10);

/// What the writer is sent.
pub(super) enum Message {
    /// Something to do.
    Command(Command),
    /// To stop once everything sent before is done; the answer comes when the file is closed.
    Stop(oneshot::Sender<()>),
}

/// One step for the table, and the way to answer it.
pub(super) struct Command {
    /// When it is too late to begin.
    pub(super) deadline: time::Instant,
    /// The side that sets this first decides: the writer that it is done, or the caller that it never will be.
    pub(super) claimed: Arc<AtomicBool>,
    /// The place in the queue of commands, free again once the command has been taken from it.
    pub(super) place: QueuePlace,
    /// What the step may do.
    pub(super) kind: Kind,
    /// Does the step.
    pub(super) apply: Apply,
}

/// What a step may do to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: it can be answered while the file cannot be written. In a batch it comes first.
    Look,
    /// Anything. It brings a result of so many bytes.
    Change { bytes: usize },
}

impl Kind {
    /// A step that brings no result.
    pub(super) const CHANGE: Self = Self::Change { bytes: 0 };
}

/// A place in the queue, and room for the result that comes with it: one whose caller has gone is still in memory.
pub(super) type QueuePlace = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);
/// Applies a step to the table at a time since boot, or takes the reason why that cannot be done.
pub(super) type Apply = Box<dyn FnOnce(Result<(&mut Table, Duration), StoreError>) -> Answer + Send>;
/// Sends the answer, once it is known whether the step was committed.
pub(super) type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The way to the writer.
pub(super) struct CommandQueue {
    sender: mpsc::Sender<Message>,
    /// One permit for each place in the queue, since the queue itself has no bound that can be waited for.
    places: Arc<Semaphore>,
    /// The room for results, in KiB.
    result_room: Arc<Semaphore>,
    /// How the writer gets on, as it says itself; nothing once it has ended.
    disk_watch: Weak<DiskWatch>,
}

/// How the writer gets on with its disk. It cannot say so itself while it waits for one that hangs.
#[derive(Debug)]
pub(super) struct DiskWatch(Mutex<DiskState>);

#[derive(Debug)]
struct DiskState {
    /// Whether the last write came to the file.
    is_writable: bool,
    /// Since when the writer is at a batch, if it is.
    busy_since: Option<time::Instant>,
    /// When the last batch ended for which the disk hung.
    hung_at: Option<time::Instant>,
    /// Whether the log was told that the disk hangs.
    is_told: bool,
}

impl DiskWatch {
    /// The writer begins with a batch.
    pub(super) fn begin_batch(&self) {
        self.0.lock().busy_since = Some(time::Instant::now());
    }

    /// It is done with the batch.
    pub(super) fn end_batch(&self, is_writable: bool) {
        let mut state = self.0.lock();
        state.is_writable = is_writable;
        let took = state.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        if took >= HANGS_AFTER {
            state.hung_at = Some(time::Instant::now());
        }
        if mem::take(&mut state.is_told) {
            tracing::info!(took_ms = whole_ms(took), "the disk of the file store answers again");
        }
    }

    /// Whether steps can be done, as far as is known. Tells the log, once for a batch, that the disk hangs.
    fn seems_well(&self) -> bool {
        let mut state = self.0.lock();
        let hangs = state.busy_since.is_some_and(|since| since.elapsed() >= HANGS_AFTER);
        if hangs && !mem::replace(&mut state.is_told, true) {
            tracing::warn!(
                "the disk of the file store does not answer, or the gateway stood still: nothing is granted until it does"
            );
        }
        let has_hung = state.hung_at.is_some_and(|at| at.elapsed() < HAS_HUNG_FOR);
        state.is_writable && !hangs && !has_hung
    }
}

impl Command {
    /// Answers that nothing was done.
    pub(super) fn refuse(self, error: StoreError) {
        (self.apply)(Err(error))(Ok(()));
    }
}

impl CommandQueue {
    /// A queue, its other end, and where the writer says how it gets on.
    pub(super) fn new() -> (Self, mpsc::Receiver<Message>, Arc<DiskWatch>) {
        let (sender, receiver) = mpsc::channel();
        let places = Arc::new(Semaphore::new(QUEUE_LIMIT));
        let result_room = Arc::new(Semaphore::new(QUEUED_RESULTS_KIB));
        let state = DiskState { is_writable: true, busy_since: None, hung_at: None, is_told: false };
        let disk_watch = Arc::new(DiskWatch(Mutex::new(state)));
        (Self { sender, places, result_room, disk_watch: Arc::downgrade(&disk_watch) }, receiver, disk_watch)
    }

    /// Whether steps can be done, as far as is known.
    pub(super) fn seems_ready(&self) -> bool {
        self.disk_watch.upgrade().is_some_and(|disk_watch| disk_watch.seems_well())
    }

    /// Has the writer do one step, and waits for its answer until `deadline`.
    ///
    /// A caller that stops waiting does not cancel a step that is queued.
    pub(super) async fn submit<T, F>(&self, deadline: Instant, kind: Kind, step: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Table, Duration) -> Result<T, StoreError> + Send + 'static,
    {
        // The log is to say that the disk hangs also where each client leaves before it is told so.
        self.seems_ready();
        let place = match timeout_at(deadline, self.enter(kind)).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(closed()),
            Err(_) => return Err(too_late()),
        };
        let (reply, answer) = oneshot::channel();
        let claimed = Arc::new(AtomicBool::new(false));
        let command = Command {
            deadline: deadline.into_std(),
            claimed: Arc::clone(&claimed),
            place,
            kind,
            apply: Box::new(move |table| {
                let result = table.and_then(|(table, now)| step(table, now));
                Box::new(move |committed| {
                    // A caller that has gone needs no answer.
                    let _ = reply.send(committed.and(result));
                })
            }),
        };
        if self.sender.send(Message::Command(command)).is_err() {
            return Err(closed());
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) if !claimed.swap(true, Ordering::AcqRel) => Err(closed()),
            Ok(Err(_)) => Err(StoreError::Unknown("the store stopped before it answered".to_owned())),
            // Claiming the step keeps the writer from ever doing it, unless the writer was first.
            Err(_) if !claimed.swap(true, Ordering::AcqRel) => Err(too_late()),
            Err(_) => Err(StoreError::Unknown("the store did not answer before the deadline".to_owned())),
        }
    }

    /// Waits for a place, and for room for what a step brings.
    async fn enter(&self, kind: Kind) -> Result<QueuePlace, AcquireError> {
        let room = match kind {
            Kind::Change { bytes } if bytes > 0 => {
                let kib = u32::try_from(bytes.div_ceil(1024).min(QUEUED_RESULTS_KIB)).unwrap_or(u32::MAX);
                Some(Arc::clone(&self.result_room).acquire_many_owned(kib).await?)
            }
            _ => None,
        };
        Ok((Arc::clone(&self.places).acquire_owned().await?, room))
    }

    /// Takes nothing more, and has the writer stop once it has done what it was sent. Returns the news of that.
    pub(super) fn close(&self) -> oneshot::Receiver<()> {
        self.places.close();
        self.result_room.close();
        let (stopped, closed) = oneshot::channel();
        let _ = self.sender.send(Message::Stop(stopped));
        closed
    }
}

/// That the store was closed before.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// That a step was not begun in time.
pub(super) fn too_late() -> StoreError {
    StoreError::Unavailable("the store was too busy to begin in time".to_owned())
}
