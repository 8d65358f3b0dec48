//! A table that no file keeps: each caller does its own step, as there is no commit to wait for and to share.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::store::{Hint, StoreError};

use super::EmbeddedSettings;
use super::queue::{closed, too_late};
use super::table::{LEAST_PURGED, MOST_PURGED, TIDY_EVERY, TIDY_ON_AFTER, Table};

/// The table, and what is needed to do a step.
pub(super) struct AtOnce {
    /// `None` once the store is closed. A step that panics poisons it: then it may be wrong, and no one is answered from it.
    open: Mutex<Option<Open>>,
    clock: Arc<dyn Clock>,
    /// Where waiters are told.
    hints: broadcast::Sender<Hint>,
}

/// What there is until the store is closed.
struct Open {
    table: Table,
    /// When all that has ended is looked for again, and not only the little that each step removes.
    tidy_at: Duration,
}

impl AtOnce {
    pub(super) fn new(
        settings: EmbeddedSettings,
        clock: Arc<dyn Clock>,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let mut table = Table::new(settings);
        table.start_run(0, clock.wall());
        let open = Open { table, tidy_at: clock.boot() + TIDY_EVERY };
        Self { open: Mutex::new(Some(open)), clock, hints }
    }

    /// Does one step, if it is not too late.
    pub(super) fn apply<T>(
        &self,
        deadline: Instant,
        step: impl FnOnce(&mut Table, Duration) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Ok(mut open) = self.open.lock() else { return Err(closed()) };
        let Some(open) = &mut *open else { return Err(closed()) };
        if Instant::now() >= deadline {
            return Err(too_late());
        }
        // Looked at under the lock, so that no step comes before the one that it follows.
        let now = self.clock.boot();
        let done = step(&mut open.table, now);
        self.settle(open, now);
        done
    }

    /// Removes some of what has ended, and tells waiters what concerns them.
    fn settle(&self, Open { table, tidy_at }: &mut Open, now: Duration) {
        if now < *tidy_at {
            table.purge(now, LEAST_PURGED);
        } else {
            table.purge_lines(now);
            *tidy_at = now + if table.purge(now, MOST_PURGED) { TIDY_EVERY } else { TIDY_ON_AFTER };
        }
        // Nothing is ever undone.
        drop(table.take_changes());
        for hint in table.take_hints() {
            // Without a waiter there is no listener.
            let _ = self.hints.send(hint);
        }
    }

    /// Removes what has ended while no step is asked for, until the store is closed.
    pub(super) fn tidy_until_closed(&self) {
        let mut pause = TIDY_EVERY;
        loop {
            thread::park_timeout(pause);
            let Ok(mut open) = self.open.lock() else { return };
            let Some(open) = &mut *open else { return };
            let now = self.clock.boot();
            self.settle(open, now);
            pause = open.tidy_at.saturating_sub(now);
        }
    }

    /// Whether it answers.
    pub(super) fn is_sound(&self) -> bool {
        !self.open.is_poisoned()
    }

    /// Forgets everything.
    pub(super) fn close(&self) {
        let open = self.open.lock().map(|mut open| open.take());
        drop(open);
    }
}
