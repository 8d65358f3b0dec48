//! A piece of work as the embedded store keeps it, and how it lies in the file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use redb::{Builder, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use crate::clock::whole_ms;
use crate::lock::{Attempt, FencingToken, Lease, LockKey, Note, TokenHash, Ttl};
use crate::once::{
    Fingerprint, Keep, MEMORY, Place, RecordView, ResultView, Stored, WorkResult, WorkState, WorkStatus,
    Worker,
};

use super::record::{Life, Record, RecordId};
use super::rows::{LifeRow, Moment, life_row, nanoseconds, restored};

/// What one record takes in memory and in the file, its body aside.
pub(super) const RECORD_BYTES: u64 = 350;

/// A piece of work: its worker's place, or its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Whose place it is, or who has stored the result. [Nobody](TokenHash::NOBODY) once the place was given up or broken.
    pub(super) token: TokenHash,
    /// The attempt that was granted; `None` once the grant is pinned.
    pub(super) attempt: Option<Attempt>,
    /// The number of the last grant.
    pub(super) fence: FencingToken,
    /// What its worker said of it.
    pub(super) note: Note,
    /// How many workers before may have done the work, or a part of it,
    pub(super) earlier: u64,
    /// and the number of the last of them.
    pub(super) earlier_fence: Option<FencingToken>,
    /// Which requests the record is for, if that was said.
    pub(super) fingerprint: Option<Fingerprint>,
    /// How long the result is to be kept, as the begin said.
    pub(super) keep: Keep,
    /// The lease. Nothing is left of it where there is a result, or no worker.
    pub(super) lease: Life,
    /// How long the record lives: for as long as the result is kept, or else for [`MEMORY`] beyond its lease.
    pub(super) life: Life,
    /// The result, if there is one.
    pub(super) result: Option<StoredResult>,
}

/// A result that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredResult {
    /// When it was stored.
    pub(super) stored: Since,
    /// The result. Its body is shared with all who are told it.
    pub(super) result: WorkResult,
}

/// A moment in the past, which may have been before the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since {
    /// A time since boot,
    pub(super) at: Duration,
    /// and how long before that it was.
    pub(super) before: Duration,
}

impl Since {
    /// How long ago it was.
    fn age(self, now: Duration) -> Duration {
        now.saturating_sub(self.at) + self.before
    }
}

impl Work {
    /// Whether its worker's lease runs.
    pub(super) fn is_under_way(&self, now: Duration) -> bool {
        self.result.is_none() && !self.is_nobodys() && !self.lease.is_over(now)
    }

    /// Whether it has neither a worker nor a result.
    pub(super) fn is_nobodys(&self) -> bool {
        self.token == TokenHash::NOBODY
    }

    /// How much of the room for records it takes.
    pub(super) fn bytes(&self) -> u64 {
        RECORD_BYTES + self.body().map_or(0, |body| body.len() as u64)
    }

    /// The result itself, if there is one.
    pub(super) fn body(&self) -> Option<&Bytes> {
        self.result.as_ref().map(|stored| &stored.result.body)
    }

    /// The place as every client may see it.
    pub(super) fn place(&self, now: Duration) -> Place {
        let lease = Lease {
            fencing_token: self.fence,
            left_ms: self.lease.left_ms(now),
            note: self.note.clone(),
            is_released: self.is_nobodys(),
        };
        Place { lease, earlier: self.earlier, earlier_fencing_token: self.earlier_fence }
    }

    /// Who is at work, or was.
    pub(super) fn worker(&self, now: Duration) -> Worker {
        Worker { token: self.token, place: self.place(now), fingerprint: self.fingerprint }
    }

    /// The result, if there is one.
    pub(super) fn stored(&self, now: Duration) -> Option<Stored> {
        let StoredResult { stored, result } = self.result.as_ref()?;
        Some(Stored {
            fencing_token: self.fence,
            age_ms: whole_ms(stored.age(now)),
            kept_ms: self.life.left_ms(now),
            fingerprint: self.fingerprint,
            result: result.clone(),
        })
    }

