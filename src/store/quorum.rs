//! The store on a quorum: independent Redis servers, most of which must agree. It is Redlock with fencing numbers that grow
//! whatever the clocks say, as long as no majority of the servers forgets at once.
//!
//! A gateway proposes a number for a lock to all servers at once (`proposal.rs`); each accepts it if the lock is free there
//! and the number larger than all that it has accepted before, and the lock is granted once most have accepted the same
//! one. Two majorities share a server, so a grant that begins after another was answered has the larger number. A server
//! that may have forgotten what it accepted counts for nothing until no lease is left that it could have helped to grant
//! (`membership.rs`). Ideas from Redlock, the ballots of Paxos, PaxosLease (arXiv 1209.4187) and Chubby's sequencers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use self::ballot::Ballots;
use self::member::Member;
use self::membership::{List, Membership};
use self::poll::Pollster;
use self::waiters::Waiters;
use super::redis::address::{AddressError, RedisAddress};
use super::redis::connection::connector::Target;
use super::redis::connection::supervisor::LinkSupervisor;
use super::redis::health::preflight::Preflight;
use super::redis::pubsub::peer_bus::{PeerChannels, Publisher};
use super::redis::pubsub::{Hints, MOST_HINTS};
use super::redis::scripts::keys::KeySpace;
use super::redis::settings::RedisSettings;
use crate::clock::{Clock, whole_ms};
use crate::lock::{
    Acquired, Attempt, Broken, FencingToken, Inspected, LockKey, Page, Reach, Refusal, Release, Released,
    Renewed, TokenHash, Ttl, Undone,
};
use crate::store::wait_queue::WaitQueues;
use crate::store::{
    AcquireRequest, Beat, Bucket, Gossip, Hint, Intent, KnownTo, LockStore, PlaceAfter, ReleaseMark, Renewer,
    StoreError,
};

mod ballot;
mod breaking;
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

/// Locks on independent servers, of which most must agree.
pub struct QuorumStore {
    pollster: Pollster,
    keys: KeySpace,
    ballots: Ballots,
    waiters: Arc<Waiters>,
    /// Where servers tell this gateway that a lock may be free.
    channel: String,
    hints: broadcast::Sender<Hint>,
    publisher: Publisher,
    /// The session of the queues that the last heartbeat was answered with.
    session: AtomicU64,
    mark_ttl: Duration,
}

impl QuorumStore {
    /// Starts to connect to all servers in the background, and to look after them. Of the `clock` only the time since boot
    /// is used, and of that only how much of it goes by: neither the order of numbers nor who holds a lock rests on it.
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
        let mut names: Vec<_> = address.nodes().iter().map(ToString::to_string).collect();
        names.sort_unstable();
        let list = List { text: names.join(" "), epoch: settings.list_epoch, longest_ms: whole_ms(longest) };
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
        let membership = Membership::start(members, list, settings.reply_timeout, clock);
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
            // Whoever waits looks now and then all the same.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

#[async_trait]
impl LockStore for QuorumStore {
    async fn acquire(&self, request: &AcquireRequest, deadline: Instant) -> Result<Acquired, StoreError> {
        match &request.intent {
            Intent::Grant => self.take(request, deadline).await,
            Intent::Confirm => match self.ask(request, deadline).await? {
                Acquired::Refused(Refusal { holder: None, holder_unknown: false, .. }) => {
                    Ok(Acquired::TokenReleased)
                }
                answer => Ok(answer),
            },
            Intent::Join(join) => self.join(request, join, deadline).await,
            Intent::Look => self.go_on(request, deadline).await,
            Intent::LastLook(place) => self.last_look(request, *place, deadline).await,
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
        self.pollster.membership.is_ready(deadline).await?;
        self.renew_all(key, token, ttl, by, deadline).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: ReleaseMark,
        deadline: Instant,
    ) -> Result<Release, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        let had_place = self.waiters.step(|state, now| state.queues.released(key, token, false, now));
        let release = self.release_all(key, token, tombstone, had_place, deadline).await?;
        if release.answer == Released::Released && !had_place {
            self.waiters.step(|state, now| {
                state.note_free(key);
                state.queues.freed(key, now);
            });
        }
        Ok(release)
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
        // Nobody is there any more to whom the place would be of use, whatever the servers say.
        self.waiters.step(|state, now| state.queues.vacate(key, token, attempt, place, false, now));
        self.pollster.membership.is_ready(deadline).await?;
        let rolled_back = self.roll_back_all(key, token, attempt, known, deadline).await?;
        let was_deleted = matches!(rolled_back, Undone::Ended { .. });
        self.waiters.step(|state, now| {
            state.queues.vacate(key, token, attempt, place, was_deleted, now);
            if was_deleted {
                state.note_free(key);
                state.queues.freed(key, now);
            }
        });
        Ok(rolled_back)
    }

    async fn decline(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        _: Instant,
    ) -> Result<(), StoreError> {
        self.waiters
            .step(|state, now| state.queues.vacate(key, token, attempt, PlaceAfter::Kept, false, now));
        Ok(())
    }

    fn bucket_of(&self, _: &LockKey) -> Bucket {
        // Wait queues are kept in this gateway, all together.
        Bucket::default()
    }

    async fn beat(&self, _: Bucket, deadline: Instant) -> Result<Beat, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        let (session, due) = self.waiters.step(|state, now| state.queues.beat(|key| state.held(key, now)));
        Ok(Beat { is_new: self.session.swap(session, Ordering::AcqRel) != session, due })
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
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
        self.pollster.membership.is_ready(deadline).await?;
        let held = self.holder(key, token, deadline).await?;
        let waiters = self.waiters.step(|state, now| {
            state.queues.purge_queue(key, now);
            state.queues.waiters(key)
        });
        Ok(match held {
            None => Inspected::Free { waiters },
            Some((holder, lease)) => {
                Inspected::Held { lease, yours: token.map(|token| *token == holder), waiters }
            }
        })
    }

    async fn break_lock(
        &self,
        key: &LockKey,
        fence: FencingToken,
        deadline: Instant,
    ) -> Result<Broken, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        let answer = self.break_all(key, fence, deadline).await?;
        if let Broken::Broken(_) = answer {
            self.waiters.step(|state, now| {
                state.note_free(key);
                state.queues.freed(key, now);
            });
        }
        Ok(answer)
    }

    async fn list(
        &self,
        reach: &Reach,
        cursor: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Page, StoreError> {
        self.pollster.membership.is_ready(deadline).await?;
        self.list_page(reach, cursor, limit, deadline).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        self.pollster.membership.is_ready(deadline).await
    }

    async fn close(&self) {
        self.pollster.membership.close();
    }
}

impl Drop for QuorumStore {
    fn drop(&mut self) {
        self.pollster.membership.close();
    }
}
