//! The one thread that changes the store: it takes what has queued up, applies it, commits once, then answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, broadcast, oneshot};

use crate::clock::Clock;
use crate::store::{Hint, StoreError};

use super::file::{IfMissing, StoreFile};
use super::rows::Moment;
use super::table::Table;
use super::{EmbeddedSettings, OpenError};

/// The most commands that share one commit.
const BATCH_LIMIT: usize = 1_024;
/// How many ended records are removed with a commit for each record that it changes. No command makes more than one, so what
/// has ended cannot pile up however fast commands come, and whoever waits for the commit waits for little else.
const PURGED_PER_CHANGE: usize = 2;
/// As many are removed with the smallest commit.
const LEAST_PURGED: usize = 64;
/// The most that are removed at a time.
const MOST_PURGED: usize = 1_024;
/// How often ended records are removed when nothing else is to be committed,
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// and where that was not enough.
const TIDY_ON_AFTER: Duration = Duration::from_millis(20);

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
    pub(super) deadline: Instant,
    /// Whoever sets this first decides: the writer that it is done, or the caller that it never will be.
    pub(super) claimed: Arc<AtomicBool>,
    /// The place in the queue, free again once the command has been taken from it.
    pub(super) place: OwnedSemaphorePermit,
    /// What the step may do.
    pub(super) kind: Kind,
    /// Does the step.
    pub(super) apply: Apply,
}

/// What a step may do to the table. In a batch the first kind comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Nothing: it can be answered while the file cannot be written.
    Look,
    /// Anything.
    Change,
}

/// Applies a step to the table at a time since boot, or takes the reason why that cannot be done.
pub(super) type Apply = Box<dyn FnOnce(Result<(&mut Table, Duration), StoreError>) -> Answer + Send>;
/// Sends the answer, once it is known whether the step was committed.
pub(super) type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The committed state, and the file that holds it.
pub(super) struct State {
    /// Everything, as it is in the file, but for a batch on its way there.
    table: Table,
    /// `None` for a store that keeps nothing.
    file: Option<StoreFile>,
    /// Why the file cannot be written at present, if it cannot. The table is what it holds all the same.
    unwritable: Option<String>,
}

/// The thread's own things.
pub(super) struct Writer {
    /// What is to be done.
    pub(super) queue: Receiver<Message>,
    /// Where the file is, to open it again after a failure.
    pub(super) path: Option<PathBuf>,
    /// The settings of the store.
    pub(super) settings: EmbeddedSettings,
    /// The clocks.
    pub(super) clock: Arc<dyn Clock>,
    /// Where those who wait are told.
    pub(super) hints: broadcast::Sender<Hint>,
    /// The state, or why there is none at present.
    pub(super) state: Result<State, String>,
}

impl Command {
    /// Answers that nothing was done.
    fn refuse(self, error: StoreError) {
        (self.apply)(Err(error))(Ok(()));
    }
}

impl State {
    /// A state that is kept nowhere.
    pub(super) fn in_memory(settings: &EmbeddedSettings, clock: &dyn Clock) -> Self {
        let mut table = Table::new(settings.clone());
        table.start_run(0, clock.wall());
        Self { table, file: None, unwritable: None }
    }

    /// The state that a file holds.
    pub(super) fn read(
        path: &Path,
        if_missing: IfMissing,
        settings: &EmbeddedSettings,
        clock: &dyn Clock,
    ) -> Result<Self, OpenError> {
        let (file, table) = StoreFile::open(path, if_missing, settings, clock)?;
        Ok(Self { table, file: Some(file), unwritable: None })
    }

    /// Writes what changed. Written even if nothing did, when opening: that shows that the file can be written.
    pub(super) fn save(&mut self, now: Moment) -> Result<(), StoreError> {
        let changes = self.table.take_changes();
        match &mut self.file {
            Some(file) => file.write(&self.table, &changes, now),
            None => Ok(()),
        }
    }

    /// The number of the last batch on disk.
    fn batch(&self) -> Option<u64> {
        self.file.as_ref().map(StoreFile::batch)
    }
}

