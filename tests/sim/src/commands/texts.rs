//! Commands of texts.

use super::{Call, NO_INTEGER, SYNTAX, WRONG_TYPE, either, integer, not_simulated};
use crate::data::{Data, Entry};
use crate::reply::Reply;
use crate::state::State;

/// The longest text, unless Redis is told otherwise.
const MOST_TEXT_BYTES: usize = 512 << 20;

pub(super) fn get(state: &mut State, call: &Call) -> Reply {
    match state.keyspace.get(call.key(), state.now_ms).map(|entry| &entry.data) {
        Some(Data::Text(text)) => Reply::Bulk(text.clone()),
        Some(_) => WRONG_TYPE,
        None => Reply::Nil,
    }
}

/// A part of a text, from one byte to another. What counts from the end begins with a minus.
pub(super) fn getrange(state: &mut State, call: &Call) -> Reply {
    either(part_of_text(state, call))
}

fn part_of_text(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let (first, last) = (integer(&call.words[2])?, integer(&call.words[3])?);
    let text = text_of(state, call)?;
    let length = text.len() as i64;
    if first < 0 && last < 0 && first > last {
        return Ok(Reply::bulk(""));
    }
    let from_start = |at: i64| if at < 0 { length.saturating_add(at).max(0) } else { at };
    let (first, last) = (from_start(first), from_start(last).min(length - 1));
    let part = if first > last { &[][..] } else { &text[first as usize..=last as usize] };
    Ok(Reply::Bulk(part.to_vec()))
}

pub(super) fn strlen(state: &mut State, call: &Call) -> Reply {
    either(text_of(state, call).map(|text| Reply::Int(text.len() as i64)))
}

/// Writes over a part of a text, from a byte on. Bytes that it lacks before are zeros.
pub(super) fn setrange(state: &mut State, call: &Call) -> Reply {
    either(write_over(state, call))
}

fn write_over(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let (from, part) = (integer(&call.words[2])?, &call.words[3]);
    let from = usize::try_from(from).map_err(|_| Reply::error("ERR offset is out of range"))?;
    let mut text = text_of(state, call)?.to_vec();
    if part.is_empty() {
        return Ok(Reply::Int(text.len() as i64));
    }
    let end = from.checked_add(part.len()).filter(|end| *end <= MOST_TEXT_BYTES);
    let end =
        end.ok_or_else(|| Reply::error("ERR string exceeds maximum allowed size (proto-max-bulk-len)"))?;
    text.resize(text.len().max(end), 0);
    text[from..end].copy_from_slice(part);
    let length = text.len() as i64;
    let ends_ms = state.keyspace.get(call.key(), state.now_ms).and_then(|entry| entry.ends_ms);
    state.keyspace.put(call.key(), Entry { data: Data::Text(text), ends_ms });
    Ok(Reply::Int(length))
}

/// The text of a key; an empty one where there is none.
fn text_of<'a>(state: &'a State, call: &Call) -> Result<&'a [u8], Reply> {
    match state.keyspace.get(call.key(), state.now_ms).map(|entry| &entry.data) {
        Some(Data::Text(text)) => Ok(text),
        Some(_) => Err(WRONG_TYPE),
        None => Ok(&[]),
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
