//! The settings that say where locks live, which every command shares that looks at a store.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Args, ValueEnum};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::error::{SettingsError, duration, given, needs, require};
use crate::access::read_text;
use crate::server::read_pem;
use crate::store::embedded::EmbeddedSettings;
use crate::store::redis::{Credentials, OnceMemory, RedisAddress, RedisSettings, Risk};

/// The longest that `--store-timeout` may let a request hang.
const LONGEST_STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// More changes of a list than people will ever make.
const MOST_LISTS: u64 = 1_000_000;

/// The most replicas that may be asked for. If there are more, they are chained, and the primary hears of few.
const MOST_REPLICAS_ACK: u32 = 16;

const PASSWORD_FILE: &str = "--redis-password-file";

const USUAL_PREFIX: &str = "fencepost";

/// The flags that say where locks live.
#[derive(Args, Clone)]
pub struct StoreArgs {
    // The value may hold a password: it must show up neither in --help nor in an error of the parser.
    /// Where the locks are kept, such as file:PATH or redis://HOST
    ///
    /// file:PATH is a file, durable and for one gateway. memory: is lost when the gateway ends.
    /// redis://[user[:password]@]host[:port][/database] is one Redis server.
    /// redis+sentinel://[user:password@]host[:port],host…/name[/database] is the primary that Sentinel names.
    /// redis+cluster://[user:password@]host[:port],host… is a Redis Cluster.
    /// redlock://[user:password@]host[:port],host…[/database] is a quorum of three or more independent servers.
    /// With TLS, write rediss://, rediss+sentinel://, rediss+cluster:// and redlocks://.
    #[arg(
        long,
        help_heading = "Store",
        env = "FENCEPOST_STORE",
        hide_env_values = true,
        default_value = "file:fencepost.redb",
        value_name = "STORE"
    )]
    store: String,

    /// How every key in Redis begins
    ///
    /// Gateways with different prefixes grant the same locks: to change it is to change the store.
    #[arg(
        long,
        help_heading = "Store",
        env = "FENCEPOST_REDIS_PREFIX",
        default_value = USUAL_PREFIX,
        value_name = "PREFIX"
    )]
    redis_prefix: String,

    /// The number of the server list of a redlock:// store
    ///
    /// Raise it by one each time you change the list.
    #[arg(
        long,
        help_heading = "Store",
        env = "FENCEPOST_REDLOCK_EPOCH",
        default_value = "1",
        value_name = "N"
    )]
    redlock_epoch: u64,

    /// The user for the sentinels
    #[arg(long, help_heading = "Store", env = "FENCEPOST_SENTINEL_USER", value_name = "USER")]
    sentinel_user: Option<String>,

    /// The password for the sentinels
    ///
    /// The servers behind them may have another one.
    #[arg(
        long,
        help_heading = "Store",
        env = "FENCEPOST_SENTINEL_PASSWORD",
        hide_env_values = true,
        value_name = "PASSWORD"
    )]
    sentinel_password: Option<String>,

    /// A file with the password of the Redis servers
    ///
    /// Everybody on the machine can read a password in --store.
    #[arg(long, help_heading = "Store", env = "FENCEPOST_REDIS_PASSWORD_FILE", value_name = "FILE")]
    redis_password_file: Option<PathBuf>,

    /// The certificate authority of a rediss:// server, in PEM [default: those of the system]
    #[arg(long, help_heading = "Store", env = "FENCEPOST_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,

    /// Use a Redis server that would be refused, at this risk (may be repeated)
    #[arg(long, help_heading = "Store", env = "FENCEPOST_REDIS_ACCEPT", value_delimiter = ',', value_parser = RiskParser, value_name = "RISK")]
    redis_accept: Vec<Option<Risk>>,

    /// How many replicas must acknowledge a lock before the gateway grants it
    #[arg(
        long,
        help_heading = "Store",
        env = "FENCEPOST_REPLICAS_ACK",
        default_value = "0",
        value_name = "N"
    )]
    replicas_ack: u32,

    /// How much of the store records may take: bytes, or percents of the maxmemory of Redis [default: 60% in Redis, 268435456 else]
    ///
    /// At least 1048576 bytes, or 1% to 75%. Of Redis, all that it uses is compared with that. Above it, no new piece of work is begun;
    /// above a third more, results of more than 1024 bytes are refused. Locks go on. A Redis without maxmemory takes neither new work
    /// nor such results unless this says how many bytes.
    #[arg(long, help_heading = "Store", env = "FENCEPOST_ONCE_MEMORY", value_name = "BYTES|N%")]
    once_memory: Option<String>,

    /// How long the store may take for a request
    ///
    /// This includes connecting and repetitions.
    #[arg(long, help_heading = "Store", env = "FENCEPOST_STORE_TIMEOUT", default_value = "2s", value_parser = duration, value_name = "DURATION")]
    pub(super) store_timeout: Duration,
}

