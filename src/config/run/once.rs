//! The flags of `once`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::value_parser;

use super::{EndingArgs, program_of};
use crate::client::run::RunSettings;
use crate::client::{AcquireSettings, BUSY, OnceTerms};
use crate::config::error::{SettingsError, duration, require};
use crate::config::gateway::GatewayArgs;
use crate::config::lease::{KILL_AFTER, check_command_ttl, default_owner, key_of};
use crate::once::{Fingerprint, Keep};

/// What `--help` says below the flags.
pub(in crate::config) const ONCE_HELP: &str = "\
Example:
  fencepost once --keep 168h report-2026-11-24 -- ./report.sh

The first to ask runs the command. Its standard output and the exit status 0 are stored. All others get that output and that
status, without running anything. If the command fails, nothing is stored, and the next one runs it.

The command finds ONCE_KEY, FENCING_TOKEN and ONCE_EARLIER in its environment. ONCE_EARLIER says how many earlier runs may have
done the work, or a part of it. 0 means none.

Exit status:
  0         it has run and its result is stored, or an earlier run has stored one, which was printed
  others    the command's: it has failed, and nothing is stored; 128 + n if signal n ended it
  74        the command has succeeded, but its result could not be stored: it may run again
  75        another client was at work until --wait was over
  77        an earlier run may have done the work, and --no-takeover is given
  69        no gateway could be reached, or none could use its store or had room, or something in front of it answered
  76        the lease was lost; the command was ended, or was not started
  2         a setting is wrong, the gateway refuses the request, or the record has another --fingerprint
  126, 127  the command cannot be started, or does not exist
  128 + n   signal n came while it waited
  71        this machine lacks something, such as /proc";

/// The flags of `once`.
#[derive(Args, Clone)]
pub struct OnceCommandArgs {
    #[command(flatten)]
    gateway: GatewayArgs,

    /// The ttl of the lease
    #[arg(long, help_heading = "Lease", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    ttl: Duration,

    /// How long to wait while another client is at work
    ///
    /// 0s means not to wait.
    #[arg(long, help_heading = "Lease", default_value = "10m", value_parser = duration, value_name = "DURATION")]
    wait: Duration,

    /// How long the result is kept, from the moment when it is stored: 2m to 168h
    ///
    /// After that, the next one runs the command again.
    #[arg(long, help_heading = "Record", default_value = "24h", value_parser = duration, value_name = "DURATION")]
    keep: Duration,

    /// Do not run the command if an earlier run may have done the work, or a part of it
    #[arg(long, help_heading = "Record")]
    no_takeover: bool,

    /// A text, such as a hash, that says which request this is: 1 to 128 visible ASCII characters
    ///
    /// It belongs to the record from its beginning to its end. Another one, or none, is refused.
    #[arg(long, help_heading = "Record", value_name = "TEXT")]
    fingerprint: Option<String>,

    #[command(flatten)]
    ending: EndingArgs,

    /// Exit statuses that say: certainly nothing was done
    ///
    /// The next run is then told of no earlier one. You may name several statuses, separated by commas.
    #[arg(
        long,
        help_heading = "Command",
        value_delimiter = ',',
        value_parser = value_parser!(u8).range(1..),
        value_name = "N"
    )]
    clean_status: Vec<u8>,

    /// The name of the work
    key: String,

    /// The command and its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl OnceCommandArgs {
    /// Checks the settings as a whole.
    pub fn check(self) -> Result<RunSettings, SettingsError> {
        let (program, arguments, name) = program_of(&self.command)?;
        check_command_ttl(self.ttl)?;
        require("--keep", Keep::new(self.keep).is_some(), "from 2m to 168h")?;
        let is_fingerprint = |text: &String| Fingerprint::of(text.as_bytes()).is_some();
        let rule = "1 to 128 visible ASCII characters";
        require("--fingerprint", self.fingerprint.as_ref().is_none_or(is_fingerprint), rule)?;
        let once =
            OnceTerms { keep: self.keep, may_take_over: !self.no_takeover, fingerprint: self.fingerprint };
        Ok(RunSettings {
            gateways: self.gateway.check()?,
            lock: AcquireSettings {
                others: Vec::new(),
                key: key_of(&self.key)?,
                ttl: self.ttl,
                wait: self.wait,
                max_hold: None,
                min_hold: None,
                slots: None,
                owner: default_owner(&name),
                once: Some(once),
            },
            signal: self.ending.signal(),
            kill_after: KILL_AFTER.min(self.ttl / 3),
            busy_exit: BUSY,
            clean_statuses: self.clean_status,
            passes_token: false,
            program,
            arguments,
        })
    }
}
