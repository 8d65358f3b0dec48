//! The words of records: a piece of work that is begun once, and its result, which is kept for those who ask again.
//!
//! A record belongs to a key. A lock of the same key is another thing. The first to begin is the record's worker, with a lease
//! and a fencing token. The worker stores the result, which ends the lease, or gives up. If its lease ends before, the record
//! is *lapsed*: another may take over, and is told how many workers before it may have done the work, or a part of it.

use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{FencingToken, Lease, LockKey, TokenHash, parse_hex};

/// How long a result is kept, counted from storing it. Reading it makes that no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keep(Duration);

impl Keep {
    /// Longer than the repetitions of any client and the life of a tombstone.
    pub const SHORTEST: Duration = Duration::from_mins(2);
    /// As long as the memory of a worker that crashed.
    pub const LONGEST: Duration = MEMORY;
    /// Where nothing else is said.
    pub const DEFAULT: Self = Self(Duration::from_hours(24));

    /// `None` outside these bounds.
    pub fn new(length: Duration) -> Option<Self> {
        (Self::SHORTEST..=Self::LONGEST).contains(&length).then_some(Self(length))
    }

    /// The length.
    pub fn as_duration(self) -> Duration {
        self.0
    }
}

/// For so long after the end of the last lease, a record without a result lives. Nothing that anybody says makes that shorter:
/// the next worker must be told that there was one.
pub const MEMORY: Duration = Duration::from_hours(7 * 24);

/// What a request is, in 128 bits: two that differ must not get the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The longest text of one.
    pub const MAX_CHARS: usize = 128;

    /// Of a text of 1 to 128 visible ASCII characters.
    pub fn of(text: &[u8]) -> Option<Self> {
        let is_one = (1..=Self::MAX_CHARS).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
        let hash: [u8; 32] = Sha256::digest(text).into();
        is_one.then_some(Self(*hash.as_chunks().0.first()?))
    }

    /// Reads what [`Self::as_bytes`] gave.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether a request may have what a record holds. A record without a fingerprint is for all.
    pub fn fits(record: Option<Self>, request: Option<Self>) -> bool {
        record.is_none() || record == request
    }

    /// Reads the bytes from hexadecimal.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        parse_hex(hex).map(Self)
    }
}

/// A number that a worker gives with its result: an exit status, or the status of an answer to hand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStatus(u16);

impl WorkStatus {
    /// The largest.
    pub const MAX: u16 = 999;

    /// `None` above [`Self::MAX`].
    pub fn new(status: u16) -> Option<Self> {
        (status <= Self::MAX).then_some(Self(status))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// The result of a piece of work, byte for byte as its worker stored it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkResult {
    /// Where the worker gave one.
    pub status: Option<WorkStatus>,
    /// Its media type, where the worker gave one that can be read: up to 127 characters of visible ASCII and spaces.
    pub content_type: Option<String>,
    /// The result itself.
    pub body: Bytes,
}

impl WorkResult {
    /// The longest media type.
    pub const MAX_CONTENT_TYPE_CHARS: usize = 127;
    /// Up to so many bytes, a result is also stored where there is little room. So each worker can store a short one.
    pub const SHORT_BYTES: usize = 1024;

    /// Whether it is stored also where there is little room.
    pub fn is_short(&self) -> bool {
        self.body.len() <= Self::SHORT_BYTES
    }
}

/// The place of a worker, which it has for as long as its lease lasts, and then until another takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its lease.
    pub lease: Lease,
    /// How many workers before may have done the work, or a part of it. At 0, no other token was told to begin.
    pub earlier: u64,
    /// The number of the last of them, where it is known.
    pub earlier_fencing_token: Option<FencingToken>,
}

/// Somebody who is at work, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// By what the gateway recognizes it. No client is told.
    pub token: TokenHash,
    /// Its place. Nothing is left of the lease of a lapsed record.
    pub place: Place,
    /// Which requests the record is for, if that was said.
    pub fingerprint: Option<Fingerprint>,
}

