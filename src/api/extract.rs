//! From a request to a [`LockCall`]: everything a caller says, parsed once, before the store is asked.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use http_body_util::BodyExt;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::answers::LEASE_TOKEN;
use super::metrics::Operation;
use super::observe::{Note, Noted};
use super::problem::{Problem, ProblemType};
use super::raw::{Pairs, QueryError, decode};
use super::{AppState, Limits};
use crate::access::{Caller, Right};
use crate::lock::{FencingToken, LeaseToken, LockKey, Owner, Terms, Ttl, parse_duration};

/// Where the path form of a lock's address begins.
const PATH_FORM: &str = "/locks/";
/// The shortest `min_hold`.
const SHORTEST_MIN_HOLD: Duration = Duration::from_millis(1);
/// The lease of a lock that a connection holds, where none is asked for, and the shortest: a third of it must be enough
/// for a packet to be lost and sent again.
const HELD_TTL: Duration = Duration::from_secs(15);
const SHORTEST_HELD_TTL: Duration = Duration::from_secs(1);
/// How long a body may take to turn out empty.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A request about one lock, in either form of the address.
pub(super) struct LockCall<Q> {
    pub(super) key: LockKey,
    pub(super) token: Option<LeaseToken>,
    pub(super) query: Q,
    pub(super) caller: Caller,
}

impl<Q> LockCall<Q> {
    /// The token of a request that cannot do without.
    pub(super) fn required_token(&self) -> Result<&LeaseToken, Problem> {
        self.token.as_ref().ok_or_else(|| {
            Problem::input(
                ProblemType::TokenRequired,
                "Lease-Token",
                "send the token of the lease in this header",
            )
        })
    }
}

/// The query parameters that a method takes, besides `key`.
pub(super) trait LockQuery: Sized + Send {
    /// Their names, for the error that lists them.
    const NAMES: &[&str];
    /// What whoever asks must be allowed to do.
    const RIGHT: Right;

    /// What whoever asks this must be allowed to do.
    fn right(&self) -> Right {
        Self::RIGHT
    }

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem>;

    /// What it is counted as, where it asks for something else than others of its method and route.
    fn operation(&self) -> Option<Operation> {
        None
    }

    /// Whether the caller asks to wait.
    fn waits(&self) -> bool {
        false
    }
}

/// The query of a `PUT`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AcquireQuery {
    /// How long the lease lasts: 10ms to 24h, as in `500ms`, `30s`, `2m`, `1h30m`. A bare number is refused.
    #[param(value_type = String, required = false, example = "30s")]
    pub(super) ttl: Ttl,
    /// How long to wait in line for the lock: up to 60s, as in `20s`. With `0s` the answer comes at once.
    #[param(value_type = String, required = false, example = "20s")]
    pub(super) wait: Duration,
    /// Who takes the lock, as a note for people: up to 256 bytes without control characters.
    #[param(value_type = String, required = false, example = "cron@db1")]
    pub(super) owner: Option<Owner>,
    /// How long the lock may be held at most, counted from the grant, as in `2h`: no renewal goes past it. At least `ttl`.
    #[param(value_type = String, required = false, example = "2h")]
    pub(super) max_hold: Option<Duration>,
    /// How long the lock stays taken at least, counted from the grant, as in `50s`: released before, it is kept until then,
    /// by nobody. At most `max_hold`, and what a lease may last.
    #[param(value_type = String, required = false, example = "50s")]
    pub(super) min_hold: Option<Duration>,
}

impl AcquireQuery {
    pub(super) fn terms(&self) -> Terms {
        Terms { max_hold: self.max_hold, min_hold: self.min_hold }
    }
}

