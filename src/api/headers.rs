//! The names of the headers that are ours, in requests and in answers.

use axum::http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode;

use crate::access::ShownKey;
use crate::lock::{LeaseToken, LockKey};

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

/// Whether a secret stands in a text of the request: the lease token in these headers, or an API key, as `is_key_in` finds one. It
/// may stand there in capitals, or be percent-encoded once more or twice.
pub(super) fn has_secret(text: &[u8], headers: Option<&HeaderMap>, is_key_in: fn(&[u8]) -> bool) -> bool {
    // Each part of the text is compared. A shorter text has no room for a token. A longer one is refused anyway, and so is a request
    // with two tokens.
    let headers = headers.filter(|_| (LeaseToken::MIN_CHARS..=LockKey::MAX_BYTES).contains(&text.len()));
    let is_token_in = |text: &[u8]| {
        headers.into_iter().flat_map(|headers| headers.get_all(LEASE_TOKEN)).take(2).any(|token| {
            (LeaseToken::MIN_CHARS..=LeaseToken::MAX_CHARS.min(text.len())).contains(&token.len())
                && text.windows(token.len()).any(|part| part.eq_ignore_ascii_case(token.as_bytes()))
        })
    };
    let is_in = |text: &[u8]| is_key_in(text) || is_token_in(text);
    let decoded = |text: &[u8]| text.contains(&b'%').then(|| percent_decode(text).collect::<Vec<_>>());
    let twice = |once: Vec<u8>| is_in(&once) || decoded(&once).is_some_and(|twice| is_in(&twice));
    is_in(text) || decoded(text).is_some_and(twice)
}

/// Whether logs may show a name. A lock of 0.1.0 may have an API key in its own, or in that of its owner. And a request that takes
/// nothing may have its own lease token, in these headers, in the name of a lock.
pub(super) fn is_public(name: &str, headers: Option<&HeaderMap>) -> bool {
    !has_secret(name.as_bytes(), headers, ShownKey::stands_in)
}
