//! The limit of open files, of which each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the gateway has open besides its clients' connections: its store's, its log, its own files.
const OTHERS: u64 = 256;

/// Raises the limit as far as `connections` need it and the system allows. Returns how many there is room for; more
/// would leave none for the store's connections.
pub fn make_room(connections: usize) -> usize {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let allowed = wanted.min(maximum.unwrap_or(u64::MAX));
    // No limit at all, or one that is high enough, is left as it is.
    let is_raised = current.is_none_or(|current| current >= allowed)
        || setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).is_ok();
    let open = if is_raised { allowed } else { current.unwrap_or(allowed) };
    let room = open.saturating_sub(OTHERS.min(open / 4));
    usize::try_from(room).unwrap_or(usize::MAX).clamp(1, connections)
}
