//! The search for secrets: every token, key, fingerprint and result that tests send, and every token that they are given, is
//! remembered, and what a gateway has written is searched for them when it ends.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use fencepost::lock::LeaseToken;

/// Secrets are known by pieces of this length, which even the shortest has. Their beginning, their beginning without
/// the first character, and their end: so a secret is found whole, cut off at either side, or within something longer.
const PIECE: usize = LeaseToken::MIN_CHARS;
type Piece = [u8; PIECE];

/// Below that a piece is nothing that somebody made at random, such as `tttttttttttttttt`, and others may write it too.
const FEWEST_DIFFERENT: usize = 6;

/// The characters of an API key behind `fp_`: its id, which may be told, an underscore, and the secret.
const ID: usize = 12;
const SECRET: usize = 32;
/// The characters of a token of the server behind its `~`.
const SERVER_MADE: usize = 32;

#[derive(Default)]
struct Known {
    secret: HashSet<Piece>,
    /// What a test itself puts where everybody may read it.
    public: HashSet<Piece>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers the value of a header, where it is one that holds a secret.
pub fn remember_header(name: &str, value: &[u8]) {
    let Ok(value) = std::str::from_utf8(value) else { return };
    let value = value.trim();
    if name.eq_ignore_ascii_case("Lease-Token") || name.eq_ignore_ascii_case("Once-Fingerprint") {
        known().secret.extend(pieces(value));
    } else if name.eq_ignore_ascii_case("Authorization") {
        let credentials = value.split_once(' ').map_or(value, |(_, credentials)| credentials.trim());
        // The id may stand in a log, and is no part of what is searched for.
        let id_end = credentials.starts_with("fp_").then(|| credentials.rfind('_')).flatten();
        known().secret.extend(pieces(id_end.map_or(credentials, |end| &credentials[end + 1..])));
    }
}

/// Remembers a body, where it is one word as a token is: what stands in others is no secret of its own.
pub fn remember_result(body: &[u8]) {
    if let Ok(text) = std::str::from_utf8(body)
        && runs(text).any(|run| run.len() == text.len())
    {
        known().secret.extend(pieces(text));
    }
}

/// Remembers what the headers of a request or an answer hold that is sent or read as bytes.
pub fn remember_head(message: &[u8]) {
    let head =
        message.windows(4).position(|window| window == b"\r\n\r\n").map_or(message, |end| &message[..end]);
    for line in head.split(|byte| *byte == b'\n') {
        if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            remember_header(&String::from_utf8_lossy(&line[..colon]), &line[colon + 1..]);
        }
    }
}

/// Says that a test means to have this token or key written: as the name of a lock, for one.
pub fn is_public(secret: &str) {
    known().public.extend(pieces(secret.rsplit('_').next().unwrap()).chain(pieces(secret)));
}

/// The lines that hold a secret: one that is remembered, or anything that has the form of a token of the server or of an
/// API key.
pub fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let known = known();
    lines.into_iter().filter(|line| runs(line).any(|run| holds_secret(run, &known))).collect()
}

/// Fails the test when there is one, unless it is failing already.
#[track_caller]
pub fn search<'a>(place: &str, lines: impl IntoIterator<Item = &'a str>) {
    let found = find(lines);
    if found.is_empty() {
        return;
    }
    let finding = format!("a secret is in {place}: {found:#?}");
    // A panic while another one unwinds would end all tests.
    if std::thread::panicking() { eprintln!("{finding}") } else { panic!("{finding}") }
}

/// The longest parts of a line that consist of what tokens and keys consist of, and may hold one.
fn runs(line: &str) -> impl Iterator<Item = &[u8]> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-');
    line.as_bytes().split(move |byte| !is_part(byte)).filter(|run| run.len() >= PIECE)
}

fn holds_secret(run: &[u8], known: &Known) -> bool {
    let is_public = |piece: &[u8]| piece.first_chunk().is_some_and(|piece| known.public.contains(piece));
    let is_remembered = |piece: &&[u8]| known.secret.contains(*piece) && !is_public(piece);
    let has_form = |(at, byte): (usize, &u8)| match byte {
        b'~' => is_server_made(&run[at + 1..]) && !is_public(&run[at..]),
        b'f' => api_secret(&run[at..]).is_some_and(|secret| !is_public(secret)),
        _ => false,
    };
    run.windows(PIECE).any(|piece| is_remembered(&piece)) || run.iter().enumerate().any(has_form)
}

fn is_server_made(rest: &[u8]) -> bool {
    rest.len() >= SERVER_MADE && rest[..SERVER_MADE].iter().all(u8::is_ascii_hexdigit)
}

/// The secret of the API key that these bytes begin with.
fn api_secret(bytes: &[u8]) -> Option<&[u8]> {
    let (id, rest) = bytes.strip_prefix(b"fp_")?.split_at_checked(ID)?;
    let secret = rest.strip_prefix(b"_")?.get(..SECRET)?;
    (id.iter().chain(secret).all(u8::is_ascii_alphanumeric)).then_some(secret)
}

fn pieces(secret: &str) -> impl Iterator<Item = Piece> {
    let bytes = secret.as_bytes();
    let ends = [bytes.first_chunk(), bytes.get(1..).and_then(<[u8]>::first_chunk), bytes.last_chunk()];
    ends.into_iter()
        .flatten()
        .copied()
        .filter(|piece: &Piece| piece.iter().collect::<HashSet<_>>().len() >= FEWEST_DIFFERENT)
}
