//! What the gateway's user may do on a server, and what it lacks.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, Value};

use super::loading::Loading;
use crate::lock::{FencingToken, LockKey, TokenHash};
use crate::store::Bucket;
use crate::store::redis::failure::Failure;
use crate::store::redis::scripts::keys::KeySpace;

const SCRIPT: &str = include_str!("permissions.lua");

/// As in `fence.lua`.
const NO_NUMBER: &str =
    "fencing tokens end in June 2255, and the clock of the server is past that, or was: set it right";

/// What the scripts call, each with as many arguments as it must have; `*` is a key.
pub(super) const BY_SCRIPTS: &[&str] = &[
    "DEL *",
    "EXISTS *",
    "GET *",
    "HDEL * field",
    "HGET * field",
    "HGETALL *",
    "HINCRBY * field 1",
    "HMGET * field",
    "HSET * field value",
    "MGET *",
    "PEXPIRE * 1",
    "PTTL *",
    "SET * value",
    "TIME",
    "ZADD * 1 member",
    "ZCARD *",
    "ZINCRBY * 1 member",
    "ZMSCORE * member",
    "ZRANGE * 0 1",
    "ZRANGEBYSCORE * 0 1",
    "ZRANK * member",
    "ZREM * member",
    "ZREMRANGEBYSCORE * 0 1",
    "ZSCORE * member",
];
/// What else the gateway calls.
const BY_GATEWAY: &[&str] = &["EVAL return 0", "EVALSHA hash 0", "INFO", "PING"];
/// What else it calls where there is a cluster.
const ON_CLUSTER: &[&str] = &["ASKING", "CLUSTER INFO", "CLUSTER SLOTS"];

/// What else it calls where replicas must acknowledge a lock.
const WITH_REPLICAS: &[&str] = &["WAIT 1 1"];

/// What a user lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permissions {
    /// Commands and keys without which locks cannot be kept.
    pub(crate) lacking: Vec<String>,
    /// Whether gateways can be told whose turn it is; without it waiting is slower.
    pub(crate) has_hints: bool,
    /// Whether gateways can tell each other what happens.
    pub(crate) has_peer_channels: bool,
    /// Whether locks may be listed; all else works without it.
    pub(crate) may_list: bool,
    /// Commands without which records cannot be kept; all else works without them.
    pub(crate) lacking_for_records: Vec<String>,
    /// Whether the configuration may be read; `None` where the server cannot say.
    pub(crate) may_read_config: Option<bool>,
    /// What becomes of the append-only file at a restart, which rests on what another user may do.
    pub(crate) loading: Loading,
}

/// What the script replies.
type Reply = (i64, i64, i64, i64, i64, Vec<String>, Vec<String>, Vec<String>);

impl Permissions {
    /// Asks a server what the user of this connection lacks, and whether it may ask what others may do. Servers before 7.0 cannot
    /// say: there it lacks nothing.
    pub(crate) async fn ask(
        connection: &mut MultiplexedConnection,
        keys: &KeySpace,
        on_cluster: bool,
        with_replicas: bool,
    ) -> RedisResult<(Self, bool)> {
        let samples = samples(keys);
        // By its text, although it is called again and again: whether `EVALSHA` is allowed is among the questions.
        let mut call = redis::cmd("EVAL");
        call.arg(SCRIPT)
            .arg(0)
            .arg(keys.channel(Bucket::default(), "preflight"))
            .arg(&keys.peer_channels())
            .arg(&records(keys))
            .arg(samples.len())
            .arg(&samples);
        call.arg(BY_SCRIPTS).arg(BY_GATEWAY).arg(if on_cluster { ON_CLUSTER } else { &[] });
        call.arg(if with_replicas { WITH_REPLICAS } else { &[] });
        let unsaid = Self {
            lacking: Vec::new(),
            has_hints: true,
            has_peer_channels: true,
            may_list: true,
            lacking_for_records: Vec::new(),
            may_read_config: None,
            loading: Loading::All,
        };
        match call.query_async::<Value>(connection).await {
            // Such a server loads its file without asking what anybody may do.
            Ok(Value::Array(reply)) if reply.is_empty() => Ok((unsaid, false)),
            Ok(reply) => Ok(Self::read(Reply::from_redis_value(reply)?, keys)),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Ok((Self { lacking: vec!["eval".to_owned()], ..unsaid }, false))
            }
            Err(error) => Err(error),
        }
    }

    /// What the reply says of the user, and whether it may ask what others may do.
    fn read(
        (
            has_hints,
            has_peer_channels,
            may_read_config,
            may_ask,
            may_list,
            lacking_for_records,
            calls,
            lacking,
        ): Reply,
        keys: &KeySpace,
    ) -> (Self, bool) {
        let with_key = |call: &&str| call.contains('*');
        let lacks_all = calls.iter().map(String::as_str).filter(with_key).count()
            == BY_SCRIPTS.iter().copied().filter(with_key).count();
        let mut names: Vec<_> =
            calls.iter().filter(|call| !lacks_all || !call.contains('*')).map(|call| name_of(call)).collect();
        if lacks_all {
            // The prefix ends where the hash tag begins.
            let fence = keys.fence(Bucket::default());
            let prefix = fence.split('{').next().unwrap_or_default();
            names.push(format!("~{prefix}*, or all commands on it"));
        }
        names.extend(lacking.into_iter().map(|key| format!("~{key}")));
        let permissions = Self {
            lacking: names,
            has_hints: has_hints == 1,
            has_peer_channels: has_peer_channels == 1,
            may_list: may_list == 1,
            lacking_for_records,
            may_read_config: Some(may_read_config == 1),
            loading: Loading::Unknown,
        };
        (permissions, may_ask == 1)
    }
}

