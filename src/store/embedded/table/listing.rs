//! Listing locks, in the order of their keys.

use std::ops::Bound;
use std::time::Duration;

use super::super::record::Record;
use super::Table;
use crate::lock::{Listed, LockKey, Reach};

/// The most records that one step looks at, since all others wait for it.
const MOST_AT_ONCE: usize = 1_000;

impl Table {
    /// Lists some of the locks that are held and within reach, from behind the key `after` on; and says behind which key to
    /// go on, unless that was all.
    pub(in super::super) fn list(
        &mut self,
        reach: &Reach,
        after: Option<&LockKey>,
        limit: usize,
        now: Duration,
    ) -> (Vec<Listed>, Option<LockKey>) {
        let (mut locks, mut last, mut examined) = (Vec::new(), None, 0);
        for prefix in reach.prefixes() {
            let Some(from) = beginning(prefix, after) else { continue };
            for (key, record) in self.records.locks_from(from) {
                let Record::Lock(lock) = record else { break };
                if !key.as_str().starts_with(prefix) {
                    break;
                }
                let is_listed = !lock.life.is_over(now) && reach.may_see(key);
                // Whether there is another page, too, is said by what would be on it alone.
                if examined == MOST_AT_ONCE || is_listed && locks.len() == limit {
                    return (locks, last);
                }
                examined += 1;
                last = Some(key.clone());
                if is_listed {
                    let waiters = self.queues.waiters(key, now);
                    locks.push(Listed { key: key.clone(), lease: lock.lease(now), waiters });
                }
            }
        }
        (locks, None)
    }
}

/// Where what begins with `prefix` goes on behind the key `after`; `None` where nothing of it does.
fn beginning(prefix: &str, after: Option<&LockKey>) -> Option<Bound<LockKey>> {
    match after.filter(|after| after.as_str() >= prefix) {
        Some(after) => after.as_str().starts_with(prefix).then(|| Bound::Excluded(after.clone())),
        None if prefix.is_empty() => Some(Bound::Unbounded),
        // No key begins with what can be in none.
        None => Some(Bound::Included(LockKey::parse(prefix.as_bytes()).ok()?)),
    }
}
