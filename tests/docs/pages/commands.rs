//! Commands that the pages name in passing, where no test pastes them.

use std::sync::LazyLock;

use clap::Parser;
use clap::error::ErrorKind;
use fencepost::config::Cli;
use pulldown_cmark::Event;
use regex::Regex;

use super::{pages, parse, snippets};

/// A word of a command, as a shell takes it.
const WORD: &str = r#""[^"\n]*"|'[^'\n]*'|[^\s|;&<>()#…\\`"']+"#;
/// Where the program is the command, and what it is given: up to where the shell is meant, or a comment begins.
static COMMAND: LazyLock<Regex> = LazyLock::new(|| {
    let before = r"^\s*|\$ |exec |\|\| |&& |; |\(|[*=] ?/usr/local/bin/|run: |- ";
    Regex::new(&format!("(?m)(?:{before})fencepost((?: +(?:{WORD}))*)")).unwrap()
});
static WORDS: LazyLock<Regex> = LazyLock::new(|| Regex::new(WORD).unwrap());
const LANGUAGES: [&str; 4] = ["bash", "console", "text", "yaml"];

/// Whether the program understands this, or more would have to follow.
fn is_understood(given: &str) -> bool {
    let words = WORDS.find_iter(given).map(|word| word.as_str().trim_matches(['"', '\'']));
    match Cli::try_parse_from(["fencepost"].into_iter().chain(words)) {
        Ok(_) => true,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion
            | ErrorKind::MissingRequiredArgument => true,
            // What stands for a value may be no value.
            ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
                given.contains('$')
                    || given.split_whitespace().last().is_some_and(|word| word.starts_with('-'))
            }
            _ => false,
        },
    }
}

#[test]
fn each_command_on_a_page_is_one_that_the_program_understands() {
    let (mut named, mut wrong) = (0, Vec::new());
    let mut look = |place: String, text: &str| {
        for found in COMMAND.captures_iter(text) {
            named += 1;
            if !is_understood(&found[1]) {
                wrong.push(format!("{place}: fencepost{}", &found[1]));
            }
        }
    };
    for snippet in snippets().iter().filter(|snippet| LANGUAGES.contains(&snippet.language.as_str())) {
        let is_command = |line: &&str| snippet.language != "console" || line.starts_with("$ ");
        let code = snippet.code.replace("\\\n", " ");
        look(snippet.place(), &code.lines().filter(is_command).collect::<Vec<_>>().join("\n"));
    }
    for page in pages() {
        for (event, range) in parse(&page.text) {
            if let Event::Code(text) = event {
                look(format!("{}:{}", page.name, page.line(range.start)), &text);
            }
        }
    }
    assert!(named > 60, "{named}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_with_a_mistake_is_noticed() {
    assert!(is_understood(" key new --name invoices --prefix invoice: --allow acquire"));
    assert!(!is_understood(" key new invoices --prefix invoice: --allow acquire"));
    assert!(!is_understood(" run --waits 5s k") && !is_understood(" locks"));
}
