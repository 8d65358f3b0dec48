//! Long results, which pass no script when they are stored.
//!
//! The Lua of Redis hashes each byte of every text that it is given or makes (`luaS_newlstr`). For 64 KiB this takes 0.1 ms, in
//! which no other command is served. So a plain command puts a long result aside, and the script moves it to its record.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisResult};
use tokio::time::Instant;

use super::record::RecordReply;
use crate::clock::whole_ms;
use crate::lock::Owner;
use crate::store::redis::connection::batcher::{BatchedOperation, call};
use crate::store::redis::connection::link::Link;
use crate::store::redis::fast_path::records::StoreOperation;

/// The first line of a record that is done is no longer. What it does not need is filled up with tabs, which no owner has.
const LINE_BYTES: usize = 576;
/// A letter, a token's hash and a dash, six numbers of at most 20 digits, a fingerprint and an owner, with what stands between them.
const LONGEST_LINE: usize = 1 + 64 + 3 + 6 * 21 + 65 + 1 + Owner::MAX_BYTES;
const _: () = assert!(LONGEST_LINE <= LINE_BYTES, "it would be written over the result");

/// What stands in the place of the header until the script knows it.
pub(super) const NO_HEADER: [u8; LINE_BYTES + 1] = {
    let mut line = [b'\t'; LINE_BYTES + 1];
    line[LINE_BYTES] = b'\n';
    line
};

/// Stores a result where all is in one slot. On a cluster, its record may be on its way to another server, and what was put aside
/// would not be where the record is.
pub(super) async fn store(
    link: Arc<Link>,
    store: &StoreOperation,
    aside: &str,
    deadline: Instant,
) -> RedisResult<RecordReply> {
    let mut connection = link.connection.clone();
    // A gateway that is killed between both leaves it until then.
    let life_ms = whole_ms(deadline.saturating_duration_since(Instant::now())).max(1);
    let mut put = Cmd::with_capacity(5, store.text.len() + 2 * aside.len());
    put.arg("SET").arg(aside).arg(&store.text).arg("PX").arg(life_ms);
    let is_aside = link.room.has_room_for_results()
        && match put.query_async::<()>(&mut connection).await {
            Ok(()) => true,
            Err(error) if error.code() == Some("OOM") => false,
            Err(error) => return Err(error),
        };
    if !is_aside {
        // Whether room is what is lacking, the script knows.
        return Ok(RecordReply::from_redis_value(call(&link, &[store], false).await?)?);
    }
    let keys = [store.record.as_bytes(), aside.as_bytes()];
    let script = StoreOperation::script();
    let add_args = |call: &mut Cmd| {
        call.arg(&store.token).arg(&store.fence).arg(&store.keep).arg(&store.status);
        call.arg(store.text.len()).arg("long");
    };
    script.run(&mut connection, false, &keys, add_args).await
}
