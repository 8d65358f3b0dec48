//! What things are called in Redis.

use std::sync::Arc;

use crc::{CRC_16_XMODEM, Crc};
use sha2::{Digest, Sha256};

use super::address::Layout;
use crate::lock::{LockKey, TokenHash};
use crate::store::Bucket;

/// How a cluster counts slots, and how locks are spread over buckets.
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The names of everything under one prefix.
///
/// The number of a lock's bucket stands in braces, and comes first in every name: it is the hash tag, so that all keys
/// of one lock share a slot, and braces in a user's key are inert.
#[derive(Clone, Debug)]
pub(super) struct KeySpace {
    prefix: Arc<str>,
    buckets: u16,
}

/// The names of all that belongs to the line of one lock, in the order in which scripts take them.
pub(super) struct LineKeys {
    lock: String,
    seats: String,
    line: String,
    away: String,
    due: String,
    gates: String,
}

impl LineKeys {
    pub(super) fn in_order(&self) -> [&[u8]; 6] {
        [&self.lock, &self.seats, &self.line, &self.away, &self.due, &self.gates].map(|name| name.as_bytes())
    }
}

impl KeySpace {
    /// One bucket on a single server; on a cluster as many as there are slots, and on a quorum as well, since there
    /// each number that is given in a bucket is in the way of those proposed meanwhile.
    pub(super) fn new(prefix: &str, layout: &Layout) -> Self {
        let has_many = matches!(layout, Layout::Cluster | Layout::Quorum);
        Self { prefix: prefix.into(), buckets: if has_many { SLOTS } else { 1 } }
    }

    pub(super) fn bucket_of(&self, key: &LockKey) -> Bucket {
        Bucket(if self.buckets == 1 { 0 } else { CRC.checksum(key.as_str().as_bytes()) % self.buckets })
    }

    /// Where a lock stands while it is held.
    pub(super) fn lock(&self, key: &LockKey) -> String {
        self.name_of(key, "lock")
    }

    /// Where a lock stands, and its line.
    pub(super) fn line_of(&self, key: &LockKey) -> LineKeys {
        let bucket = self.bucket_of(key);
        LineKeys {
            lock: self.lock(key),
            seats: self.name_of(key, "seats"),
            line: self.name_of(key, "line"),
            away: self.name_of(key, "away"),
            due: self.due(bucket),
            gates: self.gates(bucket),
        }
    }

    /// The key of the lock that stands there.
    pub(super) fn key_of(&self, lock: &str) -> Option<LockKey> {
        let rest = lock.strip_prefix(&*self.prefix)?.strip_prefix(":{")?;
        let (_, key) = rest.split_once("}:lock:")?;
        LockKey::parse(key.as_bytes()).ok()
    }

    /// Where gateways say that they are alive.
    pub(super) fn gates(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "gates")
    }

    /// Where it is kept which locks are due.
    pub(super) fn due(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "due")
    }

    /// Where a gateway is told what concerns its waiters.
    pub(super) fn channel(&self, bucket: Bucket, gateway: &str) -> String {
        format!("{}:{gateway}", self.gates(bucket))
    }

    /// Where the mark of a freed token or of voided attempts stands: a hash, since a token is marked per key.
    pub(super) fn mark(&self, key: &LockKey, token: &TokenHash) -> String {
        let digest = Sha256::new().chain_update(token.as_bytes()).chain_update(key.as_str()).finalize();
        let short: [u8; 16] = std::array::from_fn(|i| digest[i]);
        format!("{}:{:032x}", self.name_in(self.bucket_of(key), "freed"), u128::from_be_bytes(short))
    }

    /// Where the fencing numbers stand.
    pub(super) fn fence(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "fence")
    }

    /// Where a server of a quorum has its record.
    pub(super) fn record(&self) -> String {
        format!("{}:{{quorum}}:record", self.prefix)
    }

    /// Where a server of a quorum keeps who waits for a lock.
    pub(super) fn watch(&self, key: &LockKey) -> String {
        self.name_of(key, "watch")
    }

    fn name_of(&self, key: &LockKey, kind: &str) -> String {
        let Bucket(bucket) = self.bucket_of(key);
        format!("{}:{{{bucket}}}:{kind}:{}", self.prefix, key.as_str())
    }

    fn name_in(&self, Bucket(bucket): Bucket, kind: &str) -> String {
        format!("{}:{{{bucket}}}:{kind}", self.prefix)
    }
}

/// The slot in which a cluster keeps all of a bucket.
pub(super) fn slot_of(Bucket(bucket): Bucket) -> u16 {
    CRC.checksum(bucket.to_string().as_bytes()) % SLOTS
}
