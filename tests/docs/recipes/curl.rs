//! What the pages ask of `curl`: nothing that is younger than 7.76, which is the version of RHEL 9.

use std::collections::BTreeSet;

use crate::pages::snippets;

type Version = (u16, u16, u16);

const OLDEST: Version = (7, 76, 0);

/// Each option that a page uses: its long name, its letter, whether a value follows, and the first version that has it, as
/// curl's list `docs/options-in-versions` says.
const OPTIONS: &[(&str, Option<char>, bool, Version)] = &[
    ("cacert", None, true, (7, 5, 0)),
    ("config", Some('K'), true, (4, 10, 0)),
    ("connect-timeout", None, true, (7, 7, 0)),
    ("data", Some('d'), true, (4, 0, 0)),
    ("data-binary", None, true, (7, 2, 0)),
    ("data-urlencode", None, true, (7, 18, 0)),
    ("dump-header", Some('D'), true, (5, 7, 0)),
    ("fail", Some('f'), false, (4, 0, 0)),
    ("get", Some('G'), false, (7, 8, 1)),
    ("header", Some('H'), true, (5, 0, 0)),
    ("max-time", Some('m'), true, (4, 0, 0)),
    ("no-buffer", Some('N'), false, (6, 5, 0)),
    ("output", Some('o'), true, (4, 0, 0)),
    ("request", Some('X'), true, (6, 0, 0)),
    ("retry", None, true, (7, 12, 3)),
    ("retry-all-errors", None, false, (7, 71, 0)),
    ("show-error", Some('S'), false, (5, 9, 0)),
    ("show-headers", Some('i'), false, (4, 8, 0)),
    ("silent", Some('s'), false, (4, 0, 0)),
    ("speed-limit", Some('Y'), true, (4, 7, 0)),
    ("speed-time", Some('y'), true, (4, 7, 0)),
    ("write-out", Some('w'), true, (6, 5, 0)),
];
/// Each variable that a page has `curl` write, and the first version that knows it, as its manual says.
const VARIABLES: &[(&str, Version)] = &[
    ("content_type", (7, 9, 5)),
    ("http_code", (6, 5, 0)),
    ("url_effective", (6, 5, 0)),
    ("header", (7, 84, 0)),
];
/// What a function of a script is called that hands its arguments to `curl`.
const WRAPPER: &str = "call";

