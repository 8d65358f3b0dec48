//! The page on settings is what the program says of its flags.

use std::collections::BTreeSet;

use clap::CommandFactory;
use fencepost::config::{Cli, settings_page};
use regex::Regex;

use super::pages;

#[test]
fn settings_page_is_the_flags() {
    let page = pages().iter().find(|page| page.name == "docs/settings.md").unwrap();
    assert_eq!(page.text, settings_page(), "write it anew with `make settings`");
}

#[test]
fn each_flag_of_each_command_is_on_the_page_with_its_variable() {
    let page = settings_page();
    let mut count = 0;
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
                continue;
            };
            let variable =
                arg.get_env().map(|name| format!("| `{}` |", name.to_str().unwrap())).unwrap_or_default();
            let has_row = |line: &str| line.contains(&format!("`--{long}")) && line.contains(&variable);
            assert!(page.lines().any(has_row), "--{long}");
            count += 1;
        }
        commands.extend(command.get_subcommands().cloned());
    }
    assert!(count > 70, "{count}");
}

#[test]
fn each_variable_that_a_page_names_is_read() {
    let name = Regex::new("FENCEPOST_[A-Z0-9_]+").unwrap();
    // Two that no flag stands for, and one of the tests.
    let mut read: BTreeSet<_> =
        ["FENCEPOST_API_KEY", "FENCEPOST_CURL", "FENCEPOST_BEFORE"].map(str::to_owned).into();
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        let names = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
        read.extend(names.map(str::to_owned));
        commands.extend(command.get_subcommands().cloned());
    }
    for page in pages() {
        for named in name.find_iter(&page.text) {
            assert!(
                read.contains(named.as_str()),
                "{}:{}: {}",
                page.name,
                page.line(named.start()),
                named.as_str()
            );
        }
    }
}

/// `-h` fits on a screen: what needs more words is said by `--help`.
#[test]
fn the_first_sentence_of_each_flag_is_short() {
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        for arg in command.get_arguments() {
            let short = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let sentence = short.split(" [default: ").next().unwrap();
            assert!(!short.is_empty() || arg.get_long().is_none(), "{}", arg.get_id());
            assert!(sentence.split_whitespace().count() <= 20, "{}: {short}", arg.get_id());
        }
        commands.extend(command.get_subcommands().cloned());
    }
}
