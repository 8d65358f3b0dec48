//! Records in the embedded store. What a step does to one is in `table::once`.

use tokio::time::Instant;

use super::EmbeddedStore;
use super::queue::Kind;
use super::table::Table;
use crate::once::{RecordPage, Storing};
use crate::store::{ListRecords, StoreError, StoreResult};

impl EmbeddedStore {
    pub(super) async fn store_result(
        &self,
        request: &StoreResult,
        deadline: Instant,
    ) -> Result<Storing, StoreError> {
        let (request, kind) = (request.clone(), Kind::Change { bytes: request.result.body.len() });
        self.submit(deadline, kind, move |table, now| Ok(table.store_result(&request, now))).await
    }

    pub(super) async fn list_records(
        &self,
        request: &ListRecords,
        deadline: Instant,
    ) -> Result<RecordPage, StoreError> {
        let ListRecords { reach, cursor, limit } = request;
        let (records, next) =
            self.page(reach, cursor.as_deref(), *limit, deadline, Table::list_records).await?;
        Ok(RecordPage { records, next })
    }
}
