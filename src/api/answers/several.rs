//! What is answered to a client that holds several locks at once.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::{JSON, expiry, json, with_token};
use crate::lock::{Lease, LockKey};
use crate::service::HeldSeveral;

/// Several leases that the caller holds by one token.
#[derive(Serialize, ToSchema)]
#[schema(as = GrantOfSeveral)]
pub(crate) struct GrantOfSeveral<'a> {
    /// The secret that renews and releases each of these leases.
    token: &'a str,
    /// The locks, in the order in which you named them.
    #[schema(min_items = 2, max_items = 16)]
    locks: Vec<LockOfSeveral>,
    /// What is left of the lease that ends first, in milliseconds: never more than there is.
    #[schema(minimum = 1)]
    ttl_ms: u64,
    /// When that lease ends, by the clock of the gateway.
    #[schema(format = DateTime)]
    expires_at: String,
    /// The note that was given when the first of the locks was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<&'a str>,
}

/// One of several locks.
#[derive(Serialize, ToSchema)]
#[schema(as = LockOfSeveral)]
pub(crate) struct LockOfSeveral {
    /// The lock.
    key: String,
    /// The number of its grant. Send it with every write to what this lock protects.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// Your place beside the other holders of this lock, where you asked for `slots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    slot: Option<u16>,
    /// How many may hold this lock at once, you included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 2, maximum = 1000, value_type = u16, required = false)]
    slots: Option<u16>,
}

impl LockOfSeveral {
    pub(crate) fn of(key: &LockKey, lease: &Lease) -> Self {
        Self {
            key: key.as_str().to_owned(),
            fencing_token: lease.fencing_token.get(),
            slot: lease.slot.map(|slot| slot.number),
            slots: lease.slot.map(|slot| slot.slots.get()),
        }
    }
}

/// The answer to the holder of several locks. No header has their fencing tokens: each lock has one of its own.
pub(crate) fn grant_of_several(keys: &[LockKey], held: &HeldSeveral) -> Response {
    let left_ms = held.leases.iter().map(|lease| lease.left_ms).min().unwrap_or_default();
    let grant = GrantOfSeveral {
        token: held.token.reveal(),
        locks: keys.iter().zip(&held.leases).map(|(key, lease)| LockOfSeveral::of(key, lease)).collect(),
        ttl_ms: left_ms,
        expires_at: expiry(left_ms),
        owner: held.leases.first().and_then(Lease::owner),
    };
    let status = if held.is_new { StatusCode::CREATED } else { StatusCode::OK };
    with_token(json(status, JSON, &grant), &held.token)
}
