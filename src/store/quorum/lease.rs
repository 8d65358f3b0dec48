//! What is done to a lock that is held: renewing and repairing, looking.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::QuorumStore;
use super::member::{MemberAnswer, MemberCall, Silence, Until};
use super::poll::{FIRST_PAUSE, Inquiry, LONGEST_PAUSE, Pollster, heard};
use super::reports::{
    ClaimedBy, EarlierLease, ReportedLock, UNEVEN_MS, count, held_locks, most_held, relied_on, told_before,
};
use super::scripts;
use crate::clock::Backoff;
use crate::lock::{Attempt, FencingToken, Lease, LockKey, Renewed, TokenHash, Ttl};
use crate::store::redis::scripts::{Script, ScriptReply, renewer};
use crate::store::{KnownTo, LockRequest, Renew, Renewer, StoreError};

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
        let number = lease.fencing_token.get();
        let args = vec![
            token.to_string(),
            number.to_string(),
            lease.note.stored().to_owned(),
            lease.left_ms.to_string(),
            number.to_string(),
            renewer(by),
            term(3).map_or_else(String::new, |ms| ms.to_string()),
            term(4).map_or_else(String::new, |ms| ms.to_string()),
            lasting_ms.to_string(),
        ];
        let keys = vec![self.keys.lock(key), self.keys.tombstone(key, token)];
        let mut call = self.call(&scripts::REPAIR, key, keys, args, Until::AtMost(until));
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
        let mut burning = self.giving_up(key, token, Attempt::generate(), number);
        let (look, end) = (self.to_inspect(key, None), self.to_break(key, token, lease.fencing_token));
        let grant = (*token, lease.fencing_token);
        tokio::spawn(async move {
            poll.rest().await;
            let deadline = Instant::now() + until.saturating_sub(pollster.membership.clock.boot());
            let lacking: Vec<_> = poll.answers.iter().map(|answer| !has_it(answer)).collect();
            let largest = poll.heard().filter_map(|reply| Some(reply.lease()?.fencing_token.get())).max();
            if let Some(largest) = largest.filter(|largest| *largest > number) {
                burning.args[2] = largest.to_string();
                let holders = pollster.ask_some(&Arc::new(burning), deadline, |index| !lacking[index]);
                if pollster.is_burnt(holders, number, deadline).await {
                    call.args[4] = largest.to_string();
                }
            }
            let mut mended = pollster.ask_some(&Arc::new(call), deadline, |index| lacking[index]);
            mended.rest().await;
            if mended.answers.iter().flatten().any(has_mended) {
                pollster.end_unless_held(grant, &look, &end, mended, until).await;
            }
        });
    }

    pub(super) fn to_inspect(&self, key: &LockKey, token: Option<&TokenHash>) -> Arc<MemberCall> {
        let shown = token.map(ToString::to_string).unwrap_or_default();
        Arc::new(self.call(&scripts::INSPECT, key, vec![self.keys.lock(key)], vec![shown], Until::Always))
    }

    /// Asks who holds a lock; pins it, if it is `token`.
    pub(super) async fn holder(
        &self,
        key: &LockKey,
        token: Option<&TokenHash>,
        deadline: Instant,
    ) -> Result<Option<(TokenHash, Lease)>, StoreError> {
        let mut look = self.pollster.ask(&self.to_inspect(key, token), deadline);
        self.holder_by(&mut look, deadline).await
    }

    /// Who holds a lock, by a look at all servers.
    pub(super) async fn holder_by(
        &self,
        poll: &mut Inquiry,
        deadline: Instant,
    ) -> Result<Option<(TokenHash, Lease)>, StoreError> {
        let (quorum, blocking) = (self.pollster.membership.quorum(), self.pollster.membership.blocking());
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
        let silent = undecided(poll);
        let reported = held_locks(&poll.answers, |_| true);
        let most = reported.iter().map(ReportedLock::count).max().unwrap_or(0);
        // A silent server may hold it too.
        if free(&poll.answers) || poll.heard().count() >= quorum && most + silent < quorum {
            return Ok(None);
        }
        // An operator who is told of the grant may break it.
        let told = reported.iter().map(|held| {
            format!("; the grant {} has the lock on {} of them", held.lease.fencing_token.get(), held.count())
        });
        Err(match poll.too_few() {
            StoreError::Unknown(why) => StoreError::Unknown(told.fold(why, |why, grant| why + &grant)),
            error => error,
        })
    }

    /// Pins the token's grant, or claims it for a connection. Servers that lack the lock are given it.
    pub(super) async fn pin(&self, request: &LockRequest, deadline: Instant) -> Result<Lease, StoreError> {
        let LockRequest { key, token, attempt, ttl, .. } = request.clone();
        // The lease becomes as long as was asked for; that of a claim stays what it was, as in redis/scripts/acquire.lua.
        let (ttl, by) = match attempt.is_of_connection() {
            true => (Ttl::SHORTEST, Renewer::Connection(attempt.claim())),
            false => (ttl, Renewer::Token),
        };
        match self.renew_all(&Renew { key, token, ttl, by }, deadline).await {
            Ok(Renewed::Renewed(lease) | Renewed::MaxHoldReached(lease)) => Ok(lease),
            Ok(_) => Err(StoreError::Unknown("the lock ended just after it was found held".to_owned())),
            // Servers have pinned it, or claimed it, when they were asked before.
            Err(StoreError::Unavailable(reason) | StoreError::Unknown(reason)) => {
                Err(StoreError::Unknown(reason))
            }
        }
    }

    /// Pins the grant by the claim of a connection, and notes until when a lease may run that the token was told of before it. `vote`
    /// is the one by which servers have claimed the lock; it may be the only one in which they could.
    pub(super) async fn pin_by_claim(
        &self,
        request: &LockRequest,
        vote: Inquiry,
        is_only_vote: bool,
        deadline: Instant,
    ) -> Result<Lease, StoreError> {
        let lease = self.pin(request, deadline).await?;
        let (claimed_by, voiding, mut poll) = if is_only_vote {
            (ClaimedBy::Vote, None, vote)
        } else {
            let (call, poll) = self.void(request, deadline).await?;
            (ClaimedBy::Attempt, Some(call), poll)
        };
        // What has come meanwhile counts as well.
        poll.decide(Instant::now(), |_| None::<()>).await;
        let (number, claim) = (lease.fencing_token, request.attempt.claim());
        let (told_for, silent) = told_before(&poll.answers, number, claimed_by);
        let pollster = self.pollster.clone();
        let (now, longest) = (pollster.membership.clock.boot(), pollster.membership.longest());
        let is_complete = !silent.contains(&true);
        let earlier = EarlierLease {
            claimed_until: now + Duration::from_millis(lease.left_ms),
            told_until: now + told_for.unwrap_or(longest),
            silent,
            silent_until: now + longest,
        };
        self.earlier_leases.note(claim, earlier, now);
        if !is_complete {
            let earlier_leases = self.earlier_leases.clone();
            tokio::spawn(async move {
                poll.rest().await;
                let (told_for, silent) = told_before(&poll.answers, number, claimed_by);
                let told_until = pollster.membership.clock.boot() + told_for.unwrap_or_default();
                earlier_leases.complete(&claim, told_until, silent);
                if let Some(call) = voiding {
                    pollster.see_through(&call, poll);
                }
            });
        }
        Ok(lease)
    }

    /// Voids an attempt that has claimed a lock, on most servers: a copy that comes late must not claim it anew. Says by which call,
    /// and what they have answered.
    async fn void(
        &self,
        request: &LockRequest,
        deadline: Instant,
    ) -> Result<(Arc<MemberCall>, Inquiry), StoreError> {
        let LockRequest { key, token, attempt, .. } = request;
        let call = Arc::new(self.rolling_back(key, token, *attempt, KnownTo::Nobody));
        let mut poll = self.pollster.ask(&call, deadline);
        // Servers have claimed it.
        poll.most(deadline).await.map_err(|error| StoreError::Unknown(error.to_string()))?;
        Ok((call, poll))
    }

    /// Gives a number up, and all smaller ones of its attempt.
    pub(super) fn giving_up(
        &self,
        key: &LockKey,
        token: &TokenHash,
        attempt: Attempt,
        number: u64,
    ) -> MemberCall {
        let args = vec![token.to_string(), attempt.to_string(), number.to_string()];
        let keys = vec![self.keys.lock(key), self.keys.watch(key)];
        self.call(&scripts::GIVE_UP, key, keys, args, Until::Always)
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
        let field = format!("b{}", self.keys.bucket_of(key).0);
        MemberCall { script, keys, args, field, until, shortcut: None }
    }
}

