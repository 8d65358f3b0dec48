//! Mistakes in the scripts, each of which a test must find.

use std::path::PathBuf;
use std::{fs, io};

/// What the mistake is, what stands in the scripts, and what stands there by mistake.
pub const MISTAKES: [(&str, &str, &str); 14] = [
    ("a renewal shortens", "return math.max(left_ms, ttl_ms), false end", "return ttl_ms, false end"),
    ("a renewal of a pinned lock shortens", "if ttl_ms > left_ms then redis", "if true then redis"),
    ("max_hold is no limit", "local most_ms = terms_left(lock)", "local most_ms = nil"),
    (
        "min_hold is forgotten at a release",
        "if not least_ms or least_ms <= 0 then",
        "if least_ms or true then",
    ),
    ("a release leaves no tombstone", "set_tombstone(KEYS[10], outcome, ARGV[3])", ""),
    (
        "an attempt that is rolled back is not voided",
        "if voids then void(KEYS[10]",
        "if nil then void(KEYS[10]",
    ),
    ("another attempt's grant is rolled back", " and attempt_of(lock) == ARGV[2] then", " then"),
    ("a grant is broken by any number", "~= ARGV[5]) then return { 2 }", "== '') then return { 2 }"),
    (
        "a look pins what a connection holds",
        "if by ~= PINNED and not is_of_connection(by) then",
        "if by ~= PINNED then",
    ),
    (
        "a confirmation takes the lock",
        "if MODE == 'confirm' and (not lock or not pool and was_held_by(lock, TOKEN)) then return { 3 } end",
        "if MODE == 'confirm' and not lock then MODE = 'grant' end",
    ),
    ("one who is refused loses its ticket", "queue.leave_place(TOKEN, ticket)", "queue.remove_place(TOKEN)"),
    ("a position is one too low", "rank and rank + 1 or 0, place", "rank or 0, place"),
    (
        "an offer is not passed on",
        "(outcome == 1 or has_left and offer and offer.token == ARGV[1])",
        "outcome == 1",
    ),
    ("a ticket has no end", "if #lost == 0 then return false end", "do return false end"),
];

/// The texts of all scripts, one behind the other.
///
/// # Errors
///
/// The folder of the store, or a file in it, cannot be read.
pub fn scripts() -> io::Result<String> {
    let store = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/store"));
    let (mut all, mut folders) = (String::new(), vec![store]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "lua") {
                all += &fs::read_to_string(&path)?;
            }
        }
    }
    Ok(all)
}
