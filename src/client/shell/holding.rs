//! `fencepost acquire`, `renew` and `release`: a lock for a script, from one of its lines to another.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::task::spawn_blocking;

use super::ask::{Aim, ask};
use super::output::{json_line, print, record};
use super::{LeaseSettings, RenewSettings, TakeSettings};
use crate::client::run::{Signals, Terminal, take};
use crate::client::{
    BUSY, CommandFailure, Gateways, HeldGrant, LOST, REFUSED, ReleaseAnswer, RenewAnswer, UNREACHABLE,
    by_signal, fresh_token,
};
use crate::clock::{boottime, whole_ms};
use crate::lock::{LeaseToken, for_people};
use crate::log::unseen::quoted;

const RENEW: Aim = Aim { what: "renew the lease", doubt: "the lease may be longer all the same" };
/// Asking may have taken longer than the lease had left.
const LEASE_MAY_BE_OVER: &str = "it may be over by now: count from the last renewal that succeeded";
const RELEASE: Aim = Aim { what: "release the lock", doubt: "the lock may be free all the same" };
/// The script is told of a lease only if at most this part of it may be over.
const FRESH_PART: u32 = 3;
/// How long the release of a lock may take of which the script cannot be told.
const TAKING_BACK_MAY_TAKE: Duration = Duration::from_secs(1);

/// What `--json` says of a lease.
#[derive(Serialize)]
struct LeaseLine<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    fencing_token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u64>,
    /// What is left when it is printed.
    ttl_ms: u64,
}

/// Takes the lock as `fencepost run` does, and prints what holds it. The token is told nowhere but there.
pub(super) async fn acquire(settings: &TakeSettings) -> Result<u8, CommandFailure> {
    let TakeSettings { gateways, lock, token_file, json } = settings;
    // All that can fail on this machine does so before there is a lock.
    let mut token = fresh_token()?;
    let unheard =
        |error: io::Error| CommandFailure::not_possible(format!("cannot wait for signals: {error}"));
    let mut signals = Signals::catch().map_err(unheard)?;
    // From here on a signal leaves no file behind that is of no use.
    let file = token_file.as_deref().map(|path| TokenFile::create(path, &token)).transpose()?;
    let mut gateways = Gateways::new(gateways, Some(&lock.key), Some(&token))?;
    // The one in the file stays.
    let replaced = file.is_none().then_some(&mut token);
    // A script has the rest of the lease for itself.
    let may_take = lock.ttl / FRESH_PART;
    let taken = take(&mut gateways, lock, replaced, may_take, &mut signals, &Terminal::open()).await;
    let (failure, may_be_held) = match taken {
        Err(not_taken) => (not_taken.explain(lock, BUSY), not_taken.may_be_held),
        Ok(held) => {
            let held = HeldGrant { slot: lock.slot(held.slot), ..held };
            let text = told(lock.key.as_str(), file.is_none().then_some(&token), held, *json)?;
            // After a signal, or where the tokens cannot be printed, the script would not know what it holds.
            let printed = tokio::select! {
                biased;
                signal = signals.next() => Err(CommandFailure::new(by_signal(signal.as_raw()), "")),
                printed = print_aside(text) => printed,
            };
            match printed {
                Ok(()) => {
                    file.map(TokenFile::keep);
                    return Ok(0);
                }
                Err(failure) => match gateways.release(false, TAKING_BACK_MAY_TAKE).await {
                    Some(_) => (failure, false),
                    None => (failure.and(lock.left_behind()), true),
                },
            }
        }
    };
    match file.filter(|_| may_be_held) {
        Some(file) => Err(failure.and(&format!("its token is in {}", file.keep()))),
        None => Err(failure),
    }
}

/// Prints on a thread of its own: a pipe without a reader at work must not keep signals waiting.
async fn print_aside(text: String) -> Result<(), CommandFailure> {
    let printed = spawn_blocking(move || print(&text)).await;
    printed.unwrap_or_else(|error| Err(CommandFailure::not_possible(format!("cannot print: {error}"))))
}

