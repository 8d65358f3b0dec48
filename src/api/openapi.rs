//! The OpenAPI document: what the attributes of the handlers cannot say by themselves.

use serde_json::json;
use utoipa::OpenApi as _;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ObjectBuilder, OpenApi, RefOr, Schema, Type};

use super::answers::{GrantOfSeveral, LockOfSeveral};
use super::problem::ProblemBody;
use super::route::is_open;
use crate::lock::{FencingToken, Slots};
use crate::service::MOST_LOCKS;

mod operations;

pub(super) use operations::*;

/// What the document says of the whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fencepost",
        description = "Distributed locks over HTTP, with fencing tokens.\n\nA lock has a name, and at most one client holds it at a time. `PUT` takes it for its `ttl`, `PATCH` renews it, and `DELETE` releases it. Each grant has two tokens. The lease token is your secret: with it you renew and release. The fencing token is a number that grows with each grant: give it to what you change under the lock, so that it can refuse a holder that comes too late.\n\nAn error is a JSON object whose `type` leads to an explanation. [All errors](/problems). [The locks that are held](/ui). [Introduction](/docs).",
        contact(name = "The Fencepost project"),
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/", description = "This server")),
    tags(
        (name = "locks", description = "Take, renew, release, look at and watch locks."),
        (name = "once", description = "Do a piece of work once, and give its result to all who ask for it again."),
        (name = "health", description = "For probes, and for people who operate or try the gateway.")
    ),
    components(schemas(ProblemBody, GrantOfSeveral, LockOfSeveral))
)]
struct Base;

/// Makes the whole document of what the handlers say: with the second form of the address, open lists of values, the keys, and the
/// headers that every answer carries.
pub(super) fn complete(handlers: OpenApi) -> OpenApi {
    let mut document = Base::openapi();
    document.merge(handlers);
    for (path, query_form) in [("/locks/{key}", "/lock"), ("/once/{key}", "/once")] {
        add_query_form(&mut document, path, query_form);
    }
    open_lists(&mut document);
    add_keys(&mut document);
    for (path, item) in &mut document.paths.paths {
        if let Some(get) = &mut item.get {
            let about = "`same-origin`: without CORS, a browser gives the answer to no page of another site.";
            add_header(get, "Cross-Origin-Resource-Policy", about);
        }
        for operation in [&mut item.get, &mut item.put, &mut item.patch, &mut item.delete, &mut item.post]
            .into_iter()
            .flatten()
        {
            add_common_headers(operation);
            add_patterns(operation);
            if is_open(path) {
                operation.security = Some(Vec::new());
            }
        }
    }
    let paths = &mut document.paths.paths;
    let put = paths.get_mut("/lock").and_then(|item| item.put.as_mut());
    put.into_iter().for_each(takes_several);
    let hold = paths.get_mut("/hold").and_then(|item| item.post.as_mut());
    hold.into_iter().for_each(takes_several);
    document
}

/// The operation takes a list of keys. That is said in words: with a list in the schemas, a client that was generated for one key
/// would have to be written anew.
fn takes_several(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "key"
        {
            let about = format!(
                " Send it up to {MOST_LOCKS} times to take all of these locks or none, with a ttl of at least 1s; a PUT then answers a \
                 `GrantOfSeveral`."
            );
            parameter.description.get_or_insert_default().push_str(&about);
        }
    }
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        let Some(RefOr::T(header)) = response.headers.get_mut("Fencing-Token") else { continue };
        let about =
            "The number of the grant, if there is one lock: of several, each has its own in the body.";
        header.description = Some(about.into());
    }
}

/// `/lock?key=` is the resource of `/locks/{key}`, with the same operations under names of their own; and so with records.
fn add_query_form(document: &mut OpenApi, path: &str, query_form: &str) {
    let Some(mut item) = document.paths.paths.get(path).cloned() else { return };
    for operation in [&mut item.get, &mut item.put, &mut item.patch, &mut item.delete, &mut item.post]
        .into_iter()
        .flatten()
    {
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
                // A lock of its own, so that the examples of both forms can be tried one after the other.
                let builder = ParameterBuilder::from(parameter.clone());
                *parameter = builder.example(Some(json!("reports/daily"))).build();
            }
        }
    }
    document.paths.paths.insert(query_form.to_owned(), item);
}

/// Makes each list of values an open one: a plain string, with the values that are known today. A client that was generated
/// from a closed list refuses an answer with a value that was added later.
fn open_lists(document: &mut OpenApi) {
    let schemas = document.components.get_or_insert_default().schemas.values_mut();
    let properties = schemas.filter_map(|schema| match schema {
        RefOr::T(Schema::Object(schema)) => Some(schema.properties.values_mut()),
        _ => None,
    });
    for property in properties.flatten() {
        let RefOr::T(Schema::Object(property)) = property else { continue };
        let Some(values) = property.enum_values.take() else { continue };
        let about = property.description.get_or_insert_default();
        about.push_str(" More values may be added: expect ones that you do not know.");
        property.extensions.get_or_insert_default().insert("x-extensible-enum".into(), json!(values));
    }
}

/// No control characters.
const NAME: &str = r"^[^\x00-\x1F\x7F-\x9F]*$";
/// How durations are written. The gateway also takes longer names of the units, and spaces between them.
const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";
/// What the values of parameters look like, by their names: the same wherever they occur.
const PATTERNS: [(&str, &str); 8] = [
    ("key", NAME),
    ("prefix", NAME),
    ("owner", NAME),
    ("ttl", DURATION),
    ("wait", DURATION),
    ("keep", DURATION),
    ("max_hold", DURATION),
    ("min_hold", DURATION),
];

fn add_patterns(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let pattern = PATTERNS.iter().find(|(name, _)| *name == parameter.name);
        let (Some((_, pattern)), Some(RefOr::T(Schema::Object(schema)))) = (pattern, &mut parameter.schema)
        else {
            continue;
        };
        schema.pattern = Some((*pattern).to_owned());
    }
}

/// The key is declared once for the whole document, and removed where no key is needed. If an operation declared it,
/// generators would make the key compulsory there. But a server on loopback asks for none.
fn add_keys(document: &mut OpenApi) {
    let description = "An API key, if the gateway asks for one. The headers `RateLimit` and `RateLimit-Policy` say how many \
                       requests it has left.";
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
    let about = "The id of the request: the one that it had, or one that the gateway made.";
    add_header(operation, "X-Request-Id", about);
    add_header(operation, "Cache-Control", "`no-store`: an answer about a lock may be wrong a moment later.");
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        for (name, most) in [("Fencing-Token", FencingToken::MAX), ("Slot", Slots::MOST.get().into())] {
            let Some(RefOr::T(header)) = response.headers.get_mut(name) else { continue };
            let schema = ObjectBuilder::new().schema_type(Type::Integer);
            header.schema = Some(schema.minimum(Some(1)).maximum(Some(most)).into());
        }
    }
}

/// Each of its answers has this header.
fn add_header(operation: &mut Operation, name: &str, description: &str) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        let schema = ObjectBuilder::new().schema_type(Type::String);
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(description));
        response.headers.insert(name.to_owned(), header.build().into());
    }
}
