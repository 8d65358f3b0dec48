//! What the handlers answer when all is well, as JSON and as headers.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::headers::{FENCING_TOKEN, LEASE_TOKEN, SLOT};
use crate::lock::{FencingToken, Lease, LeaseToken, Listed, LockKey, Sharing};

mod record;
mod several;

pub(super) use record::*;
pub(super) use several::{GrantOfSeveral, LockOfSeveral, grant_of_several};

/// Room for most answers, so that their buffer need not grow.
const USUAL_BODY_BYTES: usize = 256;
const USUAL_HEADERS: usize = 8;

/// The format of RFC 3339, with milliseconds.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// The media type of every answer that is no error.
pub(super) const JSON: &str = "application/json";

/// A lease that the caller holds.
#[derive(Serialize, ToSchema)]
pub(super) struct Grant<'a> {
    /// The lock.
    key: &'a str,
    /// The secret that renews and releases this lease.
    token: &'a str,
    /// The number of the grant: it grows with every grant of this lock. Send it with every write to what the lock protects.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// What is left of the lease, in milliseconds: never more than there is.
    #[schema(minimum = 1)]
    ttl_ms: u64,
    /// When the lease ends, by the clock of the gateway.
    #[schema(format = DateTime)]
    expires_at: String,
    /// The note that was given when the lock was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<&'a str>,
    /// Your place beside the other holders, from 1 on, where you asked for `slots`: no two have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    slot: Option<u16>,
    /// How many may hold the lock at once, you included, for as long as you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 2, maximum = 1000, value_type = u16, required = false)]
    slots: Option<u16>,
}

/// Who holds a lock.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Holder)]
pub(super) struct HolderView {
    /// The note that was given when the lock was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
    /// The number of the holder's grant.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// When the lease ends, by the clock of the gateway.
    #[schema(format = DateTime)]
    expires_at: String,
    /// What is left of the lease, in milliseconds.
    #[schema(minimum = 0)]
    expires_in_ms: u64,
    /// True if the lock was released, and `min_hold` keeps it taken until `expires_at`. Then it has no holder. Where several hold
    /// it by slots, that is said of this slot alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    released: bool,
    /// Its place beside the other holders, where the lock is held by slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    slot: Option<u16>,
    /// How many may hold the lock at once, as this holder says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 2, maximum = 1000, value_type = u16, required = false)]
    slots: Option<u16>,
}

/// A held lock, as others see it.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
pub(super) struct LockView<'a> {
    /// The lock.
    key: &'a str,
    #[serde(flatten)]
    holder: HolderView,
    /// How many requests wait for the lock.
    waiters: u64,
    /// Whether your token holds the lock; absent if you sent none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    yours: Option<bool>,
    /// How many hold the lock, where it is held by slots. The other fields are those of your own grant, or else of the one that
    /// ends first and was not released; but `slots` is the smallest number that any of them has said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, value_type = u64, required = false)]
    held: Option<u64>,
    /// Who they are, with `holders=true`: first the one whose lease ends first, and at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<HolderView>, required = false)]
    holders: Option<Vec<HolderView>>,
}

/// A part of the list of all locks that are held.
#[derive(Serialize, ToSchema)]
pub(super) struct LockList<'a> {
    /// Some of the held locks, each once. There may be none although more pages follow.
    pub(super) locks: Vec<LockView<'a>>,
    /// The `cursor` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(super) next_cursor: Option<String>,
}

impl<'a> LockView<'a> {
    pub(super) fn of(listed: &'a Listed) -> Self {
        let Listed { key, lease, waiters } = listed;
        let mut holder = HolderView { slot: None, slots: None, ..HolderView::of(lease) };
        // Others may hold the lock beside a slot that is only kept.
        if lease.slot.is_some() && lease.is_released {
            (holder.owner, holder.released) = (None, false);
        }
        Self { key: key.as_str(), holder, waiters: *waiters, yours: None, held: None, holders: None }
    }
}

impl HolderView {
    pub(super) fn of(lease: &Lease) -> Self {
        Self {
            owner: lease.owner().map(str::to_owned),
            fencing_token: lease.fencing_token.get(),
            expires_at: expiry(lease.left_ms),
            expires_in_ms: lease.left_ms,
            released: lease.is_released,
            slot: lease.slot.map(|slot| slot.number),
            slots: lease.slot.map(|slot| slot.slots.get()),
        }
    }
}

