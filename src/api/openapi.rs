//! The OpenAPI document: what the attributes of the handlers cannot say by themselves.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::json;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema, Type,
    example::{Example, ExampleBuilder},
};
use utoipa::{IntoParams, IntoResponses, OpenApi as _};

use super::answers::{JSON, example_holder};
use super::authenticate::is_open;
use super::documented_routes;
use super::problem::{PROBLEM_JSON, Problem, ProblemBody, ProblemType};
use crate::access::Right;
use crate::lock::FencingToken;

/// Where the document is.
pub(super) const DOCUMENT_PATH: &str = "/openapi.json";

/// The lock in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct KeyParam {
    /// The name of the lock: 1 to 512 bytes of UTF-8 without control characters, percent-encoded.
    #[param(min_length = 1, max_length = 512, example = "backup")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    key: String,
}

/// The lock, where its name can only be in the query.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct QueryKeyParam {
    /// The name of the lock: 1 to 512 bytes of UTF-8 without control characters.
    #[param(min_length = 1, max_length = 512, example = "backup")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    key: String,
}

/// A token that may be left out.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct OptionalToken {
    /// A secret of your own, fresh for every acquisition: 16 to 128 of `A-Z a-z 0-9 . _ ~ -`, not beginning with `~`.
    /// Without it a `PUT` gets a token from the server.
    #[param(rename = "Lease-Token", value_type = String, required = false, min_length = 16, max_length = 128,
        pattern = "^[A-Za-z0-9._~-]+$")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// A token that must be there.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct RequiredToken {
    /// The token of the lease.
    #[param(rename = "Lease-Token", min_length = 16, max_length = 128, pattern = "^[A-Za-z0-9._~-]+$")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// A token that must be there, but for one who breaks the lock.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct TokenUnlessForced {
    /// The token of the lease. It must be there without `force`, and must not with it.
    #[param(rename = "Lease-Token", value_type = String, required = false, min_length = 16, max_length = 128,
        pattern = "^[A-Za-z0-9._~-]+$")]
    #[expect(dead_code, reason = "it only documents what `LockCall` reads")]
    token: String,
}

/// What every address can answer: it is refused before a handler runs, or the handler panics.
const ANYWHERE: &[ProblemType] = &[
    ProblemType::CrossOrigin,
    ProblemType::UnknownHost,
    ProblemType::MalformedRequest,
    ProblemType::UriTooLong,
    ProblemType::HeadersTooLarge,
    ProblemType::InternalError,
];
/// What every operation on a lock can answer.
const ANY_LOCK_CALL: &[ProblemType] = &[
    ProblemType::BadParameter,
    ProblemType::BadKey,
    ProblemType::BadToken,
    ProblemType::UnexpectedBody,
    ProblemType::StoreUnavailable,
];

/// What every address that is not open to all can answer.
const WITH_KEYS: &[ProblemType] =
    &[ProblemType::KeyRequired, ProblemType::KeyRefused, ProblemType::RightMissing, ProblemType::RateLimited];

/// Declares the problems of one operation, for its `responses(…)`.
macro_rules! problems {
    ($name:ident = $($list:expr),+) => {
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                let lists: &[&[ProblemType]] = &[$($list),+];
                responses(&lists.concat())
            }
        }
    };
}

problems!(
    AcquireProblems = ANYWHERE,
    WITH_KEYS,
    ANY_LOCK_CALL,
    &[
        ProblemType::TokenReleased,
        ProblemType::LockHeld,
        ProblemType::TooManyWaiters,
        ProblemType::TooManyLocks,
        ProblemType::NotReplicated,
        ProblemType::OutcomeUnknown,
        ProblemType::ShuttingDown,
    ]
);
problems!(
    HoldProblems = ANYWHERE,
    WITH_KEYS,
    ANY_LOCK_CALL,
    &[
        ProblemType::TokenReleased,
        ProblemType::LockHeld,
        ProblemType::TooManyWaiters,
        ProblemType::TooManyHolds,
        ProblemType::TooManyLocks,
        ProblemType::NotReplicated,
        ProblemType::OutcomeUnknown,
        ProblemType::ShuttingDown,
    ]
);
problems!(
    RenewProblems = ANYWHERE,
    WITH_KEYS,
    ANY_LOCK_CALL,
    &[
        ProblemType::TokenRequired,
        ProblemType::NotHeld,
        ProblemType::HeldByAnother,
        ProblemType::TokenReleased,
        ProblemType::MaxHoldReached,
        ProblemType::OutcomeUnknown
    ]
);
problems!(
    ReleaseProblems = ANYWHERE,
    WITH_KEYS,
    ANY_LOCK_CALL,
    &[
        ProblemType::TokenRequired,
        ProblemType::NotHeld,
        ProblemType::HeldByAnother,
        ProblemType::OutcomeUnknown
    ]
);
problems!(
    InspectProblems = ANYWHERE,
    WITH_KEYS,
    ANY_LOCK_CALL,
    &[ProblemType::NotHeld, ProblemType::OutcomeUnknown]
);
problems!(
    WatchProblems = ANYWHERE,
    &[
        ProblemType::BadParameter,
        ProblemType::BadKey,
        ProblemType::UnexpectedBody,
        ProblemType::KeyRequired,
        ProblemType::KeyRefused,
        ProblemType::RightMissing,
        ProblemType::RateLimited,
        ProblemType::TooManyWatchers,
        ProblemType::StoreUnavailable,
        ProblemType::ShuttingDown,
    ]
);
problems!(
    ListProblems = ANYWHERE,
    WITH_KEYS,
    &[ProblemType::BadParameter, ProblemType::UnexpectedBody, ProblemType::StoreUnavailable]
);
problems!(ReadyzProblems = ANYWHERE, &[ProblemType::StoreUnavailable, ProblemType::ShuttingDown]);
problems!(ExplainProblems = ANYWHERE, &[ProblemType::NotFound]);
problems!(MetricsProblems = ANYWHERE, WITH_KEYS, &[ProblemType::NotFound]);
problems!(HealthzProblems = ANYWHERE);
problems!(DocumentProblems = ANYWHERE);

