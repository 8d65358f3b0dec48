//! The pages on the inside: each rule says what guards it, and that is there; and each word of the glossary has one meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// What a newcomer reads in one sitting.
const MOST_LINES: usize = 250;

/// A word that was used for something before the glossary had a word for it, and identifiers that may have it all the same.
type FormerWord = (&'static str, &'static [&'static str]);
const FORMER_WORDS: &[FormerWord] = &[
    ("audience", &[]),
    ("council", &[]),
    ("declines", &[]),
    ("errands", &[]),
    ("gossip", &[]),
    ("happening", &[]),
    ("heart", &[]),
    ("litter", &[]),
    ("lookout", &[]),
    ("pulse", &[]),
    ("pulses", &[]),
    ("radio", &[]),
    ("release mark", &[]),
    ("seat", &[]),
    ("seats", &[]),
    ("sight", &[]),
    ("sights", &[]),
    ("talk", &[]),
    ("together", &[]),
    ("tour", &[]),
    ("unusual", &[]),
    ("weather", &[]),
];

/// The texts of a folder and of those in it, by their paths in the project.
pub fn texts(folder: &str, extensions: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
                let name = path.strip_prefix(ROOT).unwrap().display().to_string();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// What guards rules, as far as the sources say it.
pub struct Guards {
    tests: BTreeMap<String, String>,
    sources: BTreeMap<String, String>,
}

impl Guards {
    pub fn read() -> Self {
        Self { tests: texts("tests", &["rs"]), sources: texts("src", &["rs"]) }
    }

    /// Whether there is a test of this name. Unit tests are named by the folder of `src` that they are in.
    pub fn has_test(&self, name: &str) -> bool {
        let Some((module, function)) = name.rsplit_once("::") else { return false };
        let path = module.replace("::", "/");
        // `limits::…` and `model::…` say the folder of `tests` too.
        let is_of = |file: &str| {
            let at = file.strip_prefix("tests/").and_then(|at| at.strip_suffix(".rs"));
            at.is_some_and(|at| at == path || at.split_once('/').is_some_and(|(_, at)| at == path))
        };
        let mut tests = self.tests.iter().filter(|(file, _)| is_of(file));
        let below = [format!("src/{path}.rs"), format!("src/{path}/")];
        let mut units =
            self.sources.iter().filter(|(file, _)| below.iter().any(|start| file.starts_with(start)));
        tests.any(|(_, text)| is_test(text, function)) || units.any(|(_, text)| is_test(text, function))
    }

    /// Whether a model has a mutant of this name.
    fn has_mutant(&self, name: &str) -> bool {
        let Some((model, mutant)) = name.split_once("::") else { return false };
        let files = [format!("tests/model/{model}.rs"), format!("tests/model/{model}/")];
        let of_model =
            self.tests.iter().filter(|(file, _)| files.iter().any(|start| file.starts_with(start)));
        let variants =
            of_model.filter_map(|(_, text)| text.split("enum Mutant {").nth(1)?.split("\n}").next());
        let mut lines = variants.flat_map(str::lines).map(str::trim);
        mutant != "None" && lines.any(|line| line.strip_suffix(',') == Some(mutant))
    }

    /// What is wrong with a page.
    fn complaints(&self, text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut rules = text.split("\n### ");
        let head = rules.next().unwrap_or_default();
        if !head.starts_with("# ") || !head.contains("\nThis page ") || !head.contains(" not ") {
            complaints.push("it does not begin with what it is about and what it is not".to_owned());
        }
        if text.lines().count() > MOST_LINES {
            complaints.push("it is too long for one sitting".to_owned());
        }
        let letter = text.split("\n### ").nth(1).and_then(|rule| rule.chars().next());
        for (rule, number) in rules.zip(1..) {
            let title = rule.lines().next().unwrap_or_default();
            let mut complain = |what: String| complaints.push(format!("{title}: {what}"));
            if !letter.is_some_and(|letter| {
                letter.is_ascii_uppercase() && title.starts_with(&format!("{letter}{number}. "))
            }) {
                complain("it has another number".to_owned());
            }
            let count = |start| rule.lines().filter(|line| line.starts_with(start)).count();
            if (count("Without it: "), count("Guarded by: ")) != (1, 1) {
                complain("it must say once what goes wrong without it, and once what guards it".to_owned());
            }
            for guard in rule
                .lines()
                .filter_map(|line| line.strip_prefix("Guarded by: "))
                .flat_map(|all| all.split(", "))
            {
                let (is_mutant, quoted) =
                    guard.strip_prefix("mutant ").map_or((false, guard), |name| (true, name));
                let name = quoted.strip_prefix('`').and_then(|name| name.strip_suffix('`'));
                let is_there = name
                    .is_some_and(|name| if is_mutant { self.has_mutant(name) } else { self.has_test(name) });
                if !is_there {
                    complain(format!("there is no {guard}"));
                }
            }
        }
        if letter.is_none() {
            complaints.push("it has no rules".to_owned());
        }
        complaints
    }
}

/// Whether a function is a test: by its attribute, or as one of those that a macro makes tests of.
fn is_test(text: &str, function: &str) -> bool {
    let is_marked = text.split_once(&format!("fn {function}(")).is_some_and(|(before, _)| {
        let above = before.lines().rev().map(str::trim).skip_while(|line| matches!(*line, "" | "async"));
        let mut attributes = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        attributes.any(|line| line == "#[test]" || line.starts_with("#[tokio::test"))
    });
    is_marked || made_by_macros(text).any(|name| name == function)
}

/// What stands between the brackets of macros that are called at the beginning of a line.
fn made_by_macros(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.split("!(").zip(text.split("!(").skip(1));
    let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| !is_part(c) && c != ':');
    let made =
        calls.filter(move |(before, _)| before.rsplit_once('\n').is_some_and(|(_, name)| is_name(name)));
    let inside = made.filter_map(|(_, behind)| behind.split(");").next());
    inside.flat_map(|inside| inside.split(|c| !is_part(c)))
}

/// Whether it may stand in a name.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn each_rule_names_what_guards_it_and_that_is_there() {
    let (guards, mut pages) = (Guards::read(), texts("docs/internals", &["md"]));
    let index = pages.remove("docs/internals/README.md").unwrap();
    let (mut complaints, mut letters) = (Vec::new(), BTreeSet::new());
    for (page, text) in &pages {
        complaints
            .extend(guards.complaints(text).into_iter().map(|complaint| format!("{page}: {complaint}")));
        let file = page.rsplit('/').next().unwrap();
        assert!(index.contains(&format!("[{file}]({file})")), "{page} is not on the index");
        let letter = text.split("\n### ").nth(1).and_then(|rule| rule.chars().next());
        assert!(letters.insert(letter), "{page}: rules of another page have the same letter");
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(pages.len() >= 8);
}

/// Whatever is taken from a page that is right, or is wrong on it, is missed.
#[test]
fn a_page_that_is_wrong_is_found() {
    let guards = Guards::read();
    let right = "# A page\n\nThis page is about this. It is not about that.\n\n### X1. A rule\nThis.\n\nWithout it: that.\n\n\
                 Guarded by: `recipes::a_secret_among_the_arguments_is_noticed`, `store_suite::marks_end`, mutant `line::NothingIsDeclined`\n";
    assert_eq!(guards.complaints(right), [""; 0]);
    for (from, to) in [
        ("It is not about that.", ""),
        ("This page", "That page"),
        ("X1.", "X2."),
        ("Without it: that.", ""),
        ("Guarded by:", "Watched by:"),
        ("recipes::a_secret", "recipes::no"),
        ("recipes::", "proxies::"),
        ("store_suite::marks_end", "store_suite::soon"),
        ("`store_suite::marks_end`", "store_suite::marks_end"),
        ("line::Nothing", "line::Something"),
        ("line::NothingIsDeclined", "quorum::NothingIsDeclined"),
        ("line::NothingIsDeclined", "line::None"),
        (", mutant `line", ", `line"),
        ("\n### X1. A rule", "\n"),
        ("This.", &"This.\n".repeat(MOST_LINES)),
    ] {
        assert!(right.contains(from), "{from}");
        assert_ne!(guards.complaints(&right.replace(from, to)), [""; 0], "{from} → {to}");
    }
    assert!(guards.has_test("store::what_is_undone_leaves_everything_as_it_was"));
    assert!(!guards.has_test("service::what_is_undone_leaves_everything_as_it_was"));
}

#[test]
fn the_pages_on_the_inside_are_found_from_the_code() {
    let map = fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).unwrap();
    assert!(map.contains("`docs/internals`") && map.contains("`docs/glossary.md`"));
}

/// The terms of a glossary, or what is wrong with it.
fn terms(glossary: &str) -> Result<Vec<String>, String> {
    let list = glossary.split("\n## ").next().unwrap_or_default();
    let mut terms = Vec::<String>::new();
    for entry in list.split("\n- ").skip(1) {
        let (term, meaning) = entry
            .strip_prefix("**")
            .and_then(|entry| entry.split_once("**: "))
            .ok_or_else(|| format!("no term: {entry}"))?;
        if meaning.trim().is_empty() || meaning.matches(". ").count() > 1 {
            return Err(format!("{term} is to be defined in one or two sentences"));
        }
        let term = term.to_lowercase();
        if terms.last().is_some_and(|before| *before >= term) {
            return Err(format!("{term} is not in its place, or there twice"));
        }
        terms.push(term);
    }
    Ok(terms)
}

#[test]
fn each_term_is_defined_once() {
    let glossary = fs::read_to_string(Path::new(ROOT).join("docs/glossary.md")).unwrap();
    let found = terms(&glossary).unwrap();
    for term in
        ["lock", "key", "lease", "attempt", "wait queue", "ticket", "tombstone", "quorum member", "peer bus"]
    {
        assert!(found.iter().any(|known| known == term), "{term} is missing");
    }
    for wrong in [
        "\n- a: b.",
        "\n- **a**: ",
        "\n- **b**: c.\n- **a**: c.",
        "\n- **a**: c.\n- **A**: c.",
        "\n- **a**: b. c. d.",
    ] {
        assert!(terms(wrong).is_err(), "{wrong}");
    }
}

/// The identifiers of a program, without what its comments and texts say.
fn identifiers(code: &str, comment: &str) -> BTreeSet<String> {
    let (mut found, mut rest) = (BTreeSet::new(), code);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            'r' if rest.starts_with("r#\"") => rest.find("\"#").map_or(rest.len(), |end| end + 2),
            _ if rest.starts_with(comment) => rest.find('\n').unwrap_or(rest.len()),
            '"' => end_of_text(rest, '"'),
            // In Rust it may be a lifetime.
            '\'' if comment == "--" || rest.chars().nth(2) == Some('\'') || rest[1..].starts_with('\\') => {
                end_of_text(rest, '\'')
            }
            _ if is_part(first) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        if rest[..length].chars().all(is_part) {
            found.insert(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    found
}

/// Where a text ends that begins here, its last quote included.
fn end_of_text(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote && !is_escaped {
            return at + c.len_utf8();
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    rest.len()
}

/// The words of an identifier, as in `take back` for `TakeBack`.
fn words(identifier: &str) -> String {
    let mut words = String::from(" ");
    for c in identifier.chars() {
        if c == '_' || c.is_uppercase() && words.ends_with(char::is_lowercase) {
            words.push(' ');
        }
        if c != '_' {
            words.extend(c.to_lowercase());
        }
    }
    words + " "
}

/// The identifiers, and names of files, that have a word of before.
fn former(sources: &BTreeMap<String, String>, former_words: &[FormerWord]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, code) in sources {
        let comment = if file.ends_with(".lua") { "--" } else { "//" };
        let stem = Path::new(file).file_stem().unwrap().to_string_lossy().into_owned();
        for identifier in identifiers(code, comment).into_iter().chain([stem]) {
            let words = words(&identifier);
            let has = |(word, exceptions): &&FormerWord| {
                words.contains(&format!(" {word} ")) && !exceptions.contains(&&*identifier)
            };
            found.extend(
                former_words.iter().find(has).map(|(word, _)| format!("{file}: {identifier} ({word})")),
            );
        }
    }
    found
}

#[test]
fn words_of_before_do_not_come_back() {
    let found = former(&texts("src", &["rs", "lua"]), FORMER_WORDS);
    assert!(found.is_empty(), "the glossary has other words for these: {found:#?}");
}

#[test]
fn a_word_of_before_is_found() {
    let one = |file: &str, code: &str| BTreeMap::from([(file.to_owned(), code.to_owned())]);
    let words: &[FormerWord] = &[("take back", &[]), ("gates", &["GATES"])];
    for (file, code) in [
        ("a.rs", "fn take_back_now() {}"),
        ("take_back.rs", ""),
        ("a.rs", "struct TakeBack;"),
        ("a.lua", "gates = 1"),
    ] {
        assert_eq!(former(&one(file, code), words).len(), 1, "{file}: {code}");
    }
    for (file, code) in [
        ("a.lua", "local GATES"),
        ("a.lua", "-- gates"),
        ("a.rs", "// gates"),
        ("a.rs", "\"gates\""),
        ("a.rs", "gatesby"),
    ] {
        assert_eq!(former(&one(file, code), words), [""; 0], "{file}: {code}");
    }
}

#[test]
fn identifiers_are_told_from_texts_and_comments() {
    let rust = "/// Council.\nfn take_it<'a>(x: &'a Talk) -> char { let s = \"gossip \\\" radio\"; r#\"line \"pulse\"\"#; '\"'; '\\''; HTTPServer } // heart";
    let found: Vec<_> = identifiers(rust, "//").into_iter().collect();
    assert_eq!(found, ["HTTPServer", "Talk", "a", "char", "fn", "let", "s", "take_it", "x"]);
    let lua = "local GATES = KEYS[1] -- gates\nredis.call('HGET', \"line\")";
    let found: Vec<_> = identifiers(lua, "--").into_iter().collect();
    assert_eq!(found, ["1", "GATES", "KEYS", "call", "local", "redis"]);
    assert_eq!(words("takes_BackNow"), " takes back now ");
}
