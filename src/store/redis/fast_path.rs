//! The fast path serves most acquires and releases: the lock is free, another holds it, or its own token holds it, and
//! it has no wait queue. A small script does each of these, because the general scripts have much more to prepare and
//! need more arguments. One call serves all requests that are ready at the moment.
//!
//! Each script completes or changes nothing. If it changes nothing, the general script runs. That costs one more call.
//! So for a while such a lock goes to the general script at once.
//!
//! Slots of locks that several hold are taken, freed and renewed in the same way (`slots.rs`).
//! Renewals, begins of records, and their results share calls as well (`records.rs`). Their scripts know all cases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::operations::{Free, RenewLock, Take};
use self::recent::{RecentKeys, SLOW_FOR};
use self::records::{BeginOperation, StoreOperation};
use self::slots::{FreeSlot, RenewSlot, TakeSlot};
use super::RedisStore;
use super::connection::batcher::Batcher;
use super::connection::link::Link;
use super::connection::replicas::Written;
use super::scripts::{ACK, ACK_SLOT, ScriptReply, lease_of, lease_seen, unexpected};
use crate::lock::{Acquired, FencingToken, Lease, LockKey, Refusal, Renewed, Slots, TokenHash};
use crate::store::{LockRequest, StoreError};

mod operations;
pub(crate) mod recent;
pub(crate) mod records;
mod slots;

/// What scripts say where another holds the lock.
const REFUSED: i64 = 2;
/// What scripts of slots say where they leave a case: one that will be the same for a while, or one that is gone as soon as the
/// general script has run.
const LASTING: i64 = -1;
const PASSING: i64 = -2;
/// How long it is remembered that slots of a lock were asked for: longer than between two renewals, most of the time.
const SHARED_FOR: Duration = Duration::from_secs(60);

/// What a store keeps for it.
pub(super) struct FastPath {
    slow_keys: RecentKeys,
    /// The same where a slot of it was asked for.
    slow_slots: RecentKeys,
    /// Locks that several may hold.
    pub(super) shared_keys: RecentKeys,
    takes: Arc<Batcher<Take>>,
    frees: Arc<Batcher<Free>>,
    renewals: Arc<Batcher<RenewLock>>,
    slot_takes: Arc<Batcher<TakeSlot>>,
    slot_frees: Arc<Batcher<FreeSlot>>,
    slot_renewals: Arc<Batcher<RenewSlot>>,
    pub(super) begins: Arc<Batcher<BeginOperation>>,
    pub(super) stores: Arc<Batcher<StoreOperation>>,
}

impl FastPath {
    pub(super) fn new() -> Self {
        Self {
            slow_keys: RecentKeys::new(SLOW_FOR),
            slow_slots: RecentKeys::new(SLOW_FOR),
            shared_keys: RecentKeys::new(SHARED_FOR),
            takes: Batcher::new(),
            frees: Batcher::new(),
            renewals: Batcher::new(),
            slot_takes: Batcher::new(),
            slot_frees: Batcher::new(),
            slot_renewals: Batcher::new(),
            begins: Batcher::new(),
            stores: Batcher::new(),
        }
    }
}

impl RedisStore {
    /// Takes a lock that is free, or says that another holds it; `None` where nothing was done.
    pub(super) async fn take_free(
        &self,
        request: &LockRequest,
        deadline: Instant,
    ) -> Result<Option<Acquired<Refusal>>, StoreError> {
        let key = &request.key;
        if !request.terms.are_none() || self.fast_path.slow_keys.has(key.as_str()) {
            return Ok(None);
        }
        let bucket = self.keys.bucket_of(key);
        let (token, note) = (request.token.to_string(), request.note.stored());
        let take = Arc::new(Take {
            lock: self.keys.lock(key),
            tickets: self.keys.tickets(key),
            tombstone: self.keys.tombstone(key, &request.token),
            fence: self.keys.fence(bucket),
            by: [&*token, " ", &request.attempt.to_string(), " "].concat(),
            ttl_ms: request.ttl.as_ms(),
            note: (!note.is_empty()).then(|| [" ", note].concat()),
        });
        let (reply, link): (ScriptReply, _) =
            self.run_batched(bucket, true, &take, Some(&self.fast_path.takes), deadline).await?;
        if let Some(fencing_token) = reply.number() {
            let (left_ms, note) = (request.ttl.as_ms(), request.note.clone());
            let lease = Lease { fencing_token, left_ms, note, is_released: false, slot: None };
            return Ok(Some(granted(&link, &[take.lock.as_bytes()], &token, lease, deadline).await));
        }
        match reply.outcome {
            REFUSED => refusal_in(&reply, key).map(|refusal| Some(Acquired::NotTaken(refusal))),
            _ => {
                self.fast_path.slow_keys.note(key.as_str());
                Ok(None)
            }
        }
    }

