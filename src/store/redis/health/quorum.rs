//! What there is to say of a quorum as a whole, for operators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::identity::part_of_id;
use super::preflight::Preflight;
use super::profile::Profile;
use crate::store::diagnostics::{Block, Diagnostics};
use crate::store::redis::node::Node;
use crate::store::redis::settings::Risk;

/// Most servers would have to agree on the result itself, and one that may have forgotten it would have to stay in quarantine
/// for as long as results are kept.
pub(crate) const KEEPS_NO_RECORDS: &str =
    "a quorum keeps no records: use one Redis, Sentinel, a Cluster or a file for them";

/// Why a server does not count whose id is not the quorum's.
pub(crate) const UNLIKE_IDS: &str = "it belongs to another quorum, or others of these servers do, are away, or have lost their data: most of \
     them have not its id";

/// Why no server counts, where all are new by a list that is not the first.
pub(crate) const NO_EARLIER_LIST: &str = "no server knows an earlier list: a first list has epoch 1, and if all servers have lost their \
     data, stop all gateways for --max-ttl first";

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

/// What a server says of its part in the quorum.
#[derive(Clone)]
pub(crate) struct PartOfQuorum {
    pub(crate) text: String,
    list: KnownList,
}

/// What a record is to a gateway with some list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// Of this run and this list.
    Current,
    /// There is none.
    #[default]
    Empty,
    /// Of another run: what the server holds may be older than what it accepted, even if it keeps a file. Or it has evicted keys.
    Forgot,
    /// Of a later list.
    Later,
    /// Of another list with the same epoch.
    Differs,
    /// Of an earlier list.
    Earlier,
}

/// What a record says of lists of servers.
#[derive(Clone, Default)]
pub(crate) struct KnownList {
    pub(crate) kind: RecordKind,
    pub(crate) is_in_quarantine: bool,
    pub(crate) epoch: u64,
    /// The epoch of the list from which the server has come to this one, or 0.
    pub(crate) epoch_before: u64,
    /// Whether most servers of the list before have learned this one.
    pub(crate) is_settled: bool,
    pub(crate) members: String,
    /// The id of its quorum; empty if it has none yet.
    pub(crate) quorum: String,
    /// Its own part in an id that is made of several.
    pub(crate) part: String,
}

impl KnownList {
    /// Whether it says that its quorum has this id, or is about to get it, since the id was made of its part as well.
    fn supports(&self, id: &str) -> bool {
        if self.quorum.is_empty() { is_in(id, &self.part) } else { self.quorum == id }
    }

    fn is(&self, kind: RecordKind) -> bool {
        self.kind == kind && !self.is_in_quarantine
    }
}

/// Whose servers these are.
pub(crate) enum Whose {
    /// Of the quorum with this id.
    Of(String),
    /// Most have none, or not the same: what has one may be of another quorum.
    Unknown,
}

impl Whose {
    pub(crate) fn of(servers: &[KnownList], needed: usize) -> Self {
        let ids: BTreeSet<_> =
            servers.iter().map(|known| &known.quorum).filter(|id| !id.is_empty()).collect();
        let support = |id: &str| servers.iter().filter(|known| known.supports(id)).count();
        let id = ids.into_iter().find(|id| support(id) >= needed);
        id.map_or(Self::Unknown, |id| Self::Of(id.clone()))
    }

    /// Whether a server with this id, or with none yet, is one of theirs.
    pub(crate) fn has(&self, id: &str) -> bool {
        match self {
            _ if id.is_empty() => true,
            Self::Of(quorum) => quorum == id,
            Self::Unknown => false,
        }
    }
}

/// Whether a server is in such a list, or its part in an id.
pub(crate) fn is_in(members: &str, server: &str) -> bool {
    members.split(' ').any(|name| name == server)
}

