//! A Redis Cluster of three primaries and three replicas, all of them real.

use crc::{CRC_16_XMODEM, Crc};
use futures_util::future::join_all;
use tokio::sync::OnceCell;

use super::redis_server::RedisServer;
use super::sentinels::Promotion;
use super::{end_with_the_tests, eventually, server_port};

const PRIMARIES: usize = 3;
const SLOTS: u16 = 16_384;
/// How a cluster counts slots.
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The bucket of a lock: all locks of one bucket, and what belongs to them, share a slot.
pub fn bucket_of(key: &str) -> u16 {
    CRC.checksum(key.as_bytes()) % SLOTS
}

/// The slot of a lock: that of its bucket's number, which is the hash tag.
pub fn slot_of_lock(key: &str) -> u16 {
    CRC.checksum(bucket_of(key).to_string().as_bytes()) % SLOTS
}

/// Ends all its nodes when dropped. The first three begin as primaries, each with a third of the slots, and node
/// `n + 3` as the replica of node `n`.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

/// A slot on its way from one primary to another.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub slot: u16,
    pub from: usize,
    pub to: usize,
}

/// The cluster that tests share which let nothing fail; each has a prefix of its own.
pub async fn shared() -> &'static RedisCluster {
    static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();
    let start = async || {
        // Nobody is to be taken for dead on a busy machine.
        let cluster = RedisCluster::start_with(&["--cluster-node-timeout", "30000"]).await;
        end_with_the_tests(&cluster.nodes.iter().collect::<Vec<_>>());
        cluster
    };
    SHARED.get_or_init(start).await
}

impl RedisCluster {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with further arguments of `redis-server`; it serves all slots, and each primary has its replica, when
    /// this returns.
    pub async fn start_with(args: &[&str]) -> Self {
        // Another process may take a port between our look and the server's.
        for _ in 0..5 {
            let nodes = join_all((0..2 * PRIMARIES).map(|_| start_node(args))).await;
            let Some(nodes) = nodes.into_iter().collect::<Option<Vec<_>>>() else { continue };
            return Self::form(nodes).await;
        }
        panic!("Redis Cluster does not start");
    }

