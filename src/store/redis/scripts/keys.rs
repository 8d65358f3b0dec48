//! What things are called in Redis.

use std::sync::Arc;

use crc::{CRC_16_XMODEM, Crc};
use sha2::{Digest, Sha256};

use crate::lock::{Hex, LockKey, TokenHash};
use crate::store::Bucket;
use crate::store::redis::address::Layout;

/// How a cluster counts slots, and how locks are spread over buckets.
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// What a bucket takes of a name at most: its number, and what stands around it.
const MOST_BUCKET_BYTES: usize = ":{65535}:".len();

/// So much of a hash is in the name of a tombstone.
const TOMBSTONE_BYTES: usize = 16;

/// The names of everything under one prefix.
///
/// The number of a lock's bucket stands in braces, and comes first in every name. It is the hash tag: all keys of one
/// lock share a slot, and braces in a user's key mean nothing.
#[derive(Clone, Debug)]
pub(crate) struct KeySpace {
    prefix: Arc<str>,
    buckets: u16,
    /// The number of the database. Redis keeps the keys of databases apart, and not their channels.
    database: i64,
}

/// What a name may be the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A lock.
    Lock,
    /// A record.
    Record,
}

impl NameKind {
    /// What stands in names between the bucket and the key.
    fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Record => "once",
        }
    }
}

/// The names of all that belongs to one lock, its wait queue and its slots, in the order in which scripts take them.
pub(crate) struct QueueKeys {
    lock: String,
    tickets: String,
    queue: String,
    away: String,
    due: String,
    presence: String,
    held: String,
    ends: String,
    wide: String,
}

impl QueueKeys {
    pub(crate) fn in_order(&self) -> [&[u8]; 9] {
        let Self { lock, tickets, queue, away, due, presence, held, ends, wide } = self;
        [lock, tickets, queue, away, due, presence, held, ends, wide].map(|name| name.as_bytes())
    }
}

