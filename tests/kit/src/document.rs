//! Holds answers against the OpenAPI document: the status, each header and the media type are listed, the body has the shape.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use http::Method;
use serde_json::{Value, json};

use super::{Answer, wording};

/// The document that the program gives out.
pub static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(fencepost::api::openapi_json()).unwrap());

/// Compiling a schema takes far longer than using it.
static VALIDATORS: LazyLock<Mutex<HashMap<String, jsonschema::Validator>>> = LazyLock::new(Mutex::default);

/// Headers of the protocol, of browsers and of proxies, and those that the document has with the API keys.
const OF_HTTP: [&str; 13] = [
    "alt-svc",
    "connection",
    "content-length",
    "content-type",
    "date",
    "keep-alive",
    "ratelimit",
    "ratelimit-policy",
    "server",
    "transfer-encoding",
    "vary",
    "via",
    "x-content-type-options",
];

/// Fails the test when the document does not allow the answer.
#[track_caller]
pub fn check(method: &Method, path_and_query: &str, answer: &Answer) {
    let what = format!("{method} {path_and_query} -> {}", answer.status);
    assert!(answer.headers.contains_key("x-request-id"), "{what}: no X-Request-Id");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
    if answer.header("content-type") == Some("application/problem+json") && !answer.body.is_empty() {
        wording::search(&what, [answer.json()["detail"].as_str().unwrap()]);
    }
    let path = path_and_query.split('?').next().unwrap();
    let operation = template(path).and_then(|template| {
        let document_method =
            if method == Method::HEAD { "get".into() } else { method.as_str().to_lowercase() };
        DOCUMENT["paths"][template].get(document_method)
    });
    let Some(operation) = operation else {
        // No operation describes an address or a method that does not exist; its error has the shape of all others. The protocols of
        // other tools have their own.
        let is_ours = answer.header("content-type") != Some("application/json");
        if answer.status >= 400 && *method != Method::HEAD && is_ours {
            validate(&json!({"$ref": "#/components/schemas/Problem"}), &answer.json(), &what);
        }
        return;
    };
    let response = &operation["responses"][answer.status.to_string()];
    assert!(response.is_object(), "{what}: the document does not list this status");
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        // Some are there only in some cases, and say so.
        let is_promised =
            !header["description"].as_str().is_some_and(|text| text.contains("if there is one"));
        assert!(!is_promised || answer.headers.contains_key(name), "{what}: the document promises {name}");
    }
    let documented = response["headers"].as_object();
    for name in answer.headers.keys().map(http::HeaderName::as_str) {
        let is_documented =
            documented.is_some_and(|all| all.keys().any(|one| one.eq_ignore_ascii_case(name)));
        let is_common = OF_HTTP.contains(&name)
            || ["access-control-", "x-envoy-"].iter().any(|begin| name.starts_with(begin));
        assert!(is_documented || is_common, "{what}: the document has no header {name}");
    }
    let Some(content) = response["content"].as_object() else {
        assert!(answer.body.is_empty(), "{what}: a body that the document does not describe");
        return;
    };
    if *method == Method::HEAD {
        assert!(answer.body.is_empty(), "{what}: HEAD has no body");
        return;
    }
    let sent = answer.header("content-type").unwrap_or_default();
    // What a worker has stored as JSON has any shape, so the document has no schema for it.
    let media_type = sent.split(';').next().unwrap().trim().to_ascii_lowercase();
    if media_type == "application/json" && answer.header("once") == Some("replayed") {
        return;
    }
    let found = content.get_key_value(&media_type);
    let (media_type, content) = found.unwrap_or_else(|| panic!("{what}: the document has no {sent}"));
    if media_type.ends_with("json") {
        let body = answer.json();
        // The schema of `PUT` is that of one lock, so that generated clients stay as they are.
        let is_of_several = body["locks"].is_array() && *method == Method::PUT;
        let of_several = json!({"$ref": "#/components/schemas/GrantOfSeveral"});
        validate(if is_of_several { &of_several } else { &content["schema"] }, &body, &what);
        let problem = body["type"].as_str().unwrap_or_default().trim_start_matches("/problems/");
        if !problem.is_empty() {
            let examples = content["examples"].as_object().unwrap();
            assert!(examples.contains_key(problem), "{what}: {problem} is not among the documented problems");
        }
    }
}

/// The path of the document under which an address falls.
fn template(path: &str) -> Option<&'static str> {
    let is_one_segment = |rest: &str| !rest.is_empty() && !rest.contains('/');
    match path {
        "/lock" => Some("/lock"),
        "/once" => Some("/once"),
        "/records" => Some("/records"),
        "/locks" => Some("/locks"),
        "/hold" => Some("/hold"),
        "/events" => Some("/events"),
        "/healthz" => Some("/healthz"),
        "/readyz" => Some("/readyz"),
        "/metrics" => Some("/metrics"),
        _ if path.strip_prefix("/locks/").is_some_and(is_one_segment) => Some("/locks/{key}"),
        _ if path.strip_prefix("/once/").is_some_and(is_one_segment) => Some("/once/{key}"),
        _ if path.strip_prefix("/problems/").is_some_and(is_one_segment) => Some("/problems/{name}"),
        _ => None,
    }
}

/// Fails the test when a value has not the shape of a schema of the document.
#[track_caller]
pub fn validate(schema: &Value, value: &Value, what: &str) {
    let mut validators = VALIDATORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let validator = validators.entry(schema.to_string()).or_insert_with(|| {
        // References into the document work because the schemas travel along.
        let mut whole = schema.clone();
        whole["components"] = DOCUMENT["components"].clone();
        jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap()
    });
    if let Err(error) = validator.validate(value) {
        panic!("{what}: {error}\n{value:#}");
    }
}
