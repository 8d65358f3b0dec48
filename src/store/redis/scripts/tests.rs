//! What holds for the texts of all scripts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ATTEMPT_AT, ATTEMPT_DIGITS, NUMBER_AT, TOKEN_HASH_DIGITS, is_readable, read_lease};
use crate::clock::whole_ms;
use crate::lock::{Attempt, FencingToken, TokenHash};
use crate::store::{LOOK_AHEAD, MOST_VOIDED, OFFER, SHORT_LEASE};

/// What scripts may use of Lua and of Redis. Whatever else turns numbers into texts, or cuts bits off them, does so by a C `int`
/// or `long`, which has 32 bits on some machines, or by 14 digits.
const LIBRARY: &[&str] = &[
    "math.floor",
    "math.max",
    "math.min",
    "redis.acl_check_cmd",
    "redis.call",
    "redis.error_reply",
    "redis.pcall",
    "string.find",
    "string.format",
    "string.gmatch",
    "string.gsub",
    "string.match",
    "string.rep",
    "string.sub",
];
const LIBRARIES: &[&str] = &[
    "bit",
    "cjson",
    "cmsgpack",
    "loadstring",
    "math",
    "os",
    "redis",
    "server",
    "string",
    "struct",
    "table",
    "tostring",
];
/// The one way in which a number becomes a text: a double has all digits of a number below 2^53.
const WHOLE: &str = "%.0f";
/// What `..` may join besides literals: these names never stand for numbers, and what these functions return is a text.
const TEXTS: &[&str] = &[
    "ATTEMPT",
    "KEPT",
    "LOCK",
    "NOBODY_HASH",
    "NOW",
    "PINNED",
    "PRESENCE",
    "TOKEN",
    "at_digits",
    "attempt",
    "before",
    "digits",
    "done",
    "earlier_digits",
    "end_of_line",
    "fingerprint",
    "former",
    "gateway",
    "head",
    "header",
    "keep",
    "known",
    "line",
    "lock",
    "mark",
    "owner",
    "replication_id",
    "rest",
    "result",
    "slot_text",
    "slots_text",
    "start_of_line",
    "status",
    "taken",
    "terms",
    "text",
    "token",
    "tombstone",
];
const TEXT_FUNCTIONS: &[&str] =
    &["line_of", "string.format", "string.rep", "string.sub", "terms_of", "token_of", "whole"];

#[derive(Debug, PartialEq)]
enum Token {
    Literal(String),
    /// With what stands behind its dots.
    Name(String),
    Symbol(String),
}

fn tokens(code: &str) -> Vec<Token> {
    let chars: Vec<char> = code.chars().collect();
    let text = |from: usize, to: usize| chars[from..to].iter().collect::<String>();
    let (mut all, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let rest = text(at, chars.len().min(at + 3));
        let start = at;
        if rest.starts_with("--") {
            at += chars[at..].iter().position(|c| *c == '\n').unwrap();
        } else if chars[at] == '\'' {
            at += 1;
            while chars[at] != '\'' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
            all.push(Token::Literal(text(start + 1, at - 1)));
        } else if chars[at].is_alphanumeric() || chars[at] == '_' {
            let goes_on = |at: usize| {
                let is_word = |at: usize| chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_');
                is_word(at) || chars.get(at) == Some(&'.') && is_word(at + 1)
            };
            while goes_on(at) {
                at += 1;
            }
            all.push(Token::Name(text(start, at)));
        } else if chars[at].is_whitespace() {
            at += 1;
        } else {
            at += ["...", ".."]
                .iter()
                .find(|symbol| rest.starts_with(**symbol))
                .map_or(1, |symbol| symbol.len());
            all.push(Token::Symbol(text(start, at)));
        }
    }
    all
}

fn is(token: Option<&Token>, symbol: &str) -> bool {
    matches!(token, Some(Token::Symbol(other)) if other == symbol)
}

fn name(token: Option<&Token>) -> &str {
    match token {
        Some(Token::Name(name)) => name,
        _ => "",
    }
}

/// Whether what begins there is certainly a text.
fn begins_text(tokens: &[Token], at: usize) -> bool {
    let behind = tokens.get(at + 1);
    match &tokens[at] {
        Token::Literal(_) => true,
        Token::Symbol(symbol) => symbol == "(" && begins_text(tokens, at + 1),
        Token::Name(name) if is(behind, "(") => TEXT_FUNCTIONS.contains(&&**name),
        Token::Name(name) if is(behind, "[") => matches!(&**name, "ARGV" | "KEYS"),
        Token::Name(name) => TEXTS.contains(&name.rsplit('.').next().unwrap()),
    }
}

