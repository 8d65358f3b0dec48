//! What is done to a lock that is held: renewing and repairing, releasing, rolling back, looking.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::QuorumStore;
use super::member::{MemberAnswer, MemberCall, Until};
use super::poll::{Inquiry, heard};
use super::reports::{ReportedLock, UNEVEN_MS, count, drift, held_locks, most_held, relied_on};
use super::scripts;
use crate::clock::whole_ms;
use crate::lock::{
    Attempt, Ended, FencingToken, Lease, LockKey, ReleaseEffect, Released, Renewed, RolledBack, TokenHash,
};
use crate::store::redis::scripts::{Script, ScriptReply, known as known_arg, renewer};
use crate::store::{KnownTo, Renew, Renewer, StoreError, Tombstone};

impl QuorumStore {
    /// Renews a lease on all servers, and gives the lock to those that lack it.
    pub(super) async fn renew_all(
        &self,
        Renew { key, token, ttl, by }: &Renew,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let (quorum, blocking) = (self.pollster.membership.quorum(), self.pollster.membership.blocking());
        let args = vec![token.to_string(), ttl.as_ms().to_string(), renewer(*by)];
        let until = Until::About(self.pollster.membership.since_boot(deadline));
        let call = self.call(&scripts::RENEW, key, vec![self.keys.lock(key)], args, until);
        let sent_at = self.pollster.membership.clock.boot();
        let mut poll = self.pollster.ask(&Arc::new(call), deadline);
        let over = |answers: &[Option<MemberAnswer>]| match () {
            () if count(answers, 1) >= quorum => Some(Renewed::NotHeld),
            () if count(answers, 2) >= quorum => Some(Renewed::HeldByAnother),
            () if count(answers, 4) >= quorum => Some(Renewed::TakenOver),
            () if count(answers, 5) >= quorum => Some(Renewed::Released),
            () => None,
        };
        let is_clear = |answers: &[Option<MemberAnswer>]| {
            let is_even = most_held(answers, quorum).is_some_and(|held| held.is_even(quorum));
            (is_even || over(answers).is_some()).then_some(())
        };
        poll.decide(deadline, is_clear).await;
        if let Some(held) = most_held(&poll.answers, quorum)
            && let Some(mut lease) = held.by(quorum)
        {
            let is_longer = count(&poll.answers, 0) > 0;
            self.repair(key, token, &lease, *by, (sent_at, relied_on(held.left_before_ms)), poll);
            lease.left_ms = relied_on(lease.left_ms);
            return Ok(if is_longer { Renewed::Renewed(lease) } else { Renewed::MaxHoldReached(lease) });
        }
        if let Some(over) = over(&poll.answers) {
            return Ok(over);
        }
        let [nobody, others, taken_over, released] =
            [1, 2, 4, 5].map(|outcome| count(&poll.answers, outcome));
        let silent = poll.answers.len() - poll.heard().count();
        if nobody + others + taken_over + released < blocking {
            return Err(poll.too_few());
        }
        Ok(match () {
            // The token no longer holds the lock, even if another does by now.
            () if released > 0 => Renewed::Released,
            () if others > 0 && others + silent >= quorum => Renewed::HeldByAnother,
            () if taken_over > 0 => Renewed::TakenOver,
            () => Renewed::NotHeld,
        })
    }

    /// Gives a lock that was renewed to the servers that lack it, while those that renewed it would hold it even if they
    /// had not: for so many milliseconds from when they were asked to renew it.
    fn repair(
        &self,
        key: &LockKey,
        token: &TokenHash,
        lease: &Lease,
        by: Renewer,
        (sent_at, lasting_ms): (Duration, u64),
        mut poll: Inquiry,
    ) {
        let until = sent_at + Duration::from_millis(lasting_ms);
        // What is left of the terms, by the server that says least.
        let term = |index| heard(&poll.answers).filter_map(|reply| reply.field::<i64>(index)).min();
        let args = vec![
            token.to_string(),
            lease.fencing_token.get().to_string(),
            lease.note.stored().to_owned(),
            lease.left_ms.to_string(),
            self.pollster.membership.longest_attempt().as_millis().to_string(),
            renewer(by),
            term(3).map_or_else(String::new, |ms| ms.to_string()),
            term(4).map_or_else(String::new, |ms| ms.to_string()),
            lasting_ms.to_string(),
        ];
        let keys = vec![self.keys.lock(key), self.keys.tombstone(key, token)];
        let call = Arc::new(self.call(&scripts::REPAIR, key, keys, args, Until::AtMost(until)));
        let (pollster, renewed) = (self.pollster.clone(), lease.clone());
        let has_it = move |answer: &Option<MemberAnswer>| match answer {
            Some(Ok(reply)) => reply.lease().is_some_and(|lease| {
                lease.fencing_token == renewed.fencing_token && lease.left_ms + UNEVEN_MS >= renewed.left_ms
            }),
            // It is not known what it holds; the next renewal sees to it.
            Some(Err(_)) | None => true,
        };
        if poll.answers.iter().all(|answer| answer.is_some() && has_it(answer)) {
            return;
        }
        tokio::spawn(async move {
            poll.rest().await;
            let deadline = Instant::now() + until.saturating_sub(pollster.membership.clock.boot());
            let lacking: Vec<_> = poll.answers.iter().map(|answer| !has_it(answer)).collect();
            pollster.ask_some(&call, deadline, |index| lacking[index]).rest().await;
        });
    }

