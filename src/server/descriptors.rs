//! The limit of open files. Each connection needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files the gateway has open besides its clients' connections: for its store, its log, and its own files.
const OTHERS: u64 = 256;
/// So many it has open there at least, and for a moment, as to read its keys again: however few the system allows.
const FEWEST_OTHERS: u64 = 32;

/// Raises the limit as far as `connections` need it and the system allows. Returns how many connections there is room
/// for. More would leave no files for the connections to the store.
pub fn make_room(connections: usize) -> usize {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let allowed = wanted.min(maximum.unwrap_or(u64::MAX));
    // If there is no limit, or it is high enough, it stays.
    let is_raised = current.is_none_or(|current| current >= allowed)
        || setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).is_ok();
    let open = if is_raised { allowed } else { current.unwrap_or(allowed) };
    let room = open.saturating_sub(OTHERS.min(FEWEST_OTHERS.max(open / 4)));
    usize::try_from(room).unwrap_or(usize::MAX).clamp(1, connections)
}
