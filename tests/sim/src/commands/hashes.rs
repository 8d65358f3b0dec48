//! Commands of hashes.

use super::{Call, change_hash, either, hash, integer};
use crate::reply::Reply;
use crate::state::State;

pub(super) fn hget(state: &mut State, call: &Call) -> Reply {
    either(
        hash(state, call.key())
            .map(|hash| Reply::maybe(hash.and_then(|hash| hash.get(&call.words[2])).cloned())),
    )
}

pub(super) fn hmget(state: &mut State, call: &Call) -> Reply {
    either(hash(state, call.key()).map(|hash| {
        let value = |field: &Vec<u8>| Reply::maybe(hash.and_then(|hash| hash.get(field)).cloned());
        Reply::Array(call.words[2..].iter().map(value).collect())
    }))
}

pub(super) fn hgetall(state: &mut State, call: &Call) -> Reply {
    either(hash(state, call.key()).map(|hash| {
        let all = hash.map(|hash| hash.in_order()).unwrap_or_default();
        let both = |(field, value): (&Vec<u8>, &Vec<u8>)| [field.clone(), value.clone()].map(Reply::Bulk);
        Reply::Map(all.into_iter().flat_map(both).collect())
    }))
}

pub(super) fn hset(state: &mut State, call: &Call) -> Reply {
    let pairs = &call.words[2..];
    if !pairs.len().is_multiple_of(2) {
        return Reply::error("ERR wrong number of arguments for 'hset' command");
    }
    let added = change_hash(state, call.key(), true, |hash| {
        pairs.chunks(2).filter(|pair| hash.set(&pair[0], pair[1].clone())).count()
    });
    either(added.map(|added| Reply::Int(added.unwrap_or(0) as i64)))
}

pub(super) fn hdel(state: &mut State, call: &Call) -> Reply {
    let removed = change_hash(state, call.key(), false, |hash| {
        call.words[2..].iter().filter(|field| hash.remove(field)).count()
    });
    either(removed.map(|removed| Reply::Int(removed.unwrap_or(0) as i64)))
}

pub(super) fn hincrby(state: &mut State, call: &Call) -> Reply {
    either(try_to_increase(state, call))
}

fn try_to_increase(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let by = integer(&call.words[3])?;
    let known = hash(state, call.key())?.and_then(|hash| hash.get(&call.words[2])).cloned();
    let known = match known {
        Some(value) => integer(&value).map_err(|_| Reply::error("ERR hash value is not an integer"))?,
        None => 0,
    };
    let sum = known.checked_add(by).ok_or(Reply::error("ERR increment or decrement would overflow"))?;
    let set = |hash: &mut crate::data::Hash| hash.set(&call.words[2], sum.to_string().into_bytes());
    change_hash(state, call.key(), true, set)?;
    Ok(Reply::Int(sum))
}
