//! What a keys file may say, and what is said of one that is wrong: the lines, and never what stands there.

use fencepost::access::{Right, parse_keys};

/// A whole key, of which each line can be exchanged or left out.
const GOOD: [&str; 5] = [
    "[[key]]",
    "id = \"abcdefghij01\"",
    "name = \"ci\"",
    "secret_sha256 = \"918c28f73f02ffcb653102a34bf5fbc3b7393e46945b7e99a19eafae2d80e724\"",
    "every_key = true\nallow = [\"acquire\"]",
];

fn with(line: usize, text: &str) -> String {
    let mut lines = GOOD.map(str::to_owned);
    lines[line] = text.to_owned();
    lines.join("\n") + "\n"
}

#[test]
fn a_file_says_what_each_key_is_for() {
    let keys = parse_keys(&with(2, "name = \"a\\\"b\" # whom it is for")).unwrap();
    assert_eq!((keys.len(), keys[0].name.as_str(), &keys[0].rights[..]), (1, "a\"b", &[Right::Acquire][..]));
    let text = with(
        3,
        "tls_subjects = [\"CN=a,O=b\"]\nrate = 2.5\nmax_waiters = 0\nmax_locks = 3\nexpires = 2027-01-01 00:00:00+02:00",
    );
    let keys = parse_keys(&text).unwrap();
    assert!(keys[0].secret.is_none() && keys[0].max_waiters == Some(0));
    assert_eq!(keys[0].max_locks, Some(3));
    assert_eq!(keys[0].rate.map(|rate| rate.burst), Some(3), "what a second allows");
    assert_eq!(keys[0].expires.unwrap().to_string(), "2026-12-31T22:00:00Z");
    // As it is written, it reads back.
    let again = parse_keys(&keys[0].to_string()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{keys:?}"));
}

#[test]
fn a_time_that_is_too_late_to_be_told_is_the_last() {
    for end in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999-12:00", "9999-12-31 00:00:00+01:00"] {
        let keys = parse_keys(&with(4, &format!("{}\nexpires = {end}", GOOD[4]))).unwrap();
        assert_eq!(keys[0].expires.unwrap().to_string(), "9999-12-30T22:00:00.999999999Z", "{end}");
        let again = parse_keys(&keys[0].to_string()).unwrap();
        assert_eq!(again[0].expires, keys[0].expires);
    }
    for end in ["9999-12-31T23:59:59", "9999-12-31", "23:59:59"] {
        let said = parse_keys(&with(4, &format!("{}\nexpires = {end}", GOOD[4]))).map(drop).unwrap_err();
        assert!(said.to_string().contains("expires must be a time with its offset"), "{end}: {said}");
    }
}