/// A result that is stored, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Who stored it: the number of its grant.
    pub fencing_token: FencingToken,
    /// When it was stored, in milliseconds before now.
    pub age_ms: u64,
    /// For how much longer it is kept, in milliseconds.
    pub kept_ms: u64,
    /// Which requests the record is for, if that was said.
    pub fingerprint: Option<Fingerprint>,
    /// The result.
    pub result: WorkResult,
}

/// The answer to a request to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// A new grant, or the one that this same attempt was given before.
    Granted(Place),
    /// The token works on it already. From now on nothing rolls the grant back.
    Continued(Place),
    /// The token has the place, or it is done, but too few replicas of the store have acknowledged that.
    NotReplicated {
        /// Whether it is a new grant.
        is_new: bool,
        /// What is known of it, for people.
        reason: String,
    },
    /// It is done.
    Done(Stored),
    /// Another token is at work.
    Busy(Worker),
    /// No lease runs, somebody may have done the work, and the request does not take over.
    Abandoned(Worker),
    /// The record is for other requests.
    FingerprintMismatch,
    /// The token gave up, or may not begin.
    TokenReleased,
    /// This attempt was rolled back before it arrived.
    AttemptVoided,
    /// There is no room for a new record.
    NearlyFull,
    /// The store takes no new records, for this reason.
    Unsupported(String),
}

/// Why a token that shows itself as the worker is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWorker {
    /// Another token was granted the place, by this number.
    Superseded {
        /// The other's number.
        fencing_token: FencingToken,
        /// Whether it has stored its result.
        is_done: bool,
    },
    /// There is no record, or one without a worker.
    NotBegun,
}

/// The answer to a request to store a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storing {
    /// It is stored, now or by an earlier copy of the request.
    Stored {
        /// The number of the worker's grant.
        fencing_token: FencingToken,
        /// For how much longer it is kept.
        kept_ms: u64,
        /// Whether the lease was over.
        is_late: bool,
    },
    /// It is stored, but too few replicas have acknowledged that.
    NotReplicated(String),
    /// This token has stored another result.
    Differs,
    /// There is no room for a result of this length. The place is still the worker's.
    NearlyFull,
    /// Nothing is stored.
    Refused(NotWorker),
}

/// The answer to a worker that renews its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewedWork {
    /// The lease is as long as asked for, or longer.
    Renewed(Place),
    /// The lease is over. A result can still be stored, until another takes over.
    LeaseOver,
    /// The token has stored its result.
    AlreadyStored,
    /// It is not the worker.
    Refused(NotWorker),
}

/// The answer to a worker that gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Another may begin at once.
    GivenUp,
    /// The token has stored its result.
    AlreadyStored,
    /// It is not the worker.
    Refused(NotWorker),
}

/// The answer to an operator who breaks a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRecord {
    /// Its worker has no place any more, or its result is gone.
    Broken,
    /// There is no record.
    None,
    /// The record has another number by now.
    Superseded(FencingToken),
}

/// How far a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkState {
    /// Its worker's lease runs.
    Working,
    /// No lease runs, and there is no result.
    Lapsed,
    /// There is a result.
    Done,
}

/// A record as everybody may see it who may look: all but the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView {
    /// How far it is.
    pub state: WorkState,
    /// The worker: at work, the last one, or who has stored the result.
    pub place: Place,
    /// Whether the token that was shown is the worker's; `None` where none was shown.
    pub yours: Option<bool>,
    /// How long the result is, with its status and media type, if there is one.
    pub result: Option<ResultView>,
    /// When the record is forgotten, in milliseconds from now.
    pub forgotten_in_ms: u64,
}

/// What may be told of a result without the right to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultView {
    /// When it was stored, in milliseconds before now.
    pub age_ms: u64,
    /// The length of its body.
    pub bytes: u64,
    /// Where the worker gave one.
    pub status: Option<WorkStatus>,
    /// Where the worker gave one.
    pub content_type: Option<String>,
}

/// A part of the list of all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// Some of them, each once.
    pub records: Vec<(LockKey, RecordView)>,
    /// Where to go on; `None` at the end.
    pub next: Option<String>,
}
