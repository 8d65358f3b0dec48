//! What happens to locks, as those are told who watch: server-sent events, or JSON objects line by line.

use axum::body::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::expiry;
use super::events::Form;
use crate::lock::{FencingToken, Lease};
use crate::service::{News, Told};

/// What has happened.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LockEventName)]
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

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Broken => "broken",
            Self::Waiting => "waiting",
            Self::Resync => "resync",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// What one who watches is told, as a line of NDJSON. A server-sent event has the same without `event` and `id`, which it
/// names in lines of their own.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = LockEvent)]
pub(super) struct Happening {
    /// What has happened. `resync`: something may have been missed, so look at the lock, or list the locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Name, required = true)]
    event: Option<Name>,
    /// Shown as `Last-Event-ID`, it has a stream go on behind this event; all but `heartbeat` have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    id: Option<String>,
    /// The lock; `resync` without it is about all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    key: Option<String>,
    /// The number of the grant. Of one lock, they are told in ascending order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    fencing_token: Option<u64>,
    /// The note that was given when the lock was taken, with `granted` and `renewed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
    /// What is left of the lease, in milliseconds, with `granted` and `renewed`. With `released`, how long the lock stays
    /// taken all the same, for the rest of its `min_hold`; absent where it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, value_type = u64, required = false)]
    ttl_ms: Option<u64>,
    /// When that is over, by the clock of the server that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, value_type = String, required = false)]
    expires_at: Option<String>,
    /// How many wait in line, with `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, value_type = u64, required = false)]
    waiters: Option<u64>,
}

impl Happening {
    fn named(event: Name) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    pub(super) fn heartbeat() -> Self {
        Self::named(Name::Heartbeat)
    }

    pub(super) fn of(told: &Told, id: String) -> Self {
        let lasting = |event, number: FencingToken, ms| {
            let left_ms = told.left_ms(ms);
            let (ttl_ms, expires_at) = (Some(left_ms), Some(expiry(left_ms)));
            Self { fencing_token: Some(number.get()), ttl_ms, expires_at, ..Self::named(event) }
        };
        let with_lease = |event, lease: &Lease| Self {
            owner: lease.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            ..lasting(event, lease.fencing_token, lease.left_ms)
        };
        let over =
            |event, number: FencingToken| Self { fencing_token: Some(number.get()), ..Self::named(event) };
        let happening = match &told.news {
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
        Self { id: Some(id), key: told.key.as_ref().map(|key| key.as_str().to_owned()), ..happening }
    }

    /// The event as it is written.
    pub(super) fn written(mut self, form: Form) -> Bytes {
        // These are plain structs, which always have a JSON form.
        let json = |view: &Self| serde_json::to_string(view).unwrap_or_default();
        let text = match (form, self.event.take(), self.id.take()) {
            (Form::Ndjson, event, id) => {
                (self.event, self.id) = (event, id);
                json(&self) + "\n"
            }
            (Form::Sse, Some(event), Some(id)) => {
                format!("id: {id}\nevent: {}\ndata: {}\n\n", event.as_str(), json(&self))
            }
            // A comment: no client hears of it.
            (Form::Sse, ..) => ":\n\n".to_owned(),
        };
        text.into()
    }
}

/// What the document shows of a line.
pub(super) fn example_line() -> Happening {
    Happening {
        id: Some("kE7uZr2Q0sLxYb9VnHc4TmJf6WgDpA1iRoB8eXv5GtN3qSzK".into()),
        key: Some("backup".into()),
        fencing_token: Some(1_795_240_800_123_456),
        owner: Some("cron@db1".into()),
        ttl_ms: Some(29_999),
        expires_at: Some("2026-11-21T06:00:30.123Z".into()),
        ..Happening::named(Name::Granted)
    }
}

/// What the document shows of a stream.
pub(super) const EXAMPLE_STREAM: &str = "id: pX0c8Yt3rS1nVqzK5mWfJbUe2LhA9dGi7oQxTzR4vN6sCwEy\nevent: resync\ndata: {}\n\nid: kE7uZr2Q0sLxYb9VnHc4TmJf6WgDpA1iRoB8eXv5GtN3qSzK\nevent: granted\ndata: {\"key\":\"backup\",\"fencing_token\":1795240800123456,\"owner\":\"cron@db1\",\"ttl_ms\":29999,\"expires_at\":\"2026-11-21T06:00:30.123Z\"}\n\nid: Wm3KfT8rNc1YxHs6PvLd0JqZ5uBgEo9iAt7RnXe2SzVb4GyC\nevent: released\ndata: {\"key\":\"backup\",\"fencing_token\":1795240800123456}\n\n";
