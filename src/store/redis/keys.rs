//! What things are called in Redis.

use sha2::{Digest, Sha256};

use crate::lock::{LockKey, TokenHash};

/// The only bucket of a single server. Its braces come first in every key, so that they are the hash tag and
/// braces in a user's key are inert.
const BUCKET: &str = "{0}";

/// The names of everything under one prefix.
#[derive(Clone, Debug)]
pub(super) struct KeySpace {
    lock: String,
    freed: String,
    fence: String,
}

impl KeySpace {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            lock: format!("{prefix}:{BUCKET}:lock:"),
            freed: format!("{prefix}:{BUCKET}:freed:"),
            fence: format!("{prefix}:{BUCKET}:fence"),
        }
    }

    /// Where a lock stands while it is held.
    pub(super) fn lock(&self, key: &LockKey) -> String {
        format!("{}{}", self.lock, key.as_str())
    }

    /// Where the mark of a freed token or of voided attempts stands: a hash, since a token is marked per key.
    pub(super) fn mark(&self, key: &LockKey, token: &TokenHash) -> String {
        let digest = Sha256::new().chain_update(token.as_bytes()).chain_update(key.as_str()).finalize();
        let short: [u8; 16] = std::array::from_fn(|i| digest[i]);
        format!("{}{:032x}", self.freed, u128::from_be_bytes(short))
    }

    /// Where the fencing numbers stand.
    pub(super) fn fence(&self) -> &str {
        &self.fence
    }
}
