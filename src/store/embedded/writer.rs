//! The one that changes the store: it takes what has queued up, applies it, commits once, then answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, oneshot};

use crate::clock::Clock;
use crate::store::{Hint, StoreError};

use super::disk::Disk;
use super::file::StoreFile;
use super::life::{Moment, judge_clock};
use super::queue::{Answer, Command, DiskWatch, Kind, Message, closed, too_late};
use super::table::{Change, LEAST_PURGED, MOST_PURGED, TIDY_EVERY, TIDY_ON_AFTER, Table};
use super::{EmbeddedSettings, OpenError};

/// The most commands that share one commit.
const BATCH_LIMIT: usize = 1_024;
/// Once the results in a batch have so many bytes, it is full. With one more of the longest they are 8 MiB, so that the commit of a
/// lock among them never waits for more.
const BATCH_BYTES: usize = 7 * 1024 * 1024;
/// How many ended records a commit removes for each record that it changes. No command makes more than one, so ended
/// records cannot pile up, and they delay the commit only a little.
const PURGED_PER_CHANGE: usize = 2;
/// How often a file that cannot be written is tried again where no change is asked for. That reads all of it.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The committed state, and the file that holds it.
pub(super) struct State {
    /// Everything that is on disk, but for a batch on its way there.
    table: Table,
    kept: Kept,
}

/// Where the state is kept.
struct Kept {
    disk: Arc<Disk>,
    /// `None` after a failure.
    file: Option<StoreFile>,
    /// The number of the last batch that is certainly on disk.
    batch: u64,
    /// Why the file cannot be written at present, if it cannot.
    unwritable: Option<String>,
    /// When it was last tried to open it anew.
    tried: Instant,
    /// Whether the table may be wrong: the file may hold changes that were undone, or is not where it was.
    is_in_doubt: bool,
}

/// The one that changes a store. It works in a thread of its own, or where it is called.
pub struct Writer {
    /// What is to be done.
    pub(super) queue: Receiver<Message>,
    /// The settings of the store.
    pub(super) settings: EmbeddedSettings,
    /// The clocks.
    pub(super) clock: Arc<dyn Clock>,
    /// Where waiters are told.
    pub(super) hints: broadcast::Sender<Hint>,
    /// Where it is told how this gets on.
    pub(super) disk_watch: Arc<DiskWatch>,
    /// The state.
    pub(super) state: State,
    /// When it was last begun to look for the file, and to remove what has ended,
    pub(super) tidied: Instant,
    /// also by the clock that counts while the machine sleeps,
    pub(super) tidied_at_boot: Duration,
    /// and after how long that is done again.
    pub(super) pause: Duration,
}

/// Commands that share one commit, and that are not answered yet.
#[must_use]
pub struct Batch {
    committed: Result<(), StoreError>,
    /// Each with whether its command changed anything.
    answers: Vec<(Answer, bool)>,
    /// The way to answer the order to stop.
    stopping: Option<oneshot::Sender<()>>,
}

impl State {
    /// The state that lies on a disk.
    pub(super) fn read(
        disk: Arc<Disk>,
        settings: &EmbeddedSettings,
        clock: &dyn Clock,
    ) -> Result<Self, OpenError> {
        let file = StoreFile::open(&disk, clock)?;
        let table = file.read(&disk, settings, clock)?;
        let (batch, file, tried) = (file.batch(), Some(file), Instant::now());
        let kept = Kept { disk, batch, file, unwritable: None, tried, is_in_doubt: false };
        Ok(Self { table, kept })
    }

    /// Writes what changed `since` then, or undoes it. Written even if nothing did, when opening: that shows that the file can be written.
    pub(super) fn save(&mut self, now: Moment, since: Duration) -> Result<(), StoreError> {
        let changes = self.table.take_changes();
        self.table.tell(&changes, now);
        let written = self.write(&changes, now);
        if let Err(error) = &written {
            // The writer answers only what is certainly on disk. After a failure redb refuses to go on.
            self.kept.fail(error, matches!(error, StoreError::Unknown(_)) && !changes.is_empty());
            self.table.undo(changes, since);
        }
        written
    }

    /// Writes them, and looks whether that came to the file that a successor would open.
    fn write(&mut self, changes: &[Change], now: Moment) -> Result<(), StoreError> {
        self.check_place()?;
        let Some(file) = &mut self.kept.file else {
            return Err(StoreError::Unavailable("the file is closed".to_owned()));
        };
        file.write(&self.table, changes, now)?;
        let batch = file.batch();
        // What was written to a file that was replaced meanwhile is unknown to the gateway that has the new one.
        self.check_place().map_err(|error| StoreError::Unknown(error.into_reason()))?;
        self.kept.batch = batch;
        Ok(())
    }

    /// Closes the file if it is not where it was opened.
    fn check_place(&mut self) -> Result<(), StoreError> {
        self.kept.disk.check_place().map_err(|error| {
            let error = StoreError::Unavailable(format!("the file cannot be written: {error}"));
            self.kept.fail(&error, true);
            error
        })
    }

