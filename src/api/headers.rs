//! The names of the headers that are ours, in requests and in answers.

use axum::http::HeaderName;

/// The secret of a lease, in requests and in answers to them.
pub(super) const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");
/// The fencing token, to show to the resource that the lock protects.
pub(super) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// Names a request, in its answer and in the log.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The id of the last event that a client has read, when it comes back to a stream.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// What a key has left of its rate, and what its rate is.
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
