//! What was written to a server: replicas follow it, and a server that loses data loses its end.

use std::collections::VecDeque;

use crate::data::Change;

/// How much of it is kept. A replica that lags by more must copy everything.
const LONGEST: usize = 4_096;

/// The last changes, in their order.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// How many came before the first that is kept.
    start: u64,
    changes: VecDeque<Change>,
}

impl History {
    /// Of a server that has copied another one up to there.
    pub(crate) fn from(start: u64) -> Self {
        Self { start, changes: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push_back(change);
        if self.changes.len() > LONGEST {
            self.changes.pop_front();
            self.start += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Change> {
        self.changes.pop_back()
    }

    /// How many there ever were.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.changes.len() as u64
    }

    /// The change behind so many others, if it is still kept.
    pub(crate) fn get(&self, place: u64) -> Option<&Change> {
        self.changes.get(usize::try_from(place.checked_sub(self.start)?).ok()?)
    }
}
