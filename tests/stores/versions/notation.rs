//! Commands of Redis as lines of text, and lines that stand for many: in place of what differs each time they
//! have `<names>`.

use regex::{Captures, Regex};

/// A line of words; a word with a space or a quote in it is written as in JSON.
pub fn line(words: &[impl AsRef<str>]) -> String {
    let word = |word: &str| match word.is_empty() || word.contains([' ', '"', '\\']) {
        true => serde_json::to_string(word).unwrap(),
        false => word.to_owned(),
    };
    words.iter().map(|text| word(text.as_ref())).collect::<Vec<_>>().join(" ")
}

/// The words of a line.
pub fn words(mut line: &str) -> Vec<String> {
    let mut words = Vec::new();
    while !line.is_empty() {
        let mut json = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let (word, end) = match line.starts_with('"') {
            true => (json.next().unwrap().unwrap(), json.byte_offset()),
            false => {
                let end = line.find(' ').unwrap_or(line.len());
                (line[..end].to_owned(), end)
            }
        };
        words.push(word);
        line = line[end..].trim_start();
    }
    words
}

/// A reply on one line.
pub fn reply(value: &redis::Value) -> String {
    match value {
        redis::Value::Nil => "nil".to_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(bytes) => {
            serde_json::to_string(std::str::from_utf8(bytes).unwrap()).unwrap()
        }
        redis::Value::Array(values) => {
            format!("[{}]", values.iter().map(reply).collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}

/// The text with names in place of what differs each time.
///
/// An attempt of a connection has its first bit set, and a claim the second one too: that is part of what it says.
pub fn with_names(text: &str) -> String {
    let mut text = text.to_owned();
    let by_form = [
        ("run", r"\b[0-9a-f]{20}-[0-9a-f]{20}\b"),
        ("attempt", r"\b[0-7][0-9a-f]{31}\b"),
        ("connection", r"\b[89ab][0-9a-f]{31}\b"),
        ("claim", r"\b[c-f][0-9a-f]{31}\b"),
        ("number", r"\b\d{16}\b"),
        ("ms", r"\b\d{13}\b"),
    ];
    for (name, form) in by_form {
        let mut seen: Vec<String> = Vec::new();
        let named = |found: &Captures<'_>| {
            let at = seen.iter().position(|value| *value == found[0]).unwrap_or_else(|| {
                seen.push(found[0].to_owned());
                seen.len() - 1
            });
            if at == 0 { format!("<{name}>") } else { format!("<{name}{}>", at + 1) }
        };
        text = Regex::new(form).unwrap().replace_all(&text, named).into_owned();
    }
    text
}

#[test]
fn a_line_is_read_as_it_was_written() {
    let all = ["SET", "a key", "", "say \"ü\" \\ ", "PX", "1"];
    assert_eq!(words(&line(&all)), all);
}
