//! What a server says of itself. Nothing else reads `INFO`.

use std::collections::HashMap;
use std::fmt;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisResult, ServerErrorKind};

use super::identity::{ServerIdentity, info_field as field};
use crate::lock::FencingToken;
use crate::store::Bucket;
use crate::store::redis::failure::MEMORY_IS_FULL;
use crate::store::redis::scripts::keys::KeySpace;

/// What `INFO` says of a server, as far as it matters to locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) identity: ServerIdentity,
    /// Its name and version, for people.
    pub(crate) product: String,
    /// The version of Redis whose commands it has; `None` where it does not say.
    pub(crate) version: Option<Version>,
    /// Whether it is a node of a cluster.
    pub(crate) is_cluster_node: bool,
    /// The memory that it may use, in bytes; 0 is all.
    pub(crate) max_memory: u64,
    /// The memory that it uses, in bytes, as far as it counts toward that.
    pub(crate) used_memory: u64,
    pub(crate) eviction_policy: String,
    /// How many keys its process has evicted.
    pub(crate) evicted_keys: u64,
    pub(crate) has_append_only_file: bool,
    /// How many replicas are connected.
    pub(crate) replicas: u64,
    /// How many of them keep up, where writes need some that do: then `min-replicas-to-write` is set.
    pub(crate) good_replicas: Option<u64>,
    /// Whether its scripts write however few keep up: mended in 6.2.7 (`redis/redis#10160`).
    pub(crate) is_deaf_in_scripts: bool,
    /// Why it refuses whatever writes, if it does.
    pub(crate) refused_write: Option<String>,
    /// What else may grant the same locks on it.
    pub(crate) other_store: Option<OtherStore>,
    /// Whether its clock is past the largest fencing token, so that no run of them can begin. One that is there goes on.
    pub(crate) is_past_numbers: bool,
}

/// Another store on the same server, in the same database and under the same prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OtherStore {
    /// A quorum of these servers.
    Quorum(String),
    /// A quorum of these servers that has not begun.
    Unfounded(String),
    /// A quorum, or none: the user may not read where it has its record.
    Unknown,
    /// That of `redis://`, on a server of a quorum.
    Single,
}

impl OtherStore {
    /// Asks for it with read-only commands, and for nothing that the user may not read: the server would keep a record of that, as of
    /// an attack. Servers before 7.0 cannot say what it may read.
    pub(super) async fn ask(
        connection: &mut MultiplexedConnection,
        keys: &KeySpace,
        is_for_quorum: bool,
    ) -> RedisResult<Option<Self>> {
        let script = "local function may(...) \
               if not redis.acl_check_cmd then return true end \
               local is_known, is_allowed = pcall(redis.acl_check_cmd, ...) \
               return is_known and is_allowed \
             end \
             local record = may('HMGET', ARGV[1], 'members') and redis.pcall('HMGET', ARGV[1], 'members', 'born') or { err = true } \
             local fence_ms = may('PTTL', ARGV[2]) and redis.pcall('PTTL', ARGV[2]) \
             local has_fence = type(fence_ms) == 'number' and fence_ms ~= -2 \
             return { not record.err and (record[1] or ''), record[2] and 1 or 0, has_fence and 1 or 0 }";
        let (record, fence) = (keys.record(), keys.fence(Bucket::default()));
        let mut call = redis::cmd("EVAL");
        let call = call.arg(script).arg(0).arg(record).arg(fence);
        let (members, is_born, has_fence): (Option<String>, bool, bool) =
            call.query_async(connection).await?;
        Ok(match members {
            // A quorum has no use for this key. A gateway with `redis://` that still runs writes it anew.
            _ if is_for_quorum => has_fence.then_some(Self::Single),
            None => Some(Self::Unknown),
            Some(none) if none.is_empty() => None,
            Some(members) if is_born => Some(Self::Quorum(members)),
            Some(members) => Some(Self::Unfounded(members)),
        })
    }
}

