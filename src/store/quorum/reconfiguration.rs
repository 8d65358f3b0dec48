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
use crate::store::redis::health::quorum::{RecordKind, UNLIKE_IDS, Whose, is_in, learners};

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
            status.and_then(|status| status.is_fresh().then_some(status).ok_or_else(stale))
        };
        let seen: Vec<_> = self.members.iter().map(|member| fresh(member.status())).collect();
        if seen.iter().flatten().any(|status| status.born_ms != 0 || !status.is_unnamed()) {
            self.has_been.store(true, Ordering::Relaxed);
        }
        let is_ours = |status: Result<MemberStatus, String>| {
            status.and_then(|status| status.is_ours().then_some(status).ok_or_else(|| UNLIKE_IDS.to_owned()))
        };
        let statuses: Vec<_> = seen.iter().cloned().map(is_ours).collect();
        let later = statuses.iter().flatten().filter(|status| status.kind == RecordKind::Later);
        self.later.lock().extend(later.map(|status| (status.members.clone(), status.epoch)));
        if self.most_count() {
            self.later.lock().retain(|members, _| self.may_follow_ours(members));
        }
        if self.standstill().is_some() || self.found(&statuses).await {
            return;
        }
        self.name(&seen, &statuses).await;
        let hindrance = self.store_list(&statuses).await;
        *self.hindrance.lock() = hindrance;
        let counts = |index: &usize| statuses[*index].as_ref().is_ok_and(MemberStatus::counts);
        let good: Vec<_> = (0..self.members.len()).filter(counts).collect();
        self.settle_list(&statuses, &good).await;
        let is_over = |status: &MemberStatus| {
            let longest_ms = whole_ms(self.longest());
            let is_there = status.kind == RecordKind::Current && status.is_in_quarantine();
            is_there && status.has_served(longest_ms) && status.quarantine_left(longest_ms).is_zero()
        };
        let over = statuses.iter().flatten().filter(|status| is_over(status)).count();
        let are_enough = good.len() + over >= self.quorum();
        for (index, status) in
            statuses.iter().enumerate().filter_map(|(index, status)| Some((index, status.as_ref().ok()?)))
        {
            let is_stranger = match status.kind {
                RecordKind::Empty | RecordKind::Forgot => true,
                // One that was late for a change, or is in quarantine, knows nothing that would count.
                RecordKind::Earlier => {
                    status.is_in_quarantine()
                        || !is_in(&status.members, &self.members[index].name)
                        || self.is_settled(&statuses)
                }
                RecordKind::Current | RecordKind::Later | RecordKind::Differs => false,
            };
            // One that once was part of a quorum is not new, even if it no longer knows. That has to be written before a gateway that
            // has just started finds nothing but servers that know nothing.
            let was_born = self.has_been.load(Ordering::Relaxed);
            let is_due = was_born || status.first_at.elapsed() >= LOOK_AGAIN;
            if is_stranger && is_due && self.may_join(&statuses, &seen) {
                self.change(index, status, Change::Join { was_born }).await;
            }
            if is_over(status) {
                self.restore(index, status, &good, &seen, are_enough).await;
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
        let of_kind = |kind| {
            let is = move |status: MemberStatus| status.kind == kind;
            self.members.iter().find(|member| member.status().is_ok_and(is))
        };
        let (other, knows) = if let Some(other) = of_kind(RecordKind::Differs) {
            (other, "another list of servers with the same epoch")
        } else if !self.knows_whose() {
            (of_kind(RecordKind::Later)?, "a later list of servers, and whose it is is not known")
        } else {
            return None;
        };
        Some(format!(
            "{} knows {knows}: meanwhile this gateway takes no server in, and ends no quarantine",
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

    /// Gives those that have none the id of the quorum, in quarantine too; or the first one.
    async fn name(&self, seen: &Statuses, statuses: &Statuses) {
        let known = self.whose(&mut self.quorum_id.lock(), statuses.iter().flatten().cloned());
        let id = match known {
            Whose::Of(id) => Some(id),
            Whose::Unknown => self.first_id(seen),
        };
        let Some(id) = id else { return };
        for (index, status) in statuses.iter().enumerate() {
            if let Ok(status) = status
                && status.kind == RecordKind::Current
                && status.is_unnamed()
            {
                self.change(index, status, Change::Name { id: &id }).await;
            }
        }
    }

    /// The id that those make who have none, where all servers were just seen, and most have none and count. All gateways make the same.
    /// What ids the others have does not matter: they count for nothing.
    fn first_id(&self, seen: &Statuses) -> Option<String> {
        let unnamed: Vec<_> = seen.iter().flatten().filter(|status| status.is_unnamed()).collect();
        let is_due = seen.iter().all(Result::is_ok)
            && unnamed.len() >= self.quorum()
            && unnamed.iter().all(|status| status.counts());
        is_due.then(|| MemberStatus::id_of(&unnamed))
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

    /// Notes how long a lease can last by the record of a server, where that is longer than is known so far. What another quorum's says
    /// is not heeded: no later start takes it back.
    pub(super) fn learn_longest(&self, server: &str, status: &MemberStatus) {
        if !status.is_ours() || matches!(status.kind, RecordKind::Later | RecordKind::Differs) {
            return;
        }
        let longest_ms = status.longest_ms;
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
        let joined: Vec<_> = statuses.iter().flatten().filter(|status| joined(status)).collect();
        let id = (joined.len() == self.members.len()).then(|| MemberStatus::id_of(&joined));
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
    /// locks. Where so many have forgotten that the others are not known to be ours, the word of any of these is enough for that.
    fn may_join(&self, statuses: &Statuses, seen: &Statuses) -> bool {
        let have_forgotten = statuses.iter().flatten().filter(|status| status.has_forgotten()).count();
        self.list.epoch == 1
            || self.is_settled(statuses)
            || have_forgotten >= self.blocking() && self.is_settled(seen)
    }

    fn is_settled(&self, statuses: &Statuses) -> bool {
        statuses.iter().flatten().any(|status| status.epoch == self.list.epoch && status.is_settled)
    }

    /// Ends the quarantine of a server; `are_enough`: with all whose quarantine is over, most servers would count.
    async fn restore(
        &self,
        index: usize,
        status: &MemberStatus,
        good: &[usize],
        seen: &Statuses,
        are_enough: bool,
    ) {
        // Others may remember more than can be read now: those that are silent, and those that go by another list. Where most have no
        // id, those that have one remember what counts for nothing.
        let unnamed = seen.iter().flatten().filter(|status| status.is_unnamed()).count();
        let have_most_none = unnamed >= self.quorum();
        let has_no_say =
            |status: &MemberStatus| status.has_forgotten() || have_most_none && !status.is_ours();
        let may_remember = |status: &&Result<MemberStatus, String>| !status.as_ref().is_ok_and(has_no_say);
        let is_majority = good.len() >= self.quorum();
        // One that is let out alone would be taken for one that remembers, and keep those in quarantine that come after it.
        if !is_majority && (!are_enough || seen.iter().filter(may_remember).count() >= self.quorum()) {
            return;
        }
        let high = if is_majority {
            self.highest(good, None).await
        } else {
            let is_ours = |other: &usize| seen[*other].as_ref().is_ok_and(MemberStatus::is_ours);
            let all: Vec<_> = (0..self.members.len()).filter(is_ours).collect();
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
