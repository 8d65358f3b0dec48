//! The words of the domain, parsed once at the edge: what exists as one of these types is valid.
//!
//! Architecture invariant: this module imports nothing of ours and knows neither HTTP nor a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use thiserror::Error;

mod note;
pub mod once;
mod outcome;
mod reach;
mod slots;
mod terms;

pub use note::{Note, Owner, OwnerError};
pub use outcome::{
    Acquired, Broken, Confirmed, Ended, Enqueued, Inspected, LastPolled, Lease, Listed, Page, Polled,
    QueuePosition, Refusal, ReleaseEffect, Released, Renewed, RolledBack,
};
pub use reach::Reach;
pub use slots::{Sharing, Slot, Slots};
pub use terms::Terms;

/// Reads a duration as people write it, such as `1h30m`. It needs a unit, and not `M`: people mean different ones by these.
pub fn parse_duration(text: &str) -> Option<Duration> {
    // The library takes a zero without a unit, and `M` for months.
    humantime::parse_duration(text).ok().filter(|_| text.contains(char::is_alphabetic) && !text.contains('M'))
}

/// A duration as it is written in a request or a setting, in the units that the book uses: `168h`, and not `7days`.
pub fn written(duration: Duration) -> String {
    let ms = duration.as_millis();
    let parts = [(ms / 3_600_000, "h"), (ms / 60_000 % 60, "m"), (ms / 1_000 % 60, "s"), (ms % 1_000, "ms")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let text: String = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A time in the units that people use, rounded up.
pub fn for_people(ms: u64) -> String {
    let seconds = ms.div_ceil(1000);
    match (ms, seconds / 60, seconds % 60) {
        (0..1000, ..) => format!("{ms} ms"),
        (_, 0, seconds) => format!("{seconds} s"),
        (_, minutes @ 1..60, 0) => format!("{minutes} min"),
        (_, minutes @ 1..60, seconds) => format!("{minutes} min {seconds} s"),
        _ => {
            let minutes = seconds.div_ceil(60);
            match minutes % 60 {
                0 => format!("{} h", minutes / 60),
                left => format!("{} h {left} min", minutes / 60),
            }
        }
    }
}

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters, compared byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<str>);

/// Why a text is not a [`LockKey`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// Nothing was given.
    #[error("the key is empty")]
    Empty,
    /// It is no text for people.
    #[error("the key {0}")]
    Text(TextError),
}

/// Why bytes are no text that people can read and tell from another.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TextError {
    /// So many are more than so many.
    #[error("has {0} bytes; at most {1} are allowed")]
    TooLong(usize, usize),
    /// The bytes are not UTF-8.
    #[error("must be UTF-8")]
    NotUtf8,
    /// It holds a control character.
    #[error("has a control character, such as a line break: leave it out")]
    ControlCharacter,
}

/// Takes the bytes as they are, without normalizing them.
fn read_text(bytes: &[u8], most: usize) -> Result<&str, TextError> {
    if bytes.len() > most {
        return Err(TextError::TooLong(bytes.len(), most));
    }
    let text = str::from_utf8(bytes).map_err(|_| TextError::NotUtf8)?;
    if text.chars().any(char::is_control) { Err(TextError::ControlCharacter) } else { Ok(text) }
}

impl LockKey {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Takes the bytes as they are, without normalizing them.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(read_text(bytes, Self::MAX_BYTES).map_err(KeyError::Text)?.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a segment between slashes is empty, `.` or `..`: proxies rewrite such paths, some to another lock.
    pub fn is_risky_in_path(&self) -> bool {
        self.0.split('/').any(|segment| matches!(segment, "" | "." | ".."))
    }
}

/// The secret that proves who holds a lock. It is never logged and never stored: stores see its [`TokenHash`].
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken(Box<str>);

/// Why a text is not a [`LeaseToken`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TokenError {
    /// Shorter or longer than allowed.
    #[error(
        "a token has {min} to {max} characters; this one has {0}",
        min = LeaseToken::MIN_CHARS,
        max = LeaseToken::MAX_CHARS
    )]
    Length(usize),
    /// Something outside the alphabet.
    #[error("a token has only these characters: A-Z a-z 0-9 . _ ~ -")]
    Alphabet,
}

impl LeaseToken {
    /// The shortest token.
    pub const MIN_CHARS: usize = 16;
    /// The longest token.
    pub const MAX_CHARS: usize = 128;

    /// Reads a token that a caller sent.
    pub fn parse(bytes: &[u8]) -> Result<Self, TokenError> {
        let in_alphabet =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-');
        let text = str::from_utf8(bytes).ok().filter(|text| text.bytes().all(in_alphabet));
        let text = text.ok_or(TokenError::Alphabet)?;
        if !(Self::MIN_CHARS..=Self::MAX_CHARS).contains(&text.len()) {
            return Err(TokenError::Length(text.len()));
        }
        Ok(Self(text.into()))
    }

    /// Makes a fresh token of 128 random bits. The leading `~` tells it from those that clients choose.
    pub fn generate() -> Self {
        Self(format!("~{}", Hex(&rand::random::<[u8; 16]>())).into())
    }

    /// Whether the server made this token, so that a `PUT` with it may confirm a grant but never make one.
    pub fn is_server_made(&self) -> bool {
        self.0.starts_with('~')
    }

