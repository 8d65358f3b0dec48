//! The store on Redis: each operation is one atomic step of a script, and each script is one round trip. Two exceptions:
//! if a lock has a wait queue, a tombstone or terms, `fast_path.rs` leaves it to the general script; and long results are
//! sent and read by a command of their own.
//!
//! Architecture invariant: nothing above this module knows `redis`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{self, BoxFuture, FutureExt, TryFutureExt};
use redis::Cmd;
use tokio::sync::{Mutex, broadcast};
use tokio::time::Instant;

use self::connection::link::Link;
use self::connection::servers::Servers;
use self::fast_path::{FastPath, renewed_in};
use self::health::preflight::Preflight;
use self::pubsub::peer_bus::{PeerChannels, Publisher};
use self::pubsub::{Hints, MOST_HINTS};
use self::scripts::keys::KeySpace;
use self::scripts::{ScriptReply, lease_of, lease_seen, unexpected};
use super::{
    Break, Bucket, HeartbeatAnswer, Hint, Inspect, LockStore, PassOn, PeerBus, Release, Renew, Renewer,
    Reply, Replying, Request, RollBack, StoreError, TicketAfter, Tombstone,
};
use crate::lock::{
    Attempt, Broken, Ended, Inspected, Lease, LockKey, ReleaseEffect, Released, Renewed, RolledBack, Sharing,
};

mod acquiring;
pub(super) mod address;
pub(super) mod client;
pub(super) mod connection;
mod diagnostics;
mod exec;
pub(super) mod failure;
pub(crate) mod fast_path;
pub(super) mod health;
mod listing;
mod node;
mod once;
pub(super) mod pubsub;
pub(super) mod scripts;
pub(super) mod settings;

pub use address::{AddressError, Credentials, RedisAddress, TCP_USER_TIMEOUT};
pub use client::{ByteStream, Network};
pub use diagnostics::diagnose;
pub use settings::{OnceMemory, RedisSettings, Risk};

/// Locks on Redis: one server, the primary that Sentinel names, or a cluster.
pub struct RedisStore {
    servers: Arc<Servers>,
    keys: KeySpace,
    hints: Hints,
    mark_ttl_ms: Arc<str>,
    ticket_ms: String,
    max_waiters_per_key: String,
    presence_life_ms: String,
    /// For each bucket, the answer to the last heartbeat that was answered, and the link over which it came.
    last_heartbeats: Mutex<HashMap<Bucket, (u64, String)>>,
    publisher: Publisher,
    fast_path: FastPath,
}

impl RedisStore {
    /// Starts to connect in the background: a gateway may start before its Redis does.
    pub fn start(address: &RedisAddress, settings: &RedisSettings) -> Result<Self, AddressError> {
        let preflight = Preflight::new(address, settings);
        let keys = preflight.keys().clone();
        // Random, so that no gateway is taken for the one that stood here before.
        let gateway = Attempt::generate().to_string().into();
        let peer_channels = PeerChannels::new(&keys, settings.reply_timeout);
        let hints =
            Hints { gateway, sender: broadcast::channel(MOST_HINTS).0, peer_channels: peer_channels.clone() };
        let servers = Arc::new(Servers::start(address, &preflight, settings.reply_timeout, &hints)?);
        Ok(Self {
            publisher: Publisher::new(peer_channels, servers.clone()),
            servers,
            keys,
            hints,
            mark_ttl_ms: settings.mark_ttl.as_millis().to_string().into(),
            ticket_ms: settings.line.ticket_ttl.as_millis().to_string(),
            max_waiters_per_key: settings.line.max_waiters_per_key.to_string(),
            presence_life_ms: (settings.mark_ttl + settings.line.ticket_ttl).as_millis().to_string(),
            last_heartbeats: Mutex::default(),
            fast_path: FastPath::new(),
        })
    }

