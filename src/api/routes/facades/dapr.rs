//! The locks of Dapr, as its SDKs ask for them by HTTP.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::owners::{Found, NamedGrant, NamedOwner};
use super::steps::{AskedLock, Taken, permitted, said_in_body, take};
use crate::access::Caller;
use crate::api::answers::{self, JSON};
use crate::api::extract::{bad_parameter, key_of, refuse_secret};
use crate::api::middleware::track;
use crate::api::problem::{Problem, ProblemType};
use crate::api::routes::taking::account_of;
use crate::api::state::AppState;
use crate::lock::{LockKey, Released, Slots, Ttl};

const TOOL: &str = "dapr";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    resource_id: String,
    lock_owner: String,
    /// Only a lock has it.
    #[serde(default)]
    expiry_in_seconds: u32,
}

/// An error, as the protocol has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    error_code: &'a str,
    message: &'a str,
}

/// What an unlock is told.
#[derive(Clone, Copy)]
enum Unlocked {
    Released = 0,
    DoesNotExist = 1,
    BelongsToOthers = 2,
}

/// A lock of a store, and who asks for it.
struct Call {
    key: LockKey,
    body: Body,
    caller: Caller,
}

impl Call {
    async fn of(app: &AppState, request: Request) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let store = store_of(&parts).map(str::to_owned);
        let body: Body = said_in_body(&mut parts, body, app).await?;
        NamedOwner::check("lockOwner", &body.lock_owner)?;
        if body.resource_id.is_empty() {
            return Err(bad_parameter("resourceId", "the resourceId is empty"));
        }
        let key = key_of(format!("{TOOL}:{}:{}", store?, body.resource_id).as_bytes())?;
        refuse_secret("key", key.as_str().as_bytes(), None)?;
        let caller = permitted(&parts, &key)?;
        Ok(Self { key, body, caller })
    }

    fn owner(&self) -> NamedOwner<'_> {
        NamedOwner { tool: TOOL, key: &self.key, name: &self.body.lock_owner }
    }
}

/// The name of the store, which stands in the key in front of the resource.
fn store_of(parts: &Parts) -> Result<&str, Problem> {
    let name = parts.uri.path().rsplit('/').next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = !name.is_empty() && name.bytes().all(is_plain);
    is_name.then_some(name).ok_or_else(|| bad_parameter("store", "a store's name has A-Z a-z 0-9 . _ -"))
}

/// What SDKs ask when they start. It needs no key: an SDK that is refused here takes the gateway for one that is down.
pub(super) async fn metadata() -> Response {
    let about = json!({ "id": "fencepost", "runtimeVersion": env!("CARGO_PKG_VERSION"), "components": [], "extended": {} });
    answers::json(StatusCode::OK, JSON, &about)
}

/// Takes a lock, if it is free. As in Dapr's own stores, a second lock by its holder is refused too.
pub(super) async fn try_lock(State(app): State<AppState>, request: Request) -> Response {
    lock(&app, request).await.unwrap_or_else(|problem| failed(problem, "ERR_TRY_LOCK"))
}

async fn lock(app: &AppState, request: Request) -> Result<Response, Problem> {
    let call = Call::of(app, request).await?;
    let limits = app.limits.lowered_to(call.caller.max_ttl());
    let ttl_s = u64::from(call.body.expiry_in_seconds);
    let ttl = Ttl::from_ms(ttl_s * 1000).filter(|ttl| ttl.as_duration() <= limits.max_ttl);
    let ttl = ttl.filter(|ttl| ttl.as_duration() >= limits.min_ttl).ok_or_else(|| {
        let (least_s, most_s) = (limits.min_ttl.as_millis().div_ceil(1000).max(1), limits.max_ttl.as_secs());
        let detail = format!("expiryInSeconds must be a whole number from {least_s} to {most_s}");
        bad_parameter("expiryInSeconds", detail)
    })?;
    let bad_owner = || bad_parameter("lockOwner", "this lockOwner cannot be shown");
    let NamedGrant { owner, token } = call.owner().next().ok_or_else(bad_owner)?;
    let wanted = AskedLock { key: &call.key, token, owner, ttl, slots: Slots::ONE };
    let answer = |success: bool| answers::json(StatusCode::OK, JSON, &json!({ "success": success }));
    match take(app, &call.caller, wanted).await? {
        Taken::Granted(guard) => Ok(track(answer(true), guard)),
        Taken::AlreadyHeld => Ok(answer(true)),
        Taken::Refused(_) | Taken::HeldOtherwise(_) => Ok(counted_as(ProblemType::LockHeld, answer(false))),
        Taken::Over(problem) => Err(problem),
    }
}

/// Releases a lock of this owner.
pub(super) async fn unlock(State(app): State<AppState>, request: Request) -> Response {
    let released = match Call::of(&app, request).await {
        Ok(call) => app.see_through(account_of(&app, &call.caller), release(app.clone(), call)).await,
        Err(problem) => Err(problem),
    };
    released.unwrap_or_else(|problem| failed(problem, "ERR_UNLOCK"))
}

async fn release(app: AppState, call: Call) -> Result<Response, Problem> {
    let owner = call.owner();
    let unlocked = match owner.find(&app).await? {
        Found::Free => Unlocked::DoesNotExist,
        Found::OfOthers => Unlocked::BelongsToOthers,
        Found::Own(grants) => match owner.release(&app, &grants).await? {
            Released::Released => Unlocked::Released,
            Released::NotHeld => Unlocked::DoesNotExist,
            Released::HeldByAnother => Unlocked::BelongsToOthers,
        },
    };
    let answer = answers::json(StatusCode::OK, JSON, &json!({ "status": unlocked as u8 }));
    Ok(match unlocked {
        Unlocked::Released => answer,
        Unlocked::DoesNotExist => counted_as(ProblemType::NotHeld, answer),
        Unlocked::BelongsToOthers => counted_as(ProblemType::HeldByAnother, answer),
    })
}

/// Has the log and the metrics call a refusal one, whose status is 200 in this protocol.
fn counted_as(kind: ProblemType, mut answer: Response) -> Response {
    answer.extensions_mut().insert(kind);
    answer
}

fn failed(problem: Problem, code: &str) -> Response {
    let is_malformed = problem.kind().status() == StatusCode::BAD_REQUEST;
    let error_code = if is_malformed { "ERR_MALFORMED_REQUEST" } else { code };
    let message = problem.detail().to_owned();
    problem.in_form(&Failure { error_code, message: &message })
}
