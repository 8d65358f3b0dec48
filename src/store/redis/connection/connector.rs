//! How a [`Link`] to a server is made: who the server is, whether locks can be kept on it, and by what right it is the primary.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisResult};
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::door::Door;
use super::link::Link;
use super::replicas::Replicas;
use super::sentinel::{Primary, Sentinels};
use super::slots::ClusterIds;
use crate::store::Bucket;
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::{describe, trouble};
use crate::store::redis::health::identity::ServerIdentity;
use crate::store::redis::health::monitor::ServerMonitor;
use crate::store::redis::health::preflight::{Gate, GateState};
use crate::store::redis::health::profile::Profile;
use crate::store::redis::health::room::{OnceRoom, RoomState};
use crate::store::redis::pubsub::Hints;
use crate::store::redis::pubsub::hints::{self, HeardBuckets, Listener};
use crate::store::redis::scripts;
use crate::store::redis::scripts::keys::KeySpace;

/// Commands that may wait in the driver's queue; beyond that, callers wait.
const QUEUED_COMMANDS: usize = 1024;

/// After a server stood still, everything that it did for clients that have gone must be undone within a second. This
/// leaves room for that, with the longest pause between two roll backs.
pub(super) const LONGEST_PROBE_PAUSE: Duration = Duration::from_millis(250);

/// Whom a supervisor keeps a link to.
pub(crate) enum Target {
    /// The server at this address.
    Server(Client),
    /// The server that Sentinel calls the primary.
    Primary(Box<Sentinels>),
    /// A server of the cluster of these servers. Its runs of numbers begin with the first use of each bucket.
    Node(Client, ClusterIds),
    /// A server of a quorum, which has no run of numbers of its own.
    Member(Client),
}

impl Target {
    /// Whether a person must be told which of several servers is meant.
    fn is_one_of_several(&self) -> bool {
        matches!(self, Self::Node(..) | Self::Primary(_))
    }
}

/// Makes links to one server.
pub(super) struct Connector {
    pub(super) target: Target,
    pub(super) keys: KeySpace,
    pub(super) monitor: ServerMonitor,
    pub(super) replicas_ack: u32,
    pub(super) reply_timeout: Duration,
    pub(super) hints: Hints,
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
pub(super) struct Connected {
    pub(super) link: Link,
    /// By what right the server is the primary, if Sentinel says which one is.
    pub(super) primary: Option<Primary>,
    /// Notified when a connection of the link ends.
    pub(super) closed: Arc<Notify>,
}

impl Connector {
    /// Finds out whom to connect to, connects and learns.
    pub(super) async fn connect(&self) -> Result<Connected, String> {
        let (client, found) = match &self.target {
            Target::Server(client) | Target::Node(client, _) | Target::Member(client) => {
                (client.clone(), None)
            }
            Target::Primary(sentinels) => {
                let primary = sentinels.find_primary().await?;
                (sentinels.client_of(&primary)?, Some(primary))
            }
        };
        let at = match self.target.is_one_of_several() {
            true => format!(" at {}", client.address()),
            false => String::new(),
        };
        let closed = Arc::new(Notify::new());
        let connecting = async {
            let buckets = HeardBuckets::default();
            let open = async || {
                let config = without_deadlines()
                    .set_pipeline_buffer_size(QUEUED_COMMANDS)
                    .set_push_sender(self.on_push(closed.clone(), buckets.clone()));
                client.connect(config).await
            };
            // Each connection has the whole limit for its opening, as in `fencepost check`.
            let opened =
                async || self.in_time("does not answer", open().map_err(|error| trouble(&error))).await;
            let connection = opened().await?;
            let limit = humantime::format_duration(self.reply_timeout);
            let late =
                &format!("did not answer all that connecting asks within {limit}, half of --store-timeout");
            let learning = self.in_time(late, self.learn(connection.clone(), &client, found.as_ref()));
            let listening = async {
                let connection = opened().await?;
                let hearing = self.hear(connection, buckets.clone()).map_err(|error| trouble(&error));
                self.in_time(late, hearing).await
            };
            // Neither subscription nor connection can be replaced without the other.
            let (learned, (identity, listener, subscribed)) = tokio::try_join!(learning, listening)?;
            let (incarnation, run, health, primary) = learned;
            // Where a balancer stands between, or the address was given away meanwhile, they may lead to two servers.
            if self.incarnation_of(&identity) != incarnation {
                return Err("cannot be used: two connections to its address lead to two servers".to_owned());
            }
            if let Err(error) = subscribed {
                let reason = describe(&error);
                tracing::warn!(reason, "cannot subscribe: waiters learn of their turn by polling");
            }
            let replicas = Replicas::of(&client, self.replicas_ack, self.reply_timeout);
            let door = Door::new(client.clone(), &at, self.reply_timeout);
            Ok((Link::new(connection, incarnation, run, health, replicas, listener, door), primary))
        };
        let connected = tokio::select! {
            connected = connecting => connected,
            // A silent server stands still or is cut off. It may have a successor by now.
            () = self.is_deposed(found.as_ref(), LONGEST_PROBE_PAUSE) => {
                return Err("Sentinel has another primary by now".to_owned());
            }
        };
        let (link, primary) = connected.map_err(|reason| format!("Redis{at} {reason}"))?;
        Ok(Connected { link, primary, closed })
    }

