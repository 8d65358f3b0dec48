//! What a store is asked about records, if it keeps some.

use crate::lock::{Attempt, FencingToken, LockKey, Note, Reach, TokenHash, Ttl};
use crate::once::{Fingerprint, Keep, WorkResult};

/// Begins a piece of work, or takes over, or learns its result. The store judges in this order: fingerprint, result, a token that
/// gave up, a voided attempt, the token's own place, another's, a place that may not be taken over; else it grants the place.
///
/// If the lease of the token's own place is over, the token is granted the place anew, and its own first grant is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The record.
    pub key: LockKey,
    /// Who asks, as [`LeaseToken::record_hash`](crate::lock::LeaseToken::record_hash) says it.
    pub token: TokenHash,
    /// Which attempt of theirs this is.
    pub attempt: Attempt,
    /// The lease that is asked for.
    pub ttl: Ttl,
    /// How long the result is to be kept, unless storing it says otherwise.
    pub keep: Keep,
    /// What people are to know of the worker.
    pub note: Note,
    /// Which requests the record is for. One that the record lacks is not compared. One that the request lacks is a
    /// mismatch if the record has one. It is kept with the first grant, and a take-over never changes it.
    pub fingerprint: Option<Fingerprint>,
    /// Whether it may be granted a place that somebody had before.
    pub may_take_over: bool,
    /// Whether the place may be confirmed, and not granted: a token that the server made begins nothing anew.
    pub only_confirms: bool,
}

/// Stores a result, if the token's grant is the record's last. Whether its lease is over does not matter. Makes no record.
/// May be sent again as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreResult {
    /// The record.
    pub key: LockKey,
    /// Who stores it.
    pub token: TokenHash,
    /// The number of its grant, if it says it. Another one than the record's is superseded.
    pub fence: Option<FencingToken>,
    /// How long to keep it; `None` for as long as the begin said. The same result with another length changes nothing.
    pub keep: Option<Keep>,
    /// The result.
    pub result: WorkResult,
}

/// Sets the lease to the longer of what is left and `ttl`, if it is not over and `token` has the place. That pins the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewWork {
    /// The record.
    pub key: LockKey,
    /// Who is at work.
    pub token: TokenHash,
    /// The number of its grant, if it says it.
    pub fence: Option<FencingToken>,
    /// How long the lease is to last from now.
    pub ttl: Ttl,
}

/// Ends the place of the token. If it is clean, and there was no worker before, the record is gone, fingerprint too. If it is clean
/// and there was one, the record is left without a worker. Else it is left so too, and one more may have done the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// The record.
    pub key: LockKey,
    /// Who gives up.
    pub token: TokenHash,
    /// Whether the worker is certain that it has done nothing.
    pub is_clean: bool,
    /// Whether the token is refused from now on, and the answer is kept for repetitions.
    pub tombstone: super::Tombstone,
}

/// Undoes a grant if the token has the place by this very `attempt`: as a clean [`GiveUp`], without its tombstone. Always voids
/// the attempt. Answers whether there was a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoBegin {
    /// The record.
    pub key: LockKey,
    /// Who asked.
    pub token: TokenHash,
    /// By which attempt.
    pub attempt: Attempt,
}

/// Says how far a piece of work is. Where `token` is the worker's, that pins its grant: it takes itself for the worker from now on.
/// `None` where there is no record, or one without a worker, and with none before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookAtRecord {
    /// The record.
    pub key: LockKey,
    /// The token that asks whether it is the worker.
    pub token: Option<TokenHash>,
}

/// Ends the place of the worker with this number, or removes its result. If it is clean, the record is gone. Else it is
/// left without a worker, and one more may have done the work. Done again, it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakRecord {
    /// The record.
    pub key: LockKey,
    /// The number of the grant.
    pub fence: FencingToken,
    /// Whether the operator is certain that nothing was done.
    pub is_clean: bool,
}

/// Lists some of the records within `reach`, as [`List`](super::List) does with locks.
#[derive(Clone, Debug, PartialEq)]
pub struct ListRecords {
    /// Which records.
    pub reach: Reach,
    /// Where to go on.
    pub cursor: Option<String>,
    /// The most records of the page, at least one.
    pub limit: usize,
}
