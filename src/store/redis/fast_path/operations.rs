//! What one request asks of the small scripts, which do the same for all who are ready.

use std::sync::Arc;

use redis::Cmd;

use crate::store::redis::connection::batcher::BatchedOperation;
use crate::store::redis::connection::link::Link;
use crate::store::redis::health::identity::replication_on_cluster;
use crate::store::redis::scripts::{RENEW, Script, scripts};

scripts! {
    TAKE_FREE: "take_free.lua";
    FREE_OWN: "free_own.lua";
}

/// A lock that is to be taken, if it is free.
pub(super) struct Take {
    pub(super) lock: String,
    pub(super) tickets: String,
    pub(super) tombstone: String,
    pub(super) fence: String,
    /// Token hash and attempt, with a space behind each.
    pub(super) by: String,
    pub(super) ttl_ms: u64,
    /// With a space before.
    pub(super) note: Option<String>,
}

impl BatchedOperation for Take {
    /// If the caller has gone, it is better not to take the lock.
    const IS_OWED: bool = false;

    fn script() -> &'static Script {
        &TAKE_FREE
    }

    fn stands_first(&self) -> bool {
        true
    }

    fn keys<'a>(takes: &[&'a Self]) -> Vec<&'a [u8]> {
        let locks = takes.iter().flat_map(|take| [&take.lock, &take.tickets, &take.tombstone]);
        let fence = takes.first().map(|take| &take.fence);
        locks.chain(fence).map(String::as_bytes).collect()
    }

    fn add_args(takes: &[&Self], link: &Link, call: &mut Cmd) {
        call.arg(&link.run);
        for take in takes {
            call.arg(&take.by).arg(take.ttl_ms);
        }
        let replication_id = replication_on_cluster(&link.run);
        if replication_id.is_some() || takes.iter().any(|take| take.note.is_some()) {
            for take in takes {
                call.arg(take.note.as_deref().unwrap_or(" "));
            }
        }
        call.arg(replication_id);
    }
}

/// A lock that is to be renewed.
pub(super) struct RenewLock {
    pub(super) lock: String,
    pub(super) token: String,
    pub(super) ttl_ms: u64,
    /// The attempt of the connection that holds it; empty where the token itself renews.
    pub(super) by: String,
}

impl BatchedOperation for RenewLock {
    fn script() -> &'static Script {
        &RENEW
    }

    fn keys<'a>(renewals: &[&'a Self]) -> Vec<&'a [u8]> {
        renewals.iter().map(|renewal| renewal.lock.as_bytes()).collect()
    }

    fn add_args(renewals: &[&Self], _: &Link, call: &mut Cmd) {
        for renewal in renewals {
            call.arg(&renewal.token).arg(renewal.ttl_ms).arg(&renewal.by);
        }
    }
}

/// A lock that is to be freed, if its token holds it.
pub(super) struct Free {
    pub(super) lock: String,
    pub(super) tickets: String,
    /// The tombstone that is to be left, and how long it is to live, in ms.
    pub(super) tombstone: Option<(String, Arc<str>)>,
    pub(super) token: String,
}

impl BatchedOperation for Free {
    fn script() -> &'static Script {
        &FREE_OWN
    }

    fn stands_first(&self) -> bool {
        self.tombstone.is_some()
    }

    fn keys<'a>(frees: &[&'a Self]) -> Vec<&'a [u8]> {
        let locks = frees.iter().map(|free| &free.lock);
        let tickets = frees.iter().map(|free| &free.tickets);
        let tombstones =
            frees.iter().filter_map(|free| free.tombstone.as_ref().map(|(tombstone, _)| tombstone));
        locks.chain(tickets).chain(tombstones).map(String::as_bytes).collect()
    }

    fn add_args(frees: &[&Self], _: &Link, call: &mut Cmd) {
        call.arg(frees.iter().find_map(|free| free.tombstone.as_ref()).map_or("", |(_, life_ms)| life_ms));
        for free in frees {
            call.arg(&free.token);
        }
    }
}
