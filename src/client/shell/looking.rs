//! `fencepost list` and `fencepost status`: which locks are held, and by whom.

use std::collections::HashSet;

use serde::Serialize;

use super::ask::{Aim, Answered, ask};
use super::output::{FREE, TextTable, print, print_json, record};
use super::{ListSettings, StatusSettings};
use crate::client::{CommandFailure, Gateways, ListPage, Looked, ShownGrant, ShownLock, UNREACHABLE, say};
use crate::lock::for_people;
use crate::log::unseen::cell;

/// Prints the held locks whose names begin so, page by page.
pub(super) async fn list(settings: &ListSettings) -> Result<u8, CommandFailure> {
    let ListSettings { gateways, prefix, json } = settings;
    let mut gateways = Gateways::new(gateways, None, None)?;
    let mut table = TextTable::new(["KEY", "HOLDER", "LEFT", "WAITING", "FENCING TOKEN"]);
    let (mut seen, mut cursor) = (HashSet::new(), None::<String>);
    loop {
        let page = ask(&mut gateways, Aim::to("list the locks"), async |gateway, patience| {
            gateway.list(prefix, cursor.as_deref(), patience).await
        });
        let ListPage { mut locks, next_cursor } = page.await?.answer;
        // A list that starts again tells once more of what it has told.
        locks.retain(|lock| seen.insert(lock.key.clone()));
        if *json {
            locks.iter().try_for_each(print_json)?;
        } else {
            let rows: Vec<_> = locks.iter().map(row).collect();
            print(&table.lines(&rows))?;
        }
        match next_cursor {
            None => break,
            Some(next) if cursor.as_ref() == Some(&next) => {
                let problem = "cannot list the locks: the page after this one is the same page again";
                return Err(CommandFailure::new(UNREACHABLE, problem));
            }
            next => cursor = next,
        }
    }
    if seen.is_empty() && !json {
        say("no lock is held that you may see here");
    }
    Ok(0)
}

fn row(lock: &ShownLock) -> [String; 5] {
    [
        cell(&lock.key),
        holder(&lock.grant),
        for_people(lock.grant.expires_in_ms),
        lock.waiters.to_string(),
        lock.grant.fencing_token.to_string(),
    ]
}

/// Who holds a lock, as a table says it.
fn holder(grant: &ShownGrant) -> String {
    match &grant.owner {
        _ if grant.released => "(released)".to_owned(),
        Some(owner) => cell(owner),
        None => "-".to_owned(),
    }
}

/// What `--json` says of one lock.
#[derive(Serialize)]
struct StatusLine<'a> {
    held: bool,
    #[serde(flatten)]
    lock: Option<&'a ShownLock>,
    #[serde(flatten)]
    free: Option<FreeLock<'a>>,
}

#[derive(Serialize)]
struct FreeLock<'a> {
    key: &'a str,
    waiters: u64,
}

/// Prints who holds a lock.
pub(super) async fn status(settings: &StatusSettings) -> Result<u8, CommandFailure> {
    let StatusSettings { gateways, key, json } = settings;
    let mut gateways = Gateways::new(gateways, Some(key), None)?;
    let looked = ask(&mut gateways, Aim::to("look at the lock"), async |gateway, patience| {
        gateway.look(patience).await
    });
    let Answered { answer, .. } = looked.await?;
    let key = key.as_str();
    match (answer, *json) {
        (Looked::Held(lock), true) => {
            print_json(&StatusLine { held: true, lock: Some(&lock), free: None })?;
            Ok(0)
        }
        (Looked::Held(lock), false) => {
            print(&if lock.holders.is_empty() { description(&lock) } else { sharers(&lock) })?;
            Ok(0)
        }
        (Looked::Free { waiters }, true) => {
            let free = Some(FreeLock { key, waiters });
            print_json(&StatusLine { held: false, lock: None, free })?;
            Ok(FREE)
        }
        (Looked::Free { waiters }, false) => {
            let (lock, state) = (("lock", cell(key)), ("state", "free".to_owned()));
            print(&record(&[lock, state, ("waiting", waiters.to_string())]))?;
            Ok(FREE)
        }
    }
}

/// All that is known of a held lock.
fn description(lock: &ShownLock) -> String {
    let grant = &lock.grant;
    let state = if grant.released { "released, and kept for its min_hold" } else { "held" };
    let mut fields = vec![("lock", cell(&lock.key)), ("state", state.to_owned())];
    if !grant.released {
        fields.push(("holder", holder(grant)));
    }
    fields.extend([
        ("time left", for_people(grant.expires_in_ms)),
        ("fencing token", grant.fencing_token.to_string()),
        ("waiting", lock.waiters.to_string()),
    ]);
    record(&fields)
}

/// Each of those who share a lock, those first whose leases end first.
fn sharers(lock: &ShownLock) -> String {
    let held_by = format!("{} of {}", lock.held_by.unwrap_or_default(), lock.slots.unwrap_or_default());
    let fields = [("lock", cell(&lock.key)), ("slots taken", held_by), ("waiting", lock.waiters.to_string())];
    let mut table = TextTable::new(["SLOT", "HOLDER", "LEFT", "OF SLOTS", "FENCING TOKEN"]);
    let rows = lock.holders.iter().map(|one| {
        [
            one.slot.to_string(),
            holder(&one.grant),
            for_people(one.grant.expires_in_ms),
            one.slots.to_string(),
            one.grant.fencing_token.to_string(),
        ]
    });
    record(&fields) + &table.lines(&rows.collect::<Vec<_>>())
}
