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
    seats: String,
    line: String,
    away: String,
    due: String,
    gates: String,
    freed: String,
    fence: String,
}

/// The names of all that belongs to the line of one lock, in the order in which scripts take them.
pub(super) struct LineKeys<'a> {
    lock: String,
    seats: String,
    line: String,
    away: String,
    due: &'a str,
    gates: &'a str,
}

impl LineKeys<'_> {
    pub(super) fn in_order(&self) -> [&[u8]; 6] {
        [&*self.lock, &*self.seats, &*self.line, &*self.away, self.due, self.gates].map(str::as_bytes)
    }
}

impl KeySpace {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            lock: format!("{prefix}:{BUCKET}:lock:"),
            seats: format!("{prefix}:{BUCKET}:seats:"),
            line: format!("{prefix}:{BUCKET}:line:"),
            away: format!("{prefix}:{BUCKET}:away:"),
            due: format!("{prefix}:{BUCKET}:due"),
            gates: format!("{prefix}:{BUCKET}:gates"),
            freed: format!("{prefix}:{BUCKET}:freed:"),
            fence: format!("{prefix}:{BUCKET}:fence"),
        }
    }

    /// Where a lock stands while it is held.
    pub(super) fn lock(&self, key: &LockKey) -> String {
        format!("{}{}", self.lock, key.as_str())
    }

    /// Where a lock stands, and its line.
    pub(super) fn line_of(&self, key: &LockKey) -> LineKeys<'_> {
        LineKeys {
            lock: self.lock(key),
            seats: format!("{}{}", self.seats, key.as_str()),
            line: format!("{}{}", self.line, key.as_str()),
            away: format!("{}{}", self.away, key.as_str()),
            due: &self.due,
            gates: &self.gates,
        }
    }

    /// The key of the lock that stands there.
    pub(super) fn key_of(&self, lock: &str) -> Option<LockKey> {
        LockKey::parse(lock.strip_prefix(&self.lock)?.as_bytes()).ok()
    }

    /// Where gateways say that they are alive, and where it is kept which locks are due.
    pub(super) fn gates_and_due(&self) -> [&[u8]; 2] {
        [self.gates.as_bytes(), self.due.as_bytes()]
    }

    /// Where a gateway is told what concerns its waiters.
    pub(super) fn channel(&self, gateway: &str) -> String {
        format!("{}:{gateway}", self.gates)
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