/// The least that records may take.
const LEAST_ONCE_BYTES: u64 = 1024 * 1024;
/// What a result may have at most, whatever the settings say. Connections to a store are shared by all.
const MOST_RESULT_BYTES: usize = 1024 * 1024;
const USUAL_RESULT_BYTES: usize = 64 * 1024;
/// So short a result is always stored, where there is little room, too.
const LEAST_RESULT_BYTES: usize = 1024;

/// The flags of records.
#[derive(Args, Clone, Debug)]
pub struct OnceArgs {
    /// How many bytes the result of a piece of work may have
    ///
    /// Clients that store a longer one are told so. It belongs elsewhere, and its address into the result.
    #[arg(
        long,
        help_heading = "Limits",
        env = "FENCEPOST_MAX_RESULT_BYTES",
        default_value_t = USUAL_RESULT_BYTES,
        value_name = "BYTES"
    )]
    max_result_bytes: usize,
}

impl OnceArgs {
    /// The longest result, in bytes.
    pub(super) fn max_result_bytes(&self, has_records: bool) -> Result<usize, SettingsError> {
        let is_sane = (LEAST_RESULT_BYTES..=MOST_RESULT_BYTES).contains(&self.max_result_bytes);
        require("--max-result-bytes", is_sane, "from 1024 to 1048576")?;
        let is_usual = self.max_result_bytes == USUAL_RESULT_BYTES;
        needs("--max-result-bytes", has_records || is_usual, "a store that keeps records")?;
        Ok(self.max_result_bytes)
    }
}

/// Where locks live.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// Embedded, in this file, with so many bytes of records.
    File(PathBuf, u64),
    /// Embedded, and lost at the end, with so many bytes of records.
    Memory(u64),
    /// On a Redis server.
    Redis(Box<RedisAddress>, RedisSettings),
}

impl StoreSettings {
    /// What it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(..) => "file",
            Self::Memory(_) => "memory",
            Self::Redis(address, _) => address.kind(),
        }
    }

    /// Whether it is on independent servers, most of which must agree.
    pub(super) fn is_quorum(&self) -> bool {
        matches!(self, Self::Redis(address, _) if address.is_quorum())
    }
}

impl StoreArgs {
    /// Checks these settings, for every command.
    pub fn check(&self) -> Result<StoreSettings, SettingsError> {
        let is_sane = (Duration::from_millis(10)..=LONGEST_STORE_TIMEOUT).contains(&self.store_timeout);
        require("--store-timeout", is_sane, "from 10ms to 1m")?;
        require("--redis-prefix", is_plain(&self.redis_prefix), "1 to 64 of A-Z a-z 0-9 . _ : -")?;
        require("--replicas-ack", self.replicas_ack <= MOST_REPLICAS_ACK, "at most 16")?;
        let store = self.place()?;
        let is_redis = matches!(store, StoreSettings::Redis(..));
        for (flag, is_set, what) in [
            ("--redis-ca", self.redis_ca.is_some(), "a rediss:// store"),
            (PASSWORD_FILE, self.redis_password_file.is_some(), "a redis:// store"),
            ("--redis-accept", self.redis_accept.iter().any(Option::is_some), "a redis:// store"),
            ("--redis-prefix", self.redis_prefix != USUAL_PREFIX, "a redis:// store"),
            ("--sentinel-user", given(&self.sentinel_user).is_some(), "a redis+sentinel:// store"),
            ("--sentinel-password", given(&self.sentinel_password).is_some(), "a redis+sentinel:// store"),
        ] {
            needs(flag, is_redis || !is_set, what)?;
        }
        let is_listed = (1..=MOST_LISTS).contains(&self.redlock_epoch);
        require("--redlock-epoch", is_listed, "from 1 to 1000000")?;
        needs("--redlock-epoch", store.is_quorum() || self.redlock_epoch == 1, "a redlock:// store")?;
        let has_replicas = is_redis && !store.is_quorum();
        needs("--replicas-ack", has_replicas || self.replicas_ack == 0, "a redis:// store")?;
        let has_usual_room = given(&self.once_memory).is_none();
        needs("--once-memory", !store.is_quorum() || has_usual_room, "a store that keeps records")?;
        Ok(store)
    }

