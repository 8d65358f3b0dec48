//! All that a server knows and holds, and what it says to each command in the state that it is in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::cluster::{Cluster, Place, keys_of, place_of};
use crate::commands::{Call, Keys, find};
use crate::data::Keyspace;
use crate::history::History;
use crate::reply::Reply;

/// A channel, plain or of a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    Plain(Vec<u8>),
    OfSlot(Vec<u8>),
}

/// What is wrong with a server, or chosen by its operator.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Its memory is full, and it evicts nothing.
    pub is_full: bool,
    /// It may evict, and never does.
    pub evicts: bool,
    /// It cannot write to its disk.
    pub disk_fails: bool,
    /// It loads its data.
    pub is_loading: bool,
    /// A script runs for too long.
    pub is_busy: bool,
    /// It has an append-only file, and syncs it with each write.
    pub has_file: bool,
    pub syncs_each_write: bool,
    /// As a replica it has lost its primary, and says nothing of what it holds.
    pub is_cut_from_primary: bool,
    pub hides_stale_data: bool,
    /// So many replicas must keep up, or it takes no writes.
    pub replicas_to_write: usize,
}

/// By what a server is known.
#[derive(Clone, Debug)]
pub struct Identity {
    /// It changes with each start.
    pub run_id: String,
    /// It changes with each promotion, and is that of the primary at a replica.
    pub replication_id: String,
}

/// What kind of server it is.
#[derive(Clone, Debug, Default)]
pub enum Layout {
    #[default]
    Alone,
    /// A sentinel: for each name the host, port and config-epoch of the primary.
    Sentinel(BTreeMap<String, (String, u16, u64)>),
}

/// A client's connection.
#[derive(Debug, Default)]
pub struct Session {
    pub(crate) is_resp3: bool,
    pub(crate) is_asking: bool,
    pub(crate) channels: BTreeSet<Channel>,
    /// How long the history of the server was behind the last command of this client.
    pub(crate) written: u64,
    /// How many replicas it waits for, and until when.
    pub(crate) waits: Option<(i64, Option<u64>)>,
    /// What came and is not a whole command yet, or must wait.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) is_closed: bool,
    pub(crate) woken: Arc<Notify>,
}

impl Session {
    pub(crate) fn takes_commands(&self) -> bool {
        self.waits.is_none() && !self.is_closed
    }

    pub(crate) fn write(&mut self, reply: &Reply) {
        reply.write(&mut self.output, self.is_resp3);
        self.woken.notify_one();
    }
}

/// What is known of the script that runs.
#[derive(Debug)]
pub(crate) struct ScriptRun {
    pub(crate) session: u64,
    pub(crate) is_asking: bool,
    has_written: bool,
}

/// Whether a message on a channel is lost.
pub type Losses = Box<dyn FnMut(&Channel, &[u8]) -> bool + Send>;

/// A server.
pub struct State {
    pub(crate) clock: Clock,
    /// The time of the present step: it stands still within.
    pub(crate) now_us: u64,
    pub(crate) now_ms: u64,
    pub keyspace: Keyspace,
    pub conditions: Conditions,
    pub identity: Identity,
    pub layout: Layout,
    pub cluster: Option<Cluster>,
    /// Where its primary is; nothing where it is one itself.
    pub follows: Option<(String, u16)>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) script: Option<ScriptRun>,
    /// What was published here and is for other nodes of the cluster too.
    pub to_other_nodes: Vec<(Vec<u8>, Vec<u8>)>,
    pub loses: Option<Losses>,
    pub(crate) history: History,
    /// For each replica the part of it that it has.
    pub(crate) acknowledged: BTreeMap<String, u64>,
    /// For each position of a scan the key that comes first there.
    pub(crate) scans: BTreeMap<u64, Vec<u8>>,
}

impl State {
    pub(crate) fn new(clock: Clock, identity: Identity) -> Self {
        Self {
            clock,
            now_us: 0,
            now_ms: 0,
            keyspace: Keyspace::default(),
            conditions: Conditions::default(),
            identity,
            layout: Layout::Alone,
            cluster: None,
            follows: None,
            sessions: BTreeMap::new(),
            script: None,
            to_other_nodes: Vec::new(),
            loses: None,
            history: History::default(),
            acknowledged: BTreeMap::new(),
            scans: BTreeMap::new(),
        }
    }