    /// What comes of `work` within the limit, or else `late`.
    async fn in_time<T>(
        &self,
        late: &str,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let done = timeout(self.reply_timeout, work).await.map_err(|_| late.to_owned())?;
        done.map_err(|reason| format!("cannot be used: {reason}"))
    }

    /// Learns over `connection` which server it leads to.
    async fn learn(
        &self,
        mut connection: MultiplexedConnection,
        client: &Client,
        found: Option<&Primary>,
    ) -> Result<(String, String, (Gate, OnceRoom), Option<Primary>), String> {
        let asked = self.ask(&mut connection, Some(client)).await;
        let (incarnation, state, room) = asked.map_err(|error| trouble(&error))??;
        let keeps_records = !matches!(self.target, Target::Member(_));
        let server = keeps_records.then(|| client.address().to_string());
        let (gate, room) = (Gate::new(state), OnceRoom::new(server, room));
        if let Target::Node(_, ids) = &self.target {
            ids.check(&mut connection).await?;
        }
        let primary = self.confirm(found).await?;
        let word = primary.as_ref().map(|primary| if primary.is_unanimous { Word::All } else { Word::Most });
        let run = match self.keep_run(&mut connection, &incarnation, primary.as_ref().zip(word)).await {
            Ok(Some(run)) => run,
            Ok(None) => match (&self.target, &primary) {
                (Target::Primary(sentinels), Some(primary)) => {
                    return Err(sentinels.why_refused(primary, &mut connection, &self.keys).await?);
                }
                _ => return Err("it has no run of fencing tokens".to_owned()),
            },
            // Where nothing is granted no numbers are needed, and what is held can still be renewed and released.
            Err(error) if gate.may_grant().is_err() && !error.is_unrecoverable_error() => incarnation.clone(),
            Err(error) => return Err(trouble(&error)),
        };
        Ok((incarnation, run, (gate, room), primary))
    }

    /// Listens over `connection`, and asks which server it leads to.
    async fn hear(
        &self,
        mut connection: MultiplexedConnection,
        buckets: HeardBuckets,
    ) -> RedisResult<(ServerIdentity, Listener, RedisResult<()>)> {
        let identity = Profile::ask(&mut connection, false).await?.identity;
        let (keys, gateway) = (self.keys.clone(), self.hints.gateway.clone());
        let listener = Listener::new(connection.clone(), keys, gateway, buckets);
        let subscribing = async {
            match self.target {
                // It depends on the locks that are waited for.
                Target::Node(..) => Ok(()),
                _ => listener.subscribe(Bucket::default()).await,
            }
        };
        let (subscribed, ()) = tokio::join!(subscribing, self.hints.peer_channels.tune(connection));
        Ok((identity, listener, subscribed))
    }

    /// By what right the server is the primary. Sentinel is asked once more, now that the connection stands. It closes
    /// all connections of a server whose role it changes, so this one has seen no change since. The first answer may be
    /// two failovers old.
    async fn confirm(&self, found: Option<&Primary>) -> Result<Option<Primary>, String> {
        let (Target::Primary(sentinels), Some(found)) = (&self.target, found) else { return Ok(None) };
        sentinels.confirm(found).await.map(Some)
    }

    fn on_push(
        &self,
        closed: Arc<Notify>,
        buckets: HeardBuckets,
    ) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + use<> {
        let (keys, Hints { sender: hints, peer_channels, .. }) = (self.keys.clone(), self.hints.clone());
        move |push: PushInfo| {
            hints::note(&push, &keys, &buckets);
            if push.kind == PushKind::Disconnection {
                closed.notify_one();
            } else if !peer_channels.take(&push)
                && let Some(hint) = hints::read(push, &keys)
            {
                // Without a waiter there is no listener.
                let _ = hints.send(hint);
            }
            Ok(())
        }
    }

