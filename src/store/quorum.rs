//! The store on a quorum: independent Redis servers, most of which must agree. It is Redlock with fencing tokens that
//! grow even if clocks are wrong, as long as no majority of the servers forgets at once.
//!
//! A gateway proposes a number for a lock to all servers at once (`proposal.rs`). A server accepts it if the lock is
//! free there and the number is larger than all that it has accepted before. The lock is granted once most servers have
//! accepted the same number. Two majorities share a server, so a grant that begins after another was answered has the
//! larger number. A server that may have forgotten what it accepted does not count until every lease that it could have
//! helped to grant is over (`membership.rs`). Ideas from Redlock, the ballots of Paxos, PaxosLease (arXiv 1209.4187)
//! and Chubby's sequencers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{self, BoxFuture, FutureExt, TryFutureExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use self::ballot::Ballots;
use self::member::Member;
use self::membership::Membership;
use self::poll::Pollster;
use self::reports::EarlierLeases;
use self::waiters::Waiters;
use super::redis::RedisStore;
use super::redis::address::{AddressError, RedisAddress};
use super::redis::connection::connector::Target;
use super::redis::connection::supervisor::LinkSupervisor;
use super::redis::health::preflight::Preflight;
use super::redis::health::quorum::{KEEPS_NO_RECORDS, ServerList};
use super::redis::pubsub::peer_bus::{PeerChannels, Publisher};
use super::redis::pubsub::{Hints, MOST_HINTS};
use super::redis::scripts::keys::KeySpace;
use super::redis::settings::{RedisSettings, Risk};
use crate::clock::{Clock, SystemClock, whole_ms};
use crate::lock::{
    Attempt, Broken, Inspected, LockKey, Page, ReleaseEffect, Released, Renewed, RolledBack, Slots,
};
use crate::store::wait_queue::{SlotRoom, WaitQueues};
use crate::store::{
    Break, Bucket, HeartbeatAnswer, Hint, Inspect, List, LockStore, PassOn, PeerBus, Release, Renew, Reply,
    Replying, Request, RollBack, StoreError, TicketAfter,
};

mod ballot;
mod ending;
mod lease;
mod listing;
mod member;
mod member_status;
mod membership;
mod poll;
mod proposal;
mod reconfiguration;
mod reports;
mod scripts;
mod tally;
mod turn;
mod waiters;

/// Locks on independent servers; most of them must agree.
pub struct QuorumStore {
    pollster: Pollster,
    keys: KeySpace,
    ballots: Ballots,
    earlier_leases: EarlierLeases,
    waiters: Arc<Waiters>,
    /// Where servers tell this gateway that a lock may be free.
    channel: String,
    hints: broadcast::Sender<Hint>,
    publisher: Publisher,
    /// The session of the queues that the last heartbeat was answered with.
    session: AtomicU64,
    mark_ttl: Duration,
}

/// Starts to connect to what is at an address: a quorum, or a store that is none.
pub fn open(address: &RedisAddress, settings: &RedisSettings) -> Result<Arc<dyn LockStore>, AddressError> {
    Ok(if address.is_quorum() {
        Arc::new(QuorumStore::start(address, settings, Arc::new(SystemClock))?)
    } else {
        Arc::new(RedisStore::start(address, settings)?)
    })
}