    async fn renew(&self, request: &Renew, deadline: Instant) -> Result<Renewed, StoreError> {
        let Renew { key, token, ttl, by } = request;
        if *by == Renewer::Token
            && let Some(lease) = self.renew_own_slot(key, token, ttl.as_ms(), deadline).await?
        {
            return Ok(Renewed::Renewed(lease));
        }
        let is_to_be_told = matches!(by, Renewer::NewConnection(_));
        let (token, by) = (token.to_string(), scripts::renewer(*by));
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&token).arg(ttl.as_ms()).arg(&by);
        };
        let renew_slot = async || -> Result<(ScriptReply, Arc<Link>), StoreError> {
            let (bucket, keys) = (self.keys.bucket_of(key), self.keys.queue_of(key));
            self.run_in(bucket, &scripts::RENEW_SLOT, false, &keys.in_order(), deadline, add_args).await
        };
        let is_renewed = |reply: &ScriptReply| matches!(reply.outcome, 0 | 3);
        let shared_keys = &self.fast_path.shared_keys;
        let slot = if shared_keys.has(key.as_str()) { Some(renew_slot().await?) } else { None };
        let ((reply, link), is_slot) = match slot.filter(|(reply, _)| is_renewed(reply)) {
            Some(slot) => (slot, true),
            None => {
                let lock = self.renew_lock(key, &token, ttl.as_ms(), &by, deadline).await?;
                // It knows no locks that several hold, and says of them that they have no holder. Neither does it know whether what
                // is not its token's can be read.
                if matches!(lock.0.outcome, 1 | 2) { (renew_slot().await?, true) } else { (lock, false) }
            }
        };
        if is_slot && is_renewed(&reply) {
            shared_keys.note(key.as_str());
        }
        if is_to_be_told && is_renewed(&reply) {
            self.renewal_replicated(&reply, &link, key, &token, deadline).await?;
        }
        renewed_in(&reply, key)
    }

    async fn release(&self, request: &Release, deadline: Instant) -> Result<ReleaseEffect, StoreError> {
        let Release { key, token, tombstone } = request;
        let freed = (*tombstone == Tombstone::Final).then(|| self.keys.tombstone(key, token));
        let ended = match self.free_own(key, token, freed.as_deref(), deadline).await? {
            None => self.free_slot(key, token, freed.as_deref(), deadline).await?,
            ended => ended,
        };
        if let Some(fencing_token) = ended {
            return Ok(ReleaseEffect {
                answer: Released::Released,
                ended: Some(Ended { fencing_token, kept_ms: 0 }),
            });
        }
        let reply: ScriptReply =
            self.leave(&scripts::RELEASE, key, token, &Default::default(), freed, None, deadline).await?;
        let answer = match reply.outcome {
            0 => Released::Released,
            1 => Released::NotHeld,
            2 => Released::HeldByAnother,
            other => return Err(unexpected("release", other)),
        };
        let ended = |lease: Lease| Ended { fencing_token: lease.fencing_token, kept_ms: lease.left_ms };
        Ok(ReleaseEffect { answer, ended: reply.lease().map(ended) })
    }

    async fn roll_back(&self, request: &RollBack, deadline: Instant) -> Result<RolledBack, StoreError> {
        let RollBack { key, token, attempt, ticket, known } = request;
        let by = [attempt.to_string(), scripts::known(*known)];
        let tombstone = Some(self.keys.tombstone(key, token));
        let reply: ScriptReply =
            self.leave(&scripts::ROLL_BACK, key, token, &by, tombstone, Some(*ticket), deadline).await?;
        reply.rolled_back().ok_or_else(|| unexpected("take_back", reply.outcome))
    }

    async fn pass_on(&self, request: &PassOn, deadline: Instant) -> Result<Option<Duration>, StoreError> {
        let PassOn { key, token, attempt } = request;
        let (by, ticket) = ([attempt.to_string(), String::new()], Some(TicketAfter::Kept));
        let reply: ScriptReply =
            self.leave(&scripts::ROLL_BACK, key, token, &by, None, ticket, deadline).await?;
        // For how long the ticket is kept, if the offer was passed on.
        Ok(reply.field(1).map(Duration::from_millis))
    }

    async fn heartbeat(&self, bucket: Bucket, deadline: Instant) -> Result<HeartbeatAnswer, StoreError> {
        let (presence, due) = (self.keys.presence(bucket), self.keys.due(bucket));
        let last = self.last_heartbeats.lock().await.get(&bucket).cloned();
        let add_args = |link: &Link, call: &mut Cmd| {
            // Over another connection the gateway is as good as new: its hints, and a failover's last writes, are lost.
            let number = last.as_ref().filter(|(session, _)| *session == link.session);
            call.arg(&*self.hints.gateway)
                .arg(&self.presence_life_ms)
                .arg(number.map_or("", |(_, number)| number));
        };
        let keys = [presence.as_bytes(), due.as_bytes()];
        let (reply, link): (Vec<redis::Value>, _) =
            self.run_in(bucket, &scripts::HEARTBEAT, false, &keys, deadline, add_args).await?;
        let (number, answer) = scripts::read_heartbeat(reply, |lock| self.keys.key_of(lock))
            .ok_or_else(|| StoreError::Unknown("the reply to a heartbeat cannot be read".into()))?;
        // Before any request enqueues, or is put back, because of this heartbeat.
        link.listener.listen(bucket, deadline).await;
        self.last_heartbeats.lock().await.insert(bucket, (link.session, number));
        Ok(answer)
    }

    async fn inspect(&self, request: &Inspect, deadline: Instant) -> Result<Inspected, StoreError> {
        let Inspect { key, token } = request;
        let queue = self.keys.queue_of(key);
        let [lock, _, waiting, away, _, _, held, ends, wide] = queue.in_order();
        let keys = [lock, waiting, away, held, ends, wide];
        let shown = token.as_ref().map(ToString::to_string).unwrap_or_default();
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&shown);
        };
        let reply: ScriptReply = self.run_script(key, &scripts::INSPECT, &keys, deadline, add_args).await?;
        let waiters = reply.waiters();
        let sharing = reply.sharing(3).and_then(|Sharing { held, slots, .. }| {
            let holders = reply.sharers()?;
            Some(Sharing { held, slots, holders })
        });
        let held = |lease, yours| Ok(Inspected::Held { lease, yours, sharing, waiters });
        match reply.outcome {
            0 => Ok(Inspected::Free { waiters }),
            1 => held(lease_seen(&reply, key)?, token.map(|_| false)),
            // It may have been pinned.
            2 => held(lease_of(&reply, key)?, Some(true)),
            other => Err(unexpected("inspect", other)),
        }
    }

    async fn break_lock(&self, request: &Break, deadline: Instant) -> Result<Broken, StoreError> {
        let Break { key, fence } = request;
        let queue = self.keys.queue_of(key);
        let number = fence.get().to_string();
        let args = ["", "", &self.mark_ttl_ms, &self.ticket_ms, &number];
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&args);
        };
        let reply: ScriptReply =
            self.run_script(key, &scripts::BREAK, &queue.in_order(), deadline, add_args).await?;
        match reply.outcome {
            0 => lease_of(&reply, key).map(Broken::Broken),
            1 => Ok(Broken::NotHeld),
            2 => Ok(Broken::HeldByAnother),
            other => Err(unexpected("break", other)),
        }
    }
}

