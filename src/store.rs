//! Where locks live: the trait that every store implements, and the two ways in which a store can fail.
//!
//! "Held by another" is an outcome and stands in [`crate::lock`]; an error here always means that the store could
//! not be asked, or that nobody knows what it did.

use async_trait::async_trait;
use thiserror::Error;
use tokio::time::Instant;

use crate::lock::{Acquired, Attempt, Inspected, LockKey, Owner, Released, Renewed, TokenHash, Ttl};

pub mod embedded;
pub mod redis;

/// A place that keeps locks. Each method is one atomic step, tried once: repeating is the service's business.
///
/// Architecture invariant: a method that returns [`StoreError::Unavailable`] changed nothing and never will.
#[async_trait]
pub trait LockStore: Send + Sync + 'static {
    /// Takes a lock, or says why not.
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError>;

    /// Sets the lease to the longer of what is left and `ttl`, if `token` holds the lock.
    ///
    /// A renewal that succeeds tells its caller that it holds the lock, so it pins the grant as a repeated `PUT` does.
    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        deadline: Instant,
    ) -> Result<Renewed, StoreError>;

    /// Frees a lock, if `token` holds it.
    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        deadline: Instant,
    ) -> Result<Released, StoreError>;

    /// Undoes a grant that nobody learnt of: deletes the lock if `token` holds it by this very `attempt`, and voids
    /// the attempt whether or not it did, so that a copy of it that arrives later takes nothing. Answers whether a
    /// lock was deleted.
    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<bool, StoreError>;

    /// Says who holds a lock. With a `token` it also says whether that one does, which pins the grant like a renewal.
    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError>;

    /// Whether the store can be reached and is safe to lock on; the error says what is wrong.
    async fn check(&self, deadline: Instant) -> Result<(), StoreError>;

    /// Stops the store's own tasks and gives back what it holds, such as the lock on a file.
    async fn close(&self);
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
    /// Whether a free lock may be granted.
    pub intent: Intent,
}

/// What an acquire may do to a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Grant it.
    Grant,
    /// Nothing: the token was made by the server, and may only be confirmed.
    Confirm,
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
