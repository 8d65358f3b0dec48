//! What stores answer.

use super::{Attempt, FencingToken, LockKey, Note, Sharing, Slot, Slots, Ticket};

/// A lease on a lock without its token, so everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The number to show to the protected resource.
    pub fencing_token: FencingToken,
    /// What is left of the lease, in milliseconds.
    pub left_ms: u64,
    /// What was said when the lock was taken.
    pub note: Note,
    /// Whether it was released, and the lock is only kept for the rest of its `min_hold`.
    pub is_released: bool,
    /// Its place beside the other holders; `None` where it excludes all others.
    pub slot: Option<Slot>,
}

impl Lease {
    /// Who took the lock, where that was said.
    pub fn owner(&self) -> Option<&str> {
        self.note.owner()
    }
}

/// Why a token was not given a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Who holds the lock. `None` if it is free and promised to the first in the queue, or if the holder is not known.
    pub holder: Option<Lease>,
    /// How many hold it, where it is shared. `holder` is the one whose lease ends first.
    pub sharing: Option<Sharing<()>>,
    /// Whether it is not known who holds the lock, nor whether anybody does.
    pub holder_unknown: bool,
    /// How many wait in the queue.
    pub waiters: u64,
    /// The position of the token, from 1 on, if it has a ticket.
    pub position: Option<u64>,
}

impl Refusal {
    /// Whether those who share the lock leave room for one more that asks for so many slots.
    pub fn has_room(&self, slots: Slots) -> bool {
        let least = |sharing: &Sharing<()>| u64::from(sharing.slots.min(slots).get());
        self.sharing.as_ref().is_some_and(|sharing| sharing.held < least(sharing))
    }
}

/// Where a token stands in the wait queue of a lock, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The ticket, to put back if the store loses it.
    pub ticket: Ticket,
    /// Whether it is the first.
    pub is_first: bool,
    /// When the lease or the offer ends that keeps the lock from the queue, in milliseconds from now.
    pub due_in_ms: u64,
    /// The attempt that the lock is offered to, if it is.
    pub offered_to: Option<Attempt>,
}

/// What a store answers to a request for a lock. `T` is what only one kind of request can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired<T> {
    /// A new lease, or the one that this same attempt was given before.
    Granted(Lease),
    /// The token held the lock already. The grant is pinned: from now on nothing rolls it back. Where the attempt is a
    /// connection's, that holds the lock by its [claim](Attempt::claim) instead, and the lease is as it was.
    AlreadyHeld(Lease),
    /// The token holds the lock, but too few replicas of the store have acknowledged that. The lock may be lost with
    /// the server that granted it, so no client must rely on it.
    NotReplicated {
        /// Whether it is a new lease, as with [`Acquired::Granted`], or one that the token held already.
        is_new: bool,
        /// What is known of it, for people.
        reason: String,
    },
    /// The token was released.
    TokenReleased,
    /// This attempt was rolled back before it arrived.
    AttemptVoided,
    /// The token holds the lock beside others, up to so many, and asks for fewer. Its grant stays as it is.
    HeldOtherwise(Slots),
    /// A connection of the token was granted the lock while this request waited, and keeps it.
    TakenOver,
    /// The token does not hold the lock.
    NotTaken(T),
}

impl<T> Acquired<T> {
    /// The same answer, with something else in the place of what the request's kind was told.
    pub fn map<U>(self, not_taken: impl FnOnce(T) -> U) -> Acquired<U> {
        self.or_not_taken().unwrap_or_else(|told| Acquired::NotTaken(not_taken(told)))
    }

    /// The answer, as any kind of request may have it; or what only this kind was told.
    pub fn or_not_taken<U>(self) -> Result<Acquired<U>, T> {
        Ok(match self {
            Self::Granted(lease) => Acquired::Granted(lease),
            Self::AlreadyHeld(lease) => Acquired::AlreadyHeld(lease),
            Self::NotReplicated { is_new, reason } => Acquired::NotReplicated { is_new, reason },
            Self::TokenReleased => Acquired::TokenReleased,
            Self::AttemptVoided => Acquired::AttemptVoided,
            Self::HeldOtherwise(slots) => Acquired::HeldOtherwise(slots),
            Self::TakenOver => Acquired::TakenOver,
            Self::NotTaken(told) => return Err(told),
        })
    }
}

