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
use tokio::time::sleep;

use crate::server::Server;
use crate::state::Channel;
use crate::view::{Direction, Fates, OwnWay, View};

/// What may be on its way in each direction of a connection, in bytes.
const ON_THE_WAY: usize = 1 << 20;

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
        if !passage.passes(Direction::ToServer).await {
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
    /// Waits for as long as something takes to get through; returns whether it does.
    async fn passes(&mut self, direction: Direction) -> bool {
        let delay = self.condition.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        // An error means that the network is gone: then nothing is in the way.
        let _ = self.condition.wait_for(|condition| !condition.is_silent).await;
        match &mut self.own {
            Some(own) => own.passes(direction).await,
            None => true,
        }
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
async fn serve(network: Network, server: Server, mut stream: DuplexStream, mut passage: Passage) {
    let session = server.connect();
    talk(&network, &server, session, &mut stream, &mut passage).await;
    server.disconnect(session);
}

async fn talk(
    network: &Network,
    server: &Server,
    session: u64,
    stream: &mut DuplexStream,
    passage: &mut Passage,
) {
    let mut bytes = Vec::new();
    while let Some(woken) = server.woken(session) {
        tokio::select! {
            biased;
            read = stream.read_buf(&mut bytes) => {
                if !read.is_ok_and(|count| count > 0) {
                    return;
                }
                if !passage.passes(Direction::ToServer).await {
                    return;
                }
                // All that came meanwhile comes with it.
                while let Some(Ok(1..)) = at_once(stream.read_buf(&mut bytes)).await {}
                server.receive(session, &bytes);
                bytes.clear();
            }
            () = passage.is_cut() => return,
            () = woken.notified() => server.settle(session),
            () = sleep(server.wait_ends_in(session).unwrap_or(Duration::MAX)) => server.settle(session),
        }
        network.carry(server);
        let Some(output) = server.take_output(session) else { return };
        if output.is_empty() {
            continue;
        }
        if !passage.passes(Direction::FromServer).await {
            return;
        }
        if stream.write_all(&output).await.is_err() {
            return;
        }
    }
}
