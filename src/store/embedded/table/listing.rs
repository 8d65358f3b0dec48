//! Listing locks, in the order of their keys.

use std::ops::Bound;
use std::time::Duration;

use super::super::record::Record;
use super::Table;
use crate::lock::{Listed, LockKey};

/// The most records that one step looks at, since all others wait for it.
const MOST_AT_ONCE: usize = 1_000;

impl Table {
    /// Lists some of the locks that are held and whose keys begin with `prefix`, from behind the key `after` on; and says
    /// behind which key to go on, unless that was all.
    pub(in super::super) fn list(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        limit: usize,
        now: Duration,
    ) -> (Vec<Listed>, Option<LockKey>) {
        let from = match (after, LockKey::parse(prefix.as_bytes())) {
            (Some(key), _) => Bound::Excluded(key.clone()),
            (None, Ok(key)) => Bound::Included(key),
            (None, Err(_)) if prefix.is_empty() => Bound::Unbounded,
            // No key begins with what can be in none.
            (None, Err(_)) => return (Vec::new(), None),
        };
        let (mut locks, mut last) = (Vec::new(), None::<&LockKey>);
        for (examined, (key, record)) in self.records.locks_from(from).enumerate() {
            let Record::Lock(lock) = record else { break };
            if !key.as_str().starts_with(prefix) {
                break;
            }
            if examined == MOST_AT_ONCE || locks.len() == limit {
                return (locks, last.cloned());
            }
            last = Some(key);
            if !lock.life.is_over(now) {
                let waiters = self.lines.waiters(key);
                locks.push(Listed { key: key.clone(), lease: lock.lease(now), waiters });
            }
        }
        (locks, None)
    }
}
