//! The commands that a server knows: those that the scripts and the gateway use, and few that tests look with.

use crate::data::{Data, Entry, Hash, SortedSet};
use crate::reply::Reply;
use crate::state::State;

mod about;
mod hashes;
mod keys;
mod listening;
mod sorted_sets;
mod texts;

/// Which arguments are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    None,
    One,
    /// All arguments.
    All,
    /// As many as the second argument says, behind it.
    Counted,
    /// They are channels, of which each belongs to a slot.
    Channels,
}

/// How a command is called, and when it is refused. The flags are letters: `w` writes · `m` needs memory · `s` not from a script ·
/// `l` also while data is loaded · `t` also from a replica without its primary.
pub struct Command {
    pub name: &'static str,
    /// With the name itself; negative where that is the least.
    pub arity: i32,
    flags: &'static str,
    pub keys: Keys,
    run: fn(&mut State, &Call) -> Reply,
}

impl Command {
    pub fn is(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    pub fn has_arity(&self, words: usize) -> bool {
        let words = i32::try_from(words).unwrap_or(i32::MAX);
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }

    pub fn run(&self, state: &mut State, call: &Call) -> Reply {
        (self.run)(state, call)
    }
}

/// A command as it was sent.
pub struct Call<'a> {
    /// With the name, and that of a subcommand.
    pub words: &'a [Vec<u8>],
    /// Who sent it, perhaps by a script.
    pub session: u64,
}

impl Call<'_> {
    pub fn key(&self) -> &[u8] {
        &self.words[1]
    }

    /// Whether a word is this one, in any case.
    pub fn is(&self, at: usize, word: &str) -> bool {
        self.words.get(at).is_some_and(|given| given.eq_ignore_ascii_case(word.as_bytes()))
    }
}

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static str,
    keys: Keys,
    run: fn(&mut State, &Call) -> Reply,
) -> Command {
    Command { name, arity, flags, keys, run }
}

/// Of commands with subcommands each is one.
pub static COMMANDS: &[Command] = &[
    command("acl|dryrun", -4, "slt", Keys::None, about::acl_dryrun),
    command("asking", 1, "", Keys::None, about::asking),
    command("cluster|info", 2, "t", Keys::None, about::cluster_info),
    command("cluster|slots", 2, "lt", Keys::None, about::cluster_slots),
    command("config|get", -3, "slt", Keys::None, about::config_get),
    command("del", -2, "w", Keys::All, keys::del),
    command("exists", -2, "", Keys::All, keys::exists),
    command("flushall", -1, "w", Keys::None, keys::flushall),
    command("get", 2, "", Keys::One, texts::get),
    command("getrange", 4, "", Keys::One, texts::getrange),
    command("hdel", -3, "w", Keys::One, hashes::hdel),
    command("hello", -1, "slt", Keys::None, about::hello),
    command("hget", 3, "", Keys::One, hashes::hget),
    command("hgetall", 2, "", Keys::One, hashes::hgetall),
    command("hincrby", 4, "wm", Keys::One, hashes::hincrby),
    command("hmget", -3, "", Keys::One, hashes::hmget),
    command("hset", -4, "wm", Keys::One, hashes::hset),
    command("info", -1, "lt", Keys::None, about::info),
    command("keys", 2, "", Keys::None, keys::keys),
    command("mget", -2, "", Keys::All, texts::mget),
    command("pexpire", -3, "w", Keys::One, keys::pexpire),
    command("ping", -1, "", Keys::None, about::ping),
    command("pttl", 2, "", Keys::One, keys::pttl),
    command("publish", 3, "lt", Keys::None, listening::publish),
    command("rename", 3, "w", Keys::All, keys::rename),
    command("scan", -2, "", Keys::None, keys::scan),
    command("select", 2, "lt", Keys::None, about::select),
    command("sentinel|get-master-addr-by-name", 3, "", Keys::None, about::sentinel_address),
    command("sentinel|master", 3, "", Keys::None, about::sentinel_primary),
    command("sentinel|myid", 2, "", Keys::None, about::sentinel_id),
    command("set", -3, "wm", Keys::One, texts::set),
    command("setrange", 4, "wm", Keys::One, texts::setrange),
    command("spublish", 3, "lt", Keys::Channels, listening::spublish),
    command("ssubscribe", -2, "slt", Keys::Channels, listening::ssubscribe),
    command("strlen", 2, "", Keys::One, texts::strlen),
    command("subscribe", -2, "slt", Keys::None, listening::subscribe),
    command("time", 1, "lt", Keys::None, about::time),
    command("type", 2, "", Keys::One, keys::type_of),
    command("wait", 3, "s", Keys::None, about::wait),
    command("zadd", -4, "wm", Keys::One, sorted_sets::zadd),
    command("zcard", 2, "", Keys::One, sorted_sets::zcard),
    command("zincrby", 4, "wm", Keys::One, sorted_sets::zincrby),
    command("zmscore", -3, "", Keys::One, sorted_sets::zmscore),
    command("zrange", -4, "", Keys::One, sorted_sets::zrange),
    command("zrangebyscore", -4, "", Keys::One, sorted_sets::zrangebyscore),
    command("zrank", 3, "", Keys::One, sorted_sets::zrank),
    command("zrem", -3, "w", Keys::One, sorted_sets::zrem),
    command("zremrangebyscore", 4, "w", Keys::One, sorted_sets::zremrangebyscore),
    command("zscore", 3, "", Keys::One, sorted_sets::zscore),
];

