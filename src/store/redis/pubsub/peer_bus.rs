//! What gateways tell each other by way of Redis, on two plain channels. One says which gateways watch, and all of them
//! hear it. The other one carries events, and is used only while a gateway watches. Plain channels reach all nodes of a
//! cluster, from any node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind, RedisResult};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use crate::store::redis::failure::describe;
use crate::store::redis::scripts::keys::KeySpace;
use crate::store::{Heard, PeerBus, StoreError, Topic};

/// What may wait to be sent, and to be heard. Beyond that messages are lost, and the receivers notice it.
const MOST_WAITING: usize = 4_096;
/// What is sent at once.
const MOST_AT_ONCE: usize = 128;

/// What all connections of a store have to do with the peer bus.
pub(crate) struct PeerChannels {
    watchers: String,
    events: String,
    heard: broadcast::Sender<Heard>,
    /// Whether events are listened to.
    listens: AtomicBool,
    patience: Duration,
}

impl PeerChannels {
    pub(crate) fn new(keys: &KeySpace, patience: Duration) -> Arc<Self> {
        let [watchers, events] = keys.peer_channels();
        let (heard, listens) = (broadcast::Sender::new(MOST_WAITING), AtomicBool::new(false));
        Arc::new(Self { watchers, events, heard, listens, patience })
    }

    /// From now on this gateway hears which gateways watch. If that is forbidden, the others hear nothing of this
    /// gateway.
    pub(crate) async fn tune(&self, mut connection: MultiplexedConnection) {
        if let Err(error) = subscribe(&mut connection, &self.watchers).await {
            tracing::debug!(reason = describe(&error), "cannot find out which gateways watch locks");
        }
    }

    /// A connection is in use that was not before. What was told on it meanwhile is lost.
    pub(crate) async fn is_up(&self, mut connection: MultiplexedConnection) {
        let mut heard = Heard::Connected;
        // Without an answer, the connection is about to be replaced.
        if self.listens.load(Ordering::Acquire)
            && let Ok(Err(error)) = timeout(self.patience, self.listen_on(&mut connection)).await
            && error.code() == Some("NOPERM")
        {
            let reason = describe(&error);
            tracing::warn!(
                reason,
                "the gateway cannot learn by one server any more what other gateways do: \
                 without enough other servers, streams of events end"
            );
            heard = Heard::Deaf;
        }
        let _ = self.heard.send(heard);
    }

    async fn listen_on(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        subscribe(connection, &self.events).await?;
        // A gateway that may not say that it watches is told nothing. All gateways ignore an empty message.
        redis::cmd("PUBLISH").arg(&self.watchers).arg("").query_async(connection).await
    }

    /// Takes what belongs to the peer bus among what a server tells; whether it was.
    pub(crate) fn take(&self, push: &PushInfo) -> bool {
        let (PushKind::Message, [channel, text]) = (&push.kind, &*push.data) else { return false };
        let Ok(channel) = String::from_redis_value(channel.clone()) else { return false };
        let topic = match () {
            () if channel == self.events => Topic::Events,
            () if channel == self.watchers => Topic::Watchers,
            () => return false,
        };
        // A connection that has listened once goes on until it ends.
        let is_wanted = topic == Topic::Watchers || self.listens.load(Ordering::Acquire);
        if is_wanted && let Ok(text) = String::from_redis_value(text.clone()) {
            // A program that only looks at a store has no listener.
            let _ = self.heard.send(Heard::Told(topic, text));
        }
        true
    }

    fn channel(&self, topic: Topic) -> &str {
        match topic {
            Topic::Watchers => &self.watchers,
            Topic::Events => &self.events,
        }
    }
}

/// Ends listening if it does not succeed, also where its caller leaves meanwhile.
struct ListenAttempt<'a> {
    listens: &'a AtomicBool,
    has_succeeded: bool,
}

impl Drop for ListenAttempt<'_> {
    fn drop(&mut self) {
        self.listens.store(self.has_succeeded, Ordering::Release);
    }
}

async fn subscribe(connection: &mut MultiplexedConnection, channel: &str) -> RedisResult<()> {
    redis::cmd("SUBSCRIBE").arg(channel).query_async(connection).await
}

/// The servers of a store, as far as the peer bus is concerned.
#[async_trait]
pub(crate) trait PeerRoutes: Send + Sync + 'static {
    /// By how many of them all is to be sent that is sent.
    fn count(&self) -> usize;

    /// The connection to one of these, if it stands.
    fn route(&self, index: usize) -> Option<MultiplexedConnection>;

    /// Those at which to listen, and how many of them are enough.
    async fn to_listen(&self, deadline: Instant) -> (Vec<Result<MultiplexedConnection, StoreError>>, usize);
}

