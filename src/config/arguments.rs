//! The arguments of the program, and one line for each way in which they can be wrong.

use std::any::TypeId;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::num::{ParseFloatError, ParseIntError};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::environment::all_flags;
use super::{Action, Cli, SettingsError};

/// What was given, to be said again in an error.
pub struct Given {
    command: Command,
    matches: ArgMatches,
}

/// Reads the arguments and the environment.
pub fn read_arguments() -> Result<(Action, Given), clap::Error> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let mut command = without_strange_variables(Cli::command(), &arguments);
    let matches = command.try_get_matches_from_mut(&arguments);
    let matches = matches.map_err(|error| match unreadable_variable(&command, &arguments) {
        Some(variable) if error.kind() == ErrorKind::InvalidUtf8 => {
            let problem =
                format!("the variable {variable} is not UTF-8: give it another value, or remove it");
            command.error(ErrorKind::InvalidUtf8, problem)
        }
        _ => error,
    })?;
    let action = Cli::from_arg_matches(&matches)?.into_command();
    let mut given = innermost(command, matches);
    let is_of_gateway = matches!(action, Action::Serve(_) | Action::Check(_));
    // An empty owner or prefix means something to a client.
    given.refuse_empty(|flag| is_of_gateway || ["ca-file", "api-key-file"].contains(&flag))?;
    Ok((action, given))
}

/// The flags of the gateway stand above all commands. A variable of theirs must not end a job that has no such flag, nor one that has it
/// written down. `check` reads the others too: it is about the variables of a gateway.
fn without_strange_variables(command: Command, arguments: &[OsString]) -> Command {
    let Some(named) = arguments.get(1).and_then(|word| command.find_subcommand(word)) else { return command };
    let is_check = named.get_name() == "check";
    let own: Vec<_> = named.get_arguments().map(|flag| flag.get_id().clone()).collect();
    command.mut_args(|flag| match is_check && !own.contains(flag.get_id()) {
        true => flag,
        false => flag.env(None::<&str>),
    })
}

/// The first variable that is read as a text and is not UTF-8; none where an argument may be what is wrong.
fn unreadable_variable(command: &Command, arguments: &[OsString]) -> Option<String> {
    let words = arguments.get(1..)?;
    if words.iter().take_while(|word| *word != "--").any(|word| word.to_str().is_none()) {
        return None;
    }
    let mut named = command;
    for word in words {
        let Some(inner) = named.find_subcommand(word) else { break };
        named = inner;
    }
    let is_text = |flag: &&Arg| flag.get_value_parser().type_id() != TypeId::of::<PathBuf>();
    let flags = command.get_arguments().chain(named.get_arguments());
    let mut variables = flags.filter(is_text).filter_map(Arg::get_env);
    let unreadable =
        variables.find(|name| std::env::var_os(name).is_some_and(|value| value.to_str().is_none()));
    unreadable.map(|variable| variable.to_string_lossy().into_owned())
}

/// The command that was named, of those within each other.
fn innermost(command: Command, mut matches: ArgMatches) -> Given {
    if let Some((name, within)) = matches.remove_subcommand()
        && let Some(inner) = command.find_subcommand(&name)
    {
        return innermost(inner.clone(), within);
    }
    Given { command, matches }
}

impl Given {
    /// Of these flags, where they were written down, an empty value was meant to be another: `--keys "$KEYS"` must not serve everybody.
    fn refuse_empty(&mut self, are_these: impl Fn(&str) -> bool) -> Result<(), clap::Error> {
        let is_empty = |id: &str| {
            self.matches.value_source(id) == Some(ValueSource::CommandLine)
                && self.matches.get_raw(id).is_some_and(|mut values| values.any(|value| value.is_empty()))
        };
        let flags = self.command.get_arguments().filter(|flag| is_empty(flag.get_id().as_str()));
        let Some(flag) = flags.filter_map(Arg::get_long).find(|flag| are_these(flag)) else { return Ok(()) };
        let problem = format!("--{flag} is empty: give it a value, or leave it out");
        Err(self.command.error(ErrorKind::InvalidValue, problem))
    }

    /// An error with what was given for its flag, unless that says so already or may hold a secret, and with the variable that has it.
    pub fn explain(&self, error: &SettingsError) -> String {
        let said = error.to_string();
        let argument = self.argument(error.flag());
        let given = argument.and_then(|argument| self.value_of(argument));
        let said = match given {
            Some(given) if !said.contains(&given) => format!("{said} (given: {given})"),
            _ => said,
        };
        let variable = argument.filter(|argument| {
            self.matches.value_source(argument.get_id().as_str()) == Some(ValueSource::EnvVariable)
        });
        in_variable(said, variable.and_then(Arg::get_env))
    }

    fn argument(&self, flag: &str) -> Option<&Arg> {
        let name = flag.strip_prefix("--")?;
        self.command.get_arguments().find(|argument| argument.get_long() == Some(name))
    }

    fn value_of(&self, argument: &Arg) -> Option<String> {
        let id = argument.get_id().as_str();
        let is_given = self.matches.value_source(id)? != ValueSource::DefaultValue;
        // That a switch is on is no news.
        if argument.is_hide_env_values_set() || !is_given || !argument.get_action().takes_values() {
            return None;
        }
        let values =
            self.matches.get_raw(id)?.map(|value| value.to_string_lossy().escape_debug().to_string());
        let values = values.collect::<Vec<_>>().join(",");
        (!values.is_empty() && !may_be_secret(&values)).then_some(values)
    }
}

