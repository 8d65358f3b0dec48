//! What a request about one lock may say in its query, besides the key.

use std::time::Duration;

use axum::http::HeaderMap;
use utoipa::IntoParams;

use super::parameters::{bad_parameter, duration, number, read_ttl, shown_number};
use super::query_string::Pairs;
use crate::access::Right;
use crate::api::context::{Asked, Operation};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::{Limits, NEVER_RENEWED_TTL};
use crate::lock::{FencingToken, LockKey, Owner, Slots, Terms, Ttl};
use crate::service::MOST_LOCKS;

/// The shortest `min_hold`.
const SHORTEST_MIN_HOLD: Duration = Duration::from_millis(1);
/// The default lease of a lock that a connection holds, and the shortest one. A third of it must be long enough to send
/// a lost packet again.
const HELD_TTL: Duration = Duration::from_secs(15);
const SHORTEST_HELD_TTL: Duration = Duration::from_secs(1);

/// The query parameters that a method takes, besides `key`.
pub(crate) trait LockQuery: Sized + Send {
    /// Where the path form of the address begins.
    const PATH_FORM: &str = "/locks/";
    /// Their names, for the error that lists them.
    const NAMES: &[&str];
    /// How many locks the request may be about at once.
    const MOST_KEYS: usize = 1;
    /// The right that it takes, unless the query asks for more.
    const RIGHT: Right;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem>;

    /// Reads what a parameter leaves to a header.
    fn read_headers(&mut self, _: &HeaderMap) -> Result<(), Problem> {
        Ok(())
    }

    /// What the request asks for, if it is about this lock.
    fn asked(&self, key: LockKey) -> Asked {
        Asked::of(Self::RIGHT, Some(key))
    }
}

/// The query of a `PUT`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AcquireQuery {
    /// How long the lease lasts, such as `500ms`, `30s`, `2m` or `1h30m`: 10ms to 24h, unless the gateway or the API key has other
    /// limits. The default is 30s, or the longest that they allow. A number without a unit is refused.
    #[param(value_type = String, required = false, example = "30s")]
    pub(crate) ttl: Ttl,
    /// How long to wait for the lock, such as `20s`: up to 60s, unless the gateway has another limit. The default is `0s`: the
    /// answer comes at once.
    #[param(value_type = String, required = false, example = "20s")]
    pub(crate) wait: Duration,
    /// A note for people that says who takes the lock: up to 256 bytes without control characters.
    #[param(value_type = String, required = false, max_length = 256, example = "cron@db1")]
    pub(crate) owner: Option<Owner>,
    /// The longest time that you may hold the lock, from the grant, such as `2h`: no renewal makes the lease longer. At least `ttl`.
    #[param(value_type = String, required = false, example = "2h")]
    pub(crate) max_hold: Option<Duration>,
    /// The time from the grant for which the lock stays taken at least, such as `50s`. If you release the lock before, it has no
    /// holder and cannot be taken until then. At most `max_hold`, and the longest `ttl`.
    #[param(value_type = String, required = false)]
    pub(crate) min_hold: Option<Duration>,
    /// How many may hold the lock at once, you included, for as long as you hold it: 1 to 1000, or `any` for the most. Each of them
    /// has a `slot` of its own. The smallest number counts that a holder or you say. The default is 1: the lock excludes all others.
    #[param(value_type = String, required = false, example = "5")]
    pub(crate) slots: Slots,
}

impl AcquireQuery {
    pub(crate) fn terms(&self) -> Terms {
        Terms { max_hold: self.max_hold, min_hold: self.min_hold, slots: self.slots }
    }
}

impl LockQuery for AcquireQuery {
    const RIGHT: Right = Right::Acquire;
    const NAMES: &[&str] = &["ttl", "wait", "owner", "max_hold", "min_hold", "slots"];
    const MOST_KEYS: usize = MOST_LOCKS;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let (ttl, wait) = (read_ttl(pairs, limits)?, read_wait(pairs, limits)?);
        let owner = owner(pairs)?;
        let max_hold = pairs.take("max_hold");
        let max_hold = max_hold
            .map(|text| duration("max_hold", &text, ttl.as_duration(), Terms::LONGEST_MAX_HOLD))
            .transpose()?;
        let min_hold = pairs.take("min_hold");
        let longest = limits.max_ttl.min(max_hold.unwrap_or(Duration::MAX));
        let min_hold =
            min_hold.map(|text| duration("min_hold", &text, SHORTEST_MIN_HOLD, longest)).transpose()?;
        let slots = read_slots(pairs)?;
        Ok(Self { ttl, wait, owner, max_hold, min_hold, slots })
    }

    fn asked(&self, key: LockKey) -> Asked {
        Asked { waits: !self.wait.is_zero(), ..Asked::of(Self::RIGHT, Some(key)) }
    }
}

