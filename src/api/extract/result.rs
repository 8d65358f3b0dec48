//! The one request with a body: the result of a piece of work. The body is read only when the caller may store it.

use std::mem;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Version};
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use super::body::{BODY_TIMEOUT, BodyFailure, arrival, is_known_to_be_empty, no_room, read_body};
use super::once::StoreQuery;
use super::parameters::{announced_bytes, shown_number, single};
use super::{LockCall, bad_parameter, context_of};
use crate::api::context::RequestContext;
use crate::api::problem::{Problem, ProblemType};
use crate::api::result_room::RoomTaken;
use crate::api::state::AppState;
use crate::lock::FencingToken;
use crate::once::{WorkResult, WorkStatus};

/// So much of a result that is refused is read, for so long, before that is said.
const DRAINED_BYTES: usize = 1024 * 1024;
const DRAINED_FOR: Duration = Duration::from_secs(1);
/// What `curl` says of every body.
const FORM: &str = "application/x-www-form-urlencoded";

/// A request to store a result, which is still to be read.
pub(in crate::api) struct StoreCall {
    pub(in crate::api) call: LockCall<StoreQuery>,
    pub(in crate::api) fence: Option<FencingToken>,
    pub(in crate::api) result: ArrivingResult,
}

/// A result that may be stored as soon as it is there.
pub(in crate::api) struct ArrivingResult {
    body: Body,
    most: usize,
    announced: Option<u64>,
    status: Option<WorkStatus>,
    content_type: Option<String>,
    /// Its part of what all results on their way may take.
    room: RoomTaken,
    context: RequestContext,
}

impl FromRequest<AppState> for StoreCall {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, mut body) = request.into_parts();
        match read_head(&parts, &mut body, app) {
            // A client that asks before it sends need not send it.
            Err(refused) if !parts.headers.contains_key(EXPECT) => {
                drop(parts);
                drain(body).await;
                Err(refused)
            }
            call => call,
        }
    }
}

/// Takes the body if the result may be stored.
fn read_head(parts: &Parts, body: &mut Body, app: &AppState) -> Result<StoreCall, Problem> {
    let call = LockCall::<StoreQuery>::permitted(parts, app)?;
    call.required_token()?;
    let fence = shown_number(&parts.headers)?;
    let content_type = content_type(&parts.headers)?;
    if parts.headers.contains_key(CONTENT_ENCODING) {
        let detail = "a result is kept as it is: send it without Content-Encoding";
        return Err(Problem::input(ProblemType::ResultEncoded, "Content-Encoding", detail));
    }
    if parts
        .headers
        .get_all(TRANSFER_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        let detail = "a result is kept as it is: send it in chunks, or with its length, and not in another Transfer-Encoding";
        return Err(Problem::input(ProblemType::ResultEncoded, "Transfer-Encoding", detail));
    }
    let most = app.limits.max_result_bytes;
    let announced = announced_bytes(&parts.headers);
    if announced.is_some_and(|bytes| bytes > most as u64) {
        return Err(too_large(most));
    }
    // A stream of HTTP/2 that its client resets may look like one that has ended. Only the length tells them apart. Over HTTP/1.0
    // a body without a length is none, though its client may have sent one.
    let ends_unseen = match parts.version {
        Version::HTTP_11 => false,
        Version::HTTP_2 => !body.is_end_stream() && !is_known_to_be_empty(body),
        _ => true,
    };
    if announced.is_none() && ends_unseen {
        let detail = "a result needs its Content-Length, but over HTTP/1.1: one that is cut off must not be taken for a whole one";
        return Err(Problem::input(ProblemType::LengthMissing, "Content-Length", detail));
    }
    let (context, _) = context_of(parts)?;
    let room = app.room_for_body(&call.caller, context);
    let (body, status, context) = (mem::take(body), call.query.status, context.clone());
    let result = ArrivingResult { body, most, announced, status, content_type, room, context };
    Ok(StoreCall { call, fence, result })
}

impl ArrivingResult {
    /// Reads it to its end. The room that it takes is given back when that is dropped.
    pub(in crate::api) async fn read(self) -> Result<(WorkResult, RoomTaken), Problem> {
        let Self { mut body, most, announced, status, content_type, mut room, context } = self;
        let arrived = match arrival(&context, read_body(&mut body, most, &mut room)).await {
            Ok(Some(arrived)) => arrived.map_err(|failure| match failure {
                BodyFailure::CutOff => cut_off(),
                BodyFailure::TooLarge => too_large(most),
                BodyFailure::NoRoom => no_room(),
            }),
            Ok(None) => {
                let detail = format!("the result was not complete within {} s", BODY_TIMEOUT.as_secs());
                Err(Problem::new(ProblemType::ResultStalled, detail))
            }
            Err(denied) => Err(denied.into()),
        };
        match arrived {
            Ok(bytes) if announced.is_some_and(|announced| announced != bytes.len() as u64) => Err(cut_off()),
            Ok(bytes) if bytes.is_empty() && status.is_none() => {
                let detail = "the result is empty: if that is meant, send a status, such as status=0";
                Err(bad_parameter("status", detail))
            }
            Ok(body) => Ok((WorkResult { status, content_type, body }, room)),
            Err(refused) => {
                drain(body).await;
                Err(refused)
            }
        }
    }
}

fn cut_off() -> Problem {
    Problem::new(
        ProblemType::MalformedRequest,
        "the body ended too early, or cannot be read: send the result again",
    )
}

/// Reads on for a while, and keeps nothing: a client that still writes may not read a refusal.
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
fn content_type(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let value = single(headers, &CONTENT_TYPE, "Content-Type")?.unwrap_or_default();
    let text = str::from_utf8(value.trim_ascii()).unwrap_or_default();
    let is_kept = text.len() <= WorkResult::MAX_CONTENT_TYPE_CHARS
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && text.parse::<mime::Mime>().is_ok_and(|mime| mime.essence_str() != FORM);
    Ok(is_kept.then(|| text.to_owned()))
}
