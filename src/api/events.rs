//! What a connection that holds a lock is told while it lives: server-sent events, or JSON objects line by line.

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::expiry;
use crate::lock::{Lease, LeaseToken, LockKey};
use crate::service::{HoldEvent, Loss};

/// Has nginx pass events on as they come.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Server-sent events.
pub(super) const SSE: &str = "text/event-stream";
/// One JSON object a line.
pub(super) const NDJSON: &str = "application/x-ndjson";

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Sse,
    Ndjson,
}

/// What an event is.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = HoldEventName)]
enum Name {
    Granted,
    Renewed,
    Heartbeat,
    Lost,
}

/// Why a connection lost its lock.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = HoldLossReason)]
enum Reason {
    MaxHoldReached,
    Released,
    Expired,
    HeldByAnother,
    TakenOver,
    ShuttingDown,
    KeyRefused,
}

/// What a connection that holds a lock is told, as a line of NDJSON. A server-sent event has the same without `event`,
/// which it names in a line of its own.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = HoldEvent)]
pub(super) struct EventView {
    /// What has happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Name, required = true)]
    event: Option<Name>,
    /// Why the lock is lost, with `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Reason, required = false)]
    reason: Option<Reason>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    detail: Option<&'static str>,
    /// The lock, with `granted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    key: Option<String>,
    /// The secret that renews and releases the lease: with `granted`, and with `lost` where `reason` is `shutting-down`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    token: Option<String>,
    /// The number to show to what the lock protects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    fencing_token: Option<u64>,
    /// What is left of the lease, in milliseconds, counted from before the store was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, value_type = u64, required = false)]
    ttl_ms: Option<u64>,
    /// When the lease ends, by the clock of the server that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, value_type = String, required = false)]
    expires_at: Option<String>,
    /// The note that was given when the lock was taken, with `granted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
}

impl EventView {
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

    /// The lock is the client's.
    pub(super) fn granted(key: &LockKey, token: &LeaseToken, lease: &Lease) -> Self {
        Self {
            key: Some(key.as_str().to_owned()),
            owner: lease.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            ..Self::of(Name::Granted)
        }
        .with_token(token)
        .with_lease(lease)
    }

    /// What has happened to the lock of this token.
    pub(super) fn happened(event: &HoldEvent, token: &LeaseToken) -> Self {
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

    /// The event as it is written.
    pub(super) fn written(mut self, form: Form) -> Bytes {
        // These are plain structs, which always have a JSON form.
        let json = |view: &Self| serde_json::to_string(view).unwrap_or_default();
        let text = match (form, self.event) {
            (Form::Ndjson, _) => json(&self) + "\n",
            // A comment: no client hears of it.
            (Form::Sse, None | Some(Name::Heartbeat)) => ":\n\n".to_owned(),
            (Form::Sse, Some(name)) => {
                self.event = None;
                let name = match name {
                    Name::Granted => "granted",
                    Name::Renewed => "renewed",
                    Name::Heartbeat => "heartbeat",
                    Name::Lost => "lost",
                };
                format!("event: {name}\ndata: {}\n\n", json(&self))
            }
        };
        text.into()
    }
}

fn explain(loss: &Loss) -> (Reason, &'static str) {
    match loss {
        Loss::MaxHoldReached => (
            Reason::MaxHoldReached,
            "the lock was held for as long as max_hold allows: it is free now, unless a lease still runs that was told before",
        ),
        Loss::Released => (
            Reason::Released,
            "nobody holds the lock: it was released with its token or broken, or the store has lost it",
        ),
        Loss::Expired => (
            Reason::Expired,
            "the store could not be asked for so long that the lease may be over: stop at once",
        ),
        Loss::HeldByAnother => (Reason::HeldByAnother, "another token holds the lock: stop at once"),
        Loss::TakenOver => {
            (Reason::TakenOver, "the token still holds the lock, but by another request that showed it since")
        }
        Loss::KeyRefused => {
            (Reason::KeyRefused, "the API key has expired, or was revoked or changed; the lock is released")
        }
        Loss::ShuttingDown(_) => (
            Reason::ShuttingDown,
            "the server stops; the token holds the lock for ttl_ms more: renew it, or hold it, at another server",
        ),
    }
}

impl Form {
    fn media_type(self) -> &'static str {
        match self {
            Self::Sse => SSE,
            Self::Ndjson => NDJSON,
        }
    }

