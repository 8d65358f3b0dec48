//! Whether a server takes new connections. Those that stand say nothing of that: the password may be another by now.

use std::convert::Infallible;
use std::time::Duration;

use parking_lot::RwLock;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use crate::store::StoreError;
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::trouble;

/// How long what was found is the answer.
const LOOK_HOLDS_FOR: Duration = Duration::from_secs(1);
/// How long a connection that was taken says that the next one will be.
const CONNECTION_HOLDS_FOR: Duration = Duration::from_secs(10);

/// The one answer to "does it take connections?", for those who ask and for the metrics.
pub(crate) struct Door {
    client: Client,
    /// What the server is called in reasons.
    server: String,
    /// How long a look may take.
    patience: Duration,
    /// A connection that no request uses, and when it was made.
    connection: Mutex<Option<(MultiplexedConnection, Instant)>>,
    /// When it was looked last, and what was found.
    found: RwLock<Option<(Instant, Result<(), StoreError>)>>,
}

impl Door {
    /// The door of a server to which `client` has just connected; `at` says where it is, if there are several.
    pub(super) fn new(client: Client, at: &str, patience: Duration) -> Self {
        let (connection, found) = (Mutex::default(), RwLock::default());
        Self { client, server: format!("Redis{at}"), patience, connection, found }
    }

    /// Looks each second, so that the answer is known also if no request asks.
    pub(super) async fn keep_looking(&self) -> Infallible {
        loop {
            // What it finds is kept. One that asks may be looking, and takes half of the time.
            let _ = self.check(Instant::now() + 2 * self.patience).await;
            sleep(LOOK_HOLDS_FOR).await;
        }
    }

    /// Whether the server takes connections.
    pub(super) async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        let silent = || StoreError::Unavailable(format!("{} does not answer", self.server));
        // One look at a time, and one for all who ask within a second: probes must not keep each other waiting.
        let mut kept = timeout_at(deadline, self.connection.lock()).await.map_err(|_| silent())?;
        if let Some((at, answer)) = &*self.found.read()
            && at.elapsed() < LOOK_HOLDS_FOR
        {
            return answer.clone();
        }
        let until = deadline.min(Instant::now() + self.patience);
        let answer = match timeout_at(until, self.connect(&mut kept)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let (server, reason) = (&self.server, trouble(&error));
                Err(StoreError::Unavailable(format!("{server} takes no new connection: {reason}")))
            }
            Err(_) => Err(silent()),
        };
        *self.found.write() = Some((Instant::now(), answer.clone()));
        answer
    }

    /// The same as far as it is known. It asks nothing, so it waits for nothing.
    pub(crate) fn seems_open(&self) -> Result<(), StoreError> {
        self.found.read().as_ref().map_or(Ok(()), |(_, answer)| answer.clone())
    }

    /// Asks the kept connection for a sign of life, or makes a new one, also where it is too old.
    async fn connect(&self, kept: &mut Option<(MultiplexedConnection, Instant)>) -> RedisResult<()> {
        if let Some((mut known, made_at)) = kept.take().filter(|(_, at)| at.elapsed() < CONNECTION_HOLDS_FOR)
        {
            let reply = redis::cmd("PING").query_async::<()>(&mut known).await;
            // A refusal is an answer.
            if reply.err().is_none_or(|error| error.code().is_some()) {
                *kept = Some((known, made_at));
                return Ok(());
            }
        }
        *kept = Some((self.client.connect(without_deadlines()).await?, Instant::now()));
        Ok(())
    }
}