    pub(crate) fn layout_name(&self) -> &'static str {
        match self.layout {
            Layout::Sentinel(_) => "sentinel",
            Layout::Alone if self.cluster.is_some() => "cluster",
            Layout::Alone => "standalone",
        }
    }

    /// Begins a step: what it does, it does at one time.
    pub(crate) fn begin(&mut self) {
        self.now_us = self.clock.step_us();
        self.now_ms = self.now_us / 1000;
    }

    /// Ends a step, which is written to the history as a whole. A client that looked at something waits for its being written
    /// too.
    pub(crate) fn end(&mut self, session: u64) {
        if let Some(change) = self.keyspace.take_change() {
            self.history.push(change);
        }
        let written = self.offset();
        if let Some(session) = self.sessions.get_mut(&session) {
            session.written = written;
        }
    }

    /// How long the history is.
    pub(crate) fn offset(&self) -> u64 {
        self.history.end()
    }

    /// How many replicas have the history up to there.
    pub(crate) fn replicas_with(&self, offset: u64) -> usize {
        self.acknowledged.values().filter(|acknowledged| **acknowledged >= offset).count()
    }

    /// How many replicas keep up, where writes need some that do.
    pub(crate) fn good_replicas(&self) -> Option<usize> {
        (self.conditions.replicas_to_write > 0).then_some(self.acknowledged.len())
    }

    /// Ends a client's wait for replicas, if it is over.
    pub(crate) fn settle_wait(&mut self, session: u64) {
        let now_ms = self.clock.now_ms();
        let Some(Session { waits: Some((needed, ends_ms)), written, .. }) = self.sessions.get(&session)
        else {
            return;
        };
        let count = self.replicas_with(*written) as i64;
        if count < *needed && ends_ms.is_none_or(|ends_ms| now_ms < ends_ms) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.waits = None;
            session.write(&Reply::Int(count));
        }
    }

    /// Tells all who listen at this server, and how many they are.
    pub(crate) fn tell(&mut self, channel: &Channel, message: &[u8]) -> i64 {
        let (kind, name) = match channel {
            Channel::Plain(name) => ("message", name),
            Channel::OfSlot(name) => ("smessage", name),
        };
        let push = Reply::Push(vec![Reply::bulk(kind), Reply::bulk(&**name), Reply::bulk(message)]);
        let mut told = 0;
        let hears = |session: &Session| session.channels.contains(channel);
        for session in self.sessions.values_mut().filter(|session| hears(session)) {
            told += 1;
            // To the sender nothing looks lost.
            if !self.loses.as_mut().is_some_and(|loses| loses(channel, message)) {
                session.write(&push);
            }
        }
        told
    }

    /// What a client's command comes to. Scripts are for [`crate::server::Server`].
    pub(crate) fn execute(&mut self, session: u64, words: &[Vec<u8>]) -> Reply {
        let Some(command) = find(words) else { return unknown(words) };
        if !command.has_arity(words.len()) {
            return Reply::failed(format!("ERR wrong number of arguments for '{}' command", command.name));
        }
        if let Some(refusal) = self.misplaced(session, command.keys, words) {
            return refusal;
        }
        if let Some(refusal) = self.refusal_by_state(|flag| command.is(flag), command.name == "ping") {
            return refusal;
        }
        let reply = command.run(self, &Call { words, session });
        self.end(session);
        reply
    }

    /// Why a call is not for this node of a cluster.
    pub(crate) fn misplaced(&mut self, session: u64, keys: Keys, words: &[Vec<u8>]) -> Option<Reply> {
        let asks = |session: &mut Session| std::mem::take(&mut session.is_asking);
        let is_asking = self.sessions.get_mut(&session).is_some_and(asks);
        match place_of(self, keys_of(keys, words), keys == Keys::Channels, is_asking) {
            Place::Here => None,
            Place::Elsewhere(reply) | Place::Down(reply) => Some(reply),
        }
    }

    /// Why a command of such flags is refused in the state that the server is in.
    pub(crate) fn refusal_by_state(&self, is: impl Fn(char) -> bool, is_ping: bool) -> Option<Reply> {
        let Conditions { is_full, is_loading, is_busy, .. } = self.conditions;
        if is_full && is('m') {
            return Some(OUT_OF_MEMORY);
        }
        if let Some(refusal) =
            self.refuses_writes().filter(|refusal| is('w') || is_ping && *refusal == DISK_FAILS)
        {
            return Some(refusal);
        }
        if self.is_stale() && !is('t') {
            return Some(STALE);
        }
        if is_loading && !is('l') {
            return Some(Reply::error("LOADING Redis is loading the dataset in memory"));
        }
        // Those that Redis answers then are few, and none that the gateway sends but HELLO.
        if is_busy && !is('s') {
            return Some(Reply::error(
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            ));
        }
        None
    }

    pub(crate) fn is_stale(&self) -> bool {
        let conditions = &self.conditions;
        self.follows.is_some() && conditions.is_cut_from_primary && conditions.hides_stale_data
    }

    fn refuses_writes(&self) -> Option<Reply> {
        if self.follows.is_none() && self.conditions.disk_fails {
            return Some(DISK_FAILS);
        }
        if self.follows.is_none()
            && self.good_replicas().is_some_and(|good| good < self.conditions.replicas_to_write)
        {
            return Some(Reply::error("NOREPLICAS Not enough good replicas to write."));
        }
        self.follows.is_some().then(|| Reply::error("READONLY You can't write against a read only replica."))
    }

    pub(crate) fn begin_script(&mut self, session: u64, is_asking: bool) {
        self.script = Some(ScriptRun { session, is_asking, has_written: false });
    }

    /// What a command of a script comes to.
    pub(crate) fn execute_in_script(&mut self, words: &[Vec<u8>]) -> Reply {
        let (session, is_asking, has_written) = match &self.script {
            Some(ScriptRun { session, is_asking, has_written }) => (*session, *is_asking, *has_written),
            None => (0, false, false),
        };
        let Some(command) = find(words) else {
            return match words.first() {
                Some(name) if is_of_scripts(name) => {
                    Reply::error("ERR This Redis command is not allowed from script")
                }
                _ => Reply::error("ERR Unknown Redis command called from script"),
            };
        };
        if !command.has_arity(words.len()) {
            return Reply::error("ERR Wrong number of args calling Redis command from script");
        }
        if command.is('s') {
            return Reply::error("ERR This Redis command is not allowed from script");
        }
        if let Some(refusal) = self.refuses_writes().filter(|_| command.is('w')) {
            return refusal;
        }
        // Once it has written, a script is not left halfway.
        if self.conditions.is_full && command.is('m') && !has_written {
            return OUT_OF_MEMORY;
        }
        if command.is('w')
            && let Some(run) = &mut self.script
        {
            run.has_written = true;
        }
        match place_of(self, keys_of(command.keys, words), command.keys == Keys::Channels, is_asking) {
            Place::Here => command.run(self, &Call { words, session }),
            Place::Elsewhere(_) => {
                Reply::error("ERR Script attempted to access a non local key in a cluster node")
            }
            Place::Down(_) => {
                Reply::error("ERR Script attempted to execute a command while the cluster is down")
            }
        }
    }
}

pub(crate) const STALE: Reply =
    Reply::error("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");
const OUT_OF_MEMORY: Reply = Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
const DISK_FAILS: Reply = Reply::error("MISCONF Errors writing to the AOF file: No space left on device");

/// The commands of scripts themselves, which the server sees to.
pub(crate) fn is_of_scripts(name: &[u8]) -> bool {
    ["eval", "evalsha", "script"].iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

fn unknown(words: &[Vec<u8>]) -> Reply {
    let mut said = words.iter().map(|word| String::from_utf8_lossy(word));
    let name = said.next().unwrap_or_default();
    let args: String = said.map(|word| format!("'{word}' ")).collect();
    Reply::failed(format!("ERR unknown command '{name}', with args beginning with: {args}"))
}
