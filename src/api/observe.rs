//! What is true of every request: an id, headers that no answer goes without, and one line in the log.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::Request;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;

use super::answers::LEASE_TOKEN;
use super::delivery::{Delivery, track};
use super::metrics::{Operation, Outcome, requests};
use super::problem::ProblemType;
use super::route::route_of;
use super::strangers::is_worth_a_line;
use crate::access::{Caller, Right, ShownKey};
use crate::audit::{Audit, Event, Who};
use crate::lock::LockKey;
use crate::server::Peer;
use crate::telemetry::traces::{RequestEnd, RequestSpan};

/// Names a request, in its answer and in the log.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Says whose pages may embed an answer.
const CORP: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Says of which trace a request is a part.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The longest id that is taken over from a caller, in characters.
const LONGEST_REQUEST_ID: usize = 128;

/// Where it is left for the log line and the numbers who asks for what.
#[derive(Clone)]
pub(super) struct Noted(Arc<Findings>);

struct Findings {
    request_id: HeaderValue,
    peer: Option<Arc<Peer>>,
    note: OnceLock<Note>,
    /// With the place where it is written down what the caller does, if that is worth it.
    caller: OnceLock<(Caller, Option<Arc<Audit>>)>,
    /// Whether it is worth a line, where that was found out.
    has_line: OnceLock<bool>,
}

/// What a request turned out to be once it was read.
pub(super) struct Note {
    /// What its caller must be allowed to do.
    pub(super) right: Right,
    /// The parsed key, never the raw address: a caller who puts a token there by mistake must not find it in a log.
    pub(super) key: Option<LockKey>,
    /// What it asks for, where that is not what its method and route say.
    pub(super) operation: Option<Operation>,
    /// Whether it asks to wait, so that its time says nothing of the gateway.
    pub(super) waits: bool,
}

impl Noted {
    fn new(request_id: HeaderValue, peer: Option<Arc<Peer>>) -> Self {
        let (note, caller, has_line) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self(Arc::new(Findings { request_id, peer, note, caller, has_line }))
    }

    pub(super) fn set(&self, note: Note) {
        // A request is read once: were it read again, the first time would stand.
        let _ = self.0.note.set(note);
    }

    /// Who makes the request.
    pub(super) fn set_caller(&self, caller: Caller, audit: Option<&Arc<Audit>>) {
        let _ = self.0.caller.set((caller, audit.cloned()));
    }

    /// Who makes the request, once that was found out.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.0.caller.get().map(|(caller, _)| caller)
    }

    /// Who makes the request, for the audit log.
    pub(super) fn who(&self) -> Who {
        let caller = self.caller();
        Who {
            request_id: self.0.request_id.to_str().unwrap_or_default().to_owned(),
            address: self.0.peer.as_ref().map(|peer| peer.address.ip().to_canonical().to_string()),
            key_id: caller.and_then(Caller::id).map(str::to_owned),
            key_name: caller.and_then(Caller::name).map(str::to_owned),
        }
    }

    /// Says whether the request is worth a line of the log. Otherwise one is, of which it is known who makes it, and of
    /// strangers as many as of one address.
    pub(super) fn set_has_line(&self, has_line: bool) {
        let _ = self.0.has_line.set(has_line);
    }

    fn has_line(&self) -> bool {
        let is_worth_it = || self.caller().is_some() || is_worth_a_line(self.0.peer.as_ref());
        self.0.has_line.get().copied().unwrap_or_else(is_worth_it)
    }
}

/// Comes before everything else: gives the request an id and begins its line, which is written when the answer is handed to
/// the socket, or when it turns out that nobody waits for it any more. What a request says of its trace counts where it
/// `is_trusted`: a span costs something, and strangers are not to choose how many there are.
pub(super) fn observe(request: &mut Request, is_trusted: impl FnOnce(&Request) -> bool) -> LogLine {
    let id = request_id(request.headers());
    let noted = Noted::new(id, request.extensions().get().cloned());
    request.extensions_mut().insert(noted.clone());
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
        noted,
        started: Instant::now(),
        status: None,
        problem: None,
        is_written: false,
    }
}

