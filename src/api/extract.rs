//! From a request to a [`LockCall`]: everything a caller says, parsed once, before the store is asked.

use std::future::ready;

use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use futures_util::future::Either;

use self::parameters::names_old_lock;
use self::query_string::decode;
use super::headers::{LEASE_TOKEN, is_public};
use super::problem::{Problem, ProblemType};
use super::state::{AppState, Limits};
use crate::access::Caller;
use crate::lock::{LeaseToken, LockKey};

mod body;
mod once;
mod parameters;
mod queries;
mod query_string;
mod result;

pub(super) use body::{read_small_body, refuse_body};
pub(super) use once::{BeginQuery, GiveUpQuery, LookQuery, RenewWorkQuery, StoreQuery};
pub(super) use parameters::{
    bad_parameter, caller, context_of, pairs_of, refuse_others, refuse_secret, whole,
};
pub(super) use queries::{
    AcquireQuery, HoldQuery, InspectQuery, LockQuery, ReleaseQuery, RenewQuery, TerraformQuery,
};
pub(super) use query_string::Pairs;
pub(super) use result::StoreCall;

/// A request about one lock, or one record, in either form of the address; or about several locks at once.
pub(super) struct LockCall<Q> {
    pub(super) key: LockKey,
    /// More keys, each of another lock.
    pub(super) others: Vec<LockKey>,
    pub(super) token: Option<LeaseToken>,
    pub(super) query: Q,
    pub(super) caller: Caller,
}

impl<Q> LockCall<Q> {
    /// The token of a request that needs one.
    pub(super) fn required_token(&self) -> Result<&LeaseToken, Problem> {
        self.token.as_ref().ok_or_else(|| {
            Problem::input(
                ProblemType::TokenRequired,
                "Lease-Token",
                "send the lease token that the PUT answered, as a header: `Lease-Token: …`",
            )
        })
    }
}

impl<Q: LockQuery> FromRequest<AppState> for LockCall<Q> {
    type Rejection = Problem;

    /// All but a look at a body without a length is done at once, so that what waits behind it has no room for the request.
    fn from_request(request: Request, app: &AppState) -> impl Future<Output = Result<Self, Problem>> + Send {
        let (parts, body) = request.into_parts();
        let call = Self::permitted(&parts, app);
        let refused = match &call {
            Ok(_) => Either::Left(refuse_body(parts, body, app)),
            Err(_) => Either::Right(ready(Ok(()))),
        };
        async move {
            refused.await?;
            call
        }
    }
}

impl<Q: LockQuery> LockCall<Q> {
    /// All but the body, if the caller may ask for it and the store can do it.
    pub(super) fn permitted(parts: &Parts, app: &AppState) -> Result<Self, Problem> {
        let (context, caller) = context_of(parts)?;
        let call = Self::read(parts, &app.limits.lowered_to(caller.max_ttl()), caller)?;
        let mut asked = call.query.asked(call.key.clone());
        if !call.others.is_empty() {
            asked.others.clone_from(&call.others);
        }
        // All others are refused where a secret is in their name.
        if names_old_lock(parts) {
            asked.key = asked.key.filter(|key| is_public(key.as_str(), Some(&parts.headers)));
        }
        let right = asked.right;
        context.set_asked(asked);
        // The decoded key is checked, so that both forms of the address mean the same.
        for key in std::iter::once(&call.key).chain(&call.others) {
            call.caller.check(right, key).map_err(|denied| match &call.others[..] {
                [] => denied.into(),
                _ => Problem::from(denied).about(key),
            })?;
        }
        if Q::PATH_FORM == once::PATH_FORM {
            app.needs_records(Some(&call.key))?;
        }
        Ok(call)
    }

