//! The four operations on a lock: parse, ask the service, map the answer. Both forms of the address end here.

use std::future::ready;
use std::pin::pin;
use std::slice::from_ref;

use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::Either;

use super::several::acquire_several;
use super::taking::{
    account_of, acquire_request, key_waits_too_often, not_taken, too_many_waiters, wait_permit, while_allowed,
};
use crate::access::{Right, WaitPermit};
use crate::api::answers::{self, Grant, LockView, example_grant, example_lock};
use crate::api::context::RequestContext;
use crate::api::extract::{
    AcquireQuery, InspectQuery, LockCall, ReleaseQuery, RenewQuery, bad_parameter, caller,
};
use crate::api::headers::is_public;
use crate::api::middleware::{Delivery, track};
use crate::api::openapi::{
    AcquireProblems, InspectProblems, KeyParam, OptionalToken, ReleaseProblems, RenewProblems, RequiredToken,
    TokenUnlessForced,
};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::audit::Event;
use crate::lock::{Broken, FencingToken, Inspected, Lease, LockKey, Released, Renewed};
use crate::service::{GrantGuard, Outcome};
use crate::store::{Renewer, StoreError};

/// Take a lock
///
/// Takes the lock for `ttl`, or says who holds it. With `wait`, the request waits for its turn: first come, first served.
/// Choose a fresh token for every acquisition and send it in `Lease-Token`. Then you can repeat the request safely: the same
/// token gets the same grant, and keeps its ticket for a while when `wait` is over.
#[utoipa::path(
    put, path = "/locks/{key}", tag = "locks",
    params(KeyParam, AcquireQuery, OptionalToken),
    responses(
        (status = 201, description = "The lock is yours. `Fencing-Token` is larger than that of every earlier grant of this lock.", body = Grant,
         headers(("Lease-Token" = String, description = "The secret that renews and releases the lease. Keep it for `PATCH` and `DELETE`."),
                 ("Fencing-Token" = u64, description = "The number of the grant. Send it with every write to what the lock protects."),
                 ("Slot" = u16, description = "The slot of the grant, if there is one: your place among those who hold the lock.")), example = json!(example_grant())),
        (status = 200, description = "This token holds the lock already: it is the same grant, and its lease lasts for `ttl` from now, or longer if more was left.", body = Grant,
         headers(("Lease-Token" = String, description = "The secret that renews and releases the lease. Keep it for `PATCH` and `DELETE`."),
                 ("Fencing-Token" = u64, description = "The number of the grant. Send it with every write to what the lock protects."),
                 ("Slot" = u16, description = "The slot of the grant, if there is one: your place among those who hold the lock.")), example = json!(example_grant())),
        AcquireProblems,
    )
)]
pub(super) fn acquire_lock(
    State(app): State<AppState>,
    version: Version,
    call: LockCall<AcquireQuery>,
) -> impl Future<Output = Result<Response, Problem>> + Send {
    if !call.others.is_empty() {
        return Either::Left(acquire_several(app, version, call).boxed());
    }
    match acquire_one(app, version, call) {
        Ok(answer) => Either::Right(answer),
        Err(problem) => Either::Left(ready(Err(problem)).boxed()),
    }
}

/// What a future borrows of what it owns takes room once, and what it moves takes it twice. So all but the waiting is done before.
fn acquire_one(
    app: AppState,
    version: Version,
    call: LockCall<AcquireQuery>,
) -> Result<impl Future<Output = Result<Response, Problem>> + Send, Problem> {
    let LockCall { key, token, query, caller, .. } = call;
    let keep = || app.keep_connection(version, &caller, key_waits_too_often, too_many_waiters);
    let connection = (!query.wait.is_zero()).then(keep).transpose()?;
    let wait = wait_permit(&app, &caller, from_ref(&key), token.as_ref(), query.wait)?;
    let request = Box::new(acquire_request(&app, &caller, &key, token, query, wait.as_ref()));
    Ok(async move {
        let _kept = &connection;
        let acquisition = {
            let acquire = pin!(app.service.acquire(request));
            match &wait {
                Some(_) => while_allowed(&caller, Right::Acquire, from_ref(&key), acquire).await??,
                None => acquire.await?,
            }
        };
        let token = &acquisition.token;
        match acquisition.outcome {
            Outcome::Granted(lease, guard, ..) => {
                let answer = answers::grant(StatusCode::CREATED, &key, token, &lease);
                Ok(match wait {
                    Some(wait) => track(answer, Waited { guard, wait }),
                    None => track(answer, guard),
                })
            }
            Outcome::AlreadyHeld(lease, ..) => {
                if let Some(wait) = wait {
                    wait.used();
                }
                Ok(answers::grant(StatusCode::OK, &key, token, &lease))
            }
            Outcome::NotTaken(why) => Err(not_taken(token, why)),
        }
    })
}