    fn place(&self) -> Result<StoreSettings, SettingsError> {
        let error = |problem: String| SettingsError::new("--store", problem);
        match self.store.split_once(':') {
            Some(("file", "")) => Err(error("say which file: file:PATH".into())),
            Some(("file", path)) => Ok(StoreSettings::File(path.into(), self.once_memory_bytes()?)),
            Some(("memory", "")) => Ok(StoreSettings::Memory(self.once_memory_bytes()?)),
            Some((scheme, _)) if scheme.starts_with("redis") || scheme.starts_with("redlock") => {
                let address = RedisAddress::parse(&self.store, self.ca()?)
                    .map_err(|problem| error(problem.to_string()))?;
                let address = self.with_sentinel_credentials(self.with_password(address)?)?;
                let settings = RedisSettings {
                    prefix: self.redis_prefix.clone(),
                    reply_timeout: self.store_timeout / 2,
                    accepted: self.redis_accept.iter().copied().flatten().collect(),
                    replicas_ack: self.replicas_ack,
                    list_epoch: self.redlock_epoch,
                    once_memory: self.once_memory()?.unwrap_or_default(),
                    ..RedisSettings::default()
                };
                Ok(StoreSettings::Redis(Box::new(address), settings))
            }
            _ => Err(error(
                "write file:PATH, memory:, redis://host, redis+sentinel://host,host,host/name, \
                 redis+cluster://host,host or redlock://host,host,host"
                    .into(),
            )),
        }
    }

    /// What records may take, if that was said.
    fn once_memory(&self) -> Result<Option<OnceMemory>, SettingsError> {
        let Some(text) = given(&self.once_memory) else { return Ok(None) };
        let memory = match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|percent| (1..=75).contains(percent)).map(OnceMemory::Percent)
            }
            None => text.parse().ok().filter(|bytes| *bytes >= LEAST_ONCE_BYTES).map(OnceMemory::Bytes),
        };
        require("--once-memory", memory.is_some(), "1% to 75%, or at least 1048576 bytes")?;
        Ok(memory)
    }

    /// The same for a store that has no memory of which this could be a part.
    fn once_memory_bytes(&self) -> Result<u64, SettingsError> {
        match self.once_memory()? {
            None => Ok(EmbeddedSettings::default().once_memory_bytes),
            Some(OnceMemory::Bytes(bytes)) => Ok(bytes),
            Some(OnceMemory::Percent(_)) => {
                Err(SettingsError::new("--once-memory", "needs a redis:// store for percents"))
            }
        }
    }

    fn with_password(&self, address: RedisAddress) -> Result<RedisAddress, SettingsError> {
        let Some(file) = &self.redis_password_file else { return Ok(address) };
        let error = |problem: String| SettingsError::new(PASSWORD_FILE, problem);
        let text =
            read_text(file).map_err(|problem| error(format!("cannot read {}: {problem}", file.display())))?;
        let password = text.trim_end_matches(['\r', '\n']);
        // More lines than one are another kind of file.
        let is_one_line = !password.is_empty() && !password.contains(char::is_control);
        require(PASSWORD_FILE, is_one_line, "a file with one line, the password")?;
        address.with_password(password).map_err(|problem| error(problem.to_string()))
    }

    fn with_sentinel_credentials(&self, address: RedisAddress) -> Result<RedisAddress, SettingsError> {
        match (given(&self.sentinel_user), given(&self.sentinel_password)) {
            (user, Some(password)) => address
                .with_sentinel_credentials(Credentials {
                    user: user.map(str::to_owned),
                    password: password.to_owned(),
                })
                .map_err(|problem| SettingsError::new("--sentinel-password", problem.to_string())),
            (Some(_), None) => Err(SettingsError::new("--sentinel-user", "needs --sentinel-password")),
            (None, None) => Ok(address),
        }
    }

    fn ca(&self) -> Result<Option<Vec<u8>>, SettingsError> {
        let Some(path) = &self.redis_ca else { return Ok(None) };
        // A store without TLS is refused for having an authority at all.
        let has_tls = self.store.starts_with("rediss") || self.store.starts_with("redlocks");
        authorities("--redis-ca", path, has_tls).map(Some)
    }
}

/// The certificates that this file holds, in PEM. An error if it cannot be read, or has none where some are needed.
pub(super) fn authorities(
    flag: &'static str,
    path: &Path,
    are_needed: bool,
) -> Result<Vec<u8>, SettingsError> {
    let error = |problem: String| SettingsError::new(flag, problem);
    let pem =
        read_pem(path).map_err(|problem| error(format!("cannot read {}: {problem}", path.display())))?;
    let first = CertificateDer::pem_slice_iter(&pem).next();
    if are_needed && !matches!(first, Some(Ok(_))) {
        return Err(error(format!("{}: there is no certificate in PEM in it", path.display())));
    }
    Ok(pem)
}

impl ValueEnum for Risk {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.meaning()))
    }
}

/// Reads a risk, and nothing where a variable is set to nothing.
#[derive(Clone)]
struct RiskParser;

impl TypedValueParser for RiskParser {
    type Value = Option<Risk>;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Option<Risk>, clap::Error> {
        if value.is_empty() {
            return Ok(None);
        }
        EnumValueParser::new().parse_ref(command, arg, value).map(Some)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Risk::ALL.iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// A prefix with braces would become the hash tag of every key.
fn is_plain(prefix: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=64).contains(&prefix.len()) && prefix.bytes().all(is_plain)
}