#[test]
fn a_file_that_is_wrong_is_refused_with_the_line_and_not_what_stands_there() {
    let secret = "fp_abcdefghij01_ThisIsTheSecretThatNobodyMaySee0";
    let quoted = format!("\"{secret}\"");
    for (line, text, expected) in [
        (1, "id = \"ABCDEFGHIJ01\"".to_owned(), "line 2: id must be twelve"),
        (1, format!("id = {quoted}"), "line 2: id must be twelve"),
        (1, "id = 5".to_owned(), "line 2: id must be twelve"),
        (1, "# none".to_owned(), "line 1: the key has no id"),
        (2, "name = \"\"".to_owned(), "line 3: name must be"),
        (2, format!("name = {secret}"), "line 3: "),
        (2, format!("name = \"{secret}"), "line 3: "),
        (2, secret.to_string(), "line 3: "),
        (2, format!("name = \"a\"\nname = {quoted}"), "line 4: duplicate key"),
        (2, format!("name = \"a\"\nsecret = {quoted}"), "line 4: a key has no such field; it has id"),
        (2, format!("name = \"a\"\n{secret} = 1"), "line 4: a key has no such field"),
        (3, format!("secret_sha256 = {quoted}"), "line 4: secret_sha256 must be the SHA-256"),
        (3, "# none".to_owned(), "line 1: no client can use the key"),
        (3, "tls_subjects = []".to_owned(), "line 4: tls_subjects must be"),
        (4, "every_key = false\nallow = [\"list\"]".to_owned(), "line 1: the key needs either prefixes or"),
        (4, "allow = [\"list\"]".to_owned(), "line 1: the key needs either prefixes or"),
        (
            4,
            "prefixes = [\"a\"]\nevery_key = true\nallow = [\"list\"]".to_owned(),
            "line 1: the key needs either",
        ),
        (4, "prefixes = []\nallow = [\"list\"]".to_owned(), "line 5: prefixes must be"),
        (4, "prefixes = [\"\"]\nallow = [\"list\"]".to_owned(), "line 5: prefixes must be"),
        (4, "prefixes = \"a\"\nallow = [\"list\"]".to_owned(), "line 5: prefixes must be"),
        (4, "every_key = true".to_owned(), "line 1: the key has no allow"),
        (4, "every_key = true\nallow = []".to_owned(), "line 6: allow must be"),
        (4, format!("every_key = true\nallow = [{quoted}]"), "line 6: allow must be"),
        (4, format!("{}\nrate = 0", GOOD[4]), "line 7: rate must be requests per second"),
        (4, format!("{}\nrate = nan", GOOD[4]), "line 7: rate must be"),
        (4, format!("{}\nburst = 5", GOOD[4]), "line 1: the key has a burst, and needs a rate too"),
        (4, format!("{}\nmax_waiters = -1", GOOD[4]), "line 7: max_waiters must be"),
        (4, format!("{}\nmax_locks = 1.5", GOOD[4]), "line 7: max_locks must be"),
        (4, format!("{}\nmax_ttl = 5", GOOD[4]), "line 7: max_ttl must be a duration"),
        (4, format!("{}\nmax_ttl = {quoted}", GOOD[4]), "line 7: max_ttl must be a duration"),
        (4, format!("{}\nmax_ttl = \"5M\"", GOOD[4]), "line 7: max_ttl must be a duration"),
        (
            4,
            format!("{}\nexpires = 2027-01-01T00:00:00", GOOD[4]),
            "line 7: expires must be a time with its offset",
        ),
        (4, format!("{}\nexpires = \"2027-01-01T00:00:00Z\"", GOOD[4]), "line 7: expires must be"),
        (0, "[key]".to_owned(), "line 1: write [[key]]"),
        (0, format!("secret = {quoted}\n[[key]]"), "line 1: a keys file has nothing but [[key]]"),
        (4, format!("{}\n{}", GOOD[4], GOOD.join("\n")), "line 7: another key above has the same id"),
    ] {
        let text = with(line, &text);
        let said = parse_keys(&text).map(drop).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}\n{text}");
        assert!(!said.contains("Secret") && !said.contains("918c28f7"), "{said}\n{text}");
    }
    for text in ["", "# nothing yet\n", "key = []"] {
        assert!(parse_keys(text).map(drop).unwrap_err().to_string().contains("it holds no key"), "{text}");
    }
    // All that is wrong is said at once.
    let text = with(1, "id = \"x\"") + &with(2, "name = 5").replace("abcdefghij01", "abcdefghij02");
    let said = parse_keys(&text).map(drop).unwrap_err().to_string();
    assert!(said.starts_with("line 2: id must") && said.contains("; line 9: name must"), "{said}");
}

#[test]
fn one_subject_stands_for_one_key() {
    let subject = "tls_subjects = [\"CN=a\"]";
    let text = with(3, subject) + &with(3, subject).replace("abcdefghij01", "abcdefghij02");
    let said = parse_keys(&text).map(drop).unwrap_err().to_string();
    assert_eq!(said, "line 7: a subject of tls_subjects is there twice");
}
