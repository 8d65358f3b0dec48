//! The Lua scripts, how they are called, and how their replies are read.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, FromRedisValue, ParsingError, RedisError, RedisResult, ServerErrorKind, Value};

use crate::lock::{
    Attempt, FencingToken, Lease, LockKey, Note, QueuePosition, RolledBack, Sharing, Slot, Slots, Terms,
    Ticket, TokenHash,
};
use crate::store::{HeartbeatAnswer, KnownTo, Renewer, StoreError};

/// One script a line, by the parts of its text: names of what several scripts share, and files. What all share with the gateway
/// comes first.
macro_rules! scripts {
    ($($visibility:vis $name:ident: $($part:tt),+;)+) => {
        $($visibility static $name: std::sync::LazyLock<$crate::store::redis::scripts::Script> =
            std::sync::LazyLock::new(|| $crate::store::redis::scripts::Script::new(concat!(
                $crate::store::redis::scripts::part!(constants),
                $($crate::store::redis::scripts::part!($part)),+
            )));)+
    };
}
pub(crate) use scripts;

macro_rules! part {
    // A path of its own would begin at the file that names the part.
    ($shared:ident) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/store/redis/scripts/shared/",
            stringify!($shared),
            ".lua"
        ))
    };
    ($file:literal) => {
        include_str!($file)
    };
}
pub(crate) use part;

pub(crate) mod keys;

scripts! {
    pub(crate) ACQUIRE: after_end, lock, terms, slots, pool, wait_queue, fence, "scripts/acquire.lua";
    pub(crate) RENEW: "scripts/renew_own.lua", each, lock, terms, "scripts/renew.lua";
    pub(crate) RENEW_SLOT: after_end, lock, terms, slots, "scripts/renew_slot.lua";
    pub(crate) RELEASE: after_end, lock, terms, slots, pool, wait_queue, "scripts/release.lua";
    pub(crate) ROLL_BACK: after_end, lock, terms, slots, pool, wait_queue, "scripts/roll_back.lua";
    pub(crate) INSPECT: after_end, lock, slots, waiters, "scripts/inspect.lua";
    pub(crate) LIST: after_end, lock, slots, waiters, "scripts/list.lua";
    pub(crate) BREAK: after_end, lock, terms, slots, pool, wait_queue, "scripts/break.lua";
    pub(crate) HEARTBEAT: "scripts/heartbeat.lua";
    pub(crate) ACK: lock, "scripts/ack.lua";
    pub(crate) ACK_SLOT: after_end, lock, slots, "scripts/ack_slot.lua";
    pub(crate) LEARN: fence, "scripts/learn.lua";
}

/// Enough for most calls, so that they are put together without being moved.
const TYPICAL_ARGS: usize = 20;
const TYPICAL_CALL_BYTES: usize = 768;

/// What a server says to the hash of a script that it does not know.
pub(crate) const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

/// The numbers of outcomes end here; those of grants are microseconds since 1970.
const LARGEST_OUTCOME: u64 = 1_000_000;

/// How often a lock without an end is looked at by one that waits.
const LOOK_AT_ENDLESS_MS: u64 = 1_000;

/// How a lock's value begins: token hash, attempt and fencing token, and a space behind each.
const TOKEN_HASH_DIGITS: usize = 64;
const ATTEMPT_DIGITS: usize = 32;
const ATTEMPT_AT: usize = TOKEN_HASH_DIGITS + 1;
const NUMBER_AT: usize = ATTEMPT_AT + ATTEMPT_DIGITS + 1;

