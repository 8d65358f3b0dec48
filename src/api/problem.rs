//! Errors as the caller sees them: `application/problem+json` (RFC 9457), and the only map to status codes.

use std::time::Duration;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{self, HolderView, WorkerView};
use crate::access::{Denied, Right};
use crate::lock::{FencingToken, Lease, LockKey, Refusal, Sharing, for_people};
use crate::once::Worker;
use crate::store::StoreError;

mod problem_type;

pub(super) use problem_type::ProblemType;

/// The media type of every error.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";
/// How long a caller is asked to wait after a 503 or 429, or while the lock changes hands, in seconds.
const RETRY_AFTER_S: u64 = 1;
/// The longest time that a 423 asks a caller to wait, in milliseconds: the lock may be released early.
const LONGEST_RETRY_AFTER_MS: u64 = 5_000;

/// An error on its way to the caller.
#[derive(Debug)]
pub(super) struct Problem {
    body: Box<ProblemBody>,
    retry_after_s: Option<u64>,
}

/// An error, in the form of RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody {
    #[serde(rename = "type")]
    #[schema(inline)]
    kind: ProblemType,
    /// What went wrong, in a few words: the same for each problem of this type.
    title: &'static str,
    /// The status code of the response.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What went wrong this time, and what to do, in words for people.
    detail: String,
    /// The parameter or header that is wrong, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    parameter: Option<String>,
    /// With `lock-held` and `max-hold-reached`: who holds the lock. With `max-hold-reached`, that is you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = HolderView, required = false)]
    pub(super) holder: Option<Box<HolderView>>,
    /// If the request is about several locks: the one that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    key: Option<String>,
    /// With `lock-held`: true if the gateway cannot find out who holds the lock, or whether it is held. Ask again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    holder_unknown: bool,
    /// With `lock-held`: how many hold the lock, where it is held by slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, value_type = u64, required = false)]
    pub(super) held: Option<u64>,
    /// With `lock-held`: the smallest number of slots that any of them has said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000, value_type = u16, required = false)]
    pub(super) slots: Option<u16>,
    /// With `lock-held` and `not-held`: how many requests wait for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub(super) waiters: Option<u64>,
    /// With `lock-held`: your position in the wait queue, from 1 on; absent if your token has no ticket.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, value_type = u64, required = false)]
    pub(super) position: Option<u64>,
    /// With `right-missing`: the right that the API key lacks, or lacks for this lock or record: `acquire`, `inspect`, `list`, `admin` or `once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(super) right: Option<&'static str>,
    /// With `once-in-progress` and `once-abandoned`: who does the work, or was the last to begin it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = WorkerView, required = false)]
    pub(super) worker: Option<Box<WorkerView>>,
    /// With `once-abandoned`: whether your token is that of the last worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    yours: Option<bool>,
    /// With `superseded`: the number of the one that took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    pub(super) fencing_token: Option<u64>,
    /// With `superseded`: whether the one that took over has stored its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    pub(super) done: Option<bool>,
}

impl Problem {
    pub(super) fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        let passes = matches!(kind.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let body = ProblemBody {
            kind,
            title: kind.title(),
            status: kind.status().as_u16(),
            detail: detail.into(),
            parameter: None,
            holder: None,
            key: None,
            holder_unknown: false,
            held: None,
            slots: None,
            waiters: None,
            position: None,
            right: None,
            worker: None,
            yours: None,
            fencing_token: None,
            done: None,
        };
        Self { body: Box::new(body), retry_after_s: passes.then_some(RETRY_AFTER_S) }
    }

    /// The same with more in its body.
    fn with(mut self, add: impl FnOnce(&mut ProblemBody)) -> Self {
        add(&mut self.body);
        self
    }

    /// Wrong input, in the parameter or header of this name.
    pub(super) fn input(kind: ProblemType, parameter: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(kind, detail).with(|body| body.parameter = Some(parameter.into()))
    }

    /// Someone else holds the lock, or gets it next.
    pub(super) fn lock_held(refusal: &Refusal) -> Self {
        let retry_after_s = match (&refusal.holder, refusal.position) {
            (Some(lease), None) => jittered_s(lease.left_ms),
            // A client with a ticket does best to wait again at once.
            _ => RETRY_AFTER_S,
        };
        let problem = Self::new(ProblemType::LockHeld, describe_holder(refusal)).with(|body| {
            body.holder = refusal.holder.as_ref().map(|lease| Box::new(HolderView::of(lease)));
            body.holder_unknown = refusal.holder_unknown;
            body.held = refusal.sharing.as_ref().map(|sharing| sharing.held);
            body.slots = refusal.sharing.as_ref().map(|sharing| sharing.slots.get());
            (body.waiters, body.position) = (Some(refusal.waiters), refusal.position);
        });
        Self { retry_after_s: Some(retry_after_s), ..problem }
    }

    /// Another is at work.
    pub(super) fn once_in_progress(worker: &Worker) -> Self {
        let left_ms = worker.place.lease.left_ms;
        let who = worker
            .place
            .lease
            .owner()
            .map_or_else(|| "another client".to_owned(), |owner| format!("{owner:?}"));
        let detail = format!("{who} does the work, with a lease of at most {} more", for_people(left_ms));
        let worker = Some(Box::new(WorkerView::of(&worker.place)));
        let problem = Self::new(ProblemType::OnceInProgress, detail).with(|body| body.worker = worker);
        Self { retry_after_s: Some(jittered_s(left_ms)), ..problem }
    }

