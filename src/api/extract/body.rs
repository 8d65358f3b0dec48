//! The bodies of requests: those that must not be there, the small ones of other tools, and how each is read.

use std::future::ready;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Version;
use axum::http::request::Parts;
use futures_util::FutureExt;
use futures_util::future::Either;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::parameters::{announced_bytes, bad_parameter, context_of};
use crate::access::Denied;
use crate::api::context::RequestContext;
use crate::api::problem::{Problem, ProblemType};
use crate::api::result_room::RoomTaken;
use crate::api::state::AppState;

/// How long a body may take to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest body that says what a tool asks for, in bytes: far more than any of them sends.
const LARGEST_SMALL_BODY: usize = 16 * 1024;
/// The memory of a body grows by so much. Else it would take up to twice of what has arrived.
const PAGE_BYTES: usize = 4096;

/// Refuses a body. No request needs one, so a body that is there was meant to say something. It must not be ignored
/// silently. The head is dropped before that is waited for.
pub(crate) fn refuse_body(
    parts: Parts,
    mut body: Body,
    app: &AppState,
) -> impl Future<Output = Result<(), Problem>> + Send + use<> {
    let refuse = |detail| Err(Problem::new(ProblemType::UnexpectedBody, detail));
    let none = "send no body: this request has all its values in the path, the query and the headers";
    if announced_bytes(&parts.headers).is_some_and(|bytes| bytes > 0) {
        return Either::Left(ready(refuse(none)));
    }
    if body.is_end_stream() {
        return Either::Left(ready(Ok(())));
    }
    let (context, room) = match room_to_wait(&parts, app) {
        Ok(room) => room,
        Err(problem) => return Either::Left(ready(Err(problem))),
    };
    let is_empty = is_known_to_be_empty(&body);
    let look = async move {
        let _room = room;
        // Only the first byte of a chunked body shows that it is not empty.
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) if frame.data_ref().is_none_or(|data| data.is_empty()) => {}
                Ok(_) => return refuse(none),
                Err(_) if is_empty => return Ok(()),
                Err(_) => return refuse("the body cannot be read: send none"),
            }
        }
        Ok(())
    };
    let looked = async move {
        arrival(&context, look).await?.unwrap_or_else(|| refuse("the body did not end in time: send none"))
    };
    Either::Right(looked.boxed())
}

/// Reads the small body of a tool's request. One that is empty is there too, but must not be a lost one. Over HTTP/2, reading a
/// stream that its client resets may end as if it were whole. Over HTTP/1.0, a body without a length may be a lost one.
/// The request keeps neither its headers nor its address.
pub(crate) async fn read_small_body(
    parts: &mut Parts,
    mut body: Body,
    app: &AppState,
) -> Result<Bytes, Problem> {
    let announced = announced_bytes(&parts.headers);
    if announced.is_none() && parts.version < Version::HTTP_11 {
        return Err(bad_parameter("body", "over HTTP/1.0, send Content-Length, 0 where there is no body"));
    }
    let is_empty = is_known_to_be_empty(&body);
    let (context, mut room) = room_to_wait(parts, app)?;
    // The head may be longer than all that is counted here.
    (parts.headers, parts.uri) = Default::default();
    let read = arrival(&context, read_body(&mut body, LARGEST_SMALL_BODY, &mut room)).await?;
    let bytes = match read.ok_or_else(|| bad_parameter("body", "the body did not end in time"))? {
        Ok(bytes) => Some(bytes),
        Err(BodyFailure::NoRoom) => return Err(no_room()),
        Err(BodyFailure::CutOff | BodyFailure::TooLarge) => None,
    };
    let detail = format!("the body ended too early, or has more than {LARGEST_SMALL_BODY} bytes");
    let is_whole = |bytes: &Bytes| match announced {
        Some(length) => bytes.len() as u64 == length,
        // Only now: a client may end its stream with an empty frame behind the head.
        None => parts.version == Version::HTTP_11 || is_empty || body.is_end_stream(),
    };
    bytes.filter(is_whole).ok_or_else(|| bad_parameter("body", detail))
}

/// Whether the head said that no body follows. A stream of HTTP/2 says so no more once its client has left.
pub(super) fn is_known_to_be_empty(body: &Body) -> bool {
    body.size_hint().exact() == Some(0)
}

/// Room for a request whose body is waited for: it takes about so much, though nothing of it arrives.
fn room_to_wait(parts: &Parts, app: &AppState) -> Result<(RequestContext, RoomTaken), Problem> {
    let (context, caller) = context_of(parts)?;
    let mut room = app.room_for_body(&caller, context);
    if room.grows(PAGE_BYTES) { Ok((context.clone(), room)) } else { Err(no_room()) }
}

/// Waits for a body; `None` if it takes too long. Every body that is waited for ends here, as the caller may have lost its key or its
/// right meanwhile.
pub(super) async fn arrival<T>(
    context: &RequestContext,
    reading: impl Future<Output = T>,
) -> Result<Option<T>, Denied> {
    let read = timeout(BODY_TIMEOUT, reading).await.ok();
    context.check_again().map(|()| read)
}

/// Why a body was not read to its end.
pub(super) enum BodyFailure {
    /// The client has left, or sends what is no body.
    CutOff,
    TooLarge,
    NoRoom,
}

/// Copies what arrives, within [`arrival`]: a piece of it would keep the whole buffer of its connection in memory. By HTTP/2, the
/// end of a body is lost when its client leaves, but not that all of it has come.
pub(super) async fn read_body(
    body: &mut Body,
    most: usize,
    room: &mut RoomTaken,
) -> Result<Bytes, BodyFailure> {
    let mut bytes = Vec::new();
    let length = body.size_hint().exact();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(_) if length == Some(bytes.len() as u64) => break,
            Err(_) => return Err(BodyFailure::CutOff),
        };
        let Some(data) = frame.data_ref() else { continue };
        let needed = bytes.len() + data.len();
        if needed > most {
            return Err(BodyFailure::TooLarge);
        }
        if needed > bytes.capacity() {
            // All that it takes is counted, and not only what has arrived.
            let capacity = needed.next_multiple_of(PAGE_BYTES).min(most);
            if !room.grows(capacity - bytes.capacity()) {
                return Err(BodyFailure::NoRoom);
            }
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(data);
    }
    bytes.shrink_to_fit();
    Ok(bytes.into())
}

pub(super) fn no_room() -> Problem {
    let detail = "too many bodies are on their way to this gateway: send it again";
    Problem::new(ProblemType::TooManyResults, detail)
}