/// Where what ends there begins: a name, a literal, or what stands in brackets, with its name.
fn beginning(tokens: &[Token], end: usize) -> usize {
    let Token::Symbol(closing) = &tokens[end] else { return end };
    let opening = if closing == ")" { "(" } else { "[" };
    let mut depth = 0;
    let open = (0..=end).rev().find(|at| {
        depth += usize::from(is(Some(&tokens[*at]), closing));
        depth -= usize::from(is(Some(&tokens[*at]), opening));
        depth == 0
    });
    let open = open.unwrap();
    if open > 0 && matches!(tokens[open - 1], Token::Name(_)) { open - 1 } else { open }
}

/// What a script does with numbers that does not keep all of their digits everywhere.
fn faults(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    let mut faults = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Name(used) => {
                let library = used.split('.').next().unwrap();
                if LIBRARIES.contains(&library) && !LIBRARY.contains(&&**used) {
                    faults.push(format!("uses {used}"));
                }
                if used == "string.format" {
                    let is_whole = match (tokens.get(at + 1), tokens.get(at + 2)) {
                        (bracket, Some(Token::Literal(form))) if is(bracket, "(") => {
                            !form.replace(WHOLE, "").contains('%')
                        }
                        _ => false,
                    };
                    if !is_whole {
                        faults.push(format!("formats by {:?}, and not by {WHOLE} alone", tokens.get(at + 2)));
                    }
                }
            }
            // The way to all of `string` without its name.
            Token::Symbol(symbol) if symbol == ":" => {
                faults.push(format!("calls :{}", name(tokens.get(at + 1))))
            }
            Token::Symbol(symbol) if symbol == ".." => {
                for operand in [beginning(&tokens, at - 1), at + 1] {
                    if !begins_text(&tokens, operand) {
                        faults.push(format!(
                            "joins {:?}, which may be a number: write it by whole()",
                            tokens[operand]
                        ));
                    }
                }
            }
            Token::Symbol(_) | Token::Literal(_) => {}
        }
    }
    faults
}

/// The texts of all scripts and of their parts, by their paths.
fn texts() -> BTreeMap<PathBuf, String> {
    let mut texts = BTreeMap::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                texts.insert(path, text);
            }
        }
    }
    assert!(texts.len() > 30, "{} texts", texts.len());
    texts
}

/// The text of the one file of this name.
fn text_of(name: &str) -> String {
    texts().into_iter().find(|(path, _)| path.ends_with(name)).unwrap().1
}

