//! `fencepost break`: it ends the grant that it has shown, and no other.

use std::io::{self, BufRead, IsTerminal, Write};

use serde::Serialize;

use super::BreakSettings;
use super::ask::{Aim, ask};
use super::output::{FREE, print, print_json};
use crate::client::{CommandFailure, Gateways, Looked, REFUSED, ReleaseAnswer, ShownLock, say};
use crate::lock::for_people;
use crate::log::unseen::quoted;

const LOOK: Aim = Aim::to("look at the lock");
const BREAK: Aim = Aim { what: "break the lock", doubt: "the grant may be over all the same" };

/// What `--json` says of a grant that is over.
#[derive(Serialize)]
struct EndedGrant<'a> {
    key: &'a str,
    fencing_token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    ended: bool,
}

/// Shows who holds the lock, asks, and ends that grant. If the lock changes hands meanwhile, the next grant stays.
pub(super) async fn break_lock(settings: &BreakSettings) -> Result<u8, CommandFailure> {
    let BreakSettings { gateways, key, fencing_token, is_sure, json } = settings;
    let name = quoted(key.as_str());
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_sure && !can_ask {
        let problem = format!(
            "there is no terminal to ask at: write --yes to break the lock {name} without a question"
        );
        return Err(CommandFailure::new(REFUSED, problem));
    }
    let mut gateways = Gateways::new(gateways, Some(key), None)?;
    let looked = ask(&mut gateways, LOOK, async |gateway, patience| gateway.look(patience).await);
    let Looked::Held(lock) = looked.await?.answer else {
        return nothing(&format!("the lock {name} is free"));
    };
    let number = fencing_token.unwrap_or(lock.grant.fencing_token);
    let told = match lock.held_by {
        Some(held) if fencing_token.is_none() => {
            let problem = format!(
                "the lock {name} is held by slots, by {held}: say in --fencing-token whose grant to end; fencepost status names them"
            );
            return Err(CommandFailure::new(REFUSED, problem));
        }
        Some(held) if number != lock.grant.fencing_token => {
            format!("the lock {name}: the grant with the fencing token {number}, one of {held} that hold it")
        }
        _ if number != lock.grant.fencing_token => {
            return nothing(&format!("another grant holds the lock {name} now: {}", holder(&lock)));
        }
        _ => format!("the lock {name}: {}", holder(&lock)),
    };
    if *is_sure {
        say(&told);
    } else if !is_agreed(&told) {
        return nothing("as you wish");
    }
    let broken =
        ask(&mut gateways, BREAK, async |gateway, patience| gateway.break_grant(number, patience).await);
    let broken = broken.await?;
    let said = match broken.answer {
        ReleaseAnswer::Done => "broken",
        // The answer to the first try was lost.
        ReleaseAnswer::NotHeld(_) if broken.is_repeated => "over",
        ReleaseAnswer::NotHeld(reason) => {
            say(&reason);
            return Ok(FREE);
        }
    };
    let printed = if *json {
        let owner = lock.grant.owner.as_deref().filter(|_| number == lock.grant.fencing_token);
        print_json(&EndedGrant { key: key.as_str(), fencing_token: number, owner, ended: true })
    } else {
        print(&format!("{said}: the grant of {name} with the fencing token {number}\n"))
    };
    printed.map(|()| 0).map_err(|failure| failure.and("the grant is over"))
}

fn nothing(why: &str) -> Result<u8, CommandFailure> {
    say(&format!("{why}: nothing was broken"));
    Ok(FREE)
}

/// Who loses the lock, and who waits for it.
fn holder(lock: &ShownLock) -> String {
    let left = for_people(lock.grant.expires_in_ms);
    let whose = match &lock.grant.owner {
        _ if lock.grant.released => format!("released, and kept for at most {left} more"),
        Some(owner) => format!("held by {} for at most {left} more", quoted(owner)),
        None => format!("held for at most {left} more by a client that gave no name"),
    };
    format!("{whose}; fencing token {}; {} waiting", lock.grant.fencing_token, lock.waiters)
}

/// Asks the person at the terminal.
fn is_agreed(told: &str) -> bool {
    let mut stderr = io::stderr();
    let question = format!("{told}\nIts holder may still be at work. Break it? [y/N] ");
    let mut line = String::new();
    let is_asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).is_ok();
    let is_answered = is_asked && io::stdin().lock().read_line(&mut line).is_ok_and(|bytes| bytes > 0);
    if !is_answered {
        // What comes next begins its own line.
        let _ = writeln!(stderr);
    }
    is_answered && ["y", "yes"].contains(&line.trim().to_lowercase().as_str())
}