    /// Frees a token on all servers, and with it the lock. `has_left` says that it stood in the wait queue: then it was released,
    /// unless its release was answered otherwise before.
    pub(super) async fn release_all(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: Tombstone,
        has_left: bool,
        deadline: Instant,
    ) -> Result<ReleaseEffect, StoreError> {
        let quorum = self.pollster.membership.quorum();
        let word = if has_left { Word::UnlessSaid(Released::Released) } else { Word::AsFound };
        let call = self.to_release(key, token, tombstone, word, 0);
        let mut poll = self.pollster.ask(&call, deadline);
        let decided = poll.decide(deadline, |answers| said_by(answers, quorum)).await;
        if poll.heard().count() < quorum {
            return Err(poll.too_few());
        }
        let outcome = decided.or_else(|| settled(&poll.answers, quorum)).ok_or_else(|| {
            StoreError::Unknown(
                "the servers of the quorum do not agree on what was answered before".to_owned(),
            )
        })?;
        let ended = ended(&poll.answers, quorum);
        let release = ReleaseEffect { answer: outcome, ended };
        if tombstone == Tombstone::None {
            // Without a tombstone, copies of the acquire are kept out by the number, which those that had the lock have said.
            let number = heard(&poll.answers).find_map(|reply| reply.field::<String>(0)?.parse().ok());
            let releasing = self.to_release(key, token, tombstone, Word::AsFound, number.unwrap_or(0));
            let lacks_it = move |answer: &Option<MemberAnswer>| match answer {
                Some(Ok(reply)) => outcome == Released::Released && reply.outcome != 0,
                Some(Err(_)) | None => true,
            };
            self.pollster.follow_up(&releasing, poll, lacks_it);
            return Ok(release);
        }
        if decided.is_none() {
            self.pollster.see_through(&call, poll);
            self.agree_on(key, token, outcome, deadline).await?;
        } else {
            // A repetition must get the same answer, even if other servers answer it.
            let agreeing = self.to_release(key, token, tombstone, Word::Agreed(outcome), 0);
            let says_so = move |reply: &ScriptReply| reply.outcome % SAID_BEFORE == code_of(outcome);
            let differs = move |answer: &_| !matches!(answer, Some(Ok(reply)) if says_so(reply));
            self.pollster.follow_up(&agreeing, poll, differs);
        }
        Ok(release)
    }

    /// Frees a token on all servers, and has most of them say this from now on.
    async fn agree_on(
        &self,
        key: &LockKey,
        token: &TokenHash,
        outcome: Released,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let quorum = self.pollster.membership.quorum();
        let call = self.to_release(key, token, Tombstone::Final, Word::Agreed(outcome), 0);
        let mut poll = self.pollster.ask(&call, deadline);
        poll.decide(deadline, |answers| (heard(answers).count() >= quorum).then_some(())).await;
        if poll.heard().count() < quorum {
            return Err(poll.too_few());
        }
        self.pollster.see_through(&call, poll);
        Ok(())
    }