/// The query of a request of Terraform.
pub(crate) struct TerraformQuery {
    /// Judged by those who take a lock: to unlock needs none, and limits may have changed meanwhile.
    pub(crate) ttl: Result<Ttl, Problem>,
}

impl LockQuery for TerraformQuery {
    const RIGHT: Right = Right::Acquire;
    const PATH_FORM: &str = "/terraform/";
    const NAMES: &[&str] = &["ttl"];

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let default_ttl = NEVER_RENEWED_TTL.max(limits.min_ttl);
        let ttl = read_ttl(pairs, &Limits { default_ttl, ..*limits });
        let ttl = ttl.and_then(|ttl| match ttl.as_duration() > limits.max_ttl {
            true => Err(bad_parameter(
                "ttl",
                "the lease is never renewed, and this API key allows none of 24h: say in ttl how long",
            )),
            false => Ok(ttl),
        });
        Ok(Self { ttl })
    }
}

/// The query of a `POST /hold`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HoldQuery {
    /// How long the lease lasts, such as `15s`: 1s to 24h, unless the gateway or the API key has other limits. The gateway renews
    /// it at each third. If your machine or the network fails, the lock is free within this time. The default is 15s, or the
    /// longest that the limits allow.
    #[param(value_type = String, required = false, example = "15s")]
    pub(crate) ttl: Ttl,
    /// How long to wait for the lock, such as `20s`: up to 60s, unless the gateway has another limit. The default is `0s`: the
    /// answer comes at once.
    #[param(value_type = String, required = false, example = "20s")]
    pub(crate) wait: Duration,
    /// A note for people that says who takes the lock: up to 256 bytes without control characters.
    #[param(value_type = String, required = false, max_length = 256, example = "cron@db1")]
    pub(crate) owner: Option<Owner>,
    /// The longest time that you may hold the lock, from the grant, such as `30m`. Then it is free, whatever you do. At least
    /// `ttl`; the default is 2h, or more if `ttl` or `min_hold` is longer.
    #[param(value_type = String, required = false, example = "2h")]
    pub(crate) max_hold: Duration,
    /// The time from the grant for which the lock stays taken at least, such as `50s`, also if the connection ends before. At most
    /// `max_hold`, and the longest `ttl`.
    #[param(value_type = String, required = false)]
    pub(crate) min_hold: Option<Duration>,
    /// How many may hold the lock at once, you included, for as long as you hold it: 1 to 1000, or `any` for the most. Each of them
    /// has a `slot` of its own. The smallest number counts that a holder or you say. The default is 1: the lock excludes all others.
    #[param(value_type = String, required = false, example = "5")]
    pub(crate) slots: Slots,
}

impl LockQuery for HoldQuery {
    const RIGHT: Right = Right::Acquire;
    const NAMES: &[&str] = AcquireQuery::NAMES;
    const MOST_KEYS: usize = MOST_LOCKS;

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let longest = limits.max_ttl;
        let min_ttl = limits.min_ttl.max(SHORTEST_HELD_TTL).min(longest);
        let default_ttl = HELD_TTL.clamp(min_ttl, longest);
        let limits = Limits { default_ttl, min_ttl, ..*limits };
        let AcquireQuery { ttl, wait, owner, max_hold, min_hold, slots } =
            AcquireQuery::read(pairs, &limits)?;
        let default_max_hold = limits.default_max_hold.max(ttl.as_duration());
        let max_hold = max_hold.unwrap_or(default_max_hold.max(min_hold.unwrap_or_default()));
        Ok(Self { ttl, wait, owner, max_hold, min_hold, slots })
    }

    fn asked(&self, key: LockKey) -> Asked {
        Asked { waits: !self.wait.is_zero(), ..Asked::of(Self::RIGHT, Some(key)) }
    }
}

/// The query of a `PATCH`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RenewQuery {
    /// How long the lease lasts from now on, such as `30s`, if that is longer than what is left. The limits and the default are those
    /// of `PUT`.
    #[param(value_type = String, required = false, example = "30s")]
    pub(crate) ttl: Ttl,
}

impl LockQuery for RenewQuery {
    const RIGHT: Right = Right::Acquire;
    const NAMES: &[&str] = &["ttl"];

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        Ok(Self { ttl: read_ttl(pairs, limits)? })
    }
}

