//! Every route that the document describes; the handlers' attributes say where they are.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::put;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::JSON;
use super::openapi::{self, DocumentProblems};
use super::state::{AppState, Facades};

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
    let (router, _) = documented_routes().split_for_parts();
    // The same resources, with the key in the query. Both addresses have the same handlers.
    router
        .route(
            "/lock",
            put(locks::acquire_lock)
                .patch(locks::renew_lock)
                .delete(locks::release_lock)
                .get(locks::get_lock),
        )
        .route(
            "/once",
            put(once::begin_work)
                .post(once::store_result)
                .patch(once::renew_work)
                .delete(once::give_up)
                .get(once::look_at_record),
        )
        .merge(facades::routes(spoken))
}

fn documented_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(locks::acquire_lock, locks::renew_lock, locks::release_lock, locks::get_lock))
        .routes(routes!(list::list_locks))
        .routes(routes!(hold::hold_lock))
        .routes(routes!(watch::watch_locks))
        .routes(routes!(
            once::begin_work,
            once::store_result,
            once::renew_work,
            once::give_up,
            once::look_at_record
        ))
        .routes(routes!(records::list_records))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::explain_problem))
        .routes(routes!(metrics::get_metrics))
        .routes(routes!(get_openapi))
}

/// The document, made once.
pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = openapi::complete(documented_routes().into_openapi());
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
