//! Requests that are ready at the same moment, and go to Redis as one call of one script.
//!
//! To call a script costs Redis about as much as what most requests have it do, so whatever is asked meanwhile rides along.
//! Nothing waits for company: a call is made as soon as those tasks had their turn that were ready when it was wanted. With
//! nobody else there it has one part.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisResult, Value};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::scripts::Script;

/// The most parts of one call: Redis serves nobody else until it is through with it, which takes about a tenth of a
/// millisecond.
pub(super) const MOST_PARTS: usize = 32;

/// What one request asks of a script that does the same for many locks, each as if it were alone.
pub(super) trait Part: Send + Sync + Sized + 'static {
    /// The script. It replies to one part, or with an array to several.
    fn script() -> &'static Script;

    /// Whether it is sent also where its caller has left before that.
    const IS_OWED: bool;

    /// Whether it stands before those that do not.
    fn stands_first(&self) -> bool;

    /// All keys of a call.
    fn keys<'a>(parts: &[&'a Self]) -> Vec<&'a [u8]>;

    /// Adds what the script is told besides. The incarnation is that of the server.
    fn add_args(parts: &[&Self], incarnation: &str, call: &mut Cmd);
}

/// The calls of one script to one server.
pub(super) struct Calls<P> {
    connection: MultiplexedConnection,
    incarnation: String,
    /// Parts that the next call will have.
    waiting: Mutex<Vec<Waiting<P>>>,
}

struct Waiting<P> {
    part: Arc<P>,
    reply: oneshot::Sender<RedisResult<Value>>,
}

impl<P: Part> Calls<P> {
    pub(super) fn new(connection: &MultiplexedConnection, incarnation: &str) -> Arc<Self> {
        let (connection, incarnation) = (connection.clone(), incarnation.to_owned());
        Arc::new(Self { connection, incarnation, waiting: Mutex::default() })
    }

    /// Sends a part with all others that are ready, and returns the reply to it.
    pub(super) async fn send(self: &Arc<Self>, part: &Arc<P>) -> RedisResult<Value> {
        let (reply, replied) = oneshot::channel();
        if self.push(Waiting { part: part.clone(), reply }) {
            tokio::spawn(self.clone().send_waiting());
        }
        // Only where the runtime ends in the meantime.
        replied.await.unwrap_or_else(|_| Err((ErrorKind::Io, "nobody waits for the reply any more").into()))
    }

    /// Sends a part alone, to a server that shares no calls among locks. `is_asking` says that another has pointed there for
    /// this once.
    pub(super) async fn send_alone(&self, part: &P, is_asking: bool) -> RedisResult<Value> {
        self.call(&[part], is_asking).await
    }

    /// Returns whether it is the first.
    fn push(&self, waiting: Waiting<P>) -> bool {
        let mut parts = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(waiting);
        parts.len() == 1
    }

    async fn send_waiting(self: Arc<Self>) {
        // Whoever is ready has its turn first. With one thread it always does; with several, one would go on with this at once.
        if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            yield_now().await;
        }
        let mut waiting = mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.retain(|waiting| P::IS_OWED || !waiting.reply.is_closed());
        while waiting.len() > MOST_PARTS {
            let others = waiting.split_off(MOST_PARTS);
            let first = mem::replace(&mut waiting, others);
            tokio::spawn(self.clone().send_at_once(first));
        }
        if !waiting.is_empty() {
            self.send_at_once(waiting).await;
        }
    }

    async fn send_at_once(self: Arc<Self>, mut waiting: Vec<Waiting<P>>) {
        waiting.sort_by_key(|waiting| !waiting.part.stands_first());
        let parts: Vec<&P> = waiting.iter().map(|waiting| &*waiting.part).collect();
        let replies = match self.call(&parts, false).await {
            Ok(reply) if parts.len() == 1 => vec![Ok(reply)],
            Ok(Value::Array(replies)) if replies.len() == parts.len() => {
                replies.into_iter().map(Ok).collect()
            }
            Ok(_) => {
                let error = (ErrorKind::UnexpectedReturnType, "not as many replies as parts");
                vec![Err(error.into()); parts.len()]
            }
            Err(error) => vec![Err(error); parts.len()],
        };
        for (Waiting { reply: caller, .. }, reply) in waiting.into_iter().zip(replies) {
            // Who has left meanwhile sees to what is left behind.
            drop(caller.send(reply));
        }
    }

    async fn call(&self, parts: &[&P], is_asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        let (script, keys) = (P::script(), P::keys(parts));
        let add_args = |call: &mut Cmd| P::add_args(parts, &self.incarnation, call);
        if is_asking {
            script.run_asking(&mut connection, &keys, add_args).await
        } else {
            script.run(&mut connection, &keys, add_args).await
        }
    }
}
