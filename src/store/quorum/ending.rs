//! Ending a lease on most servers: by its token, which is a release, by its number, which breaks the lock, or by its attempt, which
//! rolls it back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::QuorumStore;
use super::member::fast_path::{FreeOwn, Shortcut};
use super::member::{MemberAnswer, MemberCall, Until};
use super::poll::{Inquiry, heard};
use super::reports::{count, drift, held_locks};
use super::scripts;
use crate::clock::whole_ms;
use crate::lock::{
    Attempt, Broken, Ended, FencingToken, Lease, LockKey, ReleaseEffect, Released, RolledBack, TokenHash,
};
use crate::store::redis::scripts::{ScriptReply, known as known_arg};
use crate::store::{AnswerTo, Break, KnownTo, StoreError, Tombstone};

impl QuorumStore {
    /// Frees a token on all servers, and with it the lock. `has_left` says that it stood in the wait queue: then it was released,
    /// unless its release was answered otherwise before. `is_awaited` says that requests of this gateway wait for the lock.
    pub(super) async fn release_all(
        &self,
        key: &LockKey,
        token: &TokenHash,
        tombstone: Tombstone,
        has_left: bool,
        is_awaited: bool,
        deadline: Instant,
    ) -> Result<ReleaseEffect, StoreError> {
        let quorum = self.pollster.membership.quorum();
        let word = if has_left { Word::UnlessSaid(Released::Released) } else { Word::AsFound };
        let mut call = self.to_release(key, token, tombstone, word, 0);
        // Those who wait are told by the general script.
        if tombstone == Tombstone::None && !has_left && !is_awaited {
            call.shortcut = Some(Shortcut::Free(Arc::new(FreeOwn {
                lock: call.keys[0].clone(),
                watch: call.keys[2].clone(),
                token: token.to_string(),
            })));
        }
        let call = Arc::new(call);
        let mut poll = self.pollster.ask(&call, deadline);
        let decided = poll.decide(deadline, |answers| said_by_most(answers, quorum)).await;
        if poll.heard().count() < quorum {
            return Err(poll.too_few());
        }
        let mut outcome = decided.or_else(|| settled(&poll.answers, quorum));
        if outcome.is_none() {
            // The answers of the slow ones may decide it.
            let _ = timeout_at(deadline, poll.rest()).await;
            outcome = said_by_most(&poll.answers, quorum).or_else(|| settled(&poll.answers, quorum));
        }
        let Some(outcome) = outcome else {
            self.pollster.see_through(&call, poll);
            return Err(StoreError::Unknown(
                "the servers of the quorum do not agree on whether the token held the lock".to_owned(),
            ));
        };
        let ended = ended(&poll.answers, quorum);
        let release = ReleaseEffect { answer: outcome, ended };
        if tombstone == Tombstone::None {
            // Without a tombstone, copies of the acquire are kept out by the number, the largest by which servers had the lock.
            let number =
                heard(&poll.answers).filter_map(|reply| reply.field::<String>(0)?.parse().ok()).max();
            let releasing = self.to_release(key, token, tombstone, Word::AsFound, number.unwrap_or(0));
            let lacks_it = move |answer: &Option<MemberAnswer>| match answer {
                Some(Ok(reply)) => outcome == Released::Released && reply.outcome != 0,
                Some(Err(_)) | None => true,
            };
            self.pollster.follow_up(&Arc::new(releasing), poll, lacks_it);
            return Ok(release);
        }
        if decided.is_none() {
            self.pollster.see_through(&call, poll);
            self.free(key, token, Word::Agreed(outcome), deadline).await?;
        } else {
            // A repetition must get the same answer, even if other servers answer it.
            let agreeing = self.to_release(key, token, tombstone, Word::Agreed(outcome), 0);
            let says_so = move |reply: &ScriptReply| reply.outcome % SAID_BEFORE == code_of(outcome);
            let differs = move |answer: &_| !matches!(answer, Some(Ok(reply)) if says_so(reply));
            self.pollster.follow_up(&Arc::new(agreeing), poll, differs);
        }
        Ok(release)
    }

    /// Frees a token on all servers, and has most of them answer its release in this way from now on.
    pub(super) async fn free(
        &self,
        key: &LockKey,
        token: &TokenHash,
        word: Word,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let call = Arc::new(self.to_release(key, token, Tombstone::Final, word, 0));
        let mut poll = self.pollster.ask(&call, deadline);
        poll.most(deadline).await?;
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
    ) -> MemberCall {
        let life_ms = match tombstone {
            Tombstone::Final => self.mark_ttl.as_millis().to_string(),
            Tombstone::None => String::new(),
        };
        let (answer, overrides) = match word {
            Word::AsFound => (String::new(), "0"),
            Word::Spread => (String::new(), "2"),
            Word::UnlessSaid(answer) => (code_of(answer).to_string(), "0"),
            Word::Agreed(answer) => (code_of(answer).to_string(), "1"),
        };
        let args = vec![token.to_string(), life_ms, answer, overrides.to_owned(), number.to_string()];
        // A token may be used again once its tombstone is over: from then on a copy that is late would do harm.
        let until = match tombstone {
            Tombstone::Final => Until::About(self.pollster.membership.clock.boot() + self.mark_ttl),
            Tombstone::None => Until::Always,
        };
        self.call(&scripts::RELEASE, key, self.keys_of(key, token), args, until)
    }

