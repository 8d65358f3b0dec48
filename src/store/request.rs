//! What a store is asked and what it answers, as plain data: to print, compare, record and play again.
//!
//! Each kind of request is a type of its own. It names the type of its answer, so no caller meets an answer that its request
//! cannot have.

use std::time::Duration;

use crate::lock::{
    Acquired, Attempt, Broken, Confirmed, Enqueued, FencingToken, Inspected, LastPolled, LockKey, Note, Page,
    Polled, Reach, Refusal, ReleaseEffect, Renewed, RolledBack, Terms, Ticket, TokenHash, Ttl,
};
use crate::once::{Begun, BrokenRecord, GivenUp, RecordPage, RecordView, RenewedWork, Storing};

mod once;

pub use once::{Begin, BreakRecord, GiveUp, ListRecords, LookAtRecord, RenewWork, StoreResult, UndoBegin};

/// One kind of request, with its answer.
pub trait Call: Into<Request> + Clone + Send + 'static {
    /// What a store answers to it.
    type Answer: Send + 'static;

    /// The answer under the name of this kind.
    fn reply(answer: Self::Answer) -> Reply;

    /// The answer in a reply; `None` where the reply is one to another kind.
    fn answer(reply: Reply) -> Option<Self::Answer>;
}

/// One line for each kind of request and its answer.
macro_rules! requests {
    ($($kind:ident -> $answer:ty;)+) => {
        /// Any request.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $(#[doc = concat!("See [`struct@", stringify!($kind), "`].")] $kind($kind),)+
        }

        /// The answer to a request, under the name of its kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Reply {
            $(#[doc = concat!("To [`struct@", stringify!($kind), "`].")] $kind($answer),)+
        }

        $(
            impl From<$kind> for Request {
                fn from(request: $kind) -> Self {
                    Self::$kind(request)
                }
            }

            impl Call for $kind {
                type Answer = $answer;

                fn reply(answer: $answer) -> Reply {
                    Reply::$kind(answer)
                }

                fn answer(reply: Reply) -> Option<$answer> {
                    if let Reply::$kind(answer) = reply { Some(answer) } else { None }
                }
            }
        )+
    };
}

requests! {
    Try -> Acquired<Refusal>;
    Confirm -> Confirmed;
    Enqueue -> Acquired<Enqueued>;
    Poll -> Acquired<Polled>;
    LastPoll -> Acquired<LastPolled>;
    Renew -> Renewed;
    Release -> ReleaseEffect;
    RollBack -> RolledBack;
    PassOn -> Option<Duration>;
    Inspect -> Inspected;
    Break -> Broken;
    List -> Page;
    Heartbeat -> HeartbeatAnswer;
    Check -> ();
    Begin -> Begun;
    StoreResult -> Storing;
    RenewWork -> RenewedWork;
    GiveUp -> GivenUp;
    UndoBegin -> bool;
    LookAtRecord -> Option<RecordView>;
    BreakRecord -> BrokenRecord;
    ListRecords -> RecordPage;
}

/// Which lock is asked for, by whom, and by which lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub key: LockKey,
    /// Who asks.
    pub token: TokenHash,
    /// Which attempt of theirs this is.
    pub attempt: Attempt,
    /// The lease that is asked for.
    pub ttl: Ttl,
    /// What people are to know of it.
    pub note: Note,
    /// How long it may, and must, be held.
    pub terms: Terms,
}

/// Takes a lock that is free and has no waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Try(pub LockRequest);

/// Asks whether the token holds the lock already, as [`Try`] does, and takes nothing. Note and terms play no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm(pub LockRequest);

/// Takes a ticket of the wait queue, or the token's own, and with it the lock as soon as it is this ticket's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// The lock.
    pub lock: LockRequest,
    /// Whether to take the token's ticket over from another attempt that waits with it.
    pub takes_over: bool,
    /// The ticket to put back where the store has lost it.
    pub ticket: Option<Ticket>,
    /// Attempts of the same request that had no answer, for which this one stands from now on. They are voided, and what
    /// they were given becomes this one's.
    pub supersedes: Vec<Attempt>,
}

/// Goes on waiting: takes the lock if it is the turn of the attempt's ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll(pub LockRequest);

/// As [`Poll`], for the last time: an attempt that is refused is voided. It may be sent again as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastPoll {
    /// The lock.
    pub lock: LockRequest,
    /// What becomes of the ticket.
    pub ticket: TicketAfter,
}

/// Sets the lease to the longer of what is left and `ttl`, but not past its `max_hold`, if `token` holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The lock.
    pub key: LockKey,
    /// Who holds it.
    pub token: TokenHash,
    /// How long the lease is to last from now.
    pub ttl: Ttl,
    /// Who renews it.
    pub by: Renewer,
}

