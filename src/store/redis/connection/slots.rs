//! What the servers of a cluster say of which server has which slot.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::time::{Instant, timeout, timeout_at};

use crate::store::redis::address::RedisAddress;
use crate::store::redis::client::without_deadlines;
use crate::store::redis::failure::{describe, trouble};
use crate::store::redis::health::identity::is_cluster_up;
use crate::store::redis::node::Node;
use crate::store::redis::scripts::keys::SLOTS;

const IN_DIFFERENT_CLUSTERS: &str =
    "are in different clusters: take the one that has left out of the address";
/// Of the time that one server has to answer, the part for which the others are waited for once it has.
const OTHERS_WITHIN: u32 = 4;

/// What one server says of the slots: ranges with their primaries, and all servers that it names.
pub(super) struct SlotLayout {
    pub(super) ranges: Vec<(u16, u16, Node)>,
    pub(super) nodes: Vec<Node>,
    ids: HashSet<String>,
    /// Whether the cluster works, by the word of the same server. One that is cut off from the others finds that it does not, and
    /// goes on telling of primaries that have successors by then.
    pub(super) is_up: bool,
}

/// The ids of the servers that the cluster has, by the map that is believed.
#[derive(Clone, Default)]
pub(crate) struct ClusterIds(Arc<Mutex<HashSet<String>>>);

impl ClusterIds {
    pub(super) fn learn(&self, layout: &SlotLayout) {
        self.0.lock().clone_from(&layout.ids);
    }

    /// Makes sure, over a new connection, that the server is in this cluster; else says why it must not be used. An address may have
    /// been given to a server of another cluster, which is well, and does not have the locks.
    pub(super) async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        // Where the servers are does not matter here, so the one that is asked needs no name.
        let layout = SlotLayout::ask_over(&Node::default(), connection).await?;
        if layout.is_elsewhere(&self.0.lock()) {
            return Err("it is in another cluster".to_owned());
        }
        Ok(())
    }
}

/// Where the servers are that the address names: nothing else tells whether the cluster is the right one.
#[derive(Default)]
pub(super) struct Seeds {
    /// In the cluster, when they were heard for the first time.
    inside: Vec<Node>,
    /// In another one by then.
    outside: Vec<Node>,
    unheard: VecDeque<Node>,
    /// Those, and others, that have left the cluster since.
    told: Vec<Node>,
}

impl Seeds {
    /// After these have answered, and agree.
    pub(super) fn of(address: &RedisAddress, inside: Vec<Node>) -> Self {
        let unheard = address.nodes().iter().filter(|node| !inside.contains(node)).cloned().collect();
        Self { inside, unheard, ..Self::default() }
    }

    /// One that was not heard yet; each has its turn.
    pub(super) fn next_unheard(&mut self) -> Option<Node> {
        let node = self.unheard.pop_front()?;
        self.unheard.push_back(node.clone());
        Some(node)
    }

    /// Notes what a server answers. Returns whether it is in another cluster than the one that is known.
    pub(super) fn places_elsewhere(
        &mut self,
        node: &Node,
        answer: &Result<SlotLayout, String>,
        known: &SlotLayout,
    ) -> bool {
        let Ok(layout) = answer else { return false };
        let is_elsewhere = layout.is_elsewhere(&known.ids);
        if let Some(at) = self.unheard.iter().position(|unheard| unheard == node) {
            self.unheard.remove(at);
            if is_elsewhere { &mut self.outside } else { &mut self.inside }.push(node.clone());
        }
        if is_elsewhere && !self.told.contains(node) {
            tracing::warn!(%node, "is in another cluster, and is not asked for locks");
            self.told.push(node.clone());
        }
        is_elsewhere
    }

    pub(super) fn heard(self) -> Vec<Node> {
        [self.inside, self.outside].concat()
    }

    /// That it is not known which cluster is meant: most servers of the address may be in another one.
    pub(super) fn disagreement(&self) -> Option<String> {
        let (inside, outside) = (self.inside.first()?, self.outside.first()?);
        (self.outside.len() >= self.inside.len())
            .then(|| format!("{outside} and {inside} {IN_DIFFERENT_CLUSTERS}"))
    }
}