    async fn form(nodes: Vec<(RedisServer, u16)>) -> Self {
        let (nodes, bus_ports): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let ids = join_all(nodes.iter().map(|node| node.command::<String>(&["CLUSTER", "MYID"]))).await;
        for (at, node) in nodes.iter().enumerate() {
            // Different ones from the beginning, so that no two primaries have to settle whose is whose.
            let epoch = (at + 1).to_string();
            let _: () = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if at < PRIMARIES {
                let bound = |at: usize| usize::from(SLOTS) * at / PRIMARIES;
                let (first, last) = (bound(at).to_string(), (bound(at + 1) - 1).to_string());
                let _: () = node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            }
            // Each is told of all before it: to hear of each other by gossip would take longer.
            for (other, bus_port) in nodes[..at].iter().zip(&bus_ports) {
                let (port, bus_port) = (other.port().to_string(), bus_port.to_string());
                let _: () = node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).await;
            }
        }
        let cluster = Self { nodes, ids };
        for at in 0..PRIMARIES {
            let (primary, replica) = (&cluster.ids[at], &cluster.nodes[PRIMARIES + at]);
            eventually("the replica knows its primary", async || {
                replica.try_command::<()>(&["CLUSTER", "REPLICATE", primary]).await.is_ok()
            })
            .await;
        }
        cluster.is_whole().await;
        cluster
    }

    /// Where a gateway finds it.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The slots that a primary has, in ranges.
    pub async fn slots_of(&self, node: usize) -> Vec<(u16, u16)> {
        let nodes = nodes_by(&self.nodes[node]).await.expect("the node does not answer");
        slots(own_line(&nodes).expect("it is a replica")).collect()
    }

    /// The node that is the primary of this slot: of those who think so, the one whose claim is the newest.
    pub async fn owner_of(&self, slot: u16) -> usize {
        let claims = join_all(self.nodes.iter().map(|node| claim_of(node, slot))).await;
        let claims = claims.into_iter().enumerate().filter_map(|(at, epoch)| Some((epoch?, at)));
        claims.max().expect("nobody has this slot").1
    }

    /// A replica of this primary that is up to date.
    pub async fn replica_of(&self, primary: usize) -> usize {
        let mut found = None;
        eventually("the primary has a replica", async || {
            let follows = join_all(self.nodes.iter().map(|node| self.follows(node, primary))).await;
            found = follows.into_iter().position(|follows| follows == Some(true));
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    async fn follows(&self, node: &RedisServer, primary: usize) -> Option<bool> {
        let info: String = node.try_command(&["INFO", "replication"]).await.ok()?;
        let has = |line: &str| info.lines().any(|other| other == line);
        Some(has(&format!("master_port:{}", self.nodes[primary].port())) && has("master_link_status:up"))
    }

    /// Waits until every node finds that all slots are served, agrees on who serves them, and follows somebody or is
    /// followed.
    pub async fn is_whole(&self) {
        eventually("the cluster is whole", async || {
            let views = join_all(self.nodes.iter().map(view_of)).await;
            let Some(views) = views.into_iter().collect::<Option<Vec<_>>>() else { return false };
            views.iter().all(|view| *view == views[0])
        })
        .await;
    }

    /// Has the replica of a shard take over without asking anybody; returns as soon as it is the primary.
    pub async fn take_over(&self, primary: usize) -> Promotion {
        let server = self.replica_of(primary).await;
        let _: () = self.nodes[server].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
        Promotion { server, at: self.nodes[server].becomes_primary().await }
    }

    /// Ends a primary at once; returns as soon as its replica is promoted.
    pub async fn kill_primary(&mut self, primary: usize) -> Promotion {
        let server = self.replica_of(primary).await;
        self.nodes[primary].kill();
        Promotion { server, at: self.nodes[server].becomes_primary().await }
    }

    /// Starts a node again that has ended, and waits until all is well.
    pub async fn bring_back(&mut self, node: usize) {
        self.nodes[node].start_again().await;
        self.is_whole().await;
    }

    /// Begins to move a slot: from here on new keys of it are refused where it comes from.
    pub async fn begin_migration(&self, slot: u16, to: usize) -> Migration {
        let migration = Migration { slot, from: self.owner_of(slot).await, to };
        let text = slot.to_string();
        let Migration { from, .. } = migration;
        let importing = ["CLUSTER", "SETSLOT", &text, "IMPORTING", &self.ids[from]];
        let _: () = self.nodes[to].command(&importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &text, "MIGRATING", &self.ids[to]];
        let _: () = self.nodes[from].command(&migrating).await;
        migration
    }

    /// The keys of the slot that have not been moved yet.
    pub async fn keys_left(&self, migration: Migration) -> Vec<String> {
        let slot = migration.slot.to_string();
        self.nodes[migration.from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).await
    }

    /// Moves at most so many of the keys that are still there; returns how many it moved.
    pub async fn move_keys(&self, migration: Migration, most: usize) -> usize {
        let mut keys = self.keys_left(migration).await;
        keys.truncate(most);
        let port = self.nodes[migration.to].port().to_string();
        // One by one: a lock that ends meanwhile is no error.
        for key in &keys {
            let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
            let _: () = self.nodes[migration.from].command(&words).await;
        }
        keys.len()
    }

    /// Says that the slot is where its keys have been moved to.
    pub async fn end_migration(&self, migration: Migration) {
        let slot = migration.slot.to_string();
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[migration.to]];
        // Where it goes first: it must have the newest claim when the other gives up its own.
        let _: () = self.nodes[migration.to].command(&words).await;
        let _: () = self.nodes[migration.from].command(&words).await;
    }
}

async fn start_node(args: &[&str]) -> Option<(RedisServer, u16)> {
    // By default it is the port plus 10,000, which somebody else may have.
    let bus_port = server_port();
    let bus_text = bus_port.to_string();
    let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", &bus_text];
    // With less, a busy machine brings about failovers of its own.
    all.extend(["--cluster-node-timeout", "2000"]);
    // Without the delay, a replica need not wait for others that might come.
    all.extend(["--repl-diskless-sync-delay", "0"]);
    all.extend(args);
    RedisServer::start_on(server_port(), &all).await.map(|node| (node, bus_port))
}

/// The lines of `CLUSTER NODES`, in words.
async fn nodes_by(node: &RedisServer) -> Option<Vec<Vec<String>>> {
    let nodes: String = node.try_command(&["CLUSTER", "NODES"]).await.ok()?;
    Some(nodes.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
}

fn slots(words: &[String]) -> impl Iterator<Item = (u16, u16)> {
    // A slot in brackets is on its way, and is named without them as well where it is served.
    words[8..].iter().filter(|word| !word.starts_with('[')).map(|word| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        (first.parse().unwrap(), last.parse().unwrap())
    })
}

/// What a primary says of itself.
fn own_line(nodes: &[Vec<String>]) -> Option<&Vec<String>> {
    nodes.iter().find(|words| words[2].contains("myself,master"))
}

/// With which epoch a node claims a slot, if it does.
async fn claim_of(node: &RedisServer, slot: u16) -> Option<u64> {
    let nodes = nodes_by(node).await?;
    let own = own_line(&nodes)?;
    let has = slots(own).any(|(first, last)| (first..=last).contains(&slot));
    has.then(|| own[6].parse().unwrap())
}

/// Who serves which slots in the eyes of a node; nothing while it misses anything.
async fn view_of(node: &RedisServer) -> Option<Vec<(String, Vec<(u16, u16)>)>> {
    let info: String = node.try_command(&["CLUSTER", "INFO"]).await.ok()?;
    let replication: String = node.try_command(&["INFO", "replication"]).await.ok()?;
    let has = |info: &str, line: &str| info.lines().any(|other| other.trim() == line);
    let is_well = has(&info, "cluster_state:ok")
        && has(&info, "cluster_slots_ok:16384")
        && has(&info, "cluster_known_nodes:6")
        && (has(&replication, "master_link_status:up") || has(&replication, "role:master"));
    if !is_well {
        return None;
    }
    let nodes = nodes_by(node).await?;
    // A node that is suspected, has failed, or has not been met yet has a further flag.
    let is_known = |words: &Vec<String>| {
        let flags = words[2].trim_start_matches("myself,");
        matches!(flags, "master" | "slave")
    };
    let primaries = nodes.iter().filter(|words| words[2].ends_with("master"));
    let mut view: Vec<_> = primaries.map(|words| (words[0].clone(), slots(words).collect())).collect();
    view.sort();
    (nodes.iter().all(is_known) && view.len() == PRIMARIES).then_some(view)
}
