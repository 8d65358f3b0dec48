//! The settings that say who may be served.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::Authority;
use clap::Args;

use super::error::{SettingsError, given, needs, require};
use crate::access::{Entry, parse_keys, read_text, read_text_of_file};
use crate::api::{Facades, NEVER_RENEWED_TTL, RebootGroup};
use crate::lock::Slots;

/// How long a file must stay as it is before it counts as written.
const SETTLING: Duration = Duration::from_millis(50);

/// The flags that say who may be served.
#[derive(Args, Clone, Debug)]
pub struct AccessArgs {
    /// The file with the API keys
    ///
    /// The gateway reads it again when it changes, and on SIGHUP. `fencepost key new` makes an entry.
    #[arg(long, help_heading = "Access", env = "FENCEPOST_KEYS", value_name = "FILE")]
    keys: Option<OsString>,

    /// Serve every client that reaches this gateway, without a key
    ///
    /// Such a client may take locks, and break the locks of others. Without this and without --keys, the gateway
    /// listens on this machine only.
    #[arg(long, help_heading = "Access", env = "FENCEPOST_ALLOW_ANONYMOUS", value_parser = yes_or_no)]
    allow_anonymous: bool,

    /// A name by which clients may call a gateway without keys (may be repeated)
    ///
    /// For example the name of a container, or one that a proxy passes on. Names of this machine are always allowed. So
    /// are addresses, if other machines can reach the gateway.
    #[arg(
        long,
        help_heading = "Access",
        env = "FENCEPOST_ALLOW_HOST",
        value_delimiter = ',',
        value_name = "HOST"
    )]
    allow_host: Vec<String>,

    /// A site whose pages may use this gateway, such as https://app.example (may be repeated)
    #[arg(
        long,
        help_heading = "Access",
        env = "FENCEPOST_CORS_ORIGIN",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    cors_origin: Vec<String>,
}

/// The flags that say which protocols of other tools are spoken.
#[derive(Args, Clone, Debug)]
pub struct FacadeArgs {
    /// Lock states for Terraform and OpenTofu, at /terraform/KEY
    ///
    /// Their leases are never renewed, and last 24h where the address names no ttl.
    #[arg(long, help_heading = "Protocols of other tools", env = "FENCEPOST_TERRAFORM", value_parser = yes_or_no)]
    terraform: bool,

    /// Serve the locks of Dapr, at /v1.0-alpha1/lock/STORE
    #[arg(long, help_heading = "Protocols of other tools", env = "FENCEPOST_DAPR", value_parser = yes_or_no)]
    dapr: bool,

    /// Serve FleetLock, at /fleet-lock: so many machines of a group may reboot at once (may be repeated)
    ///
    /// For example default=1. A group has at most 100 slots, and one that is not named is refused.
    #[arg(
        long,
        help_heading = "Protocols of other tools",
        env = "FENCEPOST_FLEET_LOCK",
        value_delimiter = ',',
        value_parser = RebootGroup::parse,
        value_name = "GROUP=SLOTS"
    )]
    fleet_lock: Vec<RebootGroup>,
}

impl FacadeArgs {
    /// Checks them. Leases that are never renewed must be long.
    pub(super) fn check(self, max_ttl: Duration, is_quorum: bool) -> Result<Facades, SettingsError> {
        let Self { terraform, dapr, fleet_lock } = self;
        let allows_long = max_ttl >= NEVER_RENEWED_TTL;
        let long = "a --max-ttl of 24h or more: leases of this protocol are never renewed";
        needs("--terraform", !terraform || allows_long, long)?;
        needs("--fleet-lock", fleet_lock.is_empty() || allows_long, long)?;
        needs(
            "--dapr",
            !dapr || max_ttl >= Duration::from_secs(1),
            "a --max-ttl of 1s or more: this protocol has whole seconds",
        )?;
        let is_alone = fleet_lock.iter().all(|group| group.slots == Slots::ONE);
        require(
            "--fleet-lock",
            is_alone || !is_quorum,
            "of one slot in each group on a quorum, which shares no locks",
        )?;
        let names: BTreeSet<_> = fleet_lock.iter().map(|group| &group.name).collect();
        require("--fleet-lock", names.len() == fleet_lock.len(), "there once for each group")?;
        Ok(Facades { terraform, dapr, fleet_lock })
    }
}

/// Who may be served, checked.
#[derive(Clone, Debug)]
pub struct AccessSettings {
    /// The keys, where some are in use.
    pub keys: Option<KeysFile>,
    /// Whether a setting says that every client may do everything.
    pub allows_anonymous: bool,
    /// Names by which this server may be called besides those that no page can have.
    pub allowed_hosts: Vec<String>,
    /// Sites whose pages may use this server.
    pub allowed_origins: Vec<HeaderValue>,
}

