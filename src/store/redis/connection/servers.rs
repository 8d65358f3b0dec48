//! Which server is asked: the only one, the primary that Sentinel names, or the one of a cluster that has the lock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use super::cluster::Cluster;
use super::connector::Target;
use super::link::{Link, UnderWay};
use super::scan::Scan;
use super::sentinel::Sentinels;
use super::supervisor::LinkSupervisor;
use crate::clock::{Backoff, part_of};
use crate::store::redis::address::{AddressError, Layout, RedisAddress};
use crate::store::redis::failure::{Redirect, StepOutcome};
use crate::store::redis::health::preflight::Preflight;
use crate::store::redis::health::room::NoRecords;
use crate::store::redis::pubsub::Hints;
use crate::store::redis::pubsub::peer_bus::PeerRoutes;
use crate::store::redis::scripts::keys::slot_of;
use crate::store::{Bucket, StoreError};

/// The pause before a step that did not happen is tried again: it doubles from the first to the last, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);
/// The part of a step's time after which no try is begun: one that is cut short leaves doubt, and costs the connection.
pub(crate) const BEGUN_WITHIN: f64 = 0.8;

/// The servers of a store.
pub(crate) enum Servers {
    One(LinkSupervisor),
    Cluster(Cluster),
}

impl Servers {
    /// Starts to connect in the background.
    pub(crate) fn start(
        address: &RedisAddress,
        preflight: &Preflight,
        reply_timeout: Duration,
        hints: &Hints,
    ) -> Result<Self, AddressError> {
        let hints = hints.clone();
        let target = match address.layout() {
            Layout::Server => Target::Server(address.client(&address.nodes()[0])?),
            Layout::Sentinel(name) => Target::Primary(Box::new(Sentinels::new(address, name)?)),
            Layout::Quorum => return Err(AddressError::Unusable("a quorum has no one server to ask".into())),
            Layout::Cluster => {
                return Ok(Self::Cluster(Cluster::start(address, preflight, reply_timeout, hints)));
            }
        };
        Ok(Self::One(LinkSupervisor::start(target, preflight, reply_timeout, hints)))
    }

    /// Whether all can be reached, are safe to lock on, can grant a lock, and take connections.
    pub(crate) async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        let links = self.ready(deadline).await?;
        try_join_all(links.iter().map(|link| link.door.check(deadline))).await.map(drop)
    }

    /// The same as far as it is known. It asks no server, so it waits for nothing.
    pub(crate) async fn seem_ready(&self) -> bool {
        let links = self.ready(Instant::now()).await;
        links.is_ok_and(|links| links.iter().all(|link| link.door.seems_open().is_ok()))
    }

    /// The links to all who keep locks, if each server is safe to lock on and can grant a lock.
    async fn ready(&self, deadline: Instant) -> Result<Vec<Arc<Link>>, StoreError> {
        if let Self::Cluster(cluster) = self {
            cluster.whole_map(deadline).await?;
        }
        let links: Vec<_> = self.all(deadline).await.into_iter().collect::<Result<_, _>>()?;
        links.iter().try_for_each(|link| link.gate.is_ready())?;
        Ok(links)
    }

    /// All who keep locks, to be gone through.
    pub(crate) async fn scan(&self, deadline: Instant) -> Result<Scan, StoreError> {
        match self {
            Self::One(supervisor) => Ok(Scan::new(vec![supervisor.link(deadline).await?], "")),
            Self::Cluster(cluster) => cluster.scan(deadline).await,
        }
    }

    /// The links to all who keep locks.
    async fn all(&self, deadline: Instant) -> Vec<Result<Arc<Link>, StoreError>> {
        match self {
            Self::One(supervisor) => vec![supervisor.link(deadline).await],
            Self::Cluster(cluster) => cluster.all(deadline).await,
        }
    }

    /// From now on requests are refused.
    pub(crate) fn stop(&self) {
        match self {
            Self::One(supervisor) => supervisor.stop(),
            Self::Cluster(cluster) => cluster.stop(),
        }
    }

    /// Why no records are kept in this bucket, or in any, as far as is known without asking.
    pub(crate) fn keep_no_records(&self, bucket: Option<Bucket>) -> Option<String> {
        let links = match (self, bucket) {
            (Self::Cluster(cluster), Some(bucket)) => cluster.link_now(slot_of(bucket)).into_iter().collect(),
            _ => self.links_now(),
        };
        let mut refusals = links.iter().filter_map(|link| link.room.refusal());
        refusals.find(NoRecords::is_of_all).map(|why| why.to_string())
    }

    /// The links that stand.
    fn links_now(&self) -> Vec<Arc<Link>> {
        match self {
            Self::One(supervisor) => supervisor.link_now().into_iter().collect(),
            Self::Cluster(cluster) => cluster.links_now(),
        }
    }

    async fn link(&self, bucket: Bucket, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        match self {
            Self::One(supervisor) => supervisor.link(deadline).await,
            Self::Cluster(cluster) => cluster.link(slot_of(bucket), deadline).await,
        }
    }
}

