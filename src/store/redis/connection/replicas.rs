//! Locks and records that replicas must have acknowledged before they are handed out.
//!
//! `WAIT` blocks later commands on its connection, and counts only the writes of that connection. So it never uses the
//! shared connection, but one from a pool, and writes to the lock itself first. That write also notices if the server
//! has lost the grant in the meantime, or is another one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bb8_redis::bb8::{self, ManageConnection, Pool};
use parking_lot::Mutex;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{Cmd, ErrorKind, PushInfo, PushKind, RedisError, RedisResult};
use tokio::time::{Instant, timeout_at};

use crate::lock::FencingToken;
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::describe;
use crate::store::redis::scripts::{NO_SCRIPT, Script};

/// Grants that may wait for replicas at once; further ones wait for a connection first.
const CONNECTIONS: u32 = 16;

/// Results that are known to be on replicas, at a time: with one more, all are forgotten.
const MOST_RESULTS: usize = 1_000;

/// How late a server may answer a WAIT whose time is over: it looks for those ten times a second.
const WAIT_ENDS_WITHIN: Duration = Duration::from_millis(200);

/// What replicas are asked about.
pub(crate) struct Written<'a> {
    /// What it is for people, a lock or a record.
    pub(crate) kind: &'static str,
    /// Where it is.
    pub(crate) keys: &'a [&'a [u8]],
    /// Writes it once more and as it is, and says whether the grant is there.
    pub(crate) ack: &'static Script,
    /// Whose grant it is.
    pub(crate) token: &'a str,
    /// The grant's number.
    pub(crate) number: FencingToken,
}

/// The replicas of one server.
pub(crate) struct Replicas {
    /// How many of them must have a lock.
    needed: u32,
    pool: Pool<Connections>,
    /// Results that they have, by the names of their records. Many ask for one of them, and it does not change.
    results: Mutex<HashMap<Box<[u8]>, FencingToken>>,
}

impl Replicas {
    /// Nothing where none are needed. Nothing connects before the first grant.
    pub(crate) fn of(client: &Client, needed: u32, connect_timeout: Duration) -> Option<Self> {
        let connections = Connections { client: client.clone(), connect_timeout };
        let pool = || {
            bb8::Builder::new()
                .max_size(CONNECTIONS)
                .connection_timeout(connect_timeout)
                .build_unchecked(connections)
        };
        (needed > 0).then(|| Self { needed, pool: pool(), results: Mutex::default() })
    }

    /// Waits until they have the result in a record.
    pub(crate) async fn have_result(&self, written: &Written<'_>, deadline: Instant) -> Result<(), String> {
        let record = written.keys.concat().into_boxed_slice();
        let is_known = || self.results.lock().get(&record) == Some(&written.number);
        if is_known() {
            return Ok(());
        }
        self.ask(written, deadline, is_known).await?;
        let mut results = self.results.lock();
        if results.len() >= MOST_RESULTS {
            results.clear();
        }
        results.insert(record, written.number);
        Ok(())
    }

    /// Waits until as many replicas as are needed have the grant of this number. The error says, for people, why it is
    /// not to be relied on.
    pub(crate) async fn have(&self, written: &Written<'_>, deadline: Instant) -> Result<(), String> {
        self.ask(written, deadline, || false).await
    }

    /// The same, unless it is known once there is a connection: of a crowd that waits for these, one asks.
    async fn ask(
        &self,
        written: &Written<'_>,
        deadline: Instant,
        is_known: impl Fn() -> bool,
    ) -> Result<(), String> {
        let (needed, kind) = (self.needed, written.kind);
        let ask = async {
            loop {
                let Ok(mut connection) = self.pool.get().await else { return None };
                if is_known() {
                    return Some(Ok(Some(needed)));
                }
                match connection.ask(written, needed, deadline).await {
                    // The next may be a better one: those of a server that was restarted are all useless.
                    Err(error) if error.is_unrecoverable_error() => {}
                    reply => return Some(reply),
                }
            }
        };
        match timeout_at(deadline, ask).await {
            Ok(Some(Ok(Some(count)))) if count >= needed => Ok(()),
            Ok(Some(Ok(Some(count)))) => Err(format!(
                "{count} replicas acknowledged the {kind} in time; --replicas-ack asks for {needed}"
            )),
            Ok(Some(Ok(None))) => {
                Err(format!("the {kind} was lost, or its lease over, before replicas acknowledged it"))
            }
            Ok(Some(Err(error))) => {
                Err(format!("replicas cannot be asked about the {kind}: Redis: {}", describe(&error)))
            }
            Ok(None) | Err(_) => Err(format!("replicas could not be asked about the {kind} in time")),
        }
    }
}