/// Which servers of the list before are to learn `list`, or why they cannot. `servers` are those of `list`, each with what it knows
/// if it has answered.
pub(crate) fn learners(
    servers: &[(String, Option<KnownList>)],
    list: &ServerList,
) -> Result<Vec<usize>, String> {
    let seen = servers
        .iter()
        .enumerate()
        .filter_map(|(index, (server, known))| Some((index, server, known.as_ref()?)));
    let have_come = seen
        .clone()
        .filter(|(.., known)| known.is(RecordKind::Current))
        .map(|(.., known)| known.epoch_before);
    let kept = seen
        .clone()
        .filter(|(_, server, known)| known.is(RecordKind::Earlier) && is_in(&known.members, server));
    // One that was late for the change before, or left out by it, learns of this one as a stranger: what that list granted it does
    // not know.
    let epoch = kept.clone().map(|(.., known)| known.epoch).chain(have_come.clone()).max();
    let storing: Vec<_> = kept.clone().filter(|(.., known)| Some(known.epoch) == epoch).collect();
    let have_stored = have_come.filter(|before| Some(*before) == epoch).count();
    let Some((_, former, first)) = storing.first() else { return Ok(Vec::new()) };
    if let Some((_, server, other)) = storing.iter().find(|(.., known)| known.members != first.members) {
        let (epoch, first, other) = (first.epoch, &first.members, &other.members);
        return Err(format!(
            "{server} knows another list of epoch {epoch} ({other}) than {former} ({first}): one of them may belong to another quorum"
        ));
    }
    let is_other = |kind| matches!(kind, RecordKind::Later | RecordKind::Differs);
    if seen.clone().any(|(.., known)| is_other(known.kind)) {
        return Err("another list was begun already".to_owned());
    }
    if first.members.split(' ').count() != servers.len() {
        return Err("a new list of servers must be as long as the one before".to_owned());
    }
    if storing.len() + have_stored < servers.len() / 2 + 1 {
        let begun = match kept.count() > storing.len() {
            true => format!(
                "; if the change to epoch {} was not finished, repeat it first, with its list ({})",
                first.epoch, first.members
            ),
            false => String::new(),
        };
        return Err(format!(
            "too few servers of the list before count, or too many are to be replaced{begun}"
        ));
    }
    let is_settled = seen.clone().any(|(.., known)| known.epoch == list.epoch && known.is_settled);
    for (server, known) in servers.iter().filter(|(server, _)| !is_in(&first.members, server)) {
        match known {
            // It does not know what the list between has granted, and yet it counts.
            Some(known) if known.is(RecordKind::Current) && known.epoch_before > 0 => {
                return Err(format!("{server} has come to this list from an older one: restart it"));
            }
            // It may be such a server.
            None if !is_settled => {
                return Err(format!(
                    "{server}, which is new in the list, does not answer, or belongs to another quorum"
                ));
            }
            _ => {}
        }
    }
    Ok(storing.into_iter().map(|(index, ..)| index).collect())
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
    preflight: &Preflight,
    profile: &Profile,
    list: &ServerList,
) -> RedisResult<PartOfQuorum> {
    const FIELDS: &str = "run epoch since longest members served before settled evictions quorum born";
    type Text = Option<String>;
    type Number = Option<u64>;
    type Record = (Text, Number, Number, Number, Text, Text, Text, Text, Text, Text, Number);
    let record = redis::cmd("HMGET")
        .arg(preflight.keys().record())
        .arg(FIELDS.split(' ').collect::<Vec<_>>())
        .query_async::<Record>(connection)
        .await?;
    let (
        Some(recorded),
        Some(known),
        Some(since_ms),
        Some(longest_ms),
        Some(members),
        served,
        before,
        settled,
        evictions,
        quorum,
        born,
    ) = record
    else {
        return Ok(PartOfQuorum { text: "not part of one yet".to_owned(), list: KnownList::default() });
    };
    let (now_seconds, _): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    let now_ms = now_seconds * 1_000;
    let by_clock_ms = since_ms.min(now_ms).saturating_add(longest_ms).saturating_sub(now_ms);
    // What gateways have seen go by of this quarantine, as in look.lua.
    let served = served.as_deref().and_then(|served| served.strip_prefix(&format!("{since_ms} ")));
    let served_ms: u64 = served.and_then(|served| served.split(' ').next()?.parse().ok()).unwrap_or_default();
    let left_ms = by_clock_ms.max(longest_ms.saturating_sub(served_ms));
    let quarantine = format!(
        "in quarantine for {} more",
        humantime::format_duration(Duration::from_secs(left_ms.div_ceil(1_000)))
    );
    let is_in_quarantine = since_ms != 0;
    // As in look.lua.
    let before = before.as_deref().and_then(|before| before.strip_prefix(&format!("{known} "))?.parse().ok());
    let (count, run) = (profile.evicted_keys, profile.identity.incarnation());
    let has_evicted = count != 0
        && evictions != Some(format!("{run} {count}"))
        && !is_in_quarantine
        && !preflight.accepted.contains(&Risk::Eviction);
    let (text, kind) = if known > list.epoch {
        let text = format!(
            "it knows a later list of servers, that of epoch {known} ({members}): use that list, if it is this quorum's"
        );
        (text, RecordKind::Later)
    } else if known == list.epoch && members != list.text {
        let text = format!(
            "it knows another list of servers of epoch {known} ({members}): if both are this quorum's, use that list, \
             or give yours a --redlock-epoch of its own"
        );
        (text, RecordKind::Differs)
    } else if has_evicted || recorded != run {
        let text =
            "restarted, made to follow another server, or has evicted keys, since a gateway has met it";
        (text.to_owned(), RecordKind::Forgot)
    } else {
        let kind = if known < list.epoch { RecordKind::Earlier } else { RecordKind::Current };
        let text = match kind {
            _ if is_in_quarantine => quarantine,
            RecordKind::Earlier => format!("part of the one of epoch {known}: {members}"),
            _ => format!("counts, by the list of epoch {known}"),
        };
        (text, kind)
    };
    let list = KnownList {
        kind,
        is_in_quarantine,
        epoch: known,
        epoch_before: before.unwrap_or_default(),
        is_settled: settled.as_deref() == Some("1"),
        members,
        quorum: quorum.unwrap_or_default(),
        part: part_of_id(&run, since_ms, born.unwrap_or_default()),
    };
    Ok(PartOfQuorum { text, list })
}

