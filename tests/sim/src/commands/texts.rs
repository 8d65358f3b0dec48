//! Commands of texts.

use super::{Call, NO_INTEGER, SYNTAX, WRONG_TYPE, either, integer, not_simulated};
use crate::data::{Data, Entry};
use crate::reply::Reply;
use crate::state::State;

pub(super) fn get(state: &mut State, call: &Call) -> Reply {
    match state.keyspace.get(call.key(), state.now_ms).map(|entry| &entry.data) {
        Some(Data::Text(text)) => Reply::Bulk(text.clone()),
        Some(_) => WRONG_TYPE,
        None => Reply::Nil,
    }
}

pub(super) fn mget(state: &mut State, call: &Call) -> Reply {
    let text = |key: &Vec<u8>| match state.keyspace.get(key, state.now_ms).map(|entry| &entry.data) {
        Some(Data::Text(text)) => Reply::Bulk(text.clone()),
        // Of those of another type too.
        _ => Reply::Nil,
    };
    Reply::Array(call.words[1..].iter().map(text).collect())
}

pub(super) fn set(state: &mut State, call: &Call) -> Reply {
    either(try_to_set(state, call))
}

fn try_to_set(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let (mut only_new, mut keeps_end, mut length) = (false, false, None);
    let mut at = 3;
    while at < call.words.len() {
        match () {
            () if call.is(at, "NX") => only_new = true,
            () if call.is(at, "KEEPTTL") && length.is_none() => keeps_end = true,
            () if call.is(at, "PX") && !keeps_end && length.is_none() => {
                at += 1;
                length = Some(call.words.get(at).ok_or(SYNTAX)?);
            }
            () if ["XX", "GET", "EX", "EXAT", "PXAT"].iter().any(|word| call.is(at, word)) => {
                return Err(not_simulated("all options of SET"));
            }
            () => return Err(SYNTAX),
        }
        at += 1;
    }
    let invalid = || Reply::error("ERR invalid expire time in 'set' command");
    let ends_ms = match length {
        Some(length) => {
            let length = u64::try_from(integer(length).map_err(|_| NO_INTEGER)?).map_err(|_| invalid())?;
            let ends_ms = state.now_ms.checked_add(length).filter(|at| *at <= i64::MAX as u64);
            Some(ends_ms.filter(|_| length > 0).ok_or_else(invalid)?)
        }
        None => None,
    };
    let known = state.keyspace.get(call.key(), state.now_ms);
    if only_new && known.is_some() {
        return Ok(Reply::Nil);
    }
    let ends_ms = if keeps_end { known.and_then(|entry| entry.ends_ms) } else { ends_ms };
    state.keyspace.put(call.key(), Entry { data: Data::Text(call.words[2].clone()), ends_ms });
    Ok(Reply::OK)
}
