//! Every route that the document describes; the handlers' attributes say where they are.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use miniz_oxide::inflate::decompress_to_vec_zlib;
use utoipa::OpenApi;

use super::answers::JSON;
use super::openapi::{self, DocumentProblems};
use super::state::{AppState, Facades};
use crate::server::InMemory;

mod facades;
mod health;
mod hold;
mod list;
mod locks;
mod metrics;
mod once;
mod records;
mod several;
mod taking;
mod watch;

pub use metrics::metrics_app;

/// All handlers, and those of the protocols that are spoken.
pub(super) fn routes(spoken: &Facades) -> Router<AppState> {
    let lock =
        put(locks::acquire_lock).patch(locks::renew_lock).delete(locks::release_lock).get(locks::get_lock);
    let record = put(once::begin_work)
        .post(once::store_result)
        .patch(once::renew_work)
        .delete(once::give_up)
        .get(once::look_at_record);
    // A lock and a record have two addresses each. Both have the same handlers.
    Router::new()
        .route("/locks/{key}", lock.clone())
        .route("/lock", lock)
        .route("/locks", get(list::list_locks))
        .route("/hold", post(hold::hold_lock))
        .route("/events", get(watch::watch_locks))
        .route("/once/{key}", record.clone())
        .route("/once", record)
        .route("/records", get(records::list_records))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/problems/{name}", get(health::explain_problem))
        .route("/metrics", get(metrics::get_metrics))
        .route("/openapi.json", get(get_openapi))
        .merge(facades::routes(spoken))
}

/// What the handlers' attributes say, in the order of the document.
#[derive(OpenApi)]
#[openapi(paths(
    locks::acquire_lock,
    locks::renew_lock,
    locks::release_lock,
    locks::get_lock,
    list::list_locks,
    hold::hold_lock,
    watch::watch_locks,
    once::begin_work,
    once::store_result,
    once::renew_work,
    once::give_up,
    once::look_at_record,
    records::list_records,
    health::healthz,
    health::readyz,
    health::explain_problem,
    metrics::get_metrics,
    get_openapi
))]
struct Handlers;

/// Makes the OpenAPI document from the handlers, as `make openapi` commits it. The program does not call this: it carries the document
/// as a file, which takes a tenth of the room that the code to make it takes.
pub fn generate_openapi() -> String {
    let document = openapi::complete(Handlers::openapi());
    // It is made of plain strings and numbers, so it always has a JSON form.
    document.to_pretty_json().map_or_else(|_| String::new(), |json| json + "\n")
}

/// The committed document, which a test holds to be the generated one.
pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let packed = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.zlib"));
    // The build packed it, so it always unpacks.
    decompress_to_vec_zlib(packed).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
});

/// This document
///
/// OpenAPI 3.1, generated from the handlers.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "The document.", body = Object), DocumentProblems)
)]
pub(super) async fn get_openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], Extension(InMemory), DOCUMENT.as_str())
}