impl LockQuery for AcquireQuery {
    const NAMES: &[&str] = &["ttl", "wait", "owner", "max_hold", "min_hold"];
    const RIGHT: Right = Right::Acquire;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let ttl = read_ttl(pairs, limits)?;
        let wait = match pairs.take("wait") {
            Some(text) => duration("wait", &text, Duration::ZERO, limits.max_wait)?,
            None => Duration::ZERO,
        };
        let owner = match pairs.take("owner") {
            Some(text) => Owner::parse(&text).map_err(|error| bad_parameter("owner", error.to_string()))?,
            None => None,
        };
        let max_hold = pairs.take("max_hold");
        let max_hold = max_hold
            .map(|text| duration("max_hold", &text, ttl.as_duration(), Terms::LONGEST_MAX_HOLD))
            .transpose()?;
        let min_hold = pairs.take("min_hold");
        let longest = limits.max_ttl.min(max_hold.unwrap_or(Duration::MAX));
        let min_hold =
            min_hold.map(|text| duration("min_hold", &text, SHORTEST_MIN_HOLD, longest)).transpose()?;
        Ok(Self { ttl, wait, owner, max_hold, min_hold })
    }

    fn waits(&self) -> bool {
        !self.wait.is_zero()
    }
}

/// The query of a `POST /hold`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HoldQuery {
    /// How long the lease lasts, which is renewed at each third of it: 1s to 24h, as in `15s`, which is also the default.
    /// A client that vanishes without a word loses the lock within this time.
    #[param(value_type = String, required = false, example = "15s")]
    pub(super) ttl: Ttl,
    /// How long to wait in line for the lock: up to 60s, as in `20s`. With `0s` the answer comes at once.
    #[param(value_type = String, required = false, example = "20s")]
    pub(super) wait: Duration,
    /// Who takes the lock, as a note for people: up to 256 bytes without control characters.
    #[param(value_type = String, required = false, example = "cron@db1")]
    pub(super) owner: Option<Owner>,
    /// How long the lock may be held at most, counted from the grant, as in `30m`; `2h` where nothing is said. Then it is
    /// free, whatever the client does. At least `ttl`.
    #[param(value_type = String, required = false, example = "2h")]
    pub(super) max_hold: Duration,
    /// How long the lock stays taken at least, counted from the grant, as in `50s`, also where the connection ends before.
    /// At most `max_hold`, and what a lease may last.
    #[param(value_type = String, required = false, example = "50s")]
    pub(super) min_hold: Option<Duration>,
}

impl LockQuery for HoldQuery {
    const NAMES: &[&str] = AcquireQuery::NAMES;
    const RIGHT: Right = Right::Acquire;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let longest = limits.max_ttl;
        let min_ttl = limits.min_ttl.max(SHORTEST_HELD_TTL).min(longest);
        let default_ttl = HELD_TTL.clamp(min_ttl, longest);
        let limits = Limits { default_ttl, min_ttl, ..*limits };
        let AcquireQuery { ttl, wait, owner, max_hold, min_hold } = AcquireQuery::read(pairs, &limits)?;
        let default_max_hold = limits.default_max_hold.max(ttl.as_duration());
        let max_hold = max_hold.unwrap_or(default_max_hold.max(min_hold.unwrap_or_default()));
        Ok(Self { ttl, wait, owner, max_hold, min_hold })
    }

    fn waits(&self) -> bool {
        !self.wait.is_zero()
    }
}

/// The query of a `PATCH`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RenewQuery {
    /// How long the lease lasts from now, if that is longer than what is left: 10ms to 24h, as in `30s`.
    #[param(value_type = String, required = false, example = "30s")]
    pub(super) ttl: Ttl,
}

impl LockQuery for RenewQuery {
    const NAMES: &[&str] = &["ttl"];
    const RIGHT: Right = Right::Acquire;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        Ok(Self { ttl: read_ttl(pairs, limits)? })
    }
}

/// The query of a `DELETE`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReleaseQuery {
    /// With `true` the lock is broken, whoever holds it. Then no `Lease-Token` is sent.
    #[param(value_type = bool, required = false, example = true)]
    pub(super) force: bool,
    /// With `force`: the number of the grant that is to be broken. Where another holds the lock by then, nothing is done.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64,
        example = 1_795_240_800_123_456_u64)]
    pub(super) fencing_token: Option<FencingToken>,
}

impl LockQuery for ReleaseQuery {
    const NAMES: &[&str] = &["force", "fencing_token"];
    const RIGHT: Right = Right::Acquire;

    fn right(&self) -> Right {
        if self.force { Right::Admin } else { Self::RIGHT }
    }

