//! Other versions of the program: what each of them leaves in a file and in Redis, and what its gateways say there. Each version
//! has recorded that of itself, in `tests/fixtures`, and every later one must get along with it.
//!
//! `RECORD_FIXTURES=1 cargo test --test stores versions::` records the version in `Cargo.toml`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

mod exchanges;
mod file;
mod letters;
mod notation;
mod quorum;
mod redis;
mod slots;
mod transcript;
mod upgrading;

/// What to do where the program is not what was recorded of it.
const ADVICE: &str = "
This build writes something else than what tests/fixtures has of its version, whose formats are frozen.
- If you did not mean that, undo it: gateways of both share a store while people upgrade and roll back.
- If you meant it, leave the fixtures of released versions alone: raise the version in Cargo.toml, and record that one:
  RECORD_FIXTURES=1 cargo test --test stores versions::
  A file of another layout needs a new Format in src/store/embedded/record.rs and a migration of the old one.
  In Redis, gateways of both versions must understand each other: `exchanges` and `letters` hold you to that, and so does
  `upgrading` with FENCEPOST_BEFORE=<the older program>.
  If they cannot, CHANGELOG.md says so under `Changed`, and docs/operations/upgrade.md what to do.
";

/// Every version that is recorded.
fn versions() -> Vec<String> {
    let all = std::fs::read_dir(place("")).unwrap();
    let mut all: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    assert!(all.iter().any(|version| version == "0.1.0"), "{all:?}");
    all
}

fn place(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version)
}

/// What is recorded of a version.
fn recorded(version: &str, name: &str) -> String {
    let file = place(version).join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}{ADVICE}", file.display()))
}

/// The version whose fixtures this build is held to: its own, or, until that is recorded, the last one.
fn own() -> String {
    let (number, _) = env!("CARGO_PKG_VERSION").split_once('-').unwrap_or((env!("CARGO_PKG_VERSION"), ""));
    if place(number).exists() || is_recording() { number.to_owned() } else { versions().pop().unwrap() }
}

/// Whether the tests were told to record what this build makes.
fn is_recording() -> bool {
    std::env::var_os("RECORD_FIXTURES").is_some()
}

/// Records what this build has made, if the tests were told to. Returns whether they were.
fn records(name: &str, made: &str) -> bool {
    if is_recording() {
        let file = place(&own()).join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, made).unwrap();
    }
    is_recording()
}

/// Holds what this build has made against what is recorded of its version, by the lines that are left of both.
fn hold_against(name: &str, made: &str, lines: impl Fn(&str) -> BTreeSet<String>) {
    if records(name, made) {
        return;
    }
    let (was, is) = (lines(&recorded(&own(), name)), lines(made));
    assert!(was == is, "{}", difference(name, &was, &is));
}

/// What is in one of both alone, and what to do about it.
fn difference(name: &str, was: &BTreeSet<String>, is: &BTreeSet<String>) -> String {
    let [gone, new] = [was.difference(is), is.difference(was)]
        .map(|lines| lines.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"));
    format!("{name}\nrecorded alone:\n{gone}\nnow alone:\n{new}\n{ADVICE}")
}