/// The block of a server of a quorum that could not be looked at.
pub(crate) fn missing(server: &str, reason: &str) -> Block {
    Block(vec![("server", server.to_owned()), ("quorum", format!("does not count: {reason}"))])
}

/// Says what follows for all of them together, where so many are named.
pub(crate) fn conclude(
    diagnostics: &mut Diagnostics,
    members: &[QuorumServer],
    names: &[String],
    list: &ServerList,
) {
    let all = names.len();
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
    let (good, troubles) = standing(members, names, list);
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

/// How many servers count as soon as a gateway runs, and why the others do not. `names` are all that are in the list.
fn standing(members: &[QuorumServer], names: &[String], list: &ServerList) -> (usize, Vec<String>) {
    let all: Vec<_> = members.iter().map(|member| member.membership.list.clone()).collect();
    let whose = Whose::of(&all, names.len() / 2 + 1);
    let is_ours = |known: &KnownList| whose.has(&known.quorum);
    let known = |name: &String| {
        let known = members.iter().find(|member| member.server == *name)?.membership.list.clone();
        is_ours(&known).then_some(known)
    };
    let servers: Vec<_> = names.iter().map(|name| (name.clone(), known(name))).collect();
    let (learners, hindrance) = match learners(&servers, list) {
        Ok(learners) => (learners, None),
        Err(hindrance) => (Vec::new(), Some(hindrance)),
    };
    let learns = |server: &String| learners.iter().any(|index| names[*index] == *server);
    let new = members.iter().filter(|member| member.membership.list.is(RecordKind::Empty)).count();
    let is_beginning = new == names.len() && list.epoch == 1;
    let mut troubles = Vec::new();
    for QuorumServer { server, membership, unready, .. } in members {
        let known = &membership.list;
        if !is_ours(known) {
            troubles.push(format!("{server}: {UNLIKE_IDS}"));
        } else if known.is(RecordKind::Current)
            || known.is(RecordKind::Empty) && is_beginning
            || known.is(RecordKind::Earlier) && learns(server)
        {
            troubles.extend(unready.iter().map(|reason| format!("{server}: {reason}")));
        } else if known.is(RecordKind::Empty) {
            let why = match (new == members.len(), list.epoch) {
                (true, 1) => "it counts as soon as all servers of the quorum are there",
                (true, _) if new == names.len() => NO_EARLIER_LIST,
                _ => {
                    "it is new or has lost its data, and goes into quarantine: if it does not, the gateways' log says why"
                }
            };
            troubles.push(format!("{server}: {why}"));
        } else {
            troubles.push(format!("{server}: {}", membership.text));
        }
    }
    let good = members.len() - troubles.len();
    troubles.extend(hindrance);
    (good, troubles)
}