/// A grant that uses up a ticket, until it is handed to the client.
struct Waited {
    guard: GrantGuard,
    wait: WaitPermit,
}

impl Delivery for Waited {
    fn delivered(self) {
        self.guard.disarm();
        self.wait.used();
    }
}

/// Renew a lease
///
/// Makes the lease last for `ttl` from now, unless more is left of it, and at most until `max_hold` ends. A lease that has
/// ended cannot be renewed.
#[utoipa::path(
    patch, path = "/locks/{key}", tag = "locks",
    params(KeyParam, RenewQuery, RequiredToken),
    responses(
        (status = 200, description = "The lock is still yours, for `ttl_ms` from now.", body = Grant,
         headers(("Lease-Token" = String, description = "The secret that renews and releases the lease. Keep it for `PATCH` and `DELETE`."),
                 ("Fencing-Token" = u64, description = "The number of the grant, unchanged."),
                 ("Slot" = u16, description = "The slot of the grant, if there is one: your place among those who hold the lock.")), example = json!(example_grant())),
        RenewProblems,
    )
)]
pub(super) async fn renew_lock(
    State(app): State<AppState>,
    call: LockCall<RenewQuery>,
) -> Result<Response, Problem> {
    app.see_through(account_of(&app, &call.caller), renew(app.clone(), call)).await
}

async fn renew(app: AppState, call: LockCall<RenewQuery>) -> Result<Response, Problem> {
    let token = call.required_token()?;
    let account = account_of(&app, &call.caller);
    match app.service.renew(&call.key, token, call.query.ttl, Renewer::Token, account.as_ref()).await? {
        Renewed::Renewed(lease) => Ok(answers::grant(StatusCode::OK, &call.key, token, &lease)),
        Renewed::NotHeld => Err(not_held(
            "no client holds the lock: the lease has ended, or an operator broke the lock, and a renewal does not bring it back",
        )),
        Renewed::Released => Err(Problem::new(
            ProblemType::TokenReleased,
            "this token has released the lock; min_hold keeps it taken, and no client holds it",
        )),
        Renewed::MaxHoldReached(lease) => Err(Problem::max_hold_reached(&lease)),
        // Only the renewals of a connection end like this.
        Renewed::HeldByAnother | Renewed::TakenOver => Err(held_by_another()),
    }
}

