//! Taking a lock: a number is proposed to all servers, and whoever has it accepted by most of them holds the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::scripts::{Reply, quorum as scripts};
use super::lease::{Held, held_locks};
use super::member::{Answer, Call, Silence, Until};
use super::poll::{Poll, heard};
use super::{QuorumStore, drift};
use crate::clock::Backoff;
use crate::lock::{Acquired, Attempt, FencingToken, Lease, LockKey, Refusal, Renewed, TokenHash};
use crate::store::{AcquireRequest, Bucket, Intent, ReleaseMark, StoreError};

/// The pause after a vote that nobody has won: it doubles from the first to the last, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// How long the one server is waited for that is asked first after such a vote.
const FIRST_ANSWERS_WITHIN: Duration = Duration::from_millis(50);
/// The part of a try's time after which no other round is begun.
const BEGUN_WITHIN: f64 = 0.6;

/// What a server said to a number.
enum Vote {
    Accepted {
        high: u64,
    },
    /// It has accepted this attempt in an earlier try.
    Before {
        high: u64,
    },
    /// The token holds the lock there, by this number.
    Own {
        number: u64,
    },
    Held {
        high: u64,
    },
    Released,
    Voided,
    Nobody,
    /// It has accepted this number before, or the one proposed is too far ahead of its clock.
    Passed {
        high: u64,
    },
}

/// What follows from the votes.
enum Verdict {
    Granted,
    /// In an earlier try of the same attempt.
    GrantedBefore(Lease),
    Own,
    Held(Lease),
    Released,
    Voided,
    Nobody,
    /// Most servers have passed this number.
    Passed {
        high: u64,
    },
    /// Nobody has most votes; some servers may say that the token holds the lock.
    Split {
        is_own: bool,
        /// What most servers have passed.
        high: Option<u64>,
    },
    TooFew(StoreError),
}

/// A wish for a lock, as the servers are asked it.
pub(super) struct Proposal<'a> {
    pub(super) request: &'a AcquireRequest,
    /// Whether the lock may be taken; else it is only asked for.
    pub(super) grants: bool,
    /// Where to tell that the lock is free, if somebody waits here.
    pub(super) channel: Option<&'a str>,
}

