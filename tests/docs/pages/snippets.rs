//! Nothing between fences is left without a test, unless the list says why.

use std::collections::BTreeSet;

use clap::Parser;
use clap::error::ErrorKind;
use fencepost::config::Cli;

use super::{Snippet, all_text, lists, pages, pasted, snippets};
use crate::internals::Guards;

/// Languages whose snippets nobody pastes anywhere.
const SHOWN: [&str; 1] = ["text"];

#[test]
fn every_snippet_is_run_by_a_test() {
    let mut complaints = Vec::new();
    for snippet in snippets() {
        let ways = [pasted::is_run(snippet), lists::test_of(snippet).is_some(), lists::is_not_run(snippet)];
        let is_shown = SHOWN.contains(&&*snippet.language) && snippet.file.is_none();
        match ways.iter().filter(|way| **way).count() {
            1 => {}
            0 if is_shown => {}
            0 => complaints.push(format!("{}: no test runs it: {}", snippet.place(), snippet.first_line())),
            _ => {
                complaints.push(format!("{}: it is on two lists: {}", snippet.place(), snippet.first_line()))
            }
        }
    }
    assert!(complaints.is_empty(), "see the lists in tests/docs/pages: {complaints:#?}");
}

#[test]
fn the_lists_of_snippets_name_what_is_there() {
    let guards = Guards::read();
    let mut complaints = Vec::new();
    for [test, named] in &*lists::BY_TEST {
        if !snippets().iter().any(|snippet| lists::is_called(snippet, named)) {
            complaints.push(format!("no snippet is called, or begins with, {named:?}"));
        }
        if !guards.has_test(test) {
            complaints.push(format!("{named}: there is no test {test}"));
        }
    }
    for entry in &*lists::NOT_RUN {
        if !snippets().iter().any(|snippet| lists::is_of(snippet, entry)) {
            complaints.push(format!("{} has no snippet that begins with {:?}", entry[0], entry[2]));
        }
    }
    for [name] in &*lists::STILL_OLD {
        if !pages().iter().any(|page| page.name == *name) {
            complaints.push(format!("still_old.txt: there is no page {name}"));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// At the prompt of zsh a `#` begins no comment: `umask 077  # why` sets no umask there. A comment alone on its line only complains,
/// unless a quote in it goes on into the next line.
#[test]
fn a_command_to_paste_has_no_comment_that_a_shell_could_read() {
    // The page says that this one is for bash.
    let is_of_bash =
        |snippet: &Snippet| snippet.page.name == "docs/once.md" && snippet.code.starts_with("( ");
    let is_pasted = |snippet: &&Snippet| {
        snippet.file.is_none() && !is_of_bash(snippet) && matches!(&*snippet.language, "bash" | "console")
    };
    let is_read = |line: &&str| match line.split_once("# ") {
        Some((before, _)) if before.trim().is_empty() => line.contains('\''),
        Some((before, _)) => before.ends_with(' '),
        None => false,
    };
    let mut read = Vec::new();
    for snippet in snippets().iter().filter(is_pasted) {
        read.extend(snippet.code.lines().filter(is_read).map(|line| format!("{}: {line}", snippet.place())));
    }
    assert!(read.is_empty(), "{read:#?}");
}

/// A key of another gateway would go to what listens on this machine, without TLS.
#[test]
fn a_key_goes_to_the_gateway_that_the_variable_names() {
    let calls = snippets().iter().filter(|snippet| snippet.language == "bash").flat_map(|snippet| {
        let code = snippet.code.replace("\\\n", " ");
        code.lines().map(|line| (snippet.place(), line.to_owned())).collect::<Vec<_>>()
    });
    let has_key: Vec<_> = calls.filter(|(_, line)| line.contains(" -K ")).collect();
    assert!(has_key.len() > 10, "{has_key:#?}");
    for (place, line) in has_key {
        let elsewhere = line.replace("${FENCEPOST_URL-http://127.0.0.1:8080}", "");
        assert!(!elsewhere.contains("://"), "{place}: {line}");
    }
}

/// A value that was forgotten makes it empty. Each machine may have a gateway of its own, and all of them would do the work.
#[test]
fn an_empty_address_is_never_taken_for_that_of_the_own_machine() {
    let mut asking = 0;
    for snippet in snippets().iter().filter(|snippet| snippet.code.contains("FENCEPOST_URL")) {
        asking += usize::from(snippet.code.contains("${FENCEPOST_URL-http"));
        for form in ["FENCEPOST_URL:-", "if ($env:FENCEPOST_URL)"] {
            assert!(!snippet.code.contains(form), "{}: {form}", snippet.place());
        }
    }
    assert!(asking > 10, "{asking}");
}

/// A test that asks for a file by its name gets the one that the reader saves.
#[test]
fn no_two_snippets_are_saved_under_one_name() {
    let mut names = BTreeSet::new();
    for snippet in snippets().iter().filter(|snippet| !snippet.page.is_old()) {
        if let Some(name) = &snippet.file {
            assert!(names.insert(name), "{}: {name} is there twice", snippet.place());
        }
    }
}

#[test]
fn every_snippet_says_its_language() {
    for snippet in snippets() {
        let is_old = snippet.page.is_old();
        assert!(is_old || !snippet.language.is_empty(), "{}: {}", snippet.place(), snippet.first_line());
    }
}

/// What is shown is nothing to paste: that is run.
#[test]
fn no_command_hides_among_what_is_only_shown() {
    for snippet in snippets().iter().filter(|snippet| !snippet.page.is_old()) {
        let is_command =
            |line: &str| ["$ ", "curl ", "fencepost ", "sudo "].iter().any(|start| line.starts_with(start));
        let is_shown = SHOWN.contains(&&*snippet.language);
        assert!(!is_shown || !snippet.code.lines().any(is_command), "{}: {}", snippet.place(), snippet.code);
    }
}

/// Everybody on the machine can read arguments.
#[test]
fn no_snippet_gives_curl_a_secret_as_an_argument() {
    let texts = [all_text(), include_str!("../../../src/api/ui/page.js")];
    for line in texts.iter().flat_map(|text| text.lines()) {
        assert!(!shows_a_secret(line), "{line}");
    }
    for shown in [
        "curl -H 'Lease-Token: x' y",
        "curl --header \"Authorization: Bearer $K\" y",
        "curl -H\"lease-token: $T\" y",
        "curl --oauth2-bearer $K y",
        "curl -u me:$K y",
        "fencepost run --api-key $K",
    ] {
        assert!(shows_a_secret(shown), "{shown}");
    }
    for hidden in ["curl -H @- y <<<\"Lease-Token: $T\"", "curl -K \"$FENCEPOST_CURL\" y", "useradd -u 7 x"] {
        assert!(!shows_a_secret(hidden), "{hidden}");
    }
}

fn shows_a_secret(line: &str) -> bool {
    // Behind it stands what the standard input is.
    let line = line.split("<<<").next().unwrap().to_ascii_lowercase();
    let headers = line.split("--header").flat_map(|part| part.split("-h")).skip(1);
    let mut named = headers.map(|part| part.trim_start_matches([' ', '=', '"', '\'']));
    let is_secret =
        named.any(|header| header.starts_with("lease-token:") || header.starts_with("authorization:"));
    let other = ["--oauth2-bearer", "--api-key ", "curl -u ", "curl --user "];
    is_secret || other.iter().any(|option| line.contains(option))
}

/// A command that is not run is at least one that the program would read.
#[test]
fn commands_that_are_not_run_have_the_flags_that_they_name() {
    let snippets = snippets().iter().filter(|snippet| snippet.language == "console");
    let lines = snippets.flat_map(|snippet| snippet.code.lines().map(move |line| (snippet, line)));
    for (snippet, line) in lines {
        let Some(command) = line.strip_prefix("$ ").filter(|command| command.starts_with("fencepost")) else {
            continue;
        };
        let is_end = |word: &&str| !matches!(*word, ">" | "|" | "&" | "#" | "\\") && !word.starts_with('>');
        let words: Vec<_> = command.split_whitespace().take_while(is_end).collect();
        if let Err(error) = Cli::try_parse_from(words) {
            let is_wrong = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
            assert!(!is_wrong, "{}: {line}: {error}", snippet.place());
        }
    }
}

/// A snippet in the list of those that are not run says why.
#[test]
fn what_is_not_run_has_a_reason() {
    for [page, reason, first_line] in &*lists::NOT_RUN {
        assert!(reason.split(' ').count() >= 3, "{page}: {first_line}");
    }
    let is_not_run = |snippet: &&Snippet| lists::is_not_run(snippet);
    assert!(snippets().iter().filter(is_not_run).count() < snippets().len() / 2);
}
