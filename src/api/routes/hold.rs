//! A lock that is held by the request itself, for as long as its connection lives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, Version};
use axum::response::Response;
use http_body::Frame;

use super::locks::{not_taken, tenant_of, wait_permit, while_allowed};
use crate::access::{Right, WaitPermit};
use crate::api::answers;
use crate::api::extract::{HoldQuery, LockCall};
use crate::api::openapi::{HoldProblems, OptionalToken, QueryKeyParam};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::{AppState, ConnectionPlace};
use crate::api::stream::StreamForm;
use crate::api::stream::hold_event::{EXAMPLE_STREAM, HoldEventView, example_line};
use crate::lock::{LockKey, Note, Terms};
use crate::server::{Peer, ShortTcpTimeout};
use crate::service::{AcquireRequest, Hold, HoldEvent, Holding, Loss};

/// Hold a lock
///
/// The request is the lease: the server renews the lock at each third of `ttl` for as long as the connection lives, and
/// releases it when the connection closes. Nothing is answered before the lock is granted, so all refusals are those of a
/// `PUT`. Then come the events `granted`, `renewed`, and, where the lock is lost before the connection ends, `lost` with
/// the reason, as server-sent events, or, with `Accept: application/x-ndjson`, as lines of JSON. A comment, or the event
/// `heartbeat`, comes when nothing was said for 10 seconds or half the `ttl`.
#[utoipa::path(
    post, path = "/hold", tag = "locks",
    params(QueryKeyParam, HoldQuery, OptionalToken),
    responses(
        (status = 200, description = "The lock is yours, for as long as you stay. A token that holds the lock already goes on with the same `Fencing-Token`.",
         content((String = "text/event-stream", example = json!(EXAMPLE_STREAM)), (HoldEventView = "application/x-ndjson", example = json!(example_line()))),
         headers(("Lease-Token" = String, description = "The secret that renews and releases the lease."),
                 ("Fencing-Token" = u64, description = "Show it to what the lock protects."),
                 ("X-Accel-Buffering" = String, description = "`no`: a proxy is to pass events on as they come."))),
        HoldProblems,
    )
)]
pub(super) async fn hold_lock(
    State(app): State<AppState>,
    version: Version,
    peer: Option<Extension<Arc<Peer>>>,
    headers: HeaderMap,
    call: LockCall<HoldQuery>,
) -> Result<Response, Problem> {
    let LockCall { key, token, query, caller } = call;
    let connection = app.keep_connection(version, &caller, key_holds_too_many, too_many_holds)?;
    let permit = caller.hold(&app.limits.shares).ok_or_else(key_holds_too_many)?;
    let wait = wait_permit(&app, &caller, &key, token.as_ref(), query.wait)?;
    let ttl = query.ttl;
    let request = AcquireRequest {
        key: key.clone(),
        token,
        ttl,
        note: Note::new(query.owner),
        wait: query.wait,
        terms: Terms { max_hold: Some(query.max_hold), min_hold: query.min_hold },
        tenant: tenant_of(&app, &caller, wait.as_ref()),
    };
    let denied = {
        let (caller, key) = (caller.clone(), key.clone());
        async move {
            let _permit = permit;
            caller.until_denied(Right::Acquire, &key).await;
        }
    };
    let hold = match while_allowed(&caller, &key, app.service.hold(request, denied)).await?? {
        Holding::Held(hold) => hold,
        Holding::NotHeld(token, why) => return Err(not_taken(&token, why)),
        Holding::TooManyHolds => return Err(too_many_holds()),
    };
    let form = StreamForm::accepted(&headers);
    let (token, lease) = (hold.token.clone(), hold.lease.clone());
    // At the latest half the ttl after a peer has vanished something is written to it, and a third later it is given up.
    let tcp_timeout = peer.map(|Extension(peer)| peer.tcp_timeout.at_most(ttl.as_duration() / 3));
    let body = Body::new(HoldBody {
        hold,
        form,
        untold: Some((key, wait)),
        _connection: connection,
        _tcp_timeout: tcp_timeout,
    });
    Ok(answers::with_grant_headers(form.stream(body), &token, &lease))
}

fn key_holds_too_many() -> Problem {
    Problem::new(ProblemType::TooManyHolds, "as many connections of this API key hold a lock already as may")
}

fn too_many_holds() -> Problem {
    Problem::new(ProblemType::TooManyHolds, "as many connections hold a lock already as the server allows")
}

/// The answer to whoever holds a lock by it. Dropped with the connection, it ends the hold.
struct HoldBody {
    hold: Hold,
    form: StreamForm,
    /// The lock, until the client is told that it holds it; and its place in the line, if it waited.
    untold: Option<(LockKey, Option<WaitPermit>)>,
    _connection: ConnectionPlace,
    _tcp_timeout: Option<ShortTcpTimeout>,
}

impl HttpBody for HoldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some((key, wait)) = self.untold.take() {
            let event = match self.hold.delivered() {
                Some(lease) => {
                    if let Some(wait) = wait {
                        wait.used();
                    }
                    HoldEventView::granted(&key, &self.hold.token, &lease)
                }
                None => HoldEventView::happened(&HoldEvent::Lost(Loss::Expired), &self.hold.token),
            };
            return Poll::Ready(Some(Ok(Frame::data(self.form.write(event)))));
        }
        let event = self.hold.poll_event(context);
        event.map(|event| {
            let event: HoldEvent = event?;
            let event = HoldEventView::happened(&event, &self.hold.token);
            Some(Ok(Frame::data(self.form.write(event))))
        })
    }
}
