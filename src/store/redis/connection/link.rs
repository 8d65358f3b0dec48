//! The connection to a server: one immutable value of connection and incarnation.
//!
//! A connection that mends itself would ask a restarted server under the name of the one that is gone, and a server
//! that lost its last second would then repeat fencing numbers. So nothing here reconnects by itself: the supervisor
//! connects, learns who the server is, starts its run of numbers, and only then shows the connection to requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::replicas::Replicas;
use crate::store::redis::health::preflight::Gate;
use crate::store::redis::pubsub::hints::Listener;
use crate::store::{Bucket, StoreError};

/// The most commands that are under way to one server. Any more wait here, where it is certain that they did nothing: behind
/// ten thousand others a command would wait for its answer until it is in doubt, and a look at the server until the
/// server counts as silent. A command whose caller has left meanwhile counts no more, though Redis may still get it.
pub(crate) const MOST_UNDER_WAY: usize = 1_024;

/// Links so far, of all servers.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// A connection and the incarnation of the server at its other end, learned before its first script.
pub(crate) struct Link {
    /// Clone it to send: all clones share one connection, whose driver ends with the last of them.
    pub(crate) connection: MultiplexedConnection,
    /// By what this gateway knows the server; it changes with every restart and every promotion.
    pub(crate) incarnation: String,
    /// The name of the server's run of fencing numbers when the link was made: others may have given it.
    pub(crate) run: String,
    /// The number of this link: another one is another connection, and perhaps another server.
    pub(crate) session: u64,
    /// Whether locks may be granted on this server, as the last look at it found.
    pub(crate) gate: Gate,
    /// The server's replicas, where they must acknowledge what is granted over this link.
    pub(crate) replicas: Option<Replicas>,
    /// Where the server tells what concerns waiters, if not on `connection`.
    listener: Option<Listener>,
    /// Closed where the link is broken.
    permits: Arc<Semaphore>,
    /// Set by the first request that found the connection wanting: from that moment nobody is given it any more.
    is_broken: AtomicBool,
    /// Tells the supervisor.
    broken: Notify,
}

impl Link {
    /// A new link, which nobody has been given yet.
    pub(crate) fn new(
        connection: MultiplexedConnection,
        incarnation: String,
        run: String,
        gate: Gate,
        replicas: Option<Replicas>,
        listener: Option<Listener>,
    ) -> Self {
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let permits = Arc::new(Semaphore::new(MOST_UNDER_WAY));
        let (is_broken, broken) = (AtomicBool::new(false), Notify::new());
        Self { connection, incarnation, run, session, gate, replicas, listener, permits, is_broken, broken }
    }

    /// A permit for a command among those under way, to be given up with the answer; `None` where the link is broken by then.
    pub(crate) async fn permit(&self, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, StoreError> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(Some(permit));
        }
        match timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await {
            Ok(permit) => Ok(permit.ok()),
            Err(_) => {
                Err(StoreError::Unavailable("too many commands wait for an answer of Redis".to_owned()))
            }
        }
    }

    /// Says that this connection must not be used again: a reply timed out on it, or it failed.
    pub(crate) fn report_broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.permits.close();
        self.broken.notify_one();
    }

    /// Sees to it that the gateway is told what concerns its waiters in a bucket.
    pub(crate) async fn listen(&self, bucket: Bucket, deadline: Instant) {
        if let Some(listener) = &self.listener {
            listener.listen(bucket, deadline).await;
        }
    }

    /// Returns as soon as somebody has reported it broken.
    pub(crate) async fn is_reported(&self) {
        self.broken.notified().await;
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Acquire)
    }
}
