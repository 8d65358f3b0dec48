//! What the embedded store keeps: held locks, pieces of work and marks.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::lock::{Attempt, FencingToken, Lease, LockKey, Note, Released, Slot, Slots, TokenHash, Ttl};
use crate::once::GivenUp;
use crate::store::MOST_VOIDED;

use super::life::Life;
use super::work::Work;

/// The name of one record. Ordered, so that a batch is written in the order of the file's pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RecordId {
    /// The lock of this key.
    Lock(LockKey),
    /// The mark of a token's hash for this key.
    Mark(LockKey, [u8; 32]),
    /// The piece of work of this key.
    Work(LockKey),
    /// The slot that a token has in this lock, by the token's hash; by its number with zeros before it where it belongs to no token.
    Slot(LockKey, [u8; 32]),
}

/// The layouts of a file, each of which has what those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    /// Locks, with terms. Files of the first layout, without terms, are read, and not written any more.
    Terms = 2,
    /// Pieces of work,
    Works = 3,
    /// and locks that are shared.
    Slots = 4,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A lock that was granted.
    Lock(HeldLock),
    /// What is known of a token beyond its lock.
    Mark(Mark),
    /// A piece of work, or its result. In a box, so that it makes no lock longer.
    Work(Box<Work>),
}

/// A lock that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldLock {
    /// Who holds it.
    pub(super) token: TokenHash,
    /// The attempt that was granted; `None` once the grant is pinned. For a kept lock, the [trace](TokenHash::trace) of
    /// the token that held it.
    pub(super) attempt: Option<Attempt>,
    /// The number of the grant.
    pub(super) fence: FencingToken,
    /// What its holder said of it.
    pub(super) note: Note,
    /// The lease.
    pub(super) life: Life,
    /// What no renewal goes past, if there is such a limit.
    pub(super) max_hold: Option<Life>,
    /// How long the lock stays taken when it is released, if that is to be a while.
    pub(super) min_hold: Option<Life>,
    /// Its place, where it is held beside others.
    pub(super) slot: Option<Slot>,
}

/// What is known of a token beyond its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// What may no longer be granted.
    pub(super) verdict: Verdict,
    /// How long that is remembered.
    pub(super) life: Life,
}

/// What a mark forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The token was released, with this answer: it is never granted again.
    Final(Released),
    /// The token gave up its piece of work, with this answer: it never begins it again.
    GaveUp(GivenUp),
    /// These attempts are voided, oldest first; the token itself stays usable.
    Voided(VecDeque<Attempt>),
}

impl RecordId {
    /// The name of the mark of `token` for `key`.
    pub(super) fn mark(key: &LockKey, token: &TokenHash) -> Self {
        Self::Mark(key.clone(), *token.as_bytes())
    }

    /// The name of a slot that is kept after its release. The next slot of its token has another name.
    pub(super) fn kept(key: &LockKey, slot: u16) -> Self {
        let mut bytes = [0; 32];
        bytes[30..].copy_from_slice(&slot.to_be_bytes());
        Self::Slot(key.clone(), bytes)
    }
}

impl Record {
    /// How long the record lives.
    pub(super) fn life(&self) -> Life {
        match self {
            Self::Lock(lock) => lock.life,
            Self::Mark(mark) => mark.life,
            Self::Work(work) => work.life,
        }
    }

    /// Notes its ends by a wall clock that would have said so much at boot.
    pub(super) fn tell(&mut self, wall_at_boot: Duration) {
        let lives = match self {
            Self::Lock(HeldLock { life, max_hold, min_hold, .. }) => {
                [Some(life), max_hold.as_mut(), min_hold.as_mut()]
            }
            Self::Mark(mark) => [Some(&mut mark.life), None, None],
            // What was before a take-over was told when it was a record.
            Self::Work(work) => {
                let Work { lease, life, .. } = &mut **work;
                [Some(lease), Some(life), None]
            }
        };
        lives.into_iter().flatten().for_each(|life| life.tell(wall_at_boot));
    }