#[async_trait]
impl PeerRoutes for Servers {
    fn count(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Option<MultiplexedConnection> {
        self.links_now().first().map(|link| link.connection.clone())
    }

    async fn to_listen(&self, deadline: Instant) -> (Vec<Result<MultiplexedConnection, StoreError>>, usize) {
        let links = self.all(deadline).await.into_iter();
        // What is told at one node of a cluster is heard at all.
        (links.map(|link| Ok(link?.listener.connection.clone())).collect(), 1)
    }
}

/// The tries of one step, until it is known what became of it.
pub(crate) struct Tries<'a> {
    servers: &'a Servers,
    bucket: Bucket,
    /// Whether the step may grant a lock.
    grants: bool,
    /// Whether it begins a record.
    is_begin: bool,
    /// No try is begun later.
    last_start: Instant,
    pauses: Backoff,
    redirect: Option<Redirect>,
}

/// One of them.
pub(crate) struct TryAt {
    pub(crate) link: Arc<Link>,
    /// Whether to say that another server has pointed here for this once.
    pub(crate) is_asking: bool,
    /// To be given up with the answer.
    pub(crate) permit: UnderWay,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(
        servers: &'a Servers,
        bucket: Bucket,
        grants: bool,
        is_begin: bool,
        deadline: Instant,
    ) -> Self {
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let last_start = part_of(deadline, BEGUN_WITHIN);
        Self { servers, bucket, grants, is_begin, last_start, pauses, redirect: None }
    }

    /// Makes the way ready for the next try: to where locks may be granted, if the step may grant one.
    pub(crate) async fn next(&mut self) -> Result<TryAt, StoreError> {
        loop {
            let (link, is_asking) = match (self.servers, self.redirect.take()) {
                (Servers::Cluster(cluster), Some(redirect)) => {
                    let is_asking = matches!(redirect, Redirect::Ask(_));
                    (cluster.follow(redirect, slot_of(self.bucket), self.last_start).await?, is_asking)
                }
                (servers, _) => (servers.link(self.bucket, self.last_start).await?, false),
            };
            // Nothing was sent over a link that broke meanwhile: there will be another.
            if let Some(permit) = link.permit(self.is_begin, self.last_start).await? {
                if self.grants {
                    link.gate.may_grant()?;
                }
                return Ok(TryAt { link, is_asking, permit });
            }
        }
    }

    /// What the answer to a try that was made then comes to: a reply, or nothing where the step is to be tried again. An error
    /// where the failure is final, or the deadline leaves no room for another try.
    pub(crate) async fn settle<T>(
        &mut self,
        answer: Result<RedisResult<T>, Elapsed>,
        link: &Link,
        asked_at: Instant,
    ) -> Result<Option<T>, StoreError> {
        let failure = match link.settle(answer, asked_at) {
            Ok(reply) => return Ok(Some(reply)),
            Err(failure) => failure,
        };
        if failure.outcome != StepOutcome::NotYet || Instant::now() + self.pauses.next() >= self.last_start {
            return Err(failure.into_error());
        }
        self.redirect = failure.redirect;
        self.pauses.pause().await;
        Ok(None)
    }
}