impl QuorumStore {
    /// Proposes numbers until the lock is granted, or it is known why not, or the time is over.
    pub(super) async fn propose(
        &self,
        mut proposal: Proposal<'_>,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        self.pollster.council.is_ready(deadline).await?;
        let request = proposal.request;
        let AcquireRequest { key, token, attempt, ttl, .. } = request;
        let bucket = self.keys.bucket_of(key);
        let now = Instant::now();
        let last_start = now + deadline.saturating_duration_since(now).mul_f64(BEGUN_WITHIN);
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut number = self.ballots.next(bucket, self.pollster.council.now_us());
        // How many votes nobody has won.
        let mut splits = 0;
        let (mut is_first, mut is_last, mut is_own) = (true, false, false);
        // The servers that may hold something of this attempt: they have accepted it, or may have, or may yet.
        let mut litter = vec![false; self.pollster.council.members.len()];
        loop {
            let (verdict, poll) = self.vote(&proposal, number, is_first, splits, deadline).await;
            is_first = false;
            // Those of this round were answered where it matters; a copy from an earlier one may still be on its way.
            let has_strays = litter.contains(&true);
            for (index, answer) in poll.answers.iter().enumerate().filter(|(index, _)| poll.asked[*index]) {
                litter[index] |= may_have_accepted_it(answer);
            }
            let may_have_accepted = litter.contains(&true);
            let give_up = || self.give_up(request, number, &litter, deadline);
            match verdict {
                Verdict::Granted => return self.granted(number, request),
                Verdict::GrantedBefore(lease) => {
                    let left_ms = lease.left_ms.saturating_sub(drift(request.ttl.as_ms()));
                    return Ok(Acquired::Granted(Lease { left_ms, ..lease }));
                }
                Verdict::Own => {
                    // Before servers are asked to renew the token's lock: they would renew what they have just accepted.
                    if may_have_accepted {
                        give_up().await_answers().await;
                    }
                    // The lease becomes as long as was asked for, and servers that lack the lock are given it.
                    return match self.renew_all(key, token, *ttl, deadline).await? {
                        Renewed::Renewed(lease) => Ok(Acquired::AlreadyHeld(lease)),
                        _ => {
                            Err(StoreError::Unknown("the lock was lost just after it was found held".into()))
                        }
                    };
                }
                Verdict::Held(lease) => {
                    if has_strays && !give_up().await_most().await {
                        let reason =
                            "somebody else holds the lock, but not all that was asked for before is undone";
                        return Err(StoreError::Unknown(reason.into()));
                    }
                    if !has_strays {
                        let undoing = self.giving_up(key, token, *attempt, number);
                        self.pollster.follow_up(&undoing, poll, may_have_accepted_it);
                    }
                    return Ok(refused(Some(lease)));
                }
                Verdict::Released => {
                    if may_have_accepted {
                        give_up().in_background();
                    }
                    // Whoever released it may not have reached most servers.
                    self.release_all(key, token, ReleaseMark::Final, deadline).await?;
                    return Ok(Acquired::TokenReleased);
                }
                Verdict::Voided => {
                    give_up().in_background();
                    return Ok(Acquired::AttemptVoided);
                }
                Verdict::Nobody => return Ok(refused(None)),
                Verdict::Passed { high } if Instant::now() < last_start => {
                    self.ballots.note(bucket, high);
                    number = self.next_number(&poll, bucket, high);
                    continue;
                }
                Verdict::TooFew(error) => {
                    let is_undone = !may_have_accepted || give_up().await_most().await;
                    let (StoreError::Unavailable(reason) | StoreError::Unknown(reason)) = error;
                    return Err(if is_undone {
                        StoreError::Unavailable(reason)
                    } else {
                        StoreError::Unknown(reason)
                    });
                }
                Verdict::Passed { .. } | Verdict::Split { .. } => {
                    is_own |= matches!(verdict, Verdict::Split { is_own: true, .. });
                    let is_undone = !may_have_accepted || give_up().await_most().await;
                    if !is_undone || is_last && is_own {
                        return Err(StoreError::Unknown(
                            "the servers do not agree on who holds the lock".into(),
                        ));
                    }
                    if is_last {
                        return Ok(refused(None));
                    }
                    // Nothing of the numbers so far can be granted any more.
                    litter.fill(false);
                    if let Verdict::Passed { high } | Verdict::Split { high: Some(high), .. } = verdict {
                        self.ballots.note(bucket, high);
                    }
                    if Instant::now() + pauses.next() < last_start {
                        pauses.pause().await;
                        number = self.ballots.next(bucket, self.pollster.council.now_us());
                        splits += 1;
                    } else {
                        // The last word is that of all, who are only asked.
                        is_last = true;
                        splits = 0;
                        proposal = Proposal { grants: false, ..proposal };
                    }
                }
            }
        }
    }

    /// A number above `high`. Where the last one was too far ahead of some clock, time plays no part any more.
    fn next_number(&self, poll: &Poll, bucket: Bucket, high: u64) -> u64 {
        let is_too_far = poll.heard().any(|reply| reply.outcome == 8);
        if is_too_far { high + 1 } else { self.ballots.next(bucket, self.pollster.council.now_us()) }
    }

    /// The lease that most servers have accepted, as far as it can be relied on. What went by since the question was sent
    /// is the caller's to subtract.
    fn granted(&self, number: u64, request: &AcquireRequest) -> Result<Acquired, StoreError> {
        let ttl_ms = request.ttl.as_ms();
        let fencing_token = FencingToken::new(number).ok_or_else(|| {
            StoreError::Unknown("the clocks of the servers are too far ahead for a fencing number".into())
        })?;
        let left_ms = ttl_ms.saturating_sub(drift(ttl_ms));
        Ok(Acquired::Granted(Lease { fencing_token, left_ms, owner: request.owner.clone() }))
    }

