//! Where people begin: the page at `/docs`, the answer of `/`, and the list of all problems. None of them needs a key.

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST, LOCATION, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::file::HTML;
use crate::api::problem::ProblemType;
use crate::api::state::AppState;

const PAGE: &str = concat!(include_str!("head.html"), include_str!("introduction.html"));
const LIST: &str = concat!(include_str!("head.html"), include_str!("problems.html"));
/// What the pages have in place of their title, of the address of this gateway, of the option for a key, and of a list.
const TITLE: &str = "{title}";
const ORIGIN: &str = "{origin}";
const KEY: &str = "{key}";
const ROWS: &str = "{rows}";

/// What a client with a key adds to its command. It is a file, since everybody on the machine can read arguments.
const WITH_KEY: &str = "-K key.curl ";

/// `/`, `/docs` and `/problems`. Everything below `/docs/` belongs to Swagger UI.
pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/", get(start)).route("/docs", get(introduce)).route("/problems", get(problems))
}

/// The introduction.
async fn introduce(State(app): State<AppState>, headers: HeaderMap, uri: Uri) -> Response {
    let key = if needs_key(&app) { WITH_KEY } else { "" };
    let origin = origin(&app, &headers, &uri);
    let page = PAGE.replace(TITLE, "Fencepost").replace(ORIGIN, &origin).replace(KEY, key);
    ([(CONTENT_TYPE, HTML)], page).into_response()
}

/// Leads a browser to the introduction, and tells other clients what to try.
async fn start(State(app): State<AppState>, headers: HeaderMap, uri: Uri) -> Response {
    if is_browser(&headers) {
        return (StatusCode::SEE_OTHER, [(LOCATION, "docs"), (VARY, "Accept")]).into_response();
    }
    let origin = origin(&app, &headers, &uri);
    let (key, hint) = match needs_key(&app) {
        true => (WITH_KEY, " (key.curl has the line: header = \"Authorization: Bearer fp_...\")"),
        false => ("", ""),
    };
    let text = format!(
        "Fencepost: distributed locks over HTTP.\n\
         Take a lock:  curl {key}-X PUT '{origin}/locks/backup?ttl=30s'{hint}\n\
         Read on:      {origin}/docs in a browser, {origin}/problems, {origin}/openapi.json\n"
    );
    ([(VARY, "Accept")], text).into_response()
}

/// All problems, each with its status and a sentence.
async fn problems(headers: HeaderMap) -> Response {
    if is_browser(&headers) {
        let row = |kind: ProblemType| {
            let (name, status, title) = (kind.name(), kind.status().as_u16(), kind.title());
            format!(
                "<tr><td><a href=\"problems/{name}\">{name}</a></td><td>{status}</td><td>{title}.</td></tr>\n"
            )
        };
        let rows: String = ProblemType::ALL.into_iter().map(row).collect();
        return (
            [(CONTENT_TYPE, HTML), (VARY, HeaderValue::from_static("Accept"))],
            LIST.replace(TITLE, "Fencepost: errors").replace(ROWS, &rows),
        )
            .into_response();
    }
    let line =
        |kind: ProblemType| format!("{}  {:<22} {}.\n", kind.status().as_u16(), kind.name(), kind.title());
    let lines: String = ProblemType::ALL.into_iter().map(line).collect();
    ([(VARY, "Accept")], format!("{lines}\nWhat to do about each: /problems/lock-held, and so on.\n"))
        .into_response()
}

fn needs_key(app: &AppState) -> bool {
    app.keyring.is_some()
}

/// Whether the client is a browser, which shows a page better than plain text.
fn is_browser(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    accepts.into_iter().any(|accept| accept.contains("text/html"))
}

/// The address that the client used for this gateway. A name with any other character gets into no page.
fn origin(app: &AppState, headers: &HeaderMap, uri: &Uri) -> String {
    let scheme = if app.admission.speaks_tls { "https" } else { "http" };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str()));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    let host = host.filter(|host| !host.is_empty() && host.chars().all(is_plain)).unwrap_or("localhost");
    format!("{scheme}://{host}")
}