/// The query of a `DELETE`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReleaseQuery {
    /// `true` breaks the lock of any holder. Then send no `Lease-Token`.
    #[param(value_type = bool, required = false)]
    pub(crate) force: bool,
    /// With `force`: the fencing token of the grant that you want to break. If the lock has had another grant since,
    /// nothing is done.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) fencing_token: Option<FencingToken>,
}

impl LockQuery for ReleaseQuery {
    const RIGHT: Right = Right::Acquire;
    const NAMES: &[&str] = &["force", "fencing_token"];

    fn asked(&self, key: LockKey) -> Asked {
        match self.force {
            true => Asked { operation: Some(Operation::Break), ..Asked::of(Right::Admin, Some(key)) },
            false => Asked::of(Self::RIGHT, Some(key)),
        }
    }

    fn read(pairs: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        let force = read_flag(pairs, "force", false)?;
        let fencing_token = read_fencing_token(pairs, force)?;
        Ok(Self { force, fencing_token })
    }
}

/// Which grant is to be broken, in a request that says by `force` that one is.
pub(super) fn read_fencing_token(pairs: &mut Pairs, force: bool) -> Result<Option<FencingToken>, Problem> {
    let Some(text) = pairs.take("fencing_token") else { return Ok(None) };
    if !force {
        return Err(bad_parameter(
            "fencing_token",
            "fencing_token needs force=true; to end what is your own, send its Lease-Token and no fencing_token",
        ));
    }
    number(&text).map(Some).ok_or_else(no_number)
}

fn no_number() -> Problem {
    bad_parameter("fencing_token", "write the fencing_token of the grant, a whole number: GET says it")
}

/// A parameter that is either `true` or `false`, and which of them where it is left out.
pub(super) fn read_flag(pairs: &mut Pairs, name: &str, default: bool) -> Result<bool, Problem> {
    match pairs.take(name).as_deref() {
        None => Ok(default),
        Some(b"true") => Ok(true),
        // To force nothing may be a mistake.
        Some(b"false") if name != "force" => Ok(false),
        Some(_) => Err(bad_parameter(name, format!("write {name}={}, or leave it out", !default))),
    }
}

/// The number of a `slots`.
fn read_slots(pairs: &mut Pairs) -> Result<Slots, Problem> {
    let Some(text) = pairs.take("slots") else { return Ok(Slots::ONE) };
    Slots::parse(&text).ok_or_else(|| bad_parameter("slots", Slots::FORM))
}

pub(super) fn read_wait(pairs: &mut Pairs, limits: &Limits) -> Result<Duration, Problem> {
    let Some(text) = pairs.take("wait") else { return Ok(Duration::ZERO) };
    duration("wait", &text, Duration::ZERO, limits.max_wait)
}

pub(super) fn owner(pairs: &mut Pairs) -> Result<Option<Owner>, Problem> {
    let Some(text) = pairs.take("owner") else { return Ok(None) };
    Owner::parse(&text).map_err(|error| bad_parameter("owner", error.to_string()))
}

/// The query of a `GET`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InspectQuery {
    /// `true` names all who hold a lock by slots, up to 100 of them.
    #[param(value_type = bool, required = false)]
    pub(crate) holders: bool,
    /// Asks whether the grant with this number holds the lock, and nothing else: 204 if it does. `header` takes the number from the
    /// header `Fencing-Token`, for proxies that pass headers on.
    #[param(value_type = String, required = false, pattern = "^([1-9][0-9]{0,15}|header)$")]
    pub(crate) fencing_token: Option<FencingToken>,
    /// Whether a header says the number.
    #[param(ignore)]
    is_in_header: bool,
}

impl LockQuery for InspectQuery {
    const RIGHT: Right = Right::Inspect;
    const NAMES: &[&str] = &["holders", "fencing_token"];

    fn read(pairs: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        let holders = read_flag(pairs, "holders", false)?;
        let said = pairs.take("fencing_token");
        let is_in_header = said.as_deref() == Some(b"header");
        let fencing_token = match said.as_deref() {
            Some(_) if holders => {
                return Err(bad_parameter(
                    "holders",
                    "ask either who holds the lock, or whether one grant does",
                ));
            }
            Some(text) if !is_in_header => Some(number(text).ok_or_else(no_number)?),
            _ => None,
        };
        Ok(Self { holders, fencing_token, is_in_header })
    }

    fn read_headers(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_in_header {
            let is_missing = || {
                let detail = "say in the header Fencing-Token which grant is asked about";
                Problem::input(ProblemType::BadParameter, "Fencing-Token", detail)
            };
            self.fencing_token = Some(shown_number(headers)?.ok_or_else(is_missing)?);
        }
        Ok(())
    }
}
