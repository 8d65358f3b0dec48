//! What servers report of locks, put together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::member::{MemberAnswer, Silence};
use super::poll::heard;
use crate::lock::{Attempt, FencingToken, Lease, TokenHash};
use crate::store::redis::scripts::ScriptReply;

/// By how much more than clocks may differ two servers may see the rest of a lease before it is taken for another one.
pub(super) const UNEVEN_MS: u64 = 50;

/// What part of a lease must not be relied on, since clocks run apart: 1 % and 2 ms, as Redlock has it.
pub(super) fn drift(ms: u64) -> u64 {
    ms.div_ceil(100) + 2
}

/// What is left of it then.
pub(super) fn relied_on(ms: u64) -> u64 {
    ms.saturating_sub(drift(ms))
}

/// How many servers gave this answer.
pub(super) fn count(answers: &[Option<MemberAnswer>], outcome: i64) -> usize {
    heard(answers).filter(|reply| reply.outcome == outcome).count()
}

/// What some servers say of one lock.
pub(super) struct ReportedLock {
    pub(super) holder: TokenHash,
    /// As one of them says it.
    pub(super) lease: Lease,
    /// What is left by each of them, the longest first.
    lefts_ms: Vec<u64>,
    /// What was left before a renewal, by the least of them.
    pub(super) left_before_ms: u64,
}

impl ReportedLock {
    pub(super) fn count(&self) -> usize {
        self.lefts_ms.len()
    }

    /// The lease as so many servers have it: what is left is what they all still hold it for.
    pub(super) fn by(&self, quorum: usize) -> Option<Lease> {
        let left_ms = *self.lefts_ms.get(quorum - 1)?;
        Some(Lease { left_ms, ..self.lease.clone() })
    }

    /// Whether no more can be expected of servers that have not answered yet: one that missed a renewal would make the
    /// lease look shorter than most have it.
    pub(super) fn is_even(&self, quorum: usize) -> bool {
        let (Some(longest), Some(left)) = (self.lefts_ms.first(), self.lefts_ms.get(quorum - 1)) else {
            return false;
        };
        longest - left <= drift(*longest) + UNEVEN_MS
    }
}

/// Each lock that some server has named in such an answer.
pub(super) fn held_locks(
    answers: &[Option<MemberAnswer>],
    is_such: impl Fn(&ScriptReply) -> bool,
) -> Vec<ReportedLock> {
    let mut locks = BTreeMap::<(TokenHash, u64), ReportedLock>::new();
    for reply in heard(answers).filter(|reply| is_such(reply)) {
        let (Some(holder), Some(lease)) = (reply.holder(), reply.lease()) else { continue };
        let left_before_ms = reply.field(2).unwrap_or(lease.left_ms);
        let id = (holder, lease.fencing_token.get());
        let left_ms = lease.left_ms;
        let held =
            locks.entry(id).or_insert(ReportedLock { holder, lease, lefts_ms: Vec::new(), left_before_ms });
        held.lefts_ms.push(left_ms);
        held.left_before_ms = held.left_before_ms.min(left_before_ms);
    }
    let mut locks: Vec<_> = locks.into_values().collect();
    locks.iter_mut().for_each(|held| held.lefts_ms.sort_unstable_by(|a, b| b.cmp(a)));
    locks
}

/// The lock that so many servers hold.
pub(super) fn most_held(answers: &[Option<MemberAnswer>], quorum: usize) -> Option<ReportedLock> {
    held_locks(answers, |_| true).into_iter().find(|held| held.count() >= quorum)
}

/// Where the servers said what they held before a connection claimed it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimedBy {
    /// In the only vote of an attempt. A server that it did not reach claims nothing.
    Vote,
    /// When the attempt was voided, which may have asked often. Until a server has heard of that, it may claim by an earlier vote.
    Attempt,
}