impl QuorumStore {
    /// Starts to connect to all servers in the background, and to look after them. Of the `clock` only the time since
    /// boot is used, to measure how much time goes by. Neither the order of numbers nor mutual exclusion depends on it.
    pub fn start(
        address: &RedisAddress,
        settings: &RedisSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AddressError> {
        let preflight = Preflight::new(address, settings);
        let keys = preflight.keys().clone();
        // A lease may last so long, its attempt included. Servers that forgot are left out for as long as tombstones live, too:
        // else a token that was released could be granted again by those that have forgotten that.
        let longest = (settings.max_ttl + 2 * settings.reply_timeout).max(settings.mark_ttl);
        let list = ServerList::new(address.nodes(), settings.list_epoch);
        let gateway: Arc<str> = Attempt::generate().to_string().into();
        let (mut members, mut told) = (Vec::new(), Vec::new());
        let peer_channels = PeerChannels::new(&keys, settings.reply_timeout);
        for node in address.nodes() {
            let (sender, hints) = broadcast::channel(MOST_HINTS);
            let target = Target::Member(address.client(node)?);
            let hints_of = Hints { gateway: gateway.clone(), sender, peer_channels: peer_channels.clone() };
            let supervisor = LinkSupervisor::start(target, &preflight, settings.reply_timeout, hints_of);
            members.push(Arc::new(Member::new(node.to_string(), supervisor, list.epoch, keys.record())));
            told.push(hints);
        }
        let (longest_ms, timeout) = (whole_ms(longest), settings.reply_timeout);
        let accepts_eviction = settings.accepted.contains(&Risk::Eviction);
        let membership = Membership::start(members, list, longest_ms, accepts_eviction, timeout, clock);
        let hints = broadcast::Sender::new(MOST_HINTS);
        let waiters = Arc::new(Waiters::new(WaitQueues::new(settings.line), hints.clone()));
        for (server, told) in told.into_iter().enumerate() {
            tokio::spawn(hear(waiters.clone(), server, told, membership.quorum()));
        }
        Ok(Self {
            publisher: Publisher::new(peer_channels, membership.clone()),
            pollster: Pollster::new(membership),
            channel: keys.channel(Bucket::default(), &gateway),
            keys,
            ballots: Ballots::new(),
            earlier_leases: EarlierLeases::default(),
            waiters,
            hints,
            session: AtomicU64::new(0),
            mark_ttl: settings.mark_ttl,
        })
    }
}

/// Hears from a server that locks may be free, for as long as there is a store.
async fn hear(waiters: Arc<Waiters>, server: usize, mut told: broadcast::Receiver<Hint>, quorum: usize) {
    loop {
        match told.recv().await {
            Ok(Hint::Due(key, _)) => waiters.hear(server, key, quorum),
            // Waiters poll now and then all the same.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

impl QuorumStore {
    async fn renew(&self, request: &Renew, deadline: Instant) -> Result<Renewed, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        self.renew_all(request, deadline).await
    }

    async fn release(&self, request: &Release, deadline: Instant) -> Result<ReleaseEffect, StoreError> {
        let Release { key, token, tombstone } = request;
        self.pollster.membership.is_ready(deadline).await?;
        let (had_place, is_awaited) = self.waiters.step(|state, now| {
            (state.queues.position(key, token).is_some(), state.queues.waiters(key, now) > 0)
        });
        // Until then it keeps its place: a release that did not happen ends nothing, and a repetition is answered alike.
        let release = self.release_all(key, token, *tombstone, had_place, is_awaited, deadline).await?;
        self.waiters.step(|state, now| {
            state.queues.released(key, token, false, SlotRoom::FREE, now);
            if release.answer == Released::Released && !had_place {
                state.note_free(key);
                state.queues.freed(key, SlotRoom::FREE, now);
            }
        });
        Ok(release)
    }

    async fn roll_back(&self, request: &RollBack, deadline: Instant) -> Result<RolledBack, StoreError> {
        let RollBack { key, token, attempt, ticket, known } = request;
        // The client has gone, so the ticket is of no use, whatever the servers answer.
        self.waiters
            .step(|state, now| state.queues.vacate(key, token, *attempt, *ticket, SlotRoom::FREE, now));
        self.pollster.membership.is_ready(deadline).await?;
        let rolled_back = self.roll_back_all(key, token, *attempt, *known, deadline).await?;
        let was_deleted = matches!(rolled_back, RolledBack::Ended { .. });
        self.waiters.step(|state, now| {
            if was_deleted {
                state.queues.keep(key, token, *ticket, Slots::ONE, now);
            }
            state.queues.vacate(key, token, *attempt, *ticket, SlotRoom::FREE, now);
            if was_deleted {
                state.note_free(key);
                state.queues.freed(key, SlotRoom::FREE, now);
            }
        });
        Ok(rolled_back)
    }

    async fn pass_on(&self, request: &PassOn) -> Result<Option<Duration>, StoreError> {
        let PassOn { key, token, attempt } = request;
        Ok(self.waiters.step(|state, now| {
            state.queues.vacate(key, token, *attempt, TicketAfter::Kept, SlotRoom::FREE, now)
        }))
    }

    async fn heartbeat(&self, deadline: Instant) -> Result<HeartbeatAnswer, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        let (session, due) =
            self.waiters.step(|state, now| state.queues.beat(now, false, |key| state.held(key, now).into()));
        Ok(HeartbeatAnswer { is_new: self.session.swap(session, Ordering::AcqRel) != session, due })
    }

    async fn inspect(&self, request: &Inspect, deadline: Instant) -> Result<Inspected, StoreError> {
        let Inspect { key, token } = request;
        self.pollster.membership.is_ready(deadline).await?;
        let held = self.holder(key, token.as_ref(), deadline).await?;
        let waiters = self.waiters.step(|state, now| state.queues.waiters(key, now));
        Ok(match held {
            None => Inspected::Free { waiters },
            Some((holder, lease)) => {
                let yours = token.map(|token| token == holder);
                Inspected::Held { lease, yours, sharing: None, waiters }
            }
        })
    }

    async fn break_lock(&self, request: &Break, deadline: Instant) -> Result<Broken, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        let answer = self.break_all(request, deadline).await?;
        if let Broken::Broken(_) = answer {
            self.waiters.step(|state, now| {
                state.note_free(&request.key);
                state.queues.freed(&request.key, SlotRoom::FREE, now);
            });
        }
        Ok(answer)
    }

    async fn list(&self, request: &List, deadline: Instant) -> Result<Page, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        self.list_page(request, deadline).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        self.pollster.membership.has_room()
    }
}