/// Major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl Profile {
    pub(crate) async fn ask(connection: &mut MultiplexedConnection, on_cluster: bool) -> RedisResult<Self> {
        // A call for each section, since servers before 7.0 take one at a time.
        let mut calls = redis::pipe();
        for section in ["server", "replication", "memory", "persistence", "stats"] {
            calls.cmd("INFO").arg(section);
        }
        if on_cluster {
            calls.cmd("CLUSTER").arg("INFO");
        }
        let sections: Vec<String> = calls.query_async(connection).await?;
        let info = sections.concat();
        // Until it has loaded, it says that it has no append-only file. What it is asked next may find it loaded.
        if field(&info, "loading") == Some("1") {
            let is_loading = ErrorKind::Server(ServerErrorKind::BusyLoading);
            return Err((is_loading, "LOADING", "the server is loading its data".to_owned()).into());
        }
        Ok(Self::read(&info, on_cluster))
    }

    fn read(info: &str, on_cluster: bool) -> Self {
        let text = |name| field(info, name).unwrap_or_default().to_owned();
        let number = |name| field(info, name).and_then(|value| value.parse::<u64>().ok());
        let version = text("redis_version");
        Self {
            identity: ServerIdentity::read(info, on_cluster),
            product: match field(info, "valkey_version") {
                Some(version) => format!("Valkey {version}"),
                None => format!("Redis {}", if version.is_empty() { "of unknown version" } else { &version }),
            },
            version: Version::parse(&version),
            is_cluster_node: field(info, "redis_mode") == Some("cluster"),
            max_memory: number("maxmemory").unwrap_or_default(),
            // Buffers for replicas and for the append-only file are free of charge.
            used_memory: number("used_memory")
                .unwrap_or_default()
                .saturating_sub(number("mem_not_counted_for_evict").unwrap_or_default()),
            eviction_policy: text("maxmemory_policy"),
            evicted_keys: number("evicted_keys").unwrap_or_default(),
            has_append_only_file: field(info, "aof_enabled") == Some("1"),
            replicas: number("connected_slaves").unwrap_or_default(),
            good_replicas: number("min_slaves_good_slaves"),
            is_deaf_in_scripts: (version.strip_prefix("6.2.").and_then(|patch| patch.parse::<u32>().ok()))
                .is_some_and(|patch| patch < 7),
            refused_write: None,
            other_store: None,
            is_past_numbers: number("server_time_usec").is_some_and(|now_us| now_us > FencingToken::MAX),
        }
    }

    /// Whether it may drop locks that are held.
    pub(crate) fn evicts(&self) -> bool {
        self.max_memory > 0 && self.eviction_policy != "noeviction"
    }

    /// Why it may go on granting where it is cut off from the replica that takes its place. Others may be cut off with it, so it
    /// must miss any of them.
    pub(crate) fn lacks_guard(&self, config: &Config) -> Option<String> {
        let replicas = self.replicas;
        match (self.good_replicas, config.min_replicas) {
            (None, Some(1..)) => Some("min-replicas-max-lag is 0".to_owned()),
            (None, _) => Some("min-replicas-to-write is 0".to_owned()),
            (Some(_), _) if self.is_deaf_in_scripts => {
                Some("Redis before 6.2.7 does not heed min-replicas-to-write in scripts".to_owned())
            }
            // Then it is 1 or more.
            (Some(_), _) if replicas <= 1 => None,
            (Some(_), Some(needed)) => (needed < replicas).then(|| {
                format!(
                    "min-replicas-to-write is {needed}, and {needed} of {replicas} replicas may be cut off with the primary"
                )
            }),
            (Some(_), None) => Some(format!(
                "whether min-replicas-to-write is at least {replicas}, the number of replicas, is not known, since the user \
                 may not use CONFIG"
            )),
        }
    }

    /// Why it grants nothing at the moment.
    pub(crate) fn unready(&self) -> Option<String> {
        let is_full = self.is_full().then(|| format!("{MEMORY_IS_FULL} ({} bytes)", self.max_memory));
        is_full.or_else(|| self.refused_write.clone())
    }

    /// That no run of fencing tokens can begin. By one that is there locks are granted, so it does not speak against a server.
    pub(super) fn past_numbers(&self) -> Option<String> {
        self.is_past_numbers.then(|| {
            "the clock of the server is past June 2255, where fencing tokens end: set it right. Until then no run of them can \
             begin, so nothing is granted after a restart, a failover or a loss of data, nor in a bucket that was not used yet"
                .to_owned()
        })
    }

    /// That fewer replicas are connected than must acknowledge a lock. What is held is renewed and released, so it does not speak
    /// against a server.
    pub(crate) fn too_few_replicas(&self, needed: u32) -> Option<String> {
        let replicas = self.replicas;
        (replicas < u64::from(needed)).then(|| {
            format!(
                "{replicas} replicas are connected, and --replicas-ack asks for {needed}: no lock is granted"
            )
        })
    }

    /// Whether it refuses whatever takes more memory, and so every new lock.
    pub(crate) fn is_full(&self) -> bool {
        self.max_memory > 0 && !self.evicts() && self.used_memory > self.max_memory
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some(Self(major, minor)),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What `CONFIG` says, which users may be forbidden to ask: `None` where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whether snapshots are taken by themselves.
    pub(crate) takes_snapshots: Option<bool>,
    /// When the append-only file is synced: `always`, `everysec` or `no`, also where it is not synced during a rewrite.
    pub(crate) append_fsync: Option<String>,
    /// How many replicas must keep up for writes: `min-replicas-to-write`.
    pub(crate) min_replicas: Option<u64>,
}

