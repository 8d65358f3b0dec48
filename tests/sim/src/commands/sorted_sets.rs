//! Commands of sorted sets.

use super::{Call, NO_INTEGER, SYNTAX, change_sorted, either, float, integer, not_simulated, sorted};
use crate::data::SortedSet;
use crate::reply::Reply;
use crate::state::State;

const NO_FLOAT: &str = "ERR value is not a valid float";

pub(super) fn zadd(state: &mut State, call: &Call) -> Reply {
    either(try_to_add(state, call))
}

fn try_to_add(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let only_new = call.is(2, "NX");
    let from = if only_new { 3 } else { 2 };
    if ["XX", "GT", "LT", "CH", "INCR", "NX"].iter().any(|word| call.is(from, word)) {
        return Err(not_simulated("all options of ZADD"));
    }
    let pairs = &call.words[from..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    let score = |pair: &[Vec<u8>]| float(&pair[0]).ok_or(Reply::error(NO_FLOAT));
    let scores = pairs.chunks(2).map(score).collect::<Result<Vec<_>, _>>()?;
    let members = pairs.chunks(2).map(|pair| &pair[1]).zip(scores);
    // Where all members are there already, nothing is made anew.
    let added = change_sorted(state, call.key(), true, |set| {
        let mut added = 0;
        for (member, score) in members {
            let known = set.score(member);
            added += i64::from(known.is_none());
            if known.is_none() || !only_new && known != Some(score) {
                set.set(member, score);
            }
        }
        added
    });
    Ok(Reply::Int(added?.unwrap_or(0)))
}

pub(super) fn zincrby(state: &mut State, call: &Call) -> Reply {
    let Some(by) = float(&call.words[2]) else { return Reply::error(NO_FLOAT) };
    let member = &call.words[3];
    let known = match sorted(state, call.key()) {
        Ok(set) => set.and_then(|set| set.score(member)),
        Err(error) => return error,
    };
    let sum = known.map_or(by, |known| known + by);
    if sum.is_nan() {
        return Reply::error("ERR resulting score is not a number (NaN)");
    }
    let set = |set: &mut SortedSet| set.set(member, sum);
    either(change_sorted(state, call.key(), true, set).map(|_| Reply::Double(sum)))
}

pub(super) fn zrem(state: &mut State, call: &Call) -> Reply {
    let removed = change_sorted(state, call.key(), false, |set| {
        call.words[2..].iter().filter(|member| set.remove(member)).count()
    });
    either(removed.map(|removed| Reply::Int(removed.unwrap_or(0) as i64)))
}

pub(super) fn zcard(state: &mut State, call: &Call) -> Reply {
    either(sorted(state, call.key()).map(|set| Reply::Int(set.map_or(0, SortedSet::len) as i64)))
}

pub(super) fn zscore(state: &mut State, call: &Call) -> Reply {
    let score = |set: Option<&SortedSet>| score_of(set, &call.words[2]);
    either(sorted(state, call.key()).map(score))
}

pub(super) fn zmscore(state: &mut State, call: &Call) -> Reply {
    either(
        sorted(state, call.key())
            .map(|set| Reply::Array(call.words[2..].iter().map(|member| score_of(set, member)).collect())),
    )
}

fn score_of(set: Option<&SortedSet>, member: &[u8]) -> Reply {
    set.and_then(|set| set.score(member)).map_or(Reply::Nil, Reply::Double)
}

pub(super) fn zrank(state: &mut State, call: &Call) -> Reply {
    either(sorted(state, call.key()).map(|set| {
        let rank = set.and_then(|set| set.rank(&call.words[2]));
        rank.map_or(Reply::Nil, |rank| Reply::Int(rank as i64))
    }))
}

/// Members as a range is told: with their scores, or without.
fn told(members: Vec<(Vec<u8>, f64)>, with_scores: bool) -> Reply {
    if with_scores {
        return Reply::Scored(members);
    }
    Reply::Array(members.into_iter().map(|(member, _)| Reply::Bulk(member)).collect())
}

pub(super) fn zrange(state: &mut State, call: &Call) -> Reply {
    either(try_to_range(state, call))
}

fn try_to_range(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let with_scores = match call.words.len() {
        4 => false,
        5 if call.is(4, "WITHSCORES") => true,
        _ => return Err(not_simulated("all options of ZRANGE")),
    };
    let (first, last) = (integer(&call.words[2])?, integer(&call.words[3])?);
    let Some(set) = sorted(state, call.key())? else { return Ok(Reply::Array(Vec::new())) };
    let length = set.len() as i64;
    let from_end = |at: i64| if at < 0 { at + length } else { at };
    let (first, last) = (from_end(first).max(0), from_end(last).min(length - 1));
    let count = usize::try_from(last - first + 1).unwrap_or(0);
    let members = set.in_order().skip(first as usize).take(count);
    Ok(told(members.map(|(member, score)| (member.clone(), score)).collect(), with_scores))
}

/// One end of a range of scores, and whether it is outside of it.
fn bound(word: &[u8]) -> Result<(f64, bool), Reply> {
    let (word, is_open) = word.strip_prefix(b"(").map_or((word, false), |rest| (rest, true));
    let bound = float(word).ok_or(Reply::error("ERR min or max is not a float"))?;
    Ok((bound, is_open))
}

/// The members between two scores, in their order.
fn between(set: Option<&SortedSet>, from: &[u8], to: &[u8]) -> Result<Vec<(Vec<u8>, f64)>, Reply> {
    let ((least, without_least), (most, without_most)) = (bound(from)?, bound(to)?);
    let is_in = |score: f64| {
        (if without_least { score > least } else { score >= least })
            && (if without_most { score < most } else { score <= most })
    };
    let members = set.into_iter().flat_map(SortedSet::in_order).filter(|(_, score)| is_in(*score));
    Ok(members.map(|(member, score)| (member.clone(), score)).collect())
}

pub(super) fn zrangebyscore(state: &mut State, call: &Call) -> Reply {
    either(try_to_range_by_score(state, call))
}

fn try_to_range_by_score(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let (mut with_scores, mut skipped, mut count) = (false, 0, -1);
    let mut at = 4;
    while at < call.words.len() {
        if call.is(at, "WITHSCORES") {
            with_scores = true;
            at += 1;
        } else if call.is(at, "LIMIT") && at + 2 < call.words.len() {
            skipped = integer(&call.words[at + 1]).map_err(|_| NO_INTEGER)?;
            count = integer(&call.words[at + 2]).map_err(|_| NO_INTEGER)?;
            at += 3;
        } else {
            return Err(SYNTAX);
        }
    }
    let members = in_bounds(state, call)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
    Ok(told(members.into_iter().skip(skipped).take(count).collect(), with_scores))
}

pub(super) fn zremrangebyscore(state: &mut State, call: &Call) -> Reply {
    either(try_to_remove_by_score(state, call))
}

fn try_to_remove_by_score(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let members = in_bounds(state, call)?;
    let removed = change_sorted(state, call.key(), false, |set| {
        members.iter().filter(|(member, _)| set.remove(member)).count()
    });
    Ok(Reply::Int(removed?.unwrap_or(0) as i64))
}

/// The members between the scores that a call names.
fn in_bounds(state: &State, call: &Call) -> Result<Vec<(Vec<u8>, f64)>, Reply> {
    let (from, to) = (&call.words[2], &call.words[3]);
    // The bounds are read before the key is looked at.
    between(None, from, to)?;
    between(sorted(state, call.key())?, from, to)
}
