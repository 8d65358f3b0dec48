//! The list of all locks that are held, page by page.

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use utoipa::IntoParams;

use crate::access::{Caller, Right};
use crate::api::answers::{self, JSON, LockList, LockView, example_list};
use crate::api::context::Asked;
use crate::api::extract::{Pairs, bad_parameter, context_of, pairs_of, refuse_body, refuse_others, whole};
use crate::api::openapi::ListProblems;
use crate::api::problem::Problem;
use crate::api::state::AppState;
use crate::lock::LockKey;
use crate::store::List;

/// How many locks a page has at most, by default.
const DEFAULT_LIMIT: usize = 100;
/// The most locks that a request may ask for.
const MOST: usize = 1_000;
/// The longest cursor that a store gives.
const LONGEST_CURSOR: usize = 4_096;

/// The query of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Lists only those whose names begin with this text. No character in it has a special meaning.
    #[param(value_type = String, required = false, max_length = 512, example = "ci/")]
    pub(super) prefix: String,
    /// How many a page has at most; the default is 100. A page may have fewer although more pages follow.
    #[param(value_type = u16, required = false, minimum = 1, maximum = 1_000, example = 100)]
    pub(super) limit: usize,
    /// The `next_cursor` of the page before. If the gateway no longer knows it, as after a restart, the list starts
    /// again.
    #[param(value_type = String, required = false, pattern = "^[A-Za-z0-9._-]+$", max_length = 4_096,
        example = "5d1f0c2b7a9e4836.0.1024")]
    pub(super) cursor: Option<String>,
}

/// A request for a page. Its caller may list what it asks for.
pub(super) struct ListCall {
    pub(super) caller: Caller,
    pub(super) query: ListQuery,
}

/// List locks
///
/// Lists the held locks that you may see. A page may be short or empty although more pages follow: go on with `next_cursor`
/// until there is none. A lock that is held from the first page to the last is listed at least once, and may be on two pages.
/// A lock that is taken or released meanwhile may be missing.
#[utoipa::path(
    get, path = "/locks", tag = "locks",
    params(ListQuery),
    responses(
        (status = 200, description = "Some of the locks that are held.", body = LockList, example = json!(example_list())),
        ListProblems,
    )
)]
pub(super) async fn list_locks(State(app): State<AppState>, call: ListCall) -> Result<Response, Problem> {
    let ListCall { caller, query } = call;
    let turn = app.service.turn_to_list(caller.id()).await?;
    let ListQuery { prefix, cursor, limit } = query;
    let list = List { reach: caller.reach(Right::List, &prefix), cursor, limit };
    let page = app.service.list(&turn, list).await?;
    let list = LockList { locks: page.locks.iter().map(LockView::of).collect(), next_cursor: page.next };
    Ok(answers::json(StatusCode::OK, JSON, &list))
}

impl FromRequest<AppState> for ListCall {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let (context, caller) = context_of(&parts)?;
        context.set_asked(Asked::of(Right::List, None));
        let mut pairs = pairs_of(&parts, 1)?;
        let query = ListQuery::read(&mut pairs)?;
        refuse_others(&pairs, ["prefix", "limit", "cursor"].into_iter())?;
        caller.check_prefix(Right::List, &query.prefix)?;
        refuse_body(parts, body, app).await?;
        Ok(Self { caller, query })
    }
}

impl ListQuery {
    fn read(pairs: &mut Pairs) -> Result<Self, Problem> {
        let prefix = match pairs.take("prefix").filter(|prefix| !prefix.is_empty()) {
            // No lock can have such a name, so no lock's name begins with it. The prefix is a mistake.
            Some(prefix) => {
                let key =
                    LockKey::parse(&prefix).map_err(|error| bad_parameter("prefix", error.to_string()))?;
                key.as_str().to_owned()
            }
            None => String::new(),
        };
        let limit = match pairs.take("limit") {
            Some(text) => whole(&text)
                .filter(|limit| (1..=MOST).contains(limit))
                .ok_or_else(|| bad_parameter("limit", format!("write a number from 1 to {MOST}")))?,
            None => DEFAULT_LIMIT,
        };
        let cursor = pairs.take("cursor").map(read_cursor).transpose()?;
        Ok(Self { prefix, limit, cursor })
    }
}

fn read_cursor(text: Vec<u8>) -> Result<String, Problem> {
    let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_one = (1..=LONGEST_CURSOR).contains(&text.len()) && text.iter().all(in_alphabet);
    let text = String::from_utf8(text).ok().filter(|_| is_one);
    text.ok_or_else(|| {
        bad_parameter(
            "cursor",
            "send the next_cursor of the page before, unchanged; or leave it out to begin anew",
        )
    })
}
