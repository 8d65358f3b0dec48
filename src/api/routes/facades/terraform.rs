//! The locks of Terraform's and OpenTofu's `http` backend: `LOCK` and `UNLOCK` with the tool's description of a lock.
//!
//! The tool never renews. Its `ID` names a run, and is shown to all that are refused: so it is no secret, and who may lock may
//! unlock with it. A body that is empty forces the lock open, as the tool does where it knows no `ID`.

use axum::extract::{Request, State};
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::steps::{AskedLock, Taken, from_json, in_doubt, take};
use crate::access::Right;
use crate::api::answers::{self, JSON};
use crate::api::context::RequestContext;
use crate::api::extract::{
    LockCall, TerraformQuery, bad_parameter, context_of, read_small_body, refuse_secret,
};
use crate::api::middleware::track;
use crate::api::problem::{Problem, ProblemType};
use crate::api::routes::locks::break_lock;
use crate::api::routes::taking::account_of;
use crate::api::state::AppState;
use crate::lock::{
    FencingToken, Hex, Inspected, Lease, LeaseToken, LockKey, Owner, Refusal, Released, Slots, for_people,
};

/// The longest `ID` and `Operation`, in bytes. The tool sends 36 and about 20.
const LONGEST_ID: usize = 64;
const LONGEST_OPERATION: usize = 40;
/// Stands before the `ID` in the owner of a run's lock, and tells it from the owners that other clients choose.
const ID_MARK: &str = "ID=";

/// What the tool says of a lock, and is told of one that another run holds.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct LockInfo {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    who: String,
    #[serde(default)]
    info: String,
    #[serde(default)]
    path: String,
}

impl LockInfo {
    fn parse(body: &[u8]) -> Result<Self, Problem> {
        let info: Self = from_json(body)?;
        let is_id =
            (1..=LONGEST_ID).contains(&info.id.len()) && info.id.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_id {
            let detail = format!("the ID must have 1 to {LONGEST_ID} letters, digits and signs");
            return Err(bad_parameter("body", detail));
        }
        Ok(info)
    }

    fn token(&self) -> Result<LeaseToken, Problem> {
        let token = format!("tf-{}", Hex(&Sha256::digest(&self.id)));
        LeaseToken::parse(token.as_bytes()).map_err(|error| bad_parameter("body", error.to_string()))
    }

    /// `Who`, `Operation` and `ID`, for people and to be read again. What is too long is cut.
    fn owner(&self) -> Result<Owner, Problem> {
        for text in [&self.who, &self.operation, &self.id] {
            refuse_secret("body", text.as_bytes(), None)?;
        }
        let shown = |text: &str| text.replace(|c: char| c.is_control() || c.is_whitespace(), "-");
        let operation = cut(shown(&self.operation), LONGEST_OPERATION);
        let operation = if operation.is_empty() { "-" } else { &operation };
        let rest = format!(" {operation} {ID_MARK}{}", self.id);
        let who = cut(shown(&self.who), Owner::MAX_BYTES - rest.len());
        let owner = Owner::parse(format!("{}{rest}", if who.is_empty() { "-" } else { &who }).as_bytes());
        owner.ok().flatten().ok_or_else(|| bad_parameter("body", "the lock cannot be described"))
    }

    /// What is known of the holder.
    fn of(lease: &Lease, key: &LockKey) -> Self {
        let owner = lease.owner().unwrap_or_default();
        let of_run = || {
            let (rest, id) = owner.rsplit_once(' ')?;
            let (who, operation) = rest.rsplit_once(' ')?;
            Some((id.strip_prefix(ID_MARK)?, operation, who))
        };
        // Without an ID, newer versions of the tool do not ask again.
        let number = lease.fencing_token.get().to_string();
        let (id, operation, who) = of_run().unwrap_or((&number, "", owner));
        let left = for_people(lease.left_ms);
        let info = match (lease.is_released, lease.slot) {
            // Of several who share the lock, this is the one that ends first.
            (true, Some(_)) => format!("it was released, and min_hold keeps its slot taken for {left} more"),
            (true, None) => format!("it was released, and min_hold keeps the lock taken for {left} more"),
            (false, _) => format!("its lease ends in {left}, unless it is unlocked before"),
        };
        Self {
            id: id.to_owned(),
            operation: operation.to_owned(),
            who: who.to_owned(),
            info,
            ..Self::at(key)
        }
    }

    fn of_refusal(refusal: &Refusal, key: &LockKey) -> Self {
        let unknown = "it is not known who holds the lock, or it is promised to a client that waits";
        let of = |lease: &Lease| Self::of(lease, key);
        let unknown = || Self { id: "unknown".to_owned(), info: unknown.to_owned(), ..Self::at(key) };
        refusal.holder.as_ref().map_or_else(unknown, of)
    }

    /// Nothing but which lock it is.
    fn at(key: &LockKey) -> Self {
        Self { path: key.as_str().to_owned(), ..Self::default() }
    }
}

fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

