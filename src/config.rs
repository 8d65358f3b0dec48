//! Settings: flags, each also an environment variable, checked as a whole before anything starts.

// The documentation of a flag is its help: an address in it is text to write, and no link.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::absolute;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use self::error::{duration, require};
use crate::access::{Keyring, Shares};
use crate::api::{Facades, Limits};
use crate::audit::AuditTarget;
use crate::lock::written;
use crate::server::ServerSettings;
use crate::store::LineSettings;
use crate::store::redis::TCP_USER_TIMEOUT;

mod access;
mod address;
mod arguments;
mod environment;
mod error;
mod gateway;
mod key;
mod lease;
mod observe;
mod page;
mod run;
mod server;
mod shell;
mod shipped;
mod store;

pub use access::{AccessArgs, AccessSettings, FacadeArgs, KeysFile};
pub use arguments::{Given, explain_arguments, read_arguments};
pub use environment::{misspelt_variables, unknown_variables, wrong_variables};
pub use error::SettingsError;
pub use key::KeyCommand;
pub use observe::{ObserveArgs, ObserveSettings};
pub use page::settings_page;
pub use run::{OnceCommandArgs, RunArgs};
pub use server::ServerArgs;
pub use shell::ShellAction;
pub use shipped::{CompletionsArgs, ManArgs};
pub use store::{OnceArgs, StoreArgs, StoreSettings};

/// The longest lease that `--max-ttl` may allow.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// What it allows where it is not given, and on a quorum, where each server that forgot is left out for so long.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_TTL_ON_QUORUM: Duration = Duration::from_secs(5 * 60);
/// The lease of a request that names none, and the shortest, where nothing is set.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest wait, and the life of a tombstone, where nothing is set.
const MAX_WAIT: Duration = Duration::from_secs(60);
const MARK_TTL: Duration = Duration::from_secs(120);
/// The longest wait that `--max-wait` may allow.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
/// The longest that a place may be kept for a client that does not ask.
const LONGEST_TICKET_TTL: Duration = Duration::from_secs(60 * 60);

/// The version, and what this program was built with.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("swagger", cfg!(feature = "swagger")),
        ("traces", cfg!(feature = "traces")),
        ("ui", cfg!(feature = "ui")),
    ];
    let names: Vec<_> = features.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("{}\nfeatures: {names}", env!("CARGO_PKG_VERSION"))
});

/// An HTTP gateway to distributed locks with fencing tokens.
#[derive(Parser)]
#[command(name = "fencepost", version, long_version = LONG_VERSION.as_str(), args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without it, `serve`.
    #[command(subcommand)]
    command: Option<Action>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// What the program can do.
#[derive(Subcommand)]
pub enum Action {
    /// Serve locks over HTTP (the default)
    Serve(Box<ServeArgs>),
    /// Run a command while holding a lock
    #[command(after_long_help = run::MORE_HELP)]
    Run(Box<RunArgs>),
    /// Run a command once, and give its output to all who ask for the same work
    #[command(after_long_help = run::ONCE_HELP)]
    Once(Box<OnceCommandArgs>),
    /// The other commands that ask gateways
    #[command(flatten)]
    Shell(ShellAction),
    /// Say what a store is, and what can be promised on it
    Check(StoreArgs),
    /// Make, list and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the OpenAPI document
    Openapi,
    /// Print what a shell needs to complete the flags of this program
    Completions(CompletionsArgs),
    /// Print the page on all settings, in Markdown
    #[command(hide = true)]
    Settings,
    /// Write the manual: a page for each command
    #[command(hide = true)]
    Man(ManArgs),
}

impl Cli {
    /// What was asked for.
    pub fn into_command(self) -> Action {
        self.command.unwrap_or(Action::Serve(Box::new(self.serve)))
    }
}