    /// Why such a step cannot be done at present, if so.
    fn obstacle(&self, kind: Kind) -> Option<&String> {
        let is_answered = kind == Kind::Look && !self.kept.is_in_doubt;
        self.kept.unwritable.as_ref().filter(|_| !is_answered)
    }

    /// After a failure: opens the file anew, and writes to it. Returns whether a batch in doubt is now certainly lost.
    fn reopen(&mut self, settings: &EmbeddedSettings, clock: &dyn Clock) -> bool {
        let found = self.kept.recover(settings, clock);
        self.kept.tried = Instant::now();
        let found = match found {
            Ok(found) => found,
            Err(reason) => {
                // Where it is away, what is known here may be what another gateway has changed since.
                self.kept.is_in_doubt |= self.kept.disk.check_place().is_err();
                self.kept.unwritable = Some(reason);
                return false;
            }
        };
        (self.kept.unwritable, self.kept.is_in_doubt) = (None, false);
        let is_lost = found.is_none();
        if let Some(table) = found {
            self.table.replace_records(table);
        }
        let now = Moment::now(clock);
        // Where the file was away, another gateway may have granted locks by the numbers of a file of its own.
        self.table.start_run(self.table.last_fence(), now.wall);
        if self.save(now, now.boot).is_ok() {
            tracing::info!("the store works again: locks are granted");
        }
        is_lost
    }
}

impl Kept {
    /// Closes the file, for this reason, and notes whether the table may be wrong since.
    fn fail(&mut self, reason: &StoreError, is_in_doubt: bool) {
        self.close();
        self.unwritable = Some(reason.to_string());
        self.is_in_doubt |= is_in_doubt;
    }

    /// Closes the file, to which redb writes then what it has in memory. What another program has written there is left as it is.
    fn close(&mut self) {
        let opened = self.file.take();
        if opened.is_some() && !self.disk.may_be_closed() {
            let file = self.disk.path().display();
            tracing::error!(%file, "another program has changed the file of the store: it stays as it is, and may lack what was granted");
            std::mem::forget(opened);
        }
    }

