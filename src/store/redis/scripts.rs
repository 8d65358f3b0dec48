//! The Lua scripts, how they are called, and how their replies are read.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, ParsingError, RedisResult, ServerErrorKind, Value};

use crate::lock::{FencingToken, Lease, Owner};

pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("lock.lua"), include_str!("fence.lua"), include_str!("acquire.lua")))
});
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("lock.lua"), include_str!("renew.lua"))));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("lock.lua"), include_str!("release.lua"))));
pub(super) static TAKE_BACK: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("lock.lua"), include_str!("take_back.lua"))));
pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("lock.lua"), include_str!("inspect.lua"))));
pub(super) static LEARN: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("fence.lua"), include_str!("learn.lua"))));

/// Where the fencing number begins in a lock's value: behind the token hash, the attempt and two spaces.
const NUMBER_AT: usize = 98;

/// One script: one atomic step, one round trip.
pub(super) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    /// Calls the script by its hash, and sends its text where the server does not know it (restart, failover,
    /// `SCRIPT FLUSH`). A `NOSCRIPT` did nothing, so the second call is no repetition.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> RedisResult<T> {
        let call = |command: &str, script: &str| {
            let mut call = redis::cmd(command);
            call.arg(script).arg(keys.len()).arg(keys).arg(args);
            call
        };
        match call("EVALSHA", &self.hash).query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                call("EVAL", self.code).query_async(connection).await
            }
            reply => reply,
        }
    }
}

/// What acquire, renew and inspect reply: an outcome by number, and for most outcomes the lock.
pub(super) struct Reply {
    pub(super) outcome: i64,
    lock: Option<(Vec<u8>, i64)>,
}

impl Reply {
    /// The lease in the reply; `None` where there is none, or the key holds something that no script of ours wrote.
    pub(super) fn lease(&self) -> Option<Lease> {
        let (lock, left_ms) = self.lock.as_ref()?;
        let text = std::str::from_utf8(lock.get(NUMBER_AT..)?).ok()?;
        let (number, owner) = text.split_once(' ')?;
        Some(Lease {
            fencing_token: FencingToken::new(number.parse().ok()?)?,
            left_ms: u64::try_from(*left_ms).unwrap_or(0),
            owner: Owner::parse(owner.as_bytes()).ok()?,
        })
    }
}

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let outcome = fields.next().map_or(Err("an empty reply".into()), i64::from_redis_value)?;
        let lock = match (fields.next(), fields.next()) {
            (Some(lock), Some(left_ms)) => {
                Some((Vec::<u8>::from_redis_value(lock)?, i64::from_redis_value(left_ms)?))
            }
            _ => None,
        };
        Ok(Self { outcome, lock })
    }
}
