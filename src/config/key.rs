//! The flags of `key`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::KeysFile;
use super::error::{SettingsError, duration, require};
use crate::access::{Entry, KeyId, Rate, Right, Scope, ShownKey, is_plain, moment};
use crate::client::shell::{KeysCommand, NewKey};
use crate::lock::parse_duration;

/// What `key` can do.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Make an API key
    ///
    /// The entry for the keys file goes to standard output, and the key itself to standard error. So
    /// `fencepost key new … >>keys.toml` keeps the entry, and shows the key.
    ///
    /// With --append-to, the entry goes to that file, and only the key is printed:
    /// KEY=$(fencepost key new … --append-to keys.toml).
    ///
    /// The key is shown only once. The keys file has the SHA-256 of its secret.
    New(Box<NewKeyArgs>),
    /// List the keys of a keys file
    List {
        /// The keys file
        #[arg(long, env = "FENCEPOST_KEYS", value_name = "FILE")]
        keys: PathBuf,

        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove a key from a keys file
    ///
    /// Gateways that use the file refuse the key within a second. The file keeps its owner, its mode and its access list.
    /// The entry goes with the comment right above it, and all else stays.
    Revoke {
        /// The keys file
        #[arg(long, env = "FENCEPOST_KEYS", value_name = "FILE")]
        keys: PathBuf,

        /// The id of the key, as `fencepost key list` shows it
        id: String,
    },
}

/// The flags of `key new`.
#[derive(Args, Clone, Debug)]
pub struct NewKeyArgs {
    /// Who uses the key, for people who read the log
    #[arg(long, value_name = "TEXT")]
    name: String,

    /// Allow the locks whose names begin so (may be repeated)
    ///
    /// A prefix that ends in a letter or a digit stands for a whole word: `team` allows `team/a`, but not `team2`.
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<String>,

    /// Allow all locks
    #[arg(long)]
    every_key: bool,

    /// The rights, separated by commas
    ///
    /// None of them includes another.
    #[arg(long, required = true, value_delimiter = ',', value_name = "RIGHT")]
    #[arg(value_parser = PossibleValuesParser::new(Right::ALL.map(Right::name)))]
    allow: Vec<String>,

    /// The requests per second
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// The requests at one moment [default: as many as --rate allows in a second]
    #[arg(long, value_name = "N")]
    burst: Option<u32>,

    /// How many of its requests may wait [default: a quarter of --max-waiters]
    #[arg(long, value_name = "N")]
    max_waiters: Option<usize>,

    /// How many locks its connections may hold [default: a quarter of --max-holds]
    #[arg(long, value_name = "N")]
    max_holds: Option<usize>,

    /// How many event streams it may have open [default: a quarter of --max-watchers]
    #[arg(long, value_name = "N")]
    max_watchers: Option<usize>,

    /// How many locks it may hold at each gateway [default: --default-max-locks]
    #[arg(long, value_name = "N")]
    max_locks: Option<usize>,

    /// The longest ttl that it may ask for
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    max_ttl: Option<Duration>,

    /// When the key ends, such as 2027-01-01T00:00:00Z, or after which time, such as 90days
    #[arg(long, value_parser = end, value_name = "TIME")]
    expires: Option<Timestamp>,

    /// The subject of a client certificate that stands for the key (may be repeated)
    #[arg(long, value_name = "SUBJECT")]
    tls_subject: Vec<String>,

    /// Append the entry to this keys file
    ///
    /// Then only the key itself is printed.
    #[arg(long, value_name = "FILE")]
    append_to: Option<PathBuf>,
}

impl KeyCommand {
    /// Checks the flags, and makes the key if one is to be made.
    pub fn check(self) -> Result<KeysCommand, SettingsError> {
        match self {
            Self::New(args) => args.check().map(|key| KeysCommand::New(Box::new(key))),
            Self::List { keys, json } => {
                let file = KeysFile::read(&keys);
                let file = file.map_err(|problem| SettingsError::new("--keys", problem))?;
                Ok(KeysCommand::List { keys: file.keys, json })
            }
            Self::Revoke { keys, id } => {
                // Somebody may have given the whole key, which is not said again.
                let id = KeyId::parse(&id);
                let rule = "must be the id of a key, twelve of a-z0-9: `fencepost key list` shows the ids";
                let id = id.ok_or_else(|| SettingsError::new("the id", rule))?;
                Ok(KeysCommand::Revoke { id, file: keys })
            }
        }
    }
}

impl NewKeyArgs {
    fn check(self) -> Result<NewKey, SettingsError> {
        let args = self;
        let text = "1 to 512 bytes without control characters";
        require("--name", is_plain(&args.name), text)?;
        require("--prefix", args.prefix.iter().all(|prefix| is_plain(prefix)), text)?;
        require("--tls-subject", args.tls_subject.iter().all(|subject| is_plain(subject)), text)?;
        require("--prefix", args.prefix.is_empty() == args.every_key, "given, or --every-key, and not both")?;
        let rights: Option<Vec<_>> = args.allow.iter().map(|name| Right::parse(name)).collect();
        let rights = rights.ok_or_else(|| {
            SettingsError::new("--allow", "must be of acquire, inspect, list, admin and once")
        })?;
        let (least, most) = (Rate::BOUNDS.start(), Rate::BOUNDS.end());
        let is_sane = args.rate.is_none_or(|rate| Rate::BOUNDS.contains(&rate));
        require("--rate", is_sane, &format!("from {least} to {most}"))?;
        require(
            "--burst",
            args.burst.is_none_or(|burst| burst > 0 && args.rate.is_some()),
            "at least 1, beside --rate",
        )?;
        let rate = args.rate.map(|rate| Rate::new(rate, args.burst));
        require(
            "--burst",
            rate.is_none_or(|rate| rate.is_countable()),
            "at most what --rate allows in 366 days",
        )?;
        let is_sane = args.max_ttl.is_none_or(|ttl| ttl >= Duration::from_millis(1));
        require("--max-ttl", is_sane, "at least 1ms")?;
        let key = ShownKey::generate();
        let entry = Entry {
            id: key.id.clone(),
            name: args.name,
            secret: Some(key.hash()),
            subjects: args.tls_subject,
            rights,
            scope: if args.every_key { Scope::Every } else { Scope::Below(args.prefix) },
            rate,
            max_waiters: args.max_waiters,
            max_holds: args.max_holds,
            max_watchers: args.max_watchers,
            max_locks: args.max_locks,
            max_ttl: args.max_ttl,
            expires: args.expires,
        };
        Ok(NewKey { key, entry, append_to: args.append_to })
    }
}

fn end(text: &str) -> Result<Timestamp, String> {
    let after = |text| {
        let after = parse_duration(text)?;
        // Whole seconds are enough, and read better in the file.
        let seconds = i64::try_from(after.as_secs()).ok()?;
        Timestamp::from_second(Timestamp::now().as_second().checked_add(seconds)?).ok()
    };
    let end = moment(text).or_else(|| after(text));
    let end = end.ok_or("write a time with its offset, or a duration, such as 90days or 5m (minutes)")?;
    if end > Timestamp::now() { Ok(end) } else { Err("write a time that is not over".into()) }
}