/// What the tool asks for by its method, and by any of those that its settings may name.
pub(super) async fn lock_or_unlock(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, Problem> {
    let locks = match request.method().as_str() {
        "LOCK" | "PUT" | "POST" => true,
        "UNLOCK" | "DELETE" => false,
        _ => {
            let detail = "a lock takes LOCK, for which PUT and POST stand too, and UNLOCK, for which DELETE does: keep the state itself elsewhere";
            let mut response = Problem::new(ProblemType::MethodNotAllowed, detail).into_response();
            let allowed = HeaderValue::from_static("LOCK, UNLOCK, PUT, POST, DELETE");
            response.headers_mut().insert(ALLOW, allowed);
            return Ok(response);
        }
    };
    let (mut parts, body) = request.into_parts();
    let call = LockCall::<TerraformQuery>::permitted(&parts, &app)?;
    let body = read_small_body(&mut parts, body, &app).await?;
    if locks {
        let info = LockInfo::parse(&body)?;
        // Its room is given back.
        drop(body);
        return lock(&app, call, &info).await;
    }
    let (context, _) = context_of(&parts)?;
    if body.is_empty() {
        match force(&app, context, &call, None).await {
            // It is open, which is what was asked for.
            Err(problem) if problem.kind() == ProblemType::NotHeld => {}
            forced => forced?,
        }
        return Ok(StatusCode::OK.into_response());
    }
    let info = LockInfo::parse(&body)?;
    if info.who.is_empty() && info.operation.is_empty() {
        force_by_id(&app, context, &call, &info).await?;
    } else {
        let mut released = release(&app, &call, info.token()?).await?;
        // One that is sent again is told what the first one was told, and the lock may have been taken or released since.
        if released != Released::Released
            && let Ok(now) = app.service.inspect(&call.key, None).await
        {
            released = match now {
                Inspected::Held { .. } => Released::HeldByAnother,
                Inspected::Free { .. } => Released::NotHeld,
            };
        }
        has_unlocked(released)?;
    }
    Ok(StatusCode::OK.into_response())
}

/// Forces the lock open, as an operator does.
async fn force(
    app: &AppState,
    context: &RequestContext,
    call: &LockCall<TerraformQuery>,
    number: Option<FencingToken>,
) -> Result<(), Problem> {
    context.needs_further(Right::Admin);
    call.caller.check(Right::Admin, &call.key)?;
    break_lock(app, context, call.key.clone(), number).await
}

/// Releases what a run has. Its `ID` takes nothing from then on.
async fn release(
    app: &AppState,
    call: &LockCall<TerraformQuery>,
    token: LeaseToken,
) -> Result<Released, Problem> {
    let (state, key) = (app.clone(), call.key.clone());
    let releasing = async move { state.service.release(&key, &token).await };
    Ok(app.see_through(account_of(app, &call.caller), releasing).await?)
}

/// A person says the `ID`, and nothing else. The run that it names is not to be told that it has unlocked: it may be at work. So
/// the lock is broken, and released when the run does not hold it: a late copy of its `LOCK` takes nothing.
async fn force_by_id(
    app: &AppState,
    context: &RequestContext,
    call: &LockCall<TerraformQuery>,
    info: &LockInfo,
) -> Result<(), Problem> {
    let token = info.token()?;
    match app.service.inspect(&call.key, Some(&token)).await? {
        Inspected::Held { lease, yours: Some(true), .. } => {
            break_lock(app, context, call.key.clone(), Some(lease.fencing_token)).await?;
            release(app, call, token).await.map(drop).map_err(in_doubt)
        }
        // As the ID of a client that has none, it is told the number of its grant.
        Inspected::Held { lease, .. } if lease.fencing_token.get().to_string() == info.id => {
            force(app, context, call, Some(lease.fencing_token)).await
        }
        // The ID may be that of a run that waits.
        Inspected::Held { .. } => has_unlocked(Released::HeldByAnother),
        Inspected::Free { .. } => has_unlocked(release(app, call, token).await?),
    }
}

/// That an `UNLOCK` has ended what its `ID` had.
fn has_unlocked(released: Released) -> Result<(), Problem> {
    let (kind, detail) = match released {
        Released::Released => return Ok(()),
        Released::NotHeld => {
            (ProblemType::NotHeld, "no client holds the lock: its lease has ended, or this ID never had it")
        }
        Released::HeldByAnother => (
            ProblemType::HeldByAnother,
            "this ID does not hold the lock: a run with another ID holds it, or another kind of client, or min_hold keeps it taken",
        ),
    };
    Err(Problem::new(kind, detail))
}

async fn lock(app: &AppState, call: LockCall<TerraformQuery>, info: &LockInfo) -> Result<Response, Problem> {
    let (key, owner, token) = (&call.key, info.owner()?, info.token()?);
    let wanted = AskedLock { key, token, owner, ttl: call.query.ttl?, slots: Slots::ONE };
    let answer = || answers::json(StatusCode::OK, JSON, info);
    match take(app, &call.caller, wanted).await? {
        Taken::Granted(guard) => Ok(track(answer(), guard)),
        Taken::AlreadyHeld => Ok(answer()),
        Taken::HeldOtherwise(_) => {
            let detail = "this ID holds the lock already, beside others";
            Err(Problem::new(ProblemType::HeldOtherwise, detail))
        }
        Taken::Refused(refusal) => {
            let holder = LockInfo::of_refusal(&refusal, key);
            Ok(Problem::lock_held(&refusal).in_form(&holder))
        }
        Taken::Over(problem) => {
            let why = "this ID was unlocked before: begin a new run".to_owned();
            let over = LockInfo { id: info.id.clone(), info: why, ..LockInfo::at(key) };
            Ok(problem.in_form(&over))
        }
    }
}