    /// Frees a lock that its token holds; `None` where nothing was done.
    pub(super) async fn free_own(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: Option<&str>,
        deadline: Instant,
    ) -> Result<Option<FencingToken>, StoreError> {
        if self.fast_path.slow_keys.has(key.as_str()) || self.fast_path.shared_keys.has(key.as_str()) {
            return Ok(None);
        }
        let free = Arc::new(Free {
            lock: self.keys.lock(key),
            tickets: self.keys.tickets(key),
            tombstone: tombstone.map(|tombstone| (tombstone.to_owned(), self.mark_ttl_ms.clone())),
            token: token.to_string(),
        });
        let bucket = self.keys.bucket_of(key);
        let (reply, _): (ScriptReply, _) =
            self.run_batched(bucket, false, &free, Some(&self.fast_path.frees), deadline).await?;
        let number = reply.number();
        if number.is_none() {
            self.fast_path.slow_keys.note(key.as_str());
        }
        Ok(number)
    }

    /// Renews a lock, or says why not.
    pub(super) async fn renew_lock(
        &self,
        key: &LockKey,
        token: &str,
        ttl_ms: u64,
        by: &str,
        deadline: Instant,
    ) -> Result<(ScriptReply, Arc<Link>), StoreError> {
        let (lock, token, by) = (self.keys.lock(key), token.to_owned(), by.to_owned());
        let renewal = Arc::new(RenewLock { lock, token, ttl_ms, by });
        let bucket = self.keys.bucket_of(key);
        self.run_batched(bucket, false, &renewal, Some(&self.fast_path.renewals), deadline).await
    }

    /// Waits until the server's replicas have a renewal too, where they must. It stands in any case, so the error leaves open
    /// for how long the lock is held.
    pub(super) async fn renewal_replicated(
        &self,
        reply: &ScriptReply,
        link: &Link,
        key: &LockKey,
        token: &str,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (lease, names) = (lease_of(reply, key)?, self.keys.queue_of(key));
        let [lock, .., held, _, _] = names.in_order();
        let keys = if lease.slot.is_some() { &[lock, held][..] } else { &[lock] };
        replicated(link, keys, token, lease, deadline).await.map(drop).map_err(StoreError::Unknown)
    }

    /// Takes a slot, or says why there is none; `None` where nothing was done.
    pub(super) async fn take_slot(
        &self,
        request: &LockRequest,
        deadline: Instant,
    ) -> Result<Option<Acquired<Refusal>>, StoreError> {
        let (key, terms) = (&request.key, &request.terms);
        let has_times = terms.max_hold.is_some() || terms.min_hold.is_some();
        if terms.slots == Slots::ONE || has_times || self.fast_path.slow_slots.has(key.as_str()) {
            return Ok(None);
        }
        let bucket = self.keys.bucket_of(key);
        let take = Arc::new(TakeSlot {
            names: self.keys.queue_of(key),
            tombstone: self.keys.tombstone(key, &request.token),
            fence: self.keys.fence(bucket),
            token: request.token.to_string(),
            attempt: request.attempt.to_string(),
            ttl_ms: request.ttl.as_ms(),
            slots: terms.slots.get(),
            owner: request.note.stored().to_owned(),
        });
        self.fast_path.shared_keys.note(key.as_str());
        let (reply, link): (ScriptReply, _) =
            self.run_batched(bucket, true, &take, Some(&self.fast_path.slot_takes), deadline).await?;
        match reply.outcome {
            0 => {
                let [lock, .., held, _, _] = take.names.in_order();
                let lease = lease_of(&reply, key)?;
                Ok(Some(granted(&link, &[lock, held], &take.token, lease, deadline).await))
            }
            REFUSED => refusal_in(&reply, key).map(|refusal| Some(Acquired::NotTaken(refusal))),
            PASSING => Ok(None),
            _ => {
                self.fast_path.slow_slots.note(key.as_str());
                Ok(None)
            }
        }
    }