    fn to_release(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: Tombstone,
        word: Word,
        number: u64,
    ) -> Arc<MemberCall> {
        let life_ms = match tombstone {
            Tombstone::Final => self.mark_ttl.as_millis().to_string(),
            Tombstone::None => String::new(),
        };
        let (answer, overrides) = match word {
            Word::AsFound => (String::new(), "0"),
            Word::UnlessSaid(answer) => (code_of(answer).to_string(), "0"),
            Word::Agreed(answer) => (code_of(answer).to_string(), "1"),
        };
        let args = vec![token.to_string(), life_ms, answer, overrides.to_owned(), number.to_string()];
        // A token may be used again once its tombstone is over: from then on a copy that is late would do harm.
        let until = match tombstone {
            Tombstone::Final => Until::About(self.pollster.membership.clock.boot() + self.mark_ttl),
            Tombstone::None => Until::Always,
        };
        Arc::new(self.call(&scripts::RELEASE, key, self.keys_of(key, token), args, until))
    }

    /// Rolls an attempt back on all servers. If no client was told of the attempt, it says that the attempt is over
    /// only if that is certain.
    pub(super) async fn roll_back_all(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        known: KnownTo,
        deadline: Instant,
    ) -> Result<RolledBack, StoreError> {
        let known = match known {
            // A server whose clock is fast must not end what was told before its time.
            KnownTo::Connection { told_for } if !told_for.is_zero() => {
                KnownTo::Connection { told_for: told_for + Duration::from_millis(drift(whole_ms(told_for))) }
            }
            known => known,
        };
        let (quorum, blocking) = (self.pollster.membership.quorum(), self.pollster.membership.blocking());
        let life_ms = self.mark_ttl.as_millis().to_string();
        let args = vec![token.to_string(), attempt.to_string(), life_ms, known_arg(known)];
        let call = self.call(&scripts::ROLL_BACK, key, self.keys_of(key, token), args, Until::Always);
        let call = Arc::new(call);
        let mut poll = self.pollster.ask(&call, deadline);
        poll.decide(deadline, |answers| (count(answers, 1) >= quorum).then_some(())).await;
        if poll.heard().count() < quorum {
            return Err(poll.too_few());
        }
        // A lock that a client was told of is pinned on most servers, and these have deleted it on some of those.
        let rolled_back = match () {
            () if count(&poll.answers, 1) >= blocking => {
                RolledBack::Ended { kept_ms: by_most(&poll, 1, quorum) }
            }
            () if count(&poll.answers, 2) >= blocking => {
                RolledBack::LeftToToken { left_ms: by_most(&poll, 2, quorum) }
            }
            () => RolledBack::Nothing,
        };
        self.pollster.see_through(&call, poll);
        Ok(rolled_back)
    }

