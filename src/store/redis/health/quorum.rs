//! What there is to say of a quorum as a whole, for operators.

use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use crate::store::diagnostics::{Diagnostics, PromiseStatus};
use crate::store::redis::scripts::keys::KeySpace;

/// How far the clocks of the servers may be apart before that is worth a word: numbers may be so far ahead of a clock, and
/// no further.
const CLOCKS_APART_SECONDS: f64 = 5.0;

/// What is known of one server of a quorum.
pub(crate) struct QuorumServer {
    pub(crate) server: String,
    /// Names its process, and what that last followed.
    pub(crate) run: String,
    /// How far its clock is ahead of this machine's.
    pub(crate) ahead_seconds: f64,
}

/// What a server says of its part in the quorum.
pub(crate) async fn membership(
    connection: &mut MultiplexedConnection,
    keys: &KeySpace,
    run: &str,
    epoch: u64,
) -> RedisResult<String> {
    type Record = (Option<String>, Option<u64>, Option<u64>, Option<u64>, Option<String>);
    let record = redis::cmd("HMGET")
        .arg(keys.record())
        .arg(&["run", "epoch", "since", "longest", "members"])
        .query_async::<Record>(connection)
        .await?;
    let (Some(recorded), Some(known), Some(since_ms), Some(longest_ms), Some(members)) = record else {
        return Ok("not part of one yet".to_owned());
    };
    let (now_seconds, _): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    Ok(if known != epoch {
        format!("part of the one of epoch {known}: {members}")
    } else if recorded != run {
        "restarted, or made to follow another server, since a gateway has met it".to_owned()
    } else if since_ms == 0 {
        format!("counts, by the list of epoch {known}")
    } else {
        let left_ms = (since_ms + longest_ms).saturating_sub(now_seconds * 1_000);
        let left = humantime::format_duration(Duration::from_secs(left_ms.div_ceil(1_000)));
        format!("in quarantine for {left} more")
    })
}

/// Says what follows for all of them together, where so many are named.
pub(crate) fn conclude(diagnostics: &mut Diagnostics, members: &[QuorumServer], all: usize) {
    for (number, member) in members.iter().enumerate() {
        if let Some(twin) = members[..number].iter().find(|twin| twin.run == member.run) {
            diagnostics.refusals.push(format!("{} and {} are the same server", twin.server, member.server));
        }
    }
    let needed = all / 2 + 1;
    if members.len() >= needed {
        // They can be done without, and more must not fail.
        let missing = diagnostics.unreachable.drain(..).map(|reason| format!("cannot be reached: {reason}"));
        diagnostics.warnings.extend(missing);
    }
    if all.is_multiple_of(2) {
        diagnostics.warnings.push(format!(
            "{all} servers survive no more failures than {}: an odd number is better",
            all - 1
        ));
    }
    let ahead = |member: &QuorumServer| member.ahead_seconds;
    let (first, last) =
        (members.iter().map(ahead).reduce(f64::min), members.iter().map(ahead).reduce(f64::max));
    if let (Some(first), Some(last)) = (first, last)
        && last - first > CLOCKS_APART_SECONDS
    {
        diagnostics.warnings.push(format!(
            "the clocks of the servers are {:.0} s apart: one that is far behind accepts no numbers",
            last - first
        ));
    }
}

/// What becomes of the promises I1 to I5.
pub(crate) fn promise_statuses() -> [PromiseStatus; 5] {
    let numbers = PromiseStatus::unless(&["most servers forget at once (then it rests on their clocks)"]);
    let exclusion =
        PromiseStatus::unless(&["most servers forget at once", "the clock of a server is set forward"]);
    [numbers.clone(), numbers.clone(), exclusion, PromiseStatus::Holds, numbers]
}