    /// Asks a server, to which `client` may just have connected, for its incarnation, and whether locks are granted on it; or
    /// why it cannot be used.
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        client: Option<&Client>,
    ) -> RedisResult<Result<(String, GateState, RoomState), String>> {
        let look = self.monitor.look(connection, client).await?;
        let incarnation = self.incarnation_of(&look.profile.identity);
        let [refusal, unready] =
            [look.refusal(), look.unready()].map(|reason| reason.map(|reason| self.named(&reason)));
        let gate = GateState { refusal, unready };
        Ok(look.check().map(|()| (incarnation, gate, look.room)))
    }

    /// A reason of the server that was looked at last, as callers are told it.
    fn named(&self, reason: &str) -> Arc<str> {
        match self.target.is_one_of_several() {
            true => format!("{}: {reason}", self.monitor.address()).into(),
            false => reason.into(),
        }
    }

    fn incarnation_of(&self, identity: &ServerIdentity) -> String {
        match self.target {
            Target::Server(_) | Target::Member(_) => identity.incarnation(),
            Target::Primary(_) => identity.incarnation_under_sentinel(),
            Target::Node(..) => identity.incarnation_on_cluster(),
        }
    }

    /// Makes sure that the server's run of numbers is there. A flush may have removed it, or a gateway that knew the
    /// server by its former name. Without this the run would start anew with the next grant. A deposed primary may give
    /// that grant long after its successor's run began. Returns the run's name, `None` if Sentinel had a later word.
    async fn keep_run(
        &self,
        connection: &mut MultiplexedConnection,
        incarnation: &str,
        primary: Option<(&Primary, Word)>,
    ) -> RedisResult<Option<String>> {
        if let Target::Node(..) | Target::Member(_) = self.target {
            return Ok(Some(incarnation.to_owned()));
        }
        let fence = self.keys.fence(Bucket::default());
        scripts::LEARN
            .run(connection, false, &[fence.as_bytes()], |call| {
                call.arg(incarnation);
                if let Some((primary, word)) = primary {
                    call.arg(primary.epoch).arg(word.as_str());
                }
            })
            .await
    }

    /// Whether the server is still the one that was learned; its run is there when this returns. Where another gateway has given the
    /// run another name, it is learned anew: small scripts count only in the run that they name.
    pub(super) async fn look(
        &self,
        connection: &mut MultiplexedConnection,
        link: &Link,
        primary: Option<&Primary>,
    ) -> RedisResult<bool> {
        let stored_before = link.room.stored_bytes();
        let state = match self.ask(connection, None).await? {
            Ok((incarnation, state, room)) if incarnation == link.incarnation => {
                link.room.set(room, stored_before);
                state
            }
            _ => return Ok(false),
        };
        if state.refusal.is_some() {
            link.gate.set(state.clone());
        } else if primary.is_some() && link.gate.may_grant().is_err() {
            // A server that was refused may not have learned its epoch. Connecting makes up for that, and a look does not.
            return Ok(false);
        }
        let primary = primary.map(|primary| (primary, Word::Former));
        match self.keep_run(connection, &link.incarnation, primary).await {
            Ok(run) => {
                link.gate.set(state);
                Ok(run.is_some_and(|run| run == link.run))
            }
            // A server that takes no writes now is asked again at the next look, and still serves what it can.
            Err(error) => {
                tracing::debug!(
                    reason = describe(&error),
                    "what the server stores about its fencing tokens cannot be written"
                );
                // Without a run of fencing tokens it grants nothing, and one could not begin.
                let no_run = (error.code() == Some("FENCE")).then(|| self.named(&describe(&error)));
                // This opens no gate: a server that was refused may grant only once its run is there.
                if link.gate.may_grant().is_ok() {
                    link.gate.set(GateState { unready: state.unready.or(no_run), ..state });
                }
                Ok(true)
            }
        }
    }

    /// Asks the sentinels so often, and returns when they have another primary; never, where there are none.
    pub(super) async fn is_deposed(&self, primary: Option<&Primary>, period: Duration) {
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
}

pub(super) fn every(period: Duration) -> Interval {
    let mut period = interval(period);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    period
}
