//! Who makes a request, found before any handler runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64;
use percent_encoding::percent_decode_str;

use crate::access::{Caller, Keyring, RateLeft, Refused, ShownKey};
use crate::api::context::RequestContext;
use crate::api::headers::{DAPR_API_TOKEN, RATE_LIMIT, RATE_LIMIT_POLICY};
use crate::api::problem::{Problem, ProblemType};
use crate::api::route::is_open;
use crate::api::state::AppState;
use crate::audit::{Audit, Event, Who};
use crate::server::Peer;
use crate::service::MOST_LOCKS;

/// Finds out who makes the request, and notes it for the handlers. If the gateway has keys, a request without one is
/// refused. Returns what the key has left of its rate.
pub(crate) fn authenticate(app: &AppState, request: &Request) -> Result<Option<RateLeft>, Box<Response>> {
    let context = request.extensions().get::<RequestContext>();
    let Some(keyring) = &app.keyring else {
        if let Some(context) = context {
            context.set_caller(Caller::anybody(), None);
        }
        return Ok(None);
    };
    if is_open(request.uri().path()) {
        // No caller is noted. A handler that needs one has no place at an open address.
        return Ok(None);
    }
    let caller = match identify(keyring, request) {
        Ok(caller) => caller,
        Err(Unknown::Nobody) => {
            let detail = "send your API key as a header: `Authorization: Bearer fp_…`";
            return Err(Problem::new(ProblemType::KeyRequired, detail).into_response().into());
        }
        // It may be meant for others, such as a proxy on the way: it is no guess at a key.
        Err(Unknown::Stranger(told)) => {
            return Err(Problem::new(ProblemType::KeyRefused, told).into_response().into());
        }
        Err(Unknown::Refused { id, reason, told }) => {
            return Err(refuse(app, request, id.as_deref(), reason, told).into());
        }
    };
    let left = caller.count_request(|| locks_in(request.uri()));
    let retry_after = left.and_then(|left| left.retry_after);
    if retry_after.is_some() {
        count_beyond_rate(&caller, &app.audit);
    }
    if let Some(context) = context {
        if retry_after.is_some() {
            context.set_has_line(false);
        }
        context.set_caller(caller, retry_after.is_none().then_some(&app.audit));
    }
    if let Some(retry_after) = retry_after {
        let detail = "this API key may make no more requests for now: Retry-After says when";
        let problem = Problem::new(ProblemType::RateLimited, detail).with_retry_after(retry_after);
        return Err(with_rate_left(problem.into_response(), left).into());
    }
    Ok(left)
}

/// How many locks a request names in its query: it counts as one for each.
fn locks_in(uri: &Uri) -> u32 {
    let names =
        uri.query().unwrap_or_default().split('&').map(|piece| piece.split('=').next().unwrap_or_default());
    let keys = names.filter(|name| percent_decode_str(name).eq(*b"key")).count();
    u32::try_from(keys.clamp(1, MOST_LOCKS)).unwrap_or(1)
}

/// Whether the caller is known: its key is good, or the gateway has no keys.
pub(crate) fn is_known(app: &AppState, request: &Request) -> bool {
    app.keyring.as_ref().is_none_or(|keyring| identify(keyring, request).is_ok())
}

/// A caller that is not known.
enum Unknown {
    /// It shows nothing.
    Nobody,
    /// What it shows is no API key, as it is told.
    Stranger(&'static str),
    /// What it shows is not accepted, for this `reason`. The caller reads `told`.
    Refused { id: Option<String>, reason: &'static str, told: &'static str },
}

fn identify(keyring: &Keyring, request: &Request) -> Result<Caller, Unknown> {
    const NO_KEY: &str = "this gateway does not know the API key: it may have been revoked";
    let refused =
        |id: Option<&str>, reason, told| Unknown::Refused { id: id.map(str::to_owned), reason, told };
    let reason_of = |refused: Refused| match refused {
        Refused::Unknown => ("the id is unknown", NO_KEY),
        Refused::WrongSecret => ("the secret is wrong", NO_KEY),
        // The client knows the secret, so it may be told this.
        Refused::Expired => ("the key has expired", "this API key has expired"),
        Refused::CertificateEnded => {
            let told =
                "the client certificate of this connection has expired: connect again with a valid one";
            ("the client certificate has expired", told)
        }
    };
    let Some(shown) = shown_key(request) else {
        let subject = request.extensions().get::<Arc<Peer>>().and_then(|peer| peer.subject.as_ref());
        return match subject.and_then(|subject| keyring.by_subject(&subject.name, subject.ends_at)) {
            Some(Ok(caller)) => Ok(caller),
            Some(Err(why)) => {
                let (reason, told) = reason_of(why);
                Err(refused(None, reason, told))
            }
            None => Err(no_key_in(request).map_or(Unknown::Nobody, Unknown::Stranger)),
        };
    };
    let text = &*shown.map_err(|reason| refused(None, reason, reason))?;
    let Some(key) = ShownKey::parse(text) else {
        let told = "this is not an API key: it must be fp_, 12 of a-z0-9, _ and 32 of A-Za-z0-9";
        return Err(refused(
            ShownKey::id_in(text).as_ref().map(|id| id.as_str()),
            "the key is malformed",
            told,
        ));
    };
    keyring.by_key(&key).map_err(|why| {
        let (reason, told) = reason_of(why);
        refused(Some(key.id.as_str()), reason, told)
    })
}

/// The key that a request shows: in a `Bearer` header, or where its tool can put one. Other credentials are meant for others, such
/// as a proxy on the way.
fn shown_key(request: &Request) -> Option<Result<Cow<'_, str>, &'static str>> {
    let headers = request.headers();
    let authorized = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let value = value.as_bytes();
        of_scheme(value, "Bearer ").map(Cow::Borrowed).or_else(|| password(of_scheme(value, "Basic ")?))
    });
    let of_dapr = dapr_tokens(request).filter(|value| ShownKey::is_begun_in(value));
    let mut shown = authorized.chain(of_dapr.map(Cow::Borrowed));
    let key = shown.next()?;
    if shown.next().is_some() {
        return Some(Err("an API key is there more than once: send one Authorization header"));
    }
    let text = match key {
        Cow::Borrowed(key) => std::str::from_utf8(key).ok().map(|key| Cow::Borrowed(key.trim_ascii())),
        Cow::Owned(key) => String::from_utf8(key).ok().map(Cow::Owned),
    };
    Some(text.ok_or("the key is malformed"))
}

