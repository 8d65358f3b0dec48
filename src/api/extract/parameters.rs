//! The parameters of a query: their values, and what is wrong with them; and who sends them.

use std::str::FromStr;
use std::time::Duration;

use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::query_string::{Pairs, QueryError};
use crate::access::{Caller, ShownKey};
use crate::api::context::RequestContext;
use crate::api::headers::{FENCING_TOKEN, has_secret};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::Limits;
use crate::lock::{FencingToken, Ttl, parse_duration, written};

/// The parameters of a query, with up to `most_keys` of the parameter `key`, and no secret in any.
pub(crate) fn pairs_of(parts: &Parts, most_keys: usize) -> Result<Pairs, Problem> {
    let pairs =
        Pairs::parse(parts.uri.query().unwrap_or_default(), most_keys).map_err(|error| match error {
            QueryError::Malformed(name) => {
                bad_parameter(&name, "two hexadecimal digits must follow each %: write a % itself as %25")
            }
            QueryError::Repeated(name) if name == "key" && most_keys > 1 => {
                bad_parameter(&name, format!("this request takes at most {most_keys} keys"))
            }
            QueryError::Repeated(name) => {
                bad_parameter(&name, "this parameter is there more than once: send it once")
            }
            QueryError::TooMany(name) => {
                bad_parameter(&name, "there are more parameters than any request can have")
            }
        })?;
    pairs.iter().try_for_each(|(name, value)| refuse_secret(name, value, Some(parts)))?;
    Ok(pairs)
}

/// Refuses a parameter that was not taken. The error lists `names`: all that the request can have.
pub(crate) fn refuse_others<'a>(pairs: &Pairs, names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let Some(name) = pairs.left_over() else { return Ok(()) };
    let names: Vec<_> = names.collect();
    let known = if names.is_empty() { "no parameters".to_owned() } else { names.join(", ") };
    Err(bad_parameter(name, format!("this request has no parameter {name:?}; it takes {known}")))
}

pub(super) fn read_ttl(pairs: &mut Pairs, limits: &Limits) -> Result<Ttl, Problem> {
    let ttl = match pairs.take("ttl") {
        Some(text) => {
            let for_whom = if limits.is_max_ttl_of_key { " with this API key" } else { "" };
            duration_for(for_whom, "ttl", &text, limits.min_ttl, limits.max_ttl)?
        }
        None => limits.default_ttl,
    };
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Ttl::from_ms(ttl_ms).ok_or_else(|| bad_parameter("ttl", "a lease lasts at least 1ms"))
}

/// Reads a duration with a unit, in whole milliseconds, within bounds.
pub(super) fn duration(name: &str, text: &[u8], min: Duration, max: Duration) -> Result<Duration, Problem> {
    duration_for("", name, text, min, max)
}

/// The same, with the words that say for whom these are the bounds.
fn duration_for(
    for_whom: &str,
    name: &str,
    text: &[u8],
    min: Duration,
    max: Duration,
) -> Result<Duration, Problem> {
    let text = std::str::from_utf8(text).map_err(|_| bad_parameter(name, format!("{name} must be UTF-8")))?;
    let is_none = || {
        let detail =
            format!("write {name} as a number with its unit, such as 500ms, 30s, 2m (minutes) or 1h30m");
        bad_parameter(name, detail)
    };
    let duration = parse_duration(text).ok_or_else(is_none)?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(bad_parameter(name, format!("write {name} in whole milliseconds")));
    }
    if duration < min || duration > max {
        let (min, max) = (written(min), written(max));
        return Err(bad_parameter(name, format!("{name} must be from {min} to {max}{for_whom}")));
    }
    Ok(duration)
}

pub(crate) fn bad_parameter(name: &str, detail: impl Into<String>) -> Problem {
    Problem::input(ProblemType::BadParameter, name, detail)
}

/// Whether the lock that a request names may be one of 0.1.0: the request takes none.
pub(super) fn names_old_lock(parts: &Parts) -> bool {
    !matches!(parts.method, Method::PUT | Method::POST) && parts.uri.path().starts_with("/lock")
}

/// Refuses a name with a secret in it, which a client has put into the wrong place: logs and lists show names. A lock of 0.1.0 may
/// have such a name, so it can be looked at, renewed and ended.
pub(crate) fn refuse_secret(parameter: &str, name: &[u8], parts: Option<&Parts>) -> Result<(), Problem> {
    let may_be_old = parameter == "key" && parts.is_some_and(names_old_lock);
    if may_be_old || !has_secret(name, parts.map(|parts| &parts.headers), ShownKey::stands_in) {
        return Ok(());
    }
    let kind = if parameter == "key" { ProblemType::BadKey } else { ProblemType::BadParameter };
    let detail = "there is an API key or your lease token in it, which logs and lists would show: send either in its header only, and make a new one";
    Err(Problem::input(kind, parameter, detail))
}

/// The number of its grant that a worker shows in `Fencing-Token`.
pub(crate) fn shown_number(headers: &HeaderMap) -> Result<Option<FencingToken>, Problem> {
    let Some(text) = single(headers, &FENCING_TOKEN, "Fencing-Token")? else { return Ok(None) };
    let is_none = || {
        let detail = "write the fencing_token of your 201, a whole number";
        Problem::input(ProblemType::BadParameter, "Fencing-Token", detail)
    };
    number(text).map(Some).ok_or_else(is_none)
}

pub(super) fn number(text: &[u8]) -> Option<FencingToken> {
    FencingToken::new(whole(text)?)
}

/// A number that is written in digits: the library would read a sign, too.
pub(crate) fn whole<T: FromStr>(text: &[u8]) -> Option<T> {
    let is_in_digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_in_digits)?.parse().ok()
}

/// The length that a request announces. One that cannot be read was refused before it came here.
pub(super) fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The value of a header that may be there once.
pub(super) fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    shown: &str,
) -> Result<Option<&'a [u8]>, Problem> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        let detail = format!("the {shown} header is there more than once: send one");
        return Err(Problem::input(ProblemType::BadParameter, shown, detail));
    }
    Ok(value.map(HeaderValue::as_bytes))
}

/// What a request carries, and who makes it.
pub(crate) fn context_of(parts: &Parts) -> Result<(&RequestContext, Caller), Problem> {
    let context = parts.extensions.get::<RequestContext>().ok_or_else(nobody_asked)?;
    Ok((context, caller(context)?.clone()))
}

/// Who makes the request, as it was found before the handler ran.
pub(crate) fn caller(context: &RequestContext) -> Result<&Caller, Problem> {
    context.caller().ok_or_else(nobody_asked)
}

fn nobody_asked() -> Problem {
    Problem::new(ProblemType::InternalError, "the gateway did not find out who makes the request")
}