    /// The number of the grant that it is of, if it is of one.
    pub(super) fn fence(&self) -> Option<FencingToken> {
        match self {
            Self::Lock(lock) => Some(lock.fence),
            Self::Mark(_) => None,
            Self::Work(work) => Some(work.fence),
        }
    }

    /// How much of the room for pieces of work it takes under this name.
    pub(super) fn once_bytes(&self, id: &RecordId) -> u64 {
        if let (Self::Work(work), RecordId::Work(key)) = (self, id) { work.bytes(key) } else { 0 }
    }

    /// The body of the result that it has, if it has one.
    pub(super) fn body(&self) -> Option<&Bytes> {
        if let Self::Work(work) = self { work.body() } else { None }
    }

    /// What a program must know of that reads it.
    pub(super) fn format(&self) -> Format {
        match self {
            Self::Work(_) | Self::Mark(Mark { verdict: Verdict::GaveUp(_), .. }) => Format::Works,
            Self::Lock(HeldLock { slot: Some(_), .. }) => Format::Slots,
            Self::Lock(_) | Self::Mark(_) => Format::Terms,
        }
    }
}

impl HeldLock {
    /// The lease as every client may see it.
    pub(super) fn lease(&self, now: Duration) -> Lease {
        Lease {
            fencing_token: self.fence,
            left_ms: self.life.left_ms(now),
            note: self.note.clone(),
            is_released: self.token == TokenHash::NOBODY,
            slot: self.slot,
        }
    }

    /// The name of the record.
    pub(super) fn id(&self, key: &LockKey) -> RecordId {
        match self.slot {
            None => RecordId::Lock(key.clone()),
            Some(slot) if self.token == TokenHash::NOBODY => RecordId::kept(key, slot.number),
            Some(_) => RecordId::Slot(key.clone(), *self.token.as_bytes()),
        }
    }

    /// How many may hold it at once, as its holder says.
    pub(super) fn slots(&self) -> Slots {
        self.slot.map_or(Slots::ONE, |slot| slot.slots)
    }

    /// Whether it could still be rolled back after a client was told that it holds the lock. A client that holds it by
    /// a connection knows that it ends with that.
    pub(super) fn is_to_be_pinned(&self) -> bool {
        self.attempt.is_some_and(|attempt| !attempt.is_of_connection())
    }

    /// Whether it is kept after its release, and `token` held it.
    pub(super) fn was_held_by(&self, token: &TokenHash) -> bool {
        self.token == TokenHash::NOBODY && self.attempt == Some(token.trace())
    }

    /// The same lock with a lease of at least `ttl`, or of what `max_hold` allows.
    pub(super) fn extended(&self, ttl: Ttl, now: Duration) -> Self {
        let allowed = self.max_hold.map_or(Duration::MAX, |max| max.end.saturating_sub(now));
        Self { life: self.life.extended(now, ttl.as_duration().min(allowed)), ..self.clone() }
    }

    /// The same lock, pinned, with the rest of a lease that was told before, but not shorter than its `min_hold`.
    pub(super) fn left_to_token(&self, told_for: Duration, now: Duration) -> Self {
        let told = self.life.given(now, told_for.min(self.life.end.saturating_sub(now)));
        let life = self.min_hold.filter(|least| least.end > told.end).unwrap_or(told);
        Self { attempt: None, life, ..self.clone() }
    }

    /// What stays of the lock when it is released, if its `min_hold` is not over.
    pub(super) fn kept(&self, now: Duration) -> Option<Self> {
        let life = self.min_hold.filter(|life| !life.is_over(now))?;
        Some(Self {
            token: TokenHash::NOBODY,
            attempt: Some(self.token.trace()),
            life,
            max_hold: None,
            min_hold: None,
            ..self.clone()
        })
    }
}

impl Verdict {
    /// Whether the token is refused as a whole.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Voided(_))
    }

    /// The verdict with one more voided attempt. A final one covers every attempt already.
    pub(super) fn voiding(self, attempt: Attempt) -> Self {
        let Self::Voided(mut attempts) = self else { return self };
        if !attempts.contains(&attempt) {
            attempts.push_back(attempt);
        }
        if attempts.len() > MOST_VOIDED {
            attempts.pop_front();
        }
        Self::Voided(attempts)
    }
}
