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
            "A query parameter is unknown, there twice, malformed or out of bounds. `parameter` names it, and `detail` says what to write. Nothing was changed.";
        BadKey = BAD_REQUEST, "bad-key", "The key cannot be used",
            "A key has 1 to 512 bytes of UTF-8 without control characters, percent-encoded. Proxies rewrite paths with an empty, `.` or `..` segment: send such keys to /lock?key= or /once?key=. Nothing was changed.";
        BadToken = BAD_REQUEST, "bad-token", "The Lease-Token header cannot be used",
            "A lease token has 16 to 128 of the characters A-Z a-z 0-9 . _ ~ -, in one Lease-Token header. Nothing was changed.";
        TokenRequired = BAD_REQUEST, "token-required", "The Lease-Token header is missing",
            "To renew or release a lock, or to store a result, renew or give up work, send the lease token that you began with in the Lease-Token header. The answer to PUT has it, in the header Lease-Token and as `token`. Nothing was changed.";
        UnexpectedBody = BAD_REQUEST, "unexpected-body", "The request has a body",
            "Everything is said in the path, the query and the headers. A request with a body is refused, so that nothing in it is overlooked. Nothing was changed.";
        MalformedRequest = BAD_REQUEST, "malformed-request", "The request can be read in two ways",
            "The address has a #, or the Host header is missing or there twice, or Content-Length is there twice or no plain number, or a line does not end with a carriage return and a line feed. Others on the way could read such a request in another way. Nothing was changed.";
        KeyRequired = UNAUTHORIZED, "key-required", "An API key is required",
            "This gateway serves clients that send an API key: `Authorization: Bearer fp_…`, or the key as the password of Basic authentication. Its operator can give you one. Nothing was changed.";
        KeyRefused = UNAUTHORIZED, "key-refused", "The API key is not accepted",
            "The API key is malformed, unknown, expired or revoked. Nothing was changed.";
        RightMissing = FORBIDDEN, "right-missing", "The API key does not allow this",
            "The API key does not have the right that this request needs, or has it only for other names. `right` names it. Nothing was changed, and the store was not asked.";
        GrantOver = FORBIDDEN, "grant-over", "This grant does not hold the lock",
            "The grant with this `fencing_token` has ended, or there never was one: the lock is free, or another grant holds it. Refuse what its client wants to write. Nothing was changed.";
        CrossOrigin = FORBIDDEN, "cross-origin", "Pages of other sites may not use this gateway",
            "A web page of another site made this request, by its Origin or its Sec-Fetch-Site. The operator can allow a site with --cors-origin. Nothing was changed.";
        UnknownHost = FORBIDDEN, "unknown-host", "This gateway does not answer to that name",
            "Without API keys, a gateway answers only to names that no web page can have: those of loopback, and beyond loopback also addresses. The operator can allow another name with --allow-host, such as that of a container or of a reverse proxy. Nothing was changed.";
        NotFound = NOT_FOUND, "not-found", "There is nothing at this address",
            "Locks are at /locks/{key}, with each slash of the key written as %2F, and at /lock?key=. Nothing was changed.";
        NotHeld = NOT_FOUND, "not-held", "No client holds the lock",
            "The lock is free: it was never taken, it was released, or its lease has ended.";
        MethodNotAllowed = METHOD_NOT_ALLOWED, "method-not-allowed", "The method does not exist here",
            "The Allow header lists the methods of this address. Nothing was changed.";
        HeldByAnother = CONFLICT, "held-by-another", "Another token holds the lock",
            "The lease of this token has ended, or there never was one. Another token holds the lock, or held it and `min_hold` keeps it taken. If you worked under this lock, stop. If you wanted to break it: the lock was granted anew since. Nothing was changed.";
        TokenReleased = CONFLICT, "token-released", "The token was released",
            "A released token takes no lock any more, so that a late copy of a request leaves none behind. Choose a fresh token for every acquisition. If you renewed: this token has released the lock, and `min_hold` keeps it taken. A token that the gateway made only confirms the lock that it was made for.";
        MaxHoldReached = CONFLICT, "max-hold-reached", "The lock cannot be held for longer",
            "The lock was taken with `max_hold`, and its lease lasts until that ends. Your token holds the lock until then, as `holder` says, and no renewal makes it longer. Take the lock again if you still need it.";
        HeldOtherwise = CONFLICT, "held-otherwise", "The token holds the lock beside others",
            "The token took one of more `slots` than this request asks for. Its grant stays as it is. Release it first, or use another token. Nothing was changed.";
        HeldBySeveral = CONFLICT, "held-by-several", "The lock is held by slots",
            "The lock is held by slots. To break a grant, say in `fencing_token` which one: GET with holders=true names them. Whether a grant still holds can be asked of a lock only that one client holds alone. Nothing was changed.";
        UriTooLong = URI_TOO_LONG, "uri-too-long", "The address is too long",
            "Path and query together may have 8 KiB. Nothing was changed.";
        LockHeld = LOCKED, "lock-held", "Another client holds the lock",
            "`holder` says who holds the lock, and until when at most. Without `holder`, the lock is reserved for the first client of the wait queue; with `holder_unknown`, it is not known who holds it. `waiters` says how many wait. `position` says where you are in the queue, if your token has a ticket: the same PUT with `wait` goes on from there. Retry-After says when to ask again.";
        TooManyWaiters = TOO_MANY_REQUESTS, "too-many-waiters", "Too many requests wait already",
            "The wait queue of this lock, or this gateway, is full; or too many requests of this API key wait. Clients that left count until their tickets expire. Nothing was changed.";
        TooManyHolds = TOO_MANY_REQUESTS, "too-many-holds", "Too many holds are open already",
            "This gateway, or this API key at it, has as many open holds as it may have, with those that still wait for their lock. Nothing was changed.";
        TooManyWatchers = TOO_MANY_REQUESTS, "too-many-watchers", "Too many streams of events are open already",
            "This gateway, or this API key at it, has as many open streams of events as it may have. Nothing was changed.";
        TooManyLocks = TOO_MANY_REQUESTS, "too-many-locks", "The API key has too many locks",
            "This gateway has granted as many locks to the API key as it may hold at once, and none of them has ended. You can still renew and release them, and repeat the PUT of a token that holds its lock. Release what you do not need. Nothing was changed.";
        RateLimited = TOO_MANY_REQUESTS, "rate-limited", "Too many requests",
            "The API key has made more requests than its rate allows, or too many API keys from this address were refused. Retry-After says when to come back. Nothing was changed.";
        HeadersTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "The headers are too large",
            "Names and values of all headers together may have 16 KiB. Nothing was changed.";
        OnceInProgress = LOCKED, "once-in-progress", "Another client does the work",
            "`worker` says who does it, and how long its lease lasts at most. If it stores its result, the same PUT is answered with that. If it crashes, the place is free at the end of its lease. Send `wait` to wait for either.";
        OnceAbandoned = CONFLICT, "once-abandoned", "A worker may have done the work, and has stored no result",
            "`worker` names the last one. Its lease is over, or it gave up and may have done a part. The request said `takeover=false`, so you do not take over. The worker itself can still store its result, if its token is not released; `yours` says whether that is you. Else a person must find out, and break the record.";
        FingerprintMismatch = UNPROCESSABLE_ENTITY, "fingerprint-mismatch", "The key belongs to another request",
            "The record was begun with a Once-Fingerprint, and this request has another one, or none. Two different requests must not share a key. Nothing was changed.";
        Superseded = CONFLICT, "superseded", "Another worker has taken over",
            "Your lease ended, or the place was given up, and another token was granted the place: `fencing_token` is its number, and `done` says whether it has stored its result. Your result is not stored. What you changed stands: compare fencing tokens where it matters. Nothing was changed.";
        AlreadyStored = CONFLICT, "already-stored", "The result is stored already",
            "This token has stored its result, which ended its lease. There is nothing left to renew or to give up. Nothing was changed.";
        ResultDiffers = CONFLICT, "result-differs", "This token has stored another result",
            "A result never changes. The first one that arrived counts, and the same PUT is answered with it. Nothing was changed.";
        LeaseOver = CONFLICT, "lease-over", "The lease is over",
            "A renewal does not bring it back. The place is yours until another client takes over: store the result that you have at once. Nothing was changed.";
        NotBegun = NOT_FOUND, "not-begun", "There is no such piece of work",
            "No client has begun it, or the place was given up, or the record was broken, has ended, or was lost with the store's data. If you have a result: begin once more with a token of your own, the same Once-Fingerprint and without takeover=false, and if that is 201 store it at once. Nothing was changed.";
        ResultTooLarge = PAYLOAD_TOO_LARGE, "result-too-large", "The result is too large",
            "`max_result_bytes` of the 201 says how long a result may be. Store a shorter one, such as the address of where it lies: the place is still yours. Nothing was changed.";
        LengthMissing = LENGTH_REQUIRED, "length-missing", "The result has no Content-Length",
            "Over HTTP/2 and HTTP/1.0, a result needs a Content-Length header: without it, a result that is cut off could be taken for a whole one. The place is still yours. Nothing was changed.";
        ResultEncoded = UNSUPPORTED_MEDIA_TYPE, "result-encoded", "The result is encoded",
            "A result is kept byte for byte, and without its headers: send it as it is, without Content-Encoding, and with no Transfer-Encoding but `chunked`. The place is still yours. Nothing was changed.";
        ResultStalled = REQUEST_TIMEOUT, "result-stalled", "The result did not arrive in time",
            "A result must be complete within 10 seconds. Send it again: the place is still yours. Nothing was changed.";
        TooManyResults = TOO_MANY_REQUESTS, "too-many-results", "Too many bodies are on their way",
            "The bodies of requests that arrive at this gateway at once may take 64 MiB together: results, and what may yet turn out to be a body. Send it again. If it is a result, the place is still yours. Nothing was changed.";
        OnceUnsupported = NOT_IMPLEMENTED, "once-unsupported", "This store keeps no records",
            "`detail` says what it lacks. Nothing was changed.";
        ModeNotAvailable = NOT_IMPLEMENTED, "mode-not-available", "This store cannot share a lock",
            "`detail` says why. Without `slots`, the same request works. The store was not asked, and nothing was changed.";
        StoreNearlyFull = SERVICE_UNAVAILABLE, "store-nearly-full", "There is no room for more results",
            "Records take as much of the store as they may, so that locks have room. A new piece of work is not begun, and a result of more than 1 KiB is not stored. A shorter one is: the place of its worker is still its own. Certainly nothing was changed.";
        InternalError = INTERNAL_SERVER_ERROR, "internal-error", "The gateway made a mistake",
            "Whether anything was changed is not known: retry with the same token. The X-Request-Id of this answer helps to find the mistake in the log.";
        StoreUnavailable = SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be used",
            "The gateway could not ask the store. Certainly nothing was changed: try again.";
        NotReplicated = SERVICE_UNAVAILABLE, "not-replicated", "Too few replicas have acknowledged the lock",
            "The lock, or the place of a worker, was free, but fewer replicas acknowledged the grant in time than the operator asks for. So the gateway took it back; others may have seen it held for a moment. Try again.";
        OutcomeUnknown = SERVICE_UNAVAILABLE, "outcome-unknown", "It is not known whether it happened",
            "The gateway asked the store, and the answer was lost: it may have happened, or not. Retry with the same token to find out. If a lock was granted and you were never told its token, the gateway releases it.";
        ShuttingDown = SERVICE_UNAVAILABLE, "shutting-down", "The gateway is stopping",
            "The gateway answers what it has begun, and stops. Try again: another gateway may answer.";
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