/// One script: one atomic step, one round trip.
pub(crate) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    pub(crate) fn new(code: &'static str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    /// Calls the script by its hash, and sends its text where the server does not know it (restart, failover,
    /// `SCRIPT FLUSH`). A `NOSCRIPT` did nothing, so the second call is no repetition. `add_args` adds the arguments. `is_asking`
    /// says that another node of a cluster has pointed to this one for this once.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        is_asking: bool,
        keys: &[&[u8]],
        add_args: impl Fn(&mut Cmd),
    ) -> RedisResult<T> {
        match send(connection, is_asking, self.by_hash(keys, &add_args)).await {
            Err(error) if error.kind() == NO_SCRIPT => {
                send(connection, is_asking, self.by_text(keys, &add_args)).await
            }
            reply => reply,
        }
    }

    pub(crate) fn by_hash(&self, keys: &[&[u8]], add_args: impl Fn(&mut Cmd)) -> Cmd {
        call("EVALSHA", &self.hash, keys, add_args)
    }

    pub(crate) fn by_text(&self, keys: &[&[u8]], add_args: impl Fn(&mut Cmd)) -> Cmd {
        call("EVAL", self.code, keys, add_args)
    }
}

/// Sends a command. `is_asking` says that another node of a cluster has pointed to this one for this once.
pub(crate) async fn send<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    is_asking: bool,
    command: Cmd,
) -> RedisResult<T> {
    if !is_asking {
        return command.query_async(connection).await;
    }
    let mut calls = redis::pipe();
    calls.cmd("ASKING").add_command(command);
    let mut replies = connection.req_packed_commands(&calls, 1, 1).await?;
    T::from_redis_value(replies.pop().unwrap_or(Value::Nil).extract_error()?).map_err(RedisError::from)
}

fn call(command: &str, script: &str, keys: &[&[u8]], add_args: impl Fn(&mut Cmd)) -> Cmd {
    let mut call = Cmd::with_capacity(TYPICAL_ARGS, TYPICAL_CALL_BYTES);
    call.arg(command).arg(script).arg(keys.len()).arg(keys);
    add_args(&mut call);
    call
}

/// How a script is told yes or no.
pub(crate) fn flag(is_so: bool) -> &'static str {
    if is_so { "1" } else { "0" }
}

/// The arguments by which the scripts are told of terms: both lengths in ms, each may be empty, and the slots.
pub(crate) fn terms(terms: Terms) -> [String; 3] {
    let [most, least] = [terms.max_hold, terms.min_hold]
        .map(|length| length.map_or_else(String::new, |length| length.as_millis().to_string()));
    [most, least, terms.slots.get().to_string()]
}

/// The argument by which they are told who renews: an attempt, or nothing.
pub(crate) fn renewer(by: Renewer) -> String {
    by.attempt().map_or_else(String::new, |attempt| attempt.to_string())
}

/// The argument by which they are told who knows of a grant that is rolled back: nothing, or for how many ms its token was told
/// of leases before.
pub(crate) fn known(known: KnownTo) -> String {
    match known {
        KnownTo::Nobody => String::new(),
        KnownTo::Connection { told_for, .. } => told_for.as_millis().to_string(),
    }
}

/// What acquire, renew and inspect reply: an outcome by number, then the lock, then the wait queue, as far as it concerns
/// the outcome. What stands alone is the outcome, or the number of a grant, which is larger than any.
pub(crate) struct ScriptReply {
    pub(crate) outcome: i64,
    fields: Vec<Value>,
}

impl ScriptReply {
    /// The lease in the reply; `None` where there is none, or the key holds something that no script of ours wrote.
    pub(crate) fn lease(&self) -> Option<Lease> {
        read_lease(self.lock()?, self.field::<i64>(1)?)
    }

    /// Who holds the lock in the reply, if it names one.
    pub(crate) fn holder(&self) -> Option<TokenHash> {
        read_holder(self.lock()?)
    }

    /// Whether the reply names a lock that is held.
    pub(crate) fn has_lock(&self) -> bool {
        self.lock().is_some_and(|lock| !lock.is_empty())
    }

    fn lock(&self) -> Option<&[u8]> {
        match self.fields.first()? {
            Value::BulkString(lock) => Some(lock),
            _ => None,
        }
    }

    /// The number of a grant, where the reply is nothing else.
    pub(crate) fn number(&self) -> Option<FencingToken> {
        FencingToken::new(u64::try_from(self.outcome).ok()?).filter(|number| number.get() > LARGEST_OUTCOME)
    }