impl Config {
    pub(crate) async fn ask(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        let [mut first, mut second, mut third] = [(); 3].map(|()| connection.clone());
        let (snapshots, append_fsync, stops_in_rewrites, min_replicas) = tokio::try_join!(
            setting(&mut first, "save"),
            setting(&mut second, "appendfsync"),
            setting(&mut third, "no-appendfsync-on-rewrite"),
            min_replicas(connection),
        )?;
        let stops_in_rewrites = stops_in_rewrites.is_some_and(|word| word == "yes");
        let append_fsync = if stops_in_rewrites { Some("no".to_owned()) } else { append_fsync };
        Ok(Self { takes_snapshots: snapshots.map(|save| !save.is_empty()), append_fsync, min_replicas })
    }

    /// Asks again for what counts from the moment that it is set. Where it was not known, the user may be forbidden to ask.
    pub(super) async fn ask_again(self, connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        match self.min_replicas {
            Some(_) => Ok(Self { min_replicas: min_replicas(connection).await?, ..self }),
            None => Ok(self),
        }
    }
}

async fn min_replicas(connection: &mut MultiplexedConnection) -> RedisResult<Option<u64>> {
    let number = setting(connection, "min-replicas-to-write").await?;
    Ok(number.and_then(|number| number.parse().ok()))
}

