//! What is printed: lines for people, or JSON for machines.

use std::io::{self, Write};

use rustix::fs::{OFlags, fcntl_getfl, fstat, makedev};
use rustix::process::Signal;
use serde::Serialize;

use crate::client::{CommandFailure, by_signal};
use crate::log::unseen::{Form, escaped};

/// There was nothing to do: the lock is free, or the grant is over, or a person said no.
pub(super) const FREE: u8 = 1;

/// What standard output is to a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// It prints nothing.
    Nothing,
    /// The exit status says what came of it, too.
    Report,
    /// It is all that the command is for.
    Purpose,
}

/// Prints a text that ends with its newline.
pub(super) fn print(text: &str) -> Result<(), CommandFailure> {
    let mut stdout = io::stdout().lock();
    printed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// What came of printing.
pub(super) fn printed(printed: io::Result<()>) -> Result<(), CommandFailure> {
    printed.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => nobody_reads(),
        _ => CommandFailure::not_possible(format!("cannot print: {error}")),
    })
}

/// Prints an object in a line of its own.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CommandFailure> {
    print(&json_line(value)?)
}

pub(super) fn json_line(value: &impl Serialize) -> Result<String, CommandFailure> {
    let json =
        serde_json::to_string(value).map_err(|error| CommandFailure::not_possible(error.to_string()))?;
    Ok(escaped(&json, Form::Json))
}

/// Ends the command before it does anything if its output would be lost. The standard library takes an output that is not open
/// for writing for one that swallows all.
pub(super) fn expect(output: Output) -> Result<(), CommandFailure> {
    let stdout = io::stdout();
    let mode = fcntl_getfl(&stdout).map_or(OFlags::RDONLY, |flags| flags & OFlags::RWMODE);
    // What was closed at the start, the standard library has replaced by this, open for both. A shell's `>/dev/null` is for
    // writing alone. But programs that throw away what others print may open it for both, too.
    let null = makedev(1, 3);
    let may_be_closed = || mode == OFlags::RDWR && fstat(&stdout).is_ok_and(|about| about.st_rdev == null);
    let is_lost = match output {
        Output::Nothing => false,
        Output::Report => mode == OFlags::RDONLY,
        Output::Purpose => mode == OFlags::RDONLY || may_be_closed(),
    };
    if is_lost {
        let problem = "standard output is closed, or not open for writing: nothing was done";
        return Err(CommandFailure::not_possible(problem));
    }
    Ok(())
}

/// The reader of standard output has gone, as `head` does: an end without a word, with the status of other programs.
pub(super) fn nobody_reads() -> CommandFailure {
    CommandFailure::new(by_signal(Signal::PIPE.as_raw()), "")
}

/// Rows below a heading, in columns. The columns only grow from one page of rows to the next.
pub(super) struct TextTable<const COLUMNS: usize> {
    heading: Option<[&'static str; COLUMNS]>,
    widths: [usize; COLUMNS],
}

/// What is wider than this does not widen its column.
const WIDEST: usize = 40;

impl<const COLUMNS: usize> TextTable<COLUMNS> {
    pub(super) fn new(heading: [&'static str; COLUMNS]) -> Self {
        Self { heading: Some(heading), widths: heading.map(str::len) }
    }

    /// The lines of these rows; above the first, the heading.
    pub(super) fn lines(&mut self, rows: &[[String; COLUMNS]]) -> String {
        let heading = match rows.is_empty() {
            true => None,
            false => self.heading.take().map(|heading| heading.map(str::to_owned)),
        };
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count()).min(WIDEST.max(*width));
            }
        }
        let mut lines = String::new();
        for row in heading.iter().chain(rows) {
            let mut line = String::new();
            for (width, cell) in self.widths.iter().zip(row) {
                line += cell;
                line.extend(std::iter::repeat_n(
                    ' ',
                    (width + 2).saturating_sub(cell.chars().count()).max(2),
                ));
            }
            lines += line.trim_end();
            lines.push('\n');
        }
        lines
    }
}

/// One thing, line by line: what each value is, and the value.
pub(super) fn record(fields: &[(&str, String)]) -> String {
    let widest = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    fields.iter().map(|(name, value)| format!("{name:widest$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_moves_only_its_own_row_and_a_heading_is_printed_once() {
        let mut table = TextTable::new(["KEY", "LEFT"]);
        assert_eq!(table.lines(&[]), "");
        let rows = [["a".to_owned(), "1 s".to_owned()], ["b".repeat(60), "2 s".to_owned()]];
        let lines = table.lines(&rows);
        let expected = format!("KEY{0}  LEFT\na{0}    1 s\n{1}  2 s\n", " ".repeat(37), "b".repeat(60));
        assert_eq!(lines, expected);
        assert_eq!(table.lines(&rows[..1]), format!("a{}    1 s\n", " ".repeat(37)));
    }
}