    /// Frees a slot that its token holds; `None` where nothing was done.
    pub(super) async fn free_slot(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: Option<&str>,
        deadline: Instant,
    ) -> Result<Option<FencingToken>, StoreError> {
        if !self.fast_path.shared_keys.has(key.as_str()) || self.fast_path.slow_slots.has(key.as_str()) {
            return Ok(None);
        }
        let free = Arc::new(FreeSlot {
            names: self.keys.queue_of(key),
            tombstone: tombstone.map(|tombstone| (tombstone.to_owned(), self.mark_ttl_ms.clone())),
            token: token.to_string(),
        });
        let bucket = self.keys.bucket_of(key);
        let (reply, _): (ScriptReply, _) =
            self.run_batched(bucket, false, &free, Some(&self.fast_path.slot_frees), deadline).await?;
        if reply.outcome == LASTING {
            self.fast_path.slow_slots.note(key.as_str());
        }
        Ok(reply.lease().map(|lease| lease.fencing_token))
    }

    /// Renews a slot for its token; `None` where nothing was done.
    pub(super) async fn renew_own_slot(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl_ms: u64,
        deadline: Instant,
    ) -> Result<Option<Lease>, StoreError> {
        if !self.fast_path.shared_keys.has(key.as_str()) {
            return Ok(None);
        }
        let renewal =
            Arc::new(RenewSlot { names: self.keys.queue_of(key), token: token.to_string(), ttl_ms });
        let bucket = self.keys.bucket_of(key);
        let (reply, _): (ScriptReply, _) =
            self.run_batched(bucket, false, &renewal, Some(&self.fast_path.slot_renewals), deadline).await?;
        let renewed = reply.lease();
        if renewed.is_some() {
            self.fast_path.shared_keys.note(key.as_str());
        }
        Ok(renewed)
    }
}

/// The answer to a new grant, once the server's replicas have it too, where they must.
async fn granted<T>(
    link: &Link,
    keys: &[&[u8]],
    token: &str,
    lease: Lease,
    deadline: Instant,
) -> Acquired<T> {
    match replicated(link, keys, token, lease, deadline).await {
        Ok(lease) => Acquired::Granted(lease),
        Err(reason) => Acquired::NotReplicated { is_new: true, reason },
    }
}

/// The lease, once the server's replicas have it too, where they must; or why it is not to be relied on. `keys` are those that its
/// script is told.
pub(super) async fn replicated(
    link: &Link,
    keys: &[&[u8]],
    token: &str,
    lease: Lease,
    deadline: Instant,
) -> Result<Lease, String> {
    if let Some(replicas) = &link.replicas {
        let (number, ack) = (lease.fencing_token, if lease.slot.is_some() { &*ACK_SLOT } else { &*ACK });
        let written = Written { kind: "lock", keys, ack, token, number };
        replicas.have(&written, deadline).await?;
    }
    Ok(lease)
}

/// What a reply says of a renewal.
pub(super) fn renewed_in(reply: &ScriptReply, key: &LockKey) -> Result<Renewed, StoreError> {
    match reply.outcome {
        0 => lease_of(reply, key).map(Renewed::Renewed),
        1 => Ok(Renewed::NotHeld),
        2 => Ok(Renewed::HeldByAnother),
        3 => lease_of(reply, key).map(Renewed::MaxHoldReached),
        4 => Ok(Renewed::TakenOver),
        5 => Ok(Renewed::Released),
        other => Err(unexpected("renew", other)),
    }
}

/// What a reply says if another holds the lock.
pub(super) fn refusal_in(reply: &ScriptReply, key: &LockKey) -> Result<Refusal, StoreError> {
    let holder = reply.has_lock().then(|| lease_seen(reply, key)).transpose()?;
    let (waiters, position, sharing) = (reply.waiters(), reply.position(), reply.sharing(7));
    Ok(Refusal { holder, sharing, waiters, position, ..Refusal::default() })
}
