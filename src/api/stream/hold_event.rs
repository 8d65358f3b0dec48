//! The events of a connection that holds a lock.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::{StreamEvent, name_line};
use crate::api::answers::{LockOfSeveral, expiry};
use crate::lock::{Lease, LeaseToken, LockKey};
use crate::service::{HoldEvent, Loss};

/// What has happened.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Granted,
    Renewed,
    Heartbeat,
    Lost,
}

/// Why the lock is lost, with `lost`.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Reason {
    MaxHoldReached,
    Released,
    Expired,
    HeldByAnother,
    TakenOver,
    ShuttingDown,
    KeyRefused,
}

/// An event of a hold, as a line of JSON. A server-sent event has the same fields, and `event` in a line of its own.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = HoldEvent)]
pub(crate) struct HoldEventView {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline, value_type = Name, required = true)]
    event: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline, value_type = Reason, required = false)]
    reason: Option<Reason>,
    /// The reason in words for people, with `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    detail: Option<&'static str>,
    /// The lock, with `granted`; with every event that is about one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    key: Option<String>,
    /// The secret that renews and releases the lease: with `granted`, and with `lost` where `reason` is `shutting-down`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    token: Option<String>,
    /// The number of the grant. Send it with every write to what the lock protects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    fencing_token: Option<u64>,
    /// What is left of the lease, in milliseconds: never more than there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, value_type = u64, required = false)]
    ttl_ms: Option<u64>,
    /// When the lease ends, by the clock of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, value_type = String, required = false)]
    expires_at: Option<String>,
    /// How many milliseconds before this event the request came, with each event that has a lease. Count `ttl_ms` from so long
    /// after you sent the request, or from when you read the event, if that is earlier: then an event that you read late counts for no
    /// longer than the lease lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    request_age_ms: Option<u64>,
    /// The note that was given when the lock was taken, with `granted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
    /// Your place among those who hold the lock, from 1 on, where it is held by slots; with `granted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    slot: Option<u16>,
    /// With how many others you can hold it, you included; with `granted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    slots: Option<u16>,
    /// The locks, with `granted`, if you hold several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<LockOfSeveral>, required = false, min_items = 2, max_items = 16)]
    locks: Option<Vec<LockOfSeveral>>,
}

impl HoldEventView {
    fn of(event: Name) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    fn with_lease(self, lease: &Lease) -> Self {
        Self {
            fencing_token: Some(lease.fencing_token.get()),
            ttl_ms: Some(lease.left_ms),
            expires_at: Some(expiry(lease.left_ms)),
            ..self
        }
    }

    fn with_token(self, token: &LeaseToken) -> Self {
        Self { token: Some(token.reveal().to_owned()), ..self }
    }

    /// The request came so long ago.
    pub(crate) fn asked(self, ago: Duration) -> Self {
        let age_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        Self { request_age_ms: self.ttl_ms.map(|_| age_ms), ..self }
    }

    /// The client holds the lock.
    pub(crate) fn granted(key: &LockKey, token: &LeaseToken, lease: &Lease) -> Self {
        Self {
            key: Some(key.as_str().to_owned()),
            owner: lease.owner().map(str::to_owned),
            slot: lease.slot.map(|slot| slot.number),
            slots: lease.slot.map(|slot| slot.slots.get()),
            ..Self::of(Name::Granted)
        }
        .with_token(token)
        .with_lease(lease)
    }

    /// The client holds these locks.
    pub(crate) fn granted_several(leases: &[(&LockKey, Lease)], token: &LeaseToken) -> Self {
        let left_ms = leases.iter().map(|(_, lease)| lease.left_ms).min().unwrap_or_default();
        Self {
            locks: Some(leases.iter().map(|(key, lease)| LockOfSeveral::of(key, lease)).collect()),
            owner: leases.first().and_then(|(_, lease)| lease.owner()).map(str::to_owned),
            ttl_ms: Some(left_ms),
            expires_at: Some(expiry(left_ms)),
            ..Self::of(Name::Granted)
        }
        .with_token(token)
    }

    /// It is about this one of several locks.
    pub(crate) fn of_lock(self, key: &LockKey) -> Self {
        // That nothing has happened is so of all of them.
        let is_about_all = matches!(self.event, Some(Name::Heartbeat));
        Self { key: (!is_about_all).then(|| key.as_str().to_owned()), ..self }
    }

    /// Something has happened to the lock of this token.
    pub(crate) fn happened(event: &HoldEvent, token: &LeaseToken) -> Self {
        match event {
            HoldEvent::Renewed(lease) => Self::of(Name::Renewed).with_lease(lease),
            HoldEvent::Heartbeat => Self::of(Name::Heartbeat),
            HoldEvent::Lost(loss) => {
                let (reason, detail) = explain(loss);
                let lost = Self { reason: Some(reason), detail: Some(detail), ..Self::of(Name::Lost) };
                match loss {
                    Loss::ShuttingDown(lease) => lost.with_token(token).with_lease(lease),
                    _ => lost,
                }
            }
        }
    }
}

impl StreamEvent for HoldEventView {
    fn take_head(&mut self) -> Option<String> {
        let name = self.event.take().filter(|name| !matches!(name, Name::Heartbeat))?;
        Some(name_line(&name))
    }
}

fn explain(loss: &Loss) -> (Reason, &'static str) {
    match loss {
        Loss::MaxHoldReached => (
            Reason::MaxHoldReached,
            "max_hold is over, and the lock is free: unless an earlier lease of this token still lasts",
        ),
        Loss::Released => (
            Reason::Released,
            "no client holds the lock: it was released with its token, an operator broke it, or the store lost it",
        ),
        Loss::Expired => (
            Reason::Expired,
            "the store or this gateway was held up for so long that the lease may be over: stop at once",
        ),
        Loss::HeldByAnother => (Reason::HeldByAnother, "another token holds the lock: stop at once"),
        Loss::TakenOver => (
            Reason::TakenOver,
            "another request took the lock over by the same token: this connection no longer renews it",
        ),
        Loss::KeyRefused => (
            Reason::KeyRefused,
            "the API key has expired, or was revoked or changed: the gateway releases the lock",
        ),
        Loss::ShuttingDown(_) => (
            Reason::ShuttingDown,
            "the gateway stops; your token holds the lock until expires_at: renew it, or hold it, at another gateway",
        ),
    }
}

/// What the document shows of a line.
pub(crate) fn example_line() -> HoldEventView {
    HoldEventView {
        fencing_token: Some(1_795_240_800_123_456),
        ttl_ms: Some(14_998),
        expires_at: Some("2026-11-21T06:00:20.123Z".into()),
        request_age_ms: Some(5_003),
        ..HoldEventView::of(Name::Renewed)
    }
}

/// What the document shows of a stream.
pub(crate) const EXAMPLE_STREAM: &str = "event: granted\ndata: {\"key\":\"backup\",\"token\":\"~5f2b1c0e9d8a4b7c8e6f1a2b3c4d5e6f\",\"fencing_token\":1795240800123456,\"ttl_ms\":14999,\"expires_at\":\"2026-11-21T06:00:15.123Z\",\"request_age_ms\":2}\n\nevent: renewed\ndata: {\"fencing_token\":1795240800123456,\"ttl_ms\":14998,\"expires_at\":\"2026-11-21T06:00:20.123Z\",\"request_age_ms\":5003}\n\nevent: lost\ndata: {\"reason\":\"max-hold-reached\",\"detail\":\"max_hold is over, and the lock is free: unless an earlier lease of this token still lasts\"}\n\n";