/// A file with keys.
#[derive(Clone, Debug)]
pub struct KeysFile {
    /// Where it is.
    pub path: PathBuf,
    /// What stood in it at the start.
    pub keys: Vec<Entry>,
}

impl KeysFile {
    /// Reads it; the error says where it is wrong, and not what stands there.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::of(path, read_text(path))
    }

    fn of(path: &Path, read: io::Result<String>) -> Result<Self, String> {
        let text = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let keys = parse_keys(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path: path.to_owned(), keys })
    }

    /// Reads it while it is not being written: half a file may be a valid one that lacks the keys of its other half.
    pub fn read_settled(path: &Path) -> Result<Self, String> {
        let mut before = None;
        loop {
            let read = read_text_of_file(path);
            let now = read.as_ref().ok().cloned();
            if before.as_ref() == Some(&now) {
                return Self::of(path, read);
            }
            before = Some(now);
            sleep(SETTLING);
        }
    }
}

impl AccessSettings {
    /// Warns of what others may do, or read, if they can reach the gateway.
    pub fn warn_if_exposed(&self, is_loopback: bool, speaks_tls: bool) {
        if is_loopback {
            return;
        }
        if self.keys.is_none() {
            tracing::warn!("everybody who reaches this address can take locks");
        } else if !speaks_tls {
            tracing::warn!(
                "this address has no TLS: API keys and lease tokens can be read on their way. Set --tls-cert and --tls-key. If a \
                 proxy in front of the gateway speaks TLS, let only the proxy reach this address"
            );
        }
    }
}

impl AccessArgs {
    /// Nothing is open by accident: `listen` is the address that is to be listened on, and `knows_clients` says whether clients may show
    /// certificates.
    pub(super) fn check(&self, listen: &str, knows_clients: bool) -> Result<AccessSettings, SettingsError> {
        let path = given(&self.keys).map(Path::new);
        if path.is_some() && self.allow_anonymous {
            let problem = "with --keys no client is anonymous: give one of them".to_owned();
            return Err(SettingsError::new("--allow-anonymous", problem));
        }
        if path.is_none() && knows_clients {
            let problem = "needs --keys beside it: only a key says what a certificate may do".to_owned();
            return Err(SettingsError::new("--tls-client-ca", problem));
        }
        if path.is_none() && !self.allow_anonymous && is_reachable(listen) {
            let problem = format!(
                "{listen} can be reached from other machines, and no API keys are in use: give --keys FILE (`fencepost \
                 key new --help` says how to make one), or --allow-anonymous to let everybody take locks who reaches it"
            );
            return Err(SettingsError::new("--listen", problem));
        }
        let keys = path.map(KeysFile::read).transpose();
        Ok(AccessSettings {
            keys: keys.map_err(|problem| SettingsError::new("--keys", problem))?,
            allows_anonymous: self.allow_anonymous,
            allowed_hosts: each_given(&self.allow_host).map(allowed_host).collect::<Result<_, _>>()?,
            allowed_origins: each_given(&self.cors_origin).map(allowed_origin).collect::<Result<_, _>>()?,
        })
    }
}

/// Whether other machines can reach an address. What cannot be resolved cannot be listened on either.
fn is_reachable(listen: &str) -> bool {
    let addresses = listen.to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.any(|address| !address.ip().to_canonical().is_loopback()))
}

fn each_given(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str).filter(|text| !text.is_empty())
}

/// Nothing is opened by a word that only may mean yes, such as a misspelled `false`.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Ok(true),
        "false" | "no" | "off" | "n" | "f" | "0" | "" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

fn allowed_host(host: &str) -> Result<String, SettingsError> {
    match host.parse::<Authority>() {
        Ok(authority) if authority.host() == host && !host.contains('*') => Ok(host.to_owned()),
        _ => {
            let problem = format!("{host:?} is no host name (leave scheme and port out)");
            Err(SettingsError::new("--allow-host", problem))
        }
    }
}

/// Any other way of writing an origin would be that of no request, and allow nothing.
fn allowed_origin(origin: &str) -> Result<HeaderValue, SettingsError> {
    let is_as_sent = |rest: &str, default_port| {
        let Ok(authority) = rest.parse::<Authority>() else { return false };
        let host = authority.host();
        let sent = match authority.port_u16() {
            Some(port) if port != default_port => format!("{host}:{port}"),
            _ => host.to_owned(),
        };
        sent.to_ascii_lowercase() == rest && !host.is_empty() && !host.contains('*')
    };
    let is_origin = origin.strip_prefix("http://").is_some_and(|rest| is_as_sent(rest, 80))
        || origin.strip_prefix("https://").is_some_and(|rest| is_as_sent(rest, 443));
    HeaderValue::from_str(origin).ok().filter(|_| is_origin).ok_or_else(|| {
        let how = "is no origin; write it as a browser does, in small letters and without its usual port, such as https://app.example";
        SettingsError::new("--cors-origin", format!("{origin:?} {how}"))
    })
}