/// What the document says of the whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fencepost",
        description = "Distributed locks over HTTP, with fencing tokens.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/", description = "This server")),
    tags(
        (name = "locks", description = "Take, renew, release and look at locks."),
        (name = "health", description = "For probes and for people.")
    ),
    components(schemas(ProblemBody))
)]
struct Base;

/// The document, made once.
pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = complete(documented_routes().into_openapi());
    // It is made of plain strings and numbers, so it always has a JSON form.
    document.to_pretty_json().map_or_else(|_| String::new(), |json| json + "\n")
});

/// This document
///
/// OpenAPI 3.1, generated from the handlers.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "The document.", body = Object), DocumentProblems)
)]
pub(super) async fn get_openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], DOCUMENT.as_str())
}

/// The document before the handlers are added to it.
pub(super) fn base() -> OpenApi {
    Base::openapi()
}

/// Finishes the document: the second form of the address, the keys, and the headers that every answer carries.
fn complete(mut document: OpenApi) -> OpenApi {
    add_query_form(&mut document);
    name_constants(&mut document);
    add_keys(&mut document);
    for (path, item) in &mut document.paths.paths {
        for operation in [&mut item.get, &mut item.put, &mut item.patch, &mut item.delete, &mut item.post]
            .into_iter()
            .flatten()
        {
            add_common_headers(operation);
            if is_open(path) {
                operation.security = Some(Vec::new());
            }
        }
    }
    document
}

/// `/lock?key=` is the resource of `/locks/{key}`, with the same operations under names of their own.
fn add_query_form(document: &mut OpenApi) {
    let Some(mut item) = document.paths.paths.get("/locks/{key}").cloned() else { return };
    for operation in [&mut item.get, &mut item.put, &mut item.patch, &mut item.delete].into_iter().flatten() {
        if let Some(id) = &mut operation.operation_id {
            id.push_str("_by_query");
        }
        if let Some(summary) = &mut operation.summary {
            summary.push_str(", with the key in the query");
        }
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter
                && parameter.parameter_in == ParameterIn::Path
            {
                parameter.parameter_in = ParameterIn::Query;
            }
        }
    }
    document.paths.paths.insert("/lock".to_owned(), item);
}

/// What the constants of an enum's values begin with, in the source of a client: some languages have all constants in one
/// namespace, where those of two enums must not be called the same. Those of `ProblemType` say their names themselves.
const CONSTANTS: [(&str, &str); 3] =
    [("HoldEventName", "HOLD"), ("HoldLossReason", "LOST"), ("LockEventName", "LOCK")];

/// Names the constants that generators make of the values of enums.
fn name_constants(document: &mut OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (schema, start) in CONSTANTS {
        let Some(RefOr::T(Schema::Object(schema))) = schemas.get_mut(schema) else { continue };
        let values = schema.enum_values.iter().flatten().filter_map(|value| value.as_str());
        let names: Vec<_> =
            values.map(|value| format!("{start}_{}", value.replace('-', "_").to_uppercase())).collect();
        schema.extensions.get_or_insert_default().insert("x-enum-varnames".into(), json!(names));
    }
}

/// Said of the whole document, and taken back for what is open: generators that find it at an operation make a key
/// compulsory there, and a server on loopback asks for none.
fn add_keys(document: &mut OpenApi) {
    let description = "An API key, where the server asks for one. What it has left of its rate is said in the headers \
                       `RateLimit` and `RateLimit-Policy`.";
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("fp_<id>_<secret>")
        .description(Some(description));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(scheme.build()));
    let none: [&str; 0] = [];
    document.security = Some(vec![SecurityRequirement::default(), SecurityRequirement::new("bearer", none)]);
}

fn add_common_headers(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        let text = |description: &str| {
            let schema = ObjectBuilder::new().schema_type(Type::String);
            HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
        };
        let headers = [
            ("X-Request-Id", "The id of the request, taken over from it or made by the server."),
            ("Cache-Control", "`no-store`: an answer about a lock is true once."),
        ];
        for (name, description) in headers {
            response.headers.insert(name.to_owned(), text(description).into());
        }
        if let Some(RefOr::T(header)) = response.headers.get_mut("Fencing-Token") {
            let schema = ObjectBuilder::new().schema_type(Type::Integer);
            header.schema = Some(schema.minimum(Some(1)).maximum(Some(FencingToken::MAX)).into());
        }
    }
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
            .description(Some("`Bearer`, and `error=\"invalid_token\"` where a key was shown."))
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
    if kind == ProblemType::RightMissing {
        body.right = Some(Right::Acquire.name());
    }
    ExampleBuilder::new().summary(kind.title()).value(Some(json!(body))).build()
}
