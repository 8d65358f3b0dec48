//! Settings: flags, each also an environment variable, checked as a whole before anything starts.

use std::fmt;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::{Authority, Uri};
use clap::{Args, Parser, Subcommand, ValueEnum};
use thiserror::Error;

use crate::api::Limits;
use crate::server::ServerSettings;
use crate::store::LineSettings;
use crate::store::redis::TCP_USER_TIMEOUT;

mod run;
mod store;

pub use run::RunArgs;
pub use store::{StoreArgs, StoreSettings};

/// The longest lease that `--max-ttl` may allow.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// What it allows where it is not given, and on a quorum, where each server that forgot is left out for so long.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_TTL_ON_QUORUM: Duration = Duration::from_secs(5 * 60);
/// The longest wait that `--max-wait` may allow.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// The longest that a place may be kept for a client that does not ask.
const LONGEST_TICKET_TTL: Duration = Duration::from_secs(60 * 60);
/// The longest of the times that bound a connection.
const LONGEST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// An HTTP gateway to distributed locks with fencing tokens.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without it, `serve`.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve locks over HTTP (the default)
    Serve(Box<ServeArgs>),
    /// Run a command while holding a lock
    Run(Box<RunArgs>),
    /// Say what a store is, and what can be promised on it
    Check(CheckArgs),
    /// Print the OpenAPI document
    Openapi,
}

impl Cli {
    /// What was asked for.
    pub fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Serve(Box::new(self.serve)))
    }
}

/// The flags of `serve`.
#[derive(Args, Clone)]
pub struct ServeArgs {
    /// Address and port to listen on
    #[arg(long, env = "FENCEPOST_LISTEN", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: String,

    #[command(flatten)]
    store: StoreArgs,

    /// How long a released token keeps its answer and refuses late copies of its requests
    #[arg(long, env = "FENCEPOST_MARK_TTL", default_value = "2m", value_parser = duration, value_name = "DURATION")]
    mark_ttl: Duration,

    /// The lease of a request that names none
    #[arg(long, env = "FENCEPOST_DEFAULT_TTL", default_value = "30s", value_parser = duration, value_name = "DURATION")]
    default_ttl: Duration,

    /// The shortest lease that may be asked for
    #[arg(long, env = "FENCEPOST_MIN_TTL", default_value = "10ms", value_parser = duration, value_name = "DURATION")]
    min_ttl: Duration,

    /// The longest lease that may be asked for [default: 24h; on a quorum 5m, since a server that forgot is left out of
    /// it for so long]
    #[arg(long, env = "FENCEPOST_MAX_TTL", value_parser = duration, value_name = "DURATION")]
    max_ttl: Option<Duration>,

    /// The longest wait that may be asked for
    #[arg(long, env = "FENCEPOST_MAX_WAIT", default_value = "60s", value_parser = duration, value_name = "DURATION")]
    max_wait: Duration,

    /// How long a client that chose its token keeps its place in a line while it does not ask
    #[arg(long, env = "FENCEPOST_TICKET_TTL", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    ticket_ttl: Duration,

    /// The most that may wait for one lock
    #[arg(long, env = "FENCEPOST_MAX_WAITERS_PER_KEY", default_value = "10000", value_name = "N")]
    max_waiters_per_key: usize,

    /// The most that may wait at this gateway; by HTTP/1 at most three quarters of --max-connections
    #[arg(long, env = "FENCEPOST_MAX_WAITERS", default_value = "100000", value_name = "N")]
    max_waiters: usize,

    /// The most connections that may hold a lock, or wait to, at this gateway; by HTTP/1, with those who wait, at most three
    /// quarters of --max-connections
    #[arg(long, env = "FENCEPOST_MAX_HOLDS", default_value = "10000", value_name = "N")]
    max_holds: usize,

