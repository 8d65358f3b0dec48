//! Characters that a reader of a log or a terminal could not see, or that would deceive the reader. They are written as
//! escapes.

use std::fmt::Write;

use unicode_general_category::GeneralCategory::{
    Control, Format, LineSeparator, ParagraphSeparator, SpaceSeparator,
};
use unicode_general_category::get_general_category;

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A JSON object. The ASCII characters that need escapes have them already.
    Json,
    /// Text for people.
    Text,
    /// Text for a terminal. Its colors are made by characters that cannot be seen.
    Colored,
}

/// Appends a line that ends with its newline. These characters are written as their numbers: those that cannot be seen,
/// that change the direction of the text, or that end a line for some readers.
pub fn push_escaped(text: &mut String, line: &str, form: Form) {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let is_plain = |byte: u8| byte.is_ascii() && (form != Form::Text || !byte.is_ascii_control());
    if line.bytes().all(is_plain) {
        text.push_str(line);
    } else {
        line.chars().for_each(|c| push(text, c, form));
    }
    text.push('\n');
}

/// The same as a text of its own.
pub fn escaped(line: &str, form: Form) -> String {
    let mut text = String::new();
    push_escaped(&mut text, line, form);
    text
}

fn push(text: &mut String, c: char, form: Form) {
    match form {
        _ if !is_unseen(c) => text.push(c),
        Form::Json if c.is_ascii() => text.push(c),
        Form::Colored if c.is_ascii() => text.push(c),
        Form::Json => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
        Form::Text | Form::Colored => text.extend(c.escape_default()),
    }
}

/// A text that others have chosen, in quotes, as a line for people has it.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        push(&mut quoted, c, Form::Text);
    }
    quoted + "\""
}

/// The same for a table: only what could be taken for something else there has quotes.
pub fn cell(text: &str) -> String {
    let is_plain = |c: char| !is_unseen(c) && !matches!(c, ' ' | '"' | '\\');
    let is_word = !text.is_empty() && !text.starts_with(['-', '(']) && text.chars().all(is_plain);
    if is_word { text.to_owned() } else { quoted(text) }
}

/// The same characters as on the page for people: those without a shape of their own.
fn is_unseen(c: char) -> bool {
    match get_general_category(c) {
        Control | Format | LineSeparator | ParagraphSeparator => true,
        SpaceSeparator => c != ' ',
        // Letters, marks and signs that are empty, or that programs leave out if they do not know them.
        _ => matches!(
            c,
            '\u{34f}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{17b4}'
                | '\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{2065}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffc}'
                | '\u{16fe4}'
                | '\u{1d159}'
                | '\u{e0000}'..='\u{e0fff}'
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_escaped_and_reads_back() {
        let seen = "a b{\"백업 שלום café\"} 😀\u{301}";
        let unseen =
            "\u{202e}\u{2028}\u{2029}\u{85}\u{a0}\u{200b}\u{feff}\u{34f}\u{2800}\u{fe0f}\u{e0041}\u{e0100}";
        for form in [Form::Json, Form::Text, Form::Colored] {
            assert_eq!(escaped(&format!("{seen}\n"), form), format!("{seen}\n"));
            assert!(escaped(unseen, form).is_ascii(), "{}", escaped(unseen, form));
        }
        let json = escaped(&format!("\"{unseen}\"\n"), Form::Json);
        assert_eq!(serde_json::from_str::<String>(&json).ok().as_deref(), Some(unseen));
        assert_eq!(escaped("\u{202e}\n", Form::Text), "\\u{202e}\n");
    }

    #[test]
    fn what_others_have_chosen_cannot_pass_for_anything_else_in_a_line_of_text() {
        assert_eq!(quoted("a \"b\" \\ \u{1b}[2J\u{202e}"), r#""a \"b\" \\ \u{1b}[2J\u{202e}""#);
        for plain in ["ci/deploy", "백업", "a:b.c-d"] {
            assert_eq!(cell(plain), plain);
        }
        for odd in ["", "a b", "-", "(kept)", "a\\u{1b}", "a\tb", "\u{1b}[31mred"] {
            assert!(cell(odd).starts_with('"'), "{odd:?}");
            assert!(!cell(odd).contains(char::is_control), "{odd:?}");
        }
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(escaped("a\nb\r\u{1b}[2J\n", Form::Text), "a\\nb\\r\\u{1b}[2J\n");
        assert_eq!(escaped("\u{1b}[2ma\u{1b}[0m\n", Form::Colored), "\u{1b}[2ma\u{1b}[0m\n");
    }
}
