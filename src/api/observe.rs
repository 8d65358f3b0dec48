//! What is true of every request: an id, headers that no answer goes without, and one line in the log.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::answers::LEASE_TOKEN;
use super::delivery::{Delivery, track};
use super::problem::ProblemType;
use crate::lock::LockKey;

/// Names a request, in its answer and in the log.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is taken over from a caller, in characters.
const LONGEST_REQUEST_ID: usize = 128;

/// Where the handler leaves the key for the log line. It is the parsed key, never the raw address: a caller who
/// puts a token there by mistake must not find it in a log.
#[derive(Clone, Default)]
pub(super) struct LoggedKey(Arc<OnceLock<LockKey>>);

impl LoggedKey {
    pub(super) fn set(&self, key: &LockKey) {
        // A request has one key: were there a second one, the first would stand.
        let _ = self.0.set(key.clone());
    }
}

/// Wraps everything else: gives the request an id and writes its line when the answer is handed to the socket, or
/// when it turns out that nobody waits for it any more.
pub(super) async fn observe(mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let is_head = request.method() == Method::HEAD;
    let key = LoggedKey::default();
    request.extensions_mut().insert(key.clone());
    let mut line = LogLine {
        id: id.clone(),
        method: request.method().clone(),
        route: request.extensions().get::<MatchedPath>().cloned(),
        key,
        started: Instant::now(),
        status: None,
        problem: None,
        is_written: false,
    };
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    line.status = Some(response.status().as_u16());
    line.problem = response.extensions().get::<ProblemType>().map(|problem| problem.name());
    if is_head {
        // Its body is dropped unread somewhere below the connection: the head is all there is to hand over.
        line.delivered();
        return response;
    }
    track(response, line)
}

/// The caller's id where it is 1 to 128 visible ASCII characters, else a fresh one of 64 random bits.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_usable = |id: &&HeaderValue| {
        (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    // Who names the request after the lease must not find the token in the log.
    let is_secret = |id: &&HeaderValue| headers.get_all(LEASE_TOKEN).iter().any(|token| token == *id);
    match headers.get(REQUEST_ID).filter(is_usable).filter(|id| !is_secret(id)) {
        Some(id) => id.clone(),
        // Sixteen hexadecimal digits are always a header value.
        None => HeaderValue::from_str(&format!("{:016x}", rand::random::<u64>()))
            .unwrap_or(HeaderValue::from_static("none")),
    }
}

/// The line of one request. It is written exactly once, at the latest when it is dropped.
struct LogLine {
    id: HeaderValue,
    method: Method,
    route: Option<MatchedPath>,
    key: LoggedKey,
    started: Instant,
    /// Absent while nothing was answered.
    status: Option<u16>,
    problem: Option<&'static str>,
    is_written: bool,
}

impl LogLine {
    fn write(&mut self, message: &str) {
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let request_id = self.id.to_str().unwrap_or_default();
        let method = self.method.as_str();
        let route = self.route.as_ref().map_or("-", MatchedPath::as_str);
        let key = self.key.0.get().map(LockKey::as_str);
        let (status, problem) = (self.status, self.problem);
        let elapsed_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if status.is_some_and(|status| status >= 500) {
            tracing::warn!(request_id, method, route, key, status, problem, elapsed_us, "{message}");
        } else {
            tracing::info!(request_id, method, route, key, status, problem, elapsed_us, "{message}");
        }
    }
}

impl Delivery for LogLine {
    fn delivered(mut self) {
        self.write("answered");
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        self.write("the client left before the answer was written");
    }
}