    /// No lease runs, and somebody may have done the work.
    pub(super) fn once_abandoned(worker: &Worker, is_own: bool) -> Self {
        let detail = "the last worker's lease is over, or it gave up, and it may have done the work: find out, then break the \
                      record; or begin without takeover=false";
        let worker = Some(Box::new(WorkerView::of_lapsed(&worker.place)));
        Self::new(ProblemType::OnceAbandoned, detail)
            .with(|body| (body.worker, body.yours) = (worker, Some(is_own)))
    }

    /// Another token was granted the place. Whether it has stored its result may not be known.
    pub(super) fn superseded(fencing_token: FencingToken, is_done: Option<bool>) -> Self {
        let what = match is_done {
            Some(true) => ", whose result is stored",
            Some(false) => ", whose result is not stored yet",
            None => "",
        };
        let number = fencing_token.get();
        let detail = format!("the place was granted by another number than yours: {number}{what}");
        Self::new(ProblemType::Superseded, detail)
            .with(|body| (body.fencing_token, body.done) = (Some(number), is_done))
    }

    /// The token holds the lock by this lease, which cannot become longer.
    pub(super) fn max_hold_reached(lease: &Lease) -> Self {
        let left = for_people(lease.left_ms);
        let detail = format!("max_hold allows no longer lease: you hold the lock for {left} more");
        let holder = Some(Box::new(HolderView::of(lease)));
        Self::new(ProblemType::MaxHoldReached, detail).with(|body| body.holder = holder)
    }

    /// Says which of several locks it is about.
    pub(super) fn about(self, key: &LockKey) -> Self {
        self.with(|body| body.key = Some(key.as_str().to_owned()))
    }

    /// Says when to ask again.
    pub(super) fn with_retry_after(self, wait: Duration) -> Self {
        let seconds = u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
        Self { retry_after_s: Some(seconds.max(1)), ..self }
    }

    /// Says how many requests wait for the lock.
    pub(super) fn with_waiters(self, waiters: u64) -> Self {
        self.with(|body| body.waiters = Some(waiters))
    }

    pub(super) fn kind(&self) -> ProblemType {
        self.body.kind
    }

    pub(super) fn detail(&self) -> &str {
        &self.body.detail
    }

    /// The answer of this status with another body: errors have their own form in each protocol.
    pub(super) fn in_form(self, body: &impl Serialize) -> Response {
        let response = answers::json(self.kind().status(), answers::JSON, body);
        with_kind(response, self.kind(), self.retry_after_s)
    }

    pub(super) fn body(self) -> ProblemBody {
        *self.body
    }
}

/// When to ask again about a lease, in seconds. Clients that were refused together must not come back together.
fn jittered_s(left_ms: u64) -> u64 {
    let wait_ms = left_ms.min(LONGEST_RETRY_AFTER_MS);
    let jittered_ms = wait_ms / 2 + rand::random_range(0..=wait_ms / 2);
    jittered_ms.div_ceil(1000).max(1)
}

fn describe_holder(refusal: &Refusal) -> String {
    let Some(lease) = &refusal.holder else {
        let said = if refusal.holder_unknown {
            "it is not known who holds the lock, since the servers of the quorum do not agree: ask again"
        } else {
            "the lock is free, and reserved for the first client of the wait queue"
        };
        return said.to_owned();
    };
    let left = for_people(lease.left_ms);
    if let Some(Sharing { held, slots, .. }) = &refusal.sharing {
        let has_room = u64::from(slots.get()) > *held;
        let why = match (has_room, refusal.waiters) {
            (false, _) => "there is room for no more",
            (true, 0) => "this request asks for fewer slots than are taken, or for the lock alone",
            (true, _) => "others wait for the room that is left, or this request asks for fewer slots",
        };
        return format!(
            "the lock is held by slots, {held} of {slots}, and {why}; the first lease ends in {left}",
            slots = slots.get()
        );
    }
    match lease.owner() {
        _ if lease.is_released => {
            format!("the lock was released, and min_hold keeps it taken for {left} more")
        }
        Some(owner) => format!("{owner:?} holds the lock for at most {left} more"),
        None => format!("the lock is held for at most {left} more"),
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (kind, right) = match denied {
            Denied::NoLonger => (ProblemType::KeyRefused, None),
            Denied::Right(right) | Denied::Prefix(right) => (ProblemType::RightMissing, Some(right)),
        };
        Self::new(kind, denied.to_string()).with(|body| body.right = right.map(Right::name))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => Self::new(ProblemType::StoreUnavailable, reason),
            StoreError::Unknown(reason) => Self::new(ProblemType::OutcomeUnknown, reason),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = self.kind();
        let response = answers::json(kind.status(), PROBLEM_JSON, &self.body);
        let mut response = with_kind(response, kind, self.retry_after_s);
        // If the client showed a key, it is told that this key is not accepted.
        let challenge = match kind {
            ProblemType::KeyRequired => Some("Bearer realm=\"fencepost\""),
            ProblemType::KeyRefused => Some("Bearer realm=\"fencepost\", error=\"invalid_token\""),
            _ => None,
        };
        if let Some(challenge) = challenge {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

fn with_kind(mut response: Response, kind: ProblemType, retry_after_s: Option<u64>) -> Response {
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    // For the log line.
    response.extensions_mut().insert(kind);
    response
}