impl KeySpace {
    /// One bucket on a single server; on a cluster as many as there are slots. A quorum has as many too: there, each
    /// number that is accepted in a bucket blocks the smaller ones that are proposed meanwhile.
    pub(crate) fn new(prefix: &str, layout: &Layout, database: i64) -> Self {
        let has_many = matches!(layout, Layout::Cluster | Layout::Quorum);
        Self { prefix: prefix.into(), buckets: if has_many { SLOTS } else { 1 }, database }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn bucket_of(&self, key: &LockKey) -> Bucket {
        Bucket(if self.buckets == 1 { 0 } else { CRC.checksum(key.as_str().as_bytes()) % self.buckets })
    }

    /// Whether all that is kept is in one slot, so that one script may touch any of it.
    pub(crate) fn share_a_slot(&self) -> bool {
        self.buckets == 1
    }

    /// Where a lock stands while it is held.
    pub(crate) fn lock(&self, key: &LockKey) -> String {
        self.name_of(self.bucket_of(key), key, "lock")
    }

    /// Where a record stands.
    pub(crate) fn once(&self, key: &LockKey) -> String {
        self.name_of(self.bucket_of(key), key, NameKind::Record.as_str())
    }

    /// Where a long result is put aside, until it is moved to its record: another place each time, by a random end.
    pub(crate) fn aside(&self, key: &LockKey, end: &str) -> String {
        format!("{}:{end}", self.name_in(self.bucket_of(key), "aside"))
    }

    /// Which tokens have a ticket for a lock.
    pub(crate) fn tickets(&self, key: &LockKey) -> String {
        self.name_of(self.bucket_of(key), key, "seats")
    }

    /// Where a lock stands, its wait queue, and those who hold it, if they are several.
    pub(crate) fn queue_of(&self, key: &LockKey) -> QueueKeys {
        let bucket = self.bucket_of(key);
        QueueKeys {
            lock: self.name_of(bucket, key, "lock"),
            tickets: self.name_of(bucket, key, "seats"),
            queue: self.name_of(bucket, key, "line"),
            away: self.name_of(bucket, key, "away"),
            due: self.due(bucket),
            presence: self.presence(bucket),
            held: self.name_of(bucket, key, "held"),
            ends: self.name_of(bucket, key, "ends"),
            wide: self.name_of(bucket, key, "wide"),
        }
    }

    /// The key of the lock that stands there.
    pub(crate) fn key_of(&self, lock: &str) -> Option<LockKey> {
        self.key_in(NameKind::Lock, lock)
    }

    /// The key of what has this name; nothing if the name only looks like one of this kind.
    pub(crate) fn key_at(&self, kind: NameKind, name: &str) -> Option<LockKey> {
        self.key_in(kind, name).filter(|key| self.name_of(self.bucket_of(key), key, kind.as_str()) == name)
    }

    fn key_in(&self, kind: NameKind, name: &str) -> Option<LockKey> {
        let key = self.behind_bucket(name)?.strip_prefix(kind.as_str())?.strip_prefix(':')?;
        LockKey::parse(key.as_bytes()).ok()
    }

    /// The `SCAN` pattern for the names of all of a kind whose keys begin with `prefix`.
    pub(crate) fn pattern_of(&self, kind: NameKind, prefix: &str) -> String {
        self.pattern_behind(&format!("{}:{}", kind.as_str(), literal(prefix)))
    }

    /// The `SCAN` pattern for the names of all kinds.
    pub(crate) fn pattern(&self) -> String {
        self.pattern_behind("")
    }

    fn pattern_behind(&self, beginning: &str) -> String {
        let bucket = if self.buckets == 1 { "0" } else { "*" };
        format!("{}:{{{bucket}}}:{beginning}*", literal(&self.prefix))
    }

    /// What stands behind the bucket in a name, and says of which kind it is.
    pub(crate) fn kind_in<'a>(&self, name: &'a str) -> Option<&'a str> {
        let rest = self.behind_bucket(name)?;
        Some(rest.split_once(':').map_or(rest, |(kind, _)| kind))
    }

    /// The bucket of what has this name.
    pub(crate) fn bucket_in(&self, name: &str) -> Option<Bucket> {
        let (bucket, _) = self.split_at_bucket(name)?;
        bucket.parse().ok().map(Bucket)
    }

    fn behind_bucket<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.split_at_bucket(name).map(|(_, rest)| rest)
    }

    fn split_at_bucket<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        name.strip_prefix(&*self.prefix)?.strip_prefix(":{")?.split_once("}:")
    }

    /// Where gateways say that they are alive.
    pub(crate) fn presence(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "gates")
    }

    /// Where it is kept which locks are due.
    pub(crate) fn due(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "due")
    }

    /// Where a gateway is told what concerns its waiters.
    pub(crate) fn channel(&self, bucket: Bucket, gateway: &str) -> String {
        format!("{}:{gateway}", self.presence(bucket))
    }

    /// Where the gateways of a database tell each other who watches, and what happens.
    pub(crate) fn peer_channels(&self) -> [String; 2] {
        ["watchers", "events"].map(|topic| match self.database {
            0 => format!("{}:{topic}", self.prefix),
            database => format!("{}:{topic}:{database}", self.prefix),
        })
    }

    /// Where the tombstone of a freed token or of voided attempts stands: a hash, since a token is marked per key.
    pub(crate) fn tombstone(&self, key: &LockKey, token: &TokenHash) -> String {
        let digest = Sha256::new().chain_update(token.as_bytes()).chain_update(key.as_str()).finalize();
        let mut name = self.name_with_room(self.bucket_of(key), "freed", 1 + 2 * TOMBSTONE_BYTES);
        name.push(':');
        name.push_str(&Hex(&digest[..TOMBSTONE_BYTES]).to_string());
        name
    }

    /// Where the fencing tokens stand.
    pub(crate) fn fence(&self, bucket: Bucket) -> String {
        self.name_in(bucket, "fence")
    }

    /// Where a server of a quorum has its record.
    pub(crate) fn record(&self) -> String {
        format!("{}:{{quorum}}:record", self.prefix)
    }

    /// Where a server of a quorum keeps who waits for a lock.
    pub(crate) fn watch(&self, key: &LockKey) -> String {
        self.name_of(self.bucket_of(key), key, "watch")
    }

    fn name_of(&self, bucket: Bucket, key: &LockKey, kind: &str) -> String {
        let key = key.as_str();
        let mut name = self.name_with_room(bucket, kind, 1 + key.len());
        name.push(':');
        name.push_str(key);
        name
    }

    fn name_in(&self, bucket: Bucket, kind: &str) -> String {
        self.name_with_room(bucket, kind, 0)
    }

    /// Put together by hand: each request needs some, and the machinery of formats takes longer than all else here.
    fn name_with_room(&self, Bucket(bucket): Bucket, kind: &str, room_bytes: usize) -> String {
        let mut name = String::with_capacity(self.prefix.len() + MOST_BUCKET_BYTES + kind.len() + room_bytes);
        name.push_str(&self.prefix);
        name.push_str(":{");
        match bucket {
            0 => name.push('0'),
            _ => name.push_str(&bucket.to_string()),
        }
        name.push_str("}:");
        name.push_str(kind);
        name
    }
}

/// The pattern that matches this text alone.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// The slot in which a cluster keeps all of a bucket.
pub(crate) fn slot_of(Bucket(bucket): Bucket) -> u16 {
    CRC.checksum(bucket.to_string().as_bytes()) % SLOTS
}
