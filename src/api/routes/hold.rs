//! A lock that is held by the request itself, for as long as its connection lives.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::Version;
use axum::response::Response;
use http_body::Frame;

use super::several::{held, keys_of, permits_of};
use super::taking::{key_holds_too_many, not_taken, tenant_of, too_many_holds, wait_permit, while_allowed};
use crate::access::{Permit, Right, WaitPermit};
use crate::api::answers;
use crate::api::extract::{HoldQuery, LockCall};
use crate::api::openapi::{AcquireProblems, OptionalToken, QueryKeyParam};
use crate::api::problem::Problem;
use crate::api::state::{AppState, ConnectionPlace};
use crate::api::stream::StreamForm;
use crate::api::stream::hold_event::{EXAMPLE_STREAM, HoldEventView, example_line};
use crate::clock::boottime;
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
        AcquireProblems,
    )
)]
pub(super) async fn hold_lock(
    State(app): State<AppState>,
    version: Version,
    peer: Option<Extension<Arc<Peer>>>,
    form: StreamForm,
    call: LockCall<HoldQuery>,
) -> Result<Response, Problem> {
    let asked_at = boottime();
    let keys = keys_of(&call);
    let LockCall { key, token, query, caller, .. } = call;
    let connection = app.keep_connection(version, &caller, key_holds_too_many, too_many_holds)?;
    let permits = permits_of(&app, &caller, keys.len())?;
    let wait = wait_permit(&app, &caller, &keys, token.as_ref(), query.wait)?;
    let ttl = query.ttl;
    let request = AcquireRequest {
        key,
        token,
        ttl,
        note: Note::new(query.owner),
        wait: query.wait,
        terms: Terms { max_hold: Some(query.max_hold), min_hold: query.min_hold, slots: query.slots },
        tenant: tenant_of(&app, &caller, wait.as_ref()),
    };
    let denied = |(key, permit): (&LockKey, Permit)| {
        let (caller, key) = (caller.clone(), key.clone());
        async move {
            let _permit = permit;
            caller.until_denied(Right::Acquire, &key).await;
        }
    };
    let mut denials = keys.iter().zip(permits).map(denied);
    let holds = match (&keys[..], denials.next()) {
        ([_], Some(denied)) => {
            let mut holding = Box::pin(app.service.hold(request, denied));
            match while_allowed(&caller, Right::Acquire, &keys, holding.as_mut()).await?? {
                Holding::Held(hold) => vec![hold],
                Holding::NotHeld(token, why) => return Err(not_taken(&token, why)),
                Holding::TooManyHolds => return Err(too_many_holds()),
            }
        }
        (_, first) => {
            let denied = first.into_iter().chain(denials).map(|denied| Box::pin(denied) as _).collect();
            let mut holding = Box::pin(app.service.hold_several(request, &keys, denied));
            held(while_allowed(&caller, Right::Acquire, &keys, holding.as_mut()).await?)?
        }
    };
    // If a peer has vanished, something is sent to it after half the ttl at the latest. A third of the ttl later, the
    // connection is given up.
    let tcp_timeout = peer.map(|Extension(peer)| peer.tcp_timeout.at_most(ttl.as_duration() / 3));
    let shown = holds.first().map(|hold| (hold.token.clone(), hold.lease.clone()));
    let are_several = holds.len() > 1;
    let body = Body::new(HoldBody {
        holds,
        are_several,
        asked_at,
        form,
        is_untold: true,
        wait,
        _connection: connection,
        _tcp_timeout: tcp_timeout,
    });
    let response = form.stream(body);
    Ok(match shown {
        Some((token, _)) if are_several => answers::with_token(response, &token),
        Some((token, lease)) => answers::with_grant_headers(response, &token, &lease),
        None => response,
    })
}

/// The answer to a client that holds a lock by it, or several. When the connection drops it, the holds end.
struct HoldBody {
    /// Those of which something may still come.
    holds: Vec<Hold>,
    are_several: bool,
    /// As the time since boot, which counts while the machine sleeps.
    asked_at: Duration,
    form: StreamForm,
    is_untold: bool,
    /// The ticket, if it waited, until the client is told that it holds the lock.
    wait: Option<WaitPermit>,
    _connection: ConnectionPlace,
    _tcp_timeout: Option<ShortTcpTimeout>,
}

impl HoldBody {
    /// The first event.
    fn granted(&mut self) -> HoldEventView {
        let told: Vec<_> = self.holds.iter_mut().map(|hold| (hold.key.clone(), hold.delivered())).collect();
        let leases: Option<Vec<_>> = told.iter().map(|(key, lease)| Some((key, lease.clone()?))).collect();
        let Some(leases) = leases else {
            let over = told.iter().position(|(_, lease)| lease.is_none()).unwrap_or_default();
            let lost = self.event(over, &HoldEvent::Lost(Loss::Expired));
            self.holds.clear();
            return lost;
        };
        if let Some(wait) = self.wait.take() {
            wait.used();
        }
        let token = &self.holds[0].token;
        match &leases[..] {
            [(key, lease)] => HoldEventView::granted(key, token, lease),
            _ => HoldEventView::granted_several(&leases, token),
        }
    }

    fn event(&self, of: usize, event: &HoldEvent) -> HoldEventView {
        let hold = &self.holds[of];
        let view = HoldEventView::happened(event, &hold.token);
        if self.are_several { view.of_lock(&hold.key) } else { view }
    }

    /// The next event of any of the locks; `None` when no more comes.
    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<HoldEventView>> {
        let mut at = 0;
        while at < self.holds.len() {
            match self.holds[at].poll_event(context) {
                Poll::Pending => at += 1,
                // One of them breaks the silence for all.
                Poll::Ready(Some(HoldEvent::Heartbeat)) if at > 0 => {}
                Poll::Ready(Some(event)) => {
                    let view = self.event(at, &event);
                    // A client that has lost one has no use for the others. Where the gateway stops, each is left to the token.
                    if matches!(&event, HoldEvent::Lost(loss) if !matches!(loss, Loss::ShuttingDown(_))) {
                        self.holds.clear();
                    }
                    return Poll::Ready(Some(view));
                }
                Poll::Ready(None) => drop(self.holds.remove(at)),
            }
        }
        if self.holds.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl HttpBody for HoldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Before what is left of a lease is measured: a stall in between makes the sum of both shorter, and never longer.
        let age = boottime().saturating_sub(self.asked_at);
        let event = match mem::take(&mut self.is_untold) {
            true => Poll::Ready(Some(self.granted())),
            false => self.poll_any(context),
        };
        event.map(|event| Some(Ok(Frame::data(self.form.write(event?.asked(age))))))
    }
}
