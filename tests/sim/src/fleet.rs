//! Servers that stand together, in each way that an address can name.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost::store::redis::{AddressError, RedisAddress};

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::network::Network;
use crate::server::Server;
use crate::state::Layout;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const NODES: usize = 3;
/// By which name sentinels know the primary.
const PRIMARY: &str = "primary";

/// Servers, and the network that leads to them.
pub struct Fleet {
    pub network: Network,
    /// Those that hold data: `server1` and so on.
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
    url: String,
}

impl Fleet {
    fn of(hosts: &[String], clock: &Clock, url: String) -> Self {
        let network = Network::default();
        let start = |host: &String| {
            let server = Server::start(host, clock);
            network.add(host, REDIS_PORT, &server);
            server
        };
        let servers = hosts.iter().map(start).collect();
        Self { network, servers, sentinels: Vec::new(), url }
    }

    /// No servers, for stores that need none.
    pub fn none() -> Self {
        Self { network: Network::default(), servers: Vec::new(), sentinels: Vec::new(), url: String::new() }
    }

    /// One server.
    pub fn alone(clock: &Clock) -> Self {
        Self::of(&hosts(1), clock, "redis://server1".to_owned())
    }

    /// A primary, its replica, and three sentinels that name the primary. Nothing is copied unless a test sees to it.
    pub fn with_sentinels(clock: &Clock) -> Self {
        let names = (1..=NODES).map(|number| format!("sentinel{number}")).collect::<Vec<_>>();
        let mut fleet = Self::of(&hosts(2), clock, format!("redis+sentinel://{}/{PRIMARY}", names.join(",")));
        fleet.follow(1, 0);
        for name in names {
            let sentinel = Server::start(&name, clock);
            fleet.network.add(&name, SENTINEL_PORT, &sentinel);
            fleet.sentinels.push(sentinel);
            fleet.name_primary(fleet.sentinels.len() - 1, 0, 0);
        }
        fleet
    }

    /// From now on a sentinel names this server as the primary, by the failover of this number.
    pub fn name_primary(&self, sentinel: usize, server: usize, epoch: u64) {
        let primary = (host(server), REDIS_PORT, epoch);
        self.sentinels[sentinel].state().layout =
            Layout::Sentinel(BTreeMap::from([(PRIMARY.to_owned(), primary)]));
    }

    /// Makes a server a replica of another one, with all that this one holds.
    pub fn follow(&self, server: usize, primary: usize) {
        self.servers[server].follow(&self.servers[primary], (&host(primary), REDIS_PORT));
    }

    /// Three nodes, which share the slots evenly.
    pub fn cluster(clock: &Clock) -> Self {
        let hosts = hosts(NODES);
        let fleet = Self::of(&hosts, clock, format!("redis+cluster://{}", hosts.join(",")));
        let nodes: Vec<_> = hosts.iter().map(|host| (host.as_str(), REDIS_PORT)).collect();
        for (me, server) in fleet.servers.iter().enumerate() {
            server.state().cluster = Some(Cluster::new(me, &nodes));
        }
        fleet
    }

    /// Three independent servers.
    pub fn quorum(clock: &Clock) -> Self {
        let hosts = hosts(NODES);
        Self::of(&hosts, clock, format!("redlock://{}", hosts.join(",")))
    }

    /// Where a store finds them.
    pub fn address(&self) -> Result<RedisAddress, AddressError> {
        Ok(RedisAddress::parse(&self.url, None)?.through(Arc::new(self.network.clone())))
    }
}

/// What the server of this index is called.
pub fn host(server: usize) -> String {
    format!("server{}", server + 1)
}

fn hosts(count: usize) -> Vec<String> {
    (0..count).map(host).collect()
}