/// Release a lock
///
/// Releases the lock if the token holds it, or gives up the token's ticket. A token that you chose takes no lock from then on,
/// whatever the answer is, and for 2 minutes the same request gets the same answer. With a token that the gateway made, a second request
/// is 404 or 409. If `min_hold` is not over, the lock stays taken until then, and has no holder.
///
/// With `force=true` and no token, the lock is broken: its holder loses it at once, `min_hold` ends too, and the first client
/// of the wait queue is next. Always send `fencing_token`. Without it, a repeated request may break the next holder's lock.
/// The former holder may still be at work. Only a resource that compares fencing tokens refuses its writes.
#[utoipa::path(
    delete, path = "/locks/{key}", tag = "locks",
    params(KeyParam, ReleaseQuery, TokenUnlessForced),
    responses(
        (status = 204, description = "The token held the lock or had a ticket, and has neither now. With `force`: the grant has ended."),
        ReleaseProblems,
    )
)]
pub(super) async fn release_lock(
    State(app): State<AppState>,
    Extension(context): Extension<RequestContext>,
    call: LockCall<ReleaseQuery>,
) -> Result<Response, Problem> {
    if call.query.force {
        if call.token.is_some() {
            let detail = "send either Lease-Token, to release your own lock, or force=true, to break another's: not both";
            return Err(bad_parameter("force", detail));
        }
        break_lock(&app, &context, call.key, call.query.fencing_token).await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    app.see_through(account_of(&app, &call.caller), release(app.clone(), call)).await
}

async fn release(app: AppState, call: LockCall<ReleaseQuery>) -> Result<Response, Problem> {
    let token = call.required_token()?;
    let released = app.service.release(&call.key, token).await?;
    if let Some(left) = call.caller.left_tickets(from_ref(&call.key), Some(token)) {
        left.used();
    }
    was_released(released)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// That a release has ended what its token had.
fn was_released(released: Released) -> Result<(), Problem> {
    match released {
        Released::Released => Ok(()),
        Released::NotHeld => {
            Err(not_held("no client holds the lock: its lease has ended, or this token never had one"))
        }
        Released::HeldByAnother => Err(held_by_another()),
    }
}

/// Breaks a lock, and says so in the audit log.
pub(super) async fn break_lock(
    app: &AppState,
    context: &RequestContext,
    key: LockKey,
    number: Option<FencingToken>,
) -> Result<(), Problem> {
    let (state, who, right) = (app.clone(), context.who(), context.right().map(Right::name));
    // The audit log has this even if the client has left meanwhile.
    let breaking = async move {
        let (broken, seen) = state.service.break_lock(&key, number).await;
        let (lease, outcome) = match &broken {
            Ok(Broken::Broken(lease)) => (Some(lease), "broken"),
            Err(StoreError::Unknown(_)) => (seen.as_ref(), "unknown"),
            _ => return broken,
        };
        let fencing_token = lease.map(|lease| lease.fencing_token).or(number).map(FencingToken::get);
        let owner = lease.and_then(Lease::owner).filter(|owner| is_public(owner, None)).map(str::to_owned);
        let lock = Some(key.as_str()).filter(|key| is_public(key, None)).map(str::to_owned);
        state.audit.record(Event::Break { who, right, lock, record: None, fencing_token, owner, outcome });
        broken
    };
    match app.see_through(account_of(app, caller(context)?), breaking).await? {
        Broken::Broken(_) => Ok(()),
        Broken::NotHeld => Err(not_held("no client holds the lock: nothing was broken")),
        Broken::HeldBySeveral => {
            let detail =
                "the lock is held by slots: say in fencing_token whose grant to end, nothing was broken";
            Err(Problem::new(ProblemType::HeldBySeveral, detail))
        }
        Broken::HeldByAnother => {
            let detail = "the grant of this fencing token is over, and another grant holds the lock: nothing was broken";
            Err(Problem::new(ProblemType::HeldByAnother, detail))
        }
    }
}

/// Look at a lock
///
/// Says who holds the lock, and how many requests wait for it. If you send a `Lease-Token`, the answer also says whether that
/// token holds it.
///
/// With `fencing_token`, it says whether that grant holds the lock: 204 if it does, and 403 if not. A proxy can ask so before it
/// passes a request on.
#[utoipa::path(
    get, path = "/locks/{key}", tag = "locks",
    params(KeyParam, InspectQuery, OptionalToken),
    responses(
        (status = 200, description = "The lock is held, or `min_hold` keeps it taken.", body = LockView,
         headers(("Fencing-Token" = u64, description = "The number of the grant.")), example = json!(example_lock())),
        (status = 204, description = "The grant with this `fencing_token` holds the lock."),
        InspectProblems,
    )
)]
pub(super) async fn get_lock(
    State(app): State<AppState>,
    method: Method,
    call: LockCall<InspectQuery>,
) -> Result<Response, Problem> {
    if let Some(number) = call.query.fencing_token {
        return check_grant(&app, &call.key, number).await;
    }
    // To tell a token that it holds the lock is a promise. The answer to HEAD has no place for one.
    let token = call.token.as_ref().filter(|_| method != Method::HEAD);
    match app.service.inspect(&call.key, token).await? {
        Inspected::Held { lease, yours, sharing, waiters } => {
            Ok(answers::lock(&call.key, &lease, waiters, yours, sharing, call.query.holders))
        }
        Inspected::Free { waiters } => Err(not_held("no client holds the lock").with_waiters(waiters)),
    }
}

/// Whether a grant holds the lock. A lease token that the request has is its client's, and not for this.
async fn check_grant(app: &AppState, key: &LockKey, number: FencingToken) -> Result<Response, Problem> {
    let over = |detail| Err(Problem::new(ProblemType::GrantOver, detail));
    match app.service.inspect(key, None).await? {
        Inspected::Held { sharing: Some(_), .. } => {
            let detail =
                "the lock is held by slots: this can be asked of a lock only that one client holds alone";
            Err(Problem::new(ProblemType::HeldBySeveral, detail))
        }
        Inspected::Held { lease, .. } if lease.fencing_token != number => {
            over("another grant holds the lock")
        }
        Inspected::Held { lease, .. } if lease.is_released => {
            over("the grant was released, and min_hold keeps the lock taken")
        }
        Inspected::Held { .. } => Ok(StatusCode::NO_CONTENT.into_response()),
        Inspected::Free { .. } => over("no client holds the lock"),
    }
}

fn not_held(detail: &str) -> Problem {
    Problem::new(ProblemType::NotHeld, detail)
}

fn held_by_another() -> Problem {
    let detail = "your token does not hold the lock: another token holds it, or held it until now and min_hold keeps it taken";
    Problem::new(ProblemType::HeldByAnother, detail)
}
