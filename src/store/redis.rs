//! The store on Redis: each operation is one atomic step of a script, and each script one round trip; but for locks with a
//! wait queue, a tombstone or terms, which `fast_path.rs` leaves to the script that knows all cases.
//!
//! Architecture invariant: nothing above this module knows `redis`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bb8_redis::bb8::{Pool, RunError};
use bb8_redis::{RedisConnectionManager, bb8};
use redis::Cmd;
use tokio::sync::{Mutex, broadcast};
use tokio::time::{Instant, timeout_at};

use self::address::Layout;
use self::connection::link::Link;
use self::connection::servers::Servers;
use self::failure::describe;
use self::fast_path::{FastPath, refused, replicated};
use self::health::preflight::Preflight;
use self::mode::Mode;
use self::pubsub::peer_bus::{PeerChannels, Publisher};
use self::pubsub::{Hints, MOST_HINTS};
use self::scripts::keys::KeySpace;
use self::scripts::{Reply, lease_of, lease_seen, queue_position_of, unexpected};
use super::{
    AcquireRequest, Beat, Bucket, Gossip, Hint, Intent, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer,
    StoreError,
};
use crate::lock::{
    Acquired, Attempt, Broken, Ended, FencingToken, Inspected, Lease, LockKey, Owner, Page, Reach, Release,
    Released, Renewed, TokenHash, Ttl, Undone,
};

pub(super) mod address;
pub(super) mod connection;
mod diagnostics;
mod exec;
pub(super) mod failure;
mod fast_path;
pub(super) mod health;
mod listing;
mod mode;
mod node;
pub(super) mod pubsub;
pub(super) mod scripts;
pub(super) mod settings;

pub use address::{AddressError, Credentials, RedisAddress, TCP_USER_TIMEOUT};
pub use diagnostics::diagnose;
pub use settings::{RedisSettings, Risk};

/// Connections for what must own one; no request for a lock ever waits for them.
const ADMIN_CONNECTIONS: u32 = 2;

/// How long the answer to "can it be used?" is given again.
const CHECK_HOLDS_FOR: Duration = Duration::from_secs(1);

/// Locks on Redis: one server, the primary that Sentinel names, or a cluster.
pub struct RedisStore {
    servers: Arc<Servers>,
    /// None where the address does not name the server itself.
    admin: Option<Pool<RedisConnectionManager>>,
    keys: KeySpace,
    hints: Hints,
    mark_ttl_ms: Arc<str>,
    ticket_ms: String,
    max_waiters_per_key: String,
    presence_life_ms: String,
    /// For each bucket, the answer to the last heartbeat that was answered, and the link over which it came.
    last_heartbeats: Mutex<HashMap<Bucket, (u64, String)>>,
    last_check: Mutex<Option<(Instant, Result<(), StoreError>)>>,
    publisher: Publisher,
    fast_path: FastPath,
}

impl RedisStore {
    /// Starts to connect in the background: a gateway may start before its Redis does.
    pub fn start(address: &RedisAddress, settings: &RedisSettings) -> Result<Self, AddressError> {
        let client = address.client(&address.nodes()[0])?;
        let preflight = Preflight::new(address, settings);
        let keys = preflight.keys().clone();
        let manager = RedisConnectionManager::new(client.get_connection_info().clone())
            .map_err(|error| AddressError::Unusable(describe(&error)))?;
        let admin = bb8::Builder::new()
            .max_size(ADMIN_CONNECTIONS)
            .connection_timeout(settings.reply_timeout)
            .build_unchecked(manager);
        // Random, so that no gateway is taken for the one that stood here before.
        let gateway = Attempt::generate().to_string().into();
        let peer_channels = PeerChannels::new(&keys, settings.reply_timeout);
        let hints =
            Hints { gateway, sender: broadcast::channel(MOST_HINTS).0, peer_channels: peer_channels.clone() };
        let servers = Arc::new(Servers::start(address, &preflight, settings.reply_timeout, &hints)?);
        Ok(Self {
            publisher: Publisher::new(peer_channels, servers.clone()),
            servers,
            admin: (*address.layout() == Layout::Server).then_some(admin),
            keys,
            hints,
            mark_ttl_ms: settings.mark_ttl.as_millis().to_string().into(),
            ticket_ms: settings.line.ticket_ttl.as_millis().to_string(),
            max_waiters_per_key: settings.line.max_waiters_per_key.to_string(),
            presence_life_ms: (settings.mark_ttl + settings.line.ticket_ttl).as_millis().to_string(),
            last_heartbeats: Mutex::default(),
            last_check: Mutex::new(None),
            fast_path: FastPath::new(),
        })
    }

