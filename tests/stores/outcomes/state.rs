//! The states of a server, and how a test brings them about.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;

use super::Wish;
use kit::redis_server::program;
use kit::{Gateway, RedisServer, eventually, server_port};

/// Why a server does not do what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody listens.
    Gone,
    ReadOnly,
    MasterDown,
    Loading,
    Busy,
    ClusterDown,
    OutOfMemory,
    DiskError,
    TooFewReplicas,
    Forbidden,
    PasswordSet,
    PasswordChanged,
}

impl State {
    /// What a refusal names, the server's or, where it is left because of that, the gateway's own.
    pub fn said(self) -> &'static [&'static str] {
        match self {
            Self::Gone => &["Connection refused"],
            Self::ReadOnly => &["READONLY", "is a replica"],
            Self::MasterDown => &["MASTERDOWN", "is a replica"],
            Self::Loading => &["LOADING"],
            Self::Busy => &["BUSY"],
            Self::ClusterDown => &["CLUSTERDOWN", "the cluster is down"],
            Self::OutOfMemory => &["OOM"],
            Self::DiskError => &["MISCONF"],
            Self::TooFewReplicas => &["NOREPLICAS"],
            Self::Forbidden => &["NOPERM", "lacks permissions"],
            Self::PasswordSet => &["NOAUTH"],
            Self::PasswordChanged => &["WRONGPASS"],
        }
    }

    /// Whether it is known after one try, over a connection that stays.
    pub fn is_told_at_once(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::DiskError | Self::TooFewReplicas | Self::Forbidden)
    }

    pub fn must_allow(self, wish: Wish) -> bool {
        match self {
            Self::OutOfMemory => wish != Wish::Take,
            Self::DiskError | Self::TooFewReplicas => wish == Wish::Look,
            _ => false,
        }
    }

    pub fn may_allow(self, wish: Wish) -> bool {
        // Until it is noticed what part the server plays.
        self.must_allow(wish) || self == Self::ReadOnly && wish == Wish::Look
    }
}

/// How often a gateway has left its connection.
pub fn leaves(gateway: &Gateway) -> usize {
    gateway.log().iter().filter(|line| line.contains("the connection to Redis is given up")).count()
}

/// Whether the tests are run on Redis 6, which lacks some settings.
fn is_6() -> bool {
    static VERSION: LazyLock<Vec<u8>> =
        LazyLock::new(|| Command::new(program()).arg("--version").output().unwrap().stdout);
    VERSION.starts_with(b"Redis server v=6.")
}

/// A server that can be brought into one of the states.
pub struct Server {
    redis: RedisServer,
    /// Made before all that follows, and kept.
    connection: MultiplexedConnection,
}

