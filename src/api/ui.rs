//! The page for people at `/ui`: the held locks, live, and a way to break one. Its files are in the binary. It sends
//! the same requests as any client, and shows nothing that its key does not allow.

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::pages::{UI_POLICY, guarded};
use super::problem::{Problem, ProblemType};
use super::state::AppState;

const PAGE: File = File("index.html", "text/html; charset=utf-8", include_str!("ui/index.html"));
/// The files of the page, each with its name, its media type and its text.
const FILES: &[File] = &[
    File("page.css", "text/css; charset=utf-8", include_str!("ui/page.css")),
    File("page.js", JAVASCRIPT, include_str!("ui/page.js")),
    File("gateway.js", JAVASCRIPT, include_str!("ui/gateway.js")),
    File("locks.js", JAVASCRIPT, include_str!("ui/locks.js")),
    File("table.js", JAVASCRIPT, include_str!("ui/table.js")),
    File("watch.js", JAVASCRIPT, include_str!("ui/watch.js")),
    File("icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The page and its files. It holds no secret, so it needs no key.
pub(super) fn page() -> Router<AppState> {
    let routes = Router::new()
        .route("/ui", get(async || PAGE.response()))
        // The addresses in the page are relative to `/ui` without a slash. This one is relative too, because a proxy
        // may put a prefix before it.
        .route("/ui/", get(async || (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../ui")])))
        .route("/ui/{file}", get(file));
    guarded(routes, UI_POLICY)
}

struct File(&'static str, &'static str, &'static str);

impl File {
    fn response(&self) -> Response {
        ([(CONTENT_TYPE, self.1)], self.2).into_response()
    }
}

async fn file(name: Result<Path<String>, PathRejection>) -> Response {
    let known = name.ok().and_then(|Path(name)| FILES.iter().find(|file| file.0 == name));
    match known {
        Some(file) => file.response(),
        None => Problem::new(ProblemType::NotFound, "the page has no such part").into_response(),
    }
}
