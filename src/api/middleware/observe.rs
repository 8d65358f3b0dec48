//! What all requests have in common: an id, the headers of every answer, and one line in the log.

use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use tracing::Level;
use tracing::level_filters::LevelFilter;

use super::counts::{RequestOutcome, request_counts};
use super::delivery::{Delivery, track};
use super::strangers::is_worth_a_line;
use crate::access::{Caller, Right, ShownKey};
use crate::api::context::{Operation, RequestContext};
use crate::api::headers::{CORP, ONCE, REQUEST_ID, has_secret};
use crate::api::problem::ProblemType;
use crate::api::route::route_of;
use crate::audit::Event;
use crate::lock::LockKey;
use crate::log::later;
use crate::telemetry::RequestEnd;
use crate::telemetry::traces::RequestSpan;

/// Names the trace that a request is a part of.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The longest id that is taken over from a caller, in characters.
const LONGEST_REQUEST_ID: usize = 128;
/// The longest method that is written down.
const LONGEST_METHOD: usize = 32;

/// Runs before everything else: gives the request an id and begins its line. The line is written when the answer is
/// handed to the socket, or when the connection turns out to have ended.
///
/// The trace that a request names counts only if the request `is_trusted`. A span costs something, so strangers must
/// not choose how many there are.
pub(crate) fn observe(request: &mut Request, is_trusted: impl FnOnce(&Request) -> bool) -> LogLine {
    let id = request_id(request.headers());
    let context = RequestContext::new(id, request.extensions().get().cloned());
    request.extensions_mut().insert(context.clone());
    let route = route_of(request.uri().path());
    let span = RequestSpan::begin(request.method().as_str(), route, || {
        let traceparent = request.headers().get(TRACEPARENT)?;
        traceparent.to_str().ok().filter(|_| is_trusted(request))
    });
    LogLine {
        method: request.method().clone(),
        operation: Operation::of(request.method(), route),
        route,
        span,
        context,
        started: Instant::now(),
        status: None,
        problem: None,
        of_record: None,
        is_written: false,
    }
}

/// Whether a token that a gateway has made stands in a text.
fn is_made_token_in(text: &[u8]) -> bool {
    text.windows(33).any(|part| part[0] == b'~' && part[1..].iter().all(u8::is_ascii_hexdigit))
}

/// The caller's id if it has 1 to 128 visible ASCII characters. Otherwise, a new one of 64 random bits.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_usable = |id: &&HeaderValue| {
        (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    // A caller may use a lease token or its API key as the id. These must not get into the log.
    let is_key_or_token = |text: &[u8]| ShownKey::is_begun_in(text) || is_made_token_in(text);
    let is_public = |id: &&HeaderValue| !has_secret(id.as_bytes(), Some(headers), is_key_or_token);
    // Copied: the value may be a piece of the head, all of which would stay in memory as long as the request.
    let copied = |id: &[u8]| HeaderValue::from_bytes(id).unwrap_or(HeaderValue::from_static("none"));
    match headers.get(REQUEST_ID).filter(is_usable).filter(is_public) {
        Some(id) => copied(id.as_bytes()),
        None => {
            let bits = rand::random::<u64>().to_be_bytes();
            let digit = |n: usize| b"0123456789abcdef"[usize::from(bits[n / 2] >> (n % 2 * 4) & 15)];
            let id: [u8; 16] = std::array::from_fn(digit);
            copied(&id)
        }
    }
}

/// The line of one request. It is written exactly once, at the latest when it is dropped.
pub(crate) struct LogLine {
    method: Method,
    /// What the method and the route say.
    operation: Operation,
    route: &'static str,
    span: RequestSpan,
    context: RequestContext,
    started: Instant,
    /// Absent until there is an answer.
    status: Option<u16>,
    problem: Option<ProblemType>,
    /// How a request about a record succeeded.
    of_record: Option<RequestOutcome>,
    is_written: bool,
}

impl LogLine {
    /// Whether the steps of this request go into a trace.
    pub(crate) fn is_traced(&self) -> bool {
        self.span.is_recorded()
    }

    /// Runs `answer`. Its steps belong to the trace of this request.
    pub(crate) fn traced<A: Future>(&self, answer: A) -> impl Future<Output = A::Output> + use<A> {
        self.span.around(answer)
    }