/// Frees a lock if `token` holds it, or gives up the token's ticket. If the lock's `min_hold` is not over, it stays
/// taken until then, without a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The lock.
    pub key: LockKey,
    /// Who holds it, or waits.
    pub token: TokenHash,
    /// What it leaves behind.
    pub tombstone: Tombstone,
}

/// Ends a grant if `token` holds the lock by this very `attempt`, and takes the attempt out of the wait queue. It
/// always voids the attempt, so that a copy that arrives later takes nothing.
///
/// If no client learned of the grant, it is undone without a trace. If a connection held the lock, it is released as by
/// [`Release`], or stays with the token for as long as the token was told before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollBack {
    /// The lock.
    pub key: LockKey,
    /// Who asked for it.
    pub token: TokenHash,
    /// By which attempt.
    pub attempt: Attempt,
    /// What becomes of the ticket.
    pub ticket: TicketAfter,
    /// Who knows of the grant.
    pub known: KnownTo,
}

/// Passes on an offer that none of this gateway's waiters claims. Unlike [`RollBack`] it never touches a lock: the
/// offer may have been taken in the meantime.
///
/// If the client of the token's ticket is away, the ticket is kept for its whole time from now on. The answer says for how long a
/// ticket of the token is kept, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassOn {
    /// The lock.
    pub key: LockKey,
    /// The attempt to which it is offered.
    pub token: TokenHash,
    /// To which attempt of theirs.
    pub attempt: Attempt,
}

/// Says who holds a lock. With a `token` it also says whether that one does, which pins the grant like a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// The lock.
    pub key: LockKey,
    /// The token that asks whether it holds the lock.
    pub token: Option<TokenHash>,
}

/// Frees a lock if the grant of this number holds it, even if the lock was released and is kept for the rest of its
/// `min_hold`. A number is given once, so a late copy touches no other grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The lock.
    pub key: LockKey,
    /// The number of the grant.
    pub fence: FencingToken,
}

/// Lists some of the locks that are held and within `reach`: those at the beginning, or those where the page with this
/// `cursor` ended.
///
/// Other locks are neither listed nor counted. A page takes the store a bounded time, so it may be short or empty. A
/// lock that is held all the while is on at least one of the pages, and may be on more than one. If the cursor is no
/// longer valid, as after a restart, the list begins anew.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Which locks.
    pub reach: Reach,
    /// Where to go on.
    pub cursor: Option<String>,
    /// The most locks of the page, at least one.
    pub limit: usize,
}

/// Says to the queues of a bucket that this gateway is alive, and asks which locks it must poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which locks.
    pub bucket: Bucket,
}

/// Asks whether the store can be reached and is safe to lock on. The error says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check;

/// Who renews a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewer {
    /// The client that shows the token. It is told that it holds the lock, which pins the grant as a repeated `PUT`
    /// does.
    Token,
    /// The connection that holds the lock by this attempt, or by this [claim](Attempt::claim).
    Connection(Attempt),
    /// The same, before its client is told that it holds the lock. So the lease that this makes must be as safe as a grant:
    /// where replicas have to acknowledge grants, they have to acknowledge it, too.
    NewConnection(Attempt),
}

impl Renewer {
    /// By which attempt the token must hold the lock; by any, where there is none.
    pub(super) fn attempt(self) -> Option<Attempt> {
        match self {
            Self::Token => None,
            Self::Connection(attempt) | Self::NewConnection(attempt) => Some(attempt),
        }
    }
}

/// What becomes of the ticket of a request that no longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketAfter {
    /// It is kept for a while, so that the client can come back with the same token.
    Kept,
    /// The same, even if the attempt was granted the lock with this ticket, and that is undone.
    KeptAt(Ticket),
    /// It is removed: no other request knows the token.
    Removed,
}

/// Which client knows of a grant that is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownTo {
    /// None.
    Nobody,
    /// A connection, which held the lock by it, and has ended.
    Connection {
        /// The number of the grant.
        number: FencingToken,
        /// How much longer a lease runs that the token was told of before the connection had the lock.
        told_for: Duration,
    },
}

/// What a release leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tombstone {
    /// A tombstone that keeps this answer for repetitions. With any answer, it refuses the token from now on.
    Final,
    /// Nothing: the token was made by the server and cannot be granted again.
    None,
}

/// Some of a store's locks, whose wait queues are kept together: a gateway is heard of in each bucket apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket(pub u16);

/// What a store answers to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// Whether the store may have forgotten this gateway since the last heartbeat that was answered: it may have passed
    /// over its waiters, or lost them.
    pub is_new: bool,
    /// Locks that a waiter must poll, and in how many milliseconds; 0 is now.
    pub due: Vec<(LockKey, u64)>,
}
