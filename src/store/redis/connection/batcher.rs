//! Requests that are ready at the same moment, and go to Redis as one call of one script.
//!
//! For Redis, calling a script costs about as much as the work of most requests. So operations that are ready at the
//! same moment share one call. No operation waits for others to come: the call is made once the tasks that were ready
//! have had their turn. A single operation is sent alone.

use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisResult, Value};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::store::redis::connection::link::Link;
use crate::store::redis::scripts::Script;

/// The most operations of one call. Redis does nothing else until it is done with them, which takes about 0.1 ms.
pub(crate) const MOST_OPERATIONS: usize = 32;

/// What one request asks of a script that does the same for many locks, each as if it were alone.
pub(crate) trait BatchedOperation: Send + Sync + Sized + 'static {
    /// The script. It replies to one operation, or with an array to several.
    fn script() -> &'static Script;

    /// Whether it is sent also where its caller has left before that, as a caller who releases or renews relies on.
    const IS_OWED: bool = true;

    /// Whether it begins a record.
    const IS_BEGIN: bool = false;

    /// Whether it stands before those that do not.
    fn stands_first(&self) -> bool {
        false
    }

    /// All keys of a call.
    fn keys<'a>(operations: &[&'a Self]) -> Vec<&'a [u8]>;

    /// Adds what the script is told besides, over this link.
    fn add_args(operations: &[&Self], link: &Link, call: &mut Cmd);
}

/// Puts what is ready into calls of one script.
pub(crate) struct Batcher<P> {
    /// What the next call will have.
    next: Mutex<Batch<P>>,
}

struct Batch<P> {
    /// The session of the link over which it goes.
    session: u64,
    waiting: Vec<Waiting<P>>,
}

/// Where an operation was put.
enum Pushed {
    First,
    Behind,
    /// What is ready goes over another link.
    Nowhere,
}

struct Waiting<P> {
    operation: Arc<P>,
    reply: oneshot::Sender<RedisResult<Value>>,
}

impl<P: BatchedOperation> Batcher<P> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { next: Mutex::new(Batch { session: 0, waiting: Vec::new() }) })
    }

    /// Sends an operation with all others that are ready, and returns the reply to it.
    pub(crate) async fn send(self: &Arc<Self>, link: &Arc<Link>, operation: &Arc<P>) -> RedisResult<Value> {
        let (reply, replied) = oneshot::channel();
        let waiting = Waiting { operation: operation.clone(), reply };
        match self.push(link.session, waiting) {
            Pushed::First => drop(tokio::spawn(self.clone().send_waiting(link.clone()))),
            Pushed::Behind => {}
            Pushed::Nowhere => return call(link, &[&**operation], false).await,
        }
        // Only where the runtime ends in the meantime.
        replied.await.unwrap_or_else(|_| Err((ErrorKind::Io, "nobody waits for the reply any more").into()))
    }

    fn push(&self, session: u64, waiting: Waiting<P>) -> Pushed {
        let mut next = self.next.lock();
        if next.waiting.is_empty() {
            next.session = session;
        } else if next.session != session {
            return Pushed::Nowhere;
        }
        next.waiting.push(waiting);
        if next.waiting.len() == 1 { Pushed::First } else { Pushed::Behind }
    }

    async fn send_waiting(self: Arc<Self>, link: Arc<Link>) {
        // Tasks that are ready get their turn first. With one thread they always do; with several threads, one of them
        // would go on here at once.
        if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            yield_now().await;
        }
        let mut waiting = mem::take(&mut self.next.lock().waiting);
        waiting.retain(|waiting| P::IS_OWED || !waiting.reply.is_closed());
        while waiting.len() > MOST_OPERATIONS {
            let others = waiting.split_off(MOST_OPERATIONS);
            let first = mem::replace(&mut waiting, others);
            tokio::spawn(send_at_once(link.clone(), first));
        }
        if !waiting.is_empty() {
            send_at_once(link, waiting).await;
        }
    }
}

async fn send_at_once<P: BatchedOperation>(link: Arc<Link>, mut waiting: Vec<Waiting<P>>) {
    waiting.sort_by_key(|waiting| !waiting.operation.stands_first());
    let parts = waiting.iter_mut().map(|waiting| (&*waiting.operation, &mut waiting.reply));
    let (operations, callers): (Vec<&P>, Vec<_>) = parts.unzip();
    let is_abandoned = async {
        for caller in callers {
            caller.closed().await;
        }
        link.is_reported().await;
    };
    let reply = tokio::select! {
        biased;
        reply = call(&link, &operations, false) => reply,
        // An answer that never comes must not keep the connections of a broken link open.
        () = is_abandoned => return,
    };
    let replies = match reply {
        Ok(reply) if operations.len() == 1 => vec![Ok(reply)],
        Ok(Value::Array(replies)) if replies.len() == operations.len() => {
            replies.into_iter().map(Ok).collect()
        }
        Ok(_) => {
            let error = (ErrorKind::UnexpectedReturnType, "not as many replies as parts");
            vec![Err(error.into()); operations.len()]
        }
        Err(error) => vec![Err(error); operations.len()],
    };
    for (Waiting { reply: caller, .. }, reply) in waiting.into_iter().zip(replies) {
        // A caller that has left meanwhile takes care of what is left behind.
        drop(caller.send(reply));
    }
}

/// Sends operations as one call. `is_asking` says that another server has pointed to this one for this once.
pub(crate) async fn call<P: BatchedOperation>(
    link: &Link,
    operations: &[&P],
    is_asking: bool,
) -> RedisResult<Value> {
    let mut connection = link.connection.clone();
    let (script, keys) = (P::script(), P::keys(operations));
    let add_args = |call: &mut Cmd| P::add_args(operations, link, call);
    script.run(&mut connection, is_asking, &keys, add_args).await
}
