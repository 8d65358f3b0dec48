//! How pieces of work lie in the file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use redb::{Builder, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use crate::clock::whole_ms;
use crate::lock::{Attempt, FencingToken, LockKey, Note, TokenHash};
use crate::once::{Fingerprint, Keep, MEMORY, WorkResult, WorkStatus};

use super::life::{Life, LifeRow, Moment, WrittenIn, life_row, nanoseconds, restored};
use super::record::{Record, RecordId};
use super::work::{Since, StoredResult, Work};

/// Token hash, attempt (none once pinned), number, note (empty for none).
type PlaceRow<'a> = (&'a [u8; 32], Option<&'a [u8; 16]>, u64, &'a str);
/// How many were earlier, number of the last of them (0 for none), fingerprint, `keep` in milliseconds.
type TermsRow<'a> = (u64, u64, Option<&'a [u8; 16]>, u64);
/// When it was stored, in nanoseconds since the Unix epoch; status, media type.
type ResultRow<'a> = (u64, Option<u16>, Option<&'a str>);
/// Place, terms, lease, life, and the result but for its body.
pub(super) type WorkRow<'a> = (PlaceRow<'a>, TermsRow<'a>, LifeRow, LifeRow, Option<ResultRow<'a>>);

/// The records by their keys, without the bodies of results.
pub(super) const ONCE: TableDefinition<&str, WorkRow<'static>> = TableDefinition::new("once");
/// The records as they were before they were taken over. Most were not.
pub(super) const FORMER: TableDefinition<&str, WorkRow<'static>> = TableDefinition::new("former");
/// The bodies. They have a table of their own, so that nothing but storing a result writes one.
pub(super) const RESULTS: TableDefinition<&str, &[u8]> = TableDefinition::new("results");

/// How many records a file holds that was closed, and how many bytes of results; `None` where it never held any.
pub(super) fn count(path: &Path) -> Option<(u64, usize)> {
    let transaction = Builder::new().open_read_only(path).ok()?.begin_read().ok()?;
    let works = transaction.open_table(ONCE).ok()?.len().ok()?;
    let bodies = transaction.open_table(RESULTS).ok();
    let bytes = bodies.map_or(0, |bodies| {
        bodies.iter().map_or(0, |rows| rows.flatten().map(|(_, body)| body.value().len()).sum())
    });
    Some((works, bytes))
}

/// The row of a record.
pub(super) fn work_row(work: &Work, now: Moment) -> WorkRow<'_> {
    let attempt = work.attempt.as_ref().map(Attempt::as_bytes);
    let earlier_fence = work.earlier_fence.map_or(0, FencingToken::get);
    let fingerprint = work.fingerprint.as_ref().map(Fingerprint::as_bytes);
    let result = work.result.as_ref().map(|StoredResult { stored, result }| {
        let by_this_clock = || nanoseconds(now.wall.saturating_sub(stored.age(now.boot)));
        let stored_ns = stored.wall_ns.unwrap_or_else(by_this_clock);
        (stored_ns, result.status.map(WorkStatus::get), result.content_type.as_deref())
    });
    (
        (work.token.as_bytes(), attempt, work.fence.get(), work.note.stored()),
        (work.earlier, earlier_fence, fingerprint, whole_ms(work.keep.as_duration())),
        life_row(work.lease),
        life_row(work.life),
        result,
    )
}

/// The record in a row of `ONCE`, or `None` where the row makes no sense. A result has a body in another table, and what was there
/// before a take-over a row.
pub(super) fn read_work(
    key: &str,
    row: WorkRow<'_>,
    former: Option<WorkRow<'_>>,
    body: Option<Bytes>,
    now: Moment,
    written_in: WrittenIn,
) -> Option<(RecordId, Record)> {
    let former = match former {
        None => None,
        Some(row) => Some(Box::new(read_row(row, None, now, written_in)?)),
    };
    let work = read_row(row, body, now, written_in)?;
    // A program that does not know these rows leaves them.
    let is_its = |it: &Work| work.result.is_none() && work.earlier_fence == Some(it.fence);
    let work = Work { former: former.filter(|it| is_its(it)), ..work };
    let key = LockKey::parse(key.as_bytes()).ok()?;
    Some((RecordId::Work(key), Record::Work(Box::new(work))))
}

fn read_row(
    (place, terms, lease, life, result): WorkRow<'_>,
    body: Option<Bytes>,
    now: Moment,
    written_in: WrittenIn,
) -> Option<Work> {
    let (token, attempt, fence, note) = place;
    let (earlier, earlier_fence, fingerprint, keep_ms) = terms;
    let (mut life, has_result) = (restored(life, now, written_in), result.is_some());
    // Over a reboot only the wall clock says that the memory of a worker or of its result is over, and it may be wrong. To
    // remember it for longer costs little. To forget it costs the promise that no worker was there before. So what ended while the
    // machine was off is remembered once more for as long. A clock that is ahead can still leave less of it than there should be.
    if written_in != WrittenIn::ThisBoot && life.is_over(now.boot) {
        let kept = Duration::from_millis(life.longest_ms);
        life = Life::starting(now.boot, if has_result { kept } else { MEMORY });
    }
    let result = match result {
        None => None,
        Some((stored_ns, status, content_type)) => {
            let before = now.wall.saturating_sub(Duration::from_nanos(stored_ns));
            let status = match status {
                Some(status) => Some(WorkStatus::new(status)?),
                None => None,
            };
            let content_type = content_type.map(str::to_owned);
            let result = WorkResult { status, content_type, body: body? };
            Some(StoredResult { stored: Since { at: now.boot, before, wall_ns: Some(stored_ns) }, result })
        }
    };
    Some(Work {
        token: TokenHash::from_bytes(*token),
        attempt: attempt.map(|bytes| Attempt::from_bytes(*bytes)),
        fence: FencingToken::new(fence)?,
        note: Note::from_stored(note)?,
        earlier,
        earlier_fence: FencingToken::new(earlier_fence),
        former: None,
        fingerprint: fingerprint.map(|bytes| Fingerprint::from_bytes(*bytes)),
        keep: Keep::new(Duration::from_millis(keep_ms))?,
        lease: restored(lease, now, written_in),
        life,
        result,
    })
}