/// What a store answers to a token that only asks whether it holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// It does: see [`Acquired::AlreadyHeld`].
    AlreadyHeld(Lease),
    /// It does, and too few replicas know that, for this reason: see [`Acquired::NotReplicated`].
    NotReplicated(String),
    /// The token was released, or the lock has no holder.
    TokenReleased,
    /// This attempt was rolled back before it arrived.
    AttemptVoided,
    /// It does, beside others: see [`Acquired::HeldOtherwise`].
    HeldOtherwise(Slots),
    /// Someone else holds the lock.
    Refused(Refusal),
}

impl From<Confirmed> for Acquired<Refusal> {
    fn from(confirmed: Confirmed) -> Self {
        match confirmed {
            Confirmed::AlreadyHeld(lease) => Self::AlreadyHeld(lease),
            Confirmed::NotReplicated(reason) => Self::NotReplicated { is_new: false, reason },
            Confirmed::TokenReleased => Self::TokenReleased,
            Confirmed::AttemptVoided => Self::AttemptVoided,
            Confirmed::HeldOtherwise(slots) => Self::HeldOtherwise(slots),
            Confirmed::Refused(refusal) => Self::NotTaken(refusal),
        }
    }
}

/// What a store answers to a request that joins a wait queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The attempt waits, or another of its token: as one who polls is told.
    Polled(Polled),
    /// The queue is as long as it may be.
    QueueFull,
}

/// What a store answers to a request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The attempt waits here.
    Queued(QueuePosition),
    /// Another attempt of the token waits here with its ticket.
    Moved(QueuePosition),
    /// The store does not know the ticket of this attempt, or has given it to one that is gone.
    TicketLost,
}

/// What a store answers to a last poll, at the end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastPolled {
    /// Someone else holds the lock, or is to have it next.
    Refused(Refusal),
    /// There is nothing to end: the store does not know the ticket.
    TicketLost,
}

/// What a store answers to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is now at least as long as asked for.
    Renewed(Lease),
    /// The lock has no holder.
    NotHeld,
    /// The token held the lock, and has released it. The lock is kept for the rest of its `min_hold`.
    Released,
    /// Another token holds it, or held it, and it is kept.
    HeldByAnother,
    /// The token holds the lock by this lease, which lasts for as long as `max_hold` allows already.
    MaxHoldReached(Lease),
    /// The token holds the lock, but no longer by the connection that asked.
    TakenOver,
}

/// What a store answers to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The token held the lock or had a ticket, and no longer does.
    Released,
    /// The lock had no holder.
    NotHeld,
    /// Another token holds it, or held it, and it is kept.
    HeldByAnother,
}

/// What a store answers to a release, and what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseEffect {
    /// The answer.
    pub answer: Released,
    /// The grant that it ended. `None` if the token had a ticket only, or if an earlier copy of the release got this answer.
    pub ended: Option<Ended>,
}

/// A grant that its holder has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub fencing_token: FencingToken,
    /// How much longer the lock stays taken without a holder, for the rest of its `min_hold`.
    pub kept_ms: u64,
}

/// What a store has done to roll a grant back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolledBack {
    /// Nothing: the lock was not held by that grant, or is no longer.
    Nothing,
    /// The grant is over.
    Ended {
        /// How much longer the lock stays taken without a holder, for the rest of its `min_hold`.
        kept_ms: u64,
    },
    /// The lock stays its token's, and ends by itself.
    LeftToToken {
        /// How long that takes.
        left_ms: u64,
    },
}

/// What a store answers to a look at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// The lock has no holder.
    Free {
        /// How many wait in the queue.
        waiters: u64,
    },
    /// Somebody does.
    Held {
        /// By which lease.
        lease: Lease,
        /// Whether it is the token that was shown; `None` where none was.
        yours: Option<bool>,
        /// Those who share it, where it is shared; `lease` is the token's own, or the one that ends first.
        sharing: Option<Sharing<Vec<Lease>>>,
        /// How many wait in the queue.
        waiters: u64,
    },
}

/// What a store answers to a request that breaks a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The grant held the lock, by this lease, and no longer does.
    Broken(Lease),
    /// The lock has no holder.
    NotHeld,
    /// Another grant holds it than the one that was to be broken.
    HeldByAnother,
    /// Several hold it, and none was named.
    HeldBySeveral,
}

/// A part of the list of all locks that are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Some of them, each once; there may be none, although there are further pages.
    pub locks: Vec<Listed>,
    /// Where the next page begins; `None` where this is the last one. It names no lock.
    pub next: Option<String>,
}

/// A lock that is held, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The lock.
    pub key: LockKey,
    /// By which lease it is held.
    pub lease: Lease,
    /// How many wait in the queue.
    pub waiters: u64,
}
