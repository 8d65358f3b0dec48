//! FleetLock, by which machines ask whether they may reboot: a lock by slots for each group of machines.
//!
//! A machine asks again until it may, asks anew after its reboot, and says at each start that it runs: so a grant is found by the
//! name of its machine, and that it runs uses nothing up.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::owners::{Found, NamedGrant, NamedOwner};
use super::steps::{AskedLock, Object, Taken, in_doubt, permitted, said_in_body, take};
use crate::access::Caller;
use crate::api::extract::{bad_parameter, key_of};
use crate::api::middleware::track;
use crate::api::problem::{Problem, ProblemType};
use crate::api::routes::taking::account_of;
use crate::api::state::{AppState, NEVER_RENEWED_TTL};
use crate::lock::{LockKey, Slots, Ttl};

const TOOL: &str = "fleet-lock";
/// The header that tells such a request from any other.
const PROTOCOL: &str = "fleet-lock-protocol";

#[derive(Deserialize)]
struct Body {
    client_params: Object<ClientParams>,
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
        let (mut parts, body) = request.into_parts();
        if parts.headers.get(PROTOCOL).is_none_or(|value| value != "true") {
            return Err(bad_parameter(PROTOCOL, "send the header fleet-lock-protocol: true"));
        }
        let Body { client_params: Object(ClientParams { id, group }) } =
            said_in_body(&mut parts, body, app).await?;
        let known = app.facades.fleet_lock.iter().find(|known| known.name == group);
        let known = known.ok_or_else(|| {
            bad_parameter(
                "group",
                format!("the gateway has no group {group:?}: its setting --fleet-lock names them"),
            )
        })?;
        NamedOwner::check("id", &id)?;
        let key = key_of(format!("{TOOL}:{group}").as_bytes())?;
        Ok(Self { id, slots: known.slots, caller: permitted(&parts, &key)?, key })
    }

    fn owner(&self) -> NamedOwner<'_> {
        NamedOwner { tool: TOOL, key: &self.key, name: &self.id }
    }
}

/// A machine asks whether it may reboot.
pub(super) async fn pre_reboot(State(app): State<AppState>, request: Request) -> Response {
    may_reboot(&app, request).await.unwrap_or_else(|problem| failed(problem, "failed_lock"))
}

async fn may_reboot(app: &AppState, request: Request) -> Result<Response, Problem> {
    let machine = Machine::of(app, request).await?;
    if app.limits.lowered_to(machine.caller.max_ttl()).max_ttl < NEVER_RENEWED_TTL {
        return Err(bad_parameter("ttl", "a reboot needs a lease of 24h, and this API key allows none"));
    }
    let owner = machine.owner();
    if let Found::Own(grants) = owner.find(app).await? {
        return machine.keep_oldest(app, &grants).await;
    }
    let bad_id = || bad_parameter("id", "this id cannot be shown");
    let next = owner.next().ok_or_else(bad_id)?;
    let taken = machine.take(app, &next, machine.slots).await?;
    machine.agree(app, &next, taken).await.map_err(|problem| match problem.kind() {
        ProblemType::LockHeld => problem,
        // The grant may stand.
        _ => in_doubt(problem),
    })
}

fn changed_hands() -> Problem {
    Problem::new(ProblemType::OutcomeUnknown, "the lock changed hands meanwhile: ask again")
}

impl Machine {
    async fn take(&self, app: &AppState, grant: &NamedGrant, slots: Slots) -> Result<Taken, Problem> {
        let ttl_ms = u64::try_from(NEVER_RENEWED_TTL.max(app.limits.min_ttl).as_millis()).unwrap_or(u64::MAX);
        let ttl = Ttl::from_ms(ttl_ms).unwrap_or(Ttl::SHORTEST);
        let NamedGrant { owner, token } = grant.clone();
        take(app, &self.caller, AskedLock { key: &self.key, token, owner, ttl, slots }).await
    }

    /// A copy of this request may have come at the same time. All look after they have asked, so they agree on the oldest.
    async fn agree(&self, app: &AppState, next: &NamedGrant, taken: Taken) -> Result<Response, Problem> {
        match (taken, self.owner().find(app).await?) {
            (Taken::Granted(guard), Found::Own(grants)) if grants.first() == Some(next) => {
                Ok(track(StatusCode::OK.into_response(), guard))
            }
            (_, Found::Own(grants)) => self.keep_oldest(app, &grants).await,
            (Taken::Refused(refusal), _) => Err(Problem::lock_held(&refusal)),
            _ => Err(changed_hands()),
        }
    }

    /// Keeps one of the machine's grants. To take it again confirms it, and nothing rolls it back. The others are given back.
    async fn keep_oldest(&self, app: &AppState, grants: &[NamedGrant]) -> Result<Response, Problem> {
        let [oldest, others @ ..] = grants else { return Err(changed_hands()) };
        let taken = match self.take(app, oldest, self.slots).await? {
            // The group had more slots when it was granted.
            Taken::HeldOtherwise(slots) => self.take(app, oldest, slots).await?,
            taken => taken,
        };
        let answer = StatusCode::OK.into_response();
        match taken {
            Taken::Granted(guard) if others.is_empty() => return Ok(track(answer, guard)),
            Taken::AlreadyHeld => {}
            // It has ended since it was found. Another request may rely on one of the others.
            Taken::Granted(_) | Taken::Over(_) | Taken::HeldOtherwise(_) | Taken::Refused(_) => {
                return Err(changed_hands());
            }
        }
        self.owner().release(app, others).await.map_err(in_doubt)?;
        Ok(answer)
    }
}

/// A machine says that it runs: what it had is free.
pub(super) async fn steady_state(State(app): State<AppState>, request: Request) -> Response {
    let released = match Machine::of(&app, request).await {
        Ok(machine) => app.see_through(account_of(&app, &machine.caller), runs(app.clone(), machine)).await,
        Err(problem) => Err(problem),
    };
    released.unwrap_or_else(|problem| failed(problem, "failed_unlock"))
}

async fn runs(app: AppState, machine: Machine) -> Result<Response, Problem> {
    let owner = machine.owner();
    if let Found::Own(grants) = owner.find(&app).await? {
        owner.release(&app, &grants).await?;
    }
    Ok(StatusCode::OK.into_response())
}

fn failed(problem: Problem, kind: &str) -> Response {
    let kind = if problem.kind().status() == StatusCode::BAD_REQUEST { "bad_request" } else { kind };
    let value = problem.detail().to_owned();
    problem.in_form(&Failure { kind, value: &value })
}
