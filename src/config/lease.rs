//! The flags that say which lock is taken, and on which terms.

use std::time::Duration;

use clap::Args;

use super::error::{SettingsError, duration, require};
use crate::client::AcquireSettings;
use crate::lock::{LockKey, Owner, Slots};

/// Below this there is no time left between a renewal that failed and the end of the lease.
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// What a command is given to end by itself, unless a third of the ttl is less.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);

/// The terms of a lock that is taken.
#[derive(Args, Clone)]
pub(super) struct LeaseArgs {
    /// The ttl of the lease
    #[arg(long, help_heading = "Lease", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub(super) ttl: Duration,

    /// How long to wait while another client has the lock
    ///
    /// 0s means not to wait.
    #[arg(long, help_heading = "Lease", default_value = "10m", value_parser = duration, value_name = "DURATION")]
    wait: Duration,

    /// The longest time that the lock may be held, renewals included
    #[arg(long, help_heading = "Lease", value_parser = duration, value_name = "DURATION")]
    max_hold: Option<Duration>,

    /// The shortest time that the lock stays held, even if it is released earlier
    #[arg(long, help_heading = "Lease", value_parser = duration, value_name = "DURATION")]
    min_hold: Option<Duration>,

    /// How many may hold the lock at once, this one included: 1 to 1000, or any
    ///
    /// The smallest number counts that a holder says. The command of `run` finds its own slot in LOCK_SLOT, and
    /// `acquire --json` prints it.
    #[arg(long, help_heading = "Lease", value_parser = slots, value_name = "NUMBER")]
    slots: Option<Slots>,

    /// A note for people: who holds the lock [default: the command and this machine]
    #[arg(long, help_heading = "Lease", value_name = "TEXT")]
    owner: Option<String>,
}

impl LeaseArgs {
    /// Checks the settings; `command` is who takes the lock, where no owner is given.
    pub(super) fn check(&self, key: &str, command: &str) -> Result<AcquireSettings, SettingsError> {
        check_ttl(self.ttl)?;
        let max_hold = self.max_hold.unwrap_or(Duration::MAX);
        require("--max-hold", max_hold >= self.ttl, "at least --ttl")?;
        require("--min-hold", self.min_hold.is_none_or(|min| min <= max_hold), "at most --max-hold")?;
        let owner = match &self.owner {
            Some(owner) => Owner::parse(owner.as_bytes())
                .map_err(|error| SettingsError::new("--owner", error.to_string()))?,
            None => default_owner(command),
        };
        Ok(AcquireSettings {
            key: key_of(key)?,
            others: Vec::new(),
            ttl: self.ttl,
            wait: self.wait,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            slots: self.slots,
            owner,
            once: None,
        })
    }
}

fn slots(text: &str) -> Result<Slots, String> {
    Slots::parse(text.as_bytes()).ok_or_else(|| Slots::FORM.into())
}

/// That there is a ttl at all. What is too short for the gateway, it says itself.
pub(super) fn check_ttl(ttl: Duration) -> Result<(), SettingsError> {
    let rule = "at least as long as the --min-ttl of the gateway, which is 10ms unless it was set";
    require("--ttl", ttl >= Duration::from_millis(1), rule)
}

/// That a command can be ended in time.
pub(super) fn check_command_ttl(ttl: Duration) -> Result<(), SettingsError> {
    require("--ttl", ttl >= SHORTEST_TTL, "at least 1s, so that the command can be ended in time")
}

/// The name of a lock.
pub(super) fn key_of(text: &str) -> Result<LockKey, SettingsError> {
    LockKey::parse(text.as_bytes()).map_err(|error| SettingsError::new("the key", error.to_string()))
}

/// The command and the machine, as far as they can be said in an owner.
pub(super) fn default_owner(command: &str) -> Option<Owner> {
    let machine = rustix::system::uname();
    let text = format!("{command} on {}", machine.nodename().to_string_lossy());
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.truncate(text.floor_char_boundary(Owner::MAX_BYTES));
    Owner::parse(text.as_bytes()).ok().flatten()
}
