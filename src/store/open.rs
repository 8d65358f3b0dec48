//! Which store is at an address of Redis servers.

use std::sync::Arc;

use super::LockStore;
use super::quorum::QuorumStore;
use super::redis::{AddressError, RedisAddress, RedisSettings, RedisStore};
use crate::clock::SystemClock;

/// Starts to connect to what is at an address.
pub fn open(address: &RedisAddress, settings: &RedisSettings) -> Result<Arc<dyn LockStore>, AddressError> {
    Ok(if address.is_quorum() {
        Arc::new(QuorumStore::start(address, settings, Arc::new(SystemClock))?)
    } else {
        Arc::new(RedisStore::start(address, settings)?)
    })
}
