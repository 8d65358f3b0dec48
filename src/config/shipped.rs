//! What packages bring along besides the program, made of the flags: its manual, and completions for shells.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell as Generator;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::Cli;

/// The flags of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The flags of `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Where the pages are written, one for each command
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionsArgs {
    /// What the shell reads.
    pub fn completions(&self) -> String {
        let generator = match self.shell {
            Shell::Bash => Generator::Bash,
            Shell::Zsh => Generator::Zsh,
            Shell::Fish => Generator::Fish,
        };
        // The generators would offer hidden commands too.
        let whole = Cli::command();
        let mut command = Command::new("fencepost")
            .version(env!("CARGO_PKG_VERSION"))
            .args(whole.get_arguments())
            .groups(whole.get_groups())
            .subcommands(whole.get_subcommands().filter(|command| !command.is_hide_set()));
        let mut script = Vec::new();
        clap_complete::generate(generator, &mut command, "fencepost", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

impl ManArgs {
    /// Writes the pages.
    pub fn write(&self) -> io::Result<()> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        write_page(&command, &self.directory)
    }
}

/// Writes the page of a command, and those of the commands within it.
fn write_page(command: &Command, directory: &Path) -> io::Result<()> {
    for within in command.get_subcommands().filter(|within| !within.is_hide_set()) {
        write_page(within, directory)?;
    }
    let page = Man::new(command.clone())
        .source(concat!("fencepost ", env!("CARGO_PKG_VERSION")))
        .manual("Fencepost");
    let mut file = File::create(directory.join(page.get_filename()))?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    file.write_all(&synopsis(command))?;
    page.render_description_section(&mut file)?;
    page.render_options_section(&mut file)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut file)?;
    }
    if let Some(help) = command.get_after_long_help() {
        file.write_all(&further_sections(&help.to_string()))?;
    }
    file.flush()
}

/// The line of usage that `--help` has. The generator's own leaves out the `--` of `run` and the values of flags.
fn synopsis(command: &Command) -> Vec<u8> {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(usage.trim_start_matches("Usage: "))]);
    roff.render().into_bytes()
}

/// What `--help` says below the flags. A line that ends in a colon, with indented lines below it, is a heading.
fn further_sections(help: &str) -> Vec<u8> {
    let mut roff = Roff::new();
    for paragraph in help.split("\n\n") {
        match paragraph.split_once(":\n  ") {
            Some((heading, lines)) if !heading.contains('\n') => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                // As it stands: it is examples and tables.
                roff.control("nf", []);
                for line in lines.lines() {
                    roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
                }
                roff.control("fi", []);
            }
            _ => {
                roff.control("PP", []);
                roff.text([roman(paragraph)]);
            }
        }
    }
    roff.render().into_bytes()
}
