//! What keeps a [`Link`] to one server: it finds the server, connects, learns, watches, and replaces the link when it is no
//! longer good.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::link::Link;
use super::replicas::Replicas;
use super::sentinel::{Primary, Sentinels};
use crate::clock::Backoff;
use crate::store::redis::failure::describe;
use crate::store::redis::health::preflight::{Gate, Preflight, ServerMonitor};
use crate::store::redis::pubsub::Hints;
use crate::store::redis::pubsub::hints::{self, Listener};
use crate::store::redis::scripts;
use crate::store::redis::scripts::keys::KeySpace;
use crate::store::{Bucket, StoreError};

/// How often a gateway asks whether the server is still the one it learned.
const RELEARN_PERIOD: Duration = Duration::from_secs(1);
/// The pause before a server that is down is probed again: it doubles from the first to the last, with jitter.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(50);
/// With the longest pause between two rollbacks it leaves room within the second in which nothing may be left of what
/// a server that stood still did for nobody.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_millis(250);
/// Commands that may wait in the driver's queue; past it, callers wait for a place.
const QUEUED_COMMANDS: usize = 1024;

/// Whom a supervisor keeps a link to.
pub(crate) enum Target {
    /// The server at this address, whoever it is.
    Server(Client),
    /// The server that Sentinel calls the primary.
    Primary(Sentinels),
    /// A server of a cluster. Its runs of numbers begin with the first use of each bucket.
    Node(Client),
    /// A server of a quorum, which has no run of numbers of its own.
    Member(Client),
}

/// What requests see.
#[derive(Clone)]
enum LinkState {
    /// The first tries are under way: requests wait for their outcome, within their deadline.
    Connecting,
    Up(Arc<Link>),
    /// All tries have failed for a while, the last for this reason: requests fail at once, while the supervisor probes.
    Down(Arc<str>),
}
/// Keeps a [`Link`] to one server for as long as it lives.
pub(crate) struct LinkSupervisor {
    state: watch::Receiver<LinkState>,
    stop: CancellationToken,
}

impl LinkSupervisor {
    /// Starts connecting in the background. `reply_timeout` bounds the connecting, and each look at the server; what
    /// the server tells the gateway of the name in `hints` goes to its sender.
    pub(crate) fn start(
        target: Target,
        preflight: &Preflight,
        reply_timeout: Duration,
        hints: Hints,
    ) -> Self {
        let stop = CancellationToken::new();
        let (sender, state) = watch::channel(LinkState::Connecting);
        let (keys, monitor) = (preflight.keys().clone(), ServerMonitor::new(preflight.clone()));
        let replicas_ack = preflight.replicas_ack();
        let task = Task { target, keys, monitor, replicas_ack, reply_timeout, hints, state: sender.clone() };
        let stopped = stop.clone();
        tokio::spawn(async move {
            stopped.run_until_cancelled(task.run()).await;
            sender.send_replace(LinkState::Down("the store is closed".into()));
        });
        Self { state, stop }
    }

    /// The current link. Fails at once while the server is known to be down.
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.link_now() {
            return Ok(link);
        }
        let is_settled = |state: &LinkState| match state {
            LinkState::Up(link) => link.is_usable(),
            LinkState::Down(_) => true,
            LinkState::Connecting => false,
        };
        let mut state = self.state.clone();
        let settled = timeout_at(deadline, state.wait_for(is_settled)).await;
        match settled.as_ref().map(|state| state.as_deref()) {
            Ok(Ok(LinkState::Up(link))) => Ok(link.clone()),
            Ok(Ok(LinkState::Down(reason))) => Err(StoreError::Unavailable(reason.to_string())),
            Ok(Err(_)) => Err(StoreError::Unavailable("the connection to Redis is closed".into())),
            Ok(Ok(LinkState::Connecting)) | Err(_) => {
                Err(StoreError::Unavailable("no connection to Redis within the deadline".into()))
            }
        }
    }

    /// The current link, if it can be used.
    pub(crate) fn link_now(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            LinkState::Up(link) if link.is_usable() => Some(link.clone()),
            _ => None,
        }
    }

    /// Waits until requests are given another link than that of `session`, or, without one, any; or until the server is
    /// out of order.
    pub(crate) async fn changed(&self, session: Option<u64>) {
        let is_other = |state: &LinkState| match state {
            LinkState::Up(link) => Some(link.session) != session,
            LinkState::Connecting | LinkState::Down(_) => session.is_some(),
        };
        // An error means that the store is closed.
        let _ = self.state.clone().wait_for(is_other).await;
    }

    /// Whether all tries have failed for a while.
    pub(crate) fn is_down(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Down(_))
    }

    /// Ends the connection and the probing: from then on requests are refused.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for LinkSupervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The supervisor's own side.
