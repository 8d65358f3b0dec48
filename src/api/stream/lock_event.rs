//! The events of locks, as watchers read them.

use serde::Serialize;
use utoipa::ToSchema;

use super::{StreamEvent, name_line};
use crate::api::answers::expiry;
use crate::lock::{FencingToken, Lease};
use crate::service::{News, Told};

/// What has happened. `resync`: you may have missed something, so look at the lock, or list the locks.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Granted,
    Renewed,
    Released,
    Expired,
    Broken,
    Waiting,
    Resync,
    Heartbeat,
}

/// An event of a lock, as a line of JSON. A server-sent event has the same fields, and `event` and `id` in lines of their own.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = LockEvent)]
pub(crate) struct LockEventView {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline, value_type = Name, required = true)]
    event: Option<Name>,
    /// Send it as `Last-Event-ID`, and the stream goes on behind this event. All events but `heartbeat` have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    id: Option<String>,
    /// The lock. Absent with a `resync` that is about all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    key: Option<String>,
    /// The number of the grant. For one lock, it does not get smaller between two `resync` that are about all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    fencing_token: Option<u64>,
    /// The note that was given when the lock was taken, with `granted` and `renewed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
    /// With `granted` and `renewed`: what is left of the lease, in milliseconds. With `released`: for how long `min_hold` keeps
    /// the lock taken; absent if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, value_type = u64, required = false)]
    ttl_ms: Option<u64>,
    /// When that time is over, by the clock of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, value_type = String, required = false)]
    expires_at: Option<String>,
    /// With `waiting`: how many requests wait for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, value_type = u64, required = false)]
    waiters: Option<u64>,
}

impl LockEventView {
    fn named(event: Name) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    pub(crate) fn heartbeat() -> Self {
        Self::named(Name::Heartbeat)
    }

    pub(crate) fn of(told: &Told, id: String) -> Self {
        let lasting = |event, number: FencingToken, ms| {
            let left_ms = told.left_ms(ms);
            let (ttl_ms, expires_at) = (Some(left_ms), Some(expiry(left_ms)));
            Self { fencing_token: Some(number.get()), ttl_ms, expires_at, ..Self::named(event) }
        };
        let with_lease = |event, lease: &Lease| Self {
            owner: lease.owner().map(str::to_owned),
            ..lasting(event, lease.fencing_token, lease.left_ms)
        };
        let over =
            |event, number: FencingToken| Self { fencing_token: Some(number.get()), ..Self::named(event) };
        let event = match &told.news {
            News::Granted(lease) => with_lease(Name::Granted, lease),
            News::Renewed(lease) => with_lease(Name::Renewed, lease),
            News::Released(ended) if ended.kept_ms > 0 => {
                lasting(Name::Released, ended.fencing_token, ended.kept_ms)
            }
            News::Released(ended) => over(Name::Released, ended.fencing_token),
            News::Expired(number) => over(Name::Expired, *number),
            News::Broken(number) => over(Name::Broken, *number),
            News::Waiting(waiters) => Self { waiters: Some(*waiters), ..Self::named(Name::Waiting) },
            News::Resync => Self::named(Name::Resync),
        };
        Self { id: Some(id), key: told.key.as_ref().map(|key| key.as_str().to_owned()), ..event }
    }
}

impl StreamEvent for LockEventView {
    fn take_head(&mut self) -> Option<String> {
        let (name, id) = (self.event.take()?, self.id.take()?);
        Some(format!("id: {id}\n{}", name_line(&name)))
    }
}

/// What the document shows of a line.
pub(crate) fn example_line() -> LockEventView {
    LockEventView {
        id: Some("kE7uZr2Q0sLxYb9VnHc4TmJf6WgDpA1iRoB8eXv5GtN3qSzK".into()),
        key: Some("backup".into()),
        fencing_token: Some(1_795_240_800_123_456),
        owner: Some("cron@db1".into()),
        ttl_ms: Some(29_999),
        expires_at: Some("2026-11-21T06:00:30.123Z".into()),
        ..LockEventView::named(Name::Granted)
    }
}

/// What the document shows of a stream.
pub(crate) const EXAMPLE_STREAM: &str = "id: pX0c8Yt3rS1nVqzK5mWfJbUe2LhA9dGi7oQxTzR4vN6sCwEy\nevent: resync\ndata: {}\n\nid: kE7uZr2Q0sLxYb9VnHc4TmJf6WgDpA1iRoB8eXv5GtN3qSzK\nevent: granted\ndata: {\"key\":\"backup\",\"fencing_token\":1795240800123456,\"owner\":\"cron@db1\",\"ttl_ms\":29999,\"expires_at\":\"2026-11-21T06:00:30.123Z\"}\n\nid: Wm3KfT8rNc1YxHs6PvLd0JqZ5uBgEo9iAt7RnXe2SzVb4GyC\nevent: released\ndata: {\"key\":\"backup\",\"fencing_token\":1795240800123456}\n\n";