/// What is printed of a lease: for people what it is, for a script two words in a line, or one where the token is in a file.
fn told(
    key: &str,
    token: Option<&LeaseToken>,
    held: HeldGrant,
    json: bool,
) -> Result<String, CommandFailure> {
    let (token, fencing_token, slot) = (token.map(LeaseToken::reveal), held.fencing_token, held.slot);
    if json {
        return json_line(&LeaseLine { key, token, fencing_token, slot, ttl_ms: left_ms(held) });
    }
    if io::stdout().is_terminal() {
        let mut fields = Vec::new();
        fields.extend(token.map(|token| ("lease token", token.to_owned())));
        fields.push(("fencing token", fencing_token.to_string()));
        fields.extend(slot.map(|slot| ("slot", slot.to_string())));
        fields.push(("time left", for_people(left_ms(held))));
        return Ok(record(&fields));
    }
    Ok(match token {
        Some(token) => format!("{token} {fencing_token}\n"),
        None => format!("{fencing_token}\n"),
    })
}

fn left_ms(held: HeldGrant) -> u64 {
    whole_ms(held.ends_at.saturating_sub(boottime()))
}

/// Makes the lease longer.
pub(super) async fn renew(settings: &RenewSettings) -> Result<u8, CommandFailure> {
    let RenewSettings { lease: LeaseSettings { gateways, key, token }, ttl, json } = settings;
    let mut gateways = Gateways::new(gateways, Some(key), Some(token))?;
    let renewed =
        ask(&mut gateways, RENEW, async |gateway, patience| gateway.renew_once(*ttl, patience).await);
    let name = quoted(key.as_str());
    let renewed = renewed.await.map_err(|failure| match failure.status {
        UNREACHABLE => failure.and(LEASE_MAY_BE_OVER),
        _ => failure,
    });
    match renewed?.answer {
        RenewAnswer::Held(held) => {
            if *json || io::stdout().is_terminal() {
                print(&told(key.as_str(), None, held, *json)?)?;
            }
            Ok(0)
        }
        RenewAnswer::Gone(reason) => {
            Err(CommandFailure::new(LOST, format!("the lock {name} is not held any more: {reason}")))
        }
        RenewAnswer::MaxHoldReached(reason) => {
            Err(CommandFailure::new(LOST, format!("the lease of {name} gets no longer: {reason}")))
        }
    }
}

/// Releases the lock.
pub(super) async fn release(settings: &LeaseSettings) -> Result<u8, CommandFailure> {
    let LeaseSettings { gateways, key, token } = settings;
    let mut gateways = Gateways::new(gateways, Some(key), Some(token))?;
    let released =
        ask(&mut gateways, RELEASE, async |gateway, patience| gateway.release_once(patience).await);
    match released.await?.answer {
        ReleaseAnswer::Done => Ok(0),
        ReleaseAnswer::NotHeld(reason) => {
            let name = quoted(key.as_str());
            Err(CommandFailure::new(LOST, format!("the lock {name} was not held any more: {reason}")))
        }
    }
}

/// A file with a lease token in it. It is there before the lock is taken, so the token of a lock that is held is never lost.
struct TokenFile<'a> {
    path: &'a Path,
    is_kept: bool,
}

impl<'a> TokenFile<'a> {
    fn create(path: &'a Path, token: &LeaseToken) -> Result<Self, CommandFailure> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = made.map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    "is there already, and may hold the token of another lease: if it is over, remove the file".to_owned()
                }
                _ => format!("cannot be made: {error}"),
            };
            CommandFailure::new(
                REFUSED,
                format!("--token-file: {} {problem}", quoted(&path.to_string_lossy())),
            )
        })?;
        let made = Self { path, is_kept: false };
        writeln!(file, "{}", token.reveal()).map_err(|error| {
            CommandFailure::not_possible(format!("cannot write {}: {error}", quoted(&path.to_string_lossy())))
        })?;
        Ok(made)
    }

    /// Leaves it there, and returns its name.
    fn keep(mut self) -> String {
        self.is_kept = true;
        quoted(&self.path.to_string_lossy())
    }
}

impl Drop for TokenFile<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // If it stays, its token holds nothing.
            let _ = fs::remove_file(self.path);
        }
    }
}
