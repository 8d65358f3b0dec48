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
/// Holds the lock for as long as the connection lives. The gateway renews the lease at each third of `ttl`, and releases the
/// lock when the connection closes. The answer begins when the lock is granted; refusals are those of `PUT`.
///
/// The stream has the events `granted`, `renewed`, and `lost` with a reason if you lose the lock while the connection lives.
/// They are server-sent events, or lines of JSON with `Accept: application/x-ndjson`. After a silence of 10 seconds or half
/// the `ttl`, a comment comes, or the event `heartbeat`.
#[utoipa::path(
    post, path = "/hold", tag = "locks",
    params(QueryKeyParam, HoldQuery, OptionalToken),
    responses(
        (status = 200, description = "The lock is yours for as long as the connection lives. A token that holds the lock already keeps its `Fencing-Token`.",
         content((String = "text/event-stream", example = json!(EXAMPLE_STREAM)), (HoldEventView = "application/x-ndjson", example = json!(example_line()))),
         headers(("Lease-Token" = String, description = "The secret that renews and releases the lease, should the connection end."),
                 ("Fencing-Token" = u64, description = "The number of the grant. Send it with every write to what the lock protects."),
                 ("Slot" = u16, description = "The slot of the grant, if there is one: your place among those who hold the lock."),
                 ("X-Accel-Buffering" = String, description = "`no`: proxies should pass events on at once."))),
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
        terms: Terms { max_hold: Some(query.max_hold), min_hold: query.min_hold, slots: query.slots },
        tenant: tenant_of(&app, &caller, wait.as_ref()),
    };
    let denied = {
        let (caller, key) = (caller.clone(), key.clone());
        async move {
            let _permit = permit;
            caller.until_denied(Right::Acquire, &key).await;
        }
    };
    let hold = match while_allowed(&caller, Right::Acquire, &key, app.service.hold(request, denied)).await?? {
        Holding::Held(hold) => hold,
        Holding::NotHeld(token, why) => return Err(not_taken(&token, why)),
        Holding::TooManyHolds => return Err(too_many_holds()),
    };
    let form = StreamForm::accepted(&headers);
    let (token, lease) = (hold.token.clone(), hold.lease.clone());
    // If a peer has vanished, something is sent to it after half the ttl at the latest. A third of the ttl later, the
    // connection is given up.
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
    Problem::new(
        ProblemType::TooManyHolds,
        "this API key has too many holds open already: close one, or try again later",
    )
}

fn too_many_holds() -> Problem {
    Problem::new(ProblemType::TooManyHolds, "this gateway has too many holds open already: try again later")
}

/// The answer to a client that holds a lock by it. When the connection drops it, the hold ends.
struct HoldBody {
    hold: Hold,
    form: StreamForm,
    /// The lock, until the client is told that it holds it, and the ticket if it waited.
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
