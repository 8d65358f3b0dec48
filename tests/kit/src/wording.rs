//! The search for what only a programmer reads, in all that people are told: what a gateway has written is searched when
//! it ends, what `fencepost run` and the other commands print when they have ended, and each error when it is answered.

use std::sync::LazyLock;

use regex::RegexSet;
use serde_json::Value;

/// What the debug forms of values look like.
const FORMS: [&str; 6] = [
    // A value in a type: `Some(5)`, `Other(OtherError(…))`.
    r"\b[A-Z][A-Za-z]*[a-z][A-Za-z]*\(",
    // The fields of a value: `Lease { left_ms: 5 }`, `Os { code: 2, … }`.
    r"\{ ?[a-z_]+: ",
    // A map or a list of them.
    r#"\{"|\[[A-Z][a-z]+[A-Z]"#,
    // The path of a type: `std::io::Error`.
    r"\b[a-z_]{2,}::[A-Za-z_]",
    // The name of a type or of one of its values: `InvalidClientConfig`.
    r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b",
    // An escaped text that was escaped once more.
    r#"\\\\\\""#,
];

static SET: LazyLock<RegexSet> = LazyLock::new(|| RegexSet::new(FORMS).unwrap());

/// What clients and operators have chosen, or the program never says: it may look like anything.
const OF_OTHERS: [&str; 6] = ["key", "lock", "owner", "request_id", "timestamp", "trace_id"];

/// Names that are written so.
const NAMES: [&str; 3] = ["FleetLock", "OpenTelemetry", "OpenTofu"];

/// The texts with a debug form in them. A line of JSON is searched field by field.
pub fn find<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let lines = lines.into_iter().filter(|line| has_debug_form(line));
    lines.flat_map(texts_in).filter(|text| has_debug_form(text)).collect()
}

fn has_debug_form(text: &str) -> bool {
    let without_names = || NAMES.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
    SET.is_match(text) && SET.is_match(&without_names())
}

fn texts_in(line: &str) -> Vec<String> {
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return vec![line.to_owned()] };
    // Such lines are for programmers, and many of them are of libraries.
    if matches!(fields.get("level").and_then(Value::as_str), Some("DEBUG" | "TRACE")) {
        return Vec::new();
    }
    let told = fields.into_iter().filter(|(name, _)| !OF_OTHERS.contains(&name.as_str()));
    told.filter_map(|(_, value)| value.as_str().map(str::to_owned)).collect()
}

/// Fails the test when there is one, unless it is failing already.
#[track_caller]
pub fn search<'a>(place: &str, lines: impl IntoIterator<Item = &'a str>) {
    let found = find(lines);
    if found.is_empty() {
        return;
    }
    let finding = format!("no text for people is in {place}: {found:#?}");
    // A panic while another one unwinds would end all tests.
    if std::thread::panicking() { eprintln!("{finding}") } else { panic!("{finding}") }
}
