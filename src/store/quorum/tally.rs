//! What servers say to a number that is proposed, and what follows from it.

use super::member::{MemberAnswer, Silence};
use super::membership::Membership;
use super::poll::{Inquiry, heard};
use super::reports::{ReportedLock, count, held_locks};
use crate::lock::Lease;
use crate::store::StoreError;
use crate::store::redis::scripts::ScriptReply;

/// What a server said to a number, and the largest that it has accepted.
enum Vote {
    Accepted(u64),
    /// It has accepted this attempt in an earlier try.
    Before(u64),
    /// The token holds the lock there.
    Own,
    Held(u64),
    Released,
    Voided,
    Nobody,
    /// It has accepted this number before, or the one proposed is too far ahead of its clock.
    Passed(u64),
}

/// What follows from the votes.
pub(super) enum Tally {
    Granted,
    /// In an earlier try of the same attempt.
    GrantedBefore(Lease),
    Own,
    /// It is the token's, by a connection of a later request.
    TakenOver,
    Held(Lease),
    Released,
    Voided,
    Nobody,
    /// Most servers have passed this number.
    Passed(u64),
    /// The vote is split; some servers may say that the token holds the lock.
    Split {
        is_own: bool,
        /// What most servers have passed.
        high: Option<u64>,
    },
    TooFew(StoreError),
}

/// What a server says to an attempt that is voided there.
const VOIDED: i64 = 4;

/// Whether a server that was asked may hold something of an attempt; one that is silent may.
pub(super) fn may_have_accepted_it(answer: &Option<MemberAnswer>) -> bool {
    match answer {
        Some(Ok(reply)) => matches!(reply.outcome, 0 | 9),
        Some(Err(Silence::Out(_))) => false,
        Some(Err(Silence::Doubt(_))) | None => true,
    }
}

/// Whether the number was too far ahead of the server's clock.
pub(super) fn is_too_far_ahead(reply: &ScriptReply) -> bool {
    reply.outcome == 8
}

/// The servers of whose clocks the number was too far ahead, by their index, if these alone keep it from being granted: no server
/// had passed it, or it is the smallest that most had not.
pub(super) fn held_up_by_clocks(answers: &[Option<MemberAnswer>], is_smallest: bool) -> Vec<usize> {
    if !is_smallest && heard(answers).any(|reply| reply.outcome == 7) {
        return Vec::new();
    }
    let is_behind = |answer: &_| matches!(answer, Some(Ok(reply)) if is_too_far_ahead(reply));
    (0..answers.len()).filter(|index| is_behind(&answers[*index])).collect()
}

/// Why no lock is granted where these clocks keep its number from that.
pub(super) fn refused_by_clocks(membership: &Membership, behind: &[usize]) -> StoreError {
    membership.members.iter().for_each(|member| member.note_refusal(true));
    let names: Vec<_> = behind.iter().map(|index| &*membership.members[*index].name).collect();
    StoreError::Unavailable(format!(
        "too few servers accept a fencing token: the clocks of these are too far behind, or another was ahead: {}",
        names.join(", ")
    ))
}

/// The largest number by which servers say that they accepted the attempt in an earlier try, or 0.
pub(super) fn accepted_before(answers: &[Option<MemberAnswer>]) -> u64 {
    locks_by(answers, 9).map(|held| held.lease.fencing_token.get()).max().unwrap_or(0)
}

fn vote_of(reply: &ScriptReply) -> Option<Vote> {
    let high = |index| reply.field::<String>(index)?.parse().ok();
    Some(match reply.outcome {
        0 => Vote::Accepted(high(2)?),
        1 | 10 => Vote::Own,
        2 => Vote::Held(high(2)?),
        3 => Vote::Released,
        VOIDED => Vote::Voided,
        6 => Vote::Nobody,
        7 | 8 => Vote::Passed(high(0)?),
        9 => Vote::Before(high(2)?),
        _ => return None,
    })
}

/// What is clear already, before the other servers answer.
pub(super) fn early(answers: &[Option<MemberAnswer>], quorum: usize, blocking: usize) -> Option<Tally> {
    let voided = count(answers, VOIDED);
    match decided(answers, quorum, blocking) {
        // Where one server missed the claim of an attempt, it was voided there all the same.
        own @ Some(Tally::Own | Tally::TakenOver | Tally::Released) => own,
        Some(_) if voided > 0 => Some(Tally::Voided),
        None if voided >= blocking => Some(Tally::Voided),
        tally => tally,
    }
}

/// What most servers say, as far as the attempt is voided on none.
fn decided(answers: &[Option<MemberAnswer>], quorum: usize, blocking: usize) -> Option<Tally> {
    let (mut accepted, mut nobody) = (0, 0);
    for vote in heard(answers).filter_map(vote_of) {
        match vote {
            Vote::Accepted(_) => accepted += 1,
            Vote::Nobody => nobody += 1,
            // A token that was released anywhere is on its way to be released everywhere.
            Vote::Released => return Some(Tally::Released),
            Vote::Own | Vote::Before(_) | Vote::Held(_) | Vote::Passed(_) | Vote::Voided => {}
        }
    }
    if accepted >= quorum {
        return Some(Tally::Granted);
    }
    if let Some(lease) = locks_by(answers, 9).find_map(|held| held.by(quorum)) {
        return Some(Tally::GrantedBefore(lease));
    }
    let is_own = |reply: &ScriptReply| matches!(reply.outcome, 1 | 10);
    if let Some(own) = held_locks(answers, is_own).iter().find(|held| held.count() >= quorum) {
        // A server that missed the end of an earlier grant may tell of that one.
        let number = own.lease.fencing_token;
        let is_taken_over = locks_by(answers, 10).any(|held| held.lease.fencing_token == number);
        return Some(if is_taken_over { Tally::TakenOver } else { Tally::Own });
    }
    if let Some(lease) = locks_by(answers, 2).find_map(|held| held.by(quorum)) {
        return Some(Tally::Held(lease));
    }
    (nobody >= blocking).then_some(Tally::Nobody)
}

/// What follows once nothing more can be hoped for.
pub(super) fn late(poll: &Inquiry, quorum: usize) -> Tally {
    if count(&poll.answers, VOIDED) > 0 {
        return Tally::Voided;
    }
    let votes: Vec<_> = poll.heard().filter_map(vote_of).collect();
    if votes.len() < quorum {
        return Tally::TooFew(poll.too_few());
    }
    let mut highs = Vec::new();
    let (mut is_own, mut is_held, mut has_passed) = (false, false, false);
    for vote in votes {
        match vote {
            Vote::Accepted(high) => highs.push(high),
            Vote::Held(high) => {
                is_held = true;
                highs.push(high);
            }
            Vote::Passed(high) | Vote::Before(high) => {
                has_passed = true;
                highs.push(high);
            }
            Vote::Own => is_own = true,
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
        return Tally::Passed(*high);
    }
    Tally::Split { is_own, high: highs.get(quorum - 1).copied() }
}

/// The locks that servers have named in this kind of answer.
fn locks_by(answers: &[Option<MemberAnswer>], outcome: i64) -> impl Iterator<Item = ReportedLock> {
    held_locks(answers, move |reply| reply.outcome == outcome).into_iter()
}