struct Task {
    target: Target,
    keys: KeySpace,
    monitor: ServerMonitor,
    replicas_ack: u32,
    reply_timeout: Duration,
    hints: Hints,
    state: watch::Sender<LinkState>,
}

/// Whose word says that a server is the primary.
#[derive(Clone, Copy)]
enum Word {
    Most,
    All,
    /// That of when the link was made.
    Former,
}

impl Word {
    fn as_str(self) -> &'static str {
        match self {
            Self::Most => "connect",
            Self::All => "all",
            Self::Former => "look",
        }
    }
}

/// What a supervisor has just connected to.
struct Connected {
    link: Link,
    /// By what right the server is the primary, where Sentinel says who is.
    primary: Option<Primary>,
    /// Notified when a connection of the link ends.
    closed: Arc<Notify>,
}

impl Task {
    async fn run(self) {
        let probes = Backoff::new(FIRST_PROBE_PAUSE, LONGEST_PROBE_PAUSE);
        let mut backoff = probes.clone();
        let mut failing_since = Instant::now();
        loop {
            match self.connect().await {
                Ok(Connected { link, primary, closed }) => {
                    tracing::info!(incarnation = link.incarnation, "connected to Redis");
                    let link = Arc::new(link);
                    self.state.send_replace(LinkState::Up(link.clone()));
                    self.hints.peer_channels.is_up(link.connection.clone()).await;
                    let reason = self.watch(&link, primary.as_ref(), &closed).await;
                    tracing::warn!(reason, "leaving the connection to Redis");
                    self.state.send_replace(LinkState::Connecting);
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
        if !matches!(&*self.state.borrow(), LinkState::Down(known) if **known == *reason) {
            // Where it is stands in the log alone: it is nothing for those who only take locks.
            match &self.target {
                Target::Server(client) | Target::Node(client) | Target::Member(client) => {
                    let address = client.get_connection_info().addr();
                    tracing::warn!(%address, reason, "out of order");
                }
                Target::Primary(_) => tracing::warn!(reason, "out of order"),
            }
        }
        self.state.send_replace(LinkState::Down(reason.into()));
    }

    /// Finds out whom to connect to, connects and learns.
    async fn connect(&self) -> Result<Connected, String> {
        let (client, found) = match &self.target {
            Target::Server(client) | Target::Node(client) | Target::Member(client) => (client.clone(), None),
            Target::Primary(sentinels) => {
                let primary = sentinels.find_primary().await?;
                (sentinels.client_of(&primary)?, Some(primary))
            }
        };
        let closed = Arc::new(Notify::new());
        let connecting = timeout(self.reply_timeout, self.connect_to(&client, found.as_ref(), &closed));
        let connected = tokio::select! {
            connected = connecting => connected,
            // A server that is silent, since it stands still or is cut off, may have a successor by now.
            () = self.is_deposed(found.as_ref(), LONGEST_PROBE_PAUSE) => {
                return Err("Sentinel has another primary by now".to_owned());
            }
        };
        match connected {
            Ok(Ok(Ok((link, primary)))) => Ok(Connected { link, primary, closed }),
            Ok(Ok(Err(reason))) => Err(format!("Redis cannot be used: {reason}")),
            Ok(Err(error)) => Err(format!("Redis cannot be used: {}", describe(&error))),
            Err(_) => Err("Redis does not answer".to_owned()),
        }
    }

    async fn connect_to(
        &self,
        client: &Client,
        found: Option<&Primary>,
        closed: &Arc<Notify>,
    ) -> RedisResult<Result<(Link, Option<Primary>), String>> {
        let connect = async || {
            // Our own deadlines bound connecting and replies: the driver's would leave a reply on the way.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUED_COMMANDS)
                .set_push_sender(self.on_push(closed.clone()));
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        let mut connection = connect().await?;
        let (incarnation, gate) = match self.ask(&mut connection, Some(client)).await? {
            Ok((incarnation, refusal)) => (incarnation, Gate::new(refusal)),
            Err(reason) => return Ok(Err(reason)),
        };
        let primary = match self.confirm(found).await {
            Ok(primary) => primary,
            Err(reason) => return Ok(Err(reason)),
        };
        let word = primary.as_ref().map(|primary| if primary.is_unanimous { Word::All } else { Word::Most });
        let run = match self.keep_run(&mut connection, &incarnation, primary.as_ref().zip(word)).await {
            Ok(Some(run)) => run,
            Ok(None) => {
                return Ok(Err("it was the primary by a later word of Sentinel than this one".to_owned()));
            }
            // Where nothing is granted no numbers are needed, and what is held can still be renewed and released.
            Err(error) if gate.may_grant().is_err() && !error.is_unrecoverable_error() => incarnation.clone(),
            Err(error) => return Err(error),
        };
        // Neither subscription nor connection can be replaced without the other.
        let listener = if let Target::Node(_) = self.target {
            Some(Listener::new(connect().await?, self.keys.clone(), self.hints.gateway.clone()))
        } else {
            let channel = self.keys.channel(Bucket::default(), &self.hints.gateway);
            if let Err(error) = hints::subscribe(&mut connection, &channel).await {
                let reason = describe(&error);
                tracing::warn!(reason, "no subscription: waiters learn of their turn by polling");
            }
            None
        };
        self.hints.peer_channels.tune(&mut connection).await;
        let replicas = Replicas::of(client, self.replicas_ack, self.reply_timeout);
        Ok(Ok((Link::new(connection, incarnation, run, gate, replicas, listener), primary)))
    }

    /// By what right the server is the primary, asked once more, of Sentinel, now that the connection stands: Sentinel
    /// closes all connections of a server whose role it changes, so this one has seen no change since. The answer by
    /// which the server was found may be two failovers old.
    async fn confirm(&self, found: Option<&Primary>) -> Result<Option<Primary>, String> {
        let (Target::Primary(sentinels), Some(found)) = (&self.target, found) else { return Ok(None) };
        let primary = sentinels.find_primary().await?;
        // The halves of one answer may tell of a new address under an old epoch, but not those of two.
        if (&primary.node, primary.epoch) != (&found.node, found.epoch) {
            return Err("Sentinel has another primary by now".to_owned());
        }
        Ok(Some(primary))
    }

    fn on_push(&self, closed: Arc<Notify>) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + use<> {
        let (keys, Hints { sender: hints, peer_channels, .. }) = (self.keys.clone(), self.hints.clone());
        move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                closed.notify_one();
            } else if !peer_channels.take(&push)
                && let Some(hint) = hints::read(push, &keys)
            {
                // Nobody listens before somebody waits.
                let _ = hints.send(hint);
            }
            Ok(())
        }
    }

    /// Asks a server, to which `client` may just have connected, for its incarnation, and for what reason nothing may be
    /// granted on it; or why it cannot be used.
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        client: Option<&Client>,
    ) -> RedisResult<Result<(String, Option<Arc<str>>), String>> {
        let look = self.monitor.look(connection, client).await?;
        let identity = &look.profile.identity;
        Ok(look.check().map(|()| {
            let incarnation = match self.target {
                Target::Server(_) | Target::Member(_) => identity.incarnation(),
                Target::Primary(_) => identity.incarnation_under_sentinel(),
                Target::Node(_) => identity.incarnation_on_cluster(),
            };
            (incarnation, look.refusal())
        }))
    }

    /// Sees to it that the server's run of numbers is there. A flush, or a gateway that knew the server by its name of
    /// before, may have removed it, and it would otherwise start anew with the next grant, which may be one given by a
    /// deposed primary long after its successor's run began. Returns the run's name, `None` where Sentinel had a later word.
    async fn keep_run(
        &self,
        connection: &mut MultiplexedConnection,
        incarnation: &str,
        primary: Option<(&Primary, Word)>,
    ) -> RedisResult<Option<String>> {
        if let Target::Node(_) | Target::Member(_) = self.target {
            return Ok(Some(incarnation.to_owned()));
        }
        let fence = self.keys.fence(Bucket::default());
        scripts::LEARN
            .run(connection, &[fence.as_bytes()], |call| {
                call.arg(incarnation);
                if let Some((primary, word)) = primary {
                    call.arg(primary.epoch).arg(word.as_str());
                }
            })
            .await
    }

    /// Whether the server is still the one that was learned; its run is there when this returns.
    async fn look(
        &self,
        connection: &mut MultiplexedConnection,
        link: &Link,
        primary: Option<&Primary>,
    ) -> RedisResult<bool> {
        let refusal = match self.ask(connection, None).await? {
            Ok((incarnation, refusal)) if incarnation == link.incarnation => refusal,
            _ => return Ok(false),
        };
        if refusal.is_some() {
            link.gate.set(refusal.clone());
        } else if primary.is_some() && link.gate.may_grant().is_err() {
            // A server that was refused may not have learned its epoch. Connecting makes up for that, and a look does not.
            return Ok(false);
        }
        let primary = primary.map(|primary| (primary, Word::Former));
        match self.keep_run(connection, &link.incarnation, primary).await {
            Ok(run) => {
                link.gate.set(refusal);
                Ok(run.is_some())
            }
            // A server that takes no writes now is asked again at the next look, and still serves what it can.
            Err(error) => {
                tracing::debug!(reason = describe(&error), "the run of fencing numbers cannot be kept");
                Ok(true)
            }
        }
    }

    /// Asks the sentinels so often, and returns when they have another primary; never, where there are none.
    async fn is_deposed(&self, primary: Option<&Primary>, period: Duration) {
        let (Target::Primary(sentinels), Some(primary)) = (&self.target, primary) else {
            return std::future::pending().await;
        };
        let mut period = every(period);
        loop {
            period.tick().await;
            if sentinels.have_left(primary).await {
                return;
            }
        }
    }

    /// Returns, with the reason, when the link is no longer good.
    async fn watch(&self, link: &Link, primary: Option<&Primary>, closed: &Notify) -> &'static str {
        let relearn = async {
            let mut period = every(RELEARN_PERIOD);
            loop {
                period.tick().await;
                let mut connection = link.connection.clone();
                match timeout(self.reply_timeout, self.look(&mut connection, link, primary)).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => return "the server is another one now, or cannot be used any more",
                    Ok(Err(_)) => return "the server cannot say who it is",
                    Err(_) => return "the server does not answer",
                }
            }
        };
        // Side by side: a server that is silent towards the look must not keep a request's report from being heard.
        tokio::select! {
            () = closed.notified() => "it was closed",
            () = link.is_reported() => "a command failed on it",
            reason = relearn => reason,
            // A deposed primary may go on for long as if nothing had happened.
            () = self.is_deposed(primary, RELEARN_PERIOD) => {
                "Sentinel has another primary, or had one in between"
            }
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut period = interval(period);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    period
}
