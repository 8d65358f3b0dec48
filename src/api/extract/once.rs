//! What a request about one record may say, besides the key: in its query, and in headers of its own.

use std::time::Duration;

use axum::http::HeaderMap;
use utoipa::IntoParams;

use super::parameters::{bad_parameter, duration, read_ttl, shown_number, single, whole};
use super::queries::{LockQuery, owner, read_fencing_token, read_flag, read_wait};
use super::query_string::Pairs;
use crate::access::Right;
use crate::api::context::{Asked, Operation};
use crate::api::headers::ONCE_FINGERPRINT;
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::Limits;
use crate::lock::{FencingToken, LockKey, Owner, Ttl};
use crate::once::{Fingerprint, Keep, WorkStatus};

/// Where the path form of a record's address begins.
pub(super) const PATH_FORM: &str = "/once/";

/// The query of a `PUT`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BeginQuery {
    /// How long the lease lasts, such as `30s`: within the limits of locks, with the same default. If you crash, another may take
    /// over at its end.
    #[param(value_type = String, required = false, example = "30s")]
    pub(crate) ttl: Ttl,
    /// How long to wait while another does the work, such as `20s`. The default is `0s`: the answer comes at once.
    #[param(value_type = String, required = false, example = "20s")]
    pub(crate) wait: Duration,
    /// How long the result is kept, from the moment when it is stored: `2m` to `168h`. The default is `24h`. Afterwards the key is new,
    /// and a repetition does the work again.
    #[param(value_type = String, required = false, example = "24h")]
    pub(crate) keep: Keep,
    /// A note for people that says who does the work: up to 256 bytes without control characters.
    #[param(value_type = String, required = false, max_length = 256, example = "shop@web1")]
    pub(crate) owner: Option<Owner>,
    /// `false`: do not take over if a worker before may have done the work. The default is `true`.
    #[param(value_type = bool, required = false)]
    pub(crate) takeover: bool,
    /// What a header says that the request is.
    #[param(ignore)]
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl LockQuery for BeginQuery {
    const RIGHT: Right = Right::Once;
    const PATH_FORM: &str = PATH_FORM;
    const NAMES: &[&str] = &["ttl", "wait", "keep", "owner", "takeover"];

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        let (ttl, wait) = (read_ttl(pairs, limits)?, read_wait(pairs, limits)?);
        let keep = read_keep(pairs)?.unwrap_or(Keep::DEFAULT);
        let (owner, takeover) = (owner(pairs)?, read_flag(pairs, "takeover", true)?);
        Ok(Self { ttl, wait, keep, owner, takeover, fingerprint: None })
    }

    fn read_headers(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        self.fingerprint = fingerprint(headers)?;
        Ok(())
    }

    fn asked(&self, key: LockKey) -> Asked {
        Asked { waits: !self.wait.is_zero(), ..Asked::of(Self::RIGHT, Some(key)) }
    }
}

/// The query of a `POST`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StoreQuery {
    /// How long the result is kept, from now: `2m` to `168h`. The default is what the `PUT` said.
    #[param(value_type = String, required = false, example = "1h")]
    pub(crate) keep: Option<Keep>,
    /// A number that is kept with the result, from 0 to 999: an exit status, or the HTTP status of the answer that you give.
    #[param(value_type = u16, required = false, maximum = 999, example = 201)]
    pub(crate) status: Option<WorkStatus>,
}

impl LockQuery for StoreQuery {
    const RIGHT: Right = Right::Once;
    const PATH_FORM: &str = PATH_FORM;
    const NAMES: &[&str] = &["keep", "status"];

    fn read(pairs: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        let keep = read_keep(pairs)?;
        let Some(text) = pairs.take("status") else { return Ok(Self { keep, status: None }) };
        let status = whole(&text).and_then(WorkStatus::new);
        let is_none = || bad_parameter("status", format!("write a number from 0 to {}", WorkStatus::MAX));
        Ok(Self { keep, status: Some(status.ok_or_else(is_none)?) })
    }
}

