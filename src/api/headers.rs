//! The names of the headers that are ours, in requests and in answers.

use axum::http::HeaderName;

/// The secret of a lease, in requests and in answers to them.
pub(super) const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");
/// The fencing token, to show to the resource that the lock protects.
pub(super) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The place of a grant beside the other holders of its lock.
pub(super) const SLOT: HeaderName = HeaderName::from_static("slot");
/// Where clients of Dapr show an API key.
pub(super) const DAPR_API_TOKEN: HeaderName = HeaderName::from_static("dapr-api-token");
/// Names a request, in its answer and in the log.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The id of the last event that a client has read, when it comes back to a stream.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// What a key has left of its rate, and what its rate is.
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// What became of a request to begin a piece of work, or to store its result.
pub(super) const ONCE: HeaderName = HeaderName::from_static("once");
/// How many workers before may have done it.
pub(super) const ONCE_EARLIER: HeaderName = HeaderName::from_static("once-earlier");
/// Which requests a record is for. It is a header, so that it is in no URL.
pub(super) const ONCE_FINGERPRINT: HeaderName = HeaderName::from_static("once-fingerprint");
/// What is said of a stored result.
pub(super) const ONCE_STATUS: HeaderName = HeaderName::from_static("once-status");
pub(super) const ONCE_CONTENT_TYPE: HeaderName = HeaderName::from_static("once-content-type");
pub(super) const ONCE_BYTES: HeaderName = HeaderName::from_static("once-bytes");
pub(super) const ONCE_STORED_AT: HeaderName = HeaderName::from_static("once-stored-at");
pub(super) const ONCE_KEPT_UNTIL: HeaderName = HeaderName::from_static("once-kept-until");
/// Says whose pages may embed an answer.
pub(super) const CORP: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