/// The flags of `serve`.
#[derive(Args, Clone)]
pub struct ServeArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    observe: ObserveArgs,

    /// How long a released token keeps its answer [default: 2m, or more if --max-wait needs it]
    ///
    /// For that long, a late copy of a request with this token cannot take the lock. It is at least the sum of --store-timeout,
    /// --max-wait and 20s, and at most 366 days.
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_MARK_TTL", value_parser = duration, value_name = "DURATION")]
    mark_ttl: Option<Duration>,

    /// The ttl of a request that names none [default: 30s, within --min-ttl and --max-ttl]
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_DEFAULT_TTL", value_parser = duration, value_name = "DURATION")]
    default_ttl: Option<Duration>,

    /// The shortest ttl that a request may name [default: 10ms, or less if --max-ttl is less]
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_MIN_TTL", value_parser = duration, value_name = "DURATION")]
    min_ttl: Option<Duration>,

    /// The longest ttl that a request may name [default: 24h, or 5m on a quorum, or --min-ttl if that is more]
    ///
    /// On a quorum, a server that lost data stays out for at least this long.
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_MAX_TTL", value_parser = duration, value_name = "DURATION")]
    max_ttl: Option<Duration>,

    /// The longest time that a request may wait [default: 60s, or less if --mark-ttl is short]
    ///
    /// 0s means that no request waits.
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_MAX_WAIT", value_parser = duration, value_name = "DURATION")]
    max_wait: Option<Duration>,

    /// How long the wait queue keeps the ticket of a client that does not ask
    ///
    /// The client must have chosen its lease token.
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_TICKET_TTL", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    ticket_ttl: Duration,

    /// How many requests may wait for one lock, or at this gateway for one record
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_MAX_WAITERS_PER_KEY",
        default_value = "10000",
        value_name = "N"
    )]
    max_waiters_per_key: usize,

    /// How many requests may wait at this gateway, for locks and for records
    ///
    /// Over HTTP/1, at most three quarters of --max-connections.
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_MAX_WAITERS",
        default_value = "100000",
        value_name = "N"
    )]
    max_waiters: usize,

    /// How many connections may hold a lock at this gateway
    ///
    /// Those that still wait for their lock count too. Over HTTP/1, holds and waiting requests together have at most
    /// three quarters of --max-connections.
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_MAX_HOLDS",
        default_value = "10000",
        value_name = "N"
    )]
    max_holds: usize,

    /// How many event streams this gateway serves
    ///
    /// Over HTTP/1, streams, holds and waiting requests together have at most three quarters of --max-connections.
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_MAX_WATCHERS",
        default_value = "1000",
        value_name = "N"
    )]
    max_watchers: usize,

    /// How many locks an API key may hold at this gateway, counted from its start
    ///
    /// An entry of the keys file may say otherwise: max_locks.
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_DEFAULT_MAX_LOCKS",
        default_value = "10000",
        value_name = "N"
    )]
    default_max_locks: usize,

    /// How long a connection may hold a lock if it names no max_hold
    #[arg(long, help_heading = "Leases and waiting", env = "FENCEPOST_DEFAULT_MAX_HOLD", default_value = "2h", value_parser = duration, value_name = "DURATION")]
    default_max_hold: Duration,

    #[command(flatten)]
    facades: FacadeArgs,
    #[command(flatten)]
    once: OnceArgs,
}

/// What `serve` needs to know, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address and port to listen on.
    pub listen: String,
    /// Where locks live.
    pub store: StoreSettings,
    /// How long a request may take at the store.
    pub store_timeout: Duration,
    /// How long freed tokens are remembered.
    pub mark_ttl: Duration,
    /// How wait queues behave.
    pub line: LineSettings,
    /// The most that may wait at this gateway.
    pub max_waiters: usize,
    /// The most connections that may hold a lock at this gateway.
    pub max_holds: usize,
    /// The most that may watch locks at this gateway.
    pub max_watchers: usize,
    /// What callers may ask for.
    pub limits: Limits,
    /// Who may be served.
    pub access: AccessSettings,
    /// Which protocols of other tools are spoken.
    pub facades: Facades,
    /// The accept loop's.
    pub server: ServerSettings,
    /// How many threads serve requests.
    pub threads: usize,
    /// What is said of all this.
    pub observe: ObserveSettings,
}

impl ServeArgs {
    fn shares(&self, max_http1_waiters: usize) -> Shares {
        Shares {
            waiters: share_of(self.max_waiters),
            holds: share_of(self.max_holds),
            watchers: share_of(self.max_watchers),
            locks: self.default_max_locks,
            connections: share_of(max_http1_waiters),
            ticket_ttl: self.ticket_ttl,
        }
    }

