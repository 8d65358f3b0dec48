//! `fencepost acquire`, `renew` and `release`: a lock for a script, from one of its lines to another.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;

use super::ask::{Aim, ask};
use super::output::{print, print_json, record};
use super::{LeaseSettings, TakeSettings};
use crate::client::run::{NotTaken, Signals, Terminal, take};
use crate::client::{
    BUSY, CommandFailure, Gateways, HeldGrant, LOST, REFUSED, ReleaseAnswer, RenewAnswer, by_signal,
    fresh_token,
};
use crate::clock::{boottime, whole_ms};
use crate::lock::{LeaseToken, for_people};
use crate::log::unseen::quoted;

const RENEW: Aim = Aim { what: "renew the lease", doubt: "; it may be longer all the same" };
const RELEASE: Aim = Aim { what: "release the lock", doubt: "; it may be free all the same" };
/// How long the release of a lock may take of which the script cannot be told.
const TAKING_BACK_MAY_TAKE: Duration = Duration::from_secs(1);

/// What `--json` says of a lease.
#[derive(Serialize)]
struct LeaseLine<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    fencing_token: u64,
    /// What is left when it is printed.
    ttl_ms: u64,
}

/// Takes the lock as `fencepost run` does, and prints what holds it. The token is told nowhere but there.
pub(super) async fn acquire(settings: &TakeSettings) -> Result<u8, CommandFailure> {
    let TakeSettings { gateways, lock, token_file, json } = settings;
    // All that can fail on this machine does so before there is a lock.
    let token = fresh_token()?;
    let unheard =
        |error: io::Error| CommandFailure::not_possible(format!("cannot wait for signals: {error}"));
    let mut signals = Signals::catch().map_err(unheard)?;
    // From here on a signal leaves no file behind.
    let file = token_file.as_deref().map(|path| TokenFile::create(path, &token)).transpose()?;
    let mut gateways = Gateways::new(gateways, Some(&lock.key), Some(&token))?;
    let held = match take(&mut gateways, lock, &mut signals, &Terminal::open()).await {
        Ok(held) => held,
        Err(NotTaken::Signal(signal)) => return Ok(by_signal(signal.as_raw())),
        Err(NotTaken::Because(cause, reason)) => return Err(cause.explain(&lock.key, &reason, BUSY)),
    };
    // After a signal, or where the tokens cannot be printed, the script would not know what it holds.
    let told = match timeout(Duration::ZERO, signals.next()).await {
        Ok(signal) => Err(CommandFailure::new(by_signal(signal.as_raw()), "")),
        Err(_) => tell(lock.key.as_str(), file.is_none().then_some(&token), held, *json),
    };
    if let Err(failure) = told {
        let _ = gateways.release(TAKING_BACK_MAY_TAKE).await;
        return Err(failure);
    }
    if let Some(file) = file {
        file.keep();
    }
    Ok(0)
}

/// Prints a lease: to people what it is, to a script two words in a line, or one where the token is in a file.
fn tell(key: &str, token: Option<&LeaseToken>, held: HeldGrant, json: bool) -> Result<(), CommandFailure> {
    let (token, fencing_token) = (token.map(LeaseToken::reveal), held.fencing_token);
    if json {
        return print_json(&LeaseLine { key, token, fencing_token, ttl_ms: left_ms(held) });
    }
    if io::stdout().is_terminal() {
        let mut fields = Vec::new();
        fields.extend(token.map(|token| ("lease token", token.to_owned())));
        fields.push(("fencing token", fencing_token.to_string()));
        fields.push(("time left", for_people(left_ms(held))));
        return print(&record(&fields));
    }
    match token {
        Some(token) => print(&format!("{token} {fencing_token}\n")),
        None => print(&format!("{fencing_token}\n")),
    }
}

fn left_ms(held: HeldGrant) -> u64 {
    whole_ms(held.ends_at.saturating_sub(boottime()))
}

/// Makes the lease longer.
pub(super) async fn renew(settings: &LeaseSettings) -> Result<u8, CommandFailure> {
    let LeaseSettings { gateways, key, token, ttl, json } = settings;
    let mut gateways = Gateways::new(gateways, Some(key), Some(token))?;
    let renewed =
        ask(&mut gateways, RENEW, async |gateway, patience| gateway.renew_once(*ttl, patience).await);
    let name = quoted(key.as_str());
    match renewed.await?.answer {
        RenewAnswer::Held(held) => {
            if *json || io::stdout().is_terminal() {
                tell(key.as_str(), None, held, *json)?;
            }
            Ok(0)
        }
        RenewAnswer::Gone(reason) => {
            Err(CommandFailure::new(LOST, format!("the lock {name} is not held any more: {reason}")))
        }
        RenewAnswer::MaxHoldReached(reason) => {
            Err(CommandFailure::new(LOST, format!("the lease of {name} gets no longer: {reason}")))
        }
        RenewAnswer::NotNow(trouble) => Err(CommandFailure::new(REFUSED, trouble.reason)),
    }
}

/// Releases the lock.
pub(super) async fn release(settings: &LeaseSettings) -> Result<u8, CommandFailure> {
    let LeaseSettings { gateways, key, token, .. } = settings;
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
                    "is there already, and may hold the token of another lease".to_owned()
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

    fn keep(mut self) {
        self.is_kept = true;
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