    /// Opens the file anew. Returns what it holds where that is one batch more than was certain; else the table is what it holds,
    /// and opening it made sure that it stays so.
    fn recover(&mut self, settings: &EmbeddedSettings, clock: &dyn Clock) -> Result<Option<Table>, String> {
        let file = StoreFile::open(&self.disk, clock).map_err(|error| error.to_string())?;
        let table = match file.batch().checked_sub(self.batch) {
            Some(0) => None,
            Some(1) => Some(file.read(&self.disk, settings, clock).map_err(|error| error.to_string())?),
            // To go on would forget what was told.
            _ => return Err("the file does not hold what was written to it".to_owned()),
        };
        (self.batch, self.file) = (file.batch(), Some(file));
        Ok(table)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writer {
    /// Works until it is told to stop, or until no sender is left.
    pub(super) fn run(mut self) {
        loop {
            let batch = match self.queue.recv_timeout(self.pause) {
                Ok(first) => self.commit_with(Some(first)),
                Err(RecvTimeoutError::Timeout) => self.commit_with(None),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(writer) = self.answer(batch) else { return };
            self = writer;
        }
    }

    /// Does what has queued up, and commits it. Blocks on the disk, and on nothing else.
    pub fn commit_queued(&mut self) -> Batch {
        let first = self.queue.try_recv().ok();
        self.commit_with(first)
    }

    /// Answers what was committed, and removes what has ended. Returns nothing once the writer was told to stop: the file is
    /// closed then.
    pub fn answer(mut self, batch: Batch) -> Option<Self> {
        let Batch { committed, answers, stopping } = batch;
        self.tell();
        for (answer, changed) in answers {
            answer(match &committed {
                // Even if the batch failed, a command that changed nothing has certainly done nothing.
                Err(StoreError::Unknown(reason)) if !changed => Err(StoreError::Unavailable(reason.clone())),
                committed => committed.clone(),
            });
        }
        if self.tidied.elapsed() >= self.pause {
            self.begin_run_if_stood_still();
            // A standstill from here on is left to the next batch.
            (self.tidied, self.tidied_at_boot) = (Instant::now(), self.clock.boot());
            self.pause = if self.tidy() { TIDY_EVERY } else { TIDY_ON_AFTER };
        }
        self.disk_watch.end_batch(self.state.kept.unwritable.is_none());
        if stopping.is_some() {
            self.finish(stopping);
            return None;
        }
        Some(self)
    }

    fn commit_with(&mut self, first: Option<Message>) -> Batch {
        self.disk_watch.begin_batch();
        let (commands, stopping) = self.collect(first);
        let (committed, answers) = self.serve(commands);
        Batch { committed, answers, stopping }
    }

    /// Takes what has queued up behind the first message, up to a full batch or the order to stop.
    fn collect(&self, first: Option<Message>) -> (Vec<Command>, Option<oneshot::Sender<()>>) {
        let (mut commands, mut bytes) = (Vec::new(), 0);
        let mut next = first;
        while let Some(message) = next {
            match message {
                Message::Command(command) => {
                    bytes += if let Kind::Change { bytes } = command.kind { bytes } else { 0 };
                    commands.push(command);
                }
                Message::Stop(stopped) => return (commands, Some(stopped)),
            }
            let is_full = commands.len() == BATCH_LIMIT || bytes > BATCH_BYTES;
            next = if is_full { None } else { self.queue.try_recv().ok() };
        }
        (commands, None)
    }

    /// Applies commands, and commits them together. Returns the answers that had to wait for that.
    ///
    /// Looks come first. All of these commands are under way at once, so any order is right. A look that sees no change
    /// of this batch needs no commit.
    fn serve(&mut self, mut commands: Vec<Command>) -> (Result<(), StoreError>, Vec<(Answer, bool)>) {
        commands.sort_by_key(|command| command.kind != Kind::Look);
        self.begin_run_if_stood_still();
        let (mut now, mut has_reopened) = (self.clock.boot(), false);
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            // This reads the whole file, so the looks that need it not come before.
            if !has_reopened && self.state.obstacle(command.kind).is_some() {
                self.state.reopen(&self.settings, &*self.clock);
                (now, has_reopened) = (self.clock.boot(), true);
            }
            if Instant::now() >= command.deadline || command.claimed.swap(true, Ordering::AcqRel) {
                command.refuse(too_late());
                continue;
            }
            if let Some(reason) = self.state.obstacle(command.kind) {
                command.refuse(StoreError::Unavailable(reason.clone()));
                continue;
            }
            drop(command.place);
            let before = self.state.table.change_count();
            let answer = (command.apply)(Ok((&mut self.state.table, now)));
            match self.state.table.change_count() {
                // All that it can have seen is in the file already.
                0 => answer(Ok(())),
                after => answers.push((answer, after > before)),
            }
        }
        (self.commit(now), answers)
    }

    /// Where this process stood still, or the machine slept, the file may have been away, and another gateway may have granted locks meanwhile.
    fn begin_run_if_stood_still(&mut self) {
        let slept = self.clock.boot().saturating_sub(self.tidied_at_boot);
        let stood_still = self.tidied.elapsed().max(slept) > 2 * TIDY_EVERY;
        if stood_still && self.finds_file() && judge_clock(&*self.clock).is_ok() {
            self.state.table.start_run(self.state.table.last_fence(), self.clock.wall());
        }
    }

    /// Tells waiters what concerns them, once it is durable. They poll, so a wrong hint does no harm.
    fn tell(&mut self) {
        for hint in self.state.table.take_hints() {
            // Without a waiter there is no listener.
            let _ = self.hints.send(hint);
        }
    }

    /// Makes what changed durable, if anything did. A wall clock that was set is a change, too: over a reboot, the file needs what
    /// it was set to. The steps began at `since`.
    fn commit(&mut self, since: Duration) -> Result<(), StoreError> {
        let now = Moment::now(&*self.clock);
        let changed = self.state.table.change_count();
        if changed == 0 && !self.state.kept.file.as_ref().is_some_and(|file| file.is_stepped(now)) {
            return Ok(());
        }
        let purged = (PURGED_PER_CHANGE * changed).clamp(LEAST_PURGED, MOST_PURGED);
        self.state.table.purge(now.boot, purged);
        let Err(error) = self.state.save(now, since) else { return Ok(()) };
        log_failure(&error);
        match (error, self.state.reopen(&self.settings, &*self.clock)) {
            (StoreError::Unknown(reason), true) => Err(StoreError::Unavailable(reason)),
            (error, _) => Err(error),
        }
    }

    /// Removes some of what has ended, so that neither memory nor file grows without end. Returns whether that was all.
    fn tidy(&mut self) -> bool {
        if !self.finds_file() {
            return true;
        }
        if self.state.kept.unwritable.is_some() {
            // An alarm is to end without a client that asks.
            if self.state.kept.tried.elapsed() >= TRY_AGAIN_AFTER {
                self.state.reopen(&self.settings, &*self.clock);
            }
            return true;
        }
        let (now, table) = (self.clock.boot(), &mut self.state.table);
        let is_all = table.purge(now, MOST_PURGED);
        table.purge_lines(now);
        // A failure is logged there, and no caller waits for this.
        let _ = self.commit(now);
        is_all
    }

    /// Whether the file is still where it was. If not, nothing is granted or told from here on.
    fn finds_file(&mut self) -> bool {
        let is_writable = self.state.kept.unwritable.is_none();
        let lost = self.state.check_place().err();
        lost.iter().filter(|_| is_writable).for_each(log_failure);
        lost.is_none()
    }

    /// Closes the file, and only then says so.
    fn finish(self, stopping: Option<oneshot::Sender<()>>) {
        drop((self.state, self.disk_watch));
        let mut stopped: Vec<_> = stopping.into_iter().collect();
        while let Ok(message) = self.queue.try_recv() {
            match message {
                Message::Command(command) => command.refuse(closed()),
                Message::Stop(another) => stopped.push(another),
            }
        }
        for stopped in stopped {
            // The caller may have gone.
            let _ = stopped.send(());
        }
    }
}

fn log_failure(error: &StoreError) {
    tracing::error!(reason = %error, "the store failed: nothing is granted until it works again");
}

#[cfg(test)]
mod tests;
