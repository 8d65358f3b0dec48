//! What the service is asked for a lock, and what becomes of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Account, GrantGuard};
use crate::lock::{Attempt, Lease, LeaseToken, LockKey, Note, Refusal, Slots, Terms, TokenHash, Ttl};
use crate::store::{LockRequest, TicketAfter};

/// What is asked for: a lock, and how.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The lock.
    pub key: LockKey,
    /// The caller's token; without one the service makes one.
    pub token: Option<LeaseToken>,
    /// The lease that is asked for.
    pub ttl: Ttl,
    /// A note about it for people.
    pub note: Note,
    /// How long to wait in the queue; zero does not wait.
    pub wait: Duration,
    /// For how long it may, and must, be taken.
    pub terms: Terms,
    /// For whom it is.
    pub tenant: Tenant,
}

/// For whom a lock is asked for, where that makes a difference to others.
#[derive(Clone, Debug, Default)]
pub struct Tenant {
    /// The account that the lock counts for; `None` where locks are not counted.
    pub account: Option<Account>,
    /// The tickets that outlive the request: a bit for each lock that it names.
    pub left_tickets: Option<Arc<AtomicU32>>,
    /// Which of these locks it is about, from 0.
    pub(super) place: usize,
    /// Whether the account has as many locks as it may. Then a lock that the token holds is confirmed, and none is granted.
    pub(super) is_full: bool,
}

impl Tenant {
    /// With these.
    pub fn new(account: Option<Account>, left_tickets: Option<Arc<AtomicU32>>) -> Self {
        Self { account, left_tickets, place: 0, is_full: false }
    }

    /// A wait queue keeps the ticket of the token from now on, whatever becomes of the request; or does so no more. Returns
    /// whether it did before.
    pub(super) fn keeps_ticket(&self, is_kept: bool) -> bool {
        let Some(tickets) = &self.left_tickets else { return false };
        let own = 1 << self.place;
        let before = match is_kept {
            true => tickets.fetch_or(own, Ordering::Relaxed),
            false => tickets.fetch_and(!own, Ordering::Relaxed),
        };
        before & own != 0
    }
}

/// What became of an [`AcquireRequest`].
#[derive(Debug)]
pub struct Acquisition {
    /// The token that holds the lock, if it was granted.
    pub token: LeaseToken,
    /// The answer.
    pub outcome: Outcome,
}

/// The answer to an [`AcquireRequest`].
#[derive(Debug)]
pub enum Outcome {
    /// A new lease. The code that hands it to the client disarms the guard. If the guard is dropped before, it rolls
    /// the grant back. Then the attempt that was granted it, and when the lease ends, on the clock of `boottime`.
    Granted(Lease, GrantGuard, Attempt, Duration),
    /// The token held the lock already, as this attempt found; and the earliest and the latest end of its lease, on the clock of `boottime`.
    AlreadyHeld(Lease, Attempt, [Duration; 2]),
    /// The token does not hold the lock.
    NotTaken(NotAcquired),
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum NotAcquired {
    /// Fewer replicas of the store than must have acknowledged the grant, for this reason, and it was rolled back.
    NotReplicated(String),
    /// Someone else holds it, or is to have it next.
    Refused(Refusal),
    /// The token holds it beside others, up to so many, and asks for fewer.
    HeldOtherwise(Slots),
    /// The store shares no locks, for this reason.
    NotShared(String),
    /// The wait queue of the lock is as long as it may be, or as many wait at this gateway as may.
    TooManyWaiters,
    /// The tenant has as many locks as it may.
    TooManyLocks,
    /// The gateway stops, so the wait ended early.
    ShuttingDown,
    /// The token was released before, or is one of ours that holds nothing.
    TokenReleased,
}

impl AcquireRequest {
    /// What a store is asked, by this attempt.
    pub(super) fn lock_request(&self, token: TokenHash, attempt: Attempt) -> LockRequest {
        LockRequest {
            key: self.key.clone(),
            token,
            attempt,
            ttl: self.ttl,
            note: self.note.clone(),
            terms: self.terms,
        }
    }

    /// The caller's token, or the one that was made for this request, or else a fresh one.
    pub(super) fn token_or(&self, made: Option<&LeaseToken>) -> LeaseToken {
        self.token.as_ref().or(made).cloned().unwrap_or_else(LeaseToken::generate)
    }

    /// Whether the lock may be confirmed and not taken: a token that the server made holds nothing anew.
    pub(super) fn only_confirms(&self) -> bool {
        self.tenant.is_full || self.token.as_ref().is_some_and(LeaseToken::is_server_made)
    }

    /// Whether this request made its token. Then no other request knows it.
    pub(super) fn ticket_after(&self) -> TicketAfter {
        if self.token.is_some() { TicketAfter::Kept } else { TicketAfter::Removed }
    }

    /// Whether an acquire that was rolled back has left nothing. What was not found may never have been, but with the
    /// caller's token it may also stand: another request that is told so pins it, and then nothing rolls it back.
    pub(super) fn is_undone(&self, was_deleted: bool) -> bool {
        was_deleted || self.token.is_none()
    }
}
