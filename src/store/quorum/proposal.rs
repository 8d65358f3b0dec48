//! Taking a lock: the gateway proposes a number to all servers. If most of them accept it, the lock is granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::QuorumStore;
use super::ending::Word;
use super::member::fast_path::{Shortcut, TakeFree};
use super::member::{MemberAnswer, MemberCall, Until};
use super::poll::{Inquiry, heard};
use super::reports::{drift, relied_on};
use super::scripts;
use super::tally::{
    Tally, accepted_before, early, held_up_by_clocks, is_too_far_ahead, late, may_have_accepted_it,
    refused_by_clocks,
};
use crate::clock::{Backoff, part_of};
use crate::lock::{Acquired, Attempt, FencingToken, Lease, Refusal};
use crate::store::redis::scripts::{flag, terms as terms_args};
use crate::store::{LockRequest, StoreError};

/// The pause after a split vote: it doubles from the first to the last, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// How long the one server is waited for that is asked first after such a vote, and others that need not answer.
const FIRST_ANSWERS_WITHIN: Duration = Duration::from_millis(50);
/// The part of a try's time after which no other round is begun.
const BEGUN_WITHIN: f64 = 0.6;

/// A wish for a lock, as the servers are asked it.
pub(super) struct Proposal<'a> {
    pub(super) request: &'a LockRequest,
    /// Attempts for which this one stands.
    pub(super) supersedes: &'a [Attempt],
    /// Whether the lock may be taken; else it is only asked for.
    pub(super) grants: bool,
    /// Where to tell that the lock is free, if a request waits here.
    pub(super) channel: Option<&'a str>,
    /// Whether the request waits if the lock is not granted.
    pub(super) waits: bool,
    /// Whether a connection that was granted the lock meanwhile keeps it.
    pub(super) has_waited: bool,
}

/// What was proposed of a wish so far.
struct Bid<'a> {
    store: &'a QuorumStore,
    proposal: Proposal<'a>,
    number: u64,
    /// The largest number of this attempt that a server may have accepted: a later one may be smaller.
    largest: u64,
    is_first: bool,
    /// Whether the number is the smallest that most servers have not passed yet.
    is_smallest: bool,
    /// The servers whose clocks alone kept the last number from being granted.
    behind: Vec<usize>,
    /// Whether some number was to be granted.
    has_granted: bool,
    /// How many votes were split.
    splits: usize,
    /// Whether this is the last word: that of all servers, who are only asked.
    is_last: bool,
    /// Whether some server has said that the token holds the lock.
    is_own: bool,
    /// The same, and has pinned it for that, or claimed it.
    is_pinned: bool,
    /// The servers that may hold something of this attempt: they have accepted it, or may have, or may yet.
    possibly_accepted: Vec<bool>,
    /// Whether there were such before the last vote. Those of the last one were answered where it matters; a copy from an
    /// earlier one may still be on its way.
    has_strays: bool,
    deadline: Instant,
}

impl QuorumStore {
    /// Proposes numbers until the lock is granted, or it is known why not, or the time is over.
    pub(super) async fn propose(
        &self,
        proposal: Proposal<'_>,
        deadline: Instant,
    ) -> Result<Acquired<Refusal>, StoreError> {
        let membership = &self.pollster.membership;
        membership.is_ready(deadline).await?;
        let last_start = part_of(deadline, BEGUN_WITHIN);
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut bid = Bid {
            store: self,
            number: self.ballots.next(self.keys.bucket_of(&proposal.request.key), membership.now_us()),
            largest: 0,
            has_granted: proposal.grants,
            proposal,
            is_first: true,
            is_smallest: false,
            behind: Vec::new(),
            splits: 0,
            is_last: false,
            is_own: false,
            is_pinned: false,
            possibly_accepted: vec![false; membership.members.len()],
            has_strays: false,
            deadline,
        };
        loop {
            let (tally, poll) = bid.vote().await;
            match tally {
                Tally::Passed(high) if Instant::now() < last_start && !bid.is_out_of_reach() => {
                    bid.rise_above(high, &poll);
                }
                Tally::Passed(_) | Tally::Split { .. } => {
                    bid.fail(&tally).await?;
                    if bid.is_last {
                        return bid.conclude(tally, poll).await;
                    }
                    if Instant::now() + pauses.next() < last_start {
                        pauses.pause().await;
                        bid.try_again();
                    } else {
                        bid.ask_for_the_last_word();
                    }
                }
                tally => return bid.conclude(tally, poll).await,
            }
        }
    }
}