impl LockStore for RedisStore {
    fn run<'a>(&'a self, request: &'a Request, deadline: Instant) -> Replying<'a> {
        match request {
            Request::Try(request) => self.try_lock(request, deadline).map_ok(Reply::Try).boxed(),
            Request::Confirm(request) => self.confirm(request, deadline).map_ok(Reply::Confirm).boxed(),
            Request::Enqueue(request) => self.enqueue(request, deadline).map_ok(Reply::Enqueue).boxed(),
            Request::Poll(request) => self.poll(request, deadline).map_ok(Reply::Poll).boxed(),
            Request::LastPoll(request) => self.last_poll(request, deadline).map_ok(Reply::LastPoll).boxed(),
            Request::Renew(request) => self.renew(request, deadline).map_ok(Reply::Renew).boxed(),
            Request::Release(request) => self.release(request, deadline).map_ok(Reply::Release).boxed(),
            Request::RollBack(request) => self.roll_back(request, deadline).map_ok(Reply::RollBack).boxed(),
            Request::PassOn(request) => self.pass_on(request, deadline).map_ok(Reply::PassOn).boxed(),
            Request::Inspect(request) => self.inspect(request, deadline).map_ok(Reply::Inspect).boxed(),
            Request::Break(request) => self.break_lock(request, deadline).map_ok(Reply::Break).boxed(),
            Request::List(request) => self.list_page(request, deadline).map_ok(Reply::List).boxed(),
            Request::Heartbeat(request) => {
                self.heartbeat(request.bucket, deadline).map_ok(Reply::Heartbeat).boxed()
            }
            Request::Check(_) => self.servers.check(deadline).map_ok(Reply::Check).boxed(),
            Request::Begin(request) => self.begin(request, deadline).map_ok(Reply::Begin).boxed(),
            Request::StoreResult(request) => {
                self.store_result(request, deadline).map_ok(Reply::StoreResult).boxed()
            }
            Request::RenewWork(request) => {
                self.renew_work(request, deadline).map_ok(Reply::RenewWork).boxed()
            }
            Request::GiveUp(request) => self.give_up(request, deadline).map_ok(Reply::GiveUp).boxed(),
            Request::UndoBegin(request) => {
                self.undo_begin(request, deadline).map_ok(Reply::UndoBegin).boxed()
            }
            Request::LookAtRecord(request) => {
                self.look_at_record(request, deadline).map_ok(Reply::LookAtRecord).boxed()
            }
            Request::BreakRecord(request) => {
                self.break_record(request, deadline).map_ok(Reply::BreakRecord).boxed()
            }
            Request::ListRecords(request) => {
                self.list_records(request, deadline).map_ok(Reply::ListRecords).boxed()
            }
        }
    }

    fn seems_ready(&self) -> BoxFuture<'_, bool> {
        self.servers.seem_ready().boxed()
    }

    fn keeps_no_records(&self, key: Option<&LockKey>) -> Option<String> {
        self.servers.keep_no_records(key.map(|key| self.keys.bucket_of(key)))
    }

    fn bucket_of(&self, key: &LockKey) -> Bucket {
        self.keys.bucket_of(key)
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.sender.subscribe()
    }

    fn peers(&self) -> Option<&dyn PeerBus> {
        Some(&self.publisher)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.servers.stop();
        future::ready(()).boxed()
    }
}
