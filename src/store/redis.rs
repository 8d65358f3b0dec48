//! The store on one Redis server: each operation is one script, and each script one round trip.
//!
//! Architecture invariant: nothing above this module knows `redis`.

use std::time::Duration;

use async_trait::async_trait;
use bb8_redis::bb8::{Pool, RunError};
use bb8_redis::{RedisConnectionManager, bb8};
use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use self::keys::KeySpace;
use self::link::{Link, Supervisor, describe, info_field};
use self::scripts::{Reply, Script};
use super::{AcquireRequest, Intent, LockStore, ReleaseMark, StoreError};
use crate::lock::{Acquired, Attempt, Inspected, Lease, LockKey, Released, Renewed, TokenHash, Ttl};

mod address;
mod keys;
mod link;
mod scripts;

pub use address::{AddressError, RedisAddress, TCP_USER_TIMEOUT};

/// Connections for what must own one; no request for a lock ever waits for them.
const ADMIN_CONNECTIONS: u32 = 2;

/// How long the answer to "can it be used?" is given again.
const CHECK_HOLDS_FOR: Duration = Duration::from_secs(1);

/// How a Redis store behaves.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// What every key of ours begins with.
    pub prefix: String,
    /// How long connecting, and each look at the server, may take.
    pub reply_timeout: Duration,
    /// How long a freed token and a voided attempt are remembered: longer than any copy of a command can be late.
    pub mark_ttl: Duration,
}

/// Locks on one Redis server.
pub struct RedisStore {
    supervisor: Supervisor,
    admin: Pool<RedisConnectionManager>,
    keys: KeySpace,
    mark_ttl_ms: String,
    last_check: Mutex<Option<(Instant, Result<(), StoreError>)>>,
}

impl RedisStore {
    /// Starts to connect in the background: a gateway may start before its Redis does.
    pub fn start(address: &RedisAddress, settings: &RedisSettings) -> Result<Self, AddressError> {
        let client = address.client()?;
        let keys = KeySpace::new(&settings.prefix);
        let manager = RedisConnectionManager::new(client.get_connection_info().clone())
            .map_err(|error| AddressError::Unusable(describe(&error)))?;
        let admin = bb8::Builder::new()
            .max_size(ADMIN_CONNECTIONS)
            .connection_timeout(settings.reply_timeout)
            .build_unchecked(manager);
        Ok(Self {
            supervisor: Supervisor::start(client, keys.clone(), settings.reply_timeout),
            admin,
            keys,
            mark_ttl_ms: settings.mark_ttl.as_millis().to_string(),
            last_check: Mutex::new(None),
        })
    }

    async fn check_now(&self, deadline: Instant) -> Result<(), StoreError> {
        self.supervisor.link(deadline).await?;
        // A connection of its own: whether the server takes new ones is part of the question.
        let ask = async {
            let mut connection = self.admin.get().await?;
            let info: String = redis::cmd("INFO")
                .arg("memory")
                .query_async(&mut *connection)
                .await
                .map_err(RunError::User)?;
            Ok(info)
        };
        let info = match timeout_at(deadline, ask).await {
            Ok(Ok(info)) => info,
            Ok(Err(RunError::User(error))) => return Err(StoreError::Unavailable(describe(&error))),
            Ok(Err(RunError::TimedOut)) | Err(_) => {
                return Err(StoreError::Unavailable("Redis does not answer".into()));
            }
        };
        let bounded = info_field(&info, "maxmemory").is_some_and(|bytes| bytes != "0");
        match info_field(&info, "maxmemory_policy") {
            Some(policy) if bounded && policy != "noeviction" => Err(StoreError::Unavailable(format!(
                "Redis may evict held locks: its maxmemory-policy is {policy}, and must be noeviction"
            ))),
            _ => Ok(()),
        }
    }

