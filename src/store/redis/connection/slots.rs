//! What the servers of a cluster say of which server has which slot.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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
#[derive(Default)]
pub(super) struct SlotLayout {
    pub(super) ranges: Vec<(u16, u16, Node)>,
    pub(super) nodes: Vec<Node>,
    ids: HashSet<String>,
    /// Where the servers of these ids are, as far as is known.
    places: BTreeMap<String, Node>,
    /// Ranges whose primary is known by its id alone: the one that was asked has lost its address.
    lost: Vec<(u16, u16, String)>,
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
    /// locks that are held are not there. While the address of a primary is missing, all that are named are asked, too. Also
    /// returns who of the address has answered.
    pub(super) async fn agreed(
        address: &RedisAddress,
        patience: Duration,
    ) -> Result<(Self, Vec<Node>), String> {
        let ask = |node: Node| async move {
            let answer = timeout(patience, Self::ask(address, &node, &mut None)).await;
            (node, answer.unwrap_or_else(|_| Err("it does not answer".to_owned())))
        };
        let mut asked = address.nodes().to_vec();
        let mut asking: FuturesUnordered<_> = asked.iter().cloned().map(ask).collect();
        let mut until = Instant::now() + patience;
        let (mut first, mut reason) = (None::<(Node, Self)>, "no server answers in time".to_owned());
        let mut answered = Vec::new();
        while let Ok(Some((node, answer))) = timeout_at(until, asking.next()).await {
            let is_seed = address.nodes().contains(&node);
            if is_seed && answer.is_ok() {
                answered.push(node.clone());
            }
            match (answer, &mut first) {
                (Err(error), _) => reason = format!("{node}: {error}"),
                (Ok(layout), None) => {
                    first = Some((node, layout));
                    until = Instant::now() + patience / OTHERS_WITHIN;
                }
                (Ok(layout), Some((other, agreed))) if layout.is_elsewhere(&agreed.ids) => {
                    if is_seed {
                        return Err(format!("{node} and {other} {IN_DIFFERENT_CLUSTERS}"));
                    }
                }
                (Ok(mut layout), Some((other, agreed))) => {
                    if (layout.is_up, layout.served()) > (agreed.is_up, agreed.served()) {
                        *other = node;
                        std::mem::swap(agreed, &mut layout);
                    }
                    agreed.complete_by(&layout);
                }
            }
            let agreed = first.iter().filter(|(_, agreed)| !agreed.lost.is_empty());
            for node in agreed.flat_map(|(_, agreed)| &agreed.nodes) {
                if !asked.contains(node) {
                    asked.push(node.clone());
                    asking.push(ask(node.clone()));
                }
            }
        }
        first.map(|(_, layout)| (layout, answered)).ok_or(reason)
    }

    /// Gives the servers whose addresses were lost those that they have by this layout. Who has which slot stays.
    pub(super) fn complete_by(&mut self, other: &Self) {
        // Addresses by the word of a server that is cut off may be old ones.
        if !other.is_up {
            return;
        }
        for (id, node) in &other.places {
            let is_lost = self.ids.contains(id) && !self.places.contains_key(id);
            // Or its place is another's by now.
            if is_lost && !self.places.values().any(|known| known == node) {
                self.places.insert(id.clone(), node.clone());
                self.nodes.push(node.clone());
            }
        }
        self.place();
    }

    /// Gives the ranges their servers that are known to be somewhere.
    fn place(&mut self) {
        for (first, last, id) in std::mem::take(&mut self.lost) {
            match self.places.get(&id) {
                Some(node) => self.ranges.push((first, last, node.clone())),
                None => self.lost.push((first, last, id)),
            }
        }
    }

    /// How many slots have a server.
    fn served(&self) -> usize {
        self.ranges.iter().map(|(first, last, _)| (*first..=*last).len()).sum()
    }

    /// Whether it is the layout of another cluster than that of these servers: they have no server in common.
    fn is_elsewhere(&self, ids: &HashSet<String>) -> bool {
        !self.ids.is_empty() && !ids.is_empty() && self.ids.is_disjoint(ids)
    }

