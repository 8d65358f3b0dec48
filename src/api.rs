//! The HTTP side: every route in one place, and what all requests pass through, in its order.
//!
//! Architecture invariant: nothing below this module knows `axum` or a status code.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::RETRY_AFTER;
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::{Config, SwaggerUi};

use self::admission::{guard_browsers, limit_head};
use self::answers::{FENCING_TOKEN, LEASE_TOKEN};
use self::observe::{REQUEST_ID, observe};
use self::problem::{Problem, ProblemType};
use crate::service::LockService;

mod admission;
mod answers;
mod delivery;
mod events;
mod extract;
mod health;
mod hold;
mod locks;
mod observe;
mod openapi;
mod problem;
mod raw;

pub use admission::Admission;

/// How long a browser may remember what another site's pages may send here.
const CORS_MAX_AGE: Duration = Duration::from_secs(3600);

/// What the handlers share.
#[derive(Clone)]
pub struct AppState(Arc<App>);

/// The contents of [`AppState`].
pub struct App {
    /// The operations on locks.
    pub service: LockService,
    /// What callers may ask for.
    pub limits: Limits,
    /// Who may be talked to from a browser.
    pub admission: Admission,
    /// Cancelled when the server begins to drain.
    pub draining: CancellationToken,
}

/// What callers may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The lease of a request that names none.
    pub default_ttl: Duration,
    /// The shortest lease.
    pub min_ttl: Duration,
    /// The longest lease.
    pub max_ttl: Duration,
    /// The longest wait.
    pub max_wait: Duration,
    /// The most that may wait, or hold a lock, by HTTP/1, where each of them keeps a connection.
    pub max_http1_waiters: usize,
    /// How long a connection may hold a lock that it does not say otherwise of.
    pub default_max_hold: Duration,
}

impl App {
    /// Whether one more by HTTP/1 who keeps a connection would leave too few for all others.
    fn has_no_connection_left(&self) -> bool {
        self.service.waiters() + self.service.holds() >= self.limits.max_http1_waiters
    }
}

impl AppState {
    /// Shares the application among the handlers.
    pub fn new(app: App) -> Self {
        Self(Arc::new(app))
    }
}

impl std::ops::Deref for AppState {
    type Target = App;

    fn deref(&self) -> &App {
        &self.0
    }
}

/// The whole application, ready to be served.
pub fn app(state: AppState) -> Router {
    let (router, _) = documented_routes().split_for_parts();
    let router = router
        // The same resource, with the key in the query: one set of handlers for both.
        .route(
            "/lock",
            put(locks::acquire_lock)
                .patch(locks::renew_lock)
                .delete(locks::release_lock)
                .get(locks::get_lock),
        )
        .merge(swagger_ui())
        .fallback(async |request: Request| extract::explain_missing(request.uri()))
        .method_not_allowed_fallback(async || {
            Problem::new(ProblemType::MethodNotAllowed, "the Allow header lists the methods of this address")
        });
    pass_through(router, state)
}

/// What every request passes through before it reaches `router`. The outermost stands last.
pub fn pass_through(router: Router<AppState>, state: AppState) -> Router {
    let router = router
        .layer(from_fn(limit_head))
        // Inside of what writes the log and the request id, so that a panic has both.
        .layer(CatchPanicLayer::custom(explain_panic));
    let router = match cors(&state.admission) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        // Outside of CORS, so that a preflight of a site that is not allowed is refused too.
        .layer(from_fn_with_state(state.clone(), guard_browsers))
        .layer(from_fn(observe))
        .with_state(state)
}

/// The OpenAPI document, as `/openapi.json` and `fencepost openapi` give it.
pub fn openapi_json() -> &'static str {
    &openapi::DOCUMENT
}

/// Every route that the document describes; the handlers' attributes say where they are.
fn documented_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(locks::acquire_lock, locks::renew_lock, locks::release_lock, locks::get_lock))
        .routes(routes!(hold::hold_lock))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::explain_problem))
        .routes(routes!(openapi::get_openapi))
}

/// Swagger UI from the binary itself; it asks nobody else for anything.
fn swagger_ui() -> Router<AppState> {
    let pages: Router<AppState> =
        SwaggerUi::new("/docs").config(Config::from(openapi::DOCUMENT_PATH).try_it_out_enabled(true)).into();
    pages.layer(map_response(async |response: Response| match response.status() {
        StatusCode::NOT_FOUND => Problem::new(ProblemType::NotFound, "there is no such page").into_response(),
        _ => response,
    }))
}

fn cors(admission: &Admission) -> Option<CorsLayer> {
    if admission.allowed_origins.is_empty() {
        return None;
    }
    let cors = CorsLayer::new()
        .allow_origin(admission.allowed_origins.clone())
        .allow_methods([Method::PUT, Method::PATCH, Method::DELETE, Method::GET, Method::POST])
        .allow_headers([LEASE_TOKEN, REQUEST_ID])
        .expose_headers([LEASE_TOKEN, FENCING_TOKEN, REQUEST_ID, RETRY_AFTER])
        .max_age(CORS_MAX_AGE);
    Some(cors)
}

fn explain_panic(_: Box<dyn Any + Send>) -> Response {
    // The panic hook has written the message to the log; it is not for the caller.
    Problem::new(ProblemType::InternalError, "the request ran into a fault of the server").into_response()
}
