//! Where locks live: the trait that every store implements, and the two ways in which a store can fail.
//!
//! "Held by another" is an outcome and stands in [`crate::lock`]; an error here always means that the store could
//! not be asked, or that nobody knows what it did.

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::lock::{
    Acquired, Attempt, Broken, FencingToken, Inspected, LockKey, Owner, Page, Place, Reach, Release, Renewed,
    Terms, TokenHash, Ttl, Undone,
};

pub mod diagnostics;
pub mod embedded;
mod metered;
mod open;
pub mod quorum;
pub mod redis;
mod wait_queue;

pub use metered::MeteredStore;
pub use open::open;

/// A place that keeps locks. Each method is one atomic step, tried once: repeating is the service's business.
///
/// Architecture invariant: a method that returns [`StoreError::Unavailable`] changed nothing and never will.
#[async_trait]
pub trait LockStore: Send + Sync + 'static {
    /// Takes a lock or a place in its line, or says why not.
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError>;

    /// Sets the lease to the longer of what is left and `ttl`, but not past its `max_hold`, if `token` holds the lock.
    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        by: Renewer,
        deadline: Instant,
    ) -> Result<Renewed, StoreError>;

    /// Frees a lock, if `token` holds it, or gives up the token's place in the line. A lock whose `min_hold` is not over
    /// stays taken until then, by nobody.
    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        deadline: Instant,
    ) -> Result<Release, StoreError>;

    /// Ends a grant if `token` holds the lock by this very `attempt`, takes the attempt out of the line, and voids it whatever
    /// was found, so that a copy of it that arrives later takes nothing. What nobody learnt of is undone, as if it had never
    /// been; what a connection held is released as by [`release`](Self::release), or stays the token's for as long as that was
    /// told before.
    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        known: KnownTo,
        deadline: Instant,
    ) -> Result<Undone, StoreError>;

    /// Has an offer go on that was made to an attempt of ours which nobody knows any more. Unlike
    /// [`take_back`](Self::take_back) it never touches a lock: the offer may have been taken in the meantime.
    async fn decline(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<(), StoreError>;

    /// Where the line of a lock is kept.
    fn bucket_of(&self, key: &LockKey) -> Bucket;

    /// Says to those in a bucket that this gateway is alive, and asks which of its locks somebody must look at.
    async fn beat(&self, bucket: Bucket, deadline: Instant) -> Result<Beat, StoreError>;

    /// What the store tells without being asked. Hints may be lost, and may be wrong.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Says who holds a lock. With a `token` it also says whether that one does, which pins the grant like a renewal.
    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError>;

    /// Frees a lock if the grant of this number holds it, whoever that is, also where the lock was released and is kept for
    /// the rest of its `min_hold`. A number is given once, so a copy that comes late touches no other grant.
    async fn break_lock(
        &self,
        key: &LockKey,
        fence: FencingToken,
        deadline: Instant,
    ) -> Result<Broken, StoreError>;

    /// Lists some of the locks that are held and within `reach`, at most `limit` of them, which is at least one: those at the
    /// beginning, or those where the page with this `cursor` ended.
    ///
    /// Others are neither listed nor counted against the limit. A page takes the store a bounded time, whatever else it
    /// holds, and may be short or empty for that alone. A lock that is
    /// held all the while stands on at least one of the pages up to the last, and may stand on more than one. Where what
    /// the cursor rests on is gone, as after a restart, or where it was never given, the list begins anew.
    async fn list(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Page, StoreError>;

    /// By what this gateway hears of others; none where there are no others.
    fn gossip(&self) -> Option<&dyn Gossip> {
        None
    }

    /// Whether the store can be reached and is safe to lock on; the error says what is wrong.
    async fn check(&self, deadline: Instant) -> Result<(), StoreError>;

    /// Stops the store's own tasks and gives back what it holds, such as the lock on a file.
    async fn close(&self);
}

/// How the gateways of one store tell each other what nothing rests on: it may be lost, come twice, or in another order.
#[async_trait]
pub trait Gossip: Send + Sync {
    /// Tells all gateways something, this one included, without waiting for anybody.
    fn tell(&self, topic: Topic, text: String);

    /// What is told: of [`Topic::Watchers`] always, of [`Topic::Events`] once somebody listens.
    fn heard(&self) -> broadcast::Receiver<Heard>;

    /// Hears what is told of [`Topic::Events`], from when this returns on.
    async fn listen(&self, deadline: Instant) -> Result<(), StoreError>;

    /// Need not hear it any more.
    fn stop_listening(&self);
}

/// What gateways talk about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Who watches.
    Watchers,
    /// What happens.
    Events,
}

