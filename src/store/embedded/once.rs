//! Records in the embedded store.

use futures_util::future::{self, FutureExt};
use tokio::time::Instant;

use super::EmbeddedStore;
use crate::store::{OnceRequest, Replying, StoreError};

impl EmbeddedStore {
    /// Does what a request about records asks for.
    pub(super) fn run_once(&self, _: &OnceRequest, _: Instant) -> Replying<'_> {
        future::ready(Err(StoreError::Unavailable("this store keeps no records yet".to_owned()))).boxed()
    }
}
