//! The flags of `key new`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::error::{SettingsError, duration, require};
use crate::access::{Entry, Rate, Right, Scope, ShownKey, is_plain};
use crate::lock::parse_duration;

/// The flags of `key`.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum KeyCommand {
    /// Make an API key
    ///
    /// Its entry for the keys file goes to standard output, and the key itself to standard error: so
    /// `fencepost key new … >>keys.toml` shows the key and keeps the entry. With --append-to the entry is appended to that file, and the key is
    /// all that goes to standard output: KEY=$(fencepost key new … --append-to keys.toml). The key is said this once; the
    /// file has only the SHA-256 of its secret.
    New(Box<NewKeyArgs>),
}

/// The flags of `key new`.
#[derive(Args, Clone, Debug)]
struct NewKeyArgs {
    /// Whom the key is for, as people will find it in the log
    #[arg(long, value_name = "TEXT")]
    name: String,

    /// The locks that it is for: those whose names begin so; a prefix that ends in a letter or a digit stands for a whole
    /// word, so that `team` is for `team/a` and not for `team2` (may be repeated)
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<String>,

    /// The key is for all locks
    #[arg(long)]
    every_key: bool,

    /// What it may do: `acquire`, `inspect`, `list`, `admin`; none implies another (separated by commas)
    #[arg(long, required = true, value_delimiter = ',', value_name = "RIGHT")]
    allow: Vec<String>,

    /// Requests per second
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// Requests at once [default: as many as --rate allows in a second]
    #[arg(long, value_name = "N")]
    burst: Option<u32>,

    /// How many of its requests may wait at once [default: a quarter of the server's --max-waiters]
    #[arg(long, value_name = "N")]
    max_waiters: Option<usize>,

    /// How many locks its connections may hold at once [default: a quarter of the server's --max-holds]
    #[arg(long, value_name = "N")]
    max_holds: Option<usize>,

    /// How many of its streams of events may be open at once [default: a quarter of the server's --max-watchers]
    #[arg(long, value_name = "N")]
    max_watchers: Option<usize>,

    /// How many locks it may have at once, by each server [default: the server's --default-max-locks]
    #[arg(long, value_name = "N")]
    max_locks: Option<usize>,

    /// The longest lease that it may ask for
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    max_ttl: Option<Duration>,

    /// When it ends, such as 2027-01-01T00:00:00Z, or after how long, such as 90days
    #[arg(long, value_parser = moment, value_name = "TIME")]
    expires: Option<Timestamp>,

    /// The subject of a client certificate that stands for the key too (may be repeated)
    #[arg(long, value_name = "SUBJECT")]
    tls_subject: Vec<String>,

    /// The keys file to which the entry is appended
    #[arg(long, value_name = "FILE")]
    append_to: Option<PathBuf>,
}

/// A new key.
pub struct NewKey {
    /// The key itself, which nobody else will ever know.
    pub key: ShownKey,
    /// Its entry for the keys file.
    pub entry: Entry,
    /// The keys file to which that is appended.
    pub append_to: Option<PathBuf>,
}

impl KeyArgs {
    /// Checks the flags, and makes the key.
    pub fn check(self) -> Result<NewKey, SettingsError> {
        let KeyCommand::New(args) = self.command;
        let text = "1 to 512 bytes without control characters";
        require("--name", is_plain(&args.name), text)?;
        require("--prefix", args.prefix.iter().all(|prefix| is_plain(prefix)), text)?;
        require("--tls-subject", args.tls_subject.iter().all(|subject| is_plain(subject)), text)?;
        require("--prefix", args.prefix.is_empty() == args.every_key, "given, or --every-key, and not both")?;
        let rights: Option<Vec<_>> = args.allow.iter().map(|name| Right::parse(name)).collect();
        let rights = rights
            .ok_or_else(|| SettingsError::new("--allow", "must be of acquire, inspect, list and admin"))?;
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

fn moment(text: &str) -> Result<Timestamp, String> {
    let after = |text| {
        let after = parse_duration(text)?;
        // Whole seconds are enough, and read better in the file.
        let seconds = i64::try_from(after.as_secs()).ok()?;
        Timestamp::from_second(Timestamp::now().as_second().checked_add(seconds)?).ok()
    };
    let moment = text.parse().ok().or_else(|| after(text));
    moment.ok_or_else(|| "write a time with its offset, or a duration, such as 90days".into())
}
