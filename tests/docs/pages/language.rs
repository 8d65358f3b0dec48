//! Plain English, as far as a program can tell: the length of sentences, one spelling, and words that make a reader stop.

use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Tag, TagEnd};

use super::{Page, ROOT, pages, parse};
use crate::internals::texts;

/// Twenty words are enough: half of the sentences of a page have no more, and none has twice as many.
const USUAL_WORDS: usize = 20;
const MOST_WORDS: usize = 40;

/// What makes a reader stop.
const RIDDLES: [&str; 8] = [
    "whoever",
    "whomever",
    "nobody",
    "such that",
    "so does one",
    "as ever",
    "of a sudden",
    "in so many words",
];
/// Words that the glossary has others for.
const RETIRED: [(&str, &str); 12] = [
    ("council", "quorum"),
    ("gossip", "peer bus"),
    ("fencing number", "fencing token"),
    ("fencing numbers", "fencing tokens"),
    ("take back", "roll back, or release"),
    ("taken back", "rolled back, or released"),
    ("takes back", "rolls back, or releases"),
    ("wait in line", "wait in the queue"),
    ("waits in line", "waits in the queue"),
    ("place in line", "position"),
    ("release mark", "tombstone"),
    ("hand-off", "the next grant"),
];

/// British forms that are not just an ending.
const BRITISH: &[&str] = &[
    "acknowledgement",
    "ageing",
    "amongst",
    "analogue",
    "artefact",
    "artefacts",
    "behaviour",
    "behaviours",
    "cancelled",
    "cancelling",
    "catalogue",
    "centre",
    "centred",
    "cheque",
    "colour",
    "coloured",
    "colours",
    "defence",
    "dialled",
    "favour",
    "favourite",
    "favours",
    "fulfil",
    "grey",
    "honour",
    "honoured",
    "honours",
    "judgement",
    "labelled",
    "labelling",
    "learnt",
    "licence",
    "licences",
    "marshalled",
    "metre",
    "metres",
    "misspelt",
    "modelled",
    "modelling",
    "neighbour",
    "neighbours",
    "offence",
    "plough",
    "practise",
    "programme",
    "programmes",
    "rumour",
    "signalled",
    "signalling",
    "spelt",
    "towards",
    "travelled",
    "travelling",
    "unlabelled",
    "whilst",
];
/// Verbs whose American form has a z.
const WITH_Z: &[&str] = &[
    "authoris",
    "capitalis",
    "categoris",
    "characteris",
    "customis",
    "emphasis",
    "finalis",
    "generalis",
    "initialis",
    "maximis",
    "minimis",
    "normalis",
    "optimis",
    "organis",
    "parametris",
    "prioritis",
    "randomis",
    "realis",
    "recognis",
    "serialis",
    "specialis",
    "standardis",
    "summaris",
    "synchronis",
    "tokenis",
    "utilis",
    "visualis",
    "analys",
];
const ENDINGS: [&str; 8] = ["e", "ed", "es", "er", "ers", "ing", "ation", "ations"];

fn is_british(word: &str) -> bool {
    let word = word.to_lowercase();
    let ends = |stem: &str| word.strip_prefix(stem).is_some_and(|ending| ENDINGS.contains(&ending));
    BRITISH.contains(&&*word) || WITH_Z.iter().filter(|_| word != "analyses").any(|stem| ends(stem))
}

/// The words of a text that are British, but for those that are names in a program.
fn british(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(|c: char| c.is_ascii_alphabetic()).map(|at| from + at) {
        let length = text[start..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len() - start);
        let word = &text[start..start + length];
        from = start + length;
        let (before, behind) = (text[..start].chars().next_back(), text[from..].chars().next());
        let is_part = |c: Option<char>| c.is_some_and(|c| c == '_' || c.is_ascii_digit());
        // A method, or a variant, of a library.
        let is_name =
            is_part(before) || is_part(behind) || matches!(before, Some('.' | ':')) || behind == Some('(');
        if !is_name && is_british(word) {
            found.push(word);
        }
    }
    found
}