impl Writer {
    /// Works until it is told to stop, or until nobody is left who could send anything.
    pub(super) fn run(mut self) {
        let (mut tidied, mut pause) = (Instant::now(), TIDY_EVERY);
        let mut stopping = None;
        while stopping.is_none() {
            let (commands, stop) = match self.queue.recv_timeout(pause) {
                Ok(first) => self.collect(first),
                Err(RecvTimeoutError::Timeout) => (Vec::new(), None),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            stopping = stop;
            if !commands.is_empty() {
                self.serve(commands);
            }
            if tidied.elapsed() >= pause {
                pause = if self.tidy() { TIDY_EVERY } else { TIDY_ON_AFTER };
                tidied = Instant::now();
            }
        }
        self.finish(stopping);
    }

    /// Takes what has queued up behind the first message, up to a full batch or the order to stop.
    fn collect(&self, first: Message) -> (Vec<Command>, Option<oneshot::Sender<()>>) {
        let mut commands = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Command(command) => commands.push(command),
                Message::Stop(stopped) => return (commands, Some(stopped)),
            }
            next = if commands.len() < BATCH_LIMIT { self.queue.try_recv().ok() } else { None };
        }
        (commands, None)
    }

    /// Applies commands, commits them together, and then answers each.
    ///
    /// Looks come first. All of these commands are under way at once, so any order is right, and whoever sees nothing
    /// of the changes of this batch depends on no commit.
    fn serve(&mut self, mut commands: Vec<Command>) {
        commands.sort_by_key(|command| command.kind);
        let changes = commands.last().is_some_and(|command| command.kind == Kind::Change);
        let is_broken = self.state.as_ref().map_or(true, |state| changes && state.unwritable.is_some());
        if is_broken {
            self.reopen();
        }
        let state = match &mut self.state {
            Ok(state) => state,
            Err(reason) => {
                let error = StoreError::Unavailable(reason.clone());
                return commands.into_iter().for_each(|command| command.refuse(error.clone()));
            }
        };
        let now = self.clock.boot();
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            if Instant::now() >= command.deadline || command.claimed.swap(true, Ordering::AcqRel) {
                command.refuse(super::too_late());
                continue;
            }
            if let (Kind::Change, Some(reason)) = (command.kind, &state.unwritable) {
                command.refuse(StoreError::Unavailable(reason.clone()));
                continue;
            }
            drop(command.place);
            let before = state.table.change_count();
            let answer = (command.apply)(Ok((&mut state.table, now)));
            match state.table.change_count() {
                // All that it can have seen is in the file already.
                0 => answer(Ok(())),
                after => answers.push((answer, after > before)),
            }
        }
        let committed = self.commit();
        self.tell();
        for (answer, changed) in answers {
            answer(match &committed {
                // Whatever became of the batch: a command that changed nothing has certainly done nothing.
                Err(StoreError::Unknown(reason)) if !changed => Err(StoreError::Unavailable(reason.clone())),
                committed => committed.clone(),
            });
        }
    }

    /// Tells those who wait what concerns them, once it is durable. They look for themselves, so no harm is done by a
    /// hint of something that was not.
    fn tell(&mut self) {
        let Ok(state) = &mut self.state else { return };
        for hint in state.table.take_hints() {
            // Nobody listens before somebody waits.
            let _ = self.hints.send(hint);
        }
    }

    /// Makes what changed durable, if anything did.
    fn commit(&mut self) -> Result<(), StoreError> {
        let now = Moment::now(&*self.clock);
        let Ok(state) = &mut self.state else { return Ok(()) };
        if state.table.change_count() == 0 {
            return Ok(());
        }
        let purged = (PURGED_PER_CHANGE * state.table.change_count()).clamp(LEAST_PURGED, MOST_PURGED);
        state.table.purge(now.boot, purged);
        let last_batch = state.batch();
        let Err(error) = state.save(now) else { return Ok(()) };
        let (StoreError::Unavailable(reason) | StoreError::Unknown(reason)) = &error;
        tracing::error!(%reason, "the store failed");
        // The table holds what was not committed, and redb refuses to go on after a failure: both are dropped here.
        self.state = Err(reason.clone());
        let found = self.reopen();
        match error {
            // A batch that is not in the file now never will be: opening it made the batch before the last durable.
            StoreError::Unknown(reason) if found.is_some() && found == last_batch => {
                Err(StoreError::Unavailable(reason))
            }
            error => Err(error),
        }
    }

    /// Tries to get a state from the file, and to write to it. Returns the number of the last batch found in it.
    fn reopen(&mut self) -> Option<u64> {
        let path = self.path.as_deref()?;
        // It is closed first: nobody, and so not even we, can have it open twice.
        self.state = Err("the file is closed".to_owned());
        let mut state = match State::read(path, IfMissing::Fail, &self.settings, &*self.clock) {
            Ok(state) => state,
            Err(error) => {
                self.state = Err(error.to_string());
                return None;
            }
        };
        let found = state.batch();
        match state.save(Moment::now(&*self.clock)) {
            Ok(()) => tracing::info!("the store works again"),
            Err(StoreError::Unavailable(reason) | StoreError::Unknown(reason)) => {
                state.unwritable = Some(reason);
            }
        }
        self.state = Ok(state);
        found
    }

    /// Removes some of what has ended, so that neither memory nor file grows with the keys that were ever used. Returns whether
    /// that was all.
    fn tidy(&mut self) -> bool {
        let Ok(state) = &mut self.state else { return true };
        if state.unwritable.is_some() {
            return true;
        }
        let is_all = state.table.purge(self.clock.boot(), MOST_PURGED);
        state.table.purge_lines(self.clock.boot());
        // A failure is logged there, and nobody waits for this.
        let _ = self.commit();
        is_all
    }

    /// Closes the file, and only then says so.
    fn finish(self, stopping: Option<oneshot::Sender<()>>) {
        drop(self.state);
        let mut stopped: Vec<_> = stopping.into_iter().collect();
        while let Ok(message) = self.queue.try_recv() {
            match message {
                Message::Command(command) => command.refuse(super::closed()),
                Message::Stop(another) => stopped.push(another),
            }
        }
        for stopped in stopped {
            // Whoever asked may have gone.
            let _ = stopped.send(());
        }
    }
}