    /// Checks the settings as a whole.
    pub fn check(self) -> Result<Settings, SettingsError> {
        let (mut store, store_timeout) = (self.store.check()?, self.store.store_timeout);
        let (server, threads) = (self.server.check()?, self.server.threads()?);
        // A default gives way to what a person has set.
        let usual_max_ttl = if store.is_quorum() { MAX_TTL_ON_QUORUM } else { MAX_TTL };
        let max_ttl = self.max_ttl.unwrap_or(usual_max_ttl.max(self.min_ttl.unwrap_or_default()));
        let min_ttl = self.min_ttl.unwrap_or(MIN_TTL.min(max_ttl));
        let room = self.mark_ttl.map(|mark_ttl| mark_ttl.saturating_sub(store_timeout + TCP_USER_TIMEOUT));
        let limits = Limits {
            default_ttl: self.default_ttl.unwrap_or(DEFAULT_TTL.min(max_ttl).max(min_ttl)),
            min_ttl,
            max_ttl,
            is_max_ttl_of_key: false,
            max_wait: self.max_wait.unwrap_or(MAX_WAIT.min(room.unwrap_or(MAX_WAIT))),
            max_http1_waiters: max_http1_waiters(server.max_connections),
            shares: self.shares(max_http1_waiters(server.max_connections)),
            default_max_hold: self.default_max_hold,
            max_result_bytes: self.once.max_result_bytes(!store.is_quorum())?,
        };
        let is_sane = |ttl: Duration| (Duration::from_millis(1)..=LONGEST_TTL).contains(&ttl);
        // What was not given follows from the other, and is not what is wrong.
        require("--max-ttl", self.max_ttl.is_none_or(is_sane), "from 1ms to 366days")?;
        require("--min-ttl", is_sane(limits.min_ttl), "from 1ms to 366days")?;
        require("--max-ttl", limits.max_ttl >= limits.min_ttl, "at least --min-ttl")?;
        let is_default_allowed = (limits.min_ttl..=limits.max_ttl).contains(&limits.default_ttl);
        require("--default-ttl", is_default_allowed, "between --min-ttl and --max-ttl")?;
        require("--max-wait", limits.max_wait <= LONGEST_WAIT, "at most 1h")?;
        // A mark must outlive every copy of a command that may still be on its way.
        let latest_copy = store_timeout + limits.max_wait + TCP_USER_TIMEOUT;
        let mark_ttl = self.mark_ttl.unwrap_or(MARK_TTL.max(latest_copy));
        let least = written(latest_copy) + ", the sum of --store-timeout, --max-wait and 20s";
        require("--mark-ttl", mark_ttl >= latest_copy, &format!("at least {least}"))?;
        require("--mark-ttl", mark_ttl <= LONGEST_TTL, "at most 366days")?;
        let is_sane = (Duration::from_secs(1)..=LONGEST_TICKET_TTL).contains(&self.ticket_ttl);
        require("--ticket-ttl", is_sane, "from 1s to 1h")?;
        require("--max-waiters-per-key", self.max_waiters_per_key > 0, "at least 1")?;
        require("--max-waiters", self.max_waiters > 0, "at least 1")?;
        require("--max-holds", self.max_holds > 0, "at least 1")?;
        require("--max-watchers", self.max_watchers > 0, "at least 1")?;
        require("--default-max-locks", self.default_max_locks > 0, "at least 1")?;
        let is_sane = (Duration::from_secs(1)..=LONGEST_TTL).contains(&self.default_max_hold);
        require("--default-max-hold", is_sane, "from 1s to 366days")?;
        let line =
            LineSettings { ticket_ttl: self.ticket_ttl, max_waiters_per_key: self.max_waiters_per_key };
        if let StoreSettings::Redis(_, redis) = &mut store {
            (redis.mark_ttl, redis.line, redis.max_ttl) = (mark_ttl, line, limits.max_ttl);
        }
        let facades = self.facades.check(limits.max_ttl, store.is_quorum())?;
        let observe = self.observe.check()?;
        if let (StoreSettings::File(file, _), Some(AuditTarget::File(log))) = (&store, &observe.audit_log) {
            let is_other = absolute(file).ok() != absolute(log).ok();
            require("--audit-log", is_other, "another file than that of --store")?;
        }
        Ok(Settings {
            store,
            facades,
            line,
            access: self.access.check(&self.server.listen, server.knows_clients())?,
            server,
            threads,
            listen: self.server.listen,
            observe,
            store_timeout,
            mark_ttl,
            max_waiters: self.max_waiters,
            max_holds: self.max_holds,
            max_watchers: self.max_watchers,
            limits,
        })
    }
}

impl Settings {
    /// Has at most so many connections, since the system allows no more; each address keeps its share.
    pub fn limit_connections(&mut self, most: usize) {
        let server = &mut self.server;
        let share =
            server.max_connections_per_address as u128 * most as u128 / server.max_connections as u128;
        server.max_connections_per_address = usize::try_from(share).unwrap_or(most).max(1);
        server.max_connections = most;
        self.limits.max_http1_waiters = max_http1_waiters(most);
        self.limits.shares.connections = share_of(self.limits.max_http1_waiters);
    }

    /// What an auditor asks first, without any secret: an address of a store is shown without its password.
    pub fn in_force(&self, address: SocketAddr, keyring: Option<&Keyring>) -> BTreeMap<&'static str, String> {
        let access = &self.access;
        let keys = access.keys.as_ref().zip(keyring);
        let keys = keys.map(|(file, keyring)| format!("{} of {}", keyring.count(), file.path.display()));
        let callers = if access.allows_anonymous { "everybody" } else { "everybody on this machine" };
        let origins = access.allowed_origins.iter().filter_map(|origin| origin.to_str().ok());
        let tls = self.server.tls.as_ref().map(|tls| tls.files().certificate.display().to_string());
        BTreeMap::from([
            ("listen", address.to_string()),
            ("keys", keys.unwrap_or_else(|| format!("none: {callers} is served"))),
            ("tls", tls.unwrap_or_else(|| "none".into())),
            ("store", self.store.kind().to_owned()),
            ("cors_origins", origins.collect::<Vec<_>>().join(" ")),
            ("metrics_listen", self.observe.metrics_listen.clone().unwrap_or_default()),
        ])
    }
}

/// What one key has of it that says nothing of it: so none by itself takes what others need.
fn share_of(all: usize) -> usize {
    (all / 4).max(1)
}

/// The other connections stay free for requests that take, renew and release locks.
fn max_http1_waiters(max_connections: usize) -> usize {
    (max_connections / 4 * 3).max(1)
}