    /// Asks who holds a lock; pins it, if it is `token`.
    pub(super) async fn holder(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Option<(TokenHash, Lease)>, StoreError> {
        let (quorum, blocking) = (self.pollster.membership.quorum(), self.pollster.membership.blocking());
        let shown = token.map(ToString::to_string).unwrap_or_default();
        let keys = vec![self.keys.lock(key)];
        let call = self.call(&scripts::INSPECT, key, keys, vec![shown], Until::Always);
        let mut poll = self.pollster.ask(&Arc::new(call), deadline);
        let held = |answers: &[Option<MemberAnswer>]| {
            let held = most_held(answers, quorum)?;
            let mut lease = held.by(quorum)?;
            lease.left_ms = relied_on(lease.left_ms);
            Some((held.is_even(quorum), (held.holder, lease)))
        };
        let free = |answers: &[Option<MemberAnswer>]| count(answers, 0) >= blocking;
        poll.decide(deadline, |answers| {
            let is_clear = free(answers) || held(answers).is_some_and(|(is_even, _)| is_even);
            is_clear.then_some(())
        })
        .await;
        if let Some((_, held)) = held(&poll.answers) {
            return Ok(Some(held));
        }
        // A server that says that it is held, but not by whom, counts as silent.
        let is_clear = |reply: &&ScriptReply| reply.outcome == 0 || reply.lease().is_some();
        let silent = poll.answers.len() - poll.heard().filter(is_clear).count();
        let most = held_locks(&poll.answers, |_| true).iter().map(ReportedLock::count).max().unwrap_or(0);
        // A silent server may hold it too.
        if free(&poll.answers) || poll.heard().count() >= quorum && most + silent < quorum {
            return Ok(None);
        }
        Err(poll.too_few())
    }

    pub(super) fn keys_of(&self, key: &LockKey, token: &TokenHash) -> Vec<String> {
        vec![self.keys.lock(key), self.keys.tombstone(key, token), self.keys.watch(key)]
    }

    pub(super) fn call(
        &self,
        script: &'static Script,
        key: &LockKey,
        keys: Vec<String>,
        args: Vec<String>,
        until: Until,
    ) -> MemberCall {
        MemberCall { script, keys, args, field: format!("b{}", self.keys.bucket_of(key).0), until }
    }
}

/// What servers are to answer to a release.
#[derive(Clone, Copy)]
enum Word {
    /// What each of them finds.
    AsFound,
    /// This, if they have answered nothing before.
    UnlessSaid(Released),
    /// This, even if they have answered something else before.
    Agreed(Released),
}

/// What a server adds to an answer that it has given before.
const SAID_BEFORE: i64 = 10;

/// The answers to a release, those first that say most: a server that held the lock knows more than one that had not heard of
/// it, or no more.
const ANSWERS: [Released; 3] = [Released::Released, Released::HeldByAnother, Released::NotHeld];

/// The answer to a release that so many servers give.
fn said_by(answers: &[Option<MemberAnswer>], votes: usize) -> Option<Released> {
    let said = |answer| count(answers, code_of(answer)) + count(answers, SAID_BEFORE + code_of(answer));
    ANSWERS.into_iter().find(|answer| said(*answer) >= votes)
}

/// What to answer to a release if no answer has most votes. It is the answer that most servers, with the silent ones,
/// may have given before, since a client may have got it. Nothing if that is not known.
fn settled(answers: &[Option<MemberAnswer>], quorum: usize) -> Option<Released> {
    let silent = answers.len() - heard(answers).count();
    let may_be_told = |answer: &Released| {
        let before = count(answers, SAID_BEFORE + code_of(*answer));
        before > 0 && before + silent >= quorum
    };
    // A server that frees the lock just now tells that it may have been held: its holder must not be told otherwise.
    let is_freed = |answer: &Released| *answer == Released::Released && count(answers, code_of(*answer)) > 0;
    let mut told = ANSWERS.into_iter().filter(|answer| may_be_told(answer) || is_freed(answer));
    match (told.next(), told.next()) {
        (None, _) => said_by(answers, 1),
        (answer, None) => answer,
        (Some(_), Some(_)) => None,
    }
}

/// What a release is answered with.
fn code_of(outcome: Released) -> i64 {
    match outcome {
        Released::Released => 0,
        Released::NotHeld => 1,
        Released::HeldByAnother => 2,
    }
}

/// The grant that a release has ended, if most servers had it. Otherwise no client was told of a grant.
fn ended(answers: &[Option<MemberAnswer>], quorum: usize) -> Option<Ended> {
    let freed = |reply: &ScriptReply| {
        let number = reply.field::<String>(0)?.parse().ok()?;
        Some((FencingToken::new(number)?, reply.field::<u64>(1)?))
    };
    let freed: Vec<_> = heard(answers).filter_map(freed).collect();
    let fencing_token = freed.iter().map(|(number, _)| *number).max()?;
    let mut kept_ms: Vec<_> =
        freed.iter().filter(|(number, _)| *number == fencing_token).map(|(_, kept_ms)| *kept_ms).collect();
    kept_ms.sort_unstable_by(|a, b| b.cmp(a));
    // It is kept for as long as most of them keep it.
    Some(Ended { fencing_token, kept_ms: *kept_ms.get(quorum - 1)? })
}

/// For how long most servers, or all that gave this answer to a take-back, keep the lock.
fn by_most(poll: &Inquiry, outcome: i64, quorum: usize) -> u64 {
    let given = poll.heard().filter(|reply| reply.outcome == outcome);
    let mut lasting_ms: Vec<u64> = given.filter_map(|reply| reply.field(0)).collect();
    lasting_ms.sort_unstable_by(|a, b| b.cmp(a));
    lasting_ms.get(quorum - 1).or(lasting_ms.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use redis::{FromRedisValue, Value};

    use super::*;

    /// A server that lacked the lock said so before to the same request, which was answered by too few.
    #[test]
    fn a_holder_is_not_told_what_a_server_without_its_lock_said_before() {
        let said =
            |outcome| ScriptReply::from_redis_value(Value::Array(vec![Value::Int(outcome)])).ok().map(Ok);
        assert_eq!(settled(&[None, said(0), said(11)], 2), None);
        assert_eq!(settled(&[None, said(1), said(11)], 2), Some(Released::NotHeld));
        assert_eq!(settled(&[None, said(0), said(1)], 2), Some(Released::Released));
    }
}