impl Bid<'_> {
    /// Asks the servers for their votes on the number.
    async fn vote(&mut self) -> (Tally, Inquiry) {
        let (tally, poll) = self.ask().await;
        self.is_first = false;
        self.largest = self.largest.max(self.number).max(accepted_before(&poll.answers));
        self.has_strays = self.may_be_accepted();
        self.is_pinned |= poll.heard().any(|reply| reply.outcome == 1);
        for (index, answer) in poll.answers.iter().enumerate().filter(|(index, _)| poll.asked[*index]) {
            self.possibly_accepted[index] |= may_have_accepted_it(answer);
        }
        if self.proposal.grants {
            self.behind = held_up_by_clocks(&poll.answers, self.is_smallest);
        }
        (tally, poll)
    }

    /// Whether some clock has to go on before a number can be granted: even the smallest was too far ahead of it.
    fn is_out_of_reach(&self) -> bool {
        self.is_smallest && !self.behind.is_empty()
    }

    /// Goes on with a number above `high`. Where the last one was too far ahead of some clock, time plays no part any more.
    fn rise_above(&mut self, high: u64, poll: &Inquiry) {
        self.store.ballots.note(self.store.keys.bucket_of(&self.proposal.request.key), high);
        self.is_smallest = poll.heard().any(is_too_far_ahead);
        self.number = if self.is_smallest { high + 1 } else { self.next_number() };
    }

    /// Undoes what a split vote has left on the servers.
    async fn fail(&mut self, tally: &Tally) -> Result<(), StoreError> {
        self.is_own |= matches!(tally, Tally::Split { is_own: true, .. });
        if !self.is_undone().await || self.is_last && self.is_own {
            return Err(StoreError::Unknown("the servers do not agree on who holds the lock".into()));
        }
        // Nothing of the numbers so far can be granted any more.
        self.possibly_accepted.fill(false);
        if let Tally::Passed(high) | Tally::Split { high: Some(high), .. } = tally {
            self.store.ballots.note(self.store.keys.bucket_of(&self.proposal.request.key), *high);
        }
        Ok(())
    }

    fn try_again(&mut self) {
        self.number = self.next_number();
        self.is_smallest = false;
        self.splits += 1;
    }

    fn ask_for_the_last_word(&mut self) {
        self.is_last = true;
        self.splits = 0;
        self.proposal.grants = false;
    }

    /// What a tally after which nothing else is proposed means for the caller.
    async fn conclude(self, tally: Tally, poll: Inquiry) -> Result<Acquired<Refusal>, StoreError> {
        let LockRequest { key, token, attempt, ttl, .. } = self.proposal.request;
        let unknown = |reason: &str| Err(StoreError::Unknown(reason.to_owned()));
        match tally {
            Tally::Granted => self.granted(),
            Tally::GrantedBefore(lease) => {
                let left_ms = lease.left_ms.saturating_sub(drift(ttl.as_ms()));
                Ok(Acquired::Granted(Lease { left_ms, ..lease }))
            }
            Tally::Own | Tally::TakenOver => {
                // Before servers are asked to renew the token's lock: they would renew what they have just accepted.
                if self.may_be_accepted() {
                    self.give_up().await_answers().await;
                }
                if matches!(tally, Tally::TakenOver) {
                    return Ok(Acquired::TakenOver);
                }
                let (request, deadline) = (self.proposal.request, self.deadline);
                if !attempt.is_of_connection() {
                    return Ok(Acquired::AlreadyHeld(self.store.pin(request, deadline).await?));
                }
                let is_first_vote = !self.has_strays && self.splits == 0 && !self.is_last;
                let has_asked_once = is_first_vote && !self.proposal.waits && !self.proposal.has_waited;
                let lease = self.store.pin_by_claim(request, poll, has_asked_once, deadline).await?;
                Ok(Acquired::AlreadyHeld(lease))
            }
            Tally::Held(_) if self.has_strays && !self.give_up().await_most().await => unknown(
                "another client holds the lock, and some earlier tries of this request are not undone yet",
            ),
            Tally::Held(lease) => {
                if !self.has_strays {
                    let undoing = Arc::new(self.store.giving_up(key, token, *attempt, self.largest));
                    self.store.pollster.follow_up(&undoing, poll, may_have_accepted_it);
                }
                Ok(refused(Some(lease)))
            }
            Tally::Released => {
                if self.may_be_accepted() {
                    self.give_up().in_background();
                }
                // The gateway that released it may not have reached most servers.
                self.store.free(key, token, Word::Spread, self.deadline).await?;
                Ok(Acquired::TokenReleased)
            }
            // By a vote before this one, a server has claimed it.
            Tally::Voided if self.is_pinned => unknown("some server took the token for the holder"),
            Tally::Voided => {
                self.give_up().in_background();
                Ok(Acquired::AttemptVoided)
            }
            Tally::TooFew(error) => {
                let is_undone = self.is_undone().await && !self.is_pinned;
                let kind = if is_undone { StoreError::Unavailable } else { StoreError::Unknown };
                Err(kind(error.to_string()))
            }
            Tally::Nobody if !self.behind.is_empty() && self.is_pinned => unknown(
                "some server took the token for the holder, and the clocks of others are too far behind",
            ),
            Tally::Nobody if !self.behind.is_empty() => {
                Err(refused_by_clocks(&self.store.pollster.membership, &self.behind))
            }
            Tally::Nobody if self.has_granted => Ok(holder_unknown()),
            Tally::Nobody => Ok(refused(None)),
            Tally::Passed(_) | Tally::Split { .. } => Ok(holder_unknown()),
        }
    }

    /// The lease that most servers have accepted, as far as it can be relied on. What went by since the question was sent
    /// is the caller's to subtract.
    fn granted(&self) -> Result<Acquired<Refusal>, StoreError> {
        let request = self.proposal.request;
        let fencing_token = FencingToken::new(self.number).ok_or_else(|| {
            StoreError::Unknown("the clocks of the servers are too far ahead to make a fencing token".into())
        })?;
        self.store.pollster.membership.members.iter().for_each(|member| member.note_refusal(false));
        let (left_ms, note) = (relied_on(request.ttl.as_ms()), request.note.clone());
        Ok(Acquired::Granted(Lease { fencing_token, left_ms, note, is_released: false, slot: None }))
    }

    fn next_number(&self) -> u64 {
        let bucket = self.store.keys.bucket_of(&self.proposal.request.key);
        self.store.ballots.next(bucket, self.store.pollster.membership.now_us())
    }

    fn may_be_accepted(&self) -> bool {
        self.possibly_accepted.contains(&true)
    }

    /// Whether nothing of the numbers so far can be granted any more, once they are given up.
    async fn is_undone(&self) -> bool {
        !self.may_be_accepted() || self.give_up().await_most().await
    }

    /// Gives up all numbers so far, wherever something may be left of them.
    fn give_up(&self) -> GivingUp<'_> {
        let LockRequest { key, token, attempt, .. } = self.proposal.request;
        let (store, deadline) = (self.store, self.deadline);
        let call = Arc::new(store.giving_up(key, token, *attempt, self.largest));
        let poll = store.pollster.ask_some(&call, deadline, |index| self.possibly_accepted[index]);
        let clean = self.possibly_accepted.iter().filter(|may_hold| !**may_hold).count();
        GivingUp { store, poll, call, clean, deadline }
    }

    async fn ask(&self) -> (Tally, Inquiry) {
        let call = Arc::new(self.call());
        let (pollster, deadline) = (&self.store.pollster, self.deadline);
        let membership = &pollster.membership;
        let good = if self.splits > 0 { membership.good() } else { Vec::new() };
        if !good.is_empty() {
            // All gateways that compete ask the same server first, and only one of them goes on. Next time it is
            // another server, since the rest of a lock without a holder may be in the way on this one.
            let first = good[(self.splits - 1) % good.len()];
            let mut poll = pollster.ask_some(&call, deadline, |index| index == first);
            poll.decide(deadline.min(Instant::now() + FIRST_ANSWERS_WITHIN), |_| None::<()>).await;
            if let Some(Some(Ok(reply))) = poll.answers.get(first)
                && reply.outcome == 2
            {
                return (Tally::Split { is_own: false, high: None }, poll);
            }
            let mut others = pollster.ask_some(&call, deadline, |index| index != first);
            (others.answers[first], others.asked[first]) = (poll.answers[first].take(), true);
            return (self.count(&mut others).await, others);
        }
        let mut poll = pollster.ask(&call, deadline);
        (self.count(&mut poll).await, poll)
    }

    async fn count(&self, poll: &mut Inquiry) -> Tally {
        let (quorum, blocking) =
            (self.store.pollster.membership.quorum(), self.store.pollster.membership.blocking());
        let decided = poll.decide(self.deadline, |answers| early(answers, quorum, blocking)).await;
        decided.unwrap_or_else(|| late(poll, quorum))
    }

    fn call(&self) -> MemberCall {
        let Proposal { request, supersedes, grants, channel, waits, has_waited } = &self.proposal;
        let store = self.store;
        let LockRequest { key, token, attempt, ttl, note, terms } = *request;
        let mut args = vec![
            token.to_string(),
            attempt.to_string(),
            if *grants { "grant" } else { "confirm" }.to_owned(),
            ttl.as_ms().to_string(),
            self.number.to_string(),
            note.stored().to_owned(),
            channel.unwrap_or_default().to_owned(),
            supersedes.iter().map(|attempt| format!("{attempt} ")).collect(),
            store.mark_ttl.as_millis().to_string(),
            flag(self.is_first).to_owned(),
        ];
        args.extend(
            terms_args(*terms).into_iter().chain([*has_waited, *waits].map(|is_so| flag(is_so).to_owned())),
        );
        let keys = store.keys_of(key, token);
        let until = Until::About(store.pollster.membership.since_boot(self.deadline));
        let mut call = store.call(&scripts::ACQUIRE, key, keys, args, until);
        if self.is_first && *grants && supersedes.is_empty() && channel.is_none() && terms.are_none() {
            call.shortcut = Some(Shortcut::Take(Arc::new(TakeFree {
                lock: call.keys[0].clone(),
                tombstone: call.keys[1].clone(),
                field: call.field.clone(),
                ttl_ms: ttl.as_ms(),
                number: self.number,
                value: format!("{token} {attempt} {} {}", self.number, note.stored()),
            })));
        }
        call
    }
}

