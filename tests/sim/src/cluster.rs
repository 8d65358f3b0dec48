//! Which node of a cluster has which slot, as one of them sees it.

use std::collections::BTreeMap;

use crc::{CRC_16_XMODEM, Crc};

use crate::commands::Keys;
use crate::reply::Reply;
use crate::state::State;

const SLOTS: usize = 16_384;
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// A cluster as one of its nodes sees it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Which of the nodes it is.
    pub me: usize,
    pub nodes: Vec<(String, u16)>,
    owners: Vec<Option<usize>>,
    /// Slots that are on their way to another node, or from one.
    pub leaving: BTreeMap<usize, usize>,
    pub arriving: BTreeMap<usize, usize>,
    pub is_up: bool,
}

/// The slot of a key.
pub fn slot_of(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    usize::from(CRC.checksum(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))) % SLOTS
}

impl Cluster {
    /// The slots are shared evenly, in the order of the nodes.
    pub fn new(me: usize, nodes: &[(&str, u16)]) -> Self {
        let nodes: Vec<_> = nodes.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
        let first_of = |node: usize| SLOTS * node / nodes.len();
        let slots_of = |node: usize| (first_of(node)..first_of(node + 1)).map(move |_| Some(node));
        let owners = (0..nodes.len()).flat_map(slots_of).collect();
        Self { me, nodes, owners, leaving: BTreeMap::new(), arriving: BTreeMap::new(), is_up: true }
    }

    /// From now on this node takes it that another one, or itself, has the slot.
    pub fn learn(&mut self, slot: usize, owner: usize) {
        self.owners[slot] = Some(owner);
        self.leaving.remove(&slot);
        self.arriving.remove(&slot);
    }

    pub fn has(&self, slot: usize) -> bool {
        self.owners[slot] == Some(self.me)
    }

    fn owner(&self, slot: usize) -> Option<usize> {
        self.owners[slot]
    }

    /// The reply to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self) -> Reply {
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
        for (slot, owner) in self.owners.iter().enumerate() {
            let Some(owner) = *owner else { continue };
            match ranges.last_mut() {
                Some((_, last, of)) if *of == owner && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, owner)),
            }
        }
        let range = |(first, last, owner): (usize, usize, usize)| {
            let (host, port) = &self.nodes[owner];
            let id = host.bytes().chain([owner as u8]).map(|byte| format!("{byte:02x}")).collect::<String>();
            let id = format!("{id:0>40.40}");
            let node = [
                Reply::bulk(&**host),
                Reply::Int(i64::from(*port)),
                Reply::bulk(id),
                Reply::Array(Vec::new()),
            ];
            Reply::Array(vec![Reply::Int(first as i64), Reply::Int(last as i64), Reply::Array(node.into())])
        };
        Reply::Array(ranges.into_iter().map(range).collect())
    }
}

/// Where the keys of a call are.
pub(crate) enum Place {
    Here,
    /// Another node has them, or nobody; the reply says it.
    Elsewhere(Reply),
    /// The cluster is down.
    Down(Reply),
}

/// The keys among the words of a call.
pub(crate) fn keys_of(kind: Keys, words: &[Vec<u8>]) -> &[Vec<u8>] {
    match kind {
        Keys::None => &[],
        Keys::One => &words[1..2],
        Keys::All | Keys::Channels if words[0].eq_ignore_ascii_case(b"spublish") => &words[1..2],
        Keys::All | Keys::Channels => &words[1..],
        Keys::Counted => {
            let count = std::str::from_utf8(&words[2]).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
            words.get(3..3_usize.saturating_add(count)).unwrap_or_default()
        }
    }
}

/// Whether a node may do what is asked, by the slots of the keys.
pub(crate) fn place_of(state: &State, keys: &[Vec<u8>], are_channels: bool, is_asking: bool) -> Place {
    let Some(cluster) = &state.cluster else { return Place::Here };
    let Some(first) = keys.first() else { return Place::Here };
    let slot = slot_of(first);
    if keys.iter().any(|key| slot_of(key) != slot) {
        return Place::Elsewhere(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"));
    }
    if !cluster.is_up {
        return Place::Down(Reply::error("CLUSTERDOWN The cluster is down"));
    }
    let Some(owner) = cluster.owner(slot) else {
        return Place::Down(Reply::error("CLUSTERDOWN Hash slot not served"));
    };
    let redirect = |word: &str, node: usize| {
        let (host, port) = &cluster.nodes[node];
        Place::Elsewhere(Reply::failed(format!("{word} {slot} {host}:{port}")))
    };
    let try_again =
        || Place::Elsewhere(Reply::error("TRYAGAIN Multiple keys request during rehashing of slot"));
    let is_there = |key: &&Vec<u8>| state.keyspace.get(key, state.now_ms).is_some();
    let there = if are_channels { keys.len() } else { keys.iter().filter(is_there).count() };
    let is_some_missing = there < keys.len();
    if owner == cluster.me {
        return match cluster.leaving.get(&slot) {
            Some(_) if is_some_missing && there > 0 => try_again(),
            Some(node) if is_some_missing => redirect("ASK", *node),
            _ => Place::Here,
        };
    }
    if is_asking && cluster.arriving.contains_key(&slot) {
        let are_several = keys.iter().any(|key| key != first);
        return if are_several && is_some_missing { try_again() } else { Place::Here };
    }
    redirect("MOVED", owner)
}
