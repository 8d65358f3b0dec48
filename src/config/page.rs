//! The page on all settings, made of the flags themselves.

use std::collections::HashSet;
use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::Cli;

const HEAD: &str = "# Settings

This page is made of the flags. `fencepost --help` says the same for your version.

Most flags are also environment variables. A flag wins over its variable. If a setting is wrong, `fencepost` does not start: it says in
one line what is wrong, and exits with 2. Only the [variables of OpenTelemetry](operations/metrics.md#traces) are not checked.

- A command reads the variables of its own flags, and no others. `check` also reads those of the gateway.
- A variable that is nearly the name of a setting ends the start of the gateway. A command says that it ignores such a one. Others that
  begin with `FENCEPOST_` are ignored without a word: Kubernetes makes some by itself.
- DURATION has a unit: `500ms`, `30s`, `2m`, `1h30m`. `m` is minutes, and `M` is refused.
- FILE is a path. HOST:PORT is an address or a name, and a port.
- A flag without a value is off unless you give it. Its variable is `true` or `false`, which may also be written as `yes`, `no`, `on`,
  `off`, `1` and `0`.
- A flag of the gateway must not be empty. Most empty variables are refused as well. An empty variable counts as not set if it is a
  switch, or one of these: `FENCEPOST_KEYS`, `FENCEPOST_AUDIT_LOG`, `FENCEPOST_METRICS_LISTEN`, `FENCEPOST_OTLP_ENDPOINT`,
  `FENCEPOST_ALLOW_HOST`, `FENCEPOST_CORS_ORIGIN`, `FENCEPOST_ONCE_MEMORY`, `FENCEPOST_REDIS_ACCEPT`,
  `FENCEPOST_SENTINEL_USER`, `FENCEPOST_SENTINEL_PASSWORD`, `FENCEPOST_CA_FILE`, `FENCEPOST_API_KEY_FILE` and `FENCEPOST_API_KEY`.
";

/// What is said of each command before its flags.
const COMMANDS: [(&[&str], &str); 8] = [
    (&["serve"], "The gateway. `fencepost` without a command does the same."),
    (&["run"], "[Run a command](run.md) while holding a lock. `KEY` is the name of the lock."),
    (&["once"], "[Run a command once](once-command.md). `KEY` is the name of the work."),
    (
        &["acquire"],
        "Take a lock for a script. The other [commands for a shell](shell.md) take those flags of these that concern them.",
    ),
    (&["break"], "End the grant of a lock that another client holds."),
    (
        &["check"],
        "Say what a store is, and what can be promised on it. It takes the flags of the [store](#store).",
    ),
    (&["key", "new"], "Make an [API key](access.md)."),
    (&["key", "list"], "List the keys of a file. `key revoke` takes `--keys` too."),
];

/// The page, in Markdown.
pub fn settings_page() -> String {
    let mut page = HEAD.to_owned();
    let mut told = HashSet::new();
    for (path, about) in COMMANDS {
        let mut command = Cli::command();
        for name in path {
            if let Some(found) = command.find_subcommand(name) {
                command = found.clone();
            }
        }
        // Writing to a text cannot fail.
        let _ = write!(page, "\n## fencepost {}\n\n{about}\n", path.join(" "));
        flags(&mut page, &command, &mut told);
    }
    page
}

/// Those of a command, by their topics. What another command has told of a variable is not told again.
fn flags(page: &mut String, command: &Command, told: &mut HashSet<String>) {
    let is_told = |arg: &Arg| arg.get_env().is_some_and(|name| told.contains(&*name.to_string_lossy()));
    let flags = command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set());
    let flags: Vec<&Arg> = flags.filter(|arg| !is_told(arg)).collect();
    let mut topics: Vec<Option<&str>> = Vec::new();
    for arg in &flags {
        if !topics.contains(&arg.get_help_heading()) {
            topics.push(arg.get_help_heading());
        }
    }
    for topic in topics {
        if let Some(topic) = topic {
            let _ = write!(page, "\n### {topic}\n");
        }
        page.push_str("\n| flag | variable | default | |\n|---|---|---|---|\n");
        for arg in flags.iter().filter(|arg| arg.get_help_heading() == topic) {
            page.push_str(&row(arg));
        }
    }
    told.extend(flags.iter().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())));
}

fn row(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let value = arg.get_value_names().into_iter().flatten().map(|name| format!(" {name}")).next();
    let flag = format!(
        "--{}{}",
        arg.get_long().unwrap_or_default(),
        value.filter(|_| takes_value).unwrap_or_default()
    );
    let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs: Vec<String> =
        help.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    // What no constant says stands behind the first sentence.
    let (mut first, mut default) = (paragraphs.remove(0), String::new());
    if let Some((before, rest)) = first.clone().split_once(" [default: ")
        && let Some((said, behind)) = rest.split_once(']')
    {
        (first, default) = (format!("{before}{behind}"), said.to_owned());
    }
    if let Some(value) = arg.get_default_values().first().filter(|_| takes_value) {
        default = format!("`{}`", value.to_string_lossy());
    }
    paragraphs.insert(0, first);
    let mut text = paragraphs
        .iter()
        .map(|text| format!("{}.", text.trim_end_matches('.')))
        .collect::<Vec<_>>()
        .join(" ");
    let values = if takes_value { arg.get_possible_values() } else { Vec::new() };
    for value in values.iter().filter(|value| !value.is_hide_set()) {
        let meaning = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        let _ = write!(text, "<br>`{}`{meaning}", value.get_name());
    }
    let cells = [format!("`{flag}`"), variable, default, text].map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}