/// Why the server grants nothing: it cannot save what is written, or too few replicas keep up, or its fencing tokens are used up. It
/// is asked to delete a key that never exists. In a script, a server of a Cluster says so whatever slot the key is in.
pub(super) async fn refusal_of_writes(
    connection: &mut MultiplexedConnection,
    keys: &KeySpace,
) -> RedisResult<Option<String>> {
    let Ok(key) = LockKey::parse(b"preflight") else { return Ok(None) };
    let never = keys.tombstone(&key, &TokenHash::NOBODY);
    let script = "redis.call('DEL', ARGV[1]) return redis.call('HGETALL', ARGV[2])";
    let asked = redis::cmd("EVAL").arg(script).arg(0).arg(never).arg(keys.fence(Bucket::default())).take();
    match asked.query_async::<Vec<String>>(connection).await {
        Ok(fence) => Ok(fence.contains(&FencingToken::MAX.to_string()).then(|| NO_NUMBER.to_owned())),
        Err(error) if error.code().is_none() => Err(error),
        Err(error) => {
            let Failure { reason, .. } = Failure::of(&error);
            Ok(["MISCONF", "NOREPLICAS"].iter().any(|code| reason.contains(code)).then_some(reason))
        }
    }
}

/// What the command of a call is called in a permission.
fn name_of(call: &str) -> String {
    let words = call.split(' ').take_while(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()));
    words.collect::<Vec<_>>().join("|").to_lowercase()
}

/// The key of a record, and where a result is put aside for it.
pub(super) fn records(keys: &KeySpace) -> [String; 2] {
    LockKey::parse(b"preflight")
        .map(|key| [keys.once(&key), keys.aside(&key, "preflight")])
        .unwrap_or_default()
}

/// A key of each kind that locks need, always the same: what is said of a server is compared with what was said before.
pub(super) fn samples(keys: &KeySpace) -> Vec<String> {
    let Ok(key) = LockKey::parse(b"preflight") else { return Vec::new() };
    let queue = keys.queue_of(&key);
    let tombstone = keys.tombstone(&key, &TokenHash::NOBODY);
    let fence = keys.fence(Bucket::default());
    let others = [tombstone.as_bytes(), fence.as_bytes()];
    let all = queue.in_order().into_iter().chain(others);
    all.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// What a text calls, where each call begins with one of these.
    fn calls(text: &str, beginnings: &[&str]) -> BTreeSet<String> {
        let rest = beginnings.iter().flat_map(|beginning| text.split(beginning).skip(1));
        let names = rest.map(|rest| rest.split(['\'', '"']).next().unwrap_or_default());
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn every_command_that_is_called_is_asked_for() {
        let mut called = BTreeSet::new();
        let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store")];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("lua") => called.extend(calls(code, &["redis.call('", "redis.pcall('"])),
                _ => called.extend(calls(code, &["cmd(\"", "call(\""])),
            }
        }
        // These are no reason to refuse: without channels waiting is slower, a configuration, a list and what another user may
        // do are only a help, and locks need no records.
        let optional = [
            "ACL",
            "CONFIG",
            "GETRANGE",
            "PUBLISH",
            "RENAME",
            "SCAN",
            "SETRANGE",
            "SPUBLISH",
            "STRLEN",
            "SUBSCRIBE",
            "SSUBSCRIBE",
        ];
        // Sentinels have users of their own.
        let elsewhere = ["SENTINEL"];
        for name in optional.iter().chain(&elsewhere) {
            assert!(called.remove(*name), "{name} is called no more");
        }
        let asked: Vec<_> = [BY_SCRIPTS, BY_GATEWAY, ON_CLUSTER, WITH_REPLICAS].concat();
        let names: BTreeSet<_> =
            asked.iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(called, names);
        assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), asked.len(), "each is named once: {asked:?}");
    }
}
