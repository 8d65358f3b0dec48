//! Swagger UI below `/docs/`, from the binary itself. It loads nothing from elsewhere, and lets no other site validate
//! the document.

use axum::Router;
use axum::routing::get;

use super::file::{CSS, File, HTML, JAVASCRIPT, one_of};
use crate::api::state::AppState;

const PAGE: File = File::text("index.html", HTML, include_str!("swagger.html"));
/// Every browser takes gzip, so the large files are in the binary only as the build has put them there.
static FILES: [File; 4] = [
    PAGE,
    File::text("swagger-initializer.js", JAVASCRIPT, include_str!("swagger-initializer.js")),
    File::gzip("swagger-ui.css", CSS, include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css.gz"))),
    File::gzip(
        "swagger-ui-bundle.js",
        JAVASCRIPT,
        include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js.gz")),
    ),
];

/// The page and its files.
pub(super) fn routes() -> Router<AppState> {
    let file = async |name| one_of(&FILES, name, "there is no such page");
    Router::new().route("/docs/", get(async || PAGE.response())).route("/docs/{*rest}", get(file))
}
