//! The flags of the commands that run a command.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;

use super::error::{SettingsError, duration, require};
use super::gateway::GatewayArgs;
use super::lease::{KILL_AFTER, LeaseArgs, check_command_ttl, key_of};
use crate::client::run::RunSettings;

mod once;

pub(super) use once::ONCE_HELP;
pub use once::OnceCommandArgs;

/// What `--help` says below the flags.
pub(super) const MORE_HELP: &str = "\
Examples:
  fencepost run nightly-backup -- ./backup.sh --all

  In the crontab of each machine, so that one of them does the work:
  fencepost run --wait 0s --busy-exit 0 --gateway-wait 4m --ttl 10m --min-hold 5m --max-hold 20h nightly-backup -- backup

The command finds LOCK_KEY and FENCING_TOKEN in its environment. Its input and output are its own.

Several locks:
  fencepost run account:7 account:9 -- ./transfer takes both, or none. The command finds LOCK_KEY_1, FENCING_TOKEN_1,
  LOCK_KEY_2 and FENCING_TOKEN_2, in the order of the keys.

Several gateways:
  FENCEPOST_URL=http://a:8080,http://b:8080 names two gateways of one store. They are tried in turn, with the same
  lease token. So the lock goes on when one of them is away. A refusal by one of them counts.

Exit status:
  the command's  it has run; 128 + n if signal n ended it
  75             another client held the lock until --wait was over; --busy-exit names another status (with 0, silently)
  69             no gateway could be reached, or none could use its store or had room, or something in front of it answered
  76             the lease was lost; the command was ended, or was not started
  2              a setting is wrong, the gateway refuses the request, or its certificate cannot be verified
  126, 127       the command cannot be started, or does not exist
  128 + n        signal n came while it waited
  71             this machine lacks something, such as /proc";

/// The flags of `run`.
#[derive(Args, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    ending: EndingArgs,

    /// The time between --signal and SIGKILL [default: 5s, at most a third of the ttl]
    ///
    /// The command, and all that it has started, may use it to end.
    #[arg(long, help_heading = "Command", value_parser = duration, value_name = "DURATION")]
    kill_after: Option<Duration>,

    /// The exit status if another client kept the lock
    ///
    /// With 0, `run` also prints nothing about it, unless an answer was lost and the lock may stay taken.
    #[arg(long, help_heading = "Command", default_value = "75", value_name = "N")]
    busy_exit: u8,

    /// Give the command the variable LEASE_TOKEN, with which it can renew and release
    #[arg(long, help_heading = "Command")]
    pass_token: bool,

    /// The name of the lock, or of several: all of them are taken, or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,

    /// The command and its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Checks the settings as a whole.
    pub fn check(self) -> Result<RunSettings, SettingsError> {
        let (program, arguments, name) = program_of(&self.command)?;
        check_command_ttl(self.lease.ttl)?;
        let [key, others @ ..] = self.keys.as_slice() else {
            return Err(SettingsError::new("the key", "is missing"));
        };
        let mut lock = self.lease.check(key, &name)?;
        lock.others = others.iter().map(|key| key_of(key)).collect::<Result<_, _>>()?;
        let longest_kill_after = lock.ttl / 3;
        let kill_after = self.kill_after.unwrap_or(KILL_AFTER.min(longest_kill_after));
        require("--kill-after", kill_after <= longest_kill_after, "at most a third of --ttl")?;
        Ok(RunSettings {
            gateways: self.gateway.check()?,
            lock,
            signal: self.ending.signal(),
            kill_after,
            busy_exit: self.busy_exit,
            clean_statuses: Vec::new(),
            passes_token: self.pass_token,
            program,
            arguments,
        })
    }
}

/// How the command is told to end.
#[derive(Args, Clone)]
struct EndingArgs {
    /// The signal that tells the command to end
    ///
    /// The command, and all that it has started, gets it before SIGKILL if the lease cannot be renewed. If `fencepost` itself
    /// gets SIGTERM, it passes this signal on.
    #[arg(long, help_heading = "Command", value_enum, default_value = "TERM", value_name = "NAME")]
    signal: EndingSignal,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "UPPER")]
enum EndingSignal {
    Hup,
    Int,
    Quit,
    Term,
    Usr1,
    Usr2,
}

impl EndingArgs {
    fn signal(&self) -> Signal {
        match self.signal {
            EndingSignal::Hup => Signal::HUP,
            EndingSignal::Int => Signal::INT,
            EndingSignal::Quit => Signal::QUIT,
            EndingSignal::Term => Signal::TERM,
            EndingSignal::Usr1 => Signal::USR1,
            EndingSignal::Usr2 => Signal::USR2,
        }
    }
}

/// The program, its arguments, and the name by which people know it.
fn program_of(command: &[OsString]) -> Result<(OsString, Vec<OsString>, String), SettingsError> {
    let [program, arguments @ ..] = command else {
        return Err(SettingsError::new("the command", "is missing"));
    };
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
    Ok((program.clone(), arguments.to_vec(), name))
}