    /// An answer that goes on, in this form.
    pub(super) fn stream(self, body: Body) -> Response {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static(self.media_type())),
            (ACCEL_BUFFERING, HeaderValue::from_static("no")),
        ];
        (headers, body).into_response()
    }

    /// What a client prefers by its `Accept`. Where it leaves that open, or takes neither, it gets events: a status that
    /// says 406 would be of no use to it.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges: Vec<_> = lines.flat_map(|line| line.split(',')).filter_map(range).collect();
        let weight = |media_type: &str| {
            let (kind, _) = media_type.split_once('/').unwrap_or_default();
            let fit = |name: &str| match name {
                "*/*" => Some(0),
                _ if name.eq_ignore_ascii_case(media_type) => Some(2),
                _ => name.strip_suffix("/*").filter(|range| range.eq_ignore_ascii_case(kind)).map(|_| 1),
            };
            // The most specific range says what the type is worth; of two that are worth the same, the more specific wins.
            let fits = ranges.iter().filter_map(|(name, quality)| Some((fit(name)?, *quality)));
            fits.max_by_key(|(fit, _)| *fit).map_or((0, 0), |(fit, quality)| (quality, fit))
        };
        if weight(NDJSON) > weight(SSE) { Self::Ndjson } else { Self::Sse }
    }
}

/// A media range, and its quality in thousandths.
fn range(text: &str) -> Option<(&str, u32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    // One that cannot be read counts as none.
    let quality = quality.map_or(Some(1.0), |quality| quality.trim().parse::<f64>().ok())?;
    // Within bounds that are checked here.
    (0.0..=1.0).contains(&quality).then_some((name, (quality * 1000.0) as u32))
}

/// What the document shows of a line.
pub(super) fn example_line() -> EventView {
    EventView {
        fencing_token: Some(1_795_240_800_123_456),
        ttl_ms: Some(14_998),
        expires_at: Some("2026-11-21T06:00:20.123Z".into()),
        ..EventView::of(Name::Renewed)
    }
}

/// What the document shows of a stream.
pub(super) const EXAMPLE_STREAM: &str = "event: granted\ndata: {\"key\":\"backup\",\"token\":\"~5f2b1c0e9d8a4b7c8e6f1a2b3c4d5e6f\",\"fencing_token\":1795240800123456,\"ttl_ms\":14999,\"expires_at\":\"2026-11-21T06:00:15.123Z\"}\n\nevent: renewed\ndata: {\"fencing_token\":1795240800123456,\"ttl_ms\":14998,\"expires_at\":\"2026-11-21T06:00:20.123Z\"}\n\nevent: lost\ndata: {\"reason\":\"max-hold-reached\",\"detail\":\"the lock was held for as long as max_hold allows: it is free now, unless a lease still runs that was told before\"}\n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_what_the_client_prefers() {
        let form = |accept: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT, axum::http::HeaderValue::from_static(accept))]);
            Form::accepted(&headers)
        };
        for accept in [
            "*/*",
            "text/event-stream",
            "text/event-stream, */*",
            "application/json, text/plain, */*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json",
            "text/event-stream, application/x-ndjson;q=0.9",
            "application/x-ndjson;q=0, */*",
            "application/x-ndjson;q=nonsense",
            "text/*, application/*",
            "",
        ] {
            assert_eq!(form(accept), Form::Sse, "{accept}");
        }
        for accept in [
            "application/x-ndjson",
            "Application/X-NDJSON; q=0.5",
            "application/x-ndjson, */*",
            "text/event-stream;q=0.5, application/x-ndjson",
            "text/event-stream;q=0, */*",
        ] {
            assert_eq!(form(accept), Form::Ndjson, "{accept}");
        }
        assert_eq!(Form::accepted(&HeaderMap::new()), Form::Sse);
    }
}
