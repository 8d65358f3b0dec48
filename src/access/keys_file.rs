//! The keys file: TOML, read strictly, with an error that says the line and never what stands in it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::fmt::temporal::Pieces;
use rustix::fs::OFlags;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::changing::{Patience, is_at, keep_name};
use super::{Entry, KeyId, Rate, Right, Scope, SecretHash};
use crate::lock::parse_duration;

/// The longest name, prefix and subject, in bytes. A prefix that is longer than any lock's name is a mistake.
const LONGEST_TEXT: usize = 512;
/// The fields of a key, for the error that lists them.
const FIELDS: &str = "id, name, secret_sha256, tls_subjects, prefixes, every_key, allow, rate, burst, max_waiters, \
                      max_holds, max_watchers, max_locks, max_ttl, expires";

/// No keys file, and no file with a key or a token, is so long. One without an end, such as `/dev/zero`, must not fill the memory.
const LONGEST_FILE: u64 = 64 << 20;

/// Everything that is wrong with a keys file, each with its line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysFileError(BTreeSet<(usize, String)>);

impl std::error::Error for KeysFileError {}

impl fmt::Display for KeysFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<_> =
            self.0.iter().map(|(line, problem)| format!("line {line}: {problem}")).collect();
        f.write_str(&problems.join("; "))
    }
}

/// Reads the text of a keys file, or of a file with a key or a token.
pub fn read_text(file: &Path) -> io::Result<String> {
    text_of(File::open(file)?)
}

/// The same, without waiting for the one who writes to a pipe, perhaps for ever.
pub fn read_text_of_file(path: &Path) -> io::Result<String> {
    let at_once = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    text_of(OpenOptions::new().read(true).custom_flags(at_once).open(path)?)
}

fn text_of(file: File) -> io::Result<String> {
    let mut text = String::new();
    let length = file.take(LONGEST_FILE).read_to_string(&mut text)?;
    if length as u64 == LONGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long for such a file"));
    }
    Ok(text)
}

/// Reads a keys file.
pub fn parse(text: &str) -> Result<Vec<Entry>, KeysFileError> {
    let mut file = Reading { text, problems: KeysFileError::default() };
    let document = match DeTable::parse(text) {
        Ok(document) => document.into_inner(),
        Err(error) => {
            // The parser's message is about TOML; only its long form quotes the line.
            file.complain(error.span().map_or(0, |span| span.start), error.message());
            return Err(file.problems);
        }
    };
    let mut drafts = Vec::new();
    for (name, value) in &document {
        match (name.get_ref().as_ref(), value.get_ref()) {
            ("key", DeValue::Array(keys)) => {
                drafts.extend(keys.iter().filter_map(|key| Some((key.span().start, file.read_key(key)?))));
            }
            ("key", _) => {
                file.complain(name.span().start, "write [[key]], with two brackets, above each key")
            }
            _ => file.complain(name.span().start, "a keys file has nothing but [[key]]"),
        }
    }
    let keys: Vec<_> = drafts.into_iter().filter_map(|(at, draft)| file.finish(at, draft)).collect();
    file.refuse_repetitions(&keys);
    // A file that is being written is empty at first: that must not revoke all keys.
    if file.problems.0.is_empty() && keys.is_empty() {
        file.complain(0, "it holds no key; `fencepost key new` makes one");
    }
    if file.problems.0.is_empty() {
        Ok(keys.into_iter().map(|(_, key)| key).collect())
    } else {
        Err(file.problems)
    }
}

struct Reading<'t> {
    text: &'t str,
    problems: KeysFileError,
}

/// What was found of a key, field by field.
#[derive(Default)]
struct Draft {
    id: Option<KeyId>,
    name: Option<String>,
    secret: Option<SecretHash>,
    subjects: Option<Vec<String>>,
    prefixes: Option<Vec<String>>,
    every_key: Option<bool>,
    rights: Option<Vec<Right>>,
    rate: Option<f64>,
    burst: Option<u32>,
    max_waiters: Option<usize>,
    max_holds: Option<usize>,
    max_watchers: Option<usize>,
    max_locks: Option<usize>,
    max_ttl: Option<Duration>,
    expires: Option<Timestamp>,
}