/// The peer bus over the servers of a store.
pub(crate) struct Publisher {
    peer_channels: Arc<PeerChannels>,
    routes: Arc<dyn PeerRoutes>,
    queues: Vec<mpsc::Sender<(Topic, Arc<str>)>>,
}

impl Publisher {
    pub(crate) fn new(peer_channels: Arc<PeerChannels>, routes: Arc<dyn PeerRoutes>) -> Self {
        let start = |index| {
            let (queue, to_say) = mpsc::channel(MOST_WAITING);
            tokio::spawn(speak(peer_channels.clone(), routes.clone(), index, to_say));
            queue
        };
        Self { queues: (0..routes.count()).map(start).collect(), peer_channels, routes }
    }
}

/// Sends what is to be sent, in its order, as long as there is a store. One server at a time: one that is silent holds up
/// none of the others.
async fn speak(
    peer_channels: Arc<PeerChannels>,
    routes: Arc<dyn PeerRoutes>,
    index: usize,
    mut to_say: mpsc::Receiver<(Topic, Arc<str>)>,
) {
    let mut said = Vec::new();
    while to_say.recv_many(&mut said, MOST_AT_ONCE).await > 0 {
        let mut calls = redis::pipe();
        for (topic, text) in said.drain(..) {
            calls.cmd("PUBLISH").arg(peer_channels.channel(topic)).arg(&*text).ignore();
        }
        // What cannot be sent is lost.
        let Some(mut connection) = routes.route(index) else { continue };
        match timeout(peer_channels.patience, calls.query_async::<()>(&mut connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(reason = describe(&error), "other gateways are not told of lock events")
            }
            Err(_) => tracing::debug!("other gateways are not told of lock events: Redis does not answer"),
        }
    }
}

#[async_trait]
impl PeerBus for Publisher {
    fn tell(&self, topic: Topic, text: String) {
        let text: Arc<str> = text.into();
        for queue in &self.queues {
            let _ = queue.try_send((topic, text.clone()));
        }
    }

    fn heard(&self) -> broadcast::Receiver<Heard> {
        self.peer_channels.heard.subscribe()
    }

    async fn listen(&self, deadline: Instant) -> Result<(), StoreError> {
        // Connections that are made from now on are listened to as well.
        self.peer_channels.listens.store(true, Ordering::Release);
        let mut attempt = ListenAttempt { listens: &self.peer_channels.listens, has_succeeded: false };
        let (connections, enough) = self.routes.to_listen(deadline).await;
        let (mut heard, mut trouble) = (0, "Redis does not answer".to_owned());
        // All at once: one that hangs must not take the time of the others.
        let listening = connections.into_iter().map(async |connection| match connection {
            Ok(mut connection) => {
                let listens = self.peer_channels.listen_on(&mut connection);
                timeout_at(deadline, listens).await.ok().map(|reply| reply.map_err(|error| describe(&error)))
            }
            Err(error) => Some(Err(error.to_string())),
        });
        for listens in join_all(listening).await.into_iter().flatten() {
            match listens {
                Ok(()) => heard += 1,
                Err(reason) => trouble = reason,
            }
        }
        if heard >= enough {
            attempt.has_succeeded = true;
            return Ok(());
        }
        Err(StoreError::Unavailable(format!("the gateway cannot learn what other gateways do: {trouble}")))
    }

    fn stop_listening(&self) {
        self.peer_channels.listens.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::store::redis::address::Layout;

    /// Servers that do not answer.
    struct SilentServers;

    #[async_trait]
    impl PeerRoutes for SilentServers {
        fn count(&self) -> usize {
            1
        }

        fn route(&self, _: usize) -> Option<MultiplexedConnection> {
            None
        }

        async fn to_listen(&self, _: Instant) -> (Vec<Result<MultiplexedConnection, StoreError>>, usize) {
            pending().await
        }
    }

    #[tokio::test]
    async fn a_watcher_that_leaves_before_the_gateway_hears_others_leaves_it_deaf_to_them() {
        let keys = KeySpace::new("fencepost", &Layout::Server, 0);
        let peer_channels = PeerChannels::new(&keys, Duration::from_secs(1));
        let publisher = Publisher::new(peer_channels.clone(), Arc::new(SilentServers));
        let mut listening = publisher.listen(Instant::now());
        assert!(matches!(listening.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        assert!(peer_channels.listens.load(Ordering::Acquire));
        drop(listening);
        assert!(!peer_channels.listens.load(Ordering::Acquire), "it takes in what no watcher is told");
    }
}