    fn operation(&self) -> Option<Operation> {
        self.force.then_some(Operation::Break)
    }

    fn read(pairs: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        let force = match pairs.take("force") {
            Some(text) if text == b"true" => true,
            Some(_) => return Err(bad_parameter("force", "write force=true, or leave it out")),
            None => false,
        };
        let Some(text) = pairs.take("fencing_token") else { return Ok(Self { force, fencing_token: None }) };
        if !force {
            return Err(bad_parameter(
                "fencing_token",
                "it goes with force=true; a release is told by its token",
            ));
        }
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        let fencing_token = number.and_then(FencingToken::new);
        let is_none =
            || bad_parameter("fencing_token", "write the number of a grant, as a look at the lock says it");
        Ok(Self { force, fencing_token: Some(fencing_token.ok_or_else(is_none)?) })
    }
}

/// The query of a `GET`: nothing.
pub(super) struct InspectQuery;

impl LockQuery for InspectQuery {
    const NAMES: &[&str] = &[];
    const RIGHT: Right = Right::Inspect;

    fn read(_: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl<Q: LockQuery> FromRequest<AppState> for LockCall<Q> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let caller = caller(&parts)?;
        let call = Self::read(&parts, &app.limits.lowered_to(caller.max_ttl()), caller)?;
        if let Some(noted) = parts.extensions.get::<Noted>() {
            let (key, query) = (Some(call.key.clone()), &call.query);
            noted.set(Note { right: query.right(), key, operation: query.operation(), waits: query.waits() });
        }
        // On the key as it was decoded, so that both forms of the address mean the same.
        call.caller.check(call.query.right(), &call.key)?;
        refuse_body(&parts.headers, body).await?;
        Ok(call)
    }
}

/// Who makes the request, as was found when it was let in.
pub(super) fn caller(parts: &Parts) -> Result<Caller, Problem> {
    let caller = parts.extensions.get::<Noted>().and_then(Noted::caller);
    caller
        .cloned()
        .ok_or_else(|| Problem::new(ProblemType::InternalError, "nobody asked who makes the request"))
}

/// Who makes the request, for handlers.
pub(super) struct CalledBy(pub(super) Caller);

impl FromRequestParts<AppState> for CalledBy {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Problem> {
        caller(parts).map(Self)
    }
}

impl<Q: LockQuery> LockCall<Q> {
    fn read(parts: &Parts, limits: &Limits, caller: Caller) -> Result<Self, Problem> {
        let mut pairs = pairs_of(&parts.uri)?;
        let path = parts.uri.path();
        let (key, takes_key) = match path.strip_prefix(PATH_FORM) {
            Some(segment) => (key_in_path(segment)?, false),
            None => (key_in_query(path, &mut pairs)?, true),
        };
        let query = Q::read(&mut pairs, limits)?;
        refuse_others(&pairs, takes_key.then_some("key").into_iter().chain(Q::NAMES.iter().copied()))?;
        Ok(Self { key, token: lease_token(&parts.headers)?, query, caller })
    }
}

/// The parameters of a query.
pub(super) fn pairs_of(uri: &Uri) -> Result<Pairs, Problem> {
    Pairs::parse(uri.query().unwrap_or_default()).map_err(|error| match error {
        QueryError::Malformed(name) => bad_parameter(&name, "a % must be followed by two hexadecimal digits"),
        QueryError::Repeated(name) => bad_parameter(&name, "the parameter is given more than once"),
        QueryError::TooMany(name) => bad_parameter(&name, "there are more parameters than any request takes"),
    })
}

/// Refuses parameters that nobody took, where these are all that there are.
pub(super) fn refuse_others<'a>(pairs: &Pairs, names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let Some(name) = pairs.left_over() else { return Ok(()) };
    let names: Vec<_> = names.collect();
    let known = if names.is_empty() { "no parameters".to_owned() } else { names.join(", ") };
    Err(bad_parameter(name, format!("the parameter is unknown; this request takes {known}")))
}

