//! Listing locks and pieces of work, in the order of their keys.

use std::ops::Bound;
use std::time::Duration;

use super::super::record::Record;
use super::Table;
use super::records::{Listable, Records};
use crate::lock::{Listed, LockKey, Reach};
use crate::once::RecordView;

/// The most records that one step looks at, since all others wait for it.
const MOST_AT_ONCE: usize = 1_000;

/// Some of what is listed, and the key behind which to go on, unless that was all.
pub(in super::super) type Piece<T> = (Vec<T>, Option<LockKey>);

impl Table {
    /// Lists some of the locks that are held and within reach, from behind the key `after` on.
    pub(in super::super) fn list(
        &mut self,
        reach: &Reach,
        after: Option<&LockKey>,
        limit: usize,
        now: Duration,
    ) -> Piece<Listed> {
        let Self { records, queues, .. } = self;
        piece(records, Listable::Locks, reach, after, limit, now, |key, record| match record {
            Record::Lock(lock) if !lock.life.is_over(now) => {
                let waiters = queues.waiters(key, now);
                Some(Listed { key: key.clone(), lease: lock.lease(now), waiters })
            }
            _ => None,
        })
    }

    /// Lists some of the pieces of work within reach, from behind the key `after` on.
    pub(in super::super) fn list_records(
        &mut self,
        reach: &Reach,
        after: Option<&LockKey>,
        limit: usize,
        now: Duration,
    ) -> Piece<(LockKey, RecordView)> {
        piece(&mut self.records, Listable::Works, reach, after, limit, now, |key, record| match record {
            Record::Work(work) if !work.life.is_over(now) => Some((key.clone(), work.view(None, now))),
            _ => None,
        })
    }
}

/// Goes through the records of one kind within reach, for at most `limit` of those of which there is something to say.
fn piece<T>(
    records: &mut Records,
    kind: Listable,
    reach: &Reach,
    after: Option<&LockKey>,
    limit: usize,
    now: Duration,
    said_of: impl Fn(&LockKey, &Record) -> Option<T>,
) -> Piece<T> {
    let (mut found, mut last, mut examined) = (Vec::new(), None, 0);
    for prefix in reach.prefixes() {
        let Some(from) = beginning(prefix, after) else { continue };
        for (key, record) in records.from(kind, from, now) {
            if !key.as_str().starts_with(prefix) {
                break;
            }
            let said = said_of(key, record).filter(|_| reach.may_see(key));
            // Whether there is another page, too, is said by what would be on it alone.
            if examined == MOST_AT_ONCE || said.is_some() && found.len() == limit {
                return (found, last);
            }
            examined += 1;
            last = Some(key.clone());
            found.extend(said);
        }
    }
    (found, None)
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