impl Server {
    pub async fn start(state: State) -> Self {
        let redis = match state {
            State::Gone => RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await,
            State::Loading => {
                let debug: &[&str] = if is_6() { &[] } else { &["--enable-debug-command", "yes"] };
                RedisServer::start_with(&[debug, &["--rdbcompression", "no"]].concat()).await
            }
            State::ClusterDown => {
                let bus_port = server_port().to_string();
                // Else it is 10,000 more than the server's own.
                let bus: &[&str] = if is_6() { &[] } else { &["--cluster-port", &bus_port] };
                let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "500"];
                RedisServer::start_with(&[&args[..], bus].concat()).await
            }
            _ => RedisServer::start().await,
        };
        let server = Self { connection: redis.connect().await, redis };
        match state {
            // Redis 6 answers while it loads only behind each 2 MiB.
            State::Loading if is_6() => server.say(&["DEBUG", "POPULATE", "40", "many", "2100000"]).await,
            State::Loading => server.say(&["DEBUG", "POPULATE", "1000", "many", "2000"]).await,
            State::ClusterDown => {
                let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
                let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
                server.say(&words.collect::<Vec<_>>()).await;
                server.is_cluster("ok").await;
            }
            State::PasswordChanged => {
                server.say(&["ACL", "SETUSER", "gateway", "on", ">before", "~*", "&*", "+@all"]).await;
            }
            _ => {}
        }
        server
    }

    /// Where a gateway finds it.
    pub fn url(&self, state: State) -> String {
        let address = format!("127.0.0.1:{}", self.redis.port());
        match state {
            State::ClusterDown => format!("redis+cluster://{address}"),
            State::PasswordChanged => format!("redis://gateway:before@{address}"),
            _ => format!("redis://{address}"),
        }
    }

    /// Sends a command, given as words.
    pub async fn say(&self, words: &[&str]) {
        self.ask::<redis::Value>(words).await.unwrap();
    }

    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let (name, args) = words.split_first().unwrap();
        redis::cmd(name).arg(args).query_async(&mut self.connection.clone()).await
    }

    async fn field(&self, section: &str, line: &str) -> bool {
        let info: redis::RedisResult<String> = self.ask(&["INFO", section]).await;
        info.is_ok_and(|info| info.lines().any(|other| other == line))
    }

    async fn is_cluster(&self, state: &str) {
        eventually("the cluster has changed its state", async || {
            let info: String = self.ask(&["CLUSTER", "INFO"]).await.unwrap();
            info.contains(&format!("cluster_state:{state}"))
        })
        .await;
    }

    /// How often it has refused a command in the way of this state; nothing where it cannot say so now.
    pub async fn refusals(&self, state: State) -> Option<u64> {
        let stats: String = self.ask(&["INFO", "errorstats"]).await.ok()?;
        let begin = format!("errorstat_{}:count=", state.said()[0]);
        Some(stats.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok()).unwrap_or(0))
    }

    /// Every lock and every mark, with what it says.
    pub async fn locks_and_marks(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for pattern in ["fencepost:*:lock:*", "fencepost:*:freed:*"] {
            let keys: Vec<String> = self.ask(&["KEYS", pattern]).await.unwrap();
            for key in keys {
                let value = self.ask(&["GET", &key]).await.unwrap_or_else(|error| error.to_string());
                all.insert(key, value);
            }
        }
        all
    }

    pub async fn enter(&mut self, state: State, gateway: &Gateway) {
        let before = leaves(gateway);
        match state {
            State::Gone => self.redis.kill(),
            State::ReadOnly => self.say(&["REPLICAOF", "127.0.0.1", "1"]).await,
            State::MasterDown => {
                self.say(&["CONFIG", "SET", "replica-serve-stale-data", "no"]).await;
                self.say(&["REPLICAOF", "127.0.0.1", "1"]).await;
            }
            State::Loading => {
                // A server without data to speak of loads it for twenty seconds, and listens meanwhile.
                // Redis 6 cannot be told anything while it loads: there it is over by itself.
                let delay_us = if is_6() { "150000" } else { "20000" };
                self.say(&["CONFIG", "SET", "key-load-delay", delay_us]).await;
                if !is_6() {
                    self.say(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]).await;
                }
                let mut own = self.redis.connect().await;
                tokio::spawn(async move {
                    let mut reload = redis::cmd("DEBUG");
                    let _: redis::RedisResult<()> = reload.arg("RELOAD").query_async(&mut own).await;
                });
                eventually("it loads", async || self.field("persistence", "loading:1").await).await;
            }
            State::Busy => {
                // Later versions know it by this name too.
                self.say(&["CONFIG", "SET", "lua-time-limit", "5"]).await;
                let mut own = self.redis.connect().await;
                tokio::spawn(async move {
                    let mut endless = redis::cmd("EVAL");
                    endless.arg("while true do end").arg(0);
                    let _: redis::RedisResult<()> = endless.query_async(&mut own).await;
                });
                eventually("it is busy", async || self.ask::<String>(&["PING"]).await.is_err()).await;
            }
            // All slots are refused where one is missing.
            State::ClusterDown => {
                self.say(&["CLUSTER", "DELSLOTS", "16383"]).await;
                self.is_cluster("fail").await;
            }
            State::OutOfMemory => self.say(&["CONFIG", "SET", "maxmemory", "1"]).await,
            State::DiskError => {
                self.say(&["CONFIG", "SET", "save", "3600 1000000"]).await;
                std::fs::remove_dir_all(self.redis.directory()).unwrap();
                self.say(&["BGSAVE"]).await;
                let line = "rdb_last_bgsave_status:err";
                eventually("it cannot save", async || self.field("persistence", line).await).await;
            }
            State::TooFewReplicas => self.say(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await,
            State::Forbidden => self.say(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]).await,
            State::PasswordSet => {
                self.say(&["CONFIG", "SET", "requirepass", "new"]).await;
                // One that listens to a channel is of another kind.
                for kind in ["normal", "pubsub"] {
                    self.say(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await;
                }
            }
            State::PasswordChanged => {
                self.say(&["ACL", "SETUSER", "gateway", "resetpass", ">after"]).await;
                self.say(&["CLIENT", "KILL", "USER", "gateway"]).await;
            }
        }
        if matches!(state, State::Gone | State::PasswordSet | State::PasswordChanged) {
            // What is sent before that may have arrived.
            eventually("the gateway has seen it", async || leaves(gateway) > before).await;
        }
    }

    pub async fn leave(&mut self, state: State) {
        match state {
            State::Gone => {
                self.redis.start_again().await;
                self.connection = self.redis.connect().await;
            }
            State::ReadOnly | State::MasterDown => self.say(&["REPLICAOF", "NO", "ONE"]).await,
            State::Loading => {
                if !is_6() {
                    self.say(&["CONFIG", "SET", "key-load-delay", "0"]).await;
                }
                eventually("it has loaded", async || self.field("persistence", "loading:0").await).await;
            }
            State::Busy => {
                self.say(&["SCRIPT", "KILL"]).await;
                eventually("it is not busy", async || self.ask::<String>(&["PING"]).await.is_ok()).await;
            }
            State::ClusterDown => self.say(&["CLUSTER", "ADDSLOTS", "16383"]).await,
            State::OutOfMemory => self.say(&["CONFIG", "SET", "maxmemory", "0"]).await,
            State::DiskError => self.say(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).await,
            State::TooFewReplicas => self.say(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await,
            State::Forbidden => self.say(&["ACL", "SETUSER", "default", "+@all"]).await,
            State::PasswordSet => self.say(&["CONFIG", "SET", "requirepass", ""]).await,
            State::PasswordChanged => self.say(&["ACL", "SETUSER", "gateway", "resetpass", ">before"]).await,
        }
    }
}
