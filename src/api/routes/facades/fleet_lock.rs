//! FleetLock, by which machines ask whether they may reboot: a lock by slots for each group of machines.
//!
//! A machine asks again until it may, asks anew after its reboot, and says at each start that it runs: so a grant is found by the
//! name of its machine, and that it runs uses nothing up.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::owners::{Found, NamedOwner};
use super::steps::{AskedLock, Taken, from_json, permitted, take};
use crate::access::Caller;
use crate::api::extract::{bad_parameter, key_of, read_small_body};
use crate::api::middleware::track;
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::{AppState, NEVER_RENEWED_TTL};
use crate::lock::{LockKey, Slots, Ttl};

const TOOL: &str = "fleet-lock";
/// The header that tells such a request from any other.
const PROTOCOL: &str = "fleet-lock-protocol";

#[derive(Deserialize)]
struct Body {
    client_params: ClientParams,
}

#[derive(Deserialize)]
struct ClientParams {
    id: String,
    group: String,
}

/// An error, as the protocol has it.
#[derive(Serialize)]
struct Failure<'a> {
    kind: &'a str,
    value: &'a str,
}

/// A machine that asks, and the lock of its group.
struct Machine {
    id: String,
    key: LockKey,
    slots: Slots,
    caller: Caller,
}

impl Machine {
    async fn of(app: &AppState, request: Request) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if parts.headers.get(PROTOCOL).is_none_or(|value| value != "true") {
            return Err(bad_parameter(PROTOCOL, "send the header fleet-lock-protocol: true"));
        }
        let ClientParams { id, group } =
            from_json::<Body>(&read_small_body(&parts, body).await?)?.client_params;
        let known = app.facades.fleet_lock.iter().find(|known| known.name == group);
        let known = known.ok_or_else(|| {
            bad_parameter(
                "group",
                format!("the gateway has no group {group:?}: its setting --fleet-lock names them"),
            )
        })?;
        if id.is_empty() || id.len() > NamedOwner::MAX_BYTES || id.chars().any(char::is_control) {
            let most = NamedOwner::MAX_BYTES;
            return Err(bad_parameter(
                "id",
                format!("an id has 1 to {most} bytes without control characters"),
            ));
        }
        let key = key_of(format!("{TOOL}:{group}").as_bytes())?;
        Ok(Self { id, slots: known.slots, caller: allowed(&parts, app, &key)?, key })
    }

    fn owner(&self) -> NamedOwner<'_> {
        NamedOwner { tool: TOOL, key: &self.key, name: &self.id }
    }
}

fn allowed(parts: &Parts, app: &AppState, key: &LockKey) -> Result<Caller, Problem> {
    let caller = permitted(parts, key)?;
    if app.limits.lowered_to(caller.max_ttl()).max_ttl < NEVER_RENEWED_TTL {
        return Err(bad_parameter("ttl", "a reboot needs a lease of 24h, and this API key allows none"));
    }
    Ok(caller)
}

/// A machine asks whether it may reboot.
pub(super) async fn pre_reboot(State(app): State<AppState>, request: Request) -> Response {
    may_reboot(&app, request).await.unwrap_or_else(|problem| failed(problem, "failed_lock"))
}

async fn may_reboot(app: &AppState, request: Request) -> Result<Response, Problem> {
    let machine = Machine::of(app, request).await?;
    let owner = machine.owner();
    let ttl_ms = u64::try_from(NEVER_RENEWED_TTL.as_millis()).unwrap_or(u64::MAX);
    let ttl = Ttl::from_ms(ttl_ms).unwrap_or(Ttl::SHORTEST);
    let found = match owner.find(app).await? {
        Found::Own(grants) => grants,
        Found::OfOthers | Found::Free => Vec::new(),
    };
    // What was found may have ended since. Else to take it again confirms it, and nothing rolls it back.
    for (owner, token) in found.into_iter().chain(owner.next()) {
        let wanted = AskedLock { key: &machine.key, token, owner, ttl, slots: machine.slots };
        let taken = match take(app, &machine.caller, wanted.clone()).await? {
            // The group had more slots when it was granted.
            Taken::HeldOtherwise(slots) => take(app, &machine.caller, AskedLock { slots, ..wanted }).await?,
            taken => taken,
        };
        match taken {
            Taken::Granted(guard) => return Ok(track(StatusCode::OK.into_response(), guard)),
            Taken::AlreadyHeld => return Ok(StatusCode::OK.into_response()),
            Taken::Over(_) | Taken::HeldOtherwise(_) => {}
            Taken::Refused(refusal) => return Err(Problem::lock_held(&refusal)),
        }
    }
    Err(Problem::new(ProblemType::OutcomeUnknown, "the lock changed hands meanwhile: ask again"))
}

/// A machine says that it runs: what it had is free.
pub(super) async fn steady_state(State(app): State<AppState>, request: Request) -> Response {
    runs(&app, request).await.unwrap_or_else(|problem| failed(problem, "failed_unlock"))
}

async fn runs(app: &AppState, request: Request) -> Result<Response, Problem> {
    let machine = Machine::of(app, request).await?;
    let owner = machine.owner();
    if let Found::Own(grants) = owner.find(app).await? {
        owner.release(app, grants).await?;
    }
    Ok(StatusCode::OK.into_response())
}

fn failed(problem: Problem, kind: &str) -> Response {
    let kind = if problem.kind().status() == StatusCode::BAD_REQUEST { "bad_request" } else { kind };
    let value = problem.detail().to_owned();
    problem.in_form(&Failure { kind, value: &value })
}