    /// Asks all servers for their votes on a number.
    async fn vote(
        &self,
        proposal: &Proposal<'_>,
        number: u64,
        is_first: bool,
        splits: usize,
        deadline: Instant,
    ) -> (Verdict, Poll) {
        let call = Arc::new(self.proposing(proposal, number, is_first, deadline));
        let council = &self.pollster.council;
        let good: Vec<_> =
            (0..council.members.len()).filter(|index| council.members[*index].standing().is_ok()).collect();
        if splits > 0 && !good.is_empty() {
            // All who contend ask the same server first, and only one of them goes on. Another one next time: what is left
            // of a lock that nobody holds may be in the way there.
            let first = good[(splits - 1) % good.len()];
            let mut poll = self.pollster.ask_some(&call, deadline, |index| index == first);
            poll.decide(deadline.min(Instant::now() + FIRST_ANSWERS_WITHIN), |_| None::<()>).await;
            if let Some(Some(Ok(reply))) = poll.answers.get(first)
                && reply.outcome == 2
            {
                return (Verdict::Split { is_own: false, high: None }, poll);
            }
            let mut others = self.pollster.ask_some(&call, deadline, |index| index != first);
            (others.answers[first], others.asked[first]) = (poll.answers[first].take(), true);
            return (self.count(&mut others, deadline).await, others);
        }
        let mut poll = self.pollster.ask(&call, deadline);
        (self.count(&mut poll, deadline).await, poll)
    }

    async fn count(&self, poll: &mut Poll, deadline: Instant) -> Verdict {
        let (quorum, blocking) = (self.pollster.council.quorum(), self.pollster.council.blocking());
        let decided = poll.decide(deadline, |answers| early(answers, quorum, blocking)).await;
        decided.unwrap_or_else(|| late(poll, quorum))
    }

    fn proposing(&self, proposal: &Proposal<'_>, number: u64, is_first: bool, deadline: Instant) -> Call {
        let AcquireRequest { key, token, attempt, ttl, owner, intent } = proposal.request;
        let supersedes = match intent {
            Intent::Join(join) => join.supersedes.iter().map(|attempt| format!("{attempt} ")).collect(),
            _ => String::new(),
        };
        let args = vec![
            token.to_string(),
            attempt.to_string(),
            if proposal.grants { "grant" } else { "confirm" }.to_owned(),
            ttl.as_ms().to_string(),
            number.to_string(),
            owner.as_ref().map_or_else(String::new, |owner| owner.as_str().to_owned()),
            proposal.channel.unwrap_or_default().to_owned(),
            supersedes,
            self.mark_ttl_ms.clone(),
            if is_first { "1" } else { "0" }.to_owned(),
        ];
        let keys = vec![self.keys.lock(key), self.keys.mark(key, token), self.keys.watch(key)];
        self.call(
            &scripts::ACQUIRE,
            key,
            keys,
            args,
            Until::About(self.pollster.council.since_boot(deadline)),
        )
    }

    /// Gives up all numbers up to this one, wherever something may be left of them.
    fn give_up(
        &self,
        request: &AcquireRequest,
        number: u64,
        litter: &[bool],
        deadline: Instant,
    ) -> GivingUp<'_> {
        let call = self.giving_up(&request.key, &request.token, request.attempt, number);
        let poll = self.pollster.ask_some(&call, deadline, |index| litter[index]);
        let clean = litter.iter().filter(|may_hold| !**may_hold).count();
        GivingUp { store: self, poll, call, clean, deadline }
    }

    fn giving_up(&self, key: &LockKey, token: &TokenHash, attempt: Attempt, number: u64) -> Arc<Call> {
        let args = vec![token.to_string(), attempt.to_string(), number.to_string()];
        let keys = vec![self.keys.lock(key), self.keys.watch(key)];
        Arc::new(self.call(&scripts::GIVE_UP, key, keys, args, Until::Always))
    }
}

/// Numbers that are being given up.
#[must_use]
struct GivingUp<'a> {
    store: &'a QuorumStore,
    poll: Poll,
    call: Arc<Call>,
    /// How many servers certainly hold nothing of it.
    clean: usize,
    deadline: Instant,
}

impl GivingUp<'_> {
    fn in_background(self) {
        self.store.pollster.see_through(&self.call, self.poll);
    }

    /// Waits until the servers have answered.
    async fn await_answers(mut self) {
        self.poll.decide(self.deadline, |_| None::<()>).await;
        self.in_background();
    }

    /// Waits until so many servers hold nothing of it that it can never be granted any more; else returns `false`.
    async fn await_most(mut self) -> bool {
        let (blocking, clean) = (self.store.pollster.council.blocking(), self.clean);
        let is_undone = |answers: &[Option<Answer>]| {
            let undone = heard(answers).filter(|reply| reply.outcome == 0).count();
            (clean + undone >= blocking).then_some(())
        };
        let is_undone = self.poll.decide(self.deadline, is_undone).await.is_some();
        self.in_background();
        is_undone
    }
}

