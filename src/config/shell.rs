//! The flags of the commands for a shell.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::error::{SettingsError, duration};
use super::gateway::{GatewayArgs, read_secret};
use super::lease::{LeaseArgs, check_ttl, key_of};
use crate::client::shell::{
    BreakSettings, LeaseSettings, ListSettings, RenewSettings, ShellCommand, StatusSettings, TakeSettings,
};
use crate::lock::LeaseToken;

/// Where a lease token may stand: never among the arguments, which every user of the machine can read. `fencepost run
/// --pass-token` gives it to its command by the same name.
const TOKEN_VARIABLE: &str = "LEASE_TOKEN";

const HELP_OF_ACQUIRE: &str = "\
Example:
  LEASE=$(fencepost acquire backup --ttl 5m) || exit
  export LEASE_TOKEN=${LEASE% *} FENCING_TOKEN=${LEASE#* }
  trap 'fencepost release backup' EXIT
  trap 'exit 143' HUP INT TERM PIPE
  ./backup.sh \"$FENCING_TOKEN\"

It prints the lease token and the fencing token in one line. With --token-file it prints the fencing token alone. Nothing
renews the lease, unless you do: `fencepost run` is safer.

Exit status:
  0        the lock is held
  75       another client held the lock until --wait was over
  69       no gateway could be reached, or none could use its store or had room, or something in front of it answered
  2        a setting is wrong, the file of --token-file is there already, or the gateway refuses the request
  128 + n  signal n came while it waited
  71       the tokens could not be printed, so the lock was released; or this machine lacks something

If the lock could not be released, `acquire` says so, and leaves the file of --token-file there.";

const HELP_OF_LEASES: &str = "\
The lease token comes from the file of --token-file, or else from the variable LEASE_TOKEN.

Exit status:
  0   done
  76  the lock is not held any more; or, with `renew`, max_hold allows no longer lease
  69  no gateway could be reached, or none could use its store or had room, or something in front of it answered
  2   a setting is wrong, or the gateway refuses the request
  71  the output could not be written";

const HELP_OF_LOOKING: &str = "\
Exit status:
  0        done; with `status`: the lock is held, or released and kept for its min_hold
  1        with `status`: the lock is free
  69       no gateway could be reached, or none could use its store or had room, or something in front of it answered
  2        a setting is wrong, or the gateway refuses the request
  71       the output could not be written
  128 + n  signal n came; 141 if the reader of the output has gone";

const HELP_OF_BREAK: &str = "\
It shows who holds the lock, and ends that grant. If the lock changes hands in between, nothing is broken. The holder may
still be at work: it learns of this at its next renewal.

Exit status:
  0   the grant has ended
  1   nothing was broken: the lock is free, or another grant holds it, or you said no
  69  no gateway could be reached, or none could use its store or had room, or something in front of it answered
  2   a setting is wrong, the gateway refuses the request, or there is no terminal to ask at and --yes is not there
  71  the output could not be written";

/// What asks gateways, besides `run`.
#[derive(Subcommand)]
pub enum ShellAction {
    /// Take a lock for a script, and print its tokens
    #[command(after_long_help = HELP_OF_ACQUIRE)]
    Acquire(AcquireArgs),
    /// Renew the lease of a script
    #[command(after_long_help = HELP_OF_LEASES)]
    Renew(RenewArgs),
    /// Release the lock of a script
    #[command(after_long_help = HELP_OF_LEASES)]
    Release(ReleaseArgs),
    /// List the held locks
    #[command(after_long_help = HELP_OF_LOOKING)]
    List(ListArgs),
    /// Say who holds a lock
    #[command(after_long_help = HELP_OF_LOOKING)]
    Status(StatusArgs),
    /// Print what happens to locks, as it happens
    #[command(after_long_help = HELP_OF_LOOKING)]
    Watch(ListArgs),
    /// End the grant of a lock that another client holds
    #[command(after_long_help = HELP_OF_BREAK)]
    Break(BreakArgs),
}

/// The flags of `acquire`.
#[derive(Args, Clone)]
pub struct AcquireArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    lease: LeaseArgs,

    /// Write the lease token to this new file, for yourself alone
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    /// The name of the lock
    key: String,
}