/// How many servers may hold any lock, by their answers to who holds it. One that says that it is held, but not by whom, is among
/// them.
fn undecided(poll: &Inquiry) -> usize {
    let is_clear = |reply: &&ScriptReply| reply.outcome == 0 || reply.lease().is_some();
    poll.answers.len() - poll.heard().filter(is_clear).count()
}

/// Whether a server has the lock by a repair, or may have it.
fn has_mended(answer: &MemberAnswer) -> bool {
    match answer {
        Ok(reply) => reply.outcome == 0,
        Err(Silence::Out(_)) => false,
        Err(Silence::Doubt(_)) => true,
    }
}

impl Pollster {
    /// Whether a number can never be granted any more that servers which hold a smaller one of its token were told to burn.
    async fn is_burnt(&self, mut holders: Inquiry, smaller: u64, deadline: Instant) -> bool {
        let refuses = |reply: &&ScriptReply| reply.field::<u64>(0).is_some_and(|own| own <= smaller);
        let blocking = self.membership.blocking();
        let are_enough = |answers: &[Option<MemberAnswer>]| {
            (heard(answers).filter(refuses).count() >= blocking).then_some(())
        };
        holders.decide(deadline, are_enough).await.is_some()
    }

    /// Ends a grant again where it was `mended`, unless most servers may still have it. It may have been released while that was
    /// under way: a release without a tombstone leaves nothing that would stop a repair. One that was not answered may come until
    /// its deadline.
    async fn end_unless_held(
        &self,
        (token, number): (TokenHash, FencingToken),
        look: &Arc<MemberCall>,
        end: &Arc<MemberCall>,
        mended: Inquiry,
        until: Duration,
    ) {
        let Ok(_permit) = self.looks_after.try_acquire() else { return };
        let (membership, started) = (&self.membership, Instant::now());
        let is_it = |held: &ReportedLock| held.holder == token && held.lease.fencing_token == number;
        let may_come_late =
            mended.answers.iter().any(|answer| matches!(answer, Some(Err(Silence::Doubt(_)))));
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while started.elapsed() < membership.longest() && !membership.stop.is_cancelled() {
            let has_come = !may_come_late || membership.clock.boot() > until;
            let mut seen = self.ask(look, Instant::now() + membership.reply_timeout);
            seen.rest().await;
            let holding: usize = held_locks(&seen.answers, |_| true)
                .iter()
                .filter(|held| is_it(held))
                .map(ReportedLock::count)
                .sum();
            let silent = undecided(&seen);
            match membership.quorum() {
                quorum if holding >= quorum && has_come => return,
                quorum if holding + silent < quorum => {
                    let has_it = |index: usize| mended.answers[index].as_ref().is_some_and(has_mended);
                    let ended = self.ask_some(end, Instant::now() + membership.reply_timeout, has_it);
                    return self.see_through(end, ended);
                }
                _ => pauses.pause().await,
            }
        }
    }
}
