//! The book as a whole: how long its pages are, and that its table of contents has all of them.

use std::collections::BTreeMap;
use std::path::Path;

use pulldown_cmark::{Event, Tag};

use super::{ROOT, pages, parse};

pub const SUMMARY: &str = "docs/SUMMARY.md";
/// What is read in one sitting.
const LONGEST_PAGE: usize = 300;
const LONGEST_README: usize = 200;

#[test]
fn no_page_is_too_long() {
    for page in pages() {
        let longest = if page.name == "README.md" { LONGEST_README } else { LONGEST_PAGE };
        let lines = page.text.lines().count();
        assert!(lines <= longest, "{} has {lines} lines", page.name);
    }
}

/// What has more is cut off, also behind a bar between backticks.
#[test]
fn each_row_of_a_table_has_as_many_cells_as_its_head() {
    let cells = |row: &str| row.replace("\\|", "").matches('|').count();
    for page in pages() {
        for (event, range) in parse(&page.text) {
            if event == Event::Start(Tag::TableRow) {
                let row = page.text[range.clone()].trim_end();
                let head = page.text[..range.start].rsplit("\n\n").next().unwrap();
                let head = head.lines().next().unwrap();
                assert_eq!(cells(row), cells(head), "{}:{}", page.name, page.line(range.start));
            }
        }
    }
}

#[test]
fn the_table_of_contents_names_each_page_once() {
    let summary = pages().iter().find(|page| page.name == SUMMARY).unwrap();
    let mut counts = BTreeMap::new();
    for (event, _) in parse(&summary.text) {
        if let Event::Start(Tag::Link { dest_url, .. }) = event {
            *counts.entry(format!("docs/{dest_url}")).or_insert(0) += 1;
        }
    }
    let there: Vec<_> = pages().iter().filter(|page| page.is_of_the_book()).collect();
    for page in &there {
        assert_eq!(counts.remove(&page.name), Some(1), "{SUMMARY} must name {} once", page.name);
    }
    assert!(counts.is_empty(), "{SUMMARY} names what is not there: {counts:#?}");
}

#[test]
fn every_page_begins_with_its_title() {
    for page in pages() {
        assert!(page.text.starts_with("# "), "{}", page.name);
    }
}

/// A picture, or a file to copy, that a page of the book shows must be beside it when the book is built.
#[test]
fn the_book_is_made_of_the_folder_with_the_pages() {
    let settings = std::fs::read_to_string(Path::new(ROOT).join("book.toml")).unwrap();
    for line in ["src = \"docs\"", "build-dir = \"target/book/docs\"", "create-missing = false"] {
        assert!(settings.lines().any(|ours| ours == line), "book.toml must say {line}");
    }
}
