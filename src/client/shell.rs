//! The commands for a shell: for operators who look at locks and break them, for scripts that hold a lock from one of their
//! lines to another, and for the keys file.
//!
//! They ask gateways as `fencepost run` does, and end with its statuses. What others have chosen, such as the name of a lock,
//! is escaped wherever it is printed.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::access::{Entry, KeyId, ShownKey};
use crate::client::{AcquireSettings, GatewaySettings, carry_out, exit_code};
use crate::lock::{LeaseToken, LockKey};

mod ask;
mod breaking;
mod holding;
mod keys;
mod looking;
mod output;
mod watching;

use output::Output;

/// A command that asks gateways.
pub enum ShellCommand {
    /// Print which locks are held.
    List(ListSettings),
    /// Print who holds a lock.
    Status(StatusSettings),
    /// End a grant.
    Break(BreakSettings),
    /// Print what happens to locks.
    Watch(ListSettings),
    /// Take a lock.
    Acquire(TakeSettings),
    /// Make its lease longer.
    Renew(RenewSettings),
    /// Release it.
    Release(LeaseSettings),
}

/// Which locks are listed or watched.
pub struct ListSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// How the names of the locks begin.
    pub prefix: String,
    /// Whether a machine reads it.
    pub json: bool,
}

/// Which lock is looked at.
pub struct StatusSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// The name of the lock.
    pub key: LockKey,
    /// Whether a machine reads it.
    pub json: bool,
}

/// Which grant is ended.
pub struct BreakSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// The name of the lock.
    pub key: LockKey,
    /// The grant; without it, the one that is shown.
    pub fencing_token: Option<u64>,
    /// Whether it ends without a question.
    pub is_sure: bool,
    /// Whether a machine reads it.
    pub json: bool,
}

/// Which lock is taken, and where its token goes.
pub struct TakeSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// The lock.
    pub lock: AcquireSettings,
    /// A new file for the token.
    pub token_file: Option<PathBuf>,
    /// Whether a machine reads it.
    pub json: bool,
}

/// Which lease is renewed, and for how long.
pub struct RenewSettings {
    /// The lease.
    pub lease: LeaseSettings,
    /// How long it is to last.
    pub ttl: Duration,
    /// Whether a machine reads it.
    pub json: bool,
}

/// A lease that a script has.
pub struct LeaseSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// The name of the lock.
    pub key: LockKey,
    /// What holds it.
    pub token: LeaseToken,
}

/// A command on API keys, which asks no gateway.
pub enum KeysCommand {
    /// Print a new key.
    New(Box<NewKey>),
    /// Print what the entries of a keys file say.
    List {
        /// Those entries.
        keys: Vec<Entry>,
        /// Whether a machine reads it.
        json: bool,
    },
    /// Remove an entry from a keys file.
    Revoke {
        /// Which one.
        id: KeyId,
        /// The file.
        file: PathBuf,
    },
}

/// A new key.
pub struct NewKey {
    /// The key itself, which the program stores nowhere.
    pub key: ShownKey,
    /// Its entry for the keys file.
    pub entry: Entry,
    /// The keys file to which that is appended.
    pub append_to: Option<PathBuf>,
}

impl ShellCommand {
    /// What its output is to it.
    fn output(&self) -> Output {
        match self {
            Self::List(_) | Self::Watch(_) => Output::Purpose,
            Self::Acquire(TakeSettings { token_file: None, .. }) => Output::Purpose,
            Self::Renew(RenewSettings { json: false, .. }) | Self::Release(_) => Output::Nothing,
            _ => Output::Report,
        }
    }
}

/// Asks gateways, prints what came of it, and returns the exit status.
pub fn act(command: &ShellCommand) -> ExitCode {
    carry_out(async {
        output::expect(command.output())?;
        match command {
            ShellCommand::List(settings) => looking::list(settings).await,
            ShellCommand::Status(settings) => looking::status(settings).await,
            ShellCommand::Break(settings) => breaking::break_lock(settings).await,
            ShellCommand::Watch(settings) => watching::watch(settings).await,
            ShellCommand::Acquire(settings) => holding::acquire(settings).await,
            ShellCommand::Renew(settings) => holding::renew(settings).await,
            ShellCommand::Release(settings) => holding::release(settings).await,
        }
    })
}

/// Makes, lists or revokes keys, and returns the exit status.
pub fn act_on_keys(command: &KeysCommand) -> ExitCode {
    let output = match command {
        KeysCommand::Revoke { .. } => Output::Report,
        KeysCommand::New(_) | KeysCommand::List { .. } => Output::Purpose,
    };
    exit_code(output::expect(output).and_then(|()| match command {
        KeysCommand::New(key) => keys::print_new(key),
        KeysCommand::List { keys, json } => keys::list(keys, *json),
        KeysCommand::Revoke { id, file } => keys::revoke(id, file),
    }))
}

/// Prints what the program says of itself, and returns the exit status.
pub fn show(text: &str) -> ExitCode {
    exit_code(output::expect(Output::Purpose).and_then(|()| output::print(text)).map(|()| 0))
}

/// Prints what was found in another way, and returns this exit status if that could be done.
pub fn report(status: u8, print: impl FnOnce() -> io::Result<()>) -> ExitCode {
    exit_code(output::expect(Output::Report).and_then(|()| output::printed(print())).map(|()| status))
}
