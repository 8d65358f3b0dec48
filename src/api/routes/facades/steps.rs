//! What the protocols of other tools have in common: who asks, for what, and what becomes of a lock that is asked for.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::access::{Caller, Right};
use crate::api::context::Asked;
use crate::api::extract::{bad_parameter, context_of, pairs_of, read_small_body, refuse_others};
use crate::api::problem::{Problem, ProblemType};
use crate::api::routes::taking::{not_taken, tenant_of};
use crate::api::state::AppState;
use crate::lock::{LeaseToken, LockKey, Note, Owner, Refusal, Slots, Terms, Ttl};
use crate::service::{AcquireRequest, GrantGuard, NotAcquired, Outcome};

/// Who asks, if that is allowed for this lock.
pub(super) fn permitted(parts: &Parts, key: &LockKey) -> Result<Caller, Problem> {
    let (context, caller) = context_of(parts)?;
    context.set_asked(Asked::of(Right::Acquire, Some(key.clone())));
    caller.check(Right::Acquire, key)?;
    Ok(caller)
}

/// An error behind a step that may have done something. What it says of itself may be that nothing was done.
pub(super) fn in_doubt(_: Problem) -> Problem {
    Problem::new(
        ProblemType::OutcomeUnknown,
        "a part of this may be done, and another part failed: ask again",
    )
}

/// What is said in JSON as an object. Of a list, serde would take the fields in their order.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(OfMap(PhantomData))
    }
}

/// Reads what a request says in its body only. Its address takes no parameters.
pub(super) async fn said_in_body<T: DeserializeOwned>(
    parts: &mut Parts,
    body: Body,
    app: &AppState,
) -> Result<T, Problem> {
    refuse_others(&pairs_of(parts, 1)?, std::iter::empty())?;
    from_json(&read_small_body(parts, body, app).await?)
}

pub(super) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let read = serde_json::from_slice(body).map(|Object(said)| said);
    read.map_err(|error| {
        let (line, column) = (error.line(), error.column());
        // The library says nowhere else which field it is, and calls it as the tool does.
        let said = error.to_string();
        let missing = said.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        let detail = match missing {
            Some(field) => format!("the body lacks {field}"),
            None if body.is_empty() => "the body is empty: say in it what is meant".to_owned(),
            None => format!("the body is not what this protocol has, at line {line}, column {column}"),
        };
        bad_parameter("body", detail)
    })
}

/// A lock that a tool asks for.
#[derive(Clone)]
pub(super) struct AskedLock<'a> {
    pub(super) key: &'a LockKey,
    pub(super) token: LeaseToken,
    pub(super) owner: Owner,
    pub(super) ttl: Ttl,
    pub(super) slots: Slots,
}

/// What became of that.
pub(super) enum Taken {
    /// Until the answer is delivered, the guard rolls the grant back.
    Granted(GrantGuard),
    AlreadyHeld,
    Refused(Refusal),
    /// The token was released before, or the lock broken.
    Over(Problem),
    /// The token holds the lock beside others, up to so many, and asks for fewer.
    HeldOtherwise(Slots),
}

/// Takes a lock for a tool. None of them waits.
pub(super) async fn take(app: &AppState, caller: &Caller, wanted: AskedLock<'_>) -> Result<Taken, Problem> {
    let AskedLock { key, token, owner, ttl, slots } = wanted;
    let request = AcquireRequest {
        key: key.clone(),
        token: Some(token),
        ttl,
        note: Note::new(Some(owner)),
        wait: Duration::ZERO,
        terms: Terms { slots, ..Terms::default() },
        tenant: tenant_of(app, caller, None),
    };
    let acquisition = app.service.acquire(request).await?;
    match acquisition.outcome {
        Outcome::Granted(_, guard, ..) => Ok(Taken::Granted(guard)),
        Outcome::AlreadyHeld(..) => Ok(Taken::AlreadyHeld),
        Outcome::NotTaken(NotAcquired::Refused(refusal)) => Ok(Taken::Refused(refusal)),
        Outcome::NotTaken(why @ NotAcquired::TokenReleased) => {
            Ok(Taken::Over(not_taken(&acquisition.token, why)))
        }
        Outcome::NotTaken(NotAcquired::HeldOtherwise(slots)) => Ok(Taken::HeldOtherwise(slots)),
        Outcome::NotTaken(why) => Err(not_taken(&acquisition.token, why)),
    }
}
