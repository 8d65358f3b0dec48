//! What leads to simulated servers, and what goes wrong on the way.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::store::redis::{ByteStream, Network as Way};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::server::Server;
use crate::state::Channel;
use crate::view::{Direction, Fates, OwnWay, Passed, View};

/// What may be on its way in each direction of a connection, in bytes.
const ON_THE_WAY: usize = 1 << 20;
/// TCP waits for so long before it sends anything again, and then for twice as long.
const SENT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// When it gives up. Nothing arrives later.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);

/// Servers by their addresses. Clones are the same network.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<BTreeMap<(String, u16), Place>>>);

/// Where a server listens.
struct Place {
    server: Server,
    condition: watch::Sender<Condition>,
}

/// How a server can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Nothing listens there. Connections that stand are not ended by that.
    pub refuses: bool,
    /// Nothing goes in either direction until this is over: the server stands still, or nobody reaches it.
    pub is_silent: bool,
    /// How long each part of a stream is on its way, in each direction.
    pub delay: Duration,
}

impl Network {
    /// From now on the server listens there.
    pub fn add(&self, host: &str, port: u16, server: &Server) {
        let place = Place { server: server.clone(), condition: watch::Sender::default() };
        self.0.lock().insert((host.to_owned(), port), place);
    }

    /// The server at this address.
    pub fn server(&self, host: &str, port: u16) -> Option<Server> {
        self.0.lock().get(&(host.to_owned(), port)).map(|place| place.server.clone())
    }

    /// One client's way to the servers, on which this decides what becomes of each message.
    pub fn view(&self, fates: Fates) -> View {
        View::new(self.clone(), fates)
    }

    /// Takes what was published at a node of a cluster to the others.
    fn carry(&self, from: &Server) {
        let messages = std::mem::take(&mut from.state().to_other_nodes);
        if messages.is_empty() {
            return;
        }
        let servers: Vec<Server> = self.0.lock().values().map(|place| place.server.clone()).collect();
        for server in servers.iter().filter(|server| !server.is(from)) {
            let mut state = server.state();
            for (channel, message) in &messages {
                if state.cluster.is_some() {
                    state.tell(&Channel::Plain(channel.clone()), message);
                }
            }
        }
    }

    /// Whether something gets through to the server that listens there.
    pub fn is_open(&self, host: &str, port: u16) -> bool {
        let places = self.0.lock();
        let condition = places.get(&(host.to_owned(), port)).map(|place| *place.condition.borrow());
        condition.is_some_and(|condition| !condition.refuses && !condition.is_silent)
    }

    /// Changes how a server can be reached.
    pub fn set(&self, host: &str, port: u16, change: impl FnOnce(&mut Condition)) {
        if let Some(place) = self.0.lock().get(&(host.to_owned(), port)) {
            place.condition.send_modify(change);
        }
    }
}

#[async_trait]
impl Way for Network {
    async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn ByteStream>> {
        self.connect_by(host, port, None).await
    }
}

impl Network {
    /// Opens a stream to the server that listens there, for a client with a way of its own.
    pub(crate) async fn connect_by(
        &self,
        host: &str,
        port: u16,
        own: Option<OwnWay>,
    ) -> io::Result<Box<dyn ByteStream>> {
        let (server, condition) = {
            let places = self.0.lock();
            let place = places.get(&(host.to_owned(), port));
            let place = place.filter(|place| !place.condition.borrow().refuses);
            let place = place.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            (place.server.clone(), place.condition.subscribe())
        };
        let mut passage = Passage { condition, own };
        if !matches!(passage.passes(Direction::ToServer).await, Passed::Arrived) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let (client, ours) = duplex(ON_THE_WAY);
        tokio::spawn(serve(self.clone(), server, ours, passage));
        Ok(Box::new(client))
    }
}

/// What is between a client and a server.
struct Passage {
    condition: watch::Receiver<Condition>,
    own: Option<OwnWay>,
}

impl Passage {
    /// Waits for as long as something takes to get through.
    async fn passes(&mut self, direction: Direction) -> Passed {
        let delay = self.condition.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        // An error means that the network is gone: then nothing is in the way.
        let _ = self.condition.wait_for(|condition| !condition.is_silent).await;
        match &mut self.own {
            Some(own) => own.passes(direction).await,
            None => Passed::Arrived,
        }
    }

    /// The same on a connection that stands. What was held up there is sent again after a while, as by TCP: a new connection is
    /// faster.
    async fn crosses(&mut self, direction: Direction) -> Passed {
        let sent = Instant::now();
        let passed = self.passes(direction).await;
        let held_up = sent.elapsed();
        if !matches!(passed, Passed::Arrived) || held_up < SENT_AGAIN_AFTER {
            return passed;
        }
        if self.opens_after(held_up / 2, sent).await { Passed::Arrived } else { Passed::Lost }
    }

    /// Waits for so long, and until something gets through; returns whether what was sent then arrives.
    async fn opens_after(&mut self, delay: Duration, sent: Instant) -> bool {
        sleep(delay).await;
        let _ = self.condition.wait_for(|condition| !condition.is_silent).await;
        let is_open = match &mut self.own {
            Some(own) => own.opens().await,
            None => true,
        };
        is_open && sent.elapsed() < GIVEN_UP_AFTER
    }

    /// Returns when the client's connections are ended.
    async fn is_cut(&mut self) {
        match &mut self.own {
            Some(own) => own.is_cut().await,
            None => std::future::pending().await,
        }
    }
}

/// What a future comes to if it is ready now.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

/// The server's end of a connection.
async fn serve(network: Network, server: Server, stream: DuplexStream, mut passage: Passage) {
    let session = server.connect();
    if let Some(Stray { bytes, delay, sent }) = talk(&network, &server, session, stream, &mut passage).await
        && passage.opens_after(delay, sent).await
    {
        server.receive(session, &bytes);
        network.carry(&server);
    }
    server.disconnect(session);
}

/// What arrives when its client has left the connection.
struct Stray {
    bytes: Vec<u8>,
    delay: Duration,
    sent: Instant,
}

/// Until the connection ends for its client.
async fn talk(
    network: &Network,
    server: &Server,
    session: u64,
    mut stream: DuplexStream,
    passage: &mut Passage,
) -> Option<Stray> {
    let mut bytes = Vec::new();
    while let Some(woken) = server.woken(session) {
        tokio::select! {
            biased;
            read = stream.read_buf(&mut bytes) => {
                if !read.is_ok_and(|count| count > 0) {
                    return None;
                }
                let sent = Instant::now();
                let passed = passage.crosses(Direction::ToServer).await;
                // All that came meanwhile comes with it.
                while let Some(Ok(1..)) = at_once(stream.read_buf(&mut bytes)).await {}
                match passed {
                    Passed::Arrived => {}
                    Passed::Lost => return None,
                    Passed::Strays(delay) => return Some(Stray { bytes, delay, sent }),
                }
                server.receive(session, &bytes);
                bytes.clear();
            }
            () = passage.is_cut() => return None,
            () = woken.notified() => server.settle(session),
            () = sleep(server.wait_ends_in(session).unwrap_or(Duration::MAX)) => server.settle(session),
        }
        network.carry(server);
        let output = server.take_output(session)?;
        if output.is_empty() {
            continue;
        }
        let arrives = matches!(passage.crosses(Direction::FromServer).await, Passed::Arrived);
        if !arrives || stream.write_all(&output).await.is_err() {
            return None;
        }
    }
    None
}