/// A piece of text that stands for itself.
struct Block {
    line: usize,
    text: String,
    /// Whether it is made of sentences: no heading, and no cell of a table.
    is_prose: bool,
}

/// What a page says, without what stands between fences. A piece of code is one word.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::<Block>::new();
    let (mut is_code, mut is_prose, mut is_open) = (false, true, false);
    for (event, range) in parse(text) {
        let words = match event {
            Event::Start(Tag::CodeBlock(_)) => {
                (is_code, is_open) = (true, false);
                continue;
            }
            Event::End(TagEnd::CodeBlock) => {
                is_code = false;
                continue;
            }
            Event::Start(Tag::Heading { .. } | Tag::TableCell) => {
                (is_prose, is_open) = (false, false);
                continue;
            }
            Event::End(TagEnd::Heading(_) | TagEnd::TableCell) => {
                (is_prose, is_open) = (true, false);
                continue;
            }
            Event::Text(words) if !is_code => words.into_string(),
            Event::Code(_) => "`code`".to_owned(),
            Event::SoftBreak | Event::HardBreak => " ".to_owned(),
            Event::Start(
                Tag::Strong | Tag::Emphasis | Tag::Link { .. } | Tag::Image { .. } | Tag::Strikethrough,
            )
            | Event::End(
                TagEnd::Strong | TagEnd::Emphasis | TagEnd::Link | TagEnd::Image | TagEnd::Strikethrough,
            )
            | Event::InlineHtml(_) => continue,
            _ => {
                is_open = false;
                continue;
            }
        };
        if !is_open {
            let line = 1 + text[..range.start].matches('\n').count();
            blocks.push(Block { line, text: String::new(), is_prose });
            is_open = true;
        }
        blocks.last_mut().unwrap().text += &words;
    }
    blocks
}

/// The number of words of each sentence.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut sentence = Vec::new();
    for word in text.split_whitespace() {
        sentence.push(word);
        let bare = word.trim_end_matches([')', '"', '\'', '*', '”']);
        let is_short = ["e.g.", "i.e.", "etc.", "vs.", "cf."].iter().any(|short| bare.ends_with(short));
        if bare.ends_with(['.', '!', '?']) && !is_short {
            found.push(std::mem::take(&mut sentence));
        }
    }
    found.push(sentence);
    let count = |words: &[&str]| words.iter().filter(|word| word.contains(char::is_alphanumeric)).count();
    let found = found.into_iter().map(|words| (count(&words), words.join(" ")));
    found.filter(|(count, _)| *count > 0).collect()
}

/// Whether these words stand in a text one after the other.
fn says(text: &str, words: &str) -> bool {
    let text: String = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let is_end = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric());
    text.match_indices(words).any(|(at, _)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + words.len()..].chars().next())
    })
}

/// What is wrong with the words of a piece of text, and with the length of its sentences.
fn complaints_of(block: &Block, place: &str) -> Vec<String> {
    let riddles = RIDDLES.iter().filter(|words| says(&block.text, words));
    let retired = RETIRED.iter().filter(|(words, _)| says(&block.text, words));
    let long = sentences(&block.text).into_iter().filter(|(words, _)| block.is_prose && *words > MOST_WORDS);
    let mut complaints: Vec<_> = riddles.map(|words| format!("{place}: do not say {words:?}")).collect();
    complaints.extend(retired.map(|(words, now)| format!("{place}: for {words:?} say {now}")));
    complaints.extend(long.map(|(words, sentence)| format!("{place}: {words} words: {sentence}")));
    complaints
}

/// What is wrong with the language of a page.
fn complaints(page: &Page) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut lengths = Vec::new();
    for block in blocks(&page.text) {
        complaints.extend(complaints_of(&block, &format!("{}:{}", page.name, block.line)));
        let prose = sentences(&block.text).into_iter().filter(|_| block.is_prose);
        lengths.extend(prose.map(|(words, _)| words));
    }
    lengths.sort();
    if let Some(median) = lengths.get(lengths.len() / 2).filter(|median| **median > USUAL_WORDS) {
        complaints.push(format!("{}: half of the sentences have {median} words or more", page.name));
    }
    complaints
}

