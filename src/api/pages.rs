//! The headers that protect each page and its files from other sites, and the pages that introduce the gateway.

use axum::Router;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::openapi::DOCUMENT_PATH;
use super::problem::{Problem, ProblemType};
use super::state::AppState;

mod introduction;

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

/// The introduction at `/docs`, and what leads to it.
pub(super) fn introduction(state: &AppState) -> Router<AppState> {
    let introduced = swagger_ui().layer(from_fn_with_state(state.clone(), introduction::introduce));
    guarded(introduced.merge(introduction::routes()), DOCS_POLICY)
}

/// Swagger UI from the binary itself. It loads nothing from elsewhere, and lets no other site validate the document.
fn swagger_ui() -> Router<AppState> {
    let config = Config::from(DOCUMENT_PATH).try_it_out_enabled(true).validator_url("none");
    let pages: Router<AppState> = SwaggerUi::new("/docs").config(config).into();
    pages.layer(map_response(async |response: Response| match response.status() {
        StatusCode::NOT_FOUND => Problem::new(ProblemType::NotFound, "there is no such page").into_response(),
        _ => response,
    }))
}