/// For how long a lease of this number runs that its token may have been told of before its claim, by the servers that have answered
/// that; and which others may have claimed it, or may yet.
pub(super) fn told_before(
    answers: &[Option<MemberAnswer>],
    number: FencingToken,
    by: ClaimedBy,
) -> (Option<Duration>, Vec<bool>) {
    let outcome = if by == ClaimedBy::Vote { 1 } else { 3 };
    let claimed = held_locks(answers, |reply| reply.outcome == outcome);
    let lease = claimed.iter().find(|held| held.lease.fencing_token == number).and_then(|held| held.by(1));
    let is_silent = |answer: &_| match answer {
        Some(Ok(_)) => false,
        Some(Err(Silence::Out(_))) => by == ClaimedBy::Attempt,
        _ => true,
    };
    let told_for = lease.map(|lease| Duration::from_millis(relied_on(lease.left_ms)));
    (told_for, answers.iter().map(is_silent).collect())
}

/// By the claim of a connection, what its token may have been told of before.
///
/// The lease of a claim is what most servers hold the lock for. One that was told before may be longer: the servers that held the
/// lock for it need not be those that answer the claim. Each server that has answered it says how long it held the lock. One that
/// has not must keep it.
#[derive(Clone, Default)]
pub(super) struct EarlierLeases(Arc<Mutex<HashMap<Attempt, EarlierLease>>>);

/// Both times are since boot.
pub(super) struct EarlierLease {
    /// When the lease of the claim is over, as it was answered.
    pub(super) claimed_until: Duration,
    /// When the last lease is over that the token may have been told of.
    pub(super) told_until: Duration,
    /// For each server whether it may have claimed the lock without an answer,
    pub(super) silent: Vec<bool>,
    /// and when any lease is over that it may have had then.
    pub(super) silent_until: Duration,
}

impl EarlierLease {
    fn has_silent(&self, now: Duration) -> bool {
        self.silent.contains(&true) && now < self.silent_until
    }
}

impl EarlierLeases {
    pub(super) fn note(&self, claim: Attempt, lease: EarlierLease, now: Duration) {
        let mut all = self.0.lock();
        // Before it grows, and no more often: a client may repeat itself many times.
        if all.len() == all.capacity() {
            all.retain(|_, lease| lease.told_until > now || lease.has_silent(now));
        }
        all.insert(claim, lease);
    }

    /// Notes what servers have said that answered late.
    pub(super) fn complete(&self, claim: &Attempt, told_until: Duration, silent: Vec<bool>) {
        if let Some(lease) = self.0.lock().get_mut(claim) {
            (lease.told_until, lease.silent) = (lease.told_until.max(told_until), silent);
        }
    }

    /// For how long leases run that were told before, where the gateway relies on the lease of the claim for that; where it knows of
    /// a shorter one, it stays with that. And which servers must keep the lock, if any.
    pub(super) fn told_for(
        &self,
        claim: &Attempt,
        known_for: Duration,
        now: Duration,
    ) -> (Duration, Vec<bool>) {
        let until = now + known_for + Duration::from_millis(UNEVEN_MS);
        let all = self.0.lock();
        match all.get(claim).filter(|lease| lease.claimed_until <= until) {
            Some(lease) => {
                let silent = if lease.has_silent(now) { lease.silent.clone() } else { Vec::new() };
                (known_for.max(lease.told_until.saturating_sub(now)), silent)
            }
            None => (known_for, Vec::new()),
        }
    }

    pub(super) fn forget(&self, claim: &Attempt) {
        self.0.lock().remove(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_hold_what_was_told_is_remembered_while_others_come_and_go() {
        let seconds = Duration::from_secs;
        let all = EarlierLeases::default();
        let lease = |silent: bool, now: Duration| EarlierLease {
            claimed_until: now + seconds(4),
            told_until: now + seconds(4),
            silent: vec![false, silent, false],
            silent_until: now + seconds(300),
        };
        let claim = Attempt::generate();
        all.note(claim, lease(true, Duration::ZERO), Duration::ZERO);
        for _ in 0..1_000 {
            all.note(Attempt::generate(), lease(false, seconds(5)), seconds(5));
        }
        let told_for = |now| all.told_for(&claim, Duration::ZERO, now);
        assert_eq!(told_for(seconds(6)), (Duration::ZERO, vec![false, true, false]));
        // Nothing that it may have had lasts longer.
        assert_eq!(told_for(seconds(300)), (Duration::ZERO, Vec::new()));
        // The others are not kept.
        for _ in 0..2_000 {
            all.note(Attempt::generate(), lease(false, seconds(10)), seconds(10));
        }
        assert!(all.0.lock().len() < 2_900);
    }
}