    /// Reads the reply to `CLUSTER SLOTS`. A server without any address is the one that was asked.
    fn read(ranges: Vec<Value>, asked: &Node, is_up: bool) -> Option<Self> {
        let mut layout = Self { is_up, ..Self::default() };
        for range in ranges {
            let mut fields = Vec::<Value>::from_redis_value(range).ok()?.into_iter();
            let first = u16::from_redis_value(fields.next()?).ok()?;
            let last = u16::from_redis_value(fields.next()?).ok()?;
            let mut nodes = Vec::new();
            for node in fields {
                let mut node = Vec::<Value>::from_redis_value(node).ok()?.into_iter();
                let host = Option::<String>::from_redis_value(node.next()?).ok()?.unwrap_or_default();
                let named = Node { host, port: u16::from_redis_value(node.next()?).ok()? };
                let id = node.next().and_then(|id| String::from_redis_value(id).ok());
                // Behind the id there may be other names.
                let others =
                    node.next().and_then(|names| HashMap::<String, String>::from_redis_value(names).ok());
                // Empty of a server that never met another.
                let address = others.and_then(|mut names| names.remove("ip")).filter(|ip| !ip.is_empty());
                let host = address.unwrap_or_else(|| asked.host.clone());
                nodes.push((id, if named.is_known() { named } else { Node { host, ..named } }));
            }
            let (id, owner) = nodes.first()?.clone();
            // Port 0 stands for a server whose address the cluster has lost.
            match id {
                _ if owner.port != 0 => layout.ranges.push((first, last, owner)),
                Some(id) => layout.lost.push((first, last, id)),
                None => {}
            }
            for (id, node) in nodes {
                layout.ids.extend(id.clone());
                if node.port != 0 {
                    layout.places.extend(id.map(|id| (id, node.clone())));
                    layout.nodes.push(node);
                }
            }
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;

    /// The word of a server that has lost the addresses of those with port 0: first and last slot, id and port.
    fn layout(ranges: &[(u16, u16, &str, u16)]) -> SlotLayout {
        let range = |(first, last, id, port): &(u16, u16, &str, u16)| {
            let text = |text: &str| Value::BulkString(text.into());
            let host = if *port == 0 { "" } else { "host" };
            let node = Value::Array(vec![text(host), Value::Int((*port).into()), text(id)]);
            Value::Array(vec![Value::Int((*first).into()), Value::Int((*last).into()), node])
        };
        SlotLayout::read(ranges.iter().map(range).collect(), &Node::default(), true).unwrap()
    }

    /// Which port has which slots.
    fn owners(layout: &SlotLayout) -> Vec<(u16, u16, u16)> {
        let mut owners: Vec<_> =
            layout.ranges.iter().map(|(first, last, node)| (*first, *last, node.port)).collect();
        owners.sort_unstable();
        owners
    }

    #[test]
    fn an_address_that_one_server_has_lost_is_taken_from_another() {
        let whole = layout(&[(0, 4, "a", 1), (5, 9, "b", 2), (10, 16383, "c", 3)]);
        let mut holey = layout(&[(0, 4, "a", 0), (5, 9, "b", 2), (10, 16383, "c", 3)]);
        assert_eq!(holey.served(), 16379);
        holey.complete_by(&whole);
        assert_eq!(owners(&holey), owners(&whole));
        // It is known from now on, for one that has lost it, too, and is asked.
        let mut next = layout(&[(0, 4, "a", 0), (5, 9, "b", 0), (10, 16383, "c", 3)]);
        next.complete_by(&holey);
        assert_eq!(owners(&next), owners(&whole));
        assert!(next.nodes.contains(&Node { host: "host".into(), port: 1 }));
    }

    #[test]
    fn a_slot_stays_with_whom_the_newer_map_gives_it_wherever_others_have_it() {
        // By the older one it is still a's.
        let older = layout(&[(0, 9, "a", 1), (10, 16383, "b", 2)]);
        let mut newer = layout(&[(0, 4, "a", 0), (5, 16383, "b", 0)]);
        newer.complete_by(&older);
        assert_eq!(owners(&newer), [(0, 4, 1), (5, 16383, 2)]);
        let mut unknown = layout(&[(0, 9, "c", 0), (10, 16383, "b", 2)]);
        unknown.complete_by(&older);
        assert_eq!(owners(&unknown), [(10, 16383, 2)]);
    }

    #[test]
    fn an_address_that_is_anothers_by_now_or_the_word_of_one_that_is_cut_off_is_not_taken() {
        let mut before = layout(&[(0, 9, "a", 1), (10, 16383, "b", 2)]);
        // They came back at each other's addresses.
        let mut swapped = layout(&[(0, 9, "a", 0), (10, 16383, "b", 1)]);
        swapped.complete_by(&before);
        assert_eq!(owners(&swapped), [(10, 16383, 1)]);
        let mut holey = layout(&[(0, 9, "a", 0), (10, 16383, "b", 2)]);
        before.is_up = false;
        holey.complete_by(&before);
        assert_eq!(owners(&holey), [(10, 16383, 2)]);
    }
}
