//! One client's way to the servers, with what goes wrong on this way alone.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::store::redis::{ByteStream, Network as Way};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::network::{Condition, Network};

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    FromServer,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// It arrives so much later, and with it what comes behind it.
    Late(Duration),
    /// It does not arrive, and the connection ends.
    Cut,
    /// The connection ends for its client, who may have another one by the time that the message arrives: so much later. An
    /// answer does not arrive.
    Stray(Duration),
}

/// What a message has come to.
pub(crate) enum Passed {
    Arrived,
    Lost,
    Strays(Duration),
}

/// Decides what becomes of each message.
pub type Fates = Box<dyn FnMut(Direction) -> Fate + Send>;

/// The way of one client. Clones are the same way.
#[derive(Clone)]
pub struct View {
    network: Network,
    condition: Arc<watch::Sender<Condition>>,
    /// Those hosts to which nothing gets through.
    cut_off: Arc<watch::Sender<BTreeSet<String>>>,
    /// Counts how often all connections were ended.
    cuts: Arc<watch::Sender<u64>>,
    fates: Arc<Mutex<Fates>>,
}

impl View {
    pub(crate) fn new(network: Network, fates: Fates) -> Self {
        let (condition, cut_off, cuts) = (Arc::default(), Arc::default(), Arc::default());
        Self { network, condition, cut_off, cuts, fates: Arc::new(Mutex::new(fates)) }
    }

    /// Changes how the servers can be reached on this way.
    pub fn set(&self, change: impl FnOnce(&mut Condition)) {
        self.condition.send_modify(change);
    }

    /// From now on nothing gets through to these hosts, and to no others.
    pub fn cut_off(&self, hosts: BTreeSet<String>) {
        self.cut_off.send_replace(hosts);
    }

    /// Ends all connections. What is on its way to a server arrives.
    pub fn cut_all(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[async_trait]
impl Way for View {
    async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn ByteStream>> {
        if self.condition.borrow().refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let own = OwnWay {
            host: host.to_owned(),
            condition: self.condition.subscribe(),
            cut_off: self.cut_off.subscribe(),
            cuts: self.cuts.subscribe(),
            fates: self.fates.clone(),
        };
        self.network.connect_by(host, port, Some(own)).await
    }
}

/// What one connection knows of its client's way.
pub(crate) struct OwnWay {
    host: String,
    condition: watch::Receiver<Condition>,
    cut_off: watch::Receiver<BTreeSet<String>>,
    cuts: watch::Receiver<u64>,
    fates: Arc<Mutex<Fates>>,
}

impl OwnWay {
    /// Waits for as long as a message takes. Nothing arrives once the way refuses: who sends is gone.
    pub(crate) async fn passes(&mut self, direction: Direction) -> Passed {
        let fate = (self.fates.lock())(direction);
        if let Fate::Late(delay) = fate {
            sleep(delay).await;
        }
        let is_open = self.opens().await;
        match fate {
            Fate::Stray(delay) if direction == Direction::ToServer => Passed::Strays(delay),
            Fate::Arrives | Fate::Late(_) if is_open => Passed::Arrived,
            _ => Passed::Lost,
        }
    }

    /// Waits until something gets through; returns whether it arrives.
    pub(crate) async fn opens(&mut self) -> bool {
        let _ = self.cut_off.wait_for(|hosts| !hosts.contains(&self.host)).await;
        let _ = self.condition.wait_for(|condition| !condition.is_silent).await;
        !self.condition.borrow().refuses
    }

    /// Returns when all connections are ended.
    pub(crate) async fn is_cut(&mut self) {
        // Without the client nobody ends them: its own end tells.
        if self.cuts.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