/// The caller's id where it is 1 to 128 visible ASCII characters, else a fresh one of 64 random bits.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_usable = |id: &&HeaderValue| {
        (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    // Who names the request after the lease, or after the API key, must not find that in the log.
    let has_token = |id: &str| {
        let mut tokens = headers.get_all(LEASE_TOKEN).iter().filter_map(|token| token.to_str().ok());
        tokens.any(|token| !token.is_empty() && id.contains(token))
    };
    let has_secret =
        |id: &&HeaderValue| id.to_str().is_ok_and(|id| ShownKey::is_begun_in(id) || has_token(id));
    match headers.get(REQUEST_ID).filter(is_usable).filter(|id| !has_secret(id)) {
        Some(id) => id.clone(),
        None => {
            let bits = rand::random::<u64>().to_be_bytes();
            let digit = |n: usize| b"0123456789abcdef"[usize::from(bits[n / 2] >> (n % 2 * 4) & 15)];
            let id: [u8; 16] = std::array::from_fn(digit);
            // Hexadecimal digits are always a header value.
            HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
        }
    }
}

/// The line of one request. It is written exactly once, at the latest when it is dropped.
pub(super) struct LogLine {
    method: Method,
    /// By the method and the route.
    operation: Operation,
    route: &'static str,
    span: RequestSpan,
    noted: Noted,
    started: Instant,
    /// Absent while nothing was answered.
    status: Option<u16>,
    problem: Option<ProblemType>,
    is_written: bool,
}

impl LogLine {
    /// Whether somebody collects the steps of this request.
    pub(super) fn is_traced(&self) -> bool {
        self.span.is_recorded()
    }

    /// Has the steps of `answer` be known as those of this request.
    pub(super) async fn traced(&self, answer: impl Future<Output = Response>) -> Response {
        self.span.around(answer).await
    }

    /// Puts on an answer what none goes without, and has the line wait for it to be handed to the socket.
    pub(super) fn hand_over(mut self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.noted.0.request_id.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // A browser hands it to no page of another site, unless that was asked for by its origin. What a page embeds is only
        // ever asked for by GET.
        if matches!(self.method, Method::GET | Method::HEAD) {
            headers.insert(CORP, HeaderValue::from_static("same-origin"));
        }
        self.status = Some(response.status().as_u16());
        self.problem = response.extensions().get::<ProblemType>().copied();
        if self.method == Method::HEAD {
            // Its body is dropped unread somewhere below the connection: the head is all there is to hand over.
            self.delivered();
            return response;
        }
        track(response, self)
    }

    /// The request is over: it was answered, or nobody was there any more to be answered.
    fn write(&mut self, is_delivered: bool, message: &str) {
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let (findings, elapsed) = (&self.noted.0, self.started.elapsed());
        let note = findings.note.get();
        let operation = note.and_then(|note| note.operation).unwrap_or(self.operation);
        let outcome = match self.status {
            Some(status) if is_delivered => Outcome::of(operation, status, self.problem),
            _ => Outcome::ClientLeft,
        };
        let is_measure = is_delivered && !note.is_some_and(|note| note.waits);
        requests().count(operation, outcome, is_measure.then_some(elapsed));
        self.audit();
        let request_id = self.noted.0.request_id.to_str().unwrap_or_default();
        let method = self.method.as_str();
        let route = self.route;
        let key = note.and_then(|note| note.key.as_ref()).map(LockKey::as_str);
        let key_id = self.noted.caller().and_then(Caller::id);
        let (status, problem) = (self.status, self.problem.map(ProblemType::name));
        self.span.end(&RequestEnd {
            operation: operation.name(),
            outcome: outcome.name(),
            status: status.filter(|_| is_delivered),
            key,
            key_id,
            request_id,
        });
        if !self.noted.has_line() {
            return;
        }
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        if status.is_some_and(|status| status >= 500) {
            tracing::warn!(request_id, key_id, method, route, key, status, problem, elapsed_us, "{message}");
        } else {
            tracing::info!(request_id, key_id, method, route, key, status, problem, elapsed_us, "{message}");
        }
    }
}

impl LogLine {
    /// Each request with a key is a line of the audit log too.
    fn audit(&self) {
        let Some((_, Some(audit))) = self.noted.0.caller.get() else { return };
        if !audit.is_on() {
            return;
        }
        let note = self.noted.0.note.get();
        audit.note(Event::KeyUse {
            who: self.noted.who(),
            right: note.map(|note| note.right.name()),
            lock: note.and_then(|note| note.key.as_ref()).map(|key| key.as_str().to_owned()),
            status: self.status,
        });
    }
}

impl Delivery for LogLine {
    fn delivered(mut self) {
        self.write(true, "answered");
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        self.write(false, "the client left before the answer was written");
    }
}
