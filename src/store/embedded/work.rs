//! A piece of work as the embedded store keeps it.

use std::time::Duration;

use crate::clock::whole_ms;
use crate::lock::{Attempt, FencingToken, Lease, LockKey, Note, TokenHash, Ttl};
use crate::once::{
    Fingerprint, Keep, MEMORY, Place, RecordView, ResultView, Stored, WorkResult, WorkState, Worker,
};
use bytes::Bytes;

use super::life::Life;

/// What one record takes in memory, its texts and its body aside. In the file it takes less.
pub(super) const RECORD_BYTES: u64 = 850;

/// A piece of work: its worker's place, or its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Whose place it is, or who has stored the result. [`TokenHash::NOBODY`] once the place was given up or broken.
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
    /// The record of the worker that was overtaken, until there is a result: it is as it was, if the one after it has done nothing.
    pub(super) former: Option<Box<Work>>,
    /// Which requests the record is for, if that was said.
    pub(super) fingerprint: Option<Fingerprint>,
    /// How long the result is to be kept, as the begin said.
    pub(super) keep: Keep,
    /// The lease. Nothing is left of it where there is a result, or no worker; see [`Work::is_late`].
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
    /// When it was by the wall clock of that moment, in nanoseconds since the Unix epoch, where that stands in the file.
    pub(super) wall_ns: Option<u64>,
}

impl Since {
    /// How long ago it was.
    pub(super) fn age(self, now: Duration) -> Duration {
        now.saturating_sub(self.at) + self.before
    }
}

impl Work {
    /// The lease of what is done, either in time or after the end of the worker's lease.
    pub(super) fn ended_lease(now: Duration, is_late: bool) -> Life {
        // A length of a millisecond is the mark of the one that was late.
        Life { longest_ms: is_late.into(), ..Life::starting(now, Duration::ZERO) }
    }

    /// Whether its result came after the end of the lease.
    pub(super) fn is_late(&self) -> bool {
        self.result.is_some() && self.lease.longest_ms > 0
    }

    /// Whether its worker's lease runs.
    pub(super) fn is_under_way(&self, now: Duration) -> bool {
        self.result.is_none() && !self.is_nobodys() && !self.lease.is_over(now)
    }

    /// Whether it has neither a worker nor a result.
    pub(super) fn is_nobodys(&self) -> bool {
        self.token == TokenHash::NOBODY
    }

    /// How much of the room for records it takes under this key. What a take-over found is small, and does not count: a store full of
    /// lapsed records must take the results of those who take them over.
    pub(super) fn bytes(&self, key: &LockKey) -> u64 {
        let texts = key.as_str().len() + self.note.stored().len();
        RECORD_BYTES + (texts + self.body().map_or(0, Bytes::len)) as u64
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
            slot: None,
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

    /// What stays of it if its worker has certainly done nothing: what it found.
    pub(super) fn as_found(&self, now: Duration) -> Option<Self> {
        if let Some(former) = &self.former {
            return Some(Self { life: self.life, ..(**former).clone() });
        }
        (self.earlier > 0).then(|| self.left_to_nobody(true, now))
    }

    /// What stays of it once its worker is gone: that there was one. The memory of that is not made shorter.
    pub(super) fn left_to_nobody(&self, is_clean: bool, now: Duration) -> Self {
        let counted = Self { earlier: self.earlier + 1, earlier_fence: Some(self.fence), ..self.clone() };
        let memory = if self.result.is_some() { MEMORY } else { Duration::ZERO };
        Self {
            token: TokenHash::NOBODY,
            attempt: None,
            lease: Life::starting(now, Duration::ZERO),
            life: self.life.extended(now, memory),
            result: None,
            former: None,
            ..if is_clean { self.clone() } else { counted }
        }
    }
}
