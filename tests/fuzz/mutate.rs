//! Changes what the corpus holds, as random bytes say: random bytes alone are hardly ever like anything that is sent.

use std::path::Path;

/// What most of the code looks for.
const WORDS: [&str; 48] = [
    "%2F",
    "%2f",
    "%25",
    "%",
    "%zz",
    "%00",
    "%C3%BC",
    "+",
    "&",
    "=",
    "?",
    "#",
    "/",
    "..",
    "//",
    "key=",
    "ttl=",
    "wait=0s",
    "owner=",
    "max_hold=",
    "min_hold=",
    "force=true",
    "fencing_token=",
    "limit=",
    "cursor=",
    "prefix=",
    "30s",
    "1h30m",
    "99999999999999999999d",
    "500ms",
    "0s",
    "\n",
    "\r\n",
    "\0",
    "\u{202e}",
    "[[key]]\n",
    "\"",
    "KEY",
    "ours/",
    "Bearer ",
    "\n\n",
    "{\"",
    "}",
    "null",
    "\\u0000",
    "\\ud800",
    "1e9",
    "LOCK ",
];
/// The most changes of one input.
const MOST_CHANGES: usize = 12;

/// The committed inputs of a target.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/__fuzz__").join(target).join("corpus");
    let files = std::fs::read_dir(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    // So that the same random bytes make the same input everywhere.
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// One of the corpus, changed as these bytes say.
pub fn change(corpus: &[Vec<u8>], program: &[u8]) -> Vec<u8> {
    let mut program = program.iter().map(|byte| usize::from(*byte));
    let mut next = || program.next();
    let mut input = corpus[next().unwrap_or(0) % corpus.len()].clone();
    for _ in 0..MOST_CHANGES {
        let (Some(what), Some(high), Some(low), Some(choice)) = (next(), next(), next(), next()) else {
            break;
        };
        let at = (high << 8 | low) % (input.len() + 1);
        let end = (at + choice % 32).min(input.len());
        match what % 6 {
            0 => input.insert(at, choice as u8),
            1 if at < input.len() => input[at] = choice as u8,
            2 => drop(input.drain(at..end)),
            3 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            4 => {
                let other = &corpus[choice % corpus.len()];
                input.truncate(at);
                input.extend_from_slice(&other[at.min(other.len())..]);
            }
            _ => drop(input.splice(at..at, WORDS[choice % WORDS.len()].bytes())),
        }
    }
    input
}

/// Tries an input, and shows it where that fails.
pub fn shown(input: &[u8], property: impl Fn(&[u8])) {
    struct Shown<'a>(&'a [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was \"{}\"", self.0.escape_ascii());
            }
        }
    }
    let shown = Shown(input);
    property(shown.0);
}
