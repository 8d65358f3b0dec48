//! How a Redis store behaves, and what an operator accepts of its servers.

use std::time::Duration;

use crate::store::LineSettings;

/// How a Redis store behaves.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// What every key of ours begins with.
    pub prefix: String,
    /// How long it may take to open each connection, then to learn the server, and each look at it.
    pub reply_timeout: Duration,
    /// What would otherwise be a reason to refuse a server.
    pub accepted: Vec<Risk>,
    /// How long a freed token and a voided attempt are remembered: longer than any copy of a command can be late.
    pub mark_ttl: Duration,
    /// How wait queues behave.
    pub line: LineSettings,
    /// How many replicas must have acknowledged a lock before it is handed out.
    pub replicas_ack: u32,
    /// The longest lease that may be asked for. A quorum must know it.
    pub max_ttl: Duration,
    /// Which list of a quorum's servers this is: each change of it has a larger number.
    pub list_epoch: u64,
    /// How much memory a server may use before no new records are begun on it.
    pub once_memory: OnceMemory,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            prefix: "fencepost".to_owned(),
            reply_timeout: Duration::from_secs(1),
            accepted: Vec::new(),
            mark_ttl: Duration::from_secs(120),
            line: LineSettings::default(),
            replicas_ack: 0,
            max_ttl: Duration::from_secs(300),
            list_epoch: 1,
            once_memory: OnceMemory::default(),
        }
    }
}

/// How much memory a server may use before no new records are begun on it. A third more, and results are refused too, but for
/// short ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceMemory {
    /// So many bytes.
    Bytes(u64),
    /// So much of its `maxmemory`. Where there is none, no record is begun.
    Percent(u8),
}

impl Default for OnceMemory {
    fn default() -> Self {
        Self::Percent(60)
    }
}

/// A reason to refuse a server, which an operator may accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// The server may drop locks that are held.
    Eviction,
    /// The server is a replica.
    Replica,
    /// The server is older than what the scripts need.
    OldServer,
    /// The gateway's user may not run all that is needed.
    MissingPermission,
}

impl Risk {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Eviction, Self::Replica, Self::OldServer, Self::MissingPermission];

    /// What it is called in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::Replica => "replica",
            Self::OldServer => "old-server",
            Self::MissingPermission => "missing-permission",
        }
    }

    /// What is put at risk.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Eviction => "the server drops locks that are held when its memory is full",
            Self::Replica => "the server is a replica, and what is written to it is lost",
            Self::OldServer => "the server is older than 6.2, and waiting requests fail",
            Self::MissingPermission => "some requests fail for want of a permission",
        }
    }
}