/// The query of a `PATCH`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RenewWorkQuery {
    /// How long the lease lasts from now on, such as `30s`, if that is longer than what is left.
    #[param(value_type = String, required = false, example = "30s")]
    pub(crate) ttl: Ttl,
    /// The number that a header shows.
    #[param(ignore)]
    pub(crate) fence: Option<FencingToken>,
}

impl LockQuery for RenewWorkQuery {
    const RIGHT: Right = Right::Once;
    const PATH_FORM: &str = PATH_FORM;
    const NAMES: &[&str] = &["ttl"];

    fn read(pairs: &mut Pairs, limits: &Limits) -> Result<Self, Problem> {
        Ok(Self { ttl: read_ttl(pairs, limits)?, fence: None })
    }

    fn read_headers(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        self.fence = shown_number(headers)?;
        Ok(())
    }
}

/// The query of a `DELETE`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GiveUpQuery {
    /// `true`: you have certainly done nothing. Without it, the next worker is told that you may have. With `force`: certainly
    /// nothing was done, and the record is forgotten.
    #[param(value_type = bool, required = false)]
    pub(crate) clean: bool,
    /// `true` breaks the record: it ends the place of any worker, or removes the result. Then send no `Lease-Token`.
    #[param(value_type = bool, required = false)]
    pub(crate) force: bool,
    /// With `force`: the fencing token of the worker whose place you want to end. If the record has another one by now, nothing is
    /// done.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) fencing_token: Option<FencingToken>,
}

impl LockQuery for GiveUpQuery {
    const RIGHT: Right = Right::Once;
    const PATH_FORM: &str = PATH_FORM;
    const NAMES: &[&str] = &["clean", "force", "fencing_token"];

    fn read(pairs: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        let clean = read_flag(pairs, "clean", false)?;
        let force = read_flag(pairs, "force", false)?;
        let fencing_token = read_fencing_token(pairs, force)?;
        Ok(Self { clean, force, fencing_token })
    }

    fn read_headers(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        if shown_number(headers)?.is_some() {
            let detail = "DELETE compares no Fencing-Token header: leave it out";
            return Err(Problem::input(ProblemType::BadParameter, "Fencing-Token", detail));
        }
        Ok(())
    }

    fn asked(&self, key: LockKey) -> Asked {
        match self.force {
            true => Asked { operation: Some(Operation::OnceBreak), ..Asked::of(Right::Admin, Some(key)) },
            false => Asked::of(Self::RIGHT, Some(key)),
        }
    }
}

/// The query of a `GET`: nothing.
pub(crate) struct LookQuery;

impl LockQuery for LookQuery {
    const RIGHT: Right = Right::Inspect;
    const PATH_FORM: &str = PATH_FORM;
    const NAMES: &[&str] = &[];

    fn read(_: &mut Pairs, _: &Limits) -> Result<Self, Problem> {
        Ok(Self)
    }
}

fn read_keep(pairs: &mut Pairs) -> Result<Option<Keep>, Problem> {
    let Some(text) = pairs.take("keep") else { return Ok(None) };
    Ok(Keep::new(duration("keep", &text, Keep::SHORTEST, Keep::LONGEST)?))
}

/// What a request says of itself in `Once-Fingerprint`.
fn fingerprint(headers: &HeaderMap) -> Result<Option<Fingerprint>, Problem> {
    let Some(text) = single(headers, &ONCE_FINGERPRINT, "Once-Fingerprint")? else { return Ok(None) };
    let is_none = || {
        let detail = format!(
            "write 1 to {} visible ASCII characters, such as a hash of method, path and body",
            Fingerprint::MAX_CHARS
        );
        Problem::input(ProblemType::BadParameter, "Once-Fingerprint", detail)
    };
    Fingerprint::of(text).map(Some).ok_or_else(is_none)
}