async fn setting(connection: &mut MultiplexedConnection, name: &str) -> RedisResult<Option<String>> {
    let reply: RedisResult<HashMap<String, String>> =
        redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
    match reply {
        Ok(mut reply) => Ok(reply.remove(name)),
        // Forbidden, or renamed away.
        Err(error) if matches!(error.kind(), ErrorKind::Server(kind) if is_no_answer(kind)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_no_answer(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let parsed = ["6.0.16", "6.2.0", "6.2-rc1", "7.0.15", "10.1.1", "255.255.255", "", "seven", "7"];
        let parsed = parsed.map(Version::parse);
        assert_eq!(parsed[2], None, "a candidate for a release says nothing that could be relied on");
        assert_eq!(parsed[6..], [None; 3]);
        let known: Vec<_> = parsed[..6].iter().flatten().collect();
        assert!(known.len() == 5 && known.is_sorted(), "{known:?}");
        assert!(*known[0] < Version(6, 2) && *known[1] == Version(6, 2));
    }

    #[test]
    fn a_primary_is_guarded_if_it_stops_without_any_one_of_its_replicas() {
        let lacks = |replicas, good_replicas, min_replicas| {
            let profile = Profile { replicas, good_replicas, ..Profile::default() };
            let config = Config { min_replicas, ..Config::default() };
            profile.lacks_guard(&config).unwrap_or_default()
        };
        for (replicas, min_replicas) in [(0, Some(1)), (1, Some(1)), (1, None), (2, Some(2)), (2, Some(3))] {
            assert_eq!(lacks(replicas, Some(replicas), min_replicas), "", "{min_replicas:?} of {replicas}");
        }
        assert!(lacks(2, Some(2), Some(1)).contains("is 1, and 1 of 2 replicas may be cut off with"));
        assert!(lacks(3, Some(3), Some(2)).contains("is 2, and 2 of 3 replicas may be cut off with"));
        assert!(lacks(2, Some(2), None).contains("is at least 2, the number of replicas, is not known"));
        assert_eq!(lacks(2, None, Some(0)), "min-replicas-to-write is 0");
        assert_eq!(lacks(2, None, Some(2)), "min-replicas-max-lag is 0");
    }

    #[test]
    fn what_a_server_says_is_read_from_the_sections_of_its_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:0123456789abcdef0123\r\n\
                    # Replication\r\nrole:slave\r\nconnected_slaves:2\r\nmin_slaves_good_slaves:1\r\n\
                    master_replid:fedcba\r\n# Memory\r\nused_memory:1048600\r\nused_memory_human:1.00M\r\n\
                    mem_not_counted_for_evict:20\r\nmaxmemory:1048576\r\nmaxmemory_human:1.00M\r\n\
                    maxmemory_policy:volatile-ttl\r\n# Persistence\r\naof_enabled:1\r\n";
        let profile = Profile::read(info, false);
        assert_eq!((&*profile.product, profile.version), ("Redis 7.0.15", Some(Version(7, 0))));
        assert!(!profile.identity.is_primary && profile.is_cluster_node && profile.has_append_only_file);
        assert_eq!((profile.replicas, profile.good_replicas), (2, Some(1)));
        for (version, has_guard) in [("6.2.6", false), ("6.2.7", true), ("6.2.14", true), ("7.0.0", true)] {
            let info = info.replace("redis_version:7.0.15", &format!("redis_version:{version}"));
            let config = Config { min_replicas: Some(2), ..Config::default() };
            assert_eq!(Profile::read(&info, true).lacks_guard(&config).is_none(), has_guard, "{version}");
        }
        assert!(profile.evicts());
        assert!(!Profile { max_memory: 0, ..profile.clone() }.evicts(), "it has no reason to");
        assert!(!profile.is_full(), "it makes room");
        let full = Profile { eviction_policy: "noeviction".to_owned(), ..profile.clone() };
        assert_eq!((full.used_memory, full.is_full()), (1_048_580, true));
        assert!(!Profile { used_memory: 1_048_576, ..full.clone() }.is_full(), "what it may use is used");
        assert!(!Profile { max_memory: 0, ..full }.is_full(), "it may use all");
        assert_eq!(profile.identity.incarnation(), "0123456789abcdef0123-fedcba");
        for (now_us, is_past) in [(FencingToken::MAX, false), (FencingToken::MAX + 1, true)] {
            let profile = Profile::read(&format!("{info}server_time_usec:{now_us}\r\n"), false);
            assert_eq!(profile.is_past_numbers, is_past, "{now_us}");
        }
        let node = Profile::read(&format!("{info}cluster_state:fail\r\n"), true);
        assert_eq!(node.identity.check(true), Err("it says that the cluster is down"));
        assert_eq!(profile.identity.check(true), Ok(()));
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
        let valkey = Profile::read(valkey, false);
        assert_eq!((&*valkey.product, valkey.version), ("Valkey 8.0.1", Some(Version(7, 2))));
    }
}