/// Whether what was put in the wrong place may hold a password or an API key.
fn may_be_secret(value: &str) -> bool {
    value.contains("://") || value.contains('@') || value.trim_start_matches('\'').starts_with("fp_")
}

/// A line with the variable in which stands what is wrong, if it is one.
fn in_variable(line: String, variable: Option<&OsStr>) -> String {
    match variable {
        Some(variable) => format!("{line} (in the variable {})", variable.to_string_lossy()),
        None => line,
    }
}

/// What is wrong with arguments that could not be read, in one line that says what to write.
pub fn explain_arguments(error: &clap::Error) -> String {
    let text = error.to_string();
    let first_paragraph = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let usage = told(error, ContextKind::Usage).unwrap_or_default();
    let runs = ["run", "once"].into_iter().find(|name| usage.contains(&format!("fencepost {name}")));
    let wrong = told(error, ContextKind::InvalidArg).unwrap_or_default();
    let variable = wrong_variable(error);
    if let Some(variable) = &variable
        && told(error, ContextKind::InvalidValue).is_some_and(|value| value.is_empty())
    {
        let variable = variable.to_string_lossy();
        return format!("the variable {variable} is empty: give it a value, or remove it");
    }
    let line = match error.kind() {
        ErrorKind::ArgumentConflict if is_stray_word(error) => {
            let word = told(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            format!(
                "the word '{word}' is no command and no flag: write a value and its unit as one word, such as 5m"
            )
        }
        ErrorKind::InvalidSubcommand => {
            let all = Cli::command();
            let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
            let commands: Vec<_> = shown.map(|command| command.get_name()).collect();
            format!("{first_paragraph}: the commands are {}", commands.join(", "))
        }
        ErrorKind::UnknownArgument if let Some(flag) = flag_before_negative(&wrong) => {
            format!("{flag}: must not be below 0")
        }
        ErrorKind::UnknownArgument
            if let Some(name) = runs
                && (!wrong.starts_with('-') || error.get(ContextKind::SuggestedArg).is_none()) =>
        {
            let advice = format!("write -- in front of the command, as in fencepost {name} KEY -- COMMAND");
            format!("{first_paragraph}: {advice}")
        }
        // The library has noticed that it could be a value.
        ErrorKind::UnknownArgument if runs.is_none() && error.get(ContextKind::Suggested).is_some() => {
            format!("{first_paragraph}: if it is the name of a lock, write -- in front of it")
        }
        ErrorKind::MissingRequiredArgument if let Some(name) = runs => {
            let advice = format!("write -- in front of the command, as in fencepost {name} KEY -- COMMAND");
            format!("{first_paragraph}: {advice}")
        }
        ErrorKind::ValueValidation => {
            let cause = error.source();
            let is_number =
                cause.is_some_and(|cause| cause.is::<ParseIntError>() || cause.is::<ParseFloatError>());
            match (cause, is_number) {
                (Some(cause), true) => {
                    first_paragraph.replace(&cause.to_string(), "write a number without a unit, such as 1000")
                }
                _ => first_paragraph.replace("..=", " to "),
            }
        }
        _ => first_paragraph.to_owned(),
    };
    let meant = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let meant = meant.into_iter().find_map(|kind| told(error, kind));
    let line = match meant {
        Some(meant) => format!("{line}; did you mean {meant}?"),
        None => line,
    };
    let line = in_variable(line, variable.as_deref());
    let words = line.split_whitespace().map(|word| if may_be_secret(word) { "'…'" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// The variable that has the value that is wrong, if no flag has it. Files of variables often have a line for each setting.
fn wrong_variable(error: &clap::Error) -> Option<OsString> {
    let (argument, value) = (told(error, ContextKind::InvalidArg)?, told(error, ContextKind::InvalidValue)?);
    let flag = argument.split(' ').next()?.strip_prefix("--")?;
    let is_given = arguments()
        .any(|given| given.split('=').next().and_then(|given| given.strip_prefix("--")) == Some(flag));
    let all = all_flags();
    let mut variables = all.iter().filter(|other| other.get_long() == Some(flag)).filter_map(Arg::get_env);
    let wrong =
        variables.find(|name| std::env::var_os(name).is_some_and(|set| set.to_string_lossy() == value));
    wrong.filter(|_| !is_given).map(OsStr::to_owned)
}

/// The flag of a number whose value begins like a flag, since it is negative.
fn flag_before_negative(wrong: &str) -> Option<String> {
    wrong.strip_prefix('-').filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))?;
    let value_at = arguments().position(|given| given.starts_with(wrong))?;
    let before = arguments().nth(value_at.checked_sub(1)?)?;
    let numbers = [
        TypeId::of::<Duration>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<f64>(),
    ];
    let is_number = |flag: &Arg| numbers.iter().any(|number| flag.get_value_parser().type_id() == *number);
    let named = before.strip_prefix("--");
    all_flags().iter().any(|flag| flag.get_long() == named && is_number(flag)).then_some(before)
}

fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())
}

/// Whether a word that is no command stands behind flags of the gateway.
fn is_stray_word(error: &clap::Error) -> bool {
    let word = told(error, ContextKind::InvalidSubcommand);
    word.is_some_and(|word| Cli::command().find_subcommand(&word).is_none())
}

fn told(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        _ => None,
    }
}