impl SlotLayout {
    /// Asks a server, over the connection to it if there is one.
    pub(super) async fn ask(
        address: &RedisAddress,
        node: &Node,
        connection: &mut Option<MultiplexedConnection>,
    ) -> Result<Self, String> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let client = address.client(node).map_err(|error| error.to_string())?;
                let connected = client.connect(without_deadlines()).await;
                connection.insert(connected.map_err(|error| trouble(&error))?)
            }
        };
        Self::ask_over(node, connection).await
    }

    async fn ask_over(node: &Node, connection: &mut MultiplexedConnection) -> Result<Self, String> {
        let mut questions = redis::pipe();
        questions.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let reply: Result<(Vec<Value>, String), _> = questions.query_async(connection).await;
        let (ranges, info) = reply.map_err(|error| describe(&error))?;
        let is_up = is_cluster_up(&info);
        let layout = Self::read(ranges, node, is_up).ok_or("its answer to CLUSTER SLOTS cannot be read")?;
        if layout.ranges.is_empty() {
            return Err("it knows no slots".to_owned());
        }
        Ok(layout)
    }

    /// What the servers that the address names say: the first answer by which the cluster is up, if there is one, and has the most
    /// slots; if no other that answers soon is in another cluster. One that has left is perhaps in another one by now, and the
    /// locks that are held are not there. Also returns who has answered.
    pub(super) async fn agreed(
        address: &RedisAddress,
        patience: Duration,
    ) -> Result<(Self, Vec<Node>), String> {
        let ask = async |node| {
            let answer = timeout(patience, Self::ask(address, node, &mut None)).await;
            (node, answer.unwrap_or_else(|_| Err("it does not answer".to_owned())))
        };
        let mut asking: FuturesUnordered<_> = address.nodes().iter().map(ask).collect();
        let mut until = Instant::now() + patience;
        let (mut first, mut reason) = (None::<(&Node, Self)>, "no server answers in time".to_owned());
        let mut answered = Vec::new();
        while let Ok(Some((node, answer))) = timeout_at(until, asking.next()).await {
            if answer.is_ok() {
                answered.push(node.clone());
            }
            match (answer, &first) {
                (Err(error), _) => reason = format!("{node}: {error}"),
                (Ok(layout), None) => {
                    first = Some((node, layout));
                    until = Instant::now() + patience / OTHERS_WITHIN;
                }
                (Ok(layout), Some((other, agreed))) if layout.is_elsewhere(&agreed.ids) => {
                    return Err(format!("{node} and {other} {IN_DIFFERENT_CLUSTERS}"));
                }
                (Ok(layout), Some((_, agreed)))
                    if (layout.is_up, layout.served()) > (agreed.is_up, agreed.served()) =>
                {
                    first = Some((node, layout));
                }
                (Ok(_), Some(_)) => {}
            }
        }
        first.map(|(_, layout)| (layout, answered)).ok_or(reason)
    }

    /// How many slots have a server.
    fn served(&self) -> usize {
        self.ranges.iter().map(|(first, last, _)| (*first..=*last).len()).sum()
    }

    /// Whether it is the layout of another cluster than that of these servers: they have no server in common.
    fn is_elsewhere(&self, ids: &HashSet<String>) -> bool {
        !self.ids.is_empty() && !ids.is_empty() && self.ids.is_disjoint(ids)
    }

    /// Reads the reply to `CLUSTER SLOTS`. A server without a host is the one that was asked.
    fn read(ranges: Vec<Value>, asked: &Node, is_up: bool) -> Option<Self> {
        let mut layout = Self { ranges: Vec::new(), nodes: Vec::new(), ids: HashSet::new(), is_up };
        for range in ranges {
            let mut fields = Vec::<Value>::from_redis_value(range).ok()?.into_iter();
            let first = u16::from_redis_value(fields.next()?).ok()?;
            let last = u16::from_redis_value(fields.next()?).ok()?;
            let mut nodes = Vec::new();
            for node in fields {
                let mut node = Vec::<Value>::from_redis_value(node).ok()?.into_iter();
                let host = Option::<String>::from_redis_value(node.next()?).ok()?.unwrap_or_default();
                let named = Node { host, port: u16::from_redis_value(node.next()?).ok()? };
                layout.ids.extend(node.next().and_then(|id| String::from_redis_value(id).ok()));
                // Behind the id there may be other names.
                let others =
                    node.next().and_then(|names| HashMap::<String, String>::from_redis_value(names).ok());
                let address = others.and_then(|mut names| names.remove("ip"));
                let host = address.unwrap_or_else(|| asked.host.clone());
                nodes.push(if named.is_known() { named } else { Node { host, ..named } });
            }
            let owner = nodes.first()?.clone();
            // Port 0 stands for a server whose address the cluster has lost.
            if owner.port != 0 {
                layout.ranges.push((first, last, owner));
            }
            layout.nodes.extend(nodes.into_iter().filter(|node| node.port != 0));
        }
        Some(layout)
    }
}

/// That some slots of a cluster have no server, where so many have one.
pub(crate) fn gap(served: usize) -> Option<String> {
    let missing = usize::from(SLOTS).saturating_sub(served);
    (missing > 0).then(|| format!("some slots of the cluster have no server: {missing} of {SLOTS}"))
}

/// The primaries of a cluster, and how many slots have one, by the word of the servers that the address names.
pub(crate) async fn primaries(
    address: &RedisAddress,
    patience: Duration,
) -> Result<(Vec<Node>, usize), String> {
    let (layout, _) = SlotLayout::agreed(address, patience).await?;
    let served = layout.served();
    let mut primaries: Vec<_> = layout.ranges.into_iter().map(|(_, _, node)| node).collect();
    primaries.sort_unstable_by_key(Node::to_string);
    primaries.dedup();
    Ok((primaries, served))
}
