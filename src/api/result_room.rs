//! The memory that results take on their way to the store, and other bodies until they are read.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// All results on their way may take so much together.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// One caller may take so much of it, so that others have room while its clients stall.
const MOST_BYTES_OF_CALLER: usize = MOST_BYTES / 4;

/// What is taken at this moment, and by whom: an API key, or a network.
#[derive(Default)]
pub(super) struct ResultRoom(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    bytes: usize,
    of_callers: HashMap<String, usize>,
}

/// The room of one result, given back when it is dropped.
pub(super) struct RoomTaken {
    room: Arc<ResultRoom>,
    caller: String,
    bytes: usize,
}

impl ResultRoom {
    /// Room for a result of this caller, of which nothing has arrived yet.
    pub(super) fn enter(self: &Arc<Self>, caller: String) -> RoomTaken {
        RoomTaken { room: self.clone(), caller, bytes: 0 }
    }
}

impl RoomTaken {
    /// So many more bytes have arrived; `false` where there is no room for them. What is only announced takes none.
    pub(super) fn grows(&mut self, bytes: usize) -> bool {
        let mut taken = self.room.0.lock();
        let of_caller = taken.of_callers.get(&self.caller).copied().unwrap_or_default() + bytes;
        if taken.bytes + bytes > MOST_BYTES || of_caller > MOST_BYTES_OF_CALLER {
            return false;
        }
        taken.bytes += bytes;
        taken.of_callers.insert(self.caller.clone(), of_caller);
        self.bytes += bytes;
        true
    }
}

impl Drop for RoomTaken {
    fn drop(&mut self) {
        let mut taken = self.room.0.lock();
        taken.bytes -= self.bytes;
        if let Some(of_caller) = taken.of_callers.get_mut(&self.caller) {
            *of_caller -= self.bytes;
            if *of_caller == 0 {
                taken.of_callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_room_for_others_and_gives_back_what_it_took() {
        let room = Arc::new(ResultRoom::default());
        let (mut greedy, mut other) = (room.enter("a".into()), room.enter("b".into()));
        assert!(greedy.grows(MOST_BYTES_OF_CALLER));
        assert!(!greedy.grows(1) && !room.enter("a".into()).grows(1), "it has its share");
        assert!(other.grows(MOST_BYTES_OF_CALLER));
        let more: Vec<_> = ["c", "d"]
            .map(|caller| room.enter(caller.into()))
            .into_iter()
            .map(|mut room| {
                assert!(room.grows(MOST_BYTES_OF_CALLER));
                room
            })
            .collect();
        assert!(!room.enter("e".into()).grows(1), "all is taken");
        drop((greedy, other, more));
        assert!(room.enter("a".into()).grows(MOST_BYTES_OF_CALLER));
        assert!(room.0.lock().of_callers.is_empty(), "nothing is left of who has gone");
    }
}
