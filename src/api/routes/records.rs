//! The list of all records, page by page.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::list::{ListCall, ListQuery};
use crate::access::Right;
use crate::api::answers::{self, JSON, RecordInfo, RecordList, example_records};
use crate::api::openapi::RecordsProblems;
use crate::api::problem::Problem;
use crate::api::state::AppState;
use crate::store::ListRecords;

/// List records
///
/// Lists the records that you may see, without their results, page by page as the list of locks.
#[utoipa::path(
    get, path = "/records", tag = "once",
    params(ListQuery),
    responses(
        (status = 200, description = "Some of the records.", body = RecordList, example = json!(example_records())),
        RecordsProblems,
    )
)]
pub(super) async fn list_records(State(app): State<AppState>, call: ListCall) -> Result<Response, Problem> {
    app.needs_records(None)?;
    let ListCall { caller, query } = call;
    let turn = app.service.turn_to_list(caller.id()).await?;
    let ListQuery { prefix, cursor, limit } = query;
    let list = ListRecords { reach: caller.reach(Right::List, &prefix), cursor, limit };
    let page = app.service.list_records(&turn, list).await?;
    let records = page.records.iter().map(|(key, record)| RecordInfo::of(key, record)).collect();
    Ok(answers::json(StatusCode::OK, JSON, &RecordList { records, next_cursor: page.next }))
}