    /// How long a connection may hold a lock, where it names no `max_hold`
    #[arg(long, env = "FENCEPOST_DEFAULT_MAX_HOLD", default_value = "2h", value_parser = duration, value_name = "DURATION")]
    default_max_hold: Duration,

    /// Another name by which this server may be called while it listens on loopback, such as that which a reverse
    /// proxy passes on (may be repeated)
    #[arg(long, env = "FENCEPOST_ALLOW_HOST", value_delimiter = ',', value_name = "HOST")]
    allow_host: Vec<String>,

    /// Another site whose pages may use this server, such as `https://app.example` (may be repeated)
    #[arg(long, env = "FENCEPOST_CORS_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    cors_origin: Vec<String>,

    /// Connections that may be open at once; more wait in the kernel
    #[arg(long, env = "FENCEPOST_MAX_CONNECTIONS", default_value = "10000", value_name = "N")]
    max_connections: usize,

    /// How long a new connection may take until its first request is complete
    #[arg(long, env = "FENCEPOST_FIRST_REQUEST_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    first_request_timeout: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, env = "FENCEPOST_IDLE_TIMEOUT", default_value = "75s", value_parser = duration, value_name = "DURATION")]
    idle_timeout: Duration,

    /// How long requests may go on after SIGTERM
    #[arg(long, env = "FENCEPOST_DRAIN_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    drain_timeout: Duration,

    /// The form of the log, which goes to standard error
    #[arg(long, env = "FENCEPOST_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,

    /// What is logged: from this level up (each request is info, or warn when it failed)
    #[arg(long, env = "FENCEPOST_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: LogLevel,
}

/// The flags of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,
}

impl CheckArgs {
    /// Checks the settings.
    pub fn check(&self) -> Result<StoreSettings, SettingsError> {
        self.store.check()
    }
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// An object per line.
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
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
    /// How lines behave.
    pub line: LineSettings,
    /// The most that may wait at this gateway.
    pub max_waiters: usize,
    /// The most connections that may hold a lock at this gateway.
    pub max_holds: usize,
    /// What callers may ask for.
    pub limits: Limits,
    /// Names by which this server may be called besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// Sites whose pages may use this server.
    pub allowed_origins: Vec<HeaderValue>,
    /// The accept loop's.
    pub server: ServerSettings,
    /// The form of the log.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: LogLevel,
}

/// What is wrong with the settings, in one line that names no secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{flag}: {problem}")]
pub struct SettingsError {
    flag: &'static str,
    problem: String,
}