/// Where a lease token is.
#[derive(Args, Clone)]
struct TokenArgs {
    /// A file with the lease token, such as /dev/stdin
    #[arg(long, help_heading = "Lease", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The flags of `renew`.
#[derive(Args, Clone)]
pub struct RenewArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    token: TokenArgs,

    /// How long the lease lasts from now on: longer if it did before, shorter if its max_hold ends
    #[arg(long, help_heading = "Lease", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    ttl: Duration,

    #[command(flatten)]
    output: OutputArgs,

    /// The name of the lock
    key: String,
}

/// The flags of `release`.
#[derive(Args, Clone)]
pub struct ReleaseArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    token: TokenArgs,

    /// The name of the lock
    key: String,
}

/// The flags of `list` and `watch`.
#[derive(Args, Clone)]
pub struct ListArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    output: OutputArgs,

    /// Only locks whose names begin with this text
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// The flags of `status`.
#[derive(Args, Clone)]
pub struct StatusArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    output: OutputArgs,

    /// The name of the lock
    key: String,
}

/// The flags of `break`.
#[derive(Args, Clone)]
pub struct BreakArgs {
    #[command(flatten)]
    gateway: GatewayArgs,

    /// Do not ask
    #[arg(long, help_heading = "Grant")]
    yes: bool,

    /// End the grant with this fencing token only, as `list` showed it
    #[arg(long, help_heading = "Grant", value_name = "N")]
    fencing_token: Option<u64>,

    #[command(flatten)]
    output: OutputArgs,

    /// The name of the lock
    key: String,
}

/// How things are printed.
#[derive(Args, Clone)]
struct OutputArgs {
    /// Print JSON, one object a line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl ShellAction {
    /// Checks the settings as a whole.
    pub fn check(self) -> Result<ShellCommand, SettingsError> {
        Ok(match self {
            Self::Acquire(args) => ShellCommand::Acquire(TakeSettings {
                gateways: args.gateway.check()?,
                lock: args.lease.check(&args.key, &parent())?,
                token_file: args.token_file,
                json: args.output.json,
            }),
            Self::Renew(args) => {
                check_ttl(args.ttl)?;
                let lease = lease(&args.gateway, &args.token, &args.key)?;
                ShellCommand::Renew(RenewSettings { lease, ttl: args.ttl, json: args.output.json })
            }
            Self::Release(args) => ShellCommand::Release(lease(&args.gateway, &args.token, &args.key)?),
            Self::List(args) => ShellCommand::List(args.check()?),
            Self::Watch(args) => ShellCommand::Watch(args.check()?),
            Self::Status(args) => ShellCommand::Status(StatusSettings {
                gateways: args.gateway.check()?,
                key: key_of(&args.key)?,
                json: args.output.json,
            }),
            Self::Break(args) => ShellCommand::Break(BreakSettings {
                gateways: args.gateway.check()?,
                key: key_of(&args.key)?,
                fencing_token: args.fencing_token,
                is_sure: args.yes,
                json: args.output.json,
            }),
        })
    }
}

impl ListArgs {
    fn check(self) -> Result<ListSettings, SettingsError> {
        let gateways = self.gateway.check()?;
        Ok(ListSettings { gateways, prefix: self.prefix, json: self.output.json })
    }
}

/// A lease that a script has.
fn lease(gateway: &GatewayArgs, token: &TokenArgs, key: &str) -> Result<LeaseSettings, SettingsError> {
    let (flag, token) = match &token.token_file {
        Some(file) => ("--token-file", read_secret("--token-file", file)?),
        None => {
            let token = std::env::var_os(TOKEN_VARIABLE).unwrap_or_default();
            (TOKEN_VARIABLE, token.to_string_lossy().into_owned())
        }
    };
    if token.is_empty() {
        let problem = "there is no lease token: name its file by --token-file, or put it into LEASE_TOKEN";
        return Err(SettingsError::new(flag, problem));
    }
    let token = LeaseToken::parse(token.as_bytes());
    Ok(LeaseSettings {
        gateways: gateway.check()?,
        key: key_of(key)?,
        token: token.map_err(|error| SettingsError::new(flag, error.to_string()))?,
    })
}

/// What the script is called that takes the lock, as the system knows it.
fn parent() -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", std::os::unix::process::parent_id()));
    name.map_or_else(|_| "a shell".to_owned(), |name| name.trim_end().to_owned())
}
