//! Listing locks, in the order of their keys.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

use super::super::record::Record;
use super::Table;
use crate::lock::{Listed, LockKey, Page};

/// The most records that one step looks at, since all others wait for it.
const MOST_AT_ONCE: usize = 1_000;
/// The most places at which lists were left that are remembered; past it, the oldest are forgotten.
const MOST_CURSORS: usize = 1_024;

/// Where lists were left. A cursor is a number that says nothing: whoever is shown it may not be allowed to know of the
/// lock at which the list was left.
#[derive(Debug, Default)]
pub(super) struct Cursors(VecDeque<(String, LockKey)>);

impl Cursors {
    fn put(&mut self, key: LockKey) -> String {
        if self.0.len() == MOST_CURSORS {
            self.0.pop_front();
        }
        let cursor = format!("{:016x}", rand::random::<u64>());
        self.0.push_back((cursor.clone(), key));
        cursor
    }

    fn get(&self, cursor: &str) -> Option<&LockKey> {
        // The last ones are asked for most.
        self.0.iter().rev().find(|(known, _)| known == cursor).map(|(_, key)| key)
    }
}

impl Table {
    /// Lists some of the locks that are held and whose keys begin with `prefix`, from the place of the cursor on.
    pub(in super::super) fn list(
        &mut self,
        prefix: &str,
        cursor: Option<&str>,
        limit: usize,
        now: Duration,
    ) -> Page {
        let first = match LockKey::parse(prefix.as_bytes()) {
            Ok(key) => Bound::Included(key),
            Err(_) if prefix.is_empty() => Bound::Unbounded,
            // No key begins with what can be in none.
            Err(_) => return Page::default(),
        };
        let left_at = cursor.and_then(|cursor| self.cursors.get(cursor));
        let from = match left_at.filter(|key| key.as_str() >= prefix) {
            Some(key) => Bound::Excluded(key.clone()),
            None => first,
        };
        let mut page = Page::default();
        let mut last = None;
        for (examined, (key, record)) in self.records.locks_from(from).enumerate() {
            let Record::Lock(lock) = record else { break };
            if !key.as_str().starts_with(prefix) {
                break;
            }
            if examined == MOST_AT_ONCE || page.locks.len() == limit {
                page.next = last.map(|key: &LockKey| self.cursors.put(key.clone()));
                break;
            }
            last = Some(key);
            if !lock.life.is_over(now) {
                let waiters = self.lines.waiters(key);
                page.locks.push(Listed { key: key.clone(), lease: lock.lease(now), waiters });
            }
        }
        page
    }
}
