//! Whether a restarted server loads all of its append-only file.
//!
//! From 7.0 on, Redis runs what stands between `MULTI` and `EXEC` in the file as the user `default`, and drops what that user may
//! not do. The file has what each script wrote between these two, so with `user default off` it loses every lock. Newer
//! versions load all of it, and none says which it does.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

/// What scripts write, as the file has it: times as moments, and the database where it changes. `*` is a key.
const IN_THE_FILE: &[&str] = &[
    "DEL *",
    "HDEL * field",
    "HINCRBY * field 1",
    "HSET * field value",
    "PEXPIREAT * 1",
    "SELECT 0",
    "SET * value",
    "ZADD * 1 member",
    "ZINCRBY * 1 member",
    "ZREM * member",
    "ZREMRANGEBYSCORE * 0 1",
];
/// What long results write besides.
const OF_RECORDS: &[&str] = &["RENAME * *", "SETRANGE * 0 part"];

/// How much of its append-only file a server loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// All of it, or there is none.
    All,
    /// Perhaps not all of it, for this reason, which the server gives.
    Part(String),
    /// The gateway's user may not ask.
    Unknown,
}

impl Loading {
    /// Asks what the user `default` may do, with a key of each kind; also with those of records, if there are any.
    pub(super) async fn ask(
        connection: &mut MultiplexedConnection,
        mut keys: Vec<String>,
        of_records: &[String],
    ) -> RedisResult<Self> {
        let mut written = IN_THE_FILE.to_vec();
        if !of_records.is_empty() {
            written.extend(OF_RECORDS);
        }
        keys.extend_from_slice(of_records);
        let mut calls = redis::pipe();
        let mut may = |words: &[&str]| {
            calls.cmd("ACL").arg("DRYRUN").arg("default").arg(words);
        };
        let first = keys.first().map(String::as_str).unwrap_or_default();
        for call in written {
            may(&call.split(' ').map(|word| if word == "*" { first } else { word }).collect::<Vec<_>>());
        }
        may(&["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
        let answers: Vec<RedisResult<Value>> = calls.ignore_errors().query_async(connection).await?;
        for answer in answers {
            match answer {
                Ok(Value::Okay) => {}
                Ok(Value::BulkString(reason)) => {
                    return Ok(Self::Part(String::from_utf8_lossy(&reason).into_owned()));
                }
                // The gateway's user has lost the permission since it was asked for, or the server has no such command.
                Ok(_) | Err(_) => return Ok(Self::Unknown),
            }
        }
        Ok(Self::All)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::permissions::BY_SCRIPTS;
    use super::*;

    #[test]
    fn every_command_by_which_scripts_write_is_asked_for() {
        let read = [
            "EXISTS",
            "GET",
            "HGET",
            "HGETALL",
            "HMGET",
            "MGET",
            "PTTL",
            "TIME",
            "ZCARD",
            "ZMSCORE",
            "ZRANGE",
            "ZRANGEBYSCORE",
            "ZRANK",
            "ZSCORE",
        ];
        let name = |call: &&'static str| call.split(' ').next().unwrap_or_default();
        let in_the_file = |name| if name == "PEXPIRE" { "PEXPIREAT" } else { name };
        let written = BY_SCRIPTS.iter().map(name).filter(|name| !read.contains(name)).map(in_the_file);
        let asked: BTreeSet<_> = IN_THE_FILE.iter().map(name).collect();
        // Where the database changes. A test of the program reads what a file has, and knows those of long results.
        assert_eq!(written.chain(["SELECT"]).collect::<BTreeSet<_>>(), asked);
    }
}
