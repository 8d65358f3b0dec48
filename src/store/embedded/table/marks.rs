//! Marks: what may no longer be granted to a token.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::life::Life;
use super::super::record::{Mark, Record, RecordId, Verdict};
use super::Table;
use crate::lock::{Attempt, LockKey, TokenHash};

impl Table {
    /// Voids an attempt, so that a copy of it that arrives later takes nothing.
    pub(super) fn void(&mut self, key: &LockKey, token: &TokenHash, attempt: Attempt, now: Duration) {
        let verdict = match self.verdict(key, token, now) {
            // A token that was released is refused as a whole, and so for as long as the attempt would be.
            Some(verdict) => verdict.clone(),
            None => Verdict::Voided(VecDeque::new()),
        };
        self.put_mark(key, token, verdict.voiding(attempt), now);
    }

    /// Sets the mark of a token, for a whole life from now on.
    pub(super) fn put_mark(&mut self, key: &LockKey, token: &TokenHash, verdict: Verdict, now: Duration) {
        let length = self.settings.mark_ttl;
        self.put_by(RecordId::mark(key, token), |before| {
            let life = match before {
                // It goes on: by a clock that was set back since, a new one would end before it.
                Some(Record::Mark(mark)) if !mark.life.is_over(now) => mark.life.given(now, length),
                _ => Life::starting(now, length),
            };
            Some(Record::Mark(Mark { verdict, life }))
        });
    }

    /// What the mark of a token says, if there is one.
    pub(super) fn verdict(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Option<&Verdict> {
        match self.records.get(&RecordId::mark(key, token)) {
            Some(Record::Mark(mark)) if !mark.life.is_over(now) => Some(&mark.verdict),
            _ => None,
        }
    }
}
