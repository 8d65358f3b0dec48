//! The HTTP side: the routes, and what every request passes through before (`middleware.rs`).
//!
//! Architecture invariant: nothing below this module knows `axum` or a status code.

use axum::extract::Request;

use self::problem::{Problem, ProblemType};

mod admission;
mod answers;
mod context;
mod extract;
mod headers;
mod middleware;
mod openapi;
mod pages;
mod problem;
mod result_room;
mod route;
mod routes;
mod state;
mod stream;
mod ui;

pub use admission::{Admission, KnownHosts};
pub use middleware::Middleware;
pub use routes::{generate_openapi, metrics_app};
pub use state::{App, AppState, Facades, Limits, NEVER_RENEWED_TTL, RebootGroup};

/// The whole application, ready to be served.
pub fn app(state: AppState) -> Middleware {
    let page = match cfg!(feature = "ui") {
        true => ui::page(),
        false => pages::left_out(
            &["/ui", "/ui/", "/ui/{file}"],
            "this program was built without its page (the feature `ui`): GET /locks lists the locks that are held",
        ),
    };
    let router = routes::routes(&state.facades)
        .merge(pages::introduction())
        .merge(page)
        .fallback(async |request: Request| extract::explain_missing(request.uri()))
        .method_not_allowed_fallback(async || {
            Problem::new(
                ProblemType::MethodNotAllowed,
                "this address does not take that method; the Allow header lists those that it takes",
            )
        });
    Middleware::new(router, state)
}

/// The OpenAPI document, as `/openapi.json` and `fencepost openapi` give it.
pub fn openapi_json() -> &'static str {
    &routes::DOCUMENT
}