/// Those whose name is followed by that of a subcommand.
const CONTAINERS: [&str; 5] = ["acl", "cluster", "config", "script", "sentinel"];

/// The command that words call.
pub fn find(words: &[Vec<u8>]) -> Option<&'static Command> {
    let mut name = words.first()?.to_ascii_lowercase();
    if CONTAINERS.iter().any(|container| name == container.as_bytes())
        && let Some(second) = words.get(1)
    {
        name.push(b'|');
        name.extend(second.to_ascii_lowercase());
    }
    let found = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(&name));
    found.ok().map(|at| &COMMANDS[at])
}

const WRONG_TYPE: Reply = Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value");
const SYNTAX: Reply = Reply::error("ERR syntax error");
const NO_INTEGER: Reply = Reply::error("ERR value is not an integer or out of range");

/// That a call is right, and not among those that the gateway makes: the simulation must not guess.
fn not_simulated(what: &str) -> Reply {
    Reply::failed(format!("SIMULATION the simulated Redis does not know {what}"))
}

/// A whole number as Redis reads it: no sign but a minus, no zeros before it, no spaces.
pub fn integer(word: &[u8]) -> Result<i64, Reply> {
    let text = std::str::from_utf8(word).map_err(|_| NO_INTEGER)?;
    let number: i64 = text.parse().map_err(|_| NO_INTEGER)?;
    if number.to_string() == text { Ok(number) } else { Err(NO_INTEGER) }
}

/// A number as Redis reads scores.
fn float(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?;
    if text.is_empty() || text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
        return None;
    }
    text.parse().ok().filter(|number: &f64| !number.is_nan())
}

macro_rules! of_type {
    ($read:ident, $change:ident, $variant:ident, $type:ty) => {
        /// What the key holds, if anything.
        fn $read<'a>(state: &'a State, key: &[u8]) -> Result<Option<&'a $type>, Reply> {
            match state.keyspace.get(key, state.now_ms).map(|entry| &entry.data) {
                Some(Data::$variant(data)) => Ok(Some(data)),
                Some(_) => Err(WRONG_TYPE),
                None => Ok(None),
            }
        }

        /// Changes what the key holds. It is made where it `makes` one, and ends where nothing is left of it.
        fn $change<T>(
            state: &mut State,
            key: &[u8],
            makes: bool,
            change: impl FnOnce(&mut $type) -> T,
        ) -> Result<Option<T>, Reply> {
            let is_there = $read(state, key)?.is_some();
            if !is_there && !makes {
                return Ok(None);
            }
            if !is_there {
                let data = Data::$variant(Default::default());
                state.keyspace.put(key, Entry { data, ends_ms: None });
            }
            let now_ms = state.now_ms;
            let Some(Entry { data: Data::$variant(data), .. }) = state.keyspace.change(key, now_ms) else {
                return Ok(None);
            };
            let changed = change(data);
            if data.is_empty() {
                state.keyspace.remove(key, now_ms);
            }
            Ok(Some(changed))
        }
    };
}

of_type!(hash, change_hash, Hash, Hash);
of_type!(sorted, change_sorted, Sorted, SortedSet);

/// The reply that was found first.
fn either(result: Result<Reply, Reply>) -> Reply {
    result.unwrap_or_else(|error| error)
}
