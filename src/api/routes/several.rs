//! Several locks at once: what a `PUT` and a hold with more than one key have in common.

use std::pin::pin;

use axum::http::Version;
use axum::response::Response;

use super::taking::{
    acquire_request, key_holds_too_many, key_waits_too_often, not_taken, too_many_holds, too_many_waiters,
    wait_permit, while_allowed,
};
use crate::access::{Caller, Permit, Right, WaitPermit};
use crate::api::answers;
use crate::api::extract::{AcquireQuery, LockCall, bad_parameter};
use crate::api::middleware::{Delivery, track};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::lock::LockKey;
use crate::service::{GrantGuard, Loss, Several};

/// A `PUT` with more than one key.
pub(super) async fn acquire_several(
    app: AppState,
    version: Version,
    call: LockCall<AcquireQuery>,
) -> Result<Response, Problem> {
    let keys = keys_of(&call);
    let LockCall { key, token, query, caller, .. } = call;
    let keep = || app.keep_connection(version, &caller, key_waits_too_often, too_many_waiters);
    let _connection = (!query.wait.is_zero()).then(keep).transpose()?;
    let _permits = permits_of(&app, &caller, keys.len())?;
    let wait = wait_permit(&app, &caller, &keys, token.as_ref(), query.wait)?;
    let request = acquire_request(&app, &caller, &key, token, query, wait.as_ref());
    let acquire = pin!(app.service.acquire_several(request, &keys));
    let taken = while_allowed(&caller, Right::Acquire, &keys, acquire).await?;
    let held = held(taken)?;
    let answer = answers::grant_of_several(&keys, &held);
    Ok(track(answer, GrantsOfSeveral { guards: held.guards, wait }))
}

/// The keys in the order in which they were named.
pub(super) fn keys_of<Q>(call: &LockCall<Q>) -> Vec<LockKey> {
    std::iter::once(&call.key).chain(&call.others).cloned().collect()
}

/// Counts each of several locks as one that a connection holds: the gateway keeps them for the request.
pub(super) fn permits_of(app: &AppState, caller: &Caller, locks: usize) -> Result<Vec<Permit>, Problem> {
    let most = caller.most_locks(&app.limits.shares);
    // One lock is refused as by a `PUT`, also where the key may have none.
    if locks > most.max(1) {
        let text = format!(
            "this request names {locks} keys, and this API key may have {most} of them at once (max_locks, max_holds)"
        );
        return Err(bad_parameter("key", text));
    }
    (0..locks).map(|_| caller.hold(&app.limits.shares).ok_or_else(key_holds_too_many)).collect()
}

/// What is held; or the problem, with the key that it is about.
pub(super) fn held<T>(taken: Several<T>) -> Result<T, Problem> {
    let (key, problem) = match taken {
        Several::Held(held) => return Ok(held),
        Several::TooManyHolds => return Err(too_many_holds()),
        Several::NotHeld(key, token, why) => (key, not_taken(&token, why)),
        Several::Lost(key, loss) => (key, lost(&loss)),
        Several::Failed(key, error) => (key, error.into()),
    };
    Err(problem.about(&key))
}

/// What to say where one was lost while the others were taken.
fn lost(loss: &Loss) -> Problem {
    match loss {
        Loss::MaxHoldReached => bad_parameter(
            "max_hold",
            "max_hold of this lock was over before the others could be taken: it counts from the grant of each",
        ),
        Loss::Released | Loss::HeldByAnother => Problem::new(
            ProblemType::TokenReleased,
            "while the request waited for the others, this lock was released with its token, broken, or lost by the store: choose a fresh token",
        ),
        Loss::TakenOver => Problem::new(
            ProblemType::OutcomeUnknown,
            "another request of the same token has taken over this lock, and may hold all of them",
        ),
        Loss::Expired | Loss::KeyRefused | Loss::ShuttingDown(_) => Problem::new(
            ProblemType::OutcomeUnknown,
            "the lease of this lock may have ended before the others could be taken: they are given back",
        ),
    }
}

/// The grants of several locks, until they are handed to the client.
struct GrantsOfSeveral {
    guards: Vec<GrantGuard>,
    wait: Option<WaitPermit>,
}

impl Delivery for GrantsOfSeveral {
    fn delivered(self) {
        self.guards.into_iter().for_each(GrantGuard::disarm);
        if let Some(wait) = self.wait {
            wait.used();
        }
    }
}
