//! The flags of `run`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::error::{SettingsError, duration, require};
use crate::lock::{LockKey, Owner};
use crate::run::{GatewayAddresses, RunSettings};

/// Below this there is no time left between a renewal that failed and the end of the lease.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// What a command is given to end by itself, unless a third of the ttl is less.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Where a bearer key may stand: never among the arguments, which every user of the machine can read.
const API_KEY_VARIABLE: &str = "FENCEPOST_API_KEY";
/// The authorities that are trusted instead of those of this machine, as for other programs.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";

/// What `--help` says below the flags.
pub(super) const MORE_HELP: &str = "\
Example:
  fencepost run --wait 0s --busy-exit 0 --ttl 10m nightly-backup -- ./backup.sh --all

The command finds LOCK_KEY and FENCING_TOKEN in its environment. Its input and output are its own.

Several gateways:
  FENCEPOST_URL=http://a:8080,http://b:8080 names two gateways of one store. They are tried in turn, with the same
  lease token. So the lock goes on when one of them is away. A refusal by one of them counts.

Exit status:
  the command's  it has run; 128 + n if signal n ended it
  75             another client held the lock until --wait was over; --busy-exit names another status, and 0 is silent
  69             no gateway could be reached, or none could use its store or had room
  76             the lease was lost; the command was ended, or was not started
  2              a setting is wrong, the gateway refuses the request, or its certificate cannot be verified
  126, 127       the command cannot be started, or does not exist
  128 + n        signal n came while it waited
  71             this machine lacks something, such as /proc";

/// The flags of `run`.
#[derive(Args, Clone)]
pub struct RunArgs {
    /// The gateway
    ///
    /// You may name several gateways of one store, separated by commas. `run` tries them in turn.
    #[arg(
        long,
        env = "FENCEPOST_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    url: String,

    /// A file with the certificate authorities of the gateway, in PEM
    ///
    /// `run` trusts these instead of those of the machine. Unlike SSL_CERT_FILE, it changes nothing for the command.
    #[arg(long, env = "FENCEPOST_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// A file with the API key
    ///
    /// The key itself may also be in the variable FENCEPOST_API_KEY.
    #[arg(long, env = "FENCEPOST_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// The ttl of the lease
    ///
    /// `run` renews the lease each third of it.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    ttl: Duration,

    /// How long to wait while another client has the lock
    ///
    /// 0s means not to wait.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    wait: Duration,

    /// How long to wait at the start for a gateway that is away, or cannot use its store
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    gateway_wait: Duration,

    /// The time between SIGTERM and SIGKILL [default: 5s, at most a third of the ttl]
    ///
    /// The command, and all that it has started, may use it to end.
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    kill_after: Option<Duration>,

    /// The longest time that the lock may be held, renewals included
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    max_hold: Option<Duration>,

    /// The shortest time that the lock stays held, even if the command ends earlier
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    min_hold: Option<Duration>,

    /// A note for people: who holds the lock [default: the command and this machine]
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,

    /// The exit status if another client kept the lock
    ///
    /// With 0, `run` also prints nothing about it.
    #[arg(long, default_value = "75", value_name = "N")]
    busy_exit: u8,

    /// Give the command the variable LEASE_TOKEN, with which it can renew and release
    #[arg(long)]
    pass_token: bool,

    /// The name of the lock
    key: String,

    /// The command and its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Checks the settings as a whole.
    pub fn check(self) -> Result<RunSettings, SettingsError> {
        let wrong = |flag, problem: String| SettingsError::new(flag, problem);
        let key = LockKey::parse(self.key.as_bytes()).map_err(|error| wrong("the key", error.to_string()))?;
        require("--ttl", self.ttl >= SHORTEST_TTL, "at least 1s")?;
        let longest_kill_after = self.ttl / 3;
        let kill_after = self.kill_after.unwrap_or(KILL_AFTER.min(longest_kill_after));
        require("--kill-after", kill_after <= longest_kill_after, "at most a third of --ttl")?;
        let max_hold = self.max_hold.unwrap_or(Duration::MAX);
        require("--max-hold", max_hold >= self.ttl, "at least --ttl")?;
        require("--min-hold", self.min_hold.is_none_or(|min| min <= max_hold), "at most --max-hold")?;
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err(wrong("the command", "is missing".into()));
        };
        let owner = match &self.owner {
            Some(owner) => Owner::parse(owner.as_bytes()).map_err(|e| wrong("--owner", e.to_string()))?,
            None => default_owner(program),
        };
        // An address may hold a password, so what was given is not said again.
        let gateways = GatewayAddresses::parse(&self.url).map_err(|problem| wrong("--url", problem))?;
        let speaks_tls = gateways.iter().any(|address| address.scheme() == "https");
        let authorities = self.authorities(speaks_tls)?;
        let api_key = self.api_key()?;
        if api_key.is_some() && gateways.have_credentials() {
            let problem = "an address has a user or a password, and an API key is given too: both are sent in the \
                           header Authorization, so give one of them";
            return Err(wrong("--url", problem.to_owned()));
        }
        Ok(RunSettings {
            gateways,
            authorities,
            api_key,
            key,
            ttl: self.ttl,
            wait: self.wait,
            gateway_wait: self.gateway_wait,
            kill_after,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            owner,
            busy_exit: self.busy_exit,
            passes_token: self.pass_token,
            program: program.clone(),
            arguments: arguments.to_vec(),
        })
    }

    /// The authorities that are trusted instead of those of this machine, in PEM.
    fn authorities(&self, are_needed: bool) -> Result<Option<Vec<u8>>, SettingsError> {
        if !are_needed {
            return Ok(None);
        }
        if let Some(file) = self.ca_file.as_deref().filter(|file| !file.as_os_str().is_empty()) {
            return super::store::authorities("--ca-file", file, true).map(Some);
        }
        if let Some(file) = std::env::var_os(AUTHORITIES_VARIABLE).filter(|file| !file.is_empty()) {
            // The library that reads it takes a file that it cannot read for one without authorities.
            super::store::authorities(AUTHORITIES_VARIABLE, Path::new(&file), true)?;
        }
        Ok(None)
    }

    fn api_key(&self) -> Result<Option<String>, SettingsError> {
        let variable = std::env::var(API_KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        let file = self.api_key_file.as_deref().filter(|file| !file.as_os_str().is_empty());
        let (flag, key) = match (file, variable) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let problem = format!("{API_KEY_VARIABLE} is set too; give one of them");
                return Err(SettingsError::new("--api-key-file", problem));
            }
            (Some(file), None) => ("--api-key-file", read_key(file)?),
            (None, Some(key)) => (API_KEY_VARIABLE, key),
        };
        let is_plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        require(flag, is_plain, "one line of visible ASCII characters")?;
        Ok(Some(key))
    }
}

fn read_key(file: &Path) -> Result<String, SettingsError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => {
            let problem = format!("cannot read {}: {error}", file.display());
            Err(SettingsError::new("--api-key-file", problem))
        }
    }
}

/// The command and the machine, as far as they can be said in an owner.
fn default_owner(program: &OsStr) -> Option<Owner> {
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let machine = rustix::system::uname();
    let text = format!("{name} on {}", machine.nodename().to_string_lossy());
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.truncate(text.floor_char_boundary(Owner::MAX_BYTES));
    Owner::parse(text.as_bytes()).ok().flatten()
}

impl fmt::Debug for RunArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address and the arguments of a command may hold passwords.
        f.debug_struct("RunArgs").field("key", &self.key).finish_non_exhaustive()
    }
}
