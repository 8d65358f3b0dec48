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
