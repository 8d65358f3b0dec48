//! What the operations of the document have in common: their parameters, and the problems that each can answer.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::json;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type,
    example::{Example, ExampleBuilder},
};
use utoipa::{IntoParams, IntoResponses};

use crate::access::Right;
use crate::api::answers::{example_holder, example_worker};
use crate::api::problem::{PROBLEM_JSON, Problem, ProblemType};

/// The lock in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct KeyParam {
    /// The name of the lock: 1 to 512 bytes of UTF-8 without control characters, percent-encoded.
    #[param(min_length = 1, max_length = 512, example = "backup")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    key: String,
}

/// The lock, at an address that can have its name only in the query.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct QueryKeyParam {
    /// The name of the lock: 1 to 512 bytes of UTF-8 without control characters.
    #[param(min_length = 1, max_length = 512, example = "nightly-report")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    key: String,
}

/// The record in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct RecordKeyParam {
    /// The name of the record: 1 to 512 bytes of UTF-8 without control characters, percent-encoded. A lock of the same name is another
    /// thing.
    #[param(min_length = 1, max_length = 512, example = "pay:ann:4711")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    key: String,
}

/// Which requests a record is for.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct FingerprintParam {
    /// What tells your request from another one with the same key, such as a hash of method, path and body: 1 to 128 visible ASCII
    /// characters. If the record has one, a request with another one, or with none, is refused with 422.
    #[param(rename = "Once-Fingerprint", value_type = String, required = false, min_length = 1, max_length = 128,
        pattern = "^[!-~]+$")]
    #[expect(dead_code, reason = "it only documents what `fingerprint` reads")]
    fingerprint: String,
}

/// The number that a worker shows.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct NumberParam {
    /// The fencing token of your 201. If the record has another one by now, nothing is done. It tells two runs with one token apart.
    #[param(rename = "Fencing-Token", value_type = u64, required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    #[expect(dead_code, reason = "it only documents what `shown_number` reads")]
    number: u64,
}

/// A token that may be left out.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct OptionalToken {
    /// The lease token: a secret that you choose anew for every acquisition, of 16 to 128 of the characters
    /// `A-Z a-z 0-9 . _ ~ -`, not beginning with `~`. If you send none, the gateway makes one and answers it.
    #[param(rename = "Lease-Token", value_type = String, required = false, min_length = 16, max_length = 128,
        pattern = "^[A-Za-z0-9._~-]+$", example = "choose-a-secret-of-your-own")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// A token that must be there.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct RequiredToken {
    /// The lease token that took the lock. The answer to `PUT` has it.
    #[param(
        rename = "Lease-Token",
        min_length = 16,
        max_length = 128,
        pattern = "^[A-Za-z0-9._~-]+$",
        example = "choose-a-secret-of-your-own"
    )]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// A token that must be there, unless the request breaks the lock.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct TokenUnlessForced {
    /// The lease token that took the lock. Send it, unless you send `force`.
    #[param(rename = "Lease-Token", value_type = String, required = false, min_length = 16, max_length = 128,
        pattern = "^[A-Za-z0-9._~-]+$", example = "choose-a-secret-of-your-own")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// What every address can answer: the request is refused before its handler runs, or the handler panics.
const ANYWHERE: &[ProblemType] = &[
    ProblemType::CrossOrigin,
    ProblemType::UnknownHost,
    ProblemType::MalformedRequest,
    ProblemType::UriTooLong,
    ProblemType::HeadersTooLarge,
    ProblemType::InternalError,
];
/// What every operation on a lock can answer.
const ANY_LOCK_CALL: &[ProblemType] =
    &[ProblemType::BadParameter, ProblemType::BadKey, ProblemType::BadToken, ProblemType::StoreUnavailable];
/// What every operation but one can answer: it has no body, and one without a length must end first.
const NO_BODY: &[ProblemType] = &[ProblemType::UnexpectedBody, ProblemType::TooManyResults];

/// What every operation on a record can answer besides.
const ANY_RECORD_CALL: &[ProblemType] = &[ProblemType::OnceUnsupported];

/// What every address that needs a key can answer.
const WITH_KEYS: &[ProblemType] =
    &[ProblemType::KeyRequired, ProblemType::KeyRefused, ProblemType::RightMissing, ProblemType::RateLimited];

/// One line for each operation, for its `responses(…)`: the lists that it shares with others, and the problems of its own.
macro_rules! problems {
    ($($name:ident: $($list:ident)* + $($own:ident)*;)+) => {$(
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                responses(&[ANYWHERE, $($list,)* &[$(ProblemType::$own),*]].concat())
            }
        }
    )+};
}