/// Numbers that are being given up.
#[must_use]
struct GivingUp<'a> {
    store: &'a QuorumStore,
    poll: Inquiry,
    call: Arc<MemberCall>,
    /// How many servers certainly hold nothing of it.
    clean: usize,
    deadline: Instant,
}

impl GivingUp<'_> {
    fn in_background(self) {
        self.store.pollster.see_through(&self.call, self.poll);
    }

    /// Waits until the servers have answered, or for a moment: one that is silent hears of it before it hears of what is asked
    /// next, over the same connection.
    async fn await_answers(mut self) {
        let until = self.deadline.min(Instant::now() + FIRST_ANSWERS_WITHIN);
        self.poll.decide(until, |_| None::<()>).await;
        self.in_background();
    }

    /// Waits until so many servers hold nothing of it that it can never be granted any more; else returns `false`.
    async fn await_most(mut self) -> bool {
        let (blocking, clean) = (self.store.pollster.membership.blocking(), self.clean);
        let is_undone = |answers: &[Option<MemberAnswer>]| {
            let rolled_back = heard(answers).filter(|reply| reply.outcome == 0).count();
            (clean + rolled_back >= blocking).then_some(())
        };
        let is_undone = self.poll.decide(self.deadline, is_undone).await.is_some();
        self.in_background();
        is_undone
    }
}

/// The token certainly does not hold the lock, and another may.
fn holder_unknown() -> Acquired<Refusal> {
    Acquired::NotTaken(Refusal { holder_unknown: true, ..Refusal::default() })
}

fn refused(holder: Option<Lease>) -> Acquired<Refusal> {
    Acquired::NotTaken(Refusal { holder, ..Refusal::default() })
}
