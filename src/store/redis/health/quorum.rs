//! What there is to say of a quorum as a whole, for operators.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use crate::store::diagnostics::{Block, Diagnostics, PromiseStatus};
use crate::store::redis::node::Node;
use crate::store::redis::scripts::keys::KeySpace;

/// Most servers would have to agree on the result itself, and one that may have forgotten it would have to stay in quarantine
/// for as long as results are kept.
pub(crate) const KEEPS_NO_RECORDS: &str =
    "a quorum keeps no records: use one Redis, Sentinel, a Cluster or a file for them";

/// How far the clocks of the servers may be apart before that is worth a word: numbers may be so far ahead of a clock, and
/// no further.
const CLOCKS_APART_SECONDS: f64 = 5.0;

/// The list of servers, as every gateway must have it.
pub(crate) struct ServerList {
    /// The addresses in ascending order, as the records of the servers have them.
    pub(crate) text: String,
    pub(crate) epoch: u64,
}

impl ServerList {
    pub(crate) fn new(nodes: &[Node], epoch: u64) -> Self {
        let mut names: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        names.sort_unstable();
        Self { text: names.join(" "), epoch }
    }
}

/// What a server says of its part in the quorum, and whether it counts.
#[derive(Clone)]
pub(crate) struct PartOfQuorum {
    pub(crate) text: String,
    pub(crate) kind: MembershipKind,
}

/// Whether a server counts, for a gateway that starts now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MembershipKind {
    Counts,
    /// It knows an earlier list only. The gateway gives it this one.
    Earlier,
    /// It was never part of a quorum.
    New,
    Out,
}

/// What is known of one server of a quorum.
pub(crate) struct QuorumServer {
    pub(crate) server: String,
    pub(crate) membership: PartOfQuorum,
    /// Names its process, and what that last followed.
    pub(crate) run: String,
    /// Why it accepts no new lock at the moment, though it counts.
    pub(crate) unready: Option<Arc<str>>,
    /// How far its clock is ahead of this machine's.
    pub(crate) ahead_seconds: f64,
}

/// What a server says of its part in the quorum.
pub(crate) async fn membership(
    connection: &mut MultiplexedConnection,
    keys: &KeySpace,
    run: &str,
    list: &ServerList,
) -> RedisResult<PartOfQuorum> {
    type Record = (Option<String>, Option<u64>, Option<u64>, Option<u64>, Option<String>, Option<String>);
    let record = redis::cmd("HMGET")
        .arg(keys.record())
        .arg(&["run", "epoch", "since", "longest", "members", "served"])
        .query_async::<Record>(connection)
        .await?;
    let (Some(recorded), Some(known), Some(since_ms), Some(longest_ms), Some(members), served) = record
    else {
        return Ok(PartOfQuorum { text: "not part of one yet".to_owned(), kind: MembershipKind::New });
    };
    let (now_seconds, _): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    let by_clock_ms = since_ms.saturating_add(longest_ms).saturating_sub(now_seconds * 1_000);
    // What gateways have seen go by of this quarantine, as in look.lua.
    let served = served.as_deref().and_then(|served| served.strip_prefix(&format!("{since_ms} ")));
    let served_ms: u64 = served.and_then(|served| served.split(' ').next()?.parse().ok()).unwrap_or_default();
    let left_ms = by_clock_ms.max(longest_ms.saturating_sub(served_ms));
    let quarantine = format!(
        "in quarantine for {} more",
        humantime::format_duration(Duration::from_secs(left_ms.div_ceil(1_000)))
    );
    let (text, kind) = if known > list.epoch {
        let text =
            format!("it knows a later list of servers, that of epoch {known} ({members}): use that list");
        (text, MembershipKind::Out)
    } else if known == list.epoch && members != list.text {
        let text = format!(
            "it knows another list of servers of epoch {known} ({members}): use that list, or give yours a --redlock-epoch of \
             its own"
        );
        (text, MembershipKind::Out)
    } else if recorded != run {
        let text = "restarted, or made to follow another server, since a gateway has met it";
        (text.to_owned(), MembershipKind::Out)
    } else if since_ms != 0 {
        (quarantine, MembershipKind::Out)
    } else if known < list.epoch {
        (format!("part of the one of epoch {known}: {members}"), MembershipKind::Earlier)
    } else {
        (format!("counts, by the list of epoch {known}"), MembershipKind::Counts)
    };
    Ok(PartOfQuorum { text, kind })
}

/// The block of a server of a quorum that could not be looked at.
pub(crate) fn missing(server: &str, reason: &str) -> Block {
    Block(vec![("server", server.to_owned()), ("quorum", format!("does not count: {reason}"))])
}

/// Says what follows for all of them together, where so many are named.
pub(crate) fn conclude(
    diagnostics: &mut Diagnostics,
    members: &[QuorumServer],
    all: usize,
    list: &ServerList,
) {
    for (number, member) in members.iter().enumerate() {
        if let Some(twin) = members[..number].iter().find(|twin| twin.run == member.run) {
            diagnostics.refusals.push(format!("{} and {} are the same server", twin.server, member.server));
        }
    }
    let needed = all / 2 + 1;
    if members.len() >= needed {
        // They can be done without, and more must not fail.
        let missing = diagnostics.unreachable.drain(..).map(|reason| format!("cannot be reached: {reason}"));
        let missing: Vec<_> = missing.chain(diagnostics.unready.drain(..)).collect();
        diagnostics.warnings.extend(missing);
    }
    let (good, troubles) = standing(members, all, list);
    if good >= needed {
        diagnostics.warnings.extend(troubles);
    } else {
        let mut text = format!("{needed} of {all} servers are needed, and {good} can be used");
        if !troubles.is_empty() {
            text.extend([": ", &troubles.join("; ")]);
        }
        diagnostics.unready.push(text);
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

/// How many servers count as soon as a gateway runs, and why the others that answered do not.
fn standing(members: &[QuorumServer], all: usize, list: &ServerList) -> (usize, Vec<String>) {
    let is = |member: &&QuorumServer, kind| member.membership.kind == kind;
    let new = members.iter().filter(|member| is(member, MembershipKind::New)).count();
    let is_beginning = new == all && list.epoch == 1;
    let mut troubles = Vec::new();
    for QuorumServer { server, membership, unready, .. } in members {
        match membership.kind {
            MembershipKind::Out => troubles.push(format!("{server}: {}", membership.text)),
            MembershipKind::New if !is_beginning => {
                let why = match (new == members.len(), list.epoch) {
                    (true, 1) => "it counts as soon as all servers of the quorum are there",
                    (true, _) => "no server knows an earlier list, and a first list has epoch 1",
                    (false, _) => "it is new or has lost its data, and goes into quarantine",
                };
                troubles.push(format!("{server}: {why}"));
            }
            MembershipKind::New | MembershipKind::Earlier | MembershipKind::Counts => {
                troubles.extend(unready.iter().map(|reason| format!("{server}: {reason}")));
            }
        }
    }
    (members.len() - troubles.len(), troubles)
}

/// What becomes of the promises I1 to I5.
pub(crate) fn promise_statuses() -> [PromiseStatus; 5] {
    let numbers = PromiseStatus::unless(&["most servers forget at once (then it rests on their clocks)"]);
    let exclusion =
        PromiseStatus::unless(&["most servers forget at once", "the clock of a server is set forward"]);
    [numbers.clone(), numbers.clone(), exclusion, PromiseStatus::Holds, numbers]
}
