//! The README and the book: what they hold, as the tests see it. They are read when the tests run, so a change of a page
//! needs no build.
//!
//! - A ```` ```bash ```` snippet is pasted into a shell: [`pasted`] runs those of each page.
//! - A snippet with `file=NAME` is saved under that name: a test of its own uses it, which `pages/by_test.txt` names.
//! - A ```` ```console ```` snippet is commands behind `$ `, and what they print.
//! - A ```` ```text ```` snippet is output or syntax.
//! - What cannot be run stands in `pages/not_run.txt`, with the reason.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

mod book;
mod commands;
mod language;
mod links;
mod lists;
mod named;
mod pasted;
mod settings;
mod shell;
mod snippets;

pub use shell::{Said, Shell};

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");
pub const DOCUMENTED_ADDRESS: &str = "127.0.0.1:8080";

/// A page for people, by its path in the project.
pub struct Page {
    pub name: String,
    pub text: String,
}

impl Page {
    /// Whether it still waits to be written anew.
    pub fn is_old(&self) -> bool {
        lists::STILL_OLD.iter().any(|[name]| *name == self.name)
    }

    pub fn is_of_the_book(&self) -> bool {
        self.name.starts_with("docs/") && self.name != book::SUMMARY
    }

    /// The line at this place in the text, counted from 1.
    pub fn line(&self, offset: usize) -> usize {
        1 + self.text[..offset].matches('\n').count()
    }
}

/// What a page has between fences.
pub struct Snippet {
    pub page: &'static Page,
    /// Where it begins in the page.
    pub line: usize,
    pub language: String,
    /// The name that it is saved under.
    pub file: Option<String>,
    pub code: String,
    /// What is said just before it and behind it, itself included.
    pub vicinity: &'static str,
}

impl Snippet {
    pub fn first_line(&self) -> &str {
        self.code.lines().next().unwrap_or_default().trim()
    }

    pub fn place(&self) -> String {
        format!("{}:{}", self.page.name, self.line)
    }
}

static PAGES: LazyLock<Vec<Page>> = LazyLock::new(|| {
    let mut names = vec!["README.md".to_owned()];
    names.extend(["CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    names.retain(|name| Path::new(ROOT).join(name).exists());
    let mut in_docs = Vec::new();
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                in_docs.push(path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    in_docs.sort();
    names.extend(in_docs);
    let read = |name: String| Page { text: fs::read_to_string(Path::new(ROOT).join(&name)).unwrap(), name };
    let mut pages: Vec<_> = names.into_iter().map(read).collect();
    // What was written anew is found first.
    pages.sort_by_key(Page::is_old);
    pages
});

static SNIPPETS: LazyLock<Vec<Snippet>> = LazyLock::new(|| pages().iter().flat_map(snippets_of).collect());

/// All pages.
pub fn pages() -> &'static [Page] {
    &PAGES
}

/// All that stands between fences on all pages.
pub fn snippets() -> &'static [Snippet] {
    &SNIPPETS
}

/// Reads a page as those do who show it.
pub fn parse(text: &str) -> impl Iterator<Item = (Event<'_>, std::ops::Range<usize>)> {
    let extensions = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_GFM;
    Parser::new_ext(text, extensions).into_offset_iter()
}

/// How much of a page is near a snippet.
const NEAR: usize = 700;

fn snippets_of(page: &'static Page) -> Vec<Snippet> {
    let (mut found, mut open) = (Vec::new(), false);
    for (event, range) in parse(&page.text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let mut words = info.split_whitespace();
                let language = words.next().unwrap_or_default().to_owned();
                let file = words.find_map(|word| word.strip_prefix("file=")).map(str::to_owned);
                let text = &page.text;
                let (from, to) = (range.start.saturating_sub(NEAR), (range.end + NEAR).min(text.len()));
                let vicinity = &text[text.ceil_char_boundary(from)..text.floor_char_boundary(to)];
                let line = page.line(range.start);
                found.push(Snippet { page, line, language, file, code: String::new(), vicinity });
                open = true;
            }
            Event::Text(text) if open => found.last_mut().unwrap().code += &text,
            Event::End(TagEnd::CodeBlock) => open = false,
            _ => {}
        }
    }
    found
}

/// The snippet that is saved under this name.
pub fn file(name: &str) -> String {
    let found = snippets().iter().find(|snippet| snippet.file.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no snippet is called {name}")).code.clone()
}

/// The first snippet in this language that holds this text.
pub fn snippet(language: &str, containing: &str) -> &'static str {
    let mut all = snippets().iter().filter(|snippet| snippet.language == language);
    let found = all.find(|snippet| snippet.code.contains(containing));
    &found.unwrap_or_else(|| panic!("no {language} snippet holds {containing:?}")).code
}

/// What all pages say.
pub fn all_text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| pages().iter().map(|page| page.text.as_str()).collect());
    &TEXT
}