    fn read(parts: &Parts, limits: &Limits, caller: Caller) -> Result<Self, Problem> {
        let mut pairs = pairs_of(parts, Q::MOST_KEYS)?;
        let path = parts.uri.path();
        let (key, takes_key) = match path.strip_prefix(Q::PATH_FORM) {
            Some(segment) => (key_in_path(parts, segment)?, false),
            None => (key_in_query(path, &mut pairs)?, true),
        };
        let others = if takes_key { other_keys(&key, &mut pairs)? } else { Vec::new() };
        let mut query = match others.is_empty() {
            true => Q::read(&mut pairs, limits)?,
            false => Q::read(&mut pairs, &limits.of_several())?,
        };
        query.read_headers(&parts.headers)?;
        refuse_others(&pairs, takes_key.then_some("key").into_iter().chain(Q::NAMES.iter().copied()))?;
        Ok(Self { key, others, token: lease_token(&parts.headers)?, query, caller })
    }
}

/// The error for an address below `/locks/` or `/once/` that names nothing.
pub(super) fn explain_missing(uri: &Uri) -> Problem {
    let path = uri.path();
    let (what, path_form, query_form) = named_at(path);
    let key = path.strip_prefix(path_form);
    // With --terraform, there would be a lock at such an address.
    let names_lock = path == query_form || key.is_some_and(|key| !key.is_empty() && !key.contains('/'));
    if query_form == "/terraform" && names_lock {
        return Problem::new(ProblemType::NotFound, "this gateway was started without --terraform");
    }
    match key {
        Some("") => bad_key(format!("the key is empty: write the name of a {what} behind {path_form}")),
        Some(_) => Problem::new(
            ProblemType::NotFound,
            format!("in a path, write each slash of the key as %2F; or use {query_form}?key=a/b"),
        ),
        None => Problem::new(
            ProblemType::NotFound,
            "there is nothing at this address: locks are at /locks/KEY, and records at /once/KEY; /docs explains the rest",
        ),
    }
}

/// What keys name at an address, and the two forms in which it is written.
fn named_at(path: &str) -> (&'static str, &'static str, &'static str) {
    match path {
        _ if path.starts_with("/once") => ("record", "/once/", "/once"),
        _ if path.starts_with("/terraform") => ("lock", "/terraform/", "/terraform"),
        _ => ("lock", "/locks/", "/lock"),
    }
}

fn key_in_path(parts: &Parts, segment: &str) -> Result<LockKey, Problem> {
    let bytes = decode(segment)
        .ok_or_else(|| bad_key("two hexadecimal digits must follow each %: write a % itself as %25"))?;
    refuse_secret("key", &bytes, Some(parts))?;
    let key = key_of(&bytes)?;
    if key.is_risky_in_path() {
        let (.., query_form) = named_at(parts.uri.path());
        return Err(bad_key(format!(
            "proxies rewrite a path with an empty, . or .. segment: send this key as {query_form}?key=…"
        )));
    }
    Ok(key)
}

fn key_in_query(path: &str, pairs: &mut Pairs) -> Result<LockKey, Problem> {
    let missing = || bad_key(format!("say which {} is meant: {path}?key=…", named_at(path).0));
    let bytes = pairs.take("key").ok_or_else(missing)?;
    key_of(&bytes)
}

/// The keys that stand behind the first one, each of another lock than those before it.
fn other_keys(first: &LockKey, pairs: &mut Pairs) -> Result<Vec<LockKey>, Problem> {
    let mut others = Vec::new();
    while let Some(bytes) = pairs.take("key") {
        let key = key_of(&bytes)?;
        if key == *first || others.contains(&key) {
            return Err(bad_key(format!("the key {:?} is there twice: name each lock once", key.as_str())));
        }
        others.push(key);
    }
    Ok(others)
}

/// Reads a key from these decoded bytes.
pub(super) fn key_of(bytes: &[u8]) -> Result<LockKey, Problem> {
    LockKey::parse(bytes).map_err(|error| bad_key(error.to_string()))
}

fn lease_token(headers: &HeaderMap) -> Result<Option<LeaseToken>, Problem> {
    let bad = |detail: String| Problem::input(ProblemType::BadToken, "Lease-Token", detail);
    let mut values = headers.get_all(LEASE_TOKEN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad("the Lease-Token header is there more than once: send one".into()));
    }
    LeaseToken::parse(value.as_bytes()).map(Some).map_err(|error| bad(error.to_string()))
}

fn bad_key(detail: impl Into<String>) -> Problem {
    Problem::input(ProblemType::BadKey, "key", detail)
}