impl Reading<'_> {
    fn complain(&mut self, at: usize, problem: impl Into<String>) {
        let line = self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
        self.problems.0.insert((line, problem.into()));
    }

    /// `None` where something is wrong with a field.
    fn read_key(&mut self, key: &Spanned<DeValue>) -> Option<Draft> {
        let DeValue::Table(fields) = key.get_ref() else {
            self.complain(key.span().start, "write [[key]] above each key");
            return None;
        };
        let mut draft = Draft::default();
        let mut is_good = true;
        for (name, value) in fields {
            if let Err(problem) = draft.set(name.get_ref(), value.get_ref()) {
                self.complain(name.span().start, problem);
                is_good = false;
            }
        }
        is_good.then_some(draft)
    }

    fn finish(&mut self, at: usize, draft: Draft) -> Option<(usize, Entry)> {
        match draft.finish() {
            Ok(entry) => Some((at, entry)),
            Err(problem) => {
                self.complain(at, problem);
                None
            }
        }
    }

    fn refuse_repetitions(&mut self, keys: &[(usize, Entry)]) {
        let (mut ids, mut subjects) = (BTreeSet::new(), BTreeSet::new());
        for (at, key) in keys {
            if !ids.insert(key.id.as_str()) {
                self.complain(*at, "another key above has the same id");
            }
            if key.subjects.iter().any(|subject| !subjects.insert(subject)) {
                self.complain(*at, "a subject of tls_subjects is there twice");
            }
        }
    }
}

impl Draft {
    /// Sets a field; the error says what it must be, and not what it is.
    fn set(&mut self, name: &str, value: &DeValue) -> Result<(), String> {
        let must_be = |rule: &str| format!("{name} must be {rule}");
        match name {
            "id" => {
                let id = value.as_str().and_then(KeyId::parse);
                self.id = Some(id.ok_or_else(|| must_be("twelve of a-z0-9, in quotes"))?);
            }
            "name" => {
                let name = value.as_str().filter(|text| is_plain(text));
                self.name = Some(name.ok_or_else(|| must_be("a text for people, in quotes"))?.to_owned());
            }
            "secret_sha256" => {
                let hash = value.as_str().and_then(SecretHash::parse);
                let rule = "the SHA-256 of the secret: 64 hexadecimal digits, in quotes";
                self.secret = Some(hash.ok_or_else(|| must_be(rule))?);
            }
            "tls_subjects" => {
                let rule = "a list of subjects of certificates, such as [\"CN=worker\"]";
                self.subjects = Some(texts(value).ok_or_else(|| must_be(rule))?);
            }
            "prefixes" => {
                let rule = "a list of prefixes without control characters, and not empty: for all locks write every_key = true";
                self.prefixes = Some(texts(value).ok_or_else(|| must_be(rule))?);
            }
            "every_key" => self.every_key = Some(value.as_bool().ok_or_else(|| must_be("true or false"))?),
            "allow" => {
                let rule =
                    "a list of \"acquire\", \"inspect\", \"list\", \"admin\" and \"once\", and not empty";
                self.rights = Some(rights(value).ok_or_else(|| must_be(rule))?);
            }
            "rate" => {
                let rate = number(value).filter(|rate| Rate::BOUNDS.contains(rate));
                let (least, most) = (Rate::BOUNDS.start(), Rate::BOUNDS.end());
                let rule = || must_be(&format!("requests per second, from {least} to {most}"));
                self.rate = Some(rate.ok_or_else(rule)?);
            }
            "burst" => self.burst = Some(count(value).ok_or_else(|| must_be("a whole number, at least 1"))?),
            "max_waiters" => self.max_waiters = Some(most(value).ok_or_else(|| must_be("a whole number"))?),
            "max_holds" => self.max_holds = Some(most(value).ok_or_else(|| must_be("a whole number"))?),
            "max_watchers" => self.max_watchers = Some(most(value).ok_or_else(|| must_be("a whole number"))?),
            "max_locks" => self.max_locks = Some(most(value).ok_or_else(|| must_be("a whole number"))?),
            "max_ttl" => {
                let ttl = value.as_str().and_then(parse_duration);
                let ttl = ttl.filter(|ttl| *ttl >= Duration::from_millis(1));
                let rule = "a duration with its unit, such as \"5m\" (minutes)";
                self.max_ttl = Some(ttl.ok_or_else(|| must_be(rule))?);
            }
            "expires" => {
                let rule = "a time with its offset and without quotes, such as 2027-01-01T00:00:00Z";
                self.expires = Some(timestamp(value).ok_or_else(|| must_be(rule))?);
            }
            _ => return Err(format!("a key has no such field; it has {FIELDS}")),
        }
        Ok(())
    }

