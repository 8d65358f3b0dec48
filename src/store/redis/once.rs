//! Records on Redis: each operation one script, one round trip, as with locks.

use tokio::time::Instant;

use super::RedisStore;
use crate::store::{OnceReply, OnceRequest, StoreError};

impl RedisStore {
    /// Does what a request about records asks for.
    pub(super) async fn run_once(&self, _: &OnceRequest, _: Instant) -> Result<OnceReply, StoreError> {
        Err(StoreError::Unavailable("this store keeps no records yet".to_owned()))
    }
}
