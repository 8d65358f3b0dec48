//! One step: a script, run where the lock is, alone or with others that are ready.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::connection::batcher::{BatchedOperation, Batcher, call};
use super::connection::link::Link;
use super::connection::servers::{Tries, TryAt};
use super::scripts::Script;
use crate::lock::{LockKey, TokenHash};
use crate::store::{Bucket, StoreError, TicketAfter};

impl RedisStore {
    /// Runs one of the scripts by which a token leaves a lock or its wait queue. A tombstone that the script does not touch is
    /// not declared: it could stand in the way on a cluster.
    #[expect(clippy::too_many_arguments, reason = "they are what the two scripts are told, one by one")]
    pub(super) async fn leave<T: FromRedisValue>(
        &self,
        script: &Script,
        key: &LockKey,
        token: &TokenHash,
        [attempt, known]: &[String; 2],
        tombstone: Option<String>,
        ticket: Option<TicketAfter>,
        deadline: Instant,
    ) -> Result<T, StoreError> {
        let queue = self.keys.queue_of(key);
        let keys: Vec<&[u8]> = queue
            .in_order()
            .into_iter()
            .chain(tombstone.iter().map(|tombstone| tombstone.as_bytes()))
            .collect();
        let token = token.to_string();
        let keeps_place = if matches!(ticket, None | Some(TicketAfter::Removed)) { "0" } else { "1" };
        let granted_at = match ticket {
            Some(TicketAfter::KeptAt(ticket)) => ticket.get().to_string(),
            _ => String::new(),
        };
        let args = [&*token, &**attempt, &self.mark_ttl_ms, &self.ticket_ms, keeps_place, &granted_at, known];
        self.run_script(key, script, &keys, deadline, |_, call| {
            call.arg(&args);
        })
        .await
    }

    /// Runs a script where the lock is, until its outcome is known. It is repeated here only if it certainly did not
    /// happen, so the result is the outcome of one run.
    pub(super) async fn run_script<T: FromRedisValue>(
        &self,
        key: &LockKey,
        script: &Script,
        keys: &[&[u8]],
        deadline: Instant,
        add_args: impl Fn(&Link, &mut Cmd),
    ) -> Result<T, StoreError> {
        let bucket = self.keys.bucket_of(key);
        self.run_in(bucket, script, false, keys, deadline, add_args).await.map(|(reply, _)| reply)
    }

    /// As [`Self::run_script`], in a bucket, and only where locks may be granted if this could grant one. Also returns the link
    /// over which the answer came.
    pub(super) async fn run_in<T: FromRedisValue>(
        &self,
        bucket: Bucket,
        script: &Script,
        grants: bool,
        keys: &[&[u8]],
        deadline: Instant,
        add_args: impl Fn(&Link, &mut Cmd),
    ) -> Result<(T, Arc<Link>), StoreError> {
        let add_args = &add_args;
        self.step(bucket, grants, false, deadline, |link, is_asking| async move {
            script.run(&mut link.connection.clone(), is_asking, keys, |call| add_args(&link, call)).await
        })
        .await
    }

    /// Runs a script for one operation of a call, until it is known what became of it: with all others that are ready, where it may
    /// share a call; and alone, if one of several ends in an error. On a cluster locks share no slot, and thus no call. Also
    /// returns the link over which the answer came.
    pub(super) async fn run_batched<P: BatchedOperation, T: FromRedisValue>(
        &self,
        bucket: Bucket,
        grants: bool,
        operation: &Arc<P>,
        batcher: Option<&Arc<Batcher<P>>>,
        deadline: Instant,
    ) -> Result<(T, Arc<Link>), StoreError> {
        self.step(bucket, grants, P::IS_BEGIN, deadline, |link, is_asking| async move {
            let shared = match batcher.filter(|_| self.keys.share_a_slot()) {
                Some(batcher) => Some(batcher.send(&link, operation).await?),
                None => None,
            };
            let reply = match shared.filter(|reply| !is_to_be_asked_alone(reply)) {
                Some(reply) => reply,
                None => call(&link, &[&**operation], is_asking).await?,
            };
            Ok(T::from_redis_value(reply)?)
        })
        .await
    }

    /// Asks in a bucket, until it is known what became of it. It is repeated only if it certainly did not happen. Also returns the
    /// link over which the answer came.
    pub(super) async fn step<T, F: Future<Output = RedisResult<T>>>(
        &self,
        bucket: Bucket,
        grants: bool,
        is_begin: bool,
        deadline: Instant,
        ask: impl Fn(Arc<Link>, bool) -> F,
    ) -> Result<(T, Arc<Link>), StoreError> {
        let mut tries = Tries::new(&self.servers, bucket, grants, is_begin, deadline);
        loop {
            let TryAt { link, is_asking, permit } = tries.next().await?;
            let asked_at = Instant::now();
            let answer = timeout_at(deadline, ask(link.clone(), is_asking)).await;
            drop(permit);
            if let Some(reply) = tries.settle(answer, &link, asked_at).await? {
                return Ok((reply, link));
            }
        }
    }
}

/// Whether a script says this that knows all cases, of one of several that ended in an error (`each.lua`).
fn is_to_be_asked_alone(reply: &Value) -> bool {
    matches!(reply, Value::Array(fields) if fields[..] == [Value::Int(-1)])
}
