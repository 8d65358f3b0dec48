//! Where locks live: the trait that every store implements, and the two ways in which a store can fail.
//!
//! "Held by another" is an outcome and stands in [`crate::lock`]. An error here always means that the store could not
//! be asked, or that it is unknown what it did.

use std::future;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::lock::{Attempt, LockKey, TokenHash};

pub mod diagnostics;
pub mod embedded;
mod metered;
pub mod quorum;
pub mod redis;
mod request;
mod wait_queue;

pub use metered::MeteredStore;
pub use quorum::open;
pub use request::{
    Begin, Break, BreakRecord, Bucket, Call, Check, Confirm, Enqueue, GiveUp, Heartbeat, HeartbeatAnswer,
    Inspect, KnownTo, LastPoll, List, ListRecords, LockRequest, LookAtRecord, PassOn, Poll, Release, Renew,
    RenewWork, Renewer, Reply, Request, RollBack, StoreResult, TicketAfter, Tombstone, Try, UndoBegin,
};

/// What a store answers to one kind of request, or why it does not.
pub type AnswerTo<C> = Result<<C as Call>::Answer, StoreError>;
/// A request on its way, of any kind.
pub type Replying<'a> = BoxFuture<'a, Result<Reply, StoreError>>;

/// A place that keeps locks. Each request is one atomic step, tried once: repeating is the service's business.
pub trait LockStore: Send + Sync + 'static {
    /// Does what is asked, and answers by the kind of the request. [`MeteredStore::call`] is the same with types.
    ///
    /// Architecture invariant: a request that ends with [`StoreError::Unavailable`] changed nothing and never will.
    fn run<'a>(&'a self, request: &'a Request, deadline: Instant) -> Replying<'a>;

    /// Whether it can be used, as far as that is known without asking it. A store that cannot fail always can.
    fn seems_ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(future::ready(true))
    }

    /// Why its locks cannot be shared, if they cannot. Then no request for more than one slot reaches it.
    fn shares_no_locks(&self) -> Option<String> {
        None
    }

    /// Why it keeps no record of this key, or of some keys, if it cannot. Then no request about records reaches it.
    fn keeps_no_records(&self, _: Option<&LockKey>) -> Option<String> {
        None
    }

    /// Whether each step asks several servers, so that those who ask for the same should share what one is told.
    fn asks_several_servers(&self) -> bool {
        false
    }

    /// Where the wait queue of a lock is kept.
    fn bucket_of(&self, key: &LockKey) -> Bucket;

    /// What the store tells without being asked. Hints may be lost, and may be wrong.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// The bus to other gateways, if there are any.
    fn peers(&self) -> Option<&dyn PeerBus> {
        None
    }

    /// Stops the store's own tasks and gives back what it holds, such as the lock on a file.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// How the gateways of one store tell each other what nothing rests on: it may be lost, come twice, or in another order.
#[async_trait]
pub trait PeerBus: Send + Sync {
    /// Tells all gateways something, this one included, and waits for none of them.
    fn tell(&self, topic: Topic, text: String);

    /// What is told: of [`Topic::Watchers`] always, of [`Topic::Events`] once there is a listener.
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
    /// A gateway has said this.
    Told(Topic, String),
    /// A server is heard that was not heard before, or not for a while.
    Connected,
    /// A server does not allow any more that [`Topic::Events`] are heard.
    Deaf,
}

/// What every store's lines have in common.
#[derive(Clone, Copy, Debug)]
pub struct LineSettings {
    /// How long a place is kept without its client.
    pub ticket_ttl: Duration,
    /// The most tickets of one lock.
    pub max_waiters_per_key: usize,
}

impl Default for LineSettings {
    fn default() -> Self {
        Self { ticket_ttl: Duration::from_secs(10), max_waiters_per_key: 10_000 }
    }
}

/// How long a lock is offered to one waiter, before it is offered to the next.
pub const OFFER: Duration = Duration::from_millis(800);
/// Gateways are told of the end of leases shorter than this: their next heartbeats may come too late.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// What is due until a bit after the next heartbeat but one.
const LOOK_AHEAD: Duration = Duration::from_millis(1_250);
/// The most attempts that one mark remembers as voided: a bound on what one misbehaving client can make us keep.
const MOST_VOIDED: usize = 1_000;

/// What a store tells without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The lock is offered to this attempt.
    Offered(LockKey, TokenHash, Attempt),
    /// This attempt should look: its place was taken over, given back or given up.
    Look(LockKey, Attempt),
    /// A waiter should poll the lock in so many milliseconds.
    Due(LockKey, u64),
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

impl StoreError {
    /// Why, for both kinds.
    pub fn into_reason(self) -> String {
        let (Self::Unavailable(reason) | Self::Unknown(reason)) = self;
        reason
    }
}
