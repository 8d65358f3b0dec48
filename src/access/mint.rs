//! A new key: its entry for the keys file, and the key itself, which nobody else will ever know.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::{Entry, Rate, Right, Scope, ShownKey, parse_keys};

/// What a new key is to be good for.
#[derive(Clone, Debug)]
pub struct KeyWish {
    /// Whom it is for.
    pub name: String,
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
    /// The subjects of client certificates that stand for it besides.
    pub subjects: Vec<String>,
}

/// Makes a key.
pub fn mint(wish: KeyWish) -> (Entry, ShownKey) {
    let key = ShownKey::generate();
    let entry = Entry {
        id: key.id.clone(),
        name: wish.name,
        secret: Some(key.hash()),
        subjects: wish.subjects,
        rights: wish.rights,
        scope: wish.scope,
        rate: wish.rate,
        max_waiters: wish.max_waiters,
        max_holds: wish.max_holds,
        max_watchers: wish.max_watchers,
        max_locks: wish.max_locks,
        max_ttl: wish.max_ttl,
        expires: wish.expires,
    };
    (entry, key)
}

/// Appends an entry to a keys file, which is made where there is none. One that would be wrong then is left as it is.
pub fn append(entry: &Entry, file: &Path) -> io::Result<()> {
    let wrong =
        |error| io::Error::new(io::ErrorKind::InvalidData, format!("with it the file is wrong: {error}"));
    let before = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        before => before?,
    };
    let gap = if before.is_empty() || before.ends_with("\n\n") {
        ""
    } else if before.ends_with('\n') {
        "\n"
    } else {
        "\n\n"
    };
    let addition = format!("{gap}{entry}");
    parse_keys(&format!("{before}{addition}")).map_err(wrong)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // In one piece, so that a gateway that reads it meanwhile sees all of it or nothing.
    file.write_all(addition.as_bytes())
}
