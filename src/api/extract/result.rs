//! The one request with a body: the result of a piece of work. The body is read only when the caller may store it.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::once::{StoreQuery, shown_number};
use super::queries::LockQuery;
use super::{LockCall, bad_parameter, context_of};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::lock::FencingToken;
use crate::once::WorkResult;

/// How long a result may take to arrive.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);
/// So much of a result that is too large is read, for so long, before that is said: a client that still writes may not read.
const DRAINED_BYTES: usize = 1024 * 1024;
const DRAINED_FOR: Duration = Duration::from_secs(1);
/// What `curl` says of every body.
const FORM: &str = "application/x-www-form-urlencoded";

/// A request to store a result, all of which is there.
pub(in crate::api) struct StoreCall {
    pub(in crate::api) call: LockCall<StoreQuery>,
    pub(in crate::api) fence: Option<FencingToken>,
    pub(in crate::api) result: WorkResult,
    /// Its part of what all results on their way may take.
    pub(in crate::api) room: OwnedSemaphorePermit,
}

impl FromRequest<AppState> for StoreCall {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let (context, caller) = context_of(&parts)?;
        let call = LockCall::<StoreQuery>::read(&parts, &app.limits.lowered_to(caller.max_ttl()), caller)?;
        let asked = call.query.asked(call.key.clone());
        let right = asked.right;
        context.set_asked(asked);
        call.caller.check(right, &call.key)?;
        call.required_token()?;
        let fence = shown_number(&parts.headers)?;
        if parts.headers.contains_key(CONTENT_ENCODING) {
            let detail = "a result is kept as it is: send it without Content-Encoding";
            return Err(Problem::input(ProblemType::ResultEncoded, "Content-Encoding", detail));
        }
        let most = app.limits.max_result_bytes;
        let announced = announced_bytes(&parts.headers);
        if announced.is_some_and(|bytes| bytes > most) {
            // A client that asks before it sends need not send it.
            if !parts.headers.contains_key(EXPECT) {
                drain(body).await;
            }
            return Err(too_large(most));
        }
        let room = app.room_for_result(announced.unwrap_or(most)).ok_or_else(|| {
            Problem::new(
                ProblemType::TooManyResults,
                "too many results are on their way to this gateway: send it again",
            )
        })?;
        let body = read(body, most).await?;
        let status = call.query.status;
        if body.is_empty() && status.is_none() {
            let detail = "the result is empty: if that is meant, send a status, such as status=0";
            return Err(bad_parameter("status", detail));
        }
        let result = WorkResult { status, content_type: content_type(&parts.headers), body };
        Ok(Self { call, fence, result, room })
    }
}

/// The length that a request announces. One that cannot be read was refused before it came here.
fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read(body: Body, most: usize) -> Result<Bytes, Problem> {
    let mut limited = Limited::new(body, most);
    match timeout(RESULT_TIMEOUT, (&mut limited).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(most)),
        // The client has left, or sends what is no body.
        Ok(Err(_)) => Err(Problem::new(ProblemType::MalformedRequest, "the body cannot be read to its end")),
        Err(_) => {
            let detail = format!("the result was not complete within {} s", RESULT_TIMEOUT.as_secs());
            Err(Problem::new(ProblemType::ResultStalled, detail))
        }
    }
}

/// Reads on for a while, and keeps nothing.
async fn drain(body: Body) {
    let mut limited = Limited::new(body, DRAINED_BYTES);
    let all = async { while let Some(Ok(_)) = limited.frame().await {} };
    let _ = timeout(DRAINED_FOR, all).await;
}

fn too_large(most: usize) -> Problem {
    let detail =
        format!("a result may have {most} bytes: store a shorter one, such as the address of where it lies");
    Problem::new(ProblemType::ResultTooLarge, detail)
}

/// The media type to keep, if it is one.
fn content_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?.trim();
    let is_kept = text.len() <= WorkResult::MAX_CONTENT_TYPE_CHARS
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && text.parse::<mime::Mime>().is_ok_and(|mime| mime.essence_str() != FORM);
    is_kept.then(|| text.to_owned())
}
