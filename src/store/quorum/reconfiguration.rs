//! What gateways do about servers of a quorum that do not count: they are taken in, put into quarantine, let out of it, told
//! of another list. Each such change is one script (`reconfigure.lua`) and does nothing where another gateway was first, or where
//! what it rests on was seen too long ago.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::member::Member;
use super::member_status::MemberStatus;
use super::membership::Membership;
use super::scripts;
use crate::clock::whole_ms;
use crate::store::redis::health::quorum::{RecordKind, Whose, is_in, learners};

/// How long a server is seen without its record before it goes into quarantine, where no quorum is known: at the first start
/// another gateway may be about to write it.
const LOOK_AGAIN: Duration = Duration::from_millis(900);

/// What each server was seen to remember, or why it could not be asked.
type Statuses = [Result<MemberStatus, String>];

/// What a server may become; `reconfigure.lua` says more of each.
#[derive(Clone, Copy)]
enum Change<'a> {
    /// In quarantine.
    Join { was_born: bool },
    /// Part of a new quorum, that of this id.
    Found { id: &'a str },
    /// Part of the quorum again, and it accepts no number up to this one.
    Restore { high: u64 },
    /// One that knows this list.
    Store { epoch_before: u64 },
    /// One that knows that most others know it, and accepts no number up to this one.
    Settle { high: u64 },
    /// One that has the id of the quorum.
    Name { id: &'a str },
}

impl Membership {
    /// Does what is due.
    pub(super) async fn decide(&self) {
        let stale = || "the gateway has not looked at it for too long".to_owned();
        let fresh = |status: Result<MemberStatus, String>| {
            status.and_then(|status| {
                (status.is_fresh() && status.is_ours()).then_some(status).ok_or_else(stale)
            })
        };
        let statuses: Vec<_> = self.members.iter().map(|member| fresh(member.status())).collect();
        let later = statuses.iter().flatten().filter(|status| status.kind == RecordKind::Later);
        self.later.lock().extend(later.map(|status| (status.members.clone(), status.epoch)));
        if self.most_count() {
            self.later.lock().retain(|members, _| self.may_follow_ours(members));
        }
        if self.standstill().is_some() || self.found(&statuses).await {
            return;
        }
        self.name(&statuses).await;
        let hindrance = self.store_list(&statuses).await;
        *self.hindrance.lock() = hindrance;
        let counts = |index: &usize| statuses[*index].as_ref().is_ok_and(MemberStatus::counts);
        let good: Vec<_> = (0..self.members.len()).filter(counts).collect();
        self.settle_list(&statuses, &good).await;
        for (index, status) in
            statuses.iter().enumerate().filter_map(|(index, status)| Some((index, status.as_ref().ok()?)))
        {
            let is_stranger = match status.kind {
                RecordKind::Empty | RecordKind::Forgot => true,
                // One that was late for a change, or in quarantine, knows nothing that would count.
                RecordKind::Earlier => {
                    !is_in(&status.members, &self.members[index].name) || self.is_settled(&statuses)
                }
                RecordKind::Current | RecordKind::Later | RecordKind::Differs => false,
            };
            // One that once was part of a quorum is not new, even if it no longer knows. That has to be written before a gateway that
            // has just started finds nothing but servers that know nothing.
            let was_born = self.has_been.load(Ordering::Relaxed);
            let is_due = was_born || status.first_at.elapsed() >= LOOK_AGAIN;
            if is_stranger && is_due && self.may_join(&statuses) {
                self.change(index, status, Change::Join { was_born }).await;
            }
            let is_over =
                status.is_in_quarantine() && status.quarantine_left(whole_ms(self.longest())).is_zero();
            if status.kind == RecordKind::Current && is_over {
                self.restore(index, status, &good, &statuses).await;
            }
        }
    }

    /// Why it leaves all servers what they are, if it does: a change by an earlier list would be undone, or do harm. If two lists have
    /// one epoch, one of them is a mistake.
    pub(super) fn standstill(&self) -> Option<String> {
        if let Some(epoch) = self.later.lock().values().max() {
            return Some(format!(
                "a server knew a later list, that of epoch {epoch}: this gateway takes no server in, and ends no quarantine, until it is \
                 restarted with the latest list of its quorum"
            ));
        }
        let differs = |status: MemberStatus| status.kind == RecordKind::Differs;
        let other = self.members.iter().find(|member| member.status().is_ok_and(differs))?;
        Some(format!(
            "{} knows another list of servers with the same epoch: meanwhile this gateway takes no server in, and ends no quarantine",
            other.name
        ))
    }

    /// Whether a server that was seen so counts, and else why not.
    pub(super) fn eligibility(&self, seen: &Result<MemberStatus, String>) -> Result<(), String> {
        let status = seen.as_ref().map_err(Clone::clone)?;
        status
            .eligibility()
            .map_err(|reason| self.standstill().filter(|_| status.is_kept_out()).unwrap_or(reason))
    }

    /// Compares the id of a server that was just looked at with that of the quorum.
    pub(super) fn recognized(&self, index: usize, mut seen: MemberStatus) -> MemberStatus {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(_, member)| member.status().ok());
        let whose = self.whose(&mut self.quorum_id.lock(), others.chain([seen.clone()]));
        seen.recognize(&whose);
        seen
    }

    /// Compares those of all: what one server says is of weight for the others.
    pub(super) fn recognize_all(&self) {
        let mut quorum_id = self.quorum_id.lock();
        let whose = self.whose(&mut quorum_id, self.members.iter().filter_map(|member| member.status().ok()));
        self.members.iter().for_each(|member| member.recognize(&whose));
    }

    /// Whose these servers are, by their ids. What most of them say is `learned`, and stays for as long as any says it: most addresses may
    /// lead elsewhere for a while.
    fn whose(&self, learned: &mut Option<String>, seen: impl Iterator<Item = MemberStatus>) -> Whose {
        let known: Vec<_> = seen.map(|status| status.known_list()).collect();
        match learned.clone().filter(|id| known.iter().any(|server| server.quorum == *id)) {
            Some(id) => Whose::Of(id),
            None => {
                let whose = Whose::of(&known, self.quorum());
                if let Whose::Of(id) = &whose {
                    *learned = Some(id.clone());
                }
                whose
            }
        }
    }

    /// The id that is made of all servers: of their processes, and since when each is there. All gateways make the same.
    fn made_id<'a>(&self, seen: impl Iterator<Item = &'a MemberStatus>) -> Option<String> {
        let mut parts: Vec<_> = seen.map(MemberStatus::part_of_id).collect();
        parts.sort_unstable();
        (parts.len() == self.members.len()).then(|| parts.join(" "))
    }

    /// Gives those that have none the id of the quorum, in quarantine too; or the first one, once all count without one.
    async fn name(&self, statuses: &Statuses) {
        let counting = || statuses.iter().flatten().filter(|status| status.counts());
        let known = self.whose(&mut self.quorum_id.lock(), statuses.iter().flatten().cloned());
        let made = self.made_id(counting()).map(Whose::Of);
        let made = made.filter(|made| counting().all(|status| status.may_be_of(made)));
        let ((Whose::Of(id), _) | (_, Some(Whose::Of(id)))) = (known, made) else { return };
        for (index, status) in statuses.iter().enumerate() {
            if let Ok(status) = status
                && status.kind == RecordKind::Current
                && status.is_unnamed()
            {
                self.change(index, status, Change::Name { id: &id }).await;
            }
        }
    }

    /// Whether a server is another quorum's by its list. If that came from ours by several changes, most of our servers have
    /// learned the first of them, and do not count by ours.
    pub(super) fn is_of_another_quorum(&self, status: &MemberStatus) -> bool {
        matches!(status.kind, RecordKind::Later | RecordKind::Differs)
            && !self.may_follow_ours(&status.members)
            && self.most_count()
    }

    /// Whether one change makes such a list of ours: it keeps most servers.
    fn may_follow_ours(&self, members: &str) -> bool {
        self.members.iter().filter(|member| is_in(members, &member.name)).count() >= self.quorum()
    }

    /// Whether most servers were just seen to count.
    fn most_count(&self) -> bool {
        let counts = |status: MemberStatus| status.counts() && status.is_fresh();
        self.members.iter().filter(|member| member.status().is_ok_and(counts)).count() >= self.quorum()
    }

    /// Notes how long a lease can last by the record of a server, where that is longer than is known so far.
    pub(super) fn learn_longest(&self, server: &str, longest_ms: u64) {
        let known_ms = self.longest_ms.fetch_max(longest_ms, Ordering::Relaxed);
        if longest_ms > known_ms {
            let [longest, known] = [longest_ms, known_ms]
                .map(|ms| humantime::format_duration(Duration::from_millis(ms)).to_string());
            tracing::warn!(
                server,
                "quarantines of this quorum now last {longest} and not {known}: by the server's record, some gateway has, or had, a \
                 longer --max-ttl, --mark-ttl or --store-timeout than this one"
            );
        }
    }

    /// Starts a quorum of servers that have never been part of one. It takes two steps, so that a server that forgets
    /// in between is noticed: it has no quarantine that could be ended.
    async fn found(&self, statuses: &Statuses) -> bool {
        if statuses.iter().flatten().any(|status| status.is_born) {
            self.has_been.store(true, Ordering::Relaxed);
        }
        // If all of them forget at once, leases that were granted before may still last; and so may those that were granted
        // by a list before.
        if self.list.epoch > 1 || self.has_been.load(Ordering::Relaxed) {
            return false;
        }
        let joined = |status: &MemberStatus| status.kind == RecordKind::Current && status.is_in_quarantine();
        let is_new = |status: &&MemberStatus| status.kind == RecordKind::Empty || joined(status);
        if statuses.iter().flatten().filter(is_new).count() < self.members.len() {
            return false;
        }
        let id = self.made_id(statuses.iter().flatten().filter(|status| joined(status)));
        if id.is_some() {
            tracing::info!("all servers are new: the quorum starts");
        }
        for (index, status) in statuses.iter().flatten().enumerate() {
            match (status.kind, &id) {
                (RecordKind::Empty, _) => self.change(index, status, Change::Join { was_born: false }).await,
                (_, Some(id)) => self.change(index, status, Change::Found { id }).await,
                _ => false,
            };
        }
        true
    }

    /// Has the servers of the list before learn this one, if enough of them can; else returns why not.
    async fn store_list(&self, statuses: &Statuses) -> Option<String> {
        let known = |(member, status): (&Arc<Member>, &Result<MemberStatus, String>)| {
            (member.name.clone(), status.as_ref().ok().map(MemberStatus::known_list))
        };
        let servers: Vec<_> = self.members.iter().zip(statuses).map(known).collect();
        let learners = match learners(&servers, &self.list) {
            Ok(learners) => learners,
            Err(hindrance) => return Some(hindrance),
        };
        for index in learners {
            if let Ok(status) = &statuses[index] {
                self.change(index, status, Change::Store { epoch_before: status.epoch }).await;
            }
        }
        None
    }

    /// Has those that count know that most of them have learned the list. By it other majorities are possible, so each is
    /// told the largest number that any of them has accepted.
    async fn settle_list(&self, statuses: &Statuses, good: &[usize]) {
        let is_unsettled = |index: &&usize| statuses[**index].as_ref().is_ok_and(|status| !status.is_settled);
        if good.len() < self.quorum() || good.iter().find(is_unsettled).is_none() {
            return;
        }
        let Some(high) = self.highest(good, None).await else { return };
        for index in good.iter().filter(is_unsettled) {
            if let Ok(status) = &statuses[*index] {
                self.change(*index, status, Change::Settle { high }).await;
            }
        }
    }

    /// Whether servers that forgot, or are new in the list, may go into quarantine. After a change of the list, most
    /// servers of the former list must have learned the new one first: until then the former list may still grant
    /// locks.
    fn may_join(&self, statuses: &Statuses) -> bool {
        self.list.epoch == 1 || self.is_settled(statuses)
    }

    fn is_settled(&self, statuses: &Statuses) -> bool {
        statuses.iter().flatten().any(|status| status.epoch == self.list.epoch && status.is_settled)
    }

    /// Ends the quarantine of a server.
    async fn restore(&self, index: usize, status: &MemberStatus, good: &[usize], statuses: &Statuses) {
        // Others may remember more than can be read now: those that are silent, and those that go by another list.
        let may_remember =
            |status: &&Result<MemberStatus, String>| !status.as_ref().is_ok_and(MemberStatus::has_forgotten);
        let is_majority = good.len() >= self.quorum();
        if !is_majority && statuses.iter().filter(may_remember).count() >= self.quorum() {
            return;
        }
        let high = if is_majority {
            self.highest(good, None).await
        } else {
            let all: Vec<_> = (0..self.members.len()).filter(|other| statuses[*other].is_ok()).collect();
            self.highest(&all, Some(index)).await
        };
        let Some(high) = high else { return };
        let server = &self.members[index].name;
        if self.change(index, status, Change::Restore { high }).await {
            if is_majority {
                tracing::info!(server, "the quarantine is over");
            } else {
                tracing::warn!(
                    server,
                    "the quarantine is over, but so many servers may have forgotten locks that the order of fencing \
                     tokens now depends on their clocks and on what is in their files"
                );
            }
        }
    }

    /// The largest number that these servers have accepted. Of those that count, most must say it. Where servers have forgotten
    /// what they accepted, it is enough that the one says it whose quarantine ends, `own`.
    async fn highest(&self, servers: &[usize], own: Option<usize>) -> Option<u64> {
        let args = [self.list.epoch.to_string(), if own.is_some() { "1" } else { "0" }.to_owned()];
        let mut numbers = Vec::new();
        for server in servers {
            let deadline = Instant::now() + self.reply_timeout;
            match self.members[*server].ask(&scripts::HIGH, &args, deadline).await {
                Ok((_, reply)) if reply.outcome == 1 => {
                    numbers.extend(reply.field::<String>(0).and_then(|text| text.parse::<u64>().ok()));
                }
                _ if own == Some(*server) => return None,
                _ => {}
            }
        }
        let needed = if own.is_some() { 1 } else { self.quorum() };
        numbers.iter().max().copied().filter(|_| numbers.len() >= needed)
    }

    /// Changes what a server is, on the strength of what was `seen` of it; whether this gateway did it.
    async fn change(&self, index: usize, seen: &MemberStatus, change: Change<'_>) -> bool {
        let member = &self.members[index];
        let (kind, given, epoch_before) = match change {
            Change::Join { was_born } => ("join", u64::from(was_born).to_string(), 0),
            Change::Restore { high } => ("restore", high.to_string(), 0),
            Change::Store { epoch_before } => ("store", String::new(), epoch_before),
            Change::Settle { high } => ("settle", high.to_string(), 0),
            Change::Found { id } => ("found", id.to_owned(), 0),
            Change::Name { id } => ("name", id.to_owned(), 0),
        };
        let args = [
            kind.to_owned(),
            self.list.epoch.to_string(),
            self.list.text.clone(),
            whole_ms(self.longest()).to_string(),
            given,
            epoch_before.to_string(),
            seen.fresh_until_ms().to_string(),
            seen.since_ms.to_string(),
        ];
        let deadline = Instant::now() + self.reply_timeout;
        let server = &member.name;
        match member.ask(&scripts::RECONFIGURE, &args, deadline).await {
            Ok((_, reply)) if reply.outcome == 1 => {
                tracing::info!(server, step = kind, "what the server stores about the quorum was changed");
                member.nudge.notify_one();
                true
            }
            Ok(_) => false,
            Err(reason) => {
                tracing::debug!(
                    server,
                    step = kind,
                    reason,
                    "what the server stores about the quorum could not be changed"
                );
                false
            }
        }
    }
}