    /// Ends a grant wherever it is held. Even if it comes late, it does nothing to any other grant.
    pub(super) fn to_break(&self, key: &LockKey, token: &TokenHash, number: FencingToken) -> Arc<MemberCall> {
        let args = vec![number.get().to_string(), self.mark_ttl.as_millis().to_string()];
        Arc::new(self.call(&scripts::BREAK, key, self.keys_of(key, token), args, Until::Always))
    }

    /// Ends the grant of this number, if most servers hold the lock by it. Where it is not known whether they do, it is ended
    /// all the same where a server has it: a number is granted once, so no other grant is touched. The outcome is unknown then.
    pub(super) async fn break_all(&self, Break { key, fence }: &Break, deadline: Instant) -> AnswerTo<Break> {
        let mut look = self.pollster.ask(&self.to_inspect(key, None), deadline);
        let is_named = |lease: &Lease| lease.fencing_token == *fence;
        let (holder, lease) = match self.holder_by(&mut look, deadline).await {
            Ok(None) => return Ok(Broken::NotHeld),
            Ok(Some((_, lease))) if !is_named(&lease) => return Ok(Broken::HeldByAnother),
            Ok(Some((holder, lease))) => (holder, Ok(lease)),
            Err(error) => {
                let reported = held_locks(&look.answers, |_| true).into_iter();
                let mut named = reported.filter(|held| is_named(&held.lease)).map(|held| held.holder);
                let Some(first) = named.next() else { return Err(error) };
                // It may be proposed to others, too.
                for other in named {
                    let call = self.to_break(key, &other, *fence);
                    self.pollster.see_through(&call, self.pollster.ask(&call, deadline));
                }
                (first, Err(error))
            }
        };
        let call = self.to_break(key, &holder, *fence);
        let mut poll = self.pollster.ask(&call, deadline);
        // Once so many have ended the grant, too few are left to make it one, and nothing mends it on these.
        if let Err(error) = poll.most(deadline).await {
            if let StoreError::Unknown(_) = error {
                // Some have ended it, and it must not come back to them from the others.
                self.pollster.see_through(&call, poll);
            }
            return Err(error);
        }
        let has_ended = count(&poll.answers, 0) > 0;
        self.pollster.see_through(&call, poll);
        let lease = lease?;
        // It may have been released just before.
        Ok(if has_ended { Broken::Broken(lease) } else { Broken::NotHeld })
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
        let (known, silent) = match known {
            KnownTo::Connection { number, told_for } => {
                let now = self.pollster.membership.clock.boot();
                let (told_for, silent) = self.earlier_leases.told_for(&attempt, told_for, now);
                // A server whose clock is fast must not end what was told before its time.
                let drift_ms = if told_for.is_zero() { 0 } else { drift(whole_ms(told_for)) };
                let told_for = told_for + Duration::from_millis(drift_ms);
                (KnownTo::Connection { number, told_for }, silent)
            }
            KnownTo::Nobody => (KnownTo::Nobody, Vec::new()),
        };
        let (quorum, blocking) = (self.pollster.membership.quorum(), self.pollster.membership.blocking());
        let calling = |known| Arc::new(self.rolling_back(key, token, attempt, known));
        let keeping = match known {
            KnownTo::Connection { number, .. } => {
                KnownTo::Connection { number, told_for: self.pollster.membership.longest() }
            }
            KnownTo::Nobody => KnownTo::Nobody,
        };
        let (call, keeping) = (calling(known), calling(keeping));
        let call_for =
            move |index: usize| if silent.get(index) == Some(&true) { &keeping } else { &call }.clone();
        let mut poll = self.pollster.ask_each(deadline, |index| Some(call_for(index)));
        poll.decide(deadline, |answers| (count(answers, 1) >= quorum).then_some(())).await;
        if poll.heard().count() < quorum {
            return Err(poll.too_few());
        }
        // What a connection was told of, most servers held: also the silent ones may have. As long as these may keep it, it is not over.
        let silent = match known {
            KnownTo::Connection { .. } => poll.answers.len() - poll.heard().count(),
            KnownTo::Nobody => 0,
        };
        let may_be_most = |said: usize| said > 0 && said + silent >= blocking;
        let rolled_back = match () {
            () if may_be_most(count(&poll.answers, 2)) => {
                RolledBack::LeftToToken { left_ms: by_most(&poll, 2, quorum) }
            }
            () if may_be_most(count(&poll.answers, 1)) => {
                RolledBack::Ended { kept_ms: by_most(&poll, 1, quorum) }
            }
            () => RolledBack::Nothing,
        };
        self.earlier_leases.forget(&attempt);
        self.pollster.see_each_through(poll, call_for);
        Ok(rolled_back)
    }