/// How the paths begin that Dapr's clients ask.
const DAPR_PATHS: &str = "/v1.0";

/// Elsewhere it may be meant for an application's own Dapr, and a proxy passes it on.
fn dapr_tokens(request: &Request) -> impl Iterator<Item = &[u8]> {
    let is_for_dapr = request.uri().path().starts_with(DAPR_PATHS);
    request.headers().get_all(DAPR_API_TOKEN).iter().filter(move |_| is_for_dapr).map(HeaderValue::as_bytes)
}

/// Where a request that shows no key has something else in the place of one: what its client is told. With a client certificate that
/// is accepted, it may be meant for others.
fn no_key_in(request: &Request) -> Option<&'static str> {
    let mut authorized = request.headers().get_all(AUTHORIZATION).iter();
    if authorized.any(|value| of_scheme(value.as_bytes(), "Basic ").is_some()) {
        return Some(
            "the password of Basic authentication is not an API key: it must be fp_, 12 of a-z0-9, _ and 32 of A-Za-z0-9",
        );
    }
    let is_there = dapr_tokens(request).any(|token| !token.is_empty());
    is_there
        .then_some("dapr-api-token is not an API key: it must be fp_, 12 of a-z0-9, _ and 32 of A-Za-z0-9")
}

fn of_scheme<'a>(value: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    let (named, rest) = value.split_at_checked(scheme.len())?;
    named.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
}

/// The password of credentials, if it is a key: some tools can send no other header. Any name may stand in front of it.
fn password(credentials: &[u8]) -> Option<Cow<'static, [u8]>> {
    let decoded = BASE64.decode(credentials.trim_ascii()).ok()?;
    let at = decoded.iter().position(|byte| *byte == b':')?;
    let password = decoded.get(at + 1..)?;
    ShownKey::is_begun_in(password).then(|| password.to_vec().into())
}

/// Refuses what is not an accepted key. An address that sends too many is told to wait, and gets no more lines in the
/// log. Clients of the same address that have a key do not notice.
fn refuse(
    app: &AppState,
    request: &Request,
    key_id: Option<&str>,
    reason: &'static str,
    told: &'static str,
) -> Response {
    let Some(keyring) = &app.keyring else {
        return Problem::new(ProblemType::KeyRefused, told).into_response();
    };
    // Without an accept loop in front of us, the address is not known.
    let peer = request.extensions().get::<Arc<Peer>>();
    if let Some(Err(retry_after)) = peer.map(|peer| keyring.guesses.count(peer.network())) {
        let audit = app.audit.clone();
        keyring.guesses.untold.count(move |count| {
            let (who, reason) = (Who::default(), "their addresses sent too many");
            audit.note(Event::KeyRefused { who, reason, count });
            tracing::warn!(count, "more API keys were refused; their addresses had sent too many");
        });
        if let Some(context) = request.extensions().get::<RequestContext>() {
            context.set_has_line(false);
        }
        let detail = "too many API keys from this address were refused: Retry-After says when to try again";
        return Problem::new(ProblemType::RateLimited, detail).with_retry_after(retry_after).into_response();
    }
    let address = peer.map(|peer| tracing::field::display(peer.address.ip().to_canonical()));
    tracing::warn!(key_id, address, reason, "an API key was refused");
    if let Some(context) = request.extensions().get::<RequestContext>() {
        context.set_has_line(true);
        let who = Who { key_id: key_id.map(str::to_owned), ..context.who() };
        app.audit.note(Event::KeyRefused { who, reason, count: 1 });
    }
    Problem::new(ProblemType::KeyRefused, told).into_response()
}

/// Counts a request beyond the rate of its key. A line of its own would let its client fill the disk.
fn count_beyond_rate(caller: &Caller, audit: &Arc<Audit>) {
    let Some(untold) = caller.beyond_rate() else { return };
    let (caller, audit) = (caller.clone(), audit.clone());
    untold.count(move |count| {
        let (key_id, key_name) = (caller.id(), caller.name());
        tracing::info!(key_id, key_name, count, "requests of an API key were refused: its rate was used up");
        let [key_id, key_name] = [key_id, key_name].map(|text| text.map(str::to_owned));
        audit.note(Event::RateLimited { who: Who { key_id, key_name, ..Who::default() }, count });
    });
}

/// Says what the key has left of its rate, in the form of the draft on RateLimit header fields.
pub(crate) fn with_rate_left(mut response: Response, left: Option<RateLeft>) -> Response {
    let Some(left) = left else { return response };
    let whole_s = |time: Duration| time.as_millis().div_ceil(1000);
    let (requests, window_s) = left.policy();
    let policy = format!("\"key\";q={requests};w={window_s}");
    let rate_left = format!("\"key\";r={};t={}", left.remaining, whole_s(left.refills_in()));
    for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, rate_left)] {
        // Digits and quotes are always allowed in a header value.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
