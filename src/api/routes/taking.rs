//! What all requests that take a lock, or wait, have in common: who may, for whom, and why not.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::select_all;

use crate::access::{Caller, Right, WaitPermit};
use crate::api::extract::AcquireQuery;
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::lock::{LeaseToken, LockKey, Note};
use crate::service::{Account, AcquireRequest, NotAcquired, Tenant};

/// What the service is asked.
pub(super) fn acquire_request(
    app: &AppState,
    caller: &Caller,
    key: &LockKey,
    token: Option<LeaseToken>,
    query: AcquireQuery,
    wait: Option<&WaitPermit>,
) -> AcquireRequest {
    AcquireRequest {
        key: key.clone(),
        token,
        ttl: query.ttl,
        terms: query.terms(),
        note: Note::new(query.owner),
        wait: query.wait,
        tenant: tenant_of(app, caller, wait),
    }
}

/// Lets a request wait if it asks for that. One that does not may use up a ticket all the same.
pub(super) fn wait_permit(
    app: &AppState,
    caller: &Caller,
    keys: &[LockKey],
    token: Option<&LeaseToken>,
    wait: Duration,
) -> Result<Option<WaitPermit>, Problem> {
    if wait.is_zero() {
        return Ok(caller.left_tickets(keys, token));
    }
    caller.wait(&app.limits.shares, keys, token).map(Some).ok_or_else(key_waits_too_often)
}

/// Who asks for the lock.
pub(super) fn tenant_of(app: &AppState, caller: &Caller, wait: Option<&WaitPermit>) -> Tenant {
    Tenant::new(account_of(app, caller), wait.and_then(WaitPermit::left_tickets))
}

/// The account that a caller's locks belong to.
pub(super) fn account_of(app: &AppState, caller: &Caller) -> Option<Account> {
    caller.locks(&app.limits.shares).map(|(count, most)| Account { count, most })
}

/// Ends a request when its caller may no longer have one of these locks. What was granted to it, or may yet be granted, is rolled
/// back. The future is borrowed, since an `async fn` has room for each of its arguments twice.
pub(super) async fn while_allowed<T>(
    caller: &Caller,
    right: Right,
    keys: &[LockKey],
    request: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Problem> {
    let denials = keys.iter().map(|key| caller.until_denied(right, key));
    tokio::select! {
        biased;
        (denied, of, _) = select_all(denials) => Err(match keys {
            [_] => denied.into(),
            several => Problem::from(denied).about(&several[of]),
        }),
        answer = request => Ok(answer),
    }
}

/// Why a lock was not taken.
pub(super) fn not_taken(token: &LeaseToken, why: NotAcquired) -> Problem {
    match why {
        NotAcquired::NotReplicated(reason) => Problem::new(ProblemType::NotReplicated, reason),
        NotAcquired::Refused(refusal) => Problem::lock_held(&refusal),
        NotAcquired::HeldOtherwise(slots) => Problem::new(
            ProblemType::HeldOtherwise,
            format!("this token holds the lock already, beside others: it took one of {} slots", slots.get()),
        ),
        NotAcquired::NotShared(why) => Problem::new(ProblemType::ModeNotAvailable, why),
        NotAcquired::TooManyWaiters => too_many_waiters(),
        NotAcquired::TooManyLocks => {
            let detail = "this API key holds or is taking too many locks at this gateway: release one first, or send fewer requests at once";
            Problem::new(ProblemType::TooManyLocks, detail)
        }
        NotAcquired::ShuttingDown => Problem::new(
            ProblemType::ShuttingDown,
            "the gateway is stopping, so your wait ended here: send the same request to another gateway; if you chose the token yourself, it keeps its ticket",
        ),
        NotAcquired::TokenReleased if token.is_server_made() => Problem::new(
            ProblemType::TokenReleased,
            "the gateway made this token for one lease, which has ended: leave Lease-Token out to get a new one",
        ),
        NotAcquired::TokenReleased => Problem::new(
            ProblemType::TokenReleased,
            "this token was released before: choose a fresh token for every acquisition",
        ),
    }
}

pub(super) fn too_many_waiters() -> Problem {
    Problem::new(
        ProblemType::TooManyWaiters,
        "too many requests wait already at this lock or this gateway: try again later",
    )
}

/// The error when the API key, and not the server, has reached its limit.
pub(super) fn key_waits_too_often() -> Problem {
    Problem::new(
        ProblemType::TooManyWaiters,
        "too many requests of this API key wait already: try again later",
    )
}

pub(super) fn key_holds_too_many() -> Problem {
    Problem::new(
        ProblemType::TooManyHolds,
        "this API key has too many holds open already: close one, or try again later",
    )
}

pub(super) fn too_many_holds() -> Problem {
    Problem::new(ProblemType::TooManyHolds, "this gateway has too many holds open already: try again later")
}