    pub(super) fn rolling_back(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        known: KnownTo,
    ) -> MemberCall {
        let told_of = match known {
            KnownTo::Connection { number, .. } => number.get(),
            KnownTo::Nobody => 0,
        };
        let (by, life_ms) = ([token.to_string(), attempt.to_string()], self.mark_ttl.as_millis().to_string());
        let args = by.into_iter().chain([life_ms, known_arg(known), told_of.to_string()]).collect();
        self.call(&scripts::ROLL_BACK, key, self.keys_of(key, token), args, Until::Always)
    }
}

/// For how long most servers, or all that gave this answer to a take-back, keep the lock.
fn by_most(poll: &Inquiry, outcome: i64, quorum: usize) -> u64 {
    let given = poll.heard().filter(|reply| reply.outcome == outcome);
    let mut lasting_ms: Vec<u64> = given.filter_map(|reply| reply.field(0)).collect();
    lasting_ms.sort_unstable_by(|a, b| b.cmp(a));
    lasting_ms.get(quorum - 1).or(lasting_ms.last()).copied().unwrap_or(0)
}

/// What servers are to answer to a release.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// What each of them finds.
    AsFound,
    /// The same, for a release that was answered before: what was said then is not made to live longer.
    Spread,
    /// This, if they have answered nothing before.
    UnlessSaid(Released),
    /// This, even if they have answered something else before.
    Agreed(Released),
}

/// What a server adds to an answer that it has given before.
const SAID_BEFORE: i64 = 10;

const ANSWERS: [Released; 3] = [Released::Released, Released::HeldByAnother, Released::NotHeld];

/// How many servers answer this to a release, now or before.
fn said(answers: &[Option<MemberAnswer>], answer: Released) -> usize {
    count(answers, code_of(answer)) + count(answers, SAID_BEFORE + code_of(answer))
}

/// The answer to a release that most servers give.
fn said_by_most(answers: &[Option<MemberAnswer>], quorum: usize) -> Option<Released> {
    ANSWERS.into_iter().find(|answer| said(answers, *answer) >= quorum)
}

/// What to answer to a release if no answer has most votes. Nothing if that is not known.
fn settled(answers: &[Option<MemberAnswer>], quorum: usize) -> Option<Released> {
    let silent = answers.len() - heard(answers).count();
    let may_be = |servers: usize| servers > 0 && servers + silent >= quorum;
    // A few servers had the lock. With the silent ones that may have been most, or what a renewal left on these alone.
    if may_be(said(answers, Released::Released)) {
        return None;
    }
    // What most servers may have answered before, a client may have got.
    let others = [Released::HeldByAnother, Released::NotHeld];
    let mut told = others.into_iter().filter(|answer| may_be(count(answers, SAID_BEFORE + code_of(*answer))));
    match (told.next(), told.next()) {
        (None, _) => others.into_iter().find(|answer| said(answers, *answer) > 0),
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

#[cfg(test)]
mod tests {
    use redis::{FromRedisValue, Value};

    use super::*;

    fn settled(answers: [Option<i64>; 3]) -> Option<Released> {
        let said = |code| ScriptReply::from_redis_value(Value::Array(vec![Value::Int(code)])).ok().map(Ok);
        super::settled(&answers.map(|code| code.and_then(said)), 2)
    }

    /// A server that lacked the lock said so before to the same request, which was answered by too few.
    #[test]
    fn a_holder_is_not_told_what_a_server_without_its_lock_said_before() {
        assert_eq!(settled([None, Some(0), Some(11)]), None);
        assert_eq!(settled([None, Some(1), Some(11)]), Some(Released::NotHeld));
    }

    #[test]
    fn a_release_is_believed_of_most_servers_only() {
        for others in [[None, Some(1)], [None, Some(2)], [None, Some(12)]] {
            for freed in [0, 10] {
                assert_eq!(settled([Some(freed), others[0], others[1]]), None);
            }
        }
        assert_eq!(settled([Some(0), Some(1), Some(2)]), Some(Released::HeldByAnother));
        assert_eq!(settled([Some(10), Some(11), Some(2)]), Some(Released::HeldByAnother));
    }
}