fn refused(holder: Option<Lease>) -> Acquired {
    Acquired::Refused(Refusal { holder, ..Refusal::default() })
}

/// Whether a server that was asked may hold something of an attempt; one that is silent may.
fn may_have_accepted_it(answer: &Option<Answer>) -> bool {
    match answer {
        Some(Ok(reply)) => matches!(reply.outcome, 0 | 9),
        Some(Err(Silence::Out(_))) => false,
        Some(Err(Silence::Doubt(_))) | None => true,
    }
}

fn vote_of(reply: &Reply) -> Option<Vote> {
    let high = |index| reply.field::<String>(index)?.parse().ok();
    Some(match reply.outcome {
        0 => Vote::Accepted { high: high(2)? },
        1 => Vote::Own { number: reply.lease()?.fencing_token.get() },
        2 => Vote::Held { high: high(2)? },
        3 => Vote::Released,
        4 => Vote::Voided,
        6 => Vote::Nobody,
        7 | 8 => Vote::Passed { high: high(0)? },
        9 => Vote::Before { high: high(2)? },
        _ => return None,
    })
}

/// What is clear already, whatever the others say.
fn early(answers: &[Option<Answer>], quorum: usize, blocking: usize) -> Option<Verdict> {
    let (mut accepted, mut nobody) = (0, 0);
    let mut own = BTreeMap::<u64, usize>::new();
    for vote in heard(answers).filter_map(vote_of) {
        match vote {
            Vote::Accepted { .. } => accepted += 1,
            Vote::Nobody => nobody += 1,
            Vote::Own { number } => *own.entry(number).or_default() += 1,
            // A token that was released anywhere is on its way to be released everywhere.
            Vote::Released => return Some(Verdict::Released),
            Vote::Voided => return Some(Verdict::Voided),
            Vote::Before { .. } | Vote::Held { .. } | Vote::Passed { .. } => {}
        }
    }
    if accepted >= quorum {
        return Some(Verdict::Granted);
    }
    if let Some(lease) = locks_by(answers, 9).find_map(|held| held.by(quorum)) {
        return Some(Verdict::GrantedBefore(lease));
    }
    if own.values().any(|count| *count >= quorum) {
        return Some(Verdict::Own);
    }
    if let Some(lease) = locks_by(answers, 2).find_map(|held| held.by(quorum)) {
        return Some(Verdict::Held(lease));
    }
    (nobody >= blocking).then_some(Verdict::Nobody)
}

/// What follows once nothing more can be hoped for.
fn late(poll: &Poll, quorum: usize) -> Verdict {
    let votes: Vec<_> = poll.heard().filter_map(vote_of).collect();
    if votes.len() < quorum {
        return Verdict::TooFew(poll.too_few());
    }
    let mut highs = Vec::new();
    let (mut is_own, mut is_held, mut has_passed) = (false, false, false);
    for vote in votes {
        match vote {
            Vote::Accepted { high } => highs.push(high),
            Vote::Held { high } => {
                is_held = true;
                highs.push(high);
            }
            Vote::Passed { high } | Vote::Before { high } => {
                has_passed = true;
                highs.push(high);
            }
            Vote::Own { .. } => is_own = true,
            Vote::Released | Vote::Voided | Vote::Nobody => {}
        }
    }
    highs.sort_unstable();
    // Above that of as many servers as are needed, and not of all: one that is far ahead would drag the number to where
    // the others refuse it.
    if let Some(high) = highs.get(quorum - 1)
        && has_passed
        && !is_held
        && !is_own
    {
        return Verdict::Passed { high: *high };
    }
    Verdict::Split { is_own, high: highs.get(quorum - 1).copied() }
}

/// The locks that servers have named in this kind of answer.
fn locks_by(answers: &[Option<Answer>], outcome: i64) -> impl Iterator<Item = Held> {
    held_locks(answers, move |reply| reply.outcome == outcome).into_iter()
}
