//! What one request asks of the small scripts for locks that several hold, which do the same for all who are ready.

use std::sync::Arc;

use redis::Cmd;

use crate::store::redis::connection::batcher::BatchedOperation;
use crate::store::redis::connection::link::Link;
use crate::store::redis::scripts::keys::QueueKeys;
use crate::store::redis::scripts::{Script, scripts};

scripts! {
    TAKE_SLOT: after_end, each_lock, "slots/take.lua";
    FREE_SLOT: after_end, each_lock, "slots/free.lua";
    RENEW_OWN_SLOT: after_end, each_lock, "slots/renew.lua";
}

/// The locks that these are for, and for each of them which it is.
fn locks_of<'a, T>(
    operations: &[&'a T],
    names: impl Fn(&'a T) -> &'a QueueKeys,
) -> (Vec<&'a QueueKeys>, Vec<usize>) {
    let mut locks: Vec<&QueueKeys> = Vec::new();
    let mut which = |operation: &&'a T| {
        let of = names(operation);
        let known = locks.iter().position(|lock| lock.in_order()[0] == of.in_order()[0]);
        known.unwrap_or_else(|| {
            locks.push(of);
            locks.len() - 1
        })
    };
    let which = operations.iter().map(&mut which).collect();
    (locks, which)
}

fn with_tickets(names: &QueueKeys) -> [&[u8]; 5] {
    let [lock, tickets, .., held, ends, wide] = names.in_order();
    [lock, tickets, held, ends, wide]
}

/// A slot that is to be taken.
pub(super) struct TakeSlot {
    pub(super) names: QueueKeys,
    pub(super) tombstone: String,
    pub(super) fence: String,
    pub(super) token: String,
    pub(super) attempt: String,
    pub(super) ttl_ms: u64,
    pub(super) slots: u16,
    pub(super) owner: String,
}

impl BatchedOperation for TakeSlot {
    /// If the caller has gone, it is better not to take it.
    const IS_OWED: bool = false;

    fn script() -> &'static Script {
        &TAKE_SLOT
    }

    fn keys<'a>(takes: &[&'a Self]) -> Vec<&'a [u8]> {
        let (locks, _) = locks_of(takes, |take| &take.names);
        let tombstones = takes.iter().map(|take| take.tombstone.as_bytes());
        let fence = takes.first().map(|take| take.fence.as_bytes());
        locks.into_iter().flat_map(with_tickets).chain(tombstones).chain(fence).collect()
    }

    fn add_args(takes: &[&Self], link: &Link, call: &mut Cmd) {
        call.arg(&link.incarnation);
        for (take, lock) in takes.iter().zip(locks_of(takes, |take| &take.names).1) {
            call.arg(lock + 1).arg(&take.token).arg(&take.attempt).arg(take.ttl_ms).arg(take.slots);
            call.arg(&take.owner);
        }
    }
}

/// A slot that is to be freed.
pub(super) struct FreeSlot {
    pub(super) names: QueueKeys,
    /// The tombstone that is to be left, and how long it is to live, in ms.
    pub(super) tombstone: Option<(String, Arc<str>)>,
    pub(super) token: String,
}

impl BatchedOperation for FreeSlot {
    fn script() -> &'static Script {
        &FREE_SLOT
    }

    fn stands_first(&self) -> bool {
        self.tombstone.is_some()
    }

    fn keys<'a>(frees: &[&'a Self]) -> Vec<&'a [u8]> {
        let (locks, _) = locks_of(frees, |free| &free.names);
        let tombstones = frees.iter().filter_map(|free| free.tombstone.as_ref());
        let tombstones = tombstones.map(|(tombstone, _)| tombstone.as_bytes());
        locks.into_iter().flat_map(with_tickets).chain(tombstones).collect()
    }

    fn add_args(frees: &[&Self], _: &Link, call: &mut Cmd) {
        let (locks, which) = locks_of(frees, |free| &free.names);
        call.arg(frees.iter().find_map(|free| free.tombstone.as_ref()).map_or("", |(_, life_ms)| life_ms));
        call.arg(locks.len());
        for (free, lock) in frees.iter().zip(which) {
            call.arg(lock + 1).arg(&free.token);
        }
    }
}

/// A slot that is to be renewed.
pub(super) struct RenewSlot {
    pub(super) names: QueueKeys,
    pub(super) token: String,
    pub(super) ttl_ms: u64,
}

impl BatchedOperation for RenewSlot {
    fn script() -> &'static Script {
        &RENEW_OWN_SLOT
    }

    fn keys<'a>(renewals: &[&'a Self]) -> Vec<&'a [u8]> {
        let (locks, _) = locks_of(renewals, |renewal| &renewal.names);
        let four = |names: &'a QueueKeys| {
            let [lock, .., held, ends, wide] = names.in_order();
            [lock, held, ends, wide]
        };
        locks.into_iter().flat_map(four).collect()
    }

    fn add_args(renewals: &[&Self], _: &Link, call: &mut Cmd) {
        for (renewal, lock) in renewals.iter().zip(locks_of(renewals, |renewal| &renewal.names).1) {
            call.arg(lock + 1).arg(&renewal.token).arg(renewal.ttl_ms);
        }
    }
}
