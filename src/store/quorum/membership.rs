//! Who the servers of a quorum are, and which of them count.
//!
//! Each server keeps a record of what it is in the quorum (`member.lua`), and every script reads it. So the servers
//! refuse by themselves, and gateways need not know. Gateways look at the records, and change them when that is due
//! (`reconfiguration.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::member::{Member, ServerClock};
use super::member_status::MemberStatus;
use super::scripts;
use crate::clock::{Clock, whole_ms};
use crate::store::StoreError;
use crate::store::redis::health::quorum::{NO_EARLIER_LIST, RecordKind, ServerList};
use crate::store::redis::pubsub::peer_bus::PeerRoutes;
use crate::telemetry::metrics::MemberState;

mod ids;

/// How often a gateway looks at each server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_OFTEN: Duration = Duration::from_millis(200);
/// The shortest time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What the log says of a server. It leaves out what differs from one look to the next.
#[derive(PartialEq, Eq)]
enum Standing {
    /// It is new, and so may all others be: nothing can have been forgotten.
    New,
    Seen {
        kind: RecordKind,
        is_in_quarantine: bool,
        is_behind: bool,
        is_kept_out: bool,
        is_ours: bool,
    },
    Silent(String),
}

/// The servers of a quorum, and what is known of them.
pub(super) struct Membership {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) list: ServerList,
    /// The id of the quorum, as most servers have said it. Another one may have the same list.
    pub(super) quorum_id: Mutex<Option<String>>,
    /// How long a lease can last, the attempt that takes it included: by this gateway, or by any record that it has seen.
    pub(super) longest_ms: AtomicU64,
    /// Whether the operator accepts that servers evict locks.
    accepts_eviction: bool,
    /// By which a gateway knows how much time goes by.
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reply_timeout: Duration,
    /// Which server each process was first seen as: one that is named twice has one vote.
    runs: Mutex<HashMap<String, usize>>,
    changed: Notify,
    /// What the log was told last of each server.
    told: Mutex<HashMap<usize, Standing>>,
    /// Whether some server was ever seen to be, or to have been, part of a quorum. Also of one that seems to be another: it may be ours, and
    /// the only one that has not lost its data.
    pub(super) has_been: AtomicBool,
    /// Why the servers of an earlier list cannot learn this one.
    pub(super) hindrance: Mutex<Option<String>>,
    /// The later lists than this gateway's that servers were seen to know, with their epochs.
    pub(super) later: Mutex<HashMap<String, u64>>,
    pub(super) stop: CancellationToken,
}

impl Membership {
    /// Looks at the servers from now on.
    pub(super) fn start(
        members: Vec<Arc<Member>>,
        list: ServerList,
        longest_ms: u64,
        accepts_eviction: bool,
        reply_timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let membership = Arc::new(Self {
            members,
            list,
            quorum_id: Mutex::default(),
            longest_ms: AtomicU64::new(longest_ms),
            accepts_eviction,
            clock,
            reply_timeout,
            runs: Mutex::default(),
            changed: Notify::new(),
            told: Mutex::default(),
            has_been: AtomicBool::new(false),
            hindrance: Mutex::default(),
            later: Mutex::default(),
            stop: CancellationToken::new(),
        });
        for index in 0..membership.members.len() {
            let (membership, stop) = (membership.clone(), membership.stop.clone());
            tokio::spawn(async move { stop.run_until_cancelled(membership.watch(index)).await });
        }
        let (deciding, stop) = (membership.clone(), membership.stop.clone());
        tokio::spawn(async move {
            let decide = async {
                loop {
                    deciding.changed.notified().await;
                    deciding.decide().await;
                }
            };
            stop.run_until_cancelled(decide).await
        });
        membership
    }

    /// How many servers must agree.
    pub(super) fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How many servers are certainly enough to keep all others from agreeing.
    pub(super) fn blocking(&self) -> usize {
        self.members.len() - self.quorum() + 1
    }

    /// How long a lease can last, the attempt included.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }

    /// The servers that count.
    pub(super) fn good(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|index| self.members[*index].counts()).collect()
    }

    /// Why each server that does not count does not.
    fn troubles(&self) -> Vec<String> {
        let trouble = |member: &Arc<Member>| {
            Some(format!("{}: {}", member.name, self.eligibility(&member.status()).err()?))
        };
        self.members.iter().filter_map(trouble).collect()
    }

    /// Whether enough servers count.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.stop.is_cancelled() {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        let (all, quorum) = (self.members.len(), self.quorum());
        let good = self.members.iter().filter(|member| member.counts()).count();
        if good >= quorum {
            return Ok(());
        }
        let troubles = self.troubles();
        let mut text =
            format!("{quorum} of {all} servers are needed, and {good} can be used: {}", troubles.join("; "));
        text.extend(self.what_else_is_wrong().map(|wrong| format!("; {wrong}")));
        Err(StoreError::Unavailable(text))
    }

    /// Whether enough servers that count can grant one more lock: they have memory for it, and do not refuse to write, nor are their
    /// clocks known to keep them from it. They must take connections, too: each that stands may end.
    pub(super) fn has_room(&self) -> Result<(), StoreError> {
        let now = self.clock.boot();
        let trouble =
            |member: &Arc<Member>| Some(format!("{}: {}", member.name, member.grants_nothing(now)?));
        let good: Vec<_> = self.members.iter().filter(|member| member.counts()).collect();
        let full: Vec<_> = good.iter().filter_map(|member| trouble(member)).collect();
        let (room, quorum) = (good.len() - full.len(), self.quorum());
        if full.is_empty() || room >= quorum {
            return Ok(());
        }
        let all = self.members.len();
        let text = format!(
            "{quorum} of {all} servers are needed, and {room} can take new locks and connections: {}",
            full.join("; ")
        );
        Err(StoreError::Unavailable(text))
    }

    /// What is wrong with the quorum as a whole.
    fn what_else_is_wrong(&self) -> Option<String> {
        let statuses: Vec<_> = self.members.iter().filter_map(|member| member.status().ok()).collect();
        let have_forgotten = statuses.iter().filter(|status| status.has_forgotten()).count();
        let new = statuses.iter().filter(|status| status.kind == RecordKind::Empty).count();
        if self.list.epoch > 1 && new == self.members.len() {
            return Some(NO_EARLIER_LIST.to_owned());
        }
        if self.standstill().is_some() {
            return None;
        }
        let hindrance = self.hindrance.lock().clone();
        hindrance.or_else(|| {
            (have_forgotten >= self.blocking() && self.has_been.load(Ordering::Relaxed)).then_some(
                "so many servers may have forgotten locks at once that the order of fencing tokens will depend on their clocks \
                 and on what is in their files"
                    .to_owned(),
            )
        })
    }

    /// As [`Self::check`], but a gateway that has just started finds out first.
    pub(super) async fn is_ready(&self, deadline: Instant) -> Result<(), StoreError> {
        loop {
            // In this order: what becomes known between the two is not missed.
            let is_finding_out = self.is_finding_out();
            let ready = self.check();
            if ready.is_ok() || !is_finding_out || Instant::now() + LOOK_PAUSE >= deadline {
                return ready;
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// A moment as the time since boot, which counts while the machine sleeps.
    pub(super) fn since_boot(&self, moment: Instant) -> Duration {
        self.clock.boot() + moment.saturating_duration_since(Instant::now())
    }

    /// The latest time, in microseconds, that as many servers as are needed have reached by their clocks. A single wrong clock
    /// cannot move it far while all servers are there.
    pub(super) fn now_us(&self) -> u64 {
        self.reached_us(Member::counts)
    }

    fn reached_us(&self, is_asked: impl Fn(&Member) -> bool) -> u64 {
        let now = self.clock.boot();
        let asked = self.members.iter().filter(|member| is_asked(member));
        let mut clocks: Vec<_> = asked.filter_map(|member| Some(member.clock()?.at(now))).collect();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        let reached = clocks.get(self.quorum() - 1).copied().unwrap_or_default();
        u64::try_from(reached).unwrap_or_default()
    }

    /// From now on no server is asked anything.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.members.iter().for_each(|member| member.supervisor.stop());
    }

    /// Whether it may be known in a moment that more servers count.
    fn is_finding_out(&self) -> bool {
        let statuses: Vec<_> = self.members.iter().map(|member| member.status()).collect();
        let is_unseen = |member: &Arc<Member>| member.clock().is_none() && !member.supervisor.is_down();
        let is_starting =
            |status: &Result<MemberStatus, String>| status.as_ref().is_ok_and(MemberStatus::is_starting);
        statuses.iter().any(|status| self.list.epoch == 1 && is_starting(status))
            || self.members.iter().any(is_unseen)
    }

    /// Looks at a server again and again.
    async fn watch(&self, index: usize) {
        let member = &self.members[index];
        loop {
            let session = self.look_at(index).await;
            self.changed.notify_one();
            sleep(LOOK_PAUSE).await;
            // A quorum that is just being founded is looked at more often: others may be founding it.
            let is_new = member.status().is_ok_and(|status| status.born_ms == 0);
            tokio::select! {
                () = sleep(if is_new { LOOK_OFTEN } else { LOOK_EVERY }) => {}
                () = member.nudge.notified() => {}
                () = member.supervisor.changed(session) => {}
            }
        }
    }

    /// Looks at a server once; returns the link over which it answered.
    async fn look_at(&self, index: usize) -> Option<u64> {
        let member = &self.members[index];
        let deadline = Instant::now() + self.reply_timeout;
        let before = member.status();
        let accepts_eviction = u8::from(self.accepts_eviction).to_string();
        let longest_ms = whole_ms(self.longest()).to_string();
        let id = self.quorum_id.lock().clone().unwrap_or_default();
        let args = [self.list.epoch.to_string(), self.list.text.clone(), longest_ms, accepts_eviction, id];
        let asked_at = self.clock.boot();
        let (link, reply) = match member.ask(&scripts::LOOK, &args, deadline).await {
            Ok(answer) => answer,
            Err(reason) => {
                self.say(index, &Err(reason.clone()), None);
                // Only at its second absence: by then no vote goes on in which it had a part.
                if before.is_err() {
                    self.disclaim(index);
                }
                member.see(Err(reason), None, MemberState::Unusable);
                return member.supervisor.link_now().map(|link| link.session);
            }
        };
        let clock = MemberStatus::clock_us(&reply)
            .map(|shown_us| ServerClock::between(asked_at, shown_us, self.clock.boot()));
        let read = MemberStatus::read(&reply, &link.incarnation, before.as_ref().ok())
            .map(|status| self.recognized(index, status));
        let now = self.clock.boot();
        let own_lag = match &read {
            Some(status) => member.learn_lag(status, clock, now, deadline).await,
            None => None,
        };
        // Others may have been looked at meanwhile.
        let status = match read.map(|status| self.recognized(index, status)) {
            Some(_) if !self.claim(&link.incarnation, index) => Err(self.twin_of(&link.incarnation)),
            Some(status) if self.is_of_another_quorum(&status) => {
                Err(format!("it belongs to another quorum: {}", status.members))
            }
            Some(status) => {
                self.learn_longest(&member.name, &status);
                link.gate.may_grant().map(|()| status).map_err(|error| error.to_string())
            }
            None => Err("what it stores about the quorum cannot be read".to_owned()),
        };
        // Behind the clocks of the others, also of those that are away now, or behind what it has accepted itself.
        let lag = clock.and_then(|clock| clock.lag_behind(self.reached_us(|_| true), now)).max(own_lag);
        self.say(index, &status, lag);
        let state = match &status {
            Ok(status) if status.counts() && lag.is_none() => match link.gate.is_ready() {
                Ok(()) => MemberState::Counts,
                Err(_) => MemberState::GrantsNothing,
            },
            Ok(status) if status.has_forgotten() && self.standstill().is_none() => MemberState::Quarantine,
            Ok(_) | Err(_) => MemberState::Unusable,
        };
        member.see(status, clock, state);
        self.recognize_all();
        Some(link.session)
    }

    /// Tells the log what has become of a server, and how far it is behind, if it was not told so before.
    fn say(&self, index: usize, now: &Result<MemberStatus, String>, lag: Option<Duration>) {
        let has_been = self.has_been.load(Ordering::Relaxed);
        let standing = match now {
            // Whose it is shows once most have been looked at.
            Ok(status) if !has_been && !status.is_ours() => return,
            Ok(status) if !has_been && self.list.epoch == 1 && status.is_starting() => Standing::New,
            Ok(status) => Standing::Seen {
                kind: status.kind,
                is_in_quarantine: status.is_in_quarantine(),
                is_behind: lag.is_some(),
                is_kept_out: status.is_kept_out() && self.standstill().is_some(),
                is_ours: status.is_ours(),
            },
            Err(reason) => Standing::Silent(reason.clone()),
        };
        let is_new = standing == Standing::New;
        let mut told = self.told.lock();
        if told.get(&index) == Some(&standing) {
            return;
        }
        told.insert(index, standing);
        let server = &self.members[index].name;
        match self.eligibility(now) {
            Ok(()) => match lag {
                None => tracing::info!(server, "counts in the quorum"),
                Some(lag) => {
                    let lag_s = lag.as_secs();
                    tracing::warn!(
                        server,
                        lag_s,
                        "refuses the fencing tokens of others: its clock is too far behind"
                    );
                }
            },
            Err(_) if is_new => {
                tracing::info!(server, "is new: it counts as soon as all servers of the quorum are there");
            }
            Err(reason) => tracing::warn!(server, reason, "does not count in the quorum"),
        }
    }
}

#[async_trait]
impl PeerRoutes for Membership {
    fn count(&self) -> usize {
        self.members.len()
    }

    fn route(&self, index: usize) -> Option<MultiplexedConnection> {
        Some(self.members[index].supervisor.link_now()?.connection.clone())
    }

    /// Two gateways that reach most servers have one in common.
    async fn to_listen(&self, deadline: Instant) -> (Vec<Result<MultiplexedConnection, StoreError>>, usize) {
        let connections = match self.is_ready(deadline).await {
            Ok(()) => {
                let links = self.members.iter().filter_map(|member| member.supervisor.link_now());
                links.map(|link| Ok(link.listener.connection.clone())).collect()
            }
            Err(error) => vec![Err(error)],
        };
        (connections, self.quorum())
    }
}