/// What to say of an address below `/locks/` that no lock has.
pub(super) fn explain_missing(uri: &Uri) -> Problem {
    match uri.path().strip_prefix(PATH_FORM) {
        Some("") => bad_key("the key is empty"),
        Some(_) => Problem::new(
            ProblemType::NotFound,
            "a key with slashes is written with %2F, or goes into the query: /lock?key=a/b",
        ),
        None => Problem::new(ProblemType::NotFound, "locks are at /lock?key=…; /docs introduces the rest"),
    }
}

fn key_in_path(segment: &str) -> Result<LockKey, Problem> {
    let bytes = decode(segment).ok_or_else(|| bad_key("a % must be followed by two hexadecimal digits"))?;
    let key = LockKey::parse(&bytes).map_err(|error| bad_key(error.to_string()))?;
    if key.is_risky_in_path() {
        return Err(bad_key(
            "a key with an empty, . or .. segment is not safe in a path, because proxies rewrite it: use /lock?key=",
        ));
    }
    Ok(key)
}

fn key_in_query(path: &str, pairs: &mut Pairs) -> Result<LockKey, Problem> {
    let missing = || bad_key(format!("say which lock: {path}?key=…"));
    let bytes = pairs.take("key").ok_or_else(missing)?;
    key_of(&bytes)
}

/// The key that these decoded bytes are.
pub(super) fn key_of(bytes: &[u8]) -> Result<LockKey, Problem> {
    LockKey::parse(bytes).map_err(|error| bad_key(error.to_string()))
}

fn lease_token(headers: &HeaderMap) -> Result<Option<LeaseToken>, Problem> {
    let bad = |detail: String| Problem::input(ProblemType::BadToken, "Lease-Token", detail);
    let mut values = headers.get_all(LEASE_TOKEN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad("the header is given more than once".into()));
    }
    LeaseToken::parse(value.as_bytes()).map(Some).map_err(|error| bad(error.to_string()))
}

fn read_ttl(pairs: &mut Pairs, limits: &Limits) -> Result<Ttl, Problem> {
    let ttl = match pairs.take("ttl") {
        Some(text) => duration("ttl", &text, limits.min_ttl, limits.max_ttl)?,
        None => limits.default_ttl,
    };
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Ttl::from_ms(ttl_ms).ok_or_else(|| bad_parameter("ttl", "a lease cannot be empty"))
}

/// Reads a duration with a unit, in whole milliseconds, within bounds.
fn duration(name: &str, text: &[u8], min: Duration, max: Duration) -> Result<Duration, Problem> {
    let text = std::str::from_utf8(text).map_err(|_| bad_parameter(name, "the value is not UTF-8"))?;
    let is_none = || bad_parameter(name, "write a duration with its unit, such as 500ms, 30s, 2m or 1h30m");
    let duration = parse_duration(text).ok_or_else(is_none)?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(bad_parameter(name, "write whole milliseconds"));
    }
    if duration < min || duration > max {
        let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
        return Err(bad_parameter(name, format!("the value must be from {min} to {max}")));
    }
    Ok(duration)
}

/// Nothing is ever said in a body; one that is there was meant to say something, and must not be overlooked.
pub(super) async fn refuse_body(headers: &HeaderMap, mut body: Body) -> Result<(), Problem> {
    let refuse = |detail| Err(Problem::new(ProblemType::UnexpectedBody, detail));
    if headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0") {
        return refuse("say everything in the path, the query and the headers");
    }
    if body.is_end_stream() {
        return Ok(());
    }
    let look = async {
        // A chunked body tells only by its first byte whether it is empty.
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) if frame.data_ref().is_none_or(|data| data.is_empty()) => {}
                Ok(_) => return refuse("say everything in the path, the query and the headers"),
                Err(_) => return refuse("the body is malformed"),
            }
        }
        Ok(())
    };
    timeout(BODY_TIMEOUT, look).await.unwrap_or_else(|_| refuse("the body did not end in time"))
}

pub(super) fn bad_parameter(name: &str, detail: impl Into<String>) -> Problem {
    Problem::input(ProblemType::BadParameter, name, detail)
}

fn bad_key(detail: impl Into<String>) -> Problem {
    Problem::input(ProblemType::BadKey, "key", detail)
}
