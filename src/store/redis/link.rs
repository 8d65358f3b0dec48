//! The connection to Redis: one immutable value of connection and incarnation, and the supervisor that replaces it.
//!
//! A connection that mends itself would ask a restarted server under the name of the one that is gone, and a server
//! that lost its last second would then repeat fencing numbers. So nothing here reconnects by itself: the supervisor
//! connects, learns who the server is, starts its run of numbers, and only then shows the connection to requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::keys::KeySpace;
use super::{hints, scripts};
use crate::clock::Backoff;
use crate::store::{Hint, StoreError};

/// How often a gateway asks whether the server is still the one it learned.
const RELEARN_PERIOD: Duration = Duration::from_secs(1);
/// The pause before a server that is down is probed again: it doubles from the first to the last, with jitter.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(50);
/// With the longest pause between two takes-back it leaves room within the second in which nothing may be left of what
/// a server that stood still did for nobody.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_millis(250);
/// Commands that may wait in the driver's queue; past it, callers wait for a place.
const QUEUED_COMMANDS: usize = 1024;

/// A connection and the incarnation of the server at its other end, learned before its first script.
pub(super) struct Link {
    /// Clone it to send: all clones share one connection, whose driver ends with the last of them.
    pub(super) connection: MultiplexedConnection,
    /// Names the server's run of fencing numbers; it changes with every restart and every promotion.
    pub(super) incarnation: String,
    /// The number of this link: a later one is another connection, and perhaps another server.
    pub(super) session: u64,
    /// Set by the first request that found the connection wanting: from that moment nobody is given it any more.
    is_broken: AtomicBool,
    /// Tells the supervisor.
    broken: Notify,
}

impl Link {
    /// Says that this connection must not be used again: a reply timed out on it, or it failed.
    pub(super) fn report_broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Acquire)
    }
}

/// What requests see.
#[derive(Clone)]
enum State {
    /// The first tries are under way: requests wait for their outcome, within their deadline.
    Connecting,
    Up(Arc<Link>),
    /// All tries have failed for a while, the last for this reason: requests fail at once, while the supervisor probes.
    Down(Arc<str>),
}

/// Where what the server tells goes.
#[derive(Clone)]
pub(super) struct Hints {
    /// The name by which the server knows this gateway.
    pub(super) gateway: Arc<str>,
    pub(super) sender: broadcast::Sender<Hint>,
}

/// Keeps a [`Link`] to one server for as long as it lives.
pub(super) struct Supervisor {
    state: watch::Receiver<State>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Starts connecting in the background. `reply_timeout` bounds the connecting, and each look at the server; what
    /// the server tells the gateway of the name in `hints` goes to its sender.
    pub(super) fn start(client: Client, keys: KeySpace, reply_timeout: Duration, hints: Hints) -> Self {
        let stop = CancellationToken::new();
        let (sender, state) = watch::channel(State::Connecting);
        let task = Task { client, keys, reply_timeout, hints, sessions: 0, state: sender.clone() };
        let stopped = stop.clone();
        tokio::spawn(async move {
            stopped.run_until_cancelled(task.run()).await;
            sender.send_replace(State::Down("the store is closed".into()));
        });
        Self { state, stop }
    }

    /// The current link. Fails at once while the server is known to be down.
    pub(super) async fn link(&self, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        if let State::Up(link) = &*self.state.borrow()
            && link.is_usable()
        {
            return Ok(link.clone());
        }
        let is_settled = |state: &State| match state {
            State::Up(link) => link.is_usable(),
            State::Down(_) => true,
            State::Connecting => false,
        };
        let mut state = self.state.clone();
        let settled = timeout_at(deadline, state.wait_for(is_settled)).await;
        match settled.as_ref().map(|state| state.as_deref()) {
            Ok(Ok(State::Up(link))) => Ok(link.clone()),
            Ok(Ok(State::Down(reason))) => Err(StoreError::Unavailable(reason.to_string())),
            Ok(Err(_)) => Err(StoreError::Unavailable("the connection to Redis is closed".into())),
            Ok(Ok(State::Connecting)) | Err(_) => {
                Err(StoreError::Unavailable("no connection to Redis within the deadline".into()))
            }
        }
    }

    /// Ends the connection and the probing: from then on requests are refused.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The supervisor's own side.
struct Task {
    client: Client,
    keys: KeySpace,
    reply_timeout: Duration,
    hints: Hints,
    /// Links so far.
    sessions: u64,
    state: watch::Sender<State>,
}

impl Task {
    async fn run(mut self) {
        let probes = Backoff::new(FIRST_PROBE_PAUSE, LONGEST_PROBE_PAUSE);
        let mut backoff = probes.clone();
        let mut failing_since = Instant::now();
        loop {
            match self.connect().await {
                Ok((link, closed)) => {
                    tracing::info!(incarnation = link.incarnation, "connected to Redis");
                    let link = Arc::new(link);
                    self.state.send_replace(State::Up(link.clone()));
                    let reason = self.watch(&link, &closed).await;
                    tracing::warn!(reason, "leaving the connection to Redis");
                    self.state.send_replace(State::Connecting);
                    backoff = probes.clone();
                    failing_since = Instant::now();
                }
                Err(reason) => {
                    // A restart that is over soon costs its callers a moment, not an error.
                    if failing_since.elapsed() >= self.reply_timeout {
                        self.give_up(reason);
                    }
                    backoff.pause().await;
                }
            }
        }
    }

    /// From now on requests fail at once, for this reason.
    fn give_up(&self, reason: String) {
        if !matches!(&*self.state.borrow(), State::Down(known) if **known == *reason) {
            // Where it is stands in the log alone: it is nothing for those who only take locks.
            let address = self.client.get_connection_info().addr();
            tracing::warn!(%address, reason, "out of order");
        }
        self.state.send_replace(State::Down(reason.into()));
    }