    fn finish(self) -> Result<Entry, String> {
        let missing = |field: &str| format!("the key has no {field}");
        let scope = match (self.prefixes, self.every_key) {
            (Some(prefixes), None) => Scope::Below(prefixes),
            (None, Some(true)) => Scope::Every,
            _ => return Err("the key needs either prefixes or every_key = true, and not both".to_owned()),
        };
        if self.burst.is_some() && self.rate.is_none() {
            return Err("the key has a burst, and needs a rate too".to_owned());
        }
        let rate = self.rate.map(|per_second| Rate::new(per_second, self.burst));
        if rate.is_some_and(|rate| !rate.is_countable()) {
            return Err("the burst is more than the rate allows in 366 days: lower it".to_owned());
        }
        if self.secret.is_none() && self.subjects.is_none() {
            return Err("no client can use the key: it needs secret_sha256 or tls_subjects".to_owned());
        }
        Ok(Entry {
            id: self.id.ok_or_else(|| missing("id"))?,
            name: self.name.ok_or_else(|| missing("name"))?,
            secret: self.secret,
            subjects: self.subjects.unwrap_or_default(),
            rights: self.rights.ok_or_else(|| missing("allow"))?,
            scope,
            rate,
            max_waiters: self.max_waiters,
            max_holds: self.max_holds,
            max_watchers: self.max_watchers,
            max_locks: self.max_locks,
            max_ttl: self.max_ttl,
            expires: self.expires,
        })
    }
}

/// Appends an entry to a keys file, which is made where there is none. One that would be wrong then is left as it is.
pub fn append(entry: &Entry, file: &Path) -> io::Result<()> {
    let wrong =
        |error| io::Error::new(io::ErrorKind::InvalidData, format!("with it the file is wrong: {error}"));
    let mut options = OpenOptions::new();
    let was_there = file.exists();
    let mut opened = Patience::new().open(options.append(true).create(true).mode(0o600), file)?;
    let before = read_text(file)?;
    let gap = if before.is_empty() || before.ends_with("\n\n") {
        ""
    } else if before.ends_with('\n') {
        "\n"
    } else {
        "\n\n"
    };
    let addition = format!("{gap}{entry}");
    parse(&format!("{before}{addition}")).map_err(wrong)?;
    let length = opened.metadata()?.len();
    // In one piece, so that a gateway that reads it meanwhile sees all of it or nothing.
    let written = opened.write_all(addition.as_bytes()).and_then(|()| match opened.sync_all() {
        // What is no file on a disk, as /dev/null, has nothing to bring there.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    });
    let written = written.and_then(|()| if was_there { Ok(()) } else { keep_name(file) });
    written.map_err(|error| {
        // A disk that is full takes a part of it, and a file with half an entry is wrong as a whole.
        let undone = match was_there || length > 0 {
            true => opened.set_len(length),
            false => file.canonicalize().and_then(std::fs::remove_file),
        };
        match undone {
            Ok(()) => error,
            Err(other) => io::Error::new(
                error.kind(),
                format!("{error}; a part of the entry stands at its end: remove it by hand ({other})"),
            ),
        }
    })?;
    if is_at(&opened, file)? {
        return Ok(());
    }
    Err(io::Error::other("another program has put a new file in its place: try again"))
}

/// Whether a text can be a name, a prefix or a subject.
pub fn is_plain(text: &str) -> bool {
    (1..=LONGEST_TEXT).contains(&text.len()) && !text.contains(char::is_control)
}

fn texts(value: &DeValue) -> Option<Vec<String>> {
    let texts = value.as_array()?.iter().map(|text| text.get_ref().as_str().filter(|text| is_plain(text)));
    texts.map(|text| text.map(str::to_owned)).collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty())
}

fn rights(value: &DeValue) -> Option<Vec<Right>> {
    let rights = value.as_array()?.iter().map(|right| right.get_ref().as_str().and_then(Right::parse));
    rights.collect::<Option<Vec<_>>>().filter(|rights| !rights.is_empty())
}

fn number(value: &DeValue) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => count(value).map(f64::from),
    }
}

fn most(value: &DeValue) -> Option<usize> {
    match value {
        DeValue::Integer(number) => usize::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

fn count(value: &DeValue) -> Option<u32> {
    most(value).and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

fn timestamp(value: &DeValue) -> Option<Timestamp> {
    match value {
        DeValue::Datetime(time) => moment(&time.to_string()),
        _ => None,
    }
}

/// Of a time with an offset; another one would mean a different moment on each machine. One that is too late to be told, as
/// 9999-12-31, is the last.
pub fn moment(text: &str) -> Option<Timestamp> {
    let is_last = |time: Pieces<'_>| time.offset().is_some() && time.date().year() == Date::MAX.year();
    let last = || Pieces::parse(text).is_ok_and(is_last).then_some(Timestamp::MAX);
    text.parse().ok().or_else(last)
}
