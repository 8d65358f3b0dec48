//! What the tests know of single snippets and pages: lists beside this file, read when the tests run.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use super::{ROOT, Snippet};

/// The lines of a list, each in so many parts.
fn list<const PARTS: usize>(name: &str) -> Vec<[String; PARTS]> {
    let text = fs::read_to_string(Path::new(ROOT).join("tests/docs/pages").join(name)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let parts = |line: &str| line.splitn(PARTS, " | ").map(str::to_owned).collect::<Vec<_>>();
    lines.map(|line| parts(line).try_into().unwrap_or_else(|_| panic!("{name}: {line}"))).collect()
}

/// Snippets that have a test of their own: the test, and the name of the snippet or its first line.
pub static BY_TEST: LazyLock<Vec<[String; 2]>> = LazyLock::new(|| list("by_test.txt"));

/// Snippets that are not run: page, reason, first line.
pub static NOT_RUN: LazyLock<Vec<[String; 3]>> = LazyLock::new(|| list("not_run.txt"));

/// Pages that are not written anew yet.
pub static STILL_OLD: LazyLock<Vec<[String; 1]>> = LazyLock::new(|| list("still_old.txt"));

/// Whether a snippet is saved under this name, or begins with this line where it has no name.
pub fn is_called(snippet: &Snippet, named: &str) -> bool {
    match &snippet.file {
        Some(file) => file == named,
        None => snippet.first_line() == named,
    }
}

/// The test of its own that a snippet has.
pub fn test_of(snippet: &Snippet) -> Option<&'static str> {
    BY_TEST.iter().find(|[_, named]| is_called(snippet, named)).map(|[test, _]| test.as_str())
}

pub fn is_of(snippet: &Snippet, [page, _, first_line]: &[String; 3]) -> bool {
    snippet.page.name == *page && snippet.first_line() == *first_line
}

pub fn is_not_run(snippet: &Snippet) -> bool {
    NOT_RUN.iter().any(|entry| is_of(snippet, entry))
}
