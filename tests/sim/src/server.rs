//! A server as its clients and its operator see it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::commands::{Call, Keys, integer};
use crate::history::History;
use crate::reply::Reply;
use crate::script::{Scripts, hash_of};
use crate::state::{Identity, STALE, Session, State, is_of_scripts};
use crate::wire;

/// A simulated server. Clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    name: String,
    state: Arc<Mutex<State>>,
    /// Locked for as long as a step takes, also one of many commands: no two of them run at once.
    scripts: Mutex<Scripts>,
    counts: Mutex<Counts>,
    listener: Mutex<Option<Listener>>,
}

/// Hears each command, and what it comes to.
type Listener = Box<dyn Fn(&[Vec<u8>], &Reply) + Send>;

#[derive(Default)]
struct Counts {
    sessions: u64,
    identities: u64,
}

/// What a server has after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Everything,
    Nothing,
    /// All but so many of the last changes.
    AllBut(usize),
}

impl Server {
    /// A primary without data. What it calls itself follows from the name: the same name, the same ids.
    pub fn start(name: &str, clock: &Clock) -> Self {
        let identity = Identity { run_id: String::new(), replication_id: String::new() };
        let state = Arc::new(Mutex::new(State::new(clock.clone(), identity)));
        let scripts = Mutex::new(Scripts::new(&state));
        let server = Self(Arc::new(Inner {
            name: name.to_owned(),
            state,
            scripts,
            counts: Mutex::default(),
            listener: Mutex::default(),
        }));
        let identity = Identity { run_id: server.next_id(), replication_id: server.next_id() };
        server.state().identity = identity;
        server
    }

    fn next_id(&self) -> String {
        let mut counts = self.0.counts.lock();
        counts.identities += 1;
        hash_of(format!("{} {}", self.0.name, counts.identities).as_bytes())
    }

    /// Whether they are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What it holds, and what is wrong with it.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// From now on scripts are run with a mistake in the place of what stands there. Their hashes stay.
    pub fn make_mistake(&self, stands: &str, mistake: &str) {
        self.0.scripts.lock().make_mistake(stands, mistake);
    }

    /// A client connects. It is called by the number that is returned.
    pub fn connect(&self) -> u64 {
        let mut counts = self.0.counts.lock();
        counts.sessions += 1;
        self.state().sessions.insert(counts.sessions, Session::default());
        counts.sessions
    }

    pub fn disconnect(&self, session: u64) {
        self.state().sessions.remove(&session);
    }

    /// Closes the connections of all clients.
    pub fn disconnect_all(&self) {
        for session in self.state().sessions.values_mut() {
            session.is_closed = true;
            session.woken.notify_one();
        }
    }

    /// Takes what a client sent, and does what it says, as far as it is whole.
    pub fn receive(&self, session: u64, bytes: &[u8]) {
        if let Some(session) = self.state().sessions.get_mut(&session) {
            session.input.extend_from_slice(bytes);
        }
        loop {
            let words = {
                let mut state = self.state();
                let Some(session) =
                    state.sessions.get_mut(&session).filter(|session| session.takes_commands())
                else {
                    return;
                };
                match wire::take_command(&mut session.input) {
                    Ok(Some(words)) => words,
                    Ok(None) => return,
                    Err(problem) => {
                        session.write(&Reply::failed(format!("ERR Protocol error: {problem}")));
                        session.is_closed = true;
                        return;
                    }
                }
            };
            let reply = self.ask(session, &words);
            if let Some(session) = self.state().sessions.get_mut(&session)
                && session.waits.is_none()
            {
                session.write(&reply);
            }
        }
    }

    /// What is for a client since this was asked last; `None` once its connection is closed.
    pub fn take_output(&self, session: u64) -> Option<Vec<u8>> {
        let mut state = self.state();
        let session = state.sessions.get_mut(&session)?;
        let output = std::mem::take(&mut session.output);
        (!session.is_closed || !output.is_empty()).then_some(output)
    }

