//! What is true of every request: an id, headers that no answer goes without, and one line in the log.

use std::time::Instant;

use axum::extract::Request;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;

use super::counts::{RequestOutcome, request_counts};
use super::delivery::{Delivery, track};
use super::strangers::is_worth_a_line;
use crate::access::{Caller, ShownKey};
use crate::api::context::{Operation, RequestContext};
use crate::api::headers::{LEASE_TOKEN, REQUEST_ID};
use crate::api::problem::ProblemType;
use crate::api::route::route_of;
use crate::audit::Event;
use crate::lock::LockKey;
use crate::telemetry::traces::{RequestEnd, RequestSpan};

/// Says whose pages may embed an answer.
const CORP: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Says of which trace a request is a part.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The longest id that is taken over from a caller, in characters.
const LONGEST_REQUEST_ID: usize = 128;

/// Comes before everything else: gives the request an id and begins its line, which is written when the answer is handed to
/// the socket, or when it turns out that nobody waits for it any more. What a request says of its trace counts where it
/// `is_trusted`: a span costs something, and strangers are not to choose how many there are.
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
pub(crate) struct LogLine {
    method: Method,
    /// By the method and the route.
    operation: Operation,
    route: &'static str,
    span: RequestSpan,
    context: RequestContext,
    started: Instant,
    /// Absent while nothing was answered.
    status: Option<u16>,
    problem: Option<ProblemType>,
    is_written: bool,
}

impl LogLine {
    /// Whether somebody collects the steps of this request.
    pub(crate) fn is_traced(&self) -> bool {
        self.span.is_recorded()
    }

    /// Has the steps of `answer` be known as those of this request.
    pub(crate) async fn traced(&self, answer: impl Future<Output = Response>) -> Response {
        self.span.around(answer).await
    }

    /// Puts on an answer what none goes without, and has the line wait for it to be handed to the socket.
    pub(crate) fn hand_over(mut self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.context.request_id().clone());
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
        let (asked, elapsed) = (self.context.asked(), self.started.elapsed());
        let operation = asked.and_then(|asked| asked.operation).unwrap_or(self.operation);
        let outcome = match self.status {
            Some(status) if is_delivered => RequestOutcome::of(operation, status, self.problem),
            _ => RequestOutcome::ClientLeft,
        };
        let is_measure = is_delivered && !asked.is_some_and(|asked| asked.waits);
        request_counts().count(operation, outcome, is_measure.then_some(elapsed));
        self.audit();
        let request_id = self.context.request_id().to_str().unwrap_or_default();
        let method = self.method.as_str();
        let route = self.route;
        let key = asked.and_then(|asked| asked.key.as_ref()).map(LockKey::as_str);
        let key_id = self.context.caller().and_then(Caller::id);
        let (status, problem) = (self.status, self.problem.map(ProblemType::name));
        self.span.end(&RequestEnd {
            operation: operation.name(),
            outcome: outcome.name(),
            status: status.filter(|_| is_delivered),
            key,
            key_id,
            request_id,
        });
        if !self.has_line() {
            return;
        }
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        if status.is_some_and(|status| status >= 500) {
            tracing::warn!(request_id, key_id, method, route, key, status, problem, elapsed_us, "{message}");
        } else {
            tracing::info!(request_id, key_id, method, route, key, status, problem, elapsed_us, "{message}");
        }
    }

    /// Of strangers, only so many requests of one address have a line.
    fn has_line(&self) -> bool {
        let is_worth_it = || self.context.caller().is_some() || is_worth_a_line(self.context.peer());
        self.context.has_line().unwrap_or_else(is_worth_it)
    }

    /// Each request with a key is a line of the audit log too.
    fn audit(&self) {
        let Some(audit) = self.context.audit().filter(|audit| audit.is_on()) else { return };
        let asked = self.context.asked();
        audit.note(Event::KeyUse {
            who: self.context.who(),
            right: asked.map(|asked| asked.right.name()),
            lock: asked.and_then(|asked| asked.key.as_ref()).map(|key| key.as_str().to_owned()),
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
