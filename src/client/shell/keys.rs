//! `fencepost key`: it makes keys, and keeps the file that says which are good.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::NewKey;
use super::output::{TextTable, print, print_json};
use crate::access::{self, Entry, KeyId, Scope};
use crate::client::{CommandFailure, say};
use crate::log::unseen::{cell, quoted};

/// The status where the file stays as it is.
const NOT_DONE: u8 = 1;

/// Prints a new key and its entry, each to the stream or file that `fencepost key new --help` names.
pub(super) fn print_new(NewKey { key, entry, append_to }: &NewKey) -> Result<u8, CommandFailure> {
    let lost = |error: io::Error| {
        CommandFailure::not_possible(format!("cannot print the key {}: {error}", entry.id.as_str()))
    };
    if let Some(file) = append_to {
        access::append(entry, file).map_err(failed(&format!("cannot append to {}", file.display())))?;
        return writeln!(io::stdout(), "{}", key.reveal())
            .map(|()| 0)
            .map_err(|error| lost(error).and(&format!("revoke it, as its entry is in {}", file.display())));
    }
    print(&entry.to_string())?;
    say(
        "send this key as `Authorization: Bearer fp_…`, or keep it in FENCEPOST_API_KEY for `fencepost run`. It is not shown \
         again.",
    );
    writeln!(io::stderr(), "{}", key.reveal()).map(|()| 0).map_err(lost)
}

/// Prints what a keys file says of each key, but for the hash of its secret.
pub(super) fn list(keys: &[Entry], json: bool) -> Result<u8, CommandFailure> {
    if json {
        keys.iter().try_for_each(|entry| print_json(&as_json(entry)))?;
        return Ok(0);
    }
    let rows: Vec<_> = keys.iter().map(row).collect();
    print(&TextTable::new(["ID", "NAME", "RIGHTS", "LOCKS", "EXPIRES"]).lines(&rows))?;
    Ok(0)
}

fn row(entry: &Entry) -> [String; 5] {
    let rights: Vec<_> = entry.rights.iter().map(|right| right.name()).collect();
    let locks = match &entry.scope {
        Scope::Every => "(all)".to_owned(),
        Scope::Below(prefixes) => prefixes.iter().map(|prefix| cell(prefix)).collect::<Vec<_>>().join(","),
    };
    let expires = match entry.expires {
        Some(end) if end <= Timestamp::now() => format!("(expired) {end}"),
        Some(end) => end.to_string(),
        None => "-".to_owned(),
    };
    [entry.id.as_str().to_owned(), cell(&entry.name), rights.join(","), locks, expires]
}

/// The fields of an entry by their names in the file.
fn as_json(entry: &Entry) -> Value {
    let Entry { id, name, secret, subjects, rights, scope, rate, expires, .. } = entry;
    let rights: Vec<_> = rights.iter().map(|right| right.name()).collect();
    let scope = match scope {
        Scope::Every => ("every_key", Value::Bool(true)),
        Scope::Below(prefixes) => ("prefixes", json!(prefixes)),
    };
    let mut fields = Map::new();
    let always = [("id", json!(id.as_str())), ("name", json!(name)), ("allow", json!(rights)), scope];
    let if_given = [
        ("tls_subjects", (!subjects.is_empty()).then(|| json!(subjects))),
        ("has_secret", Some(json!(secret.is_some()))),
        ("rate", rate.map(|rate| json!(rate.per_second))),
        ("burst", rate.map(|rate| json!(rate.burst))),
        ("max_waiters", entry.max_waiters.map(|most| json!(most))),
        ("max_holds", entry.max_holds.map(|most| json!(most))),
        ("max_watchers", entry.max_watchers.map(|most| json!(most))),
        ("max_locks", entry.max_locks.map(|most| json!(most))),
        ("max_ttl", entry.max_ttl.map(|ttl| json!(humantime::format_duration(ttl).to_string()))),
        ("expires", expires.map(|end| json!(end.to_string()))),
    ];
    let given = if_given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    fields.extend(always.into_iter().chain(given).map(|(name, value)| (name.to_owned(), value)));
    Value::Object(fields)
}

/// Removes an entry from a keys file. Gateways that use the file refuse the key within a second.
pub(super) fn revoke(id: &KeyId, file: &Path) -> Result<u8, CommandFailure> {
    let about = format!("cannot revoke {} in {}", id.as_str(), file.display());
    let (entry, kept) = access::revoke(id, file).map_err(failed(&about))?;
    let printed = print(&format!("revoked {} ({})\n", id.as_str(), quoted(&entry.name)));
    printed.map_err(|failure| failure.and("the key is revoked"))?;
    kept.map(|()| 0).map_err(|error| {
        let problem = "the key is revoked, but its entry may be back after a power cut";
        CommandFailure::not_possible(format!("{problem}: {error}"))
    })
}

fn failed<E: Display>(about: &str) -> impl Fn(E) -> CommandFailure {
    move |error| CommandFailure::new(NOT_DONE, format!("{about}: {error}"))
}