    /// Connects and learns; the second value is notified when the driver's connection ends.
    async fn connect(&mut self) -> Result<(Link, Arc<Notify>), String> {
        self.sessions += 1;
        let session = self.sessions;
        let closed = Arc::new(Notify::new());
        let on_push = {
            let (closed, keys, hints) = (closed.clone(), self.keys.clone(), self.hints.sender.clone());
            move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.notify_one();
                } else if let Some(hint) = hints::read(push, &keys) {
                    // Nobody listens before somebody waits.
                    let _ = hints.send(hint);
                }
                Ok::<(), redis::aio::SendError>(())
            }
        };
        // Our own deadlines bound connecting and replies: the driver's would leave a reply on the way.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_COMMANDS)
            .set_push_sender(on_push);
        let connect = async {
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let identity = Identity::ask(&mut connection).await?;
            if !identity.is_primary {
                return Ok(Err("it is a replica, and locks need the primary".to_owned()));
            }
            // Under a name that does not change, a restarted server that lost its last second would repeat numbers.
            if identity.run_id.is_empty() || identity.replication_id.is_empty() {
                return Ok(Err("its INFO has no run_id or no master_replid".to_owned()));
            }
            let incarnation = identity.incarnation();
            self.start_run(&mut connection, &incarnation).await?;
            // On this connection, so that neither can be replaced without the other. Where it is forbidden, waiting
            // is slower, and works.
            let channel = self.keys.channel(&self.hints.gateway);
            if let Err(error) = hints::subscribe(&mut connection, &channel).await {
                let reason = describe(&error);
                tracing::warn!(
                    reason,
                    "Redis allows no subscription: waiters learn of their turn by polling"
                );
            }
            let (is_broken, broken) = (AtomicBool::new(false), Notify::new());
            Ok(Ok(Link { connection, incarnation, session, is_broken, broken }))
        };
        match timeout(self.reply_timeout, connect).await {
            Ok(Ok(Ok(link))) => Ok((link, closed)),
            Ok(Ok(Err(reason))) => Err(format!("Redis cannot be used: {reason}")),
            Ok(Err(error)) => Err(format!("Redis cannot be used: {}", describe(&error))),
            Err(_) => Err("Redis does not answer".to_owned()),
        }
    }

    /// Starts the server's run of numbers, unless it runs already.
    async fn start_run(&self, connection: &mut MultiplexedConnection, incarnation: &str) -> RedisResult<()> {
        let fence = self.keys.fence().as_bytes();
        scripts::LEARN.run::<i64>(connection, &[fence], &[incarnation.as_bytes()]).await.map(drop)
    }

    /// Whether the server is still the one that was learned. If it is, its run is there when this returns: a flush,
    /// or a gateway that knew the server by its name of before, may have removed it, and it would otherwise start
    /// anew with the next grant, which may be one given by a deposed primary long after its successor's run began.
    async fn look(&self, connection: &mut MultiplexedConnection, incarnation: &str) -> RedisResult<bool> {
        let identity = Identity::ask(connection).await?;
        if !identity.is_primary || identity.incarnation() != incarnation {
            return Ok(false);
        }
        let mut exists = redis::cmd("HEXISTS");
        exists.arg(self.keys.fence().as_bytes()).arg(incarnation);
        let run = match exists.query_async(connection).await {
            Ok(true) => Ok(()),
            Ok(false) => self.start_run(connection, incarnation).await,
            Err(error) => Err(error),
        };
        // A server that takes no writes now is asked again at the next look, and still serves what it can.
        if let Err(error) = run {
            tracing::debug!(reason = describe(&error), "the run of fencing numbers cannot be kept");
        }
        Ok(true)
    }

    /// Returns, with the reason, when the link is no longer good.
    async fn watch(&self, link: &Link, closed: &Notify) -> &'static str {
        let relearn = async {
            let mut period = interval(RELEARN_PERIOD);
            period.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                period.tick().await;
                let mut connection = link.connection.clone();
                match timeout(self.reply_timeout, self.look(&mut connection, &link.incarnation)).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => return "the server is another one now",
                    Ok(Err(_)) => return "the server cannot say who it is",
                    Err(_) => return "the server does not answer",
                }
            }
        };
        // Side by side: a server that is silent towards the look must not keep a request's report from being heard.
        tokio::select! {
            () = closed.notified() => "it was closed",
            () = link.broken.notified() => "a command failed on it",
            reason = relearn => reason,
        }
    }
}

/// Who a server is, from its `INFO`.
struct Identity {
    run_id: String,
    replication_id: String,
    is_primary: bool,
}

impl Identity {
    async fn ask(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        // Two calls, since servers before 7.0 take one section at a time.
        let (server, replication): (String, String) = redis::pipe()
            .cmd("INFO")
            .arg("server")
            .cmd("INFO")
            .arg("replication")
            .query_async(connection)
            .await?;
        let field = |info: &str, name| info_field(info, name).unwrap_or_default().to_owned();
        Ok(Self {
            run_id: field(&server, "run_id"),
            replication_id: field(&replication, "master_replid"),
            is_primary: info_field(&replication, "role") == Some("master"),
        })
    }

    /// Half of each id is 80 random bits: enough to tell servers apart, and short enough to travel with each call.
    fn incarnation(&self) -> String {
        let half = |id: &str| id.chars().take(20).collect::<String>();
        format!("{}-{}", half(&self.run_id), half(&self.replication_id))
    }
}

/// The value of one `name:value` line of an `INFO` reply.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// An error of the driver in one line.
pub(super) fn describe(error: &redis::RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
