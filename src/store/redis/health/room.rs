//! How much of a server's memory records may take, so that they leave room for locks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::profile::Profile;
use crate::store::redis::settings::OnceMemory;
use crate::telemetry::metrics::metrics;

/// What a record takes besides its key and its result: its header, and what Redis itself needs.
const RECORD_BYTES: u64 = 350;

/// Why no new records are kept on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoRecords {
    /// Nothing bounds their room. It may have been bounded before, or on another server, and what was begun then goes on.
    Unbounded,
    /// The gateway's user may not use these commands on them.
    MayNot(Vec<String>),
}

impl NoRecords {
    /// Whether it is a reason also against those that there are.
    pub(crate) fn is_of_all(&self) -> bool {
        matches!(self, Self::MayNot(_))
    }
}

impl fmt::Display for NoRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbounded => f.write_str(
                "Redis has no maxmemory, so results could fill the memory of its machine: set maxmemory in Redis, or \
                 --once-memory to the bytes that Redis may use before no more work is begun",
            ),
            Self::MayNot(commands) => write!(
                f,
                "the Redis user may not use {} on records, so no results can be kept (/once)",
                commands.join(", ")
            ),
        }
    }
}

/// What is known of the memory of one server.
pub(crate) struct OnceRoom {
    /// By which address the metrics show it. A server of a quorum keeps no records.
    server: Option<String>,
    state: RwLock<RoomState>,
    /// What this gateway has stored since the last look.
    stored_bytes: AtomicU64,
}

impl OnceRoom {
    /// As a look at the server says.
    pub(crate) fn new(server: Option<String>, state: RoomState) -> Self {
        let room = Self { server, state: RwLock::new(state), stored_bytes: AtomicU64::new(0) };
        room.show();
        room
    }

    fn show(&self) {
        let Some(server) = &self.server else { return };
        let state = self.state.read();
        match state.bound_bytes {
            Ok(bound_bytes) => metrics().once_room.show(server, state.used_bytes, bound_bytes),
            Err(_) => metrics().once_room.hide(server),
        }
    }

    /// What this gateway has stored before a look that is about to begin.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// What a later look says, before which so much was stored. It may have missed what was stored meanwhile.
    pub(crate) fn set(&self, state: RoomState, stored_before: u64) {
        *self.state.write() = state;
        self.stored_bytes.fetch_sub(stored_before, Ordering::Relaxed);
        self.show();
    }

    /// Counts a record that was begun, or a result that was stored, of so many bytes.
    pub(crate) fn took(&self, bytes: usize) {
        let bytes = bytes as u64;
        // The allocator of Redis has four sizes between a power of two and the next, so it may round up by a quarter.
        self.stored_bytes.fetch_add(bytes + bytes / 4 + RECORD_BYTES, Ordering::Relaxed);
    }

    /// Why there is no room for any new record.
    pub(crate) fn refusal(&self) -> Option<NoRecords> {
        self.state.read().refusal().cloned()
    }

    /// Whether there is room for a new record.
    pub(crate) fn has_room(&self) -> bool {
        self.is_within(|bound_bytes| bound_bytes)
    }

    /// Whether there is room for a result that is not short. Some room is left for the results of what is under way.
    pub(crate) fn has_room_for_results(&self) -> bool {
        self.is_within(|bound_bytes| bound_bytes.saturating_add(bound_bytes / 3))
    }

    /// Whether there is a bound, and no more is used than this much of it.
    fn is_within(&self, most_bytes: impl FnOnce(u64) -> u64) -> bool {
        let state = self.state.read();
        // Another gateway may have stored as much since the last look, and this one cannot know: so it counts twice.
        let used_bytes = state.used_bytes + 2 * self.stored_bytes.load(Ordering::Relaxed);
        state.bound_bytes.as_ref().is_ok_and(|bound_bytes| used_bytes <= most_bytes(*bound_bytes))
    }
}

