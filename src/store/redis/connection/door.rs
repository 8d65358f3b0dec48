//! Whether a server takes new connections. Those that stand say nothing of that: the password may be another by now.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::servers::Servers;
use crate::store::StoreError;
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::trouble;

/// How long what was found is the answer.
const LOOK_HOLDS_FOR: Duration = Duration::from_secs(1);
/// How long a connection that was taken says that the next one will be.
const CONNECTION_HOLDS_FOR: Duration = Duration::from_secs(10);

/// The one answer to "can it be used?", for those who ask and for the metrics.
pub(crate) struct Door {
    servers: Arc<Servers>,
    /// Makes connections; nothing where the address does not name the server itself.
    client: Option<Client>,
    /// How long a look may take.
    patience: Duration,
    /// A connection that no request uses, and when it was made.
    connection: Mutex<Option<(MultiplexedConnection, Instant)>>,
    /// When it was looked last, and what was found.
    found: RwLock<Option<(Instant, Result<(), StoreError>)>>,
}

impl Door {
    /// Looks each second from now on, so that the answer is known also if no request asks.
    pub(crate) fn start(servers: Arc<Servers>, client: Option<Client>, patience: Duration) -> Arc<Self> {
        let (connection, found) = (Mutex::default(), RwLock::default());
        let door = Arc::new(Self { servers, client, patience, connection, found });
        let looking = Arc::downgrade(&door);
        tokio::spawn(async move {
            while let Some(door) = looking.upgrade().filter(|door| door.client.is_some()) {
                // What it finds is kept. After an outage, the servers may take the half of the time.
                let _ = door.check(Instant::now() + 2 * door.patience).await;
                drop(door);
                sleep(LOOK_HOLDS_FOR).await;
            }
        });
        door
    }

    /// Whether the servers can be used, and take connections. If no link stands, no connection is tried.
    pub(crate) async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.servers.check(deadline).await?;
        let Some(client) = &self.client else { return Ok(()) };
        // One look at a time, and one for all who ask within a second: probes must not keep each other waiting.
        let Ok(mut kept) = timeout_at(deadline, self.connection.lock()).await else {
            return Err(StoreError::Unavailable("Redis does not answer".into()));
        };
        if let Some((at, answer)) = &*self.found.read()
            && at.elapsed() < LOOK_HOLDS_FOR
        {
            return answer.clone();
        }
        let until = deadline.min(Instant::now() + self.patience);
        let answer = match timeout_at(until, connect(client, &mut kept)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(StoreError::Unavailable(format!("Redis takes no new connection: {}", trouble(&error))))
            }
            Err(_) => Err(StoreError::Unavailable("Redis does not answer".into())),
        };
        *self.found.write() = Some((Instant::now(), answer.clone()));
        answer
    }

    /// The same as far as it is known. It asks no server, so it waits for nothing.
    pub(crate) async fn seems_open(&self) -> bool {
        self.servers.check(Instant::now()).await.is_ok()
            && self.found.read().as_ref().is_none_or(|(_, answer)| answer.is_ok())
    }
}

/// Asks the kept connection for a sign of life, or makes a new one, also where it is too old.
async fn connect(client: &Client, kept: &mut Option<(MultiplexedConnection, Instant)>) -> RedisResult<()> {
    if let Some((mut known, made_at)) = kept.take().filter(|(_, at)| at.elapsed() < CONNECTION_HOLDS_FOR) {
        let reply = redis::cmd("PING").query_async::<()>(&mut known).await;
        // A refusal is an answer.
        if reply.err().is_none_or(|error| error.code().is_some()) {
            *kept = Some((known, made_at));
            return Ok(());
        }
    }
    *kept = Some((client.connect(without_deadlines()).await?, Instant::now()));
    Ok(())
}