impl LockStore for QuorumStore {
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
            Request::PassOn(request) => self.pass_on(request).map_ok(Reply::PassOn).boxed(),
            Request::Inspect(request) => self.inspect(request, deadline).map_ok(Reply::Inspect).boxed(),
            Request::Break(request) => self.break_lock(request, deadline).map_ok(Reply::Break).boxed(),
            Request::List(request) => self.list(request, deadline).map_ok(Reply::List).boxed(),
            Request::Heartbeat(_) => self.heartbeat(deadline).map_ok(Reply::Heartbeat).boxed(),
            Request::Check(_) => self.check(deadline).map_ok(Reply::Check).boxed(),
            Request::Begin(_)
            | Request::StoreResult(_)
            | Request::RenewWork(_)
            | Request::GiveUp(_)
            | Request::UndoBegin(_)
            | Request::BreakRecord(_)
            | Request::LookAtRecord(_)
            | Request::ListRecords(_) => {
                future::ready(Err(StoreError::Unavailable(KEEPS_NO_RECORDS.to_owned()))).boxed()
            }
        }
    }

    fn shares_no_locks(&self) -> Option<String> {
        let why = "independent servers cannot share a lock among several holders: each knows only what it accepted, and more than \
                   `slots` could hold it at once";
        Some(why.to_owned())
    }

    fn asks_several_servers(&self) -> bool {
        true
    }

    fn keeps_no_records(&self, _: Option<&LockKey>) -> Option<String> {
        Some(KEEPS_NO_RECORDS.to_owned())
    }

    fn seems_ready(&self) -> BoxFuture<'_, bool> {
        let membership = &self.pollster.membership;
        future::ready(membership.check().and_then(|()| membership.has_room()).is_ok()).boxed()
    }

    fn bucket_of(&self, _: &LockKey) -> Bucket {
        // Wait queues are kept in this gateway, all together.
        Bucket::default()
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn peers(&self) -> Option<&dyn PeerBus> {
        Some(&self.publisher)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.pollster.membership.close();
        future::ready(()).boxed()
    }
}

impl Drop for QuorumStore {
    fn drop(&mut self) {
        self.pollster.membership.close();
    }
}
