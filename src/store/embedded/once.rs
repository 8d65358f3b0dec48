//! Records in the embedded store. What a step does to one is in `table::once`.

use futures_util::future::{FutureExt, TryFutureExt};
use tokio::time::Instant;

use super::EmbeddedStore;
use super::table::Table;
use super::writer::Kind;
use crate::once::{RecordPage, RecordView};
use crate::store::{
    ListRecords, LookAtRecord, OnceReply, OnceRequest, Reply, Replying, StoreError, StoreResult,
};

impl EmbeddedStore {
    /// Does what a request about records asks for.
    pub(super) fn run_once<'a>(&'a self, request: &'a OnceRequest, deadline: Instant) -> Replying<'a> {
        match request {
            OnceRequest::Begin(request) => self.try_change(request, deadline, Table::begin),
            OnceRequest::StoreResult(request) => self.store_result(request, deadline),
            OnceRequest::RenewWork(request) => self.change(request, deadline, Table::renew_work),
            OnceRequest::GiveUp(request) => self.change(request, deadline, Table::give_up),
            OnceRequest::UndoBegin(request) => self.change(request, deadline, Table::undo_begin),
            OnceRequest::LookAtRecord(request) => {
                let seen = self.look_at_record(request, deadline);
                seen.map_ok(OnceReply::LookAtRecord).map_ok(Reply::Once).boxed()
            }
            OnceRequest::BreakRecord(request) => self.change(request, deadline, Table::break_record),
            OnceRequest::ListRecords(request) => {
                let page = self.list_records(request, deadline);
                page.map_ok(OnceReply::ListRecords).map_ok(Reply::Once).boxed()
            }
        }
    }

    fn store_result(&self, request: &StoreResult, deadline: Instant) -> Replying<'_> {
        let (request, kind) = (request.clone(), Kind::Change { bytes: request.result.body.len() });
        let step = move |table: &mut Table, now| Ok(table.store_result(&request, now));
        self.submit(deadline, kind, step).map_ok(OnceReply::StoreResult).map_ok(Reply::Once).boxed()
    }

    async fn look_at_record(
        &self,
        request: &LookAtRecord,
        deadline: Instant,
    ) -> Result<Option<RecordView>, StoreError> {
        let look = request.clone();
        let look = move |table: &mut Table, now| Ok(table.see_record(&look, now));
        if let Some(seen) = self.submit(deadline, Kind::Look, look).await? {
            return Ok(seen);
        }
        let request = request.clone();
        self.submit(deadline, Kind::CHANGE, move |table, now| Ok(table.look_at_record(&request, now))).await
    }

    async fn list_records(&self, request: &ListRecords, deadline: Instant) -> Result<RecordPage, StoreError> {
        let ListRecords { reach, cursor, limit } = request;
        let (records, next) =
            self.page(reach, cursor.as_deref(), *limit, deadline, Table::list_records).await?;
        Ok(RecordPage { records, next })
    }
}