    /// What stores know of it.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The same for records, where a token must never meet itself as the holder of a lock.
    pub fn record_hash(&self) -> TokenHash {
        TokenHash(Sha256::new().chain_update("once ").chain_update(self.0.as_bytes()).finalize().into())
    }

    /// The secret itself, for the one answer that hands it out.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(redacted)")
    }
}

/// The SHA-256 of a [`LeaseToken`]. Tokens are random, so a plain hash is enough to keep them out of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The holder of a lock that was released and is kept for a while. It is the hash of no token.
    pub const NOBODY: Self = Self([0; 32]);

    /// What is left of it in a lock that is kept after its release, in the place of an attempt: half of it.
    pub fn trace(&self) -> Attempt {
        Attempt(*self.0.as_chunks().0.first().unwrap_or(&[0; 16]))
    }
}

/// One try of one `PUT`: what tells a repeated request from a second copy of the same one. Its first bit says whether a
/// connection holds the lock by it, for as long as the connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt([u8; 16]);

impl Attempt {
    const OF_CONNECTION: u8 = 0x80;
    const CLAIM: u8 = 0x40;

    /// A fresh one of 127 random bits.
    pub fn generate() -> Self {
        let mut bytes: [u8; 16] = rand::random();
        bytes[0] &= !Self::OF_CONNECTION;
        Self(bytes)
    }

    /// A fresh one, by which a connection is to hold a lock. Looking at such a lock with its token does not pin it.
    pub fn for_connection() -> Self {
        let mut bytes: [u8; 16] = rand::random();
        bytes[0] = bytes[0] & !Self::CLAIM | Self::OF_CONNECTION;
        Self(bytes)
    }

    /// A fresh one of the same kind.
    #[must_use]
    pub fn another(&self) -> Self {
        if self.is_of_connection() { Self::for_connection() } else { Self::generate() }
    }

    /// The attempt by which a connection holds a lock that its token held before, made from the attempt of its request.
    /// They differ, so rolling back the request's attempt undoes nothing that a client was told of.
    #[must_use]
    pub fn claim(&self) -> Self {
        let mut bytes = self.0;
        bytes[0] |= Self::OF_CONNECTION | Self::CLAIM;
        Self(bytes)
    }

    /// Whether a connection holds the lock by it.
    pub fn is_of_connection(&self) -> bool {
        self.0[0] & Self::OF_CONNECTION != 0
    }
}

/// A number that only ever grows for a key: what a protected resource compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest number: 2^53 - 1, which every JSON parser keeps exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// `None` where the number is 0 or would not survive a JSON parser.
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// How long a lease lasts, in whole milliseconds, at least one. Its bounds are settings, checked at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u64);

impl Ttl {
    /// A ttl with which a renewal leaves every lease as it is.
    pub const SHORTEST: Self = Self(1);

    /// `None` for zero: there is no lock without a lease.
    pub fn from_ms(ttl_ms: u64) -> Option<Self> {
        (ttl_ms > 0).then_some(Self(ttl_ms))
    }

    /// The length in milliseconds.
    pub fn as_ms(self) -> u64 {
        self.0
    }

    /// The length as a duration.
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// A ticket of a lock's wait queue. Tickets are served in ascending order; their values mean nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// Reads what [`Ticket::get`] gave.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of the ticket.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What is so many bytes, and in texts as many pairs of hexadecimal digits.
macro_rules! in_hex {
    ($name:ident, $length:literal) => {
        impl $name {
            /// Reads what `as_bytes` gave.
            pub fn from_bytes(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }

            /// Reads what `Display` wrote.
            pub fn parse(hex: &str) -> Option<Self> {
                parse_hex(hex).map(Self)
            }

            /// The bytes.
            pub fn as_bytes(&self) -> &[u8; $length] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Hex(&self.0).fmt(f)
            }
        }
    };
}

in_hex!(TokenHash, 32);
in_hex!(Attempt, 16);

/// Exactly `N` bytes from hexadecimal.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let pairs: &[[u8; 2]; N] = pairs.try_into().ok()?;
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The most bytes of which there is a hexadecimal form here: those of a hash.
const MOST_HEX_BYTES: usize = 32;

/// At most so many bytes as lower-case hexadecimal.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // All at once: the formatter needs as long for two digits as for all of them.
        let mut text = [0; 2 * MOST_HEX_BYTES];
        let (pairs, _) = text.as_chunks_mut::<2>();
        for (pair, byte) in pairs.iter_mut().zip(self.0) {
            *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
        }
        f.write_str(str::from_utf8(&text[..2 * self.0.len()]).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_requests_have_them() {
        for (ms, text) in
            [(0, "0s"), (10, "10ms"), (1_500, "1s500ms"), (5_400_000, "1h30m"), (604_800_000, "168h")]
        {
            let duration = Duration::from_millis(ms);
            assert_eq!((written(duration).as_str(), parse_duration(text)), (text, Some(duration)));
        }
    }

    #[test]
    fn people_are_told_times_with_units_rounded_up() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (28_997, "29 s"),
            (59_001, "1 min"),
            (90_000, "1 min 30 s"),
            (3_599_001, "1 h"),
            (3_600_001, "1 h 1 min"),
            (86_400_000, "24 h"),
        ] {
            assert_eq!(for_people(ms), text, "{ms} ms");
        }
    }
}
