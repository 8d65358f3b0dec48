//! What keeps a [`Link`] to one server: it finds the server, connects, learns, watches, and replaces the link when it is no
//! longer good.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connector::{Connected, Connector, LONGEST_PROBE_PAUSE, Target, every};
use super::link::Link;
use super::sentinel::Primary;
use crate::clock::Backoff;
use crate::store::StoreError;
use crate::store::redis::health::monitor::ServerMonitor;
use crate::store::redis::health::preflight::Preflight;
use crate::store::redis::pubsub::Hints;

/// How often a gateway asks whether the server is still the one it learned.
const RELEARN_PERIOD: Duration = Duration::from_secs(1);
/// A link that ends so soon is a try that has failed.
const BRIEF: Duration = Duration::from_secs(1);
/// The pause before a server that is down is probed again: it doubles from the first to the last, with jitter.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two lines of the log on why a server cannot be used: reasons may change with each try.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// So many of these reasons are told once each, and so many links one after the other that end at once.
const MOST_TOLD: usize = 8;

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
    /// Starts connecting in the background. `reply_timeout` bounds the opening of each connection, then the learning of
    /// the server, and each look at it; what the server tells the gateway of the name in `hints` goes to its sender.
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
        let connector = Connector { target, keys, monitor, replicas_ack, reply_timeout, hints };
        let task = Task { connector, state: sender.clone() };
        let stopped = stop.clone();
        tokio::spawn(async move {
            stopped.run_until_cancelled(task.run()).await;
            if let LinkState::Up(link) = sender.send_replace(LinkState::Down("the store is closed".into())) {
                link.report_broken();
            }
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
                Err(StoreError::Unavailable("no connection to Redis in time".into()))
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
    connector: Connector,
    state: watch::Sender<LinkState>,
}

impl Task {
    async fn run(self) {
        let probes = Backoff::new(FIRST_PROBE_PAUSE, LONGEST_PROBE_PAUSE);
        let mut backoff = probes.clone();
        let mut failing_since = Instant::now();
        let mut told = Vec::new();
        // How many links have ended at once since one lasted, as behind a proxy that has no server.
        let mut brief = 0;
        loop {
            match self.connector.connect().await {
                Ok(Connected { link, primary, closed }) => {
                    let address = self.connector.monitor.address();
                    let link = Arc::new(link);
                    let say =
                        || tracing::info!(address, incarnation = link.incarnation, "connected to Redis");
                    let is_told = brief < MOST_TOLD;
                    if is_told {
                        say();
                    }
                    if let Some(reason) =
                        primary.as_ref().filter(|_| is_told).and_then(|primary| primary.twins.as_deref())
                    {
                        tracing::warn!(reason, "a sentinel has one vote, however often it is named");
                    }
                    self.state.send_replace(LinkState::Up(link.clone()));
                    let mut watching = pin!(self.watch(&link, primary.as_ref(), &closed));
                    let early = timeout(BRIEF, &mut watching).await.ok();
                    let is_brief = early.is_some();
                    // Behind many that came and went, it is told once it lasts.
                    if !is_told && !is_brief {
                        say();
                    }
                    let reason = match early {
                        Some(reason) => reason,
                        None => watching.await,
                    };
                    if is_told || !is_brief {
                        tracing::warn!(address, reason, "the connection to Redis is given up");
                        told.clear();
                    }
                    self.state.send_replace(LinkState::Connecting);
                    // Those who wait for a permit have sent nothing: they go on over the next link.
                    link.report_broken();
                    if is_brief {
                        brief += 1;
                        if brief == MOST_TOLD {
                            tracing::warn!(
                                address,
                                "connections to Redis end at once: the log says no more of them until one lasts"
                            );
                        }
                        backoff.pause().await;
                    } else {
                        (brief, backoff) = (0, probes.clone());
                    }
                    failing_since = Instant::now();
                }
                Err(reason) => {
                    // A restart that is over soon costs its callers a moment, not an error.
                    if failing_since.elapsed() >= self.connector.reply_timeout {
                        self.give_up(reason, &mut told);
                    }
                    backoff.pause().await;
                }
            }
        }
    }

    /// From now on requests fail at once, for this reason. The log says so, unless it has told of it, or just of another one.
    fn give_up(&self, reason: String, told: &mut Vec<(String, Instant)>) {
        let is_new = told.iter().all(|(known, _)| *known != reason);
        if is_new && told.last().is_none_or(|(_, at)| at.elapsed() >= TOLD_AGAIN_AFTER) {
            told.drain(..told.len().saturating_sub(MOST_TOLD - 1));
            told.push((reason.clone(), Instant::now()));
            // Where there is one server only, the reason does not say where: clients that take locks need not know.
            match &self.connector.target {
                Target::Server(client) | Target::Node(client, _) | Target::Member(client) => {
                    let address = client.address();
                    tracing::warn!(%address, reason, "Redis cannot be used: requests are refused until it can be");
                }
                Target::Primary(_) => {
                    tracing::warn!(reason, "Redis cannot be used: requests are refused until it can be");
                }
            }
        }
        self.state.send_replace(LinkState::Down(reason.into()));
    }

    /// Returns, with the reason, when the link is no longer good.
    async fn watch(&self, link: &Link, primary: Option<&Primary>, closed: &Notify) -> &'static str {
        let relearn = async {
            let mut period = every(RELEARN_PERIOD);
            loop {
                period.tick().await;
                let mut connection = link.connection.clone();
                let mut answers = false;
                let look = async {
                    let pinging = async { link.listener.ping().await.inspect(|()| answers = true) };
                    let looking = self.connector.look(&mut connection, link, primary);
                    tokio::try_join!(pinging, looking).map(|((), is_good)| is_good)
                };
                match timeout(self.connector.reply_timeout, look).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => {
                        return "the server was restarted or replaced, or cannot be used any more";
                    }
                    Ok(Err(_)) => return "the server cannot say who it is",
                    Err(_) if !answers => return "the server does not answer",
                    Err(_) => {
                        return "the server did not answer all that a look asks within half of --store-timeout";
                    }
                }
            }
        };
        let is_up = self.connector.hints.peer_channels.is_up(link.listener.connection.clone());
        // Side by side: a server that is silent toward the look must not keep a request's report from being heard.
        tokio::select! {
            () = closed.notified() => "the connection was closed",
            () = link.is_reported() => "a command failed on the connection",
            reason = relearn => reason,
            // A deposed primary may go on for long as if nothing had happened.
            () = self.connector.is_deposed(primary, RELEARN_PERIOD) => {
                "Sentinel has another primary, or had one in between"
            }
            // What these find is kept. The connection that stands is good all the same.
            ((), never) = async { tokio::join!(is_up, link.door.keep_looking()) } => match never {},
        }
    }
}