/// What a gateway hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Somebody has said this.
    Told(Topic, String),
    /// A server is heard that was not heard before, or not for a while.
    Connected,
}

/// What an acquire needs to know.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The lock.
    pub key: LockKey,
    /// Who asks.
    pub token: TokenHash,
    /// Which try of theirs this is.
    pub attempt: Attempt,
    /// The lease that is asked for.
    pub ttl: Ttl,
    /// A note for people.
    pub owner: Option<Owner>,
    /// For how long it may, and must, be taken.
    pub terms: Terms,
    /// What it may do.
    pub intent: Intent,
}

/// Who renews a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewer {
    /// Whoever shows the token. It is told that it holds the lock, which pins the grant as a repeated `PUT` does.
    Token,
    /// The connection that holds the lock by this attempt, or by this [claim](Attempt::claim).
    Connection(Attempt),
}

/// What an acquire may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Take a lock that is free, and that nobody waits for.
    Grant,
    /// Nothing: the token was made by the server, and may only be confirmed.
    Confirm,
    /// Take a place in the line, or the token's own place, and with it the lock as soon as it is this place's turn.
    Join(Join),
    /// Go on waiting: take the lock if it is the turn of the attempt's place.
    Look,
    /// As [`Intent::Look`], for the last time: an attempt that is refused is voided, and this becomes of its place. It may
    /// be sent again as it is.
    LastLook(PlaceAfter),
}

/// How a line is joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// Whether the token's place is taken over from another attempt that waits at it.
    pub displaces: bool,
    /// The place that the store may have lost.
    pub place: Option<Place>,
    /// Attempts of the same request for which this one stands from now on, since some command of theirs was not
    /// answered. They are voided, and what they were given becomes this one's.
    pub supersedes: Vec<Attempt>,
}

/// What becomes of a place without a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceAfter {
    /// It waits a while for the client to come back with the same token.
    Kept,
    /// The same, also where the attempt was granted the lock from this place, and that is undone.
    KeptAt(Place),
    /// It is removed: nobody else knows the token.
    Removed,
}

/// Who knows of a grant that is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownTo {
    /// Nobody.
    Nobody,
    /// A connection, which held the lock by it, and has ended.
    Connection {
        /// For how long leases run yet of which its token was told before the connection had the lock.
        told_for: Duration,
    },
}

/// What every store's lines have in common.
#[derive(Clone, Copy, Debug)]
pub struct LineSettings {
    /// How long a place is kept without its client.
    pub ticket_ttl: Duration,
    /// The most that may stand in the line of one lock.
    pub max_waiters_per_key: usize,
}

impl Default for LineSettings {
    fn default() -> Self {
        Self { ticket_ttl: Duration::from_secs(10), max_waiters_per_key: 10_000 }
    }
}

/// Some of a store's locks, whose lines are kept together: a gateway is heard of in each bucket apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket(pub u16);

/// How long a lock is offered to one waiter, before it is offered to the next.
pub const OFFER: Duration = Duration::from_millis(800);
/// Gateways are told of the end of leases shorter than this: their next heartbeats may come too late.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// What is due until a bit after the next heartbeat but one.
const LOOK_AHEAD: Duration = Duration::from_millis(1_250);
/// The most attempts that one mark remembers as voided: a bound on what one misbehaving client can make us keep.
const MOST_VOIDED: usize = 1_000;

/// What a store answers to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether the store may have forgotten this gateway since the last beat that was answered: it may have passed over
    /// its waiters, or lost them.
    pub is_new: bool,
    /// Locks that somebody must look at, and in how many milliseconds; 0 is now.
    pub due: Vec<(LockKey, u64)>,
}

/// What a store tells without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The lock is offered to this attempt.
    Offered(LockKey, TokenHash, Attempt),
    /// This attempt should look: its place was taken over, given back or given up.
    Look(LockKey, Attempt),
    /// Somebody should look at the lock in so many milliseconds.
    Due(LockKey, u64),
}

/// What a release leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseMark {
    /// A mark that keeps this answer for repetitions and refuses the token from now on, whatever the answer is.
    Final,
    /// Nothing: the token was made by the server and cannot be granted again.
    None,
}

/// Why a store did not answer. The text is for the operator and the caller; it names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// Certainly nothing happened.
    #[error("{0}")]
    Unavailable(String),
    /// It may have happened, or may yet happen.
    #[error("{0}")]
    Unknown(String),
}
