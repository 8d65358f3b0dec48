//! The types of errors, each with its status and its texts. Names and meanings are stable once shipped.

use axum::http::StatusCode;
use serde::{Serialize, Serializer};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// What is fixed for each type: status, name, title, and the text at `/problems/{name}`.
struct About(StatusCode, &'static str, &'static str, &'static str);

/// Makes the types of a table with a row for each.
macro_rules! problem_types {
    ($(#[$about:meta])* $visibility:vis enum $kind:ident {
        $($name:ident = $status:ident, $slug:literal, $title:literal, $text:literal;)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $kind {
            $($name,)+
        }

        impl $kind {
            $visibility const ALL: [Self; [$($slug),+].len()] = [$(Self::$name),+];

            fn about(self) -> About {
                match self {
                    $(Self::$name => About(StatusCode::$status, $slug, $title, $text),)+
                }
            }
        }
    };
}

problem_types! {
    /// What went wrong.
    pub(crate) enum ProblemType {
        BadParameter = BAD_REQUEST, "bad-parameter", "A parameter is wrong",
            "A query parameter is unknown, repeated, malformed or out of bounds; `parameter` names it. Nothing was changed.";
        BadKey = BAD_REQUEST, "bad-key", "The key is not usable",
            "A key is 1 to 512 bytes of UTF-8 without control characters, percent-encoded. Keys with an empty, `.` or `..` segment go through /lock?key=, because proxies rewrite such paths. Nothing was changed.";
        BadToken = BAD_REQUEST, "bad-token", "The Lease-Token header is not usable",
            "A lease token is 16 to 128 of A-Z a-z 0-9 . _ ~ - in a single Lease-Token header. Nothing was changed.";
        TokenRequired = BAD_REQUEST, "token-required", "The Lease-Token header is missing",
            "Renewing and releasing need the token that took the lock, in the Lease-Token header. Nothing was changed.";
        UnexpectedBody = BAD_REQUEST, "unexpected-body", "The request has a body",
            "Everything is said in the path, the query and the headers. A body is refused, so that nothing in it is overlooked. Nothing was changed.";
        MalformedRequest = BAD_REQUEST, "malformed-request", "The request can be read in two ways",
            "Its address has a raw #, behind which servers see nothing; or its Host is missing or said twice; or a line of its head ends without a carriage return. Nothing was changed.";
        KeyRequired = UNAUTHORIZED, "key-required", "An API key is required",
            "This server answers to those who show a key: `Authorization: Bearer fp_…`. Nothing was changed.";
        KeyRefused = UNAUTHORIZED, "key-refused", "The API key is not accepted",
            "The key in the Authorization header is malformed, unknown, expired or revoked. Nothing was changed.";
        RightMissing = FORBIDDEN, "right-missing", "The API key does not allow this",
            "The key has not got the right that this request needs, or has it for locks of other names only. Nothing was changed, and the store was not asked.";
        CrossOrigin = FORBIDDEN, "cross-origin", "Pages of other sites may not use this server",
            "The request carries the Origin of another site, or Sec-Fetch-Site says that another site's page embeds the answer or leads to it. The operator can allow an Origin with --cors-origin. Nothing was changed.";
        UnknownHost = FORBIDDEN, "unknown-host", "This server does not answer to that name",
            "A server without API keys answers only to names that no web page can have: those of loopback, and beyond loopback also addresses. The operator can allow another, such as that of a container or of a reverse proxy, with --allow-host. Nothing was changed.";
        NotFound = NOT_FOUND, "not-found", "There is nothing at this address",
            "Locks are at /locks/{key}, with any slash of the key written %2F, and at /lock?key=. Nothing was changed.";
        NotHeld = NOT_FOUND, "not-held", "Nobody holds the lock",
            "The lock is free: it was never taken, it was released, or its lease has expired.";
        MethodNotAllowed = METHOD_NOT_ALLOWED, "method-not-allowed", "The method does not exist here",
            "The Allow header lists the methods of this address. Nothing was changed.";
        HeldByAnother = CONFLICT, "held-by-another", "Another token holds the lock",
            "The lease of this token has ended, or never was, and someone else holds the lock now, or held it, and it stays taken for the rest of its `min_hold`. Whoever worked under it must stop. To one who breaks a lock: another grant holds it than the one that was to end. Nothing was changed.";
        TokenReleased = CONFLICT, "token-released", "The token was released",
            "A released token takes nothing any more, so that a late copy of a request leaves no lock behind. Choose a fresh token for every acquisition. To one who renews: the lock stays taken for the rest of its `min_hold`, by nobody. A token made by the server only confirms the lock that it was made for.";
        MaxHoldReached = CONFLICT, "max-hold-reached", "The lock cannot be held for longer",
            "The lock was taken with `max_hold`, and its lease lasts until the end of that already. The token holds the lock until then, as `holder` says, and no renewal lengthens it. Take the lock anew if it is still needed.";
        UriTooLong = URI_TOO_LONG, "uri-too-long", "The address is too long",
            "Path and query together may have 8 KiB. Nothing was changed.";
        LockHeld = LOCKED, "lock-held", "Someone else holds the lock",
            "`holder` says who, and until when at the latest; without it the lock is promised to the first in line, or, with `holder_unknown`, it is not known who holds it. `waiters` says how many wait, and `position` where your token stands, if it has a place: the same PUT with `wait` goes on from there. Retry-After says when to ask again.";
        TooManyWaiters = TOO_MANY_REQUESTS, "too-many-waiters", "Too many wait already",
            "The line of this lock, or this server, holds as many who wait as its settings allow; or as many requests of this API key wait as may, places of clients who left counted until they end. Nothing was changed.";
        TooManyHolds = TOO_MANY_REQUESTS, "too-many-holds", "Too many connections hold a lock already",
            "As many connections hold a lock at this server, or wait to, as its settings allow, or as this API key may have. Nothing was changed.";
        TooManyWatchers = TOO_MANY_REQUESTS, "too-many-watchers", "Too many watch already",
            "As many streams of events are open at this server as its settings allow, or as this API key may have. Nothing was changed.";
        TooManyLocks = TOO_MANY_REQUESTS, "too-many-locks", "The API key has too many locks",
            "This server has granted as many locks to the API key as it may have at once, and none of them has ended. Renewing and releasing go on as ever, and so does a PUT with a token that holds its lock. Release what is not needed. Nothing was changed.";
        RateLimited = TOO_MANY_REQUESTS, "rate-limited", "Too many requests",
            "The key has made more requests than its rate allows, or this address has shown too many keys that are not accepted. Retry-After says when to come back. Nothing was changed.";
        HeadersTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "The headers are too large",
            "Names and values together may have 16 KiB. Nothing was changed.";
        InternalError = INTERNAL_SERVER_ERROR, "internal-error", "The server made a mistake",
            "This is a fault of the server. Whether anything was changed is not known: retry with the same token. The X-Request-Id helps to find it in the log.";
        StoreUnavailable = SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be used",
            "The lock store could not be asked. Certainly nothing was changed; try again.";
        NotReplicated = SERVICE_UNAVAILABLE, "not-replicated", "Too few replicas have acknowledged the lock",
            "The lock was free, but fewer replicas of the store than the operator asks for have acknowledged the grant in time, so it was taken back; others may have seen it held for that moment. Try again.";
        OutcomeUnknown = SERVICE_UNAVAILABLE, "outcome-unknown", "Nobody knows whether it happened",
            "The store was asked, and its answer was lost: it may have happened, or may not. Retry with the same token to find out. A lock that was granted to a token that you were never told is taken back.";
        ShuttingDown = SERVICE_UNAVAILABLE, "shutting-down", "The server is shutting down",
            "The server finishes what it has begun and stops. Try again; another one may answer.";
    }
}

impl ProblemType {
    pub(crate) fn status(self) -> StatusCode {
        self.about().0
    }

    pub(crate) fn name(self) -> &'static str {
        self.about().1
    }

    pub(crate) fn title(self) -> &'static str {
        self.about().2
    }

    /// What a person reads at `/problems/{name}`.
    pub(crate) fn text(self) -> &'static str {
        self.about().3
    }

    fn uri(self) -> String {
        format!("/problems/{}", self.name())
    }
}

impl Serialize for ProblemType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("/problems/{}", self.name()))
    }
}

impl PartialSchema for ProblemType {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What went wrong, as a link to a text for people."))
            .enum_values(Some(Self::ALL.map(Self::uri)))
            .into()
    }
}

impl ToSchema for ProblemType {}
