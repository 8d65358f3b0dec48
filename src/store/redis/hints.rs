//! What Redis tells a gateway without being asked, on a channel that bears the gateway's name.
//!
//! Servers from 7.0 on have sharded channels, which on a cluster stay within the node that holds the lock; older ones
//! have plain channels only. Where neither is allowed nothing is told, and the heartbeats find what is due.

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind, RedisResult};

use super::keys::KeySpace;
use crate::lock::{Attempt, TokenHash};
use crate::store::Hint;

/// Listens to `channel`, in the way that the server allows.
pub(super) async fn subscribe(connection: &mut MultiplexedConnection, channel: &str) -> RedisResult<()> {
    match redis::cmd("SSUBSCRIBE").arg(channel).query_async(connection).await {
        Err(error) if !error.is_unrecoverable_error() => {
            redis::cmd("SUBSCRIBE").arg(channel).query_async(connection).await
        }
        reply => reply,
    }
}

/// The hint in a push of the server, if it is one.
pub(super) fn read(push: PushInfo, keys: &KeySpace) -> Option<Hint> {
    if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
        return None;
    }
    let message = String::from_redis_value(push.data.into_iter().nth(1)?).ok()?;
    let (kind, rest) = message.split_once(' ')?;
    let (first, rest) = rest.split_once(' ')?;
    match kind {
        "offered" => {
            let (attempt, lock) = rest.split_once(' ')?;
            Some(Hint::Offered(keys.key_of(lock)?, TokenHash::parse(first)?, Attempt::parse(attempt)?))
        }
        "look" => Some(Hint::Look(keys.key_of(rest)?, Attempt::parse(first)?)),
        "due" => Some(Hint::Due(keys.key_of(rest)?, first.parse().ok()?)),
        _ => None,
    }
}
