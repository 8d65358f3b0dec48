//! What of a server's keys no gateway can read, and how far its fencing tokens are.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisResult, Value, cmd};

use crate::lock::{FencingToken, TokenHash};
use crate::store::Bucket;
use crate::store::redis::scripts::keys::{KeySpace, NameKind};
use crate::store::redis::scripts::{is_readable, is_readable_slot};

/// The most keys that one `SCAN` looks at, the most of them, and the most values that are told of.
const MOST_AT_ONCE: usize = 1_000;
const MOST_STEPS: usize = 10;
const MOST_TOLD: usize = 10;
/// Of so many locks that several hold is asked at once who they are: each may have a thousand holders.
const MOST_HELD_AT_ONCE: usize = 16;
/// The last byte that the head of a record may have.
const LAST_OF_HEAD: usize = 1_023;

/// What was found in the keys of a server that a look has time for.
#[derive(Default)]
pub(super) struct Contents {
    /// What no gateway can read.
    pub(super) unreadable: Vec<String>,
    /// The largest number that a fencing token was given, or 0.
    pub(super) last_number: u64,
}

impl Contents {
    /// Goes through the server's keys. What it has found is there also if it is given up before its end.
    pub(super) async fn find(
        &mut self,
        connection: &mut MultiplexedConnection,
        keys: &KeySpace,
        is_for_quorum: bool,
        reads_records: bool,
    ) -> RedisResult<()> {
        // Where all numbers stand in one place, that is found among however many keys.
        let numbers = if is_for_quorum { keys.record() } else { keys.fence(Bucket::default()) };
        self.read(connection, keys, &[numbers]).await?;
        let is_read = |name: &String| reads_records || keys.kind_in(name) != Some("once");
        let (mut position, pattern) = (0_u64, keys.pattern());
        for _ in 0..MOST_STEPS {
            let mut scan = cmd("SCAN");
            scan.arg(position).arg("MATCH").arg(&pattern).arg("COUNT").arg(MOST_AT_ONCE);
            let (next, names): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
            let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
            let is_held = |name: &String| keys.kind_in(name) == Some("held");
            let (held, others): (Vec<_>, Vec<_>) = names.filter(is_read).partition(is_held);
            self.read(connection, keys, &others).await?;
            for held in held.chunks(MOST_HELD_AT_ONCE) {
                self.read(connection, keys, held).await?;
            }
            position = next;
            if position == 0 || self.unreadable.len() >= MOST_TOLD {
                break;
            }
        }
        Ok(())
    }

    async fn read(
        &mut self,
        connection: &mut MultiplexedConnection,
        keys: &KeySpace,
        names: &[String],
    ) -> RedisResult<()> {
        let (mut look, mut asked) = (redis::pipe(), Vec::new());
        for name in names {
            let kind = keys.kind_in(name).unwrap_or_default();
            if let Some(question) = question(kind, name) {
                look.add_command(question);
                asked.push((kind, name));
            }
            if kind == "lock" {
                look.cmd("PTTL").arg(name);
                asked.push(("lease", name));
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let answers: Vec<RedisResult<Value>> = look.ignore_errors().query_async(connection).await?;
        let mut is_held_alone = false;
        for ((kind, name), answer) in asked.into_iter().zip(answers) {
            let of = |kind, called| Some(format!("{called} {:?}", keys.key_at(kind, name)?.as_str()));
            let (what, is_readable) = match kind {
                "lock" => {
                    // What has no value that can be read at all says nothing of a lease.
                    is_held_alone = false;
                    let is_good = |value: Option<Vec<u8>>| {
                        // Scripts give a lock that several hold its TTL again, and an offer has an end of its own.
                        is_held_alone = value.as_ref().is_some_and(|value| !value.starts_with(b"?"));
                        value.is_none_or(|value| is_readable(&value))
                    };
                    (of(NameKind::Lock, "value of lock"), holds(answer, is_good))
                }
                "lease" => {
                    let has_end = |left_ms: i64| left_ms != -1 || !is_held_alone;
                    (of(NameKind::Lock, "lease of lock"), holds(answer, has_end))
                }
                "once" => {
                    // It is empty if it has ended meanwhile.
                    let is_good = |head: Vec<u8>| head.is_empty() || is_record(&head);
                    (of(NameKind::Record, "value of record"), holds(answer, is_good))
                }
                "held" => {
                    let is_good = |fields: HashMap<String, Vec<u8>>| {
                        fields.iter().all(|(field, value)| is_readable_slot(field, value))
                    };
                    (Some(format!("value of key {name:?}")), holds(answer, is_good))
                }
                "fence" | "record" => {
                    (Some(format!("value of key {name:?}")), holds(answer, |fields| self.note(&fields)))
                }
                _ => (Some(format!("value of key {name:?}")), holds(answer, |_: Value| true)),
            };
            // The name of what is none of ours may look like one.
            let Some(what) = what.filter(|_| !is_readable) else { continue };
            let told = match kind {
                "lease" => format!("the {what}: another program took the TTL from its key"),
                _ => format!("the {what}: another version of Fencepost, or another program, wrote it"),
            };
            // A SCAN may name a key twice.
            if self.unreadable.len() < MOST_TOLD && !self.unreadable.contains(&told) {
                self.unreadable.push(told);
            }
        }
        Ok(())
    }

    /// Notes the largest number of those that grants may have. What else stands there is smaller, or no number.
    fn note(&mut self, fields: &HashMap<String, String>) -> bool {
        let numbers = fields.values().filter_map(|value| value.parse().ok());
        let last = numbers.filter(|number| *number <= FencingToken::MAX).max();
        self.last_number = self.last_number.max(last.unwrap_or(0));
        true
    }
}

/// What is asked of a key of this kind, if it is one that scripts read. A value of another type is an error.
fn question(kind: &str, name: &str) -> Option<Cmd> {
    let mut question = match kind {
        "lock" | "freed" => cmd("GET"),
        "once" => cmd("GETRANGE"),
        "seats" => cmd("HGET"),
        "held" | "fence" | "record" => cmd("HGETALL"),
        "line" | "away" | "due" | "gates" | "ends" | "wide" | "watch" => cmd("ZCARD"),
        _ => return None,
    };
    question.arg(name);
    match kind {
        "once" => question.arg(0).arg(LAST_OF_HEAD),
        "seats" => question.arg(""),
        _ => &mut question,
    };
    Some(question)
}

/// Whether a gateway can read what was answered.
fn holds<T: FromRedisValue>(answer: RedisResult<Value>, is_good: impl FnOnce(T) -> bool) -> bool {
    match answer {
        Ok(value) => T::from_redis_value(value).is_ok_and(is_good),
        // Any other error speaks of the server, and not of the value.
        Err(error) => error.code() != Some("WRONGTYPE"),
    }
}

/// Whether this is the head of a record, by the rule of `record.lua`.
fn is_record(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split('\n');
    let fields: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let is_number = |at: usize| fields[at].parse::<u64>().is_ok();
    let is_whole = text.starts_with('w') || text.starts_with('d') && lines.count() >= 2;
    is_whole
        && fields.len() >= 9
        && TokenHash::parse(&fields[0][1..]).is_some()
        && [2, 3, 4, 5, 7].into_iter().all(is_number)
}