impl ServeArgs {
    /// Checks the settings as a whole.
    pub fn check(self) -> Result<Settings, SettingsError> {
        let mut store = self.store.check()?;
        let limits = Limits {
            default_ttl: self.default_ttl,
            min_ttl: self.min_ttl,
            max_ttl: self.max_ttl.unwrap_or(if store.is_quorum() { MAX_TTL_ON_QUORUM } else { MAX_TTL }),
            max_wait: self.max_wait,
            // The others stay free for those who hold, renew and release.
            max_http1_waiters: (self.max_connections / 4 * 3).max(1),
            default_max_hold: self.default_max_hold,
        };
        require("--min-ttl", limits.min_ttl >= Duration::from_millis(1), "at least 1ms")?;
        require("--max-ttl", limits.max_ttl >= limits.min_ttl, "at least --min-ttl")?;
        require("--max-ttl", limits.max_ttl <= LONGEST_TTL, "at most 366days")?;
        let is_default_allowed = (limits.min_ttl..=limits.max_ttl).contains(&limits.default_ttl);
        require("--default-ttl", is_default_allowed, "between --min-ttl and --max-ttl")?;
        require("--max-wait", limits.max_wait <= LONGEST_WAIT, "at most 1h")?;
        // A mark must outlive every copy of a command that may still be on its way.
        let store_timeout = self.store.store_timeout;
        let latest_copy = store_timeout + limits.max_wait + TCP_USER_TIMEOUT;
        let at_least = humantime::format_duration(latest_copy);
        require(
            "--mark-ttl",
            self.mark_ttl >= latest_copy,
            &format!("at least {at_least}, which is --store-timeout, --max-wait and 20s"),
        )?;
        let is_sane = (Duration::from_secs(1)..=LONGEST_TICKET_TTL).contains(&self.ticket_ttl);
        require("--ticket-ttl", is_sane, "from 1s to 1h")?;
        require("--max-waiters-per-key", self.max_waiters_per_key > 0, "at least 1")?;
        require("--max-waiters", self.max_waiters > 0, "at least 1")?;
        require("--max-holds", self.max_holds > 0, "at least 1")?;
        let is_sane = (Duration::from_secs(1)..=LONGEST_TTL).contains(&self.default_max_hold);
        require("--default-max-hold", is_sane, "from 1s to 366days")?;
        require("--max-connections", self.max_connections > 0, "at least 1")?;
        for (flag, time) in [
            ("--first-request-timeout", self.first_request_timeout),
            ("--idle-timeout", self.idle_timeout),
            ("--drain-timeout", self.drain_timeout),
        ] {
            let is_sane = (Duration::from_millis(10)..=LONGEST_CONNECTION_TIMEOUT).contains(&time);
            require(flag, is_sane, "from 10ms to 1day")?;
        }
        let line =
            LineSettings { ticket_ttl: self.ticket_ttl, max_waiters_per_key: self.max_waiters_per_key };
        if let StoreSettings::Redis(_, redis) = &mut store {
            (redis.mark_ttl, redis.line, redis.max_ttl) = (self.mark_ttl, line, limits.max_ttl);
        }
        Ok(Settings {
            store,
            line,
            allowed_hosts: given(&self.allow_host).map(allowed_host).collect::<Result<_, _>>()?,
            allowed_origins: given(&self.cors_origin).map(allowed_origin).collect::<Result<_, _>>()?,
            server: ServerSettings {
                first_request_timeout: self.first_request_timeout,
                idle_timeout: self.idle_timeout,
                max_connections: self.max_connections,
                drain_timeout: self.drain_timeout,
                ..ServerSettings::default()
            },
            listen: self.listen,
            store_timeout,
            mark_ttl: self.mark_ttl,
            max_waiters: self.max_waiters,
            max_holds: self.max_holds,
            limits,
            log_format: self.log_format,
            log_level: self.log_level,
        })
    }
}

impl fmt::Debug for ServeArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's address may hold a password; what else there is shows in `Settings`, which keeps it redacted.
        f.debug_struct("ServeArgs").field("listen", &self.listen).finish_non_exhaustive()
    }
}

fn require(flag: &'static str, holds: bool, rule: &str) -> Result<(), SettingsError> {
    if holds {
        return Ok(());
    }
    Err(SettingsError { flag, problem: format!("must be {rule}") })
}

/// A variable that is set to nothing, as compose files and unit files do it, names nothing.
fn given(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str).filter(|text| !text.is_empty())
}

fn allowed_host(host: &str) -> Result<String, SettingsError> {
    match host.parse::<Authority>() {
        Ok(authority) if authority.host() == host => Ok(host.to_owned()),
        _ => {
            let problem = format!("{host:?} is no host name (leave scheme and port out)");
            Err(SettingsError { flag: "--allow-host", problem })
        }
    }
}

fn allowed_origin(origin: &str) -> Result<HeaderValue, SettingsError> {
    let error = || SettingsError {
        flag: "--cors-origin",
        problem: format!("{origin:?} is no origin; write it as a browser does, such as https://app.example"),
    };
    let uri: Uri = origin.parse().map_err(|_| error())?;
    let is_origin = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| origin.ends_with(authority.as_str()));
    if !is_origin {
        return Err(error());
    }
    HeaderValue::from_str(origin).map_err(|_| error())
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a duration with its unit, such as 500ms, 30s or 2m".into())
}