    /// Notified when there is something for the client, or its connection is closed.
    pub(crate) fn woken(&self, session: u64) -> Option<Arc<Notify>> {
        self.state().sessions.get(&session).map(|session| session.woken.clone())
    }

    /// After what time a client's wait for replicas ends, if it has an end.
    pub(crate) fn wait_ends_in(&self, session: u64) -> Option<Duration> {
        let state = self.state();
        let ends_ms = state.sessions.get(&session)?.waits?.1?;
        Some(Duration::from_millis(ends_ms.saturating_sub(state.clock.now_ms())))
    }

    /// Ends waits for replicas that are over, and does what stands behind them.
    pub(crate) fn settle(&self, session: u64) {
        self.state().settle_wait(session);
        self.receive(session, b"");
    }

    /// From now on it is told of each command of a client.
    pub fn set_listener(&self, hears: impl Fn(&[Vec<u8>], &Reply) + Send + 'static) {
        *self.0.listener.lock() = Some(Box::new(hears));
    }

    /// What a client's command comes to.
    pub fn ask(&self, session: u64, words: &[Vec<u8>]) -> Reply {
        let reply = self.reply_to(session, words);
        if let Some(hears) = &*self.0.listener.lock() {
            hears(words, &reply);
        }
        reply
    }

    fn reply_to(&self, session: u64, words: &[Vec<u8>]) -> Reply {
        let mut scripts = self.0.scripts.lock();
        self.state().begin();
        match words.first() {
            Some(name) if is_of_scripts(name) => self.ask_of_script(&mut scripts, session, words),
            Some(_) => self.state().execute(session, words),
            None => Reply::Nil,
        }
    }

    fn ask_of_script(&self, scripts: &mut Scripts, session: u64, words: &[Vec<u8>]) -> Reply {
        let call = Call { words, session };
        if call.is(0, "script") {
            return match words {
                [_, _, text] if call.is(1, "load") => match scripts.load(text) {
                    Ok(hash) => Reply::bulk(hash),
                    Err(error) => error,
                },
                [_, _] if call.is(1, "flush") => {
                    scripts.forget_all();
                    Reply::OK
                }
                _ => Reply::error("ERR unknown subcommand or wrong number of arguments for 'script' command"),
            };
        }
        let name = String::from_utf8_lossy(&words[0]).to_ascii_lowercase();
        if words.len() < 3 {
            return Reply::failed(format!("ERR wrong number of arguments for '{name}' command"));
        }
        let is_asking = {
            let mut state = self.state();
            let is_asking = state.sessions.get(&session).is_some_and(|session| session.is_asking);
            let refusal = state.misplaced(session, Keys::Counted, words);
            if let Some(refusal) = refusal.or_else(|| state.refusal_by_state(|flag| flag == 't', false)) {
                return refusal;
            }
            is_asking
        };
        let rest = &words[3..];
        let count = match integer(&words[2]).map(usize::try_from) {
            Err(error) => return error,
            Ok(Err(_)) => return Reply::error("ERR Number of keys can't be negative"),
            Ok(Ok(count)) if count > rest.len() => {
                return Reply::error("ERR Number of keys can't be greater than number of args");
            }
            Ok(Ok(count)) => count,
        };
        let hash = if call.is(0, "eval") {
            match scripts.load(&words[1]) {
                Ok(hash) => hash,
                Err(error) => return error,
            }
        } else {
            String::from_utf8_lossy(&words[1]).to_ascii_lowercase()
        };
        if scripts.knows(&hash) && self.state().is_stale() {
            return STALE;
        }
        self.state().begin_script(session, is_asking);
        let reply = scripts.run(&hash, &rest[..count], &rest[count..]);
        let mut state = self.state();
        state.script = None;
        state.end(session);
        reply
    }

    /// The process ends, and another one begins with what it finds.
    pub fn restart(&self, kept: Kept) {
        self.disconnect_all();
        let mut scripts = self.0.scripts.lock();
        scripts.forget_all();
        let (run_id, replication_id) = (self.next_id(), self.next_id());
        let mut state = self.state();
        state.scans.clear();
        state.acknowledged.clear();
        match kept {
            Kept::Everything => {}
            Kept::Nothing => state.keyspace.clear(),
            Kept::AllBut(lost) => {
                for _ in 0..lost {
                    let Some(change) = state.history.pop() else { break };
                    state.keyspace.undo(&change);
                }
            }
        }
        state.keyspace.take_change();
        state.history = History::default();
        state.identity = Identity { run_id, replication_id };
    }