    async fn check_now(&self, deadline: Instant) -> Result<(), StoreError> {
        self.servers.check(deadline).await?;
        let Some(admin) = &self.admin else { return Ok(()) };
        // A connection of its own: whether the server takes new ones is part of the question.
        match timeout_at(deadline, admin.get()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RunError::User(error))) => Err(StoreError::Unavailable(describe(&error))),
            Ok(Err(RunError::TimedOut)) | Err(_) => {
                Err(StoreError::Unavailable("Redis does not answer".into()))
            }
        }
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        if let Some(answer) = self.take_free(request, deadline).await? {
            return Ok(answer);
        }
        let queue = self.keys.queue_of(&request.key);
        let [lock, tickets, waiting, away, due, presence] = queue.in_order();
        let tombstone = self.keys.tombstone(&request.key, &request.token);
        let fence = self.keys.fence(self.keys.bucket_of(&request.key));
        let keys = [lock, tickets, waiting, away, due, presence, tombstone.as_bytes(), fence.as_bytes()];
        let token = request.token.to_string();
        let attempt = request.attempt.to_string();
        let mode = Mode::of(&request.intent);
        let owner = request.owner.as_ref().map_or("", Owner::as_str);
        let add_args = |link: &Link, call: &mut Cmd| {
            call.arg(&token).arg(&attempt).arg(&*self.mark_ttl_ms).arg(&self.ticket_ms);
            call.arg(mode.name).arg(request.ttl.as_ms()).arg(owner).arg(&link.incarnation);
            if mode.waits || !request.terms.are_none() {
                call.arg(&*self.hints.gateway).arg(&self.max_waiters_per_key);
                call.arg(&mode.supersedes).arg(&mode.place);
                call.arg(&scripts::terms(request.terms));
            }
        };
        let key = &request.key;
        let (bucket, grants) = (self.keys.bucket_of(key), request.intent != Intent::Confirm);
        let (reply, link): (Reply, _) =
            self.run_in(bucket, &scripts::ACQUIRE, grants, &keys, deadline, add_args).await?;
        match reply.outcome {
            outcome @ (0 | 1) => {
                let lease = lease_of(&reply, key)?;
                Ok(replicated(&link, lock, &token, lease, outcome == 0, deadline).await)
            }
            2 => refused(&reply, key),
            3 => Ok(Acquired::TokenReleased),
            4 => Ok(Acquired::AttemptVoided),
            5 => queue_position_of(&reply).map(Acquired::InLine),
            6 => queue_position_of(&reply).map(Acquired::Moved),
            7 => Ok(Acquired::PlaceLost),
            8 => Ok(Acquired::LineFull),
            other => Err(unexpected("acquire", other)),
        }
    }

    async fn renew(
        &self,
        key: &LockKey,
        token: &TokenHash,
        ttl: Ttl,
        by: Renewer,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let lock = self.keys.lock(key);
        let (token, by) = (token.to_string(), scripts::renewer(by));
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&token).arg(ttl.as_ms()).arg(&by);
        };
        let reply: Reply = self.run(key, &scripts::RENEW, &[lock.as_bytes()], deadline, add_args).await?;
        match reply.outcome {
            0 => lease_of(&reply, key).map(Renewed::Renewed),
            1 => Ok(Renewed::NotHeld),
            2 => Ok(Renewed::HeldByAnother),
            3 => lease_of(&reply, key).map(Renewed::MaxHoldReached),
            4 => Ok(Renewed::TakenOver),
            5 => Ok(Renewed::Released),
            other => Err(unexpected("renew", other)),
        }
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: ReleaseMark,
        deadline: Instant,
    ) -> Result<Release, StoreError> {
        let freed = (tombstone == ReleaseMark::Final).then(|| self.keys.tombstone(key, token));
        if let Some(fencing_token) = self.free_own(key, token, freed.as_deref(), deadline).await? {
            return Ok(Release {
                answer: Released::Released,
                ended: Some(Ended { fencing_token, kept_ms: 0 }),
            });
        }
        let reply: Reply =
            self.leave(&scripts::RELEASE, key, token, &Default::default(), freed, None, deadline).await?;
        let answer = match reply.outcome {
            0 => Released::Released,
            1 => Released::NotHeld,
            2 => Released::HeldByAnother,
            other => return Err(unexpected("release", other)),
        };
        let ended = |lease: Lease| Ended { fencing_token: lease.fencing_token, kept_ms: lease.left_ms };
        Ok(Release { answer, ended: reply.lease().map(ended) })
    }

    async fn take_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        place: PlaceAfter,
        known: KnownTo,
        deadline: Instant,
    ) -> Result<Undone, StoreError> {
        let (by, tombstone) =
            ([attempt.to_string(), scripts::known(known)], Some(self.keys.tombstone(key, token)));
        let reply: Reply =
            self.leave(&scripts::ROLL_BACK, key, token, &by, tombstone, Some(place), deadline).await?;
        reply.rolled_back().ok_or_else(|| unexpected("take_back", reply.outcome))
    }

    async fn decline(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (by, place) = ([attempt.to_string(), String::new()], Some(PlaceAfter::Kept));
        self.leave::<Reply>(&scripts::ROLL_BACK, key, token, &by, None, place, deadline).await.map(drop)
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.keys.bucket_of(key)
    }

    async fn beat(&self, bucket: Bucket, deadline: Instant) -> Result<Beat, StoreError> {
        let (presence, due) = (self.keys.presence(bucket), self.keys.due(bucket));
        let last = self.last_heartbeats.lock().await.get(&bucket).cloned();
        let add_args = |link: &Link, call: &mut Cmd| {
            // Over another connection the gateway is as good as new: its hints, and a failover's last writes, are lost.
            let heartbeat_number = last.as_ref().filter(|(session, _)| *session == link.session);
            call.arg(&*self.hints.gateway)
                .arg(&self.presence_life_ms)
                .arg(heartbeat_number.map_or("", |(_, heartbeat_number)| heartbeat_number));
        };
        let keys = [presence.as_bytes(), due.as_bytes()];
        let (reply, link): (Vec<redis::Value>, _) =
            self.run_in(bucket, &scripts::HEARTBEAT, false, &keys, deadline, add_args).await?;
        let (heartbeat_number, beat) = scripts::read_heartbeat(reply, |lock| self.keys.key_of(lock))
            .ok_or_else(|| StoreError::Unknown("the reply to a heartbeat cannot be read".into()))?;
        // Before anybody joins, or comes back, because of this beat.
        link.listen(bucket, deadline).await;
        self.last_heartbeats.lock().await.insert(bucket, (link.session, heartbeat_number));
        Ok(beat)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.sender.subscribe()
    }

    fn gossip(&self) -> Option<&dyn Gossip> {
        Some(&self.publisher)
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Inspected, StoreError> {
        let queue = self.keys.queue_of(key);
        let [lock, _, waiting, away, ..] = queue.in_order();
        let shown = token.map(ToString::to_string).unwrap_or_default();
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&shown);
        };
        let reply: Reply =
            self.run(key, &scripts::INSPECT, &[lock, waiting, away], deadline, add_args).await?;
        let waiters = reply.waiters();
        let held = |lease, yours| Ok(Inspected::Held { lease, yours, waiters });
        match reply.outcome {
            0 => Ok(Inspected::Free { waiters }),
            1 => held(lease_seen(&reply, key)?, token.map(|_| false)),
            // It may have been pinned.
            2 => held(lease_of(&reply, key)?, Some(true)),
            other => Err(unexpected("inspect", other)),
        }
    }

    async fn break_lock(
        &self,
        key: &LockKey,
        fence: FencingToken,
        deadline: Instant,
    ) -> Result<Broken, StoreError> {
        let queue = self.keys.queue_of(key);
        let number = fence.get().to_string();
        let args = ["", "", &self.mark_ttl_ms, &self.ticket_ms, &number];
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&args);
        };
        let reply: Reply = self.run(key, &scripts::BREAK, &queue.in_order(), deadline, add_args).await?;
        match reply.outcome {
            0 => lease_of(&reply, key).map(Broken::Broken),
            1 => Ok(Broken::NotHeld),
            2 => Ok(Broken::HeldByAnother),
            other => Err(unexpected("break", other)),
        }
    }

    async fn list(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Page, StoreError> {
        self.list_page(reach, cursor, limit, deadline).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.servers.check(deadline).await?;
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
        self.servers.stop();
    }
}