#[test]
fn pages_are_in_plain_english() {
    let new = pages().iter().filter(|page| !page.is_old());
    let complaints: Vec<_> = new.flat_map(complaints).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn everything_is_spelled_in_one_way() {
    let mut all = texts("src", &["rs", "lua", "js", "css", "html"]);
    for (folder, extensions) in [
        ("openapi", &["json"][..]),
        ("examples", &["py", "ts", "js", "mjs", "go", "md"]),
        ("docker", &["yaml", "yml", "json", "md"]),
    ] {
        all.extend(texts(folder, extensions));
    }
    for name in ["CHANGELOG.md", "Makefile", "benches/README.md"] {
        all.insert(name.to_owned(), fs::read_to_string(Path::new(ROOT).join(name)).unwrap());
    }
    all.extend(
        pages().iter().filter(|page| !page.is_old()).map(|page| (page.name.clone(), page.text.clone())),
    );
    let mut complaints = Vec::new();
    for (name, text) in &all {
        for (line, number) in text.lines().zip(1..) {
            complaints.extend(british(line).iter().map(|word| format!("{name}:{number}: {word}")));
        }
    }
    assert!(complaints.is_empty(), "American spelling, please: {complaints:#?}");
}

/// The comments of a source, each as one text.
fn comments(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::<(usize, String)>::new();
    let mut last = 0;
    for (line, number) in source.lines().zip(1..) {
        let line = line.trim_start();
        let text = ["///", "//!", "//"].iter().find_map(|start| line.strip_prefix(start));
        let Some(text) = text else { continue };
        match found.last_mut().filter(|_| last + 1 == number) {
            Some((_, before)) => *before = format!("{before}\n{}", text.strip_prefix(' ').unwrap_or(text)),
            None => found.push((number, text.strip_prefix(' ').unwrap_or(text).to_owned())),
        }
        last = number;
    }
    found
}

#[test]
fn comments_are_in_plain_english() {
    let mut complaints = Vec::new();
    for (name, source) in texts("src", &["rs"]) {
        for (line, comment) in comments(&source) {
            let place = format!("{name}:{line}");
            complaints.extend(blocks(&comment).iter().flat_map(|block| complaints_of(block, &place)));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn what_makes_a_reader_stop_is_found() {
    let page = |text: &str| Page { name: "a.md".to_owned(), text: text.to_owned() };
    let long = "word ".repeat(MOST_WORDS);
    assert_eq!(
        complaints(&page(&format!("# A\n\n{long}.\n\n- a `b c`.\n- d\n\n| {long} more |\n|---|\n"))),
        [""; 0]
    );
    assert_eq!(complaints(&page(&format!("- a\n- {long} more."))).len(), 2, "its length, and the median");
    assert_eq!(complaints(&page("Whoever asks.")).len(), 1);
    assert_eq!(complaints(&page("| a |\n|---|\n| it is taken\nback |\n")).len(), 0);
    assert_eq!(complaints(&page("The fencing number.")).len(), 1);
    assert_eq!(complaints(&page("Bossy `whoever`.\n\n```text\nnobody\n```")), [""; 0]);
    assert_eq!(sentences("One e.g. two. Three (four.) `five`.").len(), 3);
    assert_eq!(
        british("colour Behaviour cancelled is_cancelled x.cancelled() normalise, emphasis"),
        ["colour", "Behaviour", "cancelled", "normalise"]
    );
    let found = comments("//! A.\n\n/// B\n/// c.\nfn d() {} // e\n    // F.\n");
    assert_eq!(found, [(1, "A.".to_owned()), (3, "B\nc.".to_owned()), (6, "F.".to_owned())]);
}
