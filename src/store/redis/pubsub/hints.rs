//! What Redis tells a gateway without being asked, on a channel that bears the gateway's name.
//!
//! Servers from 7.0 on have sharded channels, which on a cluster stay within the node that holds the lock; older ones
//! have plain channels only. Where neither is allowed nothing is told, and the heartbeats find what is due.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind, RedisError, RedisResult};
use tokio::time::{Instant, timeout_at};

use crate::lock::{Attempt, TokenHash};
use crate::store::redis::failure::describe;
use crate::store::redis::scripts::keys::KeySpace;
use crate::store::{Bucket, Hint};

/// Whether a server has no sharded channels, or allows none. What else it says has to do with the moment.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("ERR" | "NOPERM"))
}

/// Buckets that are listened to on a connection. There are at most as many as slots, so only the server ends any.
pub(crate) type HeardBuckets = Arc<Mutex<HashSet<Bucket>>>;

/// A connection to a server on which nothing comes but what is told unasked, for two reasons. A server closes connections
/// that have subscribed once some megabytes of answers wait in them. When a slot leaves a node of a cluster its channels are
/// ended unasked, and the driver would take that for the reply to some command.
pub(crate) struct Listener {
    pub(crate) connection: MultiplexedConnection,
    keys: KeySpace,
    gateway: Arc<str>,
    buckets: HeardBuckets,
}

impl Listener {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        keys: KeySpace,
        gateway: Arc<str>,
        buckets: HeardBuckets,
    ) -> Self {
        Self { connection, keys, gateway, buckets }
    }

    /// Listens to what concerns the gateway in a bucket. Where that is forbidden, or is not answered in time, heartbeats
    /// find what is due.
    pub(crate) async fn listen(&self, bucket: Bucket, deadline: Instant) {
        if self.buckets.lock().contains(&bucket) {
            return;
        }
        let reason = match timeout_at(deadline, self.subscribe(bucket)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => describe(&error),
            Err(_) => "no answer".to_owned(),
        };
        tracing::debug!(reason, "cannot subscribe to the hints of a server");
        // The next heartbeat tries again; another node may have the bucket by then.
        self.buckets.lock().remove(&bucket);
    }

    /// Returns once the server has answered. A connection on which nothing is told is silent also where it is dead.
    pub(crate) async fn ping(&self) -> RedisResult<()> {
        match redis::cmd("PING").query_async(&mut self.connection.clone()).await {
            // A refusal is an answer.
            Err(error) if error.code().is_some() => Ok(()),
            reply => reply,
        }
    }

    /// Listens to a bucket in the way that the server allows. One that it forbids counts as listened to.
    pub(crate) async fn subscribe(&self, bucket: Bucket) -> RedisResult<()> {
        let channel = self.keys.channel(bucket, &self.gateway);
        let mut connection = self.connection.clone();
        match redis::cmd("SSUBSCRIBE").arg(&channel).query_async(&mut connection).await {
            Err(error) if is_refusal(&error) => {}
            // Where it was done, a push has said so, and another may have said since that the slot has left.
            reply => return reply,
        }
        let reply = redis::cmd("SUBSCRIBE").arg(&channel).query_async(&mut connection).await;
        if reply.as_ref().err().is_none_or(is_refusal) {
            self.buckets.lock().insert(bucket);
        }
        reply
    }
}

/// Notes which bucket is listened to, or is no longer, if a push says so. When its slot leaves the server, listening ends. The slot may
/// come back, and the next heartbeat there subscribes again. Pushes come in the order of what they tell.
pub(crate) fn note(push: &PushInfo, keys: &KeySpace, buckets: &HeardBuckets) {
    if matches!(push.kind, PushKind::SSubscribe | PushKind::SUnsubscribe)
        && let Some(channel) = push.data.first()
        && let Ok(channel) = String::from_redis_value(channel.clone())
        && let Some(bucket) = keys.bucket_in(&channel)
    {
        let mut buckets = buckets.lock();
        let _ = match push.kind {
            PushKind::SSubscribe => buckets.insert(bucket),
            _ => buckets.remove(&bucket),
        };
    }
}

/// The hint in a push of the server, if it is one.
pub(crate) fn read(push: PushInfo, keys: &KeySpace) -> Option<Hint> {
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