    /// Adds the headers of every answer. The line is written when the answer is handed to the socket.
    pub(crate) fn hand_over(mut self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.context.request_id().clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Without CORS, a browser gives this answer to no page of another site. Pages embed things by GET only.
        if matches!(self.method, Method::GET | Method::HEAD) {
            headers.insert(CORP, HeaderValue::from_static("same-origin"));
        }
        self.status = Some(response.status().as_u16());
        // The router says 0, which HTTP forbids here.
        if response.status() == StatusCode::NO_CONTENT {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        self.problem = response.extensions().get::<ProblemType>().copied();
        // Most requests are about locks, and their answers have no such header.
        if matches!(self.operation, Operation::Begin | Operation::Store | Operation::OnceRenew) {
            self.of_record = response.headers().get(ONCE).and_then(RequestOutcome::of_record);
        }
        if self.method == Method::HEAD {
            // HTTP/1 sends no body here, but HTTP/2 would, of an answer that no route has made. So the answer ends with its head.
            if let Some(length) = response.body().size_hint().exact().filter(|length| *length > 0) {
                response.headers_mut().insert(CONTENT_LENGTH, length.into());
                *response.body_mut() = Body::empty();
            }
            self.delivered();
            return response;
        }
        track(response, self)
    }

    /// The request is over: it was answered, or its connection has ended.
    fn write(&mut self, is_delivered: bool) {
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let (asked, elapsed) = (self.context.asked(), self.started.elapsed());
        let operation = asked.and_then(|asked| asked.operation).unwrap_or(self.operation);
        let is_cut = || self.context.peer().is_some_and(|peer| peer.is_cut.load(Ordering::Relaxed));
        let (outcome, message) = match self.status {
            Some(status) if is_delivered => {
                let of_others = || RequestOutcome::of(operation, status, self.problem);
                (self.of_record.unwrap_or_else(of_others), "answered")
            }
            _ if is_cut() => {
                (RequestOutcome::Cut, "the gateway ended the connection before the answer was written")
            }
            _ => (RequestOutcome::ClientLeft, "the client left before the answer was written"),
        };
        let is_measure = is_delivered && !asked.is_some_and(|asked| asked.waits);
        request_counts().count(operation, outcome, is_measure.then_some(elapsed));
        self.audit(operation, is_delivered);
        let request_id = self.context.request_id().to_str().unwrap_or_default();
        let route = self.route;
        let key = asked.and_then(|asked| asked.key.as_ref());
        let key_id = self.context.caller().and_then(Caller::id);
        let (status, problem) = (self.status, self.problem.map(ProblemType::name));
        self.span.end(&RequestEnd {
            operation: operation.name(),
            outcome: outcome.name(),
            status: status.filter(|_| is_delivered),
            key: key.map(LockKey::as_str),
            key_id,
            request_id,
        });
        // Balancers ask all day long, and a good answer is no news.
        let is_good_probe = is_delivered && status == Some(200) && matches!(route, "/healthz" | "/readyz");
        let level = match status {
            _ if is_good_probe => Level::DEBUG,
            Some(500 | 503) => Level::WARN,
            _ => Level::INFO,
        };
        if level > LevelFilter::current() || !self.has_line() {
            return;
        }
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let (request_id, key) = (self.context.request_id().clone(), key.cloned());
        // Hardly anything bounds what a client calls one.
        let method = match self.method.as_str().len() {
            0..=LONGEST_METHOD => self.method.clone(),
            _ => Method::from_bytes(b"_OTHER").unwrap_or_default(),
        };
        let key_id = key_id.map(str::to_owned);
        let others = asked.map(|asked| asked.others.clone()).unwrap_or_default();
        let line = move || {
            let request_id = request_id.to_str().unwrap_or_default();
            let (method, key_id) = (method.as_str(), key_id.as_deref());
            let key = key.as_ref().map(LockKey::as_str);
            let others = others.iter().map(LockKey::as_str).collect::<Vec<_>>().join(", ");
            let others = (!others.is_empty()).then_some(others);
            macro_rules! line {
                ($level:ident) => {
                    tracing::$level!(
                        request_id,
                        key_id,
                        method,
                        route,
                        key,
                        others,
                        status,
                        problem,
                        elapsed_us,
                        "{message}"
                    )
                };
            }
            match level {
                Level::DEBUG => line!(debug),
                Level::WARN => line!(warn),
                _ => line!(info),
            }
        };
        // There are many of these where there are many requests.
        if level == Level::INFO { later(line) } else { line() }
    }

    /// For each address, only a limited number of requests without a known caller gets a line.
    fn has_line(&self) -> bool {
        let is_worth_it = || self.context.caller().is_some() || is_worth_a_line(self.context.peer());
        self.context.has_line().unwrap_or_else(is_worth_it)
    }

    /// Each request with a key is a line of the audit log too, unless it is beyond the rate of its key.
    fn audit(&self, operation: Operation, is_delivered: bool) {
        let Some(audit) = self.context.audit().filter(|audit| audit.is_on()) else { return };
        let asked = self.context.asked();
        let others = asked.iter().flat_map(|asked| &asked.others).map(Some);
        // One for each lock, so that each is found by its name.
        for key in std::iter::once(asked.and_then(|asked| asked.key.as_ref())).chain(others) {
            let name = key.map(|key| key.as_str().to_owned());
            let (lock, record) = if operation.is_of_record() { (None, name) } else { (name, None) };
            audit.note(Event::KeyUse {
                who: self.context.who(),
                right: self.context.right().map(Right::name),
                operation: operation.name(),
                lock,
                record,
                status: self.status.filter(|_| is_delivered),
                problem: self.problem.filter(|_| is_delivered).map(ProblemType::name),
            });
        }
    }
}

impl Delivery for LogLine {
    fn delivered(mut self) {
        self.write(true);
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        self.write(false);
    }
}