    /// All but the result, as it is told to `token`, or to somebody without one.
    pub(super) fn view(&self, token: Option<&TokenHash>, now: Duration) -> RecordView {
        let result = self.result.as_ref().map(|StoredResult { stored, result }| ResultView {
            age_ms: whole_ms(stored.age(now)),
            bytes: result.body.len() as u64,
            status: result.status,
            content_type: result.content_type.clone(),
        });
        RecordView {
            state: match result {
                Some(_) => WorkState::Done,
                None if self.is_under_way(now) => WorkState::Working,
                None => WorkState::Lapsed,
            },
            place: self.place(now),
            yours: token.map(|token| self.token == *token),
            result,
            forgotten_in_ms: self.life.left_ms(now),
        }
    }

    /// The same, pinned, with a lease of at least `ttl`. The record outlives it.
    pub(super) fn extended(&self, ttl: Ttl, now: Duration) -> Self {
        let lease = self.lease.extended(now, ttl.as_duration());
        Self {
            attempt: None,
            lease,
            life: self.life.extended(now, ttl.as_duration() + MEMORY),
            ..self.clone()
        }
    }

    /// What stays of it once nobody is at work: that somebody was. The memory of that is not made shorter.
    pub(super) fn left_to_nobody(&self, is_clean: bool, now: Duration) -> Self {
        let counted = Self { earlier: self.earlier + 1, earlier_fence: Some(self.fence), ..self.clone() };
        let memory = if self.result.is_some() { MEMORY } else { Duration::ZERO };
        Self {
            token: TokenHash::NOBODY,
            attempt: None,
            lease: Life::starting(now, Duration::ZERO),
            life: self.life.extended(now, memory),
            result: None,
            ..if is_clean { self.clone() } else { counted }
        }
    }
}

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
        let stored_at = now.wall.saturating_sub(stored.age(now.boot));
        (nanoseconds(stored_at), result.status.map(WorkStatus::get), result.content_type.as_deref())
    });
    (
        (work.token.as_bytes(), attempt, work.fence.get(), work.note.stored()),
        (work.earlier, earlier_fence, fingerprint, whole_ms(work.keep.as_duration())),
        life_row(work.lease, now),
        life_row(work.life, now),
        result,
    )
}

/// The record in a row of `ONCE`, or `None` where the row makes no sense. A result has a body in another table.
pub(super) fn read_work(
    key: &str,
    (place, terms, lease, life, result): WorkRow<'_>,
    body: Option<Bytes>,
    now: Moment,
    same_boot: bool,
) -> Option<(RecordId, Record)> {
    let (token, attempt, fence, note) = place;
    let (earlier, earlier_fence, fingerprint, keep_ms) = terms;
    let (mut life, has_result) = (restored(life, now, same_boot), result.is_some());
    // Over a reboot only the wall clock says that the memory of a worker is over, and it may be wrong. To remember it for
    // longer costs little. To forget it costs the promise that nobody was at work before. So what ended while the machine was
    // off is remembered once more for as long. A clock that is ahead can still leave less of it than there should be.
    if !has_result && !same_boot && life.is_over(now.boot) {
        life = Life::starting(now.boot, MEMORY);
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
            Some(StoredResult { stored: Since { at: now.boot, before }, result })
        }
    };
    let work = Work {
        token: TokenHash::from_bytes(*token),
        attempt: attempt.map(|bytes| Attempt::from_bytes(*bytes)),
        fence: FencingToken::new(fence)?,
        note: Note::from_stored(note)?,
        earlier,
        earlier_fence: FencingToken::new(earlier_fence),
        fingerprint: fingerprint.map(|bytes| Fingerprint::from_bytes(*bytes)),
        keep: Keep::new(Duration::from_millis(keep_ms))?,
        lease: restored(lease, now, same_boot),
        life,
        result,
    };
    let key = LockKey::parse(key.as_bytes()).ok()?;
    Some((RecordId::Work(key), Record::Work(Box::new(work))))
}
