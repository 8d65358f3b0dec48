//! The page for people at `/ui`: the held locks, live, and a way to break one. Its files are in the binary. It sends
//! the same requests as any client, and shows nothing that its key does not allow.

use axum::Router;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::routing::get;

use super::pages::file::{CSS, File, HTML, JAVASCRIPT, one_of};
use super::pages::{UI_POLICY, guarded};
use super::state::AppState;

const SVG: HeaderValue = HeaderValue::from_static("image/svg+xml");

const PAGE: File = File::text("index.html", HTML, include_str!("ui/index.html"));
static FILES: [File; 8] = [
    File::text("page.css", CSS, include_str!("ui/page.css")),
    File::text("page.js", JAVASCRIPT, include_str!("ui/page.js")),
    File::text("gateway.js", JAVASCRIPT, include_str!("ui/gateway.js")),
    File::text("locks.js", JAVASCRIPT, include_str!("ui/locks.js")),
    File::text("sharers.js", JAVASCRIPT, include_str!("ui/sharers.js")),
    File::text("table.js", JAVASCRIPT, include_str!("ui/table.js")),
    File::text("watch.js", JAVASCRIPT, include_str!("ui/watch.js")),
    File::text("icon.svg", SVG, include_str!("ui/icon.svg")),
];

/// The page and its files. It holds no secret, so it needs no key.
pub(super) fn page() -> Router<AppState> {
    let routes = Router::new()
        .route("/ui", get(async || PAGE.response()))
        // The addresses in the page are relative to `/ui` without a slash. This one is relative too, because a proxy
        // may put a prefix before it.
        .route("/ui/", get(async || (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../ui")])))
        .route("/ui/{file}", get(async |name| one_of(&FILES, name, "the page has no such part")));
    guarded(routes, UI_POLICY)
}
