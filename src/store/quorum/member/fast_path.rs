//! The fast path of a quorum. Most of the time a lock is free on a server, or another token holds it, and its own token holds what
//! is to be released. A small script does each of these, and one call serves all requests that are ready for the server.
//!
//! Each script does what the general one would do, or nothing. Where it did nothing, the general one runs.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::Member;
use crate::store::quorum::scripts::{FREE_OWN, TAKE_FREE};
use crate::store::redis::connection::batcher::{BatchedOperation, Batcher};
use crate::store::redis::connection::link::Link;
use crate::store::redis::fast_path::recent::{RecentKeys, SLOW_FOR};
use crate::store::redis::scripts::{Script, ScriptReply};

/// What a small script may do in the place of a general one.
#[derive(Clone)]
pub(in crate::store::quorum) enum Shortcut {
    Take(Arc<TakeFree>),
    Free(Arc<FreeOwn>),
}

/// A lock that is to be taken, if it is free.
pub(in crate::store::quorum) struct TakeFree {
    pub(in crate::store::quorum) lock: String,
    pub(in crate::store::quorum) tombstone: String,
    /// The field of its bucket in the record.
    pub(in crate::store::quorum) field: String,
    pub(in crate::store::quorum) ttl_ms: u64,
    pub(in crate::store::quorum) number: u64,
    /// What the lock will be.
    pub(in crate::store::quorum) value: String,
}

/// A lock that is to be freed without a tombstone, if its token holds it.
pub(in crate::store::quorum) struct FreeOwn {
    pub(in crate::store::quorum) lock: String,
    /// Who waits for it.
    pub(in crate::store::quorum) watch: String,
    pub(in crate::store::quorum) token: String,
}

impl Shortcut {
    fn lock(&self) -> &str {
        match self {
            Self::Take(take) => &take.lock,
            Self::Free(free) => &free.lock,
        }
    }
}

/// What is ready for a server.
pub(super) struct Batchers {
    /// Locks that were left to the general scripts a moment ago: other gateways may wait for them, or they have terms.
    left: RecentKeys,
    takes: Arc<Batcher<ForMember<TakeFree>>>,
    frees: Arc<Batcher<ForMember<FreeOwn>>>,
}

impl Batchers {
    pub(super) fn new() -> Self {
        Self { left: RecentKeys::new(SLOW_FOR), takes: Batcher::new(), frees: Batcher::new() }
    }
}

/// What one server is asked.
struct ForMember<T> {
    asked: Arc<T>,
    member: Arc<Member>,
    /// Until when to do it, by the server's clock.
    until: String,
}

impl Member {
    /// The reply of the general script, where a small one has done the same; `None` where nothing was done.
    pub(super) async fn run_fast(
        self: &Arc<Self>,
        shortcut: &Shortcut,
        until: &str,
        link: &Arc<Link>,
    ) -> RedisResult<Option<ScriptReply>> {
        if self.batchers.left.has(shortcut.lock()) {
            return Ok(None);
        }
        let (member, until) = (self.clone(), until.to_owned());
        let reply = match shortcut {
            Shortcut::Take(take) => {
                let asked = Arc::new(ForMember { asked: take.clone(), member, until });
                match self.batchers.takes.send(link, &asked).await? {
                    Value::Int(1) => {
                        let number = Value::BulkString(take.number.to_string().into());
                        let lock = Value::BulkString(take.value.clone().into());
                        Value::Array(vec![Value::Int(0), lock, Value::Int(take.ttl_ms.cast_signed()), number])
                    }
                    reply => reply,
                }
            }
            Shortcut::Free(free) => {
                let asked = Arc::new(ForMember { asked: free.clone(), member, until });
                match self.batchers.frees.send(link, &asked).await? {
                    number @ Value::BulkString(_) => Value::Array(vec![Value::Int(0), number, Value::Int(0)]),
                    reply => reply,
                }
            }
        };
        if reply == Value::Int(-1) {
            self.batchers.left.note(shortcut.lock());
            return Ok(None);
        }
        Ok(Some(ScriptReply::from_redis_value(reply)?))
    }
}

/// The server's record, and behind it these keys.
fn behind_record<'a, T>(asked: &[&'a ForMember<T>], keys: impl Iterator<Item = &'a String>) -> Vec<&'a [u8]> {
    let record = asked.first().map(|first| &first.member.record);
    record.into_iter().chain(keys).map(String::as_bytes).collect()
}

/// What each small script is told of the server.
fn add_member<T>(asked: &[&ForMember<T>], link: &Link, call: &mut Cmd) {
    call.arg(&link.incarnation).arg(asked.first().map(|first| &first.member.epoch));
}

impl BatchedOperation for ForMember<TakeFree> {
    /// If the caller has gone, it is better not to take the lock.
    const IS_OWED: bool = false;

    fn script() -> &'static Script {
        &TAKE_FREE
    }

    fn keys<'a>(takes: &[&'a Self]) -> Vec<&'a [u8]> {
        behind_record(takes, takes.iter().flat_map(|take| [&take.asked.lock, &take.asked.tombstone]))
    }

    fn add_args(takes: &[&Self], link: &Link, call: &mut Cmd) {
        add_member(takes, link, call);
        for Self { asked: take, until, .. } in takes {
            call.arg(&take.field).arg(until).arg(take.ttl_ms).arg(take.number).arg(&take.value);
        }
    }
}

impl BatchedOperation for ForMember<FreeOwn> {
    fn script() -> &'static Script {
        &FREE_OWN
    }

    fn keys<'a>(frees: &[&'a Self]) -> Vec<&'a [u8]> {
        let locks = frees.iter().map(|free| &free.asked.lock);
        behind_record(frees, locks.chain(frees.iter().map(|free| &free.asked.watch)))
    }

    fn add_args(frees: &[&Self], link: &Link, call: &mut Cmd) {
        add_member(frees, link, call);
        for free in frees {
            call.arg(&free.asked.token);
        }
    }
}
