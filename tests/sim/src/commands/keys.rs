//! Commands of keys, whatever they hold.

use super::{Call, NO_INTEGER, SYNTAX, either, integer, not_simulated};
use crate::reply::Reply;
use crate::state::State;

pub(super) fn del(state: &mut State, call: &Call) -> Reply {
    let now_ms = state.now_ms;
    let removed = call.words[1..].iter().filter(|key| state.keyspace.remove(key, now_ms)).count();
    Reply::Int(removed as i64)
}

pub(super) fn exists(state: &mut State, call: &Call) -> Reply {
    let is_there = |key: &&Vec<u8>| state.keyspace.get(key, state.now_ms).is_some();
    Reply::Int(call.words[1..].iter().filter(is_there).count() as i64)
}

pub(super) fn rename(state: &mut State, call: &Call) -> Reply {
    let Some(entry) = state.keyspace.get(call.key(), state.now_ms).cloned() else {
        return Reply::error("ERR no such key");
    };
    let now_ms = state.now_ms;
    state.keyspace.remove(call.key(), now_ms);
    state.keyspace.put(&call.words[2], entry);
    Reply::OK
}

pub(super) fn type_of(state: &mut State, call: &Call) -> Reply {
    let entry = state.keyspace.get(call.key(), state.now_ms);
    Reply::status(entry.map_or("none", |entry| entry.data.type_name()))
}

pub(super) fn pttl(state: &mut State, call: &Call) -> Reply {
    Reply::Int(match state.keyspace.get(call.key(), state.now_ms).map(|entry| entry.ends_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(ends_ms)) => ends_ms.saturating_sub(state.now_ms) as i64,
    })
}

pub(super) fn pexpire(state: &mut State, call: &Call) -> Reply {
    either(try_to_expire(state, call))
}

fn try_to_expire(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    if call.words.len() > 3 {
        return Err(not_simulated("options of PEXPIRE"));
    }
    let length = integer(&call.words[2])?;
    let invalid = || Reply::error("ERR invalid expire time in 'pexpire' command");
    let ends_ms = i64::try_from(state.now_ms).ok().and_then(|now_ms| now_ms.checked_add(length));
    let ends_ms = ends_ms.ok_or_else(invalid)?;
    let now_ms = state.now_ms;
    if ends_ms <= now_ms as i64 {
        return Ok(Reply::flag(state.keyspace.remove(call.key(), now_ms)));
    }
    let Some(entry) = state.keyspace.change(call.key(), now_ms) else { return Ok(Reply::Int(0)) };
    entry.ends_ms = u64::try_from(ends_ms).ok();
    Ok(Reply::Int(1))
}

pub(super) fn flushall(state: &mut State, _: &Call) -> Reply {
    state.keyspace.clear();
    Reply::OK
}

pub(super) fn keys(state: &mut State, call: &Call) -> Reply {
    let all = state.keyspace.keys(state.now_ms).filter(|key| matches(&call.words[1], key));
    Reply::Array(all.map(|key| Reply::Bulk(key.clone())).collect())
}

/// One step: as many keys as are asked for, in the order of their bytes. A real server has another order; both promise only that
/// what is there from the beginning to the end is told.
pub(super) fn scan(state: &mut State, call: &Call) -> Reply {
    either(try_to_scan(state, call))
}

fn try_to_scan(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let text = std::str::from_utf8(&call.words[1]).ok();
    let at: u64 = text.and_then(|text| text.parse().ok()).ok_or(Reply::error("ERR invalid cursor"))?;
    let (mut pattern, mut count) = (&b"*"[..], 10);
    for pair in call.words[2..].chunks(2) {
        let [name, value] = pair else { return Err(SYNTAX) };
        match () {
            () if name.eq_ignore_ascii_case(b"MATCH") => pattern = value,
            () if name.eq_ignore_ascii_case(b"COUNT") => count = integer(value).map_err(|_| NO_INTEGER)?,
            () if name.eq_ignore_ascii_case(b"TYPE") => return Err(not_simulated("SCAN by type")),
            () => return Err(SYNTAX),
        }
    }
    if count < 1 {
        return Err(SYNTAX);
    }
    // A place is said by the key that comes first there, so that what is added or removed elsewhere moves nothing.
    let from = state.scans.get(&at).cloned().unwrap_or_default();
    let mut all = state.keyspace.keys(state.now_ms).filter(|key| **key >= from);
    let piece: Vec<Vec<u8>> = all.by_ref().take(count as usize).cloned().collect();
    let next = match all.next().cloned() {
        Some(key) => {
            let known = state.scans.iter().find(|(_, known)| **known == key).map(|(number, _)| *number);
            let number = known.unwrap_or(state.scans.len() as u64 + 1);
            state.scans.insert(number, key);
            number
        }
        None => 0,
    };
    let found = piece.into_iter().filter(|key| matches(pattern, key)).map(Reply::Bulk).collect();
    Ok(Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(found)]))
}

/// Whether a name is of this pattern, which has `*`, `?` and backslashes.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        ([b'?', rest @ ..], [_, others @ ..]) => matches(rest, others),
        ([b'\\', literal, rest @ ..], [byte, others @ ..]) => literal == byte && matches(rest, others),
        ([literal, rest @ ..], [byte, others @ ..]) => literal == byte && matches(rest, others),
        _ => false,
    }
}