problems! {
    AcquireProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY
        + TokenReleased HeldOtherwise LockHeld TooManyWaiters TooManyHolds TooManyLocks NotReplicated
        OutcomeUnknown ShuttingDown ModeNotAvailable;
    RenewProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY
        + TokenRequired NotHeld HeldByAnother TokenReleased MaxHoldReached OutcomeUnknown;
    ReleaseProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY
        + TokenRequired NotHeld HeldByAnother HeldBySeveral OutcomeUnknown;
    InspectProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY + NotHeld GrantOver HeldBySeveral OutcomeUnknown;
    BeginProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY ANY_RECORD_CALL
        + FingerprintMismatch TokenReleased OnceInProgress OnceAbandoned TooManyWaiters StoreNearlyFull
        NotReplicated OutcomeUnknown ShuttingDown;
    StoreProblems: WITH_KEYS ANY_LOCK_CALL ANY_RECORD_CALL
        + TokenRequired NotBegun Superseded ResultDiffers LengthMissing ResultTooLarge
        ResultEncoded ResultStalled TooManyResults StoreNearlyFull OutcomeUnknown;
    RenewWorkProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY ANY_RECORD_CALL
        + TokenRequired NotBegun Superseded LeaseOver AlreadyStored OutcomeUnknown;
    GiveUpProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY ANY_RECORD_CALL
        + TokenRequired NotBegun Superseded AlreadyStored OutcomeUnknown;
    LookProblems: WITH_KEYS ANY_LOCK_CALL NO_BODY ANY_RECORD_CALL + NotBegun OutcomeUnknown;
    RecordsProblems: WITH_KEYS NO_BODY + OnceUnsupported BadParameter StoreUnavailable;
    WatchProblems: WITH_KEYS NO_BODY + BadParameter BadKey TooManyWatchers StoreUnavailable ShuttingDown;
    ListProblems: WITH_KEYS NO_BODY + BadParameter StoreUnavailable;
    ReadyzProblems: + StoreUnavailable ShuttingDown;
    ExplainProblems: + NotFound;
    MetricsProblems: WITH_KEYS + NotFound;
    HealthzProblems: +;
    DocumentProblems: +;
}

/// Groups problems by their status, each with an example.
fn responses(kinds: &[ProblemType]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<StatusCode, Vec<ProblemType>> = BTreeMap::new();
    for &kind in kinds {
        by_status.entry(kind.status()).or_default().push(kind);
    }
    by_status
        .into_iter()
        .map(|(status, kinds)| (status.as_str().to_owned(), RefOr::T(response(status, &kinds))))
        .collect()
}

fn response(status: StatusCode, kinds: &[ProblemType]) -> Response {
    let lines = kinds.iter().map(|kind| format!("- `{}`: {}.", kind.name(), kind.title()));
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(kinds.iter().map(|&kind| (kind.name(), RefOr::T(example(kind)))))
        .build();
    let mut response = ResponseBuilder::new()
        .description(lines.collect::<Vec<_>>().join("\n"))
        .content(PROBLEM_JSON, content);
    if status == StatusCode::UNAUTHORIZED {
        let schema = ObjectBuilder::new().schema_type(Type::String);
        let header = HeaderBuilder::new()
            .schema(Some(schema))
            .description(Some("`Bearer`, with `error=\"invalid_token\"` if an API key was sent."))
            .build();
        response = response.header("WWW-Authenticate", header);
    }
    let passes = [StatusCode::LOCKED, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]
        .contains(&status);
    if passes {
        let schema = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
        let header = HeaderBuilder::new()
            .schema(Some(schema))
            .description(Some("When to try again, in seconds."))
            .build();
        return response.header("Retry-After", header).build();
    }
    response.build()
}

fn example(kind: ProblemType) -> Example {
    let parameter = match kind {
        ProblemType::BadParameter => Some("ttl"),
        ProblemType::BadKey => Some("key"),
        ProblemType::BadToken | ProblemType::TokenRequired => Some("Lease-Token"),
        ProblemType::CrossOrigin => Some("Origin"),
        ProblemType::UnknownHost => Some("Host"),
        _ => None,
    };
    let problem = match parameter {
        Some(parameter) => Problem::input(kind, parameter, kind.text()),
        None => Problem::new(kind, kind.text()),
    };
    let mut body = problem.body();
    if kind == ProblemType::LockHeld {
        body.holder = Some(Box::new(example_holder()));
        (body.waiters, body.position) = (Some(3), Some(2));
    }
    if kind == ProblemType::NotHeld {
        body.waiters = Some(0);
    }
    if matches!(kind, ProblemType::OnceInProgress | ProblemType::OnceAbandoned) {
        body.worker = Some(Box::new(example_worker()));
    }
    if kind == ProblemType::Superseded {
        (body.fencing_token, body.done) = (Some(1_795_240_800_123_999), Some(true));
    }
    if kind == ProblemType::RightMissing {
        body.right = Some(Right::Acquire.name());
    }
    ExampleBuilder::new().summary(kind.title()).value(Some(json!(body))).build()
}
