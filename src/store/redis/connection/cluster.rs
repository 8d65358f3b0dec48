//! The servers of a cluster, and which of them has which slot.
//!
//! The map is only a hint: a server refuses a slot that it does not have, and says which server has it. The gateway
//! asks for the map each second, and sooner when a request finds a server out of reach or is pointed elsewhere. It asks
//! the same server for as long as all is well, and else one after the other, since the last one may know less.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connector::Target;
use super::link::Link;
use super::map::{Map, MapState};
use super::scan::Scan;
use super::slots::{ClusterIds, Seeds, SlotLayout};
use super::supervisor::LinkSupervisor;
use crate::store::StoreError;
use crate::store::redis::address::RedisAddress;
use crate::store::redis::failure::Redirect;
use crate::store::redis::health::preflight::Preflight;
use crate::store::redis::node::Node;
use crate::store::redis::pubsub::Hints;
use crate::store::redis::scripts::keys::SLOTS;

/// How often the map is asked for when nothing is wrong.
const MAP_PERIOD: Duration = Duration::from_secs(1);
/// The shortest time between two questions.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a link is kept to a server that is not on the map, after another one has pointed there.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// How long a server that was silent at the start is waited for, beside the look at another one.
const SEEDS_WITHIN: Duration = Duration::from_millis(250);

/// Links to the primaries of one cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// What the task that keeps the map shares with requests.
struct Shared {
    address: RedisAddress,
    preflight: Preflight,
    reply_timeout: Duration,
    hints: Hints,
    state: watch::Sender<MapState>,
    /// Of the servers on the map.
    ids: ClusterIds,
    /// Servers that are not on the map, and when one was last asked for: the new server of a slot may have none yet.
    off_the_map: Mutex<HashMap<Node, (Arc<LinkSupervisor>, Instant)>>,
    /// Says that the map seems to be old.
    stale: Notify,
}