#[test]
fn the_pages_ask_nothing_of_curl_that_7_76_does_not_have() {
    let (mut asked, mut complaints) = (BTreeSet::new(), Vec::new());
    for snippet in snippets().iter().filter(|snippet| !snippet.page.is_old()) {
        let place = || snippet.place();
        for words in commands(&snippet.code) {
            for option in options(&words) {
                match OPTIONS.iter().find(|(name, letter, ..)| {
                    option == *name || letter.is_some_and(|letter| option == letter.to_string())
                }) {
                    Some((.., version)) if *version <= OLDEST => drop(asked.insert(option)),
                    Some((.., version)) => {
                        complaints.push(format!("{}: {option} needs {version:?}", place()))
                    }
                    None => complaints.push(format!("{}: the table lacks {option}: {words:?}", place())),
                }
            }
            for name in words.iter().flat_map(|word| variables(word)) {
                match VARIABLES.iter().find(|(known, _)| *known == name) {
                    Some((_, version)) if *version <= OLDEST => {}
                    Some((_, version)) => complaints.push(format!("{}: {name} needs {version:?}", place())),
                    None => complaints.push(format!("{}: the table lacks %{{{name}}}", place())),
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
    for option in ["K", "H", "G", "w", "data-urlencode", "X"] {
        assert!(asked.contains(option), "{option} is not seen: {asked:?}");
    }
}

/// Whatever a page tells a reader to paste, it asks for no key by itself, and for no key among the arguments.
#[test]
fn every_curl_of_a_recipe_reads_the_file_with_the_key() {
    let recipes = snippets().iter().filter(|snippet| snippet.page.name.starts_with("docs/recipes/"));
    for snippet in recipes.filter(|snippet| snippet.language == "bash") {
        for words in commands(&snippet.code).iter().filter(|words| words[0] == "curl") {
            let reads = words.windows(2).any(|pair| pair[0] == "-K" && pair[1].contains("_CURL:-/dev/null"));
            assert!(reads, "{}: {words:?}", snippet.place());
        }
    }
}

/// Each command that is `curl`, or hands its words to it: from its name on.
fn commands(code: &str) -> Vec<Vec<String>> {
    let all = simple_commands(code).into_iter();
    let curls = all.filter_map(|words| {
        let at = words.iter().position(|word| word == "curl" || word == WRAPPER)?;
        Some(words[at..].to_vec())
    });
    curls.collect()
}

/// The words of each simple command of a shell script.
fn simple_commands(code: &str) -> Vec<Vec<String>> {
    let (mut found, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let (mut quote, mut is_word) = (None, false);
    let mut characters = code.chars().peekable();
    while let Some(c) = characters.next() {
        let mut ends = false;
        match (quote, c) {
            (None, '\\') if characters.peek() == Some(&'\n') => {
                characters.next();
                ends = true;
            }
            (None | Some('"'), '\\') => word.extend(characters.next()),
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '"' | '\'') => (quote, is_word) = (Some(c), true),
            (None, '#') if word.is_empty() => while characters.next_if(|c| *c != '\n').is_some() {},
            (None, c) if c.is_whitespace() || ";|&()<>".contains(c) => ends = true,
            (None, c) => word.push(c),
        }
        if ends && (is_word || !word.is_empty()) {
            words.push(std::mem::take(&mut word));
            is_word = false;
        }
        if ends && ";|&()\n".contains(c) {
            found.push(std::mem::take(&mut words));
        }
    }
    words.push(word);
    found.push(words);
    found
}

/// The options among the words of a command, each by its long name or by its letter.
fn options(words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if let Some(name) = word.strip_prefix("--").filter(|name| !name.is_empty()) {
            let takes_value = OPTIONS.iter().any(|(known, _, takes, _)| *known == name && *takes);
            found.push(name.to_owned());
            words.by_ref().take(usize::from(takes_value)).for_each(drop);
        } else if let Some(letters) = word.strip_prefix('-') {
            for (at, letter) in letters.char_indices() {
                found.push(letter.to_string());
                let takes = OPTIONS.iter().any(|(_, known, takes, _)| *known == Some(letter) && *takes);
                if takes {
                    // The rest of the word is the value, or else the next word.
                    let is_next = at + letter.len_utf8() == letters.len();
                    words.by_ref().take(usize::from(is_next)).for_each(drop);
                    break;
                }
            }
        }
    }
    found
}

/// The names in what `-w` is given: `%{name}`, and `%name{what}`.
fn variables(word: &str) -> Vec<&str> {
    let all = word.split('%').skip(1);
    let named = all.filter_map(|rest| match rest.split_once('{')? {
        ("", rest) => rest.split_once('}').map(|(name, _)| name),
        (name, _) => name.chars().all(|c| c.is_ascii_lowercase()).then_some(name),
    });
    named.collect()
}

#[test]
fn options_are_found_wherever_they_stand() {
    let code = "x=$(curl -sS -o /dev/null -w '%{http_code}' \\\n  --max-time 5 -H @- \"$url\" <<<\"Lease-Token: $T\") # curl -Z\n\
        call -X PUT -d 'ttl=5s&wait=20s' | grep -q 'curl --json'; exec curl -sSNXPOST --data-urlencode \"key=--json\" \"$u\"\n";
    let found: Vec<_> = commands(code).iter().map(|words| options(words).join(" ")).collect();
    assert_eq!(found, ["s S o w max-time H", "X d", "s S N X data-urlencode"]);
    assert_eq!(variables("%header{fencing-token} 100% %{http_code}\\n"), ["header", "http_code"]);
    assert_eq!(options(&["curl".to_owned(), "--json".to_owned(), "-Z".to_owned()]), ["json", "Z"]);
}