/// Makes the connections of a pool.
struct Connections {
    client: Client,
    connect_timeout: Duration,
}

/// A connection that is used by one grant at a time.
struct OwnConnection {
    connection: MultiplexedConnection,
    /// The scripts of which the server was given the text: one that does not know it would first have the WAIT behind
    /// its refusal time out, where replicas are silent.
    known_scripts: Vec<&'static Script>,
    /// Whether a reply may still be on its way: it would be taken for that to the next question.
    is_busy: bool,
    is_closed: Arc<AtomicBool>,
}

impl OwnConnection {
    /// Writes the grant once more and waits for replicas. Returns how many have it; nothing where it is not there.
    async fn ask(
        &mut self,
        Written { keys, ack, token, number, .. }: &Written<'_>,
        needed: u32,
        deadline: Instant,
    ) -> RedisResult<Option<u32>> {
        let add_args = |call: &mut Cmd| {
            call.arg(token).arg(number.get());
        };
        let knows_script = self.known_scripts.iter().any(|known| std::ptr::eq(*known, *ack));
        // It stays so if the reply does not come, or if the caller has gone.
        self.is_busy = true;
        let write = if knows_script { ack.by_hash(keys, add_args) } else { ack.by_text(keys, add_args) };
        let reply = match self.send(write, needed, deadline).await {
            Err(error) if error.kind() == NO_SCRIPT => {
                self.send(ack.by_text(keys, add_args), needed, deadline).await
            }
            reply => reply,
        };
        if reply.is_ok() && !knows_script {
            self.known_scripts.push(ack);
        }
        self.is_busy = reply.as_ref().is_err_and(RedisError::is_unrecoverable_error);
        reply
    }

    async fn send(&mut self, write: Cmd, needed: u32, deadline: Instant) -> RedisResult<Option<u32>> {
        // Its own end comes before the deadline, so that the reply is heard and the connection can be used again.
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.saturating_sub(WAIT_ENDS_WITHIN).max(left / 2);
        // Zero would be for ever.
        let left_ms = left.as_millis().max(1).to_string();
        let replies: Vec<RedisResult<u32>> = redis::pipe()
            .add_command(write)
            .cmd("WAIT")
            .arg(needed)
            .arg(left_ms)
            .ignore_errors()
            .query_async(&mut self.connection)
            .await?;
        let mut replies = replies.into_iter();
        let (Some(is_there), Some(count)) = (replies.next(), replies.next()) else {
            return Err((ErrorKind::UnexpectedReturnType, "Redis answered less than it was asked").into());
        };
        Ok(if is_there? == 1 { Some(count?) } else { None })
    }
}

impl ManageConnection for Connections {
    type Connection = OwnConnection;
    type Error = RedisError;

    async fn connect(&self) -> RedisResult<OwnConnection> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                closed.store(true, Ordering::Release);
            }
            Ok::<(), SendError>(())
        };
        // The driver's time for a reply would end many a WAIT.
        let config =
            without_deadlines().set_connection_timeout(Some(self.connect_timeout)).set_push_sender(on_push);
        let connection = self.client.connect(config).await?;
        Ok(OwnConnection { connection, known_scripts: Vec::new(), is_busy: false, is_closed })
    }

    /// Without asking the server: a round trip more would be a good part of what waiting for replicas costs.
    async fn is_valid(&self, connection: &mut OwnConnection) -> RedisResult<()> {
        match connection.is_closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err((ErrorKind::Io, "the connection was closed").into()),
        }
    }

    fn has_broken(&self, connection: &mut OwnConnection) -> bool {
        connection.is_busy || connection.is_closed.load(Ordering::Acquire)
    }
}