impl Cluster {
    /// Starts to look for the servers in the background.
    pub(crate) fn start(
        address: &RedisAddress,
        preflight: &Preflight,
        reply_timeout: Duration,
        hints: Hints,
    ) -> Self {
        let (address, preflight, stale) = (address.clone(), preflight.clone(), Notify::new());
        let state = watch::Sender::new(MapState::Connecting);
        let (off_the_map, ids) = (Mutex::default(), ClusterIds::default());
        let shared = Shared { address, preflight, reply_timeout, hints, state, ids, off_the_map, stale };
        let shared = Arc::new(shared);
        let stop = CancellationToken::new();
        let (task, stopped) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            stopped.run_until_cancelled(task.keep_map()).await;
            task.state.send_replace(MapState::Down("the store is closed".into()));
        });
        Self { shared, stop }
    }

    /// The current link to the server that has the slot. Fails at once while that server is known to be down.
    pub(crate) async fn link(&self, slot: u16, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.link_now(slot) {
            return Ok(link);
        }
        let mut state = self.shared.state.subscribe();
        loop {
            let owner = state.borrow_and_update().owner_of(slot)?.cloned();
            self.shared.stale.notify_one();
            let link = async {
                match &owner {
                    Some(owner) => owner.link(deadline).await,
                    None => {
                        sleep_until(deadline).await;
                        Err(StoreError::Unavailable("no server of the cluster has the lock's slot".into()))
                    }
                }
            };
            tokio::select! {
                biased;
                link = link => return link,
                // A server that is out of reach may have a successor.
                changed = state.changed() => if changed.is_err() {
                    return Err(StoreError::Unavailable("the store is closed".into()));
                },
            }
        }
    }

    /// The same, if it stands.
    pub(crate) fn link_now(&self, slot: u16) -> Option<Arc<Link>> {
        self.shared.state.borrow().owner_of(slot).ok()??.link_now()
    }

    /// The link to the server to which another one has pointed.
    pub(crate) async fn follow(
        &self,
        redirect: Redirect,
        slot: u16,
        deadline: Instant,
    ) -> Result<Arc<Link>, StoreError> {
        let map = self.map(deadline).await?;
        let node = match &redirect {
            Redirect::Moved(node) | Redirect::Ask(node) => map.named_by_owner(node, slot),
        };
        let is_moved = matches!(redirect, Redirect::Moved(_));
        if is_moved || node.is_none() {
            self.shared.stale.notify_one();
        }
        let Some(node) = node else { return self.link(slot, deadline).await };
        let supervisor = self.shared.supervisor(&map.supervisors, &node)?;
        if is_moved {
            self.shared.state.send_if_modified(|state| state.moves(slot, &node, &supervisor));
        }
        supervisor.link(deadline).await
    }

    /// The current links to all primaries.
    pub(crate) async fn all(&self, deadline: Instant) -> Vec<Result<Arc<Link>, StoreError>> {
        let map = match self.map(deadline).await {
            Ok(map) => map,
            Err(error) => return vec![Err(error)],
        };
        join_all(map.primaries().into_iter().map(|primary| primary.link(deadline))).await
    }

    /// All primaries, for as long as each of them keeps its slots.
    pub(crate) async fn scan(&self, deadline: Instant) -> Result<Scan, StoreError> {
        let map = self.whole_map(deadline).await?;
        let mut links = Vec::new();
        for primary in map.primaries() {
            links.push(primary.link(deadline).await?);
        }
        Ok(Scan::new(links, &map.layout()))
    }

    /// The map, if each slot has a server.
    pub(super) async fn whole_map(&self, deadline: Instant) -> Result<Arc<Map>, StoreError> {
        let map = self.map(deadline).await?;
        map.gap().map_or(Ok(map), |gap| Err(StoreError::Unavailable(gap)))
    }

    async fn map(&self, deadline: Instant) -> Result<Arc<Map>, StoreError> {
        let mut state = self.shared.state.subscribe();
        let is_known = |state: &MapState| !matches!(state, MapState::Connecting);
        match timeout_at(deadline, state.wait_for(is_known)).await.as_ref().map(|state| state.as_deref()) {
            Ok(Ok(MapState::Known(map))) => Ok(map.clone()),
            Ok(Ok(MapState::Down(reason))) => Err(StoreError::Unavailable(reason.to_string())),
            _ => Err(StoreError::Unavailable("no server of the cluster answers".into())),
        }
    }

    /// The links that stand.
    pub(crate) fn links_now(&self) -> Vec<Arc<Link>> {
        let MapState::Known(map) = &*self.shared.state.borrow() else { return Vec::new() };
        map.supervisors.values().filter_map(|supervisor| supervisor.link_now()).collect()
    }

    /// Ends all connections: from then on requests are refused.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    async fn keep_map(&self) {
        let mut nodes = self.address.nodes().to_vec();
        let mut asked = 0;
        // The one to ask again, with the connection to it.
        let mut kept = None;
        let mut failing_since = Instant::now();
        let (mut known, mut seeds) = (None::<SlotLayout>, Seeds::default());
        // Servers that were in different clusters: all of them must agree before one is believed again.
        let mut doubted = Vec::new();
        loop {
            let (node, mut connection) =
                kept.take().unwrap_or_else(|| (nodes[asked % nodes.len()].clone(), None));
            let answer = match &known {
                None => self.begin(&doubted, &mut seeds).await,
                Some(known) => self.look_again(&node, known, &mut seeds, &mut connection).await,
            };
            if let Some(reason) = seeds.disagreement() {
                tracing::warn!(reason, "the cluster cannot be used: requests are refused until it can be");
                self.state.send_replace(MapState::Down(reason.into()));
                doubted = std::mem::take(&mut seeds).heard();
                known = None;
                sleep(MAP_PERIOD).await;
                continue;
            }
            let mut is_well = false;
            match answer {
                // Its map may be an old one, and the one that is known is no worse.
                Ok(layout) if known.is_some() && !layout.is_up => {
                    tracing::debug!(%node, "a server finds that the cluster is down: its map is not believed");
                }
                Ok(layout) => {
                    failing_since = Instant::now();
                    nodes = self.candidates(&layout);
                    self.learn(&layout);
                    is_well = layout.is_up && !self.misses_an_owner();
                    known = Some(layout);
                }
                Err(reason) => {
                    tracing::debug!(%node, reason, "a server does not say who has which slot");
                    if failing_since.elapsed() >= self.reply_timeout {
                        self.give_up(reason);
                    }
                    // The next one is asked after the shortest pause.
                    self.stale.notify_one();
                }
            }
            sleep(SHORTEST_PAUSE).await;
            // Requests may say nothing of it: balancers send none to a gateway that is not ready.
            if timeout(MAP_PERIOD, self.stale.notified()).await.is_ok() || !is_well {
                // Another one may know more.
                asked += 1;
            } else {
                kept = Some((node, connection));
            }
        }
    }

    /// What the servers that the address names agree on, those that are doubted among them.
    async fn begin(&self, doubted: &[Node], seeds: &mut Seeds) -> Result<SlotLayout, String> {
        let (layout, inside) = SlotLayout::agreed(&self.address, self.reply_timeout).await?;
        if let Some(silent) = doubted.iter().find(|node| !inside.contains(node)) {
            return Err(format!("{silent} was in another cluster than others, and does not answer now"));
        }
        *seeds = Seeds::of(&self.address, inside);
        Ok(layout)
    }

    /// What this server says now. One that was silent at the start is asked too: it may know that it is the wrong cluster.
    async fn look_again(
        &self,
        node: &Node,
        known: &SlotLayout,
        seeds: &mut Seeds,
        connection: &mut Option<MultiplexedConnection>,
    ) -> Result<SlotLayout, String> {
        if let Some(seed) = seeds.next_unheard() {
            let mut own = None;
            let asking = SlotLayout::ask(&self.address, &seed, &mut own);
            if let Ok(answer) = timeout(SEEDS_WITHIN, asking).await {
                seeds.places_elsewhere(&seed, &answer, known);
            }
        }
        let asking = SlotLayout::ask(&self.address, node, connection);
        let answer = timeout(self.reply_timeout, asking).await;
        let answer = answer.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        if seeds.places_elsewhere(node, &answer, known) {
            return Err("it is in another cluster".to_owned());
        }
        answer.map(|mut layout| {
            layout.complete_by(known);
            layout
        })
    }

    /// Whom to ask: those that were named, and those that the address names.
    fn candidates(&self, layout: &SlotLayout) -> Vec<Node> {
        let mut nodes = self.address.nodes().to_vec();
        for node in &layout.nodes {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        nodes
    }

    /// Makes a server's answer the map. Servers without slots are left.
    fn learn(&self, layout: &SlotLayout) {
        // Before any link is made by this map.
        self.ids.learn(layout);
        let known = match &*self.state.borrow() {
            MapState::Known(map) => map.clone(),
            _ => Arc::default(),
        };
        let mut map = Map { supervisors: HashMap::new(), owners: vec![None; usize::from(SLOTS)] };
        for (first, last, node) in &layout.ranges {
            let supervisor = match map.supervisors.get(node) {
                Some(supervisor) => supervisor.clone(),
                None => match self.supervisor(&known.supervisors, node) {
                    Ok(supervisor) => supervisor,
                    Err(error) => {
                        tracing::warn!(%node, %error, "a server of the cluster cannot be used");
                        continue;
                    }
                },
            };
            let range = usize::from(*first)..usize::from(*last) + 1;
            if let Some(owners) = map.owners.get_mut(range) {
                owners.fill(Some(supervisor.clone()));
            }
            map.supervisors.insert(node.clone(), supervisor);
        }
        self.off_the_map.lock().retain(|_, (_, at)| at.elapsed() < KEPT_FOR);
        let same = |a: &Option<Arc<LinkSupervisor>>, b: &Option<Arc<LinkSupervisor>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let is_same = known.supervisors.len() == map.supervisors.len()
            && known.owners.len() == map.owners.len()
            && known.owners.iter().zip(&map.owners).all(|(before, now)| same(before, now));
        if !is_same {
            tracing::debug!(primaries = map.supervisors.len(), "learned who has which slot of the cluster");
            self.state.send_replace(MapState::Known(Arc::new(map)));
        }
    }

    /// Whether a slot has no server by the map, or one that is down: it may have a successor.
    fn misses_an_owner(&self) -> bool {
        let MapState::Known(map) = &*self.state.borrow() else { return false };
        map.gap().is_some() || map.supervisors.values().any(|supervisor| supervisor.is_down())
    }

    /// The one that keeps a link to this server, or a new one.
    fn supervisor(
        &self,
        known: &HashMap<Node, Arc<LinkSupervisor>>,
        node: &Node,
    ) -> Result<Arc<LinkSupervisor>, StoreError> {
        if let Some(supervisor) = known.get(node) {
            return Ok(supervisor.clone());
        }
        let mut others = self.off_the_map.lock();
        let supervisor = match others.get(node) {
            Some((supervisor, _)) => supervisor.clone(),
            None => {
                let client =
                    self.address.client(node).map_err(|error| StoreError::Unavailable(error.to_string()))?;
                let (target, hints) = (Target::Node(client, self.ids.clone()), self.hints.clone());
                Arc::new(LinkSupervisor::start(target, &self.preflight, self.reply_timeout, hints))
            }
        };
        others.insert(node.clone(), (supervisor.clone(), Instant::now()));
        Ok(supervisor)
    }

    fn give_up(&self, reason: String) {
        if matches!(&*self.state.borrow(), MapState::Connecting) {
            let reason = format!("no server of the cluster can be asked: {reason}");
            tracing::warn!(reason, "the cluster cannot be used: requests are refused until it can be");
            self.state.send_replace(MapState::Down(reason.into()));
        }
    }
}
