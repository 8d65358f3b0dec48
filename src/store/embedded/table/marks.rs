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
        // A mark that is there goes on: by a clock that was set back since, a new one would end before it.
        let life = match self.mark(key, token, now) {
            Some(mark) => mark.life.given(now, length),
            None => Life::starting(now, length),
        };
        self.put(RecordId::mark(key, token), Some(Record::Mark(Mark { verdict, life })));
    }

    /// What the mark of a token says, if there is one.
    pub(super) fn verdict(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Option<&Verdict> {
        self.mark(key, token, now).map(|mark| &mark.verdict)
    }

    fn mark(&self, key: &LockKey, token: &TokenHash, now: Duration) -> Option<&Mark> {
        match self.records.get(&RecordId::mark(key, token)) {
            Some(Record::Mark(mark)) if !mark.life.is_over(now) => Some(mark),
            _ => None,
        }
    }
}
