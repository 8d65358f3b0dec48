//! The headers that protect each page and its files from other sites, and the pages that introduce the gateway.

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;

use super::problem::{Problem, ProblemType};
use super::state::AppState;

pub(super) mod file;
mod introduction;
#[cfg(feature = "swagger")]
mod swagger;

/// Strangers choose the names of locks, and the page has a key that breaks locks. So only these files run in it, no
/// text becomes markup, and it talks to this gateway alone. No other site can show it in a frame, where clicks could be
/// stolen.
pub(super) const UI_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
/// The same for pages that have their styles in their markup. Swagger UI has pictures there as well.
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// The second is for browsers that do not know `frame-ancestors`.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

/// Sends a policy with every answer of these routes.
pub(super) fn guarded(pages: Router<AppState>, policy: HeaderValue) -> Router<AppState> {
    pages.layer(map_response(move |response: Response| {
        let policy = [(CONTENT_SECURITY_POLICY, policy.clone())];
        async move { (HEADERS, policy, response) }
    }))
}

/// The introduction at `/docs`, what leads to it, and Swagger UI below it.
pub(super) fn introduction() -> Router<AppState> {
    #[cfg(feature = "swagger")]
    let requests = swagger::routes();
    #[cfg(not(feature = "swagger"))]
    let requests = left_out(
        &["/docs/", "/docs/{*rest}"],
        "this program was built without Swagger UI (the feature `swagger`): /openapi.json describes all requests",
    );
    guarded(requests.merge(introduction::routes()), DOCS_POLICY)
}

/// Answers at these addresses that the program was built without what belongs there.
pub(super) fn left_out(addresses: &[&str], why: &'static str) -> Router<AppState> {
    let answer = get(async move || Problem::new(ProblemType::NotFound, why));
    addresses.iter().fold(Router::new(), |router, address| router.route(address, answer.clone()))
}