#[test]
fn no_script_writes_a_number_by_what_may_have_32_bits_or_14_digits() {
    for (path, text) in texts() {
        let found = faults(&text);
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}

/// What `constants.lua` says, each in a line of its own.
fn constants() -> BTreeMap<String, u64> {
    let text = text_of("constants.lua");
    let lines = text.lines().filter_map(|line| line.strip_prefix("local ")?.split_once(" = "));
    lines.map(|(name, number)| (name.to_owned(), number.parse().unwrap())).collect()
}

#[test]
fn scripts_and_gateway_have_the_same_constants() {
    // Where a text begins, Lua says 1.
    let mut expected = BTreeMap::from([
        ("TOKEN_HASH_DIGITS", TOKEN_HASH_DIGITS as u64),
        ("ATTEMPT_DIGITS", ATTEMPT_DIGITS as u64),
        ("ATTEMPT_AT", ATTEMPT_AT as u64 + 1),
        ("NUMBER_AT", NUMBER_AT as u64 + 1),
        ("LARGEST_NUMBER", FencingToken::MAX),
        ("MOST_VOIDED", MOST_VOIDED as u64),
        ("OFFER_MS", whole_ms(OFFER)),
        ("LOOK_AHEAD_MS", whole_ms(LOOK_AHEAD)),
        ("SHORT_LEASE_MS", whole_ms(SHORT_LEASE)),
    ]);
    let constants = constants();
    // The scripts' alone.
    expected.insert("SMALLEST_NUMBER", constants["SMALLEST_NUMBER"]);
    assert_eq!(constants, expected.into_iter().map(|(name, number)| (name.to_owned(), number)).collect());

    assert_eq!(TokenHash::NOBODY.to_string().len(), TOKEN_HASH_DIGITS);
    assert_eq!(Attempt::from_bytes([0; 16]).to_string().len(), ATTEMPT_DIGITS);
}

/// The numbers of [`constants`] that stand in a text.
fn stated_again(code: &str) -> Vec<String> {
    let mut shared: Vec<_> = constants().into_values().collect();
    // What stands around a position; and seconds are turned into ms everywhere.
    shared.extend([ATTEMPT_DIGITS + 1, ATTEMPT_AT, NUMBER_AT - 1, NUMBER_AT].map(|at| at as u64));
    shared.retain(|number| *number != 1_000);
    let tokens = tokens(code);
    let names = tokens.iter().map(|token| name(Some(token)));
    names
        .filter(|name| name.parse().is_ok_and(|number: f64| shared.contains(&(number as u64))))
        .map(str::to_owned)
        .collect()
}

#[test]
fn no_script_states_a_shared_constant_again() {
    for (path, text) in texts().into_iter().filter(|(path, _)| !path.ends_with("constants.lua")) {
        let found = stated_again(&text);
        assert!(found.is_empty(), "{}: say it by its name: {found:?}", path.display());
        for name in constants().into_keys() {
            assert!(!text.contains(&format!("local {name} ")), "{}: {name}", path.display());
        }
    }
    for bad in [
        "string.sub(lock, 1, 64)",
        "string.match(lock, '', 99)",
        "local at = 98",
        "x = 2 * 800",
        "9.007199254740991e15",
    ] {
        assert_eq!(stated_again(bad).len(), 1, "{bad}");
    }
    assert_eq!(stated_again("time[1] * 1000 -- 800\n"), [""; 0]);
}

/// The first digit of an attempt says whether a connection holds the lock by it, and whether it has claimed it.
#[test]
fn scripts_and_gateway_read_attempts_alike() {
    let digit = |attempt: Attempt| attempt.to_string().chars().next().unwrap();
    let attempts: Vec<_> = (0..16).map(|first| Attempt::from_bytes([first << 4; 16])).collect();
    let of_connections = attempts.into_iter().filter(Attempt::is_of_connection);
    let (mut pattern, mut claims) = (String::new(), Vec::new());
    for attempt in of_connections {
        pattern.push(digit(attempt));
        if attempt.claim() != attempt {
            claims.push(format!("['{}'] = '{}'", digit(attempt), digit(attempt.claim())));
        }
    }
    let text = text_of("lock.lua");
    for expected in [format!("'^[{pattern}]'"), format!("'^.', {{ {} }}", claims.join(", "))] {
        assert!(text.contains(&expected), "{expected}");
    }
}

#[test]
fn each_such_way_is_found() {
    let bad = [
        "local lock = token .. string.format('%d', number)",
        "local lock = string.format('%.0f:%i', a, b)",
        "local lock = string.format(form, number)",
        "local lock = ('%d'):format(number)",
        "local lock = token .. number",
        "local lock = number .. ' '",
        "local lock = ' ' .. time[1]",
        "local lock = ' ' .. math.floor(now)",
        "local lock = ' ' .. (now_ms + 1)",
        "local lock = tostring(number)",
        "local lock = table.concat({ number })",
        "local low = bit.band(number, 255)",
        "local lock = cjson.encode(number)",
    ];
    for code in bad {
        assert_eq!(faults(code).len(), 1, "{code}: {:?}", faults(code));
    }
    let good = "local lock = TOKEN .. ' ' .. string.format('%.0f', number) .. (ARGV[2] or ' ') .. seat.attempt -- '%d' .. n\n";
    assert_eq!(faults(good), [""; 0]);
}

#[test]
fn a_lock_is_read_as_it_was_written_or_not_at_all() {
    let by = format!("{} {}", "a".repeat(64), "b".repeat(32));
    let read =
        |rest: &str| read_lease(format!("{by} {rest}").as_bytes(), 5).map(|lease| lease.fencing_token.get());
    for (rest, number) in [
        ("1700000000000001 ", Some(1_700_000_000_000_001)),
        ("1700000000000001 me", Some(1_700_000_000_000_001)),
        ("1700000000000001:5:0 me", Some(1_700_000_000_000_001)),
        ("9007199254740991 ", Some(9_007_199_254_740_991)),
        ("9007199254740992 ", None),
        // What a C long of 32 bits makes of it, and what 14 digits do.
        ("-2147483648 ", None),
        ("1.7e+15 ", None),
        ("0 ", None),
        ("1700000000000001", None),
        ("", None),
    ] {
        assert_eq!(read(rest), number, "{rest}");
        assert_eq!(is_readable(format!("{by} {rest}").as_bytes()), number.is_some(), "{rest}");
    }
    for (value, is_ours) in [
        (format!("?{by} gateway 1700000000000"), true),
        ("?*##.".to_owned(), true),
        (format!("?{by} gateway"), false),
        (format!("?{by} gateway 1700000000000 more"), false),
        (format!("?{by} gateway soon"), false),
        ("?offer".to_owned(), false),
        (String::new(), false),
        ("somebody else's".to_owned(), false),
    ] {
        assert_eq!(is_readable(value.as_bytes()), is_ours, "{value}");
    }
    let endless = format!("{by} 1700000000000001 ");
    assert!(read_lease(endless.as_bytes(), 0).is_some() && read_lease(endless.as_bytes(), -1).is_none());
}