impl Drop for OnceRoom {
    fn drop(&mut self) {
        // If there is another connection to the same server, its next look shows it again.
        self.server.iter().for_each(|server| metrics().once_room.hide(server));
    }
}

/// What a look at a server says of the room for records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoomState {
    /// From so much on nothing new is begun; or why nothing is begun at all.
    bound_bytes: Result<u64, NoRecords>,
    used_bytes: u64,
}

impl RoomState {
    pub(crate) fn of(profile: &Profile, once_memory: OnceMemory, lacking: Vec<String>) -> Self {
        let bound_bytes = match once_memory {
            _ if !lacking.is_empty() => Err(NoRecords::MayNot(lacking)),
            OnceMemory::Bytes(bytes) => Ok(bytes),
            // Without `maxmemory` a server in a container knows only the memory of its host.
            OnceMemory::Percent(_) if profile.max_memory == 0 => Err(NoRecords::Unbounded),
            OnceMemory::Percent(percent) => Ok(profile.max_memory / 100 * u64::from(percent)),
        };
        Self { bound_bytes, used_bytes: profile.used_memory }
    }

    /// Why there is no room for any new record.
    pub(crate) fn refusal(&self) -> Option<&NoRecords> {
        self.bound_bytes.as_ref().err()
    }

    /// Whether the gateway's user may read records.
    pub(crate) fn may_be_read(&self) -> bool {
        !self.refusal().is_some_and(NoRecords::is_of_all)
    }
}

impl fmt::Display for RoomState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used_bytes = self.used_bytes;
        match &self.bound_bytes {
            Ok(bound_bytes) => {
                write!(
                    f,
                    "kept; no new ones at {bound_bytes} bytes (--once-memory), and {used_bytes} are used"
                )
            }
            Err(why) if why.is_of_all() => write!(f, "none: {why}"),
            Err(why) => write!(f, "no new ones: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(max_memory: u64, used_memory: u64, once_memory: OnceMemory) -> OnceRoom {
        let profile = Profile { max_memory, used_memory, ..Profile::default() };
        OnceRoom::new(None, RoomState::of(&profile, once_memory, Vec::new()))
    }

    #[test]
    fn a_share_is_of_maxmemory_and_needs_one() {
        let none = room(0, 0, OnceMemory::default());
        assert_eq!(none.refusal(), Some(NoRecords::Unbounded));
        assert!(!none.has_room() && !none.has_room_for_results(), "a bound may come back");
        for (used, begins, stores) in [
            (0, true, true),
            (60_000, true, true),
            (60_001, false, true),
            (80_000, false, true),
            (80_001, false, false),
        ] {
            let room = room(100_000, used, OnceMemory::default());
            assert_eq!(room.refusal(), None);
            assert_eq!((room.has_room(), room.has_room_for_results()), (begins, stores), "{used}");
        }
        let lacking = vec!["RENAME".to_owned()];
        let forbidden = RoomState::of(&Profile::default(), OnceMemory::Bytes(1), lacking.clone());
        assert_eq!(OnceRoom::new(None, forbidden).refusal(), Some(NoRecords::MayNot(lacking)));
        let bytes = room(0, 3_001, OnceMemory::Bytes(3_000));
        assert!(bytes.refusal().is_none() && !bytes.has_room() && bytes.has_room_for_results());
    }

    #[test]
    fn what_was_stored_since_the_last_look_counts_until_the_next() {
        let room = room(0, 0, OnceMemory::Bytes(10_000));
        room.took(3_500);
        assert!(room.has_room());
        let stored_before = room.stored_bytes();
        room.took(200);
        assert!(!room.has_room(), "another gateway may have stored as much");
        let profile = Profile { used_memory: 9_000, ..Profile::default() };
        room.set(RoomState::of(&profile, OnceMemory::Bytes(10_000), Vec::new()), stored_before);
        assert!(!room.has_room(), "what was stored during the look is forgotten");
        room.set(RoomState::of(&profile, OnceMemory::Bytes(10_000), Vec::new()), room.stored_bytes());
        assert!(room.has_room());
    }
}
