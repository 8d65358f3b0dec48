//! Swagger UI below `/docs/`, from the binary itself. It loads nothing from elsewhere, and lets no other site validate
//! the document.

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const PAGE: &str = include_str!("swagger.html");
const INITIALIZER: &str = include_str!("swagger-initializer.js");
/// Every browser takes gzip, so the large files are in the binary only as the build has put them there.
const STYLES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css.gz"));
const BUNDLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js.gz"));

/// The page and its files.
pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/docs/", get(async || plain(HTML, PAGE))).route("/docs/{*rest}", get(file))
}

async fn file(name: Result<Path<String>, PathRejection>) -> Response {
    match name.as_ref().map(|Path(name)| name.as_str()) {
        Ok("index.html") => plain(HTML, PAGE),
        Ok("swagger-initializer.js") => plain(JAVASCRIPT, INITIALIZER),
        Ok("swagger-ui.css") => gzip(CSS, STYLES),
        Ok("swagger-ui-bundle.js") => gzip(JAVASCRIPT, BUNDLE),
        _ => Problem::new(ProblemType::NotFound, "there is no such page").into_response(),
    }
}

fn plain(media_type: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, media_type)], text).into_response()
}

fn gzip(media_type: &'static str, compressed: &'static [u8]) -> Response {
    ([(CONTENT_TYPE, media_type), (CONTENT_ENCODING, "gzip")], compressed).into_response()
}