    /// What was done to roll a grant back.
    pub(crate) fn rolled_back(&self) -> Option<RolledBack> {
        match self.outcome {
            0 => Some(RolledBack::Nothing),
            1 => Some(RolledBack::Ended { kept_ms: self.field(0)? }),
            2 => Some(RolledBack::LeftToToken { left_ms: self.field(0)? }),
            _ => None,
        }
    }

    /// How many stand in the wait queue.
    pub(crate) fn waiters(&self) -> u64 {
        self.field(2).unwrap_or(0)
    }

    /// How many share the lock, if some do; the fields of this begin at an index.
    pub(crate) fn sharing(&self, index: usize) -> Option<Sharing<()>> {
        let (held, slots) = (self.field(index)?, Slots::new(self.field(index + 1)?)?);
        Some(Sharing { held, slots, holders: () })
    }

    /// Some of those who share the lock, where the reply of an inspection names them.
    pub(crate) fn sharers(&self) -> Option<Vec<Lease>> {
        let all: Vec<Value> = self.field(5)?;
        let read = |pair: &[Value]| match pair {
            [Value::BulkString(lock), Value::Int(left_ms)] => read_lease(lock, *left_ms),
            _ => None,
        };
        all.chunks(2).map(read).collect()
    }

    /// Where the token stands in the wait queue, from 1 on.
    pub(crate) fn position(&self) -> Option<u64> {
        self.field(3).filter(|position| *position > 0)
    }

    /// What stands behind the outcome.
    pub(crate) fn field<T: FromRedisValue>(&self, index: usize) -> Option<T> {
        T::from_redis_value(self.fields.get(index)?.clone()).ok()
    }
}

impl FromRedisValue for ScriptReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = match value {
            Value::Int(_) | Value::BulkString(_) => {
                let outcome = i64::from_redis_value(value)?;
                return Ok(Self { outcome, fields: Vec::new() });
            }
            Value::Array(fields) => fields.into_iter(),
            _ => return Err("a reply that is no number and no array".into()),
        };
        let outcome = fields.next().ok_or_else(|| ParsingError::from("an empty reply"))?;
        let outcome = i64::from_redis_value(outcome)?;
        Ok(Self { outcome, fields: fields.collect() })
    }
}

/// The lease in a lock's value, with so much left; `None` if no script of ours wrote it, or if it has no end.
fn read_lease(lock: &[u8], left_ms: i64) -> Option<Lease> {
    let text = std::str::from_utf8(lock.get(NUMBER_AT..)?).ok()?;
    let (number, note) = text.split_once(' ')?;
    // Behind it, its slot, if it has one, and its terms, which are the scripts' own.
    let number = number.split_once(':').map_or(number, |(number, _)| number);
    let (number, slot) = match number.split_once('*') {
        Some((number, slot)) => (number, Some(read_slot(slot)?)),
        None => (number, None),
    };
    Some(Lease {
        fencing_token: FencingToken::new(number.parse().ok()?)?,
        left_ms: u64::try_from(left_ms).ok()?,
        note: Note::from_stored(note)?,
        is_released: read_holder(lock)? == TokenHash::NOBODY,
        slot,
    })
}

/// The number of a slot, and how many its holder has said.
fn read_slot(text: &str) -> Option<Slot> {
    let (number, slots) = text.split_once('*')?;
    Some(Slot { number: number.parse().ok()?, slots: Slots::new(slots.parse().ok()?)? })
}

fn read_holder(lock: &[u8]) -> Option<TokenHash> {
    TokenHash::parse(std::str::from_utf8(lock.get(..TOKEN_HASH_DIGITS)?).ok()?)
}

/// Whether a gateway, or a script, can read what stands where a lock does.
pub(crate) fn is_readable(value: &[u8]) -> bool {
    value.starts_with(b"?*") || is_offer(value) || read_lease(value, 0).is_some()
}

