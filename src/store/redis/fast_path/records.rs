//! What one request asks of the scripts that begin pieces of work and store results, for all who are ready.

use redis::Cmd;

use crate::clock::whole_ms;
use crate::once::MEMORY;
use crate::store::redis::connection::batcher::BatchedOperation;
use crate::store::redis::connection::link::Link;
use crate::store::redis::scripts::{Script, flag, scripts};

scripts! {
    BEGIN: record, fence, each, "../scripts/once/begin.lua";
    STORE: record, each, "../scripts/once/store.lua";
}

/// A longer result has a call of its own, and is put aside where it can be: Redis takes 6 µs to give a script so much.
pub(crate) const MOST_SHARED_BYTES: usize = 4096;

/// A piece of work that is to be begun.
pub(crate) struct BeginOperation {
    pub(crate) record: String,
    pub(crate) tombstone: String,
    pub(crate) fence: String,
    /// What the script is told of it, in its order.
    pub(crate) args: [String; 4],
}

impl BatchedOperation for BeginOperation {
    /// If the caller has gone, it is better not to begin.
    const IS_OWED: bool = false;
    const IS_BEGIN: bool = true;

    fn script() -> &'static Script {
        &BEGIN
    }

    fn keys<'a>(begins: &[&'a Self]) -> Vec<&'a [u8]> {
        let records = begins.iter().flat_map(|begin| [&begin.record, &begin.tombstone]);
        let fence = begins.first().map(|begin| &begin.fence);
        records.chain(fence).map(String::as_bytes).collect()
    }

    fn add_args(begins: &[&Self], link: &Link, call: &mut Cmd) {
        call.arg(&link.incarnation).arg(memory_ms()).arg(flag(link.room.has_room()));
        for begin in begins {
            call.arg(&begin.args);
        }
    }
}

/// A result that is to be stored.
pub(crate) struct StoreOperation {
    pub(crate) record: String,
    pub(crate) token: String,
    /// The number of the grant, for how many ms it is kept, and its status, each as the script is told.
    pub(crate) fence: String,
    pub(crate) keep: String,
    pub(crate) status: String,
    /// What the script is told of it begins at `told_at`: its media type, a newline, and the result. Before that stands, where it is
    /// put aside, the place of its header.
    pub(crate) text: Vec<u8>,
    pub(crate) told_at: usize,
    pub(crate) is_short: bool,
}

impl StoreOperation {
    pub(crate) fn told(&self) -> &[u8] {
        self.text.get(self.told_at..).unwrap_or_default()
    }
}

impl BatchedOperation for StoreOperation {
    fn script() -> &'static Script {
        &STORE
    }

    fn keys<'a>(stores: &[&'a Self]) -> Vec<&'a [u8]> {
        stores.iter().map(|store| store.record.as_bytes()).collect()
    }

    fn add_args(stores: &[&Self], link: &Link, call: &mut Cmd) {
        for store in stores {
            let room = match store.is_short {
                true => "short",
                false if link.room.has_room_for_results() => "long",
                false => "no",
            };
            call.arg(&store.token).arg(&store.fence).arg(&store.keep).arg(&store.status);
            call.arg(store.told()).arg(room);
        }
    }
}

/// For how long a crash is remembered, as scripts are told.
pub(crate) fn memory_ms() -> u64 {
    whole_ms(MEMORY)
}
