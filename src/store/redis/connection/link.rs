//! The connection to a server: one immutable value of connection and incarnation.
//!
//! A connection that mends itself would ask a restarted server under its old name. If that server lost its last second,
//! it would repeat fencing tokens. So no connection reconnects by itself. The supervisor connects, learns the server's
//! identity and starts its run of numbers. Only then requests may use the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::door::Door;
use super::replicas::Replicas;
use crate::store::StoreError;
use crate::store::redis::failure::Failure;
use crate::store::redis::health::preflight::Gate;
use crate::store::redis::health::room::OnceRoom;
use crate::store::redis::pubsub::hints::Listener;

/// The most commands that are under way to one server. The others wait here, where it is certain that they did nothing.
/// Behind ten thousand others, a command would wait for its answer until it is in doubt, and a look at the server until
/// the server counts as silent. A command whose caller has left does not count any more, though Redis may still get it.
pub(crate) const MOST_UNDER_WAY: usize = 1_024;

/// The most begins of records among them: a crowd of these leaves room for locks.
const MOST_BEGINS: usize = 96;

/// So many long results are read at once over one link. Each may have 1 MiB, of which the gateway's limit for unread answers knows
/// nothing yet.
const MOST_RESULTS_READ: usize = 4;

/// What a command under way holds, to be given up with its answer.
pub(crate) type UnderWay = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Links so far, of all servers.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// A connection and the incarnation of the server at its other end, learned before its first script.
pub(crate) struct Link {
    /// Clone it to send: all clones share one connection, whose driver ends with the last of them.
    pub(crate) connection: MultiplexedConnection,
    /// By what this gateway knows the server; it changes with every restart and every promotion.
    pub(crate) incarnation: String,
    /// The name of the server's run of fencing tokens when the link was made. Another gateway may have given it.
    pub(crate) run: String,
    /// The number of this link: another one is another connection, and perhaps another server.
    pub(crate) session: u64,
    /// Whether locks may be granted on this server, as the last look at it found.
    pub(crate) gate: Gate,
    /// How much of its memory records may still take.
    pub(crate) room: OnceRoom,
    /// The server's replicas, where they must acknowledge what is granted over this link.
    pub(crate) replicas: Option<Replicas>,
    /// Where the server tells what it is not asked for.
    pub(crate) listener: Listener,
    /// Whether the server takes new connections.
    pub(crate) door: Door,
    /// Long results that may be read.
    results_read: Semaphore,
    /// Closed where the link is broken. From that moment no request gets it any more.
    permits: Arc<Semaphore>,
    /// Begins that may be under way. Those of a silent server hold up those of no other.
    begins: Arc<Semaphore>,
    /// Tells the supervisor, and those who still wait for an answer.
    broken: CancellationToken,
}

impl Link {
    /// A new link, which no request has got yet.
    pub(crate) fn new(
        connection: MultiplexedConnection,
        incarnation: String,
        run: String,
        (gate, room): (Gate, OnceRoom),
        replicas: Option<Replicas>,
        listener: Listener,
        door: Door,
    ) -> Self {
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let results_read = Semaphore::new(MOST_RESULTS_READ);
        let permits = Arc::new(Semaphore::new(MOST_UNDER_WAY));
        let begins = Arc::new(Semaphore::new(MOST_BEGINS));
        let broken = CancellationToken::new();
        Self {
            connection,
            incarnation,
            run,
            session,
            gate,
            room,
            replicas,
            listener,
            door,
            results_read,
            permits,
            begins,
            broken,
        }
    }

    /// A permit for a command among those under way, to be given up with the answer, and for a begin one among these as well; `None`
    /// where the link is broken by then.
    pub(crate) async fn permit(
        &self,
        is_begin: bool,
        deadline: Instant,
    ) -> Result<Option<UnderWay>, StoreError> {
        let begins = if is_begin { take(&self.begins, deadline).await? } else { None };
        if is_begin && begins.is_none() {
            return Ok(None);
        }
        Ok(take(&self.permits, deadline).await?.map(|permit| (permit, begins)))
    }

    /// A turn to read a long result, to be given up once it is read. Those of a silent server hold up those of no other.
    pub(crate) async fn turn_to_read(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, StoreError> {
        let turn = timeout_at(deadline, self.results_read.acquire()).await;
        turn.ok()
            .and_then(Result::ok)
            .ok_or_else(|| StoreError::Unavailable("too many results are read at this moment".to_owned()))
    }

    /// What the answer to something that was asked here at that time comes to. A failure after which nothing may be asked here is
    /// reported.
    pub(crate) fn settle<T>(
        &self,
        answer: Result<RedisResult<T>, Elapsed>,
        asked_at: Instant,
    ) -> Result<T, Failure> {
        let failure = match answer {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::no_answer(asked_at),
        };
        if failure.breaks_link {
            self.report_broken();
        }
        Err(failure)
    }

    /// Says that this connection must not be used again: a reply timed out on it, it failed, or its supervisor has left it.
    pub(crate) fn report_broken(&self) {
        self.permits.close();
        self.begins.close();
        self.broken.cancel();
    }

    /// Returns as soon as it has been reported broken.
    pub(crate) async fn is_reported(&self) {
        self.broken.cancelled().await;
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.permits.is_closed()
    }
}

/// One of those that there are; `None` where there will be none any more.
async fn take(of: &Arc<Semaphore>, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, StoreError> {
    if let Ok(permit) = Arc::clone(of).try_acquire_owned() {
        return Ok(Some(permit));
    }
    match timeout_at(deadline, Arc::clone(of).acquire_owned()).await {
        Ok(permit) => Ok(permit.ok()),
        Err(_) => Err(StoreError::Unavailable("too many commands wait for an answer of Redis".to_owned())),
    }
}
