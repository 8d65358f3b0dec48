//! The stores that are compared.

use crate::shared::memory::rss_kb;
use crate::shared::servers::Server;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Memory,
    Redis,
}

/// What stands in the way of many: all clients here have one address, and some wait for long.
const SETTINGS: [&str; 10] = [
    "--max-connections",
    "15000",
    "--max-connections-per-address",
    "15000",
    "--max-waiters-per-key",
    "20000",
    "--max-wait",
    "10m",
    "--mark-ttl",
    "11m",
];

impl Store {
    pub const ALL: [Self; 2] = [Self::Memory, Self::Redis];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "Redis",
        }
    }

    /// A gateway of its own, on a store of its own.
    pub fn start(self) -> Server {
        match self {
            Self::Memory => Server::embedded_set(self.name(), "memory:", &SETTINGS),
            Self::Redis => Server::on_redis_set(self.name(), &SETTINGS),
        }
    }
}

/// A gateway on Redis whose clients have so many keys, with these limits.
pub fn start_for(count: usize, limits: &[&str]) -> Server {
    Server::on_redis_for("Redis", &SETTINGS, count, limits)
}

/// What of the gateway and of its Redis is in memory, in MB.
pub fn gateway_mb(server: &Server) -> f64 {
    server.pid().map_or(0.0, mb)
}

pub fn redis_mb(server: &Server) -> Option<f64> {
    server.redis_pids().map(mb).reduce(|sum, of_another| sum + of_another)
}

fn mb(pid: u32) -> f64 {
    rss_kb(pid) as f64 * 1024.0 / 1e6
}