    /// Runs a script on the current connection and says what became of it.
    async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        deadline: Instant,
    ) -> Result<T, StoreError> {
        let mut connection = link.connection.clone();
        let failure = match timeout_at(deadline, script.run(&mut connection, keys, args)).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => Failure::of(&error),
            // The reply may still come, and would then be taken for that of a later command.
            Err(_) => Failure {
                error: StoreError::Unknown("Redis did not answer in time".into()),
                breaks_link: true,
            },
        };
        if failure.breaks_link {
            link.report_broken();
        }
        Err(failure.error)
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        let link = self.supervisor.link(deadline).await?;
        let lock = self.keys.lock(&request.key);
        let mark = self.keys.mark(&request.key, &request.token);
        let token = request.token.to_string();
        let attempt = request.attempt.to_string();
        let ttl_ms = request.ttl.as_ms().to_string();
        let owner = request.owner.as_ref().map_or("", |owner| owner.as_str());
        let may_grant = if request.intent == Intent::Grant { "1" } else { "0" };
        let reply: Reply = self
            .run(
                &link,
                &scripts::ACQUIRE,
                &[lock.as_bytes(), mark.as_bytes(), self.keys.fence().as_bytes()],
                &[
                    token.as_bytes(),
                    attempt.as_bytes(),
                    ttl_ms.as_bytes(),
                    owner.as_bytes(),
                    link.incarnation.as_bytes(),
                    may_grant.as_bytes(),
                ],
                deadline,
            )
            .await?;
        match reply.outcome {
            0 => lease_of(&reply, &request.key).map(Acquired::Granted),
            1 => lease_of(&reply, &request.key).map(Acquired::AlreadyHeld),
            2 => lease_of(&reply, &request.key).map(Acquired::HeldByAnother),
            3 => Ok(Acquired::TokenReleased),
            4 => Ok(Acquired::AttemptVoided),
            other => Err(unexpected("acquire", other)),
        }
    }

    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let link = self.supervisor.link(deadline).await?;
        let lock = self.keys.lock(key);
        let token = token.to_string();
        let ttl_ms = ttl.as_ms().to_string();
        let args = [token.as_bytes(), ttl_ms.as_bytes()];
        let reply: Reply = self.run(&link, &scripts::RENEW, &[lock.as_bytes()], &args, deadline).await?;
        match reply.outcome {
            0 => lease_of(&reply, key).map(Renewed::Renewed),
            1 => Ok(Renewed::NotHeld),
            2 => Ok(Renewed::HeldByAnother),
            other => Err(unexpected("renew", other)),
        }
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        mark: ReleaseMark,
        deadline: Instant,
    ) -> Result<Released, StoreError> {
        let link = self.supervisor.link(deadline).await?;
        let lock = self.keys.lock(key);
        let freed = self.keys.mark(key, token);
        let token = token.to_string();
        let keys = [lock.as_bytes(), freed.as_bytes()];
        // A key that a script does not touch is not declared: it could stand in the way on a cluster.
        let keys = if mark == ReleaseMark::Final { &keys[..] } else { &keys[..1] };
        let args = [token.as_bytes(), self.mark_ttl_ms.as_bytes()];
        match self.run(&link, &scripts::RELEASE, keys, &args, deadline).await? {
            0 => Ok(Released::Released),
            1 => Ok(Released::NotHeld),
            2 => Ok(Released::HeldByAnother),
            other => Err(unexpected("release", other)),
        }
    }

    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let link = self.supervisor.link(deadline).await?;
        let lock = self.keys.lock(key);
        let mark = self.keys.mark(key, token);
        let token = token.to_string();
        let attempt = attempt.to_string();
        let args = [token.as_bytes(), attempt.as_bytes(), self.mark_ttl_ms.as_bytes()];
        let keys = [lock.as_bytes(), mark.as_bytes()];
        self.run(&link, &scripts::TAKE_BACK, &keys, &args, deadline).await
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError> {
        let link = self.supervisor.link(deadline).await?;
        let lock = self.keys.lock(key);
        let shown = token.map(ToString::to_string);
        let args: Vec<&[u8]> = shown.iter().map(|token| token.as_bytes()).collect();
        let reply: Reply = self.run(&link, &scripts::INSPECT, &[lock.as_bytes()], &args, deadline).await?;
        match reply.outcome {
            0 => Ok(Inspected::Free),
            1 => Ok(Inspected::Held { lease: lease_of(&reply, key)?, yours: token.map(|_| false) }),
            2 => Ok(Inspected::Held { lease: lease_of(&reply, key)?, yours: Some(true) }),
            other => Err(unexpected("inspect", other)),
        }
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.supervisor.link(deadline).await?;
        // One look at a time, and one for all who ask within a second: probes must not keep each other waiting.
        let Ok(mut last) = timeout_at(deadline, self.last_check.lock()).await else {
            return Err(StoreError::Unavailable("Redis does not answer".into()));
        };
        if let Some((at, answer)) = &*last
            && at.elapsed() < CHECK_HOLDS_FOR
        {
            return answer.clone();
        }
        let answer = self.check_now(deadline).await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn close(&self) {
        self.supervisor.stop();
    }
}

/// What an error of the driver means for the request, and for the connection.
struct Failure {
    error: StoreError,
    breaks_link: bool,
}

impl Failure {
    fn of(error: &RedisError) -> Self {
        let reason = format!("Redis: {}", describe(error));
        let code = error.code().unwrap_or_default();
        match error.kind() {
            // The server's state speaks here, before the first write of a script: certainly nothing happened.
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ) => Self { error: StoreError::Unavailable(reason), breaks_link: true },
            ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::NoScript) => {
                Self { error: StoreError::Unavailable(reason), breaks_link: false }
            }
            _ if matches!(code, "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "WRONGTYPE") => {
                Self { error: StoreError::Unavailable(reason), breaks_link: false }
            }
            _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
                Self { error: StoreError::Unavailable(reason), breaks_link: true }
            }
            // A script that errs keeps what it wrote.
            ErrorKind::Server(_) | ErrorKind::Extension => {
                Self { error: StoreError::Unknown(reason), breaks_link: false }
            }
            // One error stands for "never queued" and "sent, and the driver died": only the worse is safe.
            _ => Self { error: StoreError::Unknown(reason), breaks_link: true },
        }
    }
}

fn lease_of(reply: &Reply, key: &LockKey) -> Result<Lease, StoreError> {
    // Nothing of ours writes such a value, so nothing of ours was changed either.
    reply.lease().ok_or_else(|| {
        StoreError::Unavailable(format!(
            "what Redis holds for {:?} was not written by a gateway",
            key.as_str()
        ))
    })
}

fn unexpected(script: &str, outcome: i64) -> StoreError {
    StoreError::Unknown(format!(
        "the script {script} replied {outcome}, which no gateway of this version knows"
    ))
}