/// A JSON body of this media type. It ends with a newline, so that a shell's prompt does not stick to it.
pub(super) fn json(status: StatusCode, media_type: &'static str, value: &impl Serialize) -> Response {
    // The answers are plain structs, which always have a JSON form.
    let mut body = Vec::with_capacity(USUAL_BODY_BYTES);
    let _ = serde_json::to_writer(&mut body, value);
    body.push(b'\n');
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    // Room for all headers of a grant at once.
    *response.headers_mut() = HeaderMap::with_capacity(USUAL_HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The answer to the holder of a lock.
pub(super) fn grant(status: StatusCode, key: &LockKey, token: &LeaseToken, lease: &Lease) -> Response {
    let grant = Grant {
        key: key.as_str(),
        token: token.reveal(),
        fencing_token: lease.fencing_token.get(),
        ttl_ms: lease.left_ms,
        expires_at: expiry(lease.left_ms),
        owner: lease.owner(),
        slot: lease.slot.map(|slot| slot.number),
        slots: lease.slot.map(|slot| slot.slots.get()),
    };
    with_grant_headers(json(status, JSON, &grant), token, lease)
}

/// The headers of a grant, for scripts that read no JSON.
pub(super) fn with_grant_headers(mut response: Response, token: &LeaseToken, lease: &Lease) -> Response {
    insert_fencing_token(&mut response, lease.fencing_token);
    if let Some(slot) = lease.slot {
        response.headers_mut().insert(SLOT, slot.number.into());
    }
    with_token(response, token)
}

/// The header of a lease token.
pub(super) fn with_token(mut response: Response, token: &LeaseToken) -> Response {
    // All characters of a token are allowed in header values, so this always holds.
    if let Ok(mut token) = HeaderValue::from_str(token.reveal()) {
        token.set_sensitive(true);
        response.headers_mut().insert(LEASE_TOKEN, token);
    }
    response
}

/// The answer to a client that asks about a held lock.
pub(super) fn lock(
    key: &LockKey,
    lease: &Lease,
    waiters: u64,
    yours: Option<bool>,
    sharing: Option<Sharing<Vec<Lease>>>,
    with_holders: bool,
) -> Response {
    // Who holds a slot comes before a slot that is only kept.
    let mut others = sharing.iter().filter(|_| yours != Some(true)).flat_map(|sharing| &sharing.holders);
    let lease = others.find(|other| !other.is_released).unwrap_or(lease);
    let (mut holder, fencing_token) = (HolderView::of(lease), lease.fencing_token);
    holder.slot = holder.slot.filter(|_| yours == Some(true));
    // Not all are named, and another may have a holder.
    holder.released &= sharing.as_ref().is_none_or(|sharing| sharing.held == sharing.holders.len() as u64);
    holder.slots = sharing.as_ref().map(|sharing| sharing.slots.get());
    let held = sharing.as_ref().map(|sharing| sharing.held);
    let holders = sharing.filter(|_| with_holders);
    let holders = holders.map(|sharing| sharing.holders.iter().map(HolderView::of).collect());
    let view = LockView { key: key.as_str(), holder, waiters, yours, held, holders };
    let mut response = json(StatusCode::OK, JSON, &view);
    insert_fencing_token(&mut response, fencing_token);
    response
}

pub(super) fn insert_fencing_token(response: &mut Response, fencing_token: FencingToken) {
    response.headers_mut().insert(FENCING_TOKEN, fencing_token.get().into());
}

/// The wall clock's time at the end of a lease, in RFC 3339 with milliseconds.
pub(super) fn expiry(left_ms: u64) -> String {
    let left = SignedDuration::from_millis(i64::try_from(left_ms).unwrap_or(i64::MAX));
    let end = Timestamp::now().checked_add(left).unwrap_or(Timestamp::MAX);
    PRINTER.timestamp_to_string(&end)
}

/// The wall clock's time so long ago, in the same form.
fn time_ago(age_ms: u64) -> String {
    let age = SignedDuration::from_millis(i64::try_from(age_ms).unwrap_or(i64::MAX));
    PRINTER.timestamp_to_string(&Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN))
}

/// What the document shows of a grant.
pub(super) fn example_grant() -> Grant<'static> {
    Grant {
        key: "backup",
        token: "~5f2b1c0e9d8a4b7c8e6f1a2b3c4d5e6f",
        fencing_token: 1_795_240_800_123_456,
        ttl_ms: 29_999,
        expires_at: "2026-11-21T06:00:30.123Z".into(),
        owner: Some("cron@db1"),
        slot: None,
        slots: None,
    }
}

/// What the document shows of a held lock.
pub(super) fn example_lock() -> LockView<'static> {
    LockView {
        key: "backup",
        holder: example_holder(),
        waiters: 3,
        yours: Some(true),
        held: None,
        holders: None,
    }
}

/// What the document shows of a list.
pub(super) fn example_list() -> LockList<'static> {
    let lock = LockView { yours: None, ..example_lock() };
    LockList { locks: vec![lock], next_cursor: Some("5d1f0c2b7a9e4836.0.1024".into()) }
}

/// What the document shows of a holder.
pub(super) fn example_holder() -> HolderView {
    HolderView {
        owner: Some("cron@db1".into()),
        fencing_token: 1_795_240_800_123_456,
        expires_at: "2026-11-21T06:00:30.123Z".into(),
        expires_in_ms: 12_345,
        released: false,
        slot: None,
        slots: None,
    }
}