    /// Makes it a replica of the server at this address, with all that this one holds.
    pub fn follow(&self, primary: &Self, address: (&str, u16)) {
        self.state().follows = Some((address.0.to_owned(), address.1));
        self.copy(primary);
    }

    fn copy(&self, primary: &Self) {
        let (mut keyspace, offset, replication_id) = {
            let _between_steps = primary.0.scripts.lock();
            let mut state = primary.state();
            // From now on there is somebody to tell.
            state.keyspace.is_followed = true;
            (state.keyspace.clone(), state.offset(), state.identity.replication_id.clone())
        };
        keyspace.take_change();
        let _between_steps = self.0.scripts.lock();
        let mut state = self.state();
        state.keyspace = keyspace;
        state.history = History::from(offset);
        state.identity.replication_id = replication_id;
        drop(state);
        self.acknowledge(primary, offset);
    }

    /// From now on it has another clock than it was started with.
    pub fn set_clock(&self, clock: Clock) {
        self.state().clock = clock;
    }

    /// Its own time, in microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        self.state().clock.now_us()
    }

    fn acknowledge(&self, primary: &Self, offset: u64) {
        let mut state = primary.state();
        state.acknowledged.insert(self.0.name.clone(), offset);
        state.sessions.values().for_each(|session| session.woken.notify_one());
    }

    /// As a replica, does at most so many changes of its primary that it lacks, and tells it so.
    pub fn catch_up(&self, primary: &Self, most: usize) {
        let (from, id) = {
            let state = self.state();
            (state.offset(), state.identity.replication_id.clone())
        };
        let changes: Option<Vec<_>> = {
            let state = primary.state();
            let to = state.offset().min(from.saturating_add(most as u64));
            let is_its = state.identity.replication_id == id && from <= state.offset();
            let all = || (from..to).map(|place| state.history.get(place).cloned()).collect();
            is_its.then(all).flatten()
        };
        let Some(changes) = changes else { return self.copy(primary) };
        let _between_steps = self.0.scripts.lock();
        let mut state = self.state();
        for change in changes {
            state.keyspace.redo(&change);
            state.history.push(change);
        }
        let offset = state.offset();
        drop(state);
        self.acknowledge(primary, offset);
    }

    /// As a node of a cluster, gives this key to another one, as `MIGRATE` does. Returns whether it is there.
    pub fn give(&self, key: &[u8], to: &Self) -> bool {
        let given = {
            let _between_steps = self.0.scripts.lock();
            let mut state = self.state();
            state.begin();
            let now_ms = state.now_ms;
            let given = state.keyspace.get(key, now_ms).cloned();
            state.keyspace.remove(key, now_ms);
            state.end(0);
            // What is left of its time counts from its arrival.
            given.map(|entry| (entry.ends_ms.map(|ends_ms| ends_ms.saturating_sub(now_ms)), entry))
        };
        let Some((left_ms, mut entry)) = given else { return false };
        let _between_steps = to.0.scripts.lock();
        let mut state = to.state();
        state.begin();
        entry.ends_ms = left_ms.map(|left_ms| state.now_ms + left_ms);
        state.keyspace.put(key, entry);
        state.end(0);
        true
    }

    /// The keys that are there.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let state = self.state();
        state.keyspace.keys(state.clock.now_ms()).cloned().collect()
    }

    /// Makes a replica the primary, with what it has by then. Like a server whose role is changed by Sentinel, it ends all
    /// connections.
    pub fn promote(&self) {
        self.disconnect_all();
        let id = self.next_id();
        let _between_steps = self.0.scripts.lock();
        let mut state = self.state();
        state.follows = None;
        state.acknowledged.clear();
        state.identity.replication_id = id;
    }
}
