//! Several locks at once: what a `PUT` and a hold with more than one key have in common.

use axum::http::Version;
use axum::response::Response;
use futures_util::future::select_all;

use super::taking::{
    acquire_request, key_holds_too_many, key_waits_too_often, not_taken, too_many_holds, too_many_waiters,
    wait_permit,
};
use crate::access::{Caller, Permit, Right, WaitPermit};
use crate::api::answers;
use crate::api::extract::{AcquireQuery, LockCall};
use crate::api::middleware::{Delivery, track};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::lock::LockKey;
use crate::service::{GrantGuard, Several};

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
    let wait = wait_permit(&app, &caller, &key, token.as_ref(), query.wait)?;
    let request = acquire_request(&app, &caller, &key, token, query, wait.as_ref());
    let taken = while_all_allowed(&caller, &keys, app.service.acquire_several(request, &keys)).await??;
    let held = held(taken)?;
    let answer = answers::grant_of_several(&keys, &held);
    Ok(track(answer, GrantsOfSeveral { guards: held.guards, wait }))
}

/// The keys in the order in which they were named.
pub(super) fn keys_of<Q>(call: &LockCall<Q>) -> Vec<LockKey> {
    std::iter::once(&call.key).chain(&call.others).cloned().collect()
}

/// Counts a request for several locks as one for each, and each of them as one that a connection holds: the gateway keeps
/// them for it.
pub(super) fn permits_of(app: &AppState, caller: &Caller, locks: usize) -> Result<Vec<Permit>, Problem> {
    for _ in 1..locks {
        // The first one was counted with the request.
        if let Some(left) = caller.count_request()
            && let Some(retry_after) = left.retry_after
        {
            let burst = left.rate.burst;
            let detail = format!(
                "a request for {locks} locks counts as {locks}, and this API key may make {burst} at once: Retry-After says when one more is allowed"
            );
            return Err(Problem::new(ProblemType::RateLimited, detail).with_retry_after(retry_after));
        }
    }
    (0..locks).map(|_| caller.hold(&app.limits.shares).ok_or_else(key_holds_too_many)).collect()
}

/// What is held; or the problem, with the key that it is about.
pub(super) fn held<T>(taken: Several<T>) -> Result<T, Problem> {
    match taken {
        Several::Held(held) => Ok(held),
        Several::NotHeld(key, token, why) => Err(not_taken(&token, why).about(&key)),
        Several::TooManyHolds => Err(too_many_holds()),
    }
}

/// Ends a request when the caller may no longer have one of these locks.
pub(super) async fn while_all_allowed<T>(
    caller: &Caller,
    keys: &[LockKey],
    request: impl Future<Output = T>,
) -> Result<T, Problem> {
    let denials = keys.iter().map(|key| Box::pin(caller.until_denied(Right::Acquire, key)));
    tokio::select! {
        biased;
        (denied, of, _) = select_all(denials) => Err(Problem::from(denied).about(&keys[of])),
        answer = request => Ok(answer),
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