/// The same of what stands in a field of those who hold a lock together.
pub(crate) fn is_readable_slot(field: &str, value: &[u8]) -> bool {
    let lock = || {
        let (slot, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let (slots, rest) = rest.split_once(' ')?;
        let (attempt, rest) = rest.split_once(' ')?;
        let digits = rest.find(|digit: char| !digit.is_ascii_digit())?;
        let (number, rest) = rest.split_at(digits);
        read_lease(format!("{:0>64} {attempt} {number}*{slot}*{slots}{rest}", "").as_bytes(), 0)
    };
    // Offers, which only scripts read, stand at the first.
    field == "*" || lock().is_some()
}

/// Whether it is an offer, which only scripts read.
fn is_offer(value: &[u8]) -> bool {
    let Some(Ok(text)) = value.strip_prefix(b"?").map(std::str::from_utf8) else { return false };
    let words: Vec<_> = text.split(' ').collect();
    words.len() == 4 && words.iter().all(|word| !word.is_empty()) && words[3].parse::<u64>().is_ok()
}

/// The heartbeat number and the beat in a reply: whether the gateway is new, then locks, each followed by the milliseconds until
/// it is due.
pub(crate) fn read_heartbeat(
    reply: Vec<Value>,
    key_of: impl Fn(&str) -> Option<LockKey>,
) -> Option<(String, HeartbeatAnswer)> {
    let mut fields = reply.into_iter();
    let heartbeat_number = String::from_redis_value(fields.next()?).ok()?;
    let is_new = i64::from_redis_value(fields.next()?).ok()? == 1;
    let mut due = Vec::new();
    while let (Some(lock), Some(in_ms)) = (fields.next(), fields.next()) {
        let lock = String::from_redis_value(lock).ok()?;
        let in_ms = i64::from_redis_value(in_ms).ok()?;
        due.extend(key_of(&lock).map(|key| (key, u64::try_from(in_ms).unwrap_or(0))));
    }
    Some((heartbeat_number, HeartbeatAnswer { is_new, due }))
}

/// The lease in the reply of a script that may have written: it tells what it found, and cannot know who can read it.
pub(crate) fn lease_of(reply: &ScriptReply, key: &LockKey) -> Result<Lease, StoreError> {
    reply.lease().ok_or_else(|| StoreError::Unknown(unreadable(key)))
}

/// The same where the script has certainly left the lock as it was.
pub(crate) fn lease_seen(reply: &ScriptReply, key: &LockKey) -> Result<Lease, StoreError> {
    reply.lease().ok_or_else(|| StoreError::Unavailable(unreadable(key)))
}

/// What is said of a value that no script of ours wrote.
pub(crate) fn unreadable(key: &LockKey) -> String {
    format!(
        "what Redis stores for {:?} cannot be read: another version of Fencepost, or another program, wrote it",
        key.as_str()
    )
}

/// Where the token stands in the wait queue, and when to look again, by a reply that must say so.
pub(crate) fn queue_position_of(reply: &ScriptReply) -> Result<QueuePosition, StoreError> {
    let read = || {
        let due_in_ms: i64 = reply.field(5)?;
        let offered_to: String = reply.field(6)?;
        Some(QueuePosition {
            ticket: Ticket::new(reply.field::<String>(4)?.parse().ok()?),
            is_first: reply.position() == Some(1),
            // Less than nothing is left of a lock whose key has no TTL: it is looked at now and then.
            due_in_ms: u64::try_from(due_in_ms).unwrap_or(LOOK_AT_ENDLESS_MS),
            offered_to: Attempt::parse(&offered_to),
        })
    };
    read().ok_or_else(|| StoreError::Unknown("the ticket in the wait queue cannot be read".into()))
}

/// That a script replied what it cannot.
pub(crate) fn unexpected(script: &str, outcome: i64) -> StoreError {
    StoreError::Unknown(format!(
        "the script {script} replied {outcome}, which this version of Fencepost does not know"
    ))
}

#[cfg(test)]
mod tests;
