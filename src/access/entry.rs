//! What a keys file says of one key.

use std::fmt::{self, Write};
use std::time::Duration;

use jiff::Timestamp;

use super::{KeyId, Right, Scope, SecretHash};

/// One key: who may show it, and what it is good for.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Names it where its secret must not show.
    pub id: KeyId,
    /// Whom it was given to, for people.
    pub name: String,
    /// What its secret hashes to; without it, only certificates show it.
    pub secret: Option<SecretHash>,
    /// The subjects of client certificates that stand for it.
    pub subjects: Vec<String>,
    /// What it may do.
    pub rights: Vec<Right>,
    /// To which locks.
    pub scope: Scope,
    /// How often.
    pub rate: Option<Rate>,
    /// How many of its requests may wait at once.
    pub max_waiters: Option<usize>,
    /// How many locks its connections may hold at once.
    pub max_holds: Option<usize>,
    /// How many of its streams of events may be open at once.
    pub max_watchers: Option<usize>,
    /// How many locks it may have at once.
    pub max_locks: Option<usize>,
    /// The longest lease that it may ask for.
    pub max_ttl: Option<Duration>,
    /// When it ends.
    pub expires: Option<Timestamp>,
}

/// A number of requests per second, and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second, in the long run.
    pub per_second: f64,
    /// Requests at once, after a pause.
    pub burst: u32,
}

impl Rate {
    /// The least and the most requests per second.
    pub const BOUNDS: std::ops::RangeInclusive<f64> = 0.001..=1_000_000.0;

    /// The longest time that a burst may stand for: 366 days.
    pub const LONGEST_WINDOW: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// With a burst of one second's worth, where none is given.
    pub fn new(per_second: f64, burst: Option<u32>) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is within its bounds"
        )]
        let a_second_of_it = per_second.ceil() as u32;
        Self { per_second, burst: burst.unwrap_or(a_second_of_it).max(1) }
    }

    /// How long it takes until a burst that was used up may be made again.
    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.burst) / self.per_second)
    }

    /// Whether that is a time that can be counted.
    pub fn is_countable(&self) -> bool {
        self.window() <= Self::LONGEST_WINDOW
    }
}

/// As it stands in a keys file.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, secret, subjects, rights, scope, rate, .. } = self;
        writeln!(f, "[[key]]\nid = {}\nname = {}", quoted(id.as_str()), quoted(name))?;
        if let Some(secret) = secret {
            writeln!(f, "secret_sha256 = \"{secret}\"")?;
        }
        if !subjects.is_empty() {
            writeln!(f, "tls_subjects = {}", list(subjects))?;
        }
        match scope {
            Scope::Every => writeln!(f, "every_key = true")?,
            Scope::Below(prefixes) => writeln!(f, "prefixes = {}", list(prefixes))?,
        }
        let rights: Vec<_> = rights.iter().map(|right| right.name()).collect();
        writeln!(f, "allow = {}", list(&rights))?;
        if let Some(Rate { per_second, burst }) = rate {
            writeln!(f, "rate = {per_second}\nburst = {burst}")?;
        }
        for (name, most) in [
            ("max_waiters", self.max_waiters),
            ("max_holds", self.max_holds),
            ("max_watchers", self.max_watchers),
            ("max_locks", self.max_locks),
        ] {
            if let Some(most) = most {
                writeln!(f, "{name} = {most}")?;
            }
        }
        if let Some(max_ttl) = self.max_ttl {
            writeln!(f, "max_ttl = \"{}\"", humantime::format_duration(max_ttl))?;
        }
        match self.expires {
            Some(expires) => writeln!(f, "expires = {expires}"),
            None => Ok(()),
        }
    }
}

fn list(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => drop(write!(quoted, "\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
