//! The normal log, on standard error. Nobody waits for whoever reads it.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use self::unseen::{Form, push_escaped};
use self::writer::{LogRecord, LogWriter, Outlet};
use crate::telemetry::metrics::LogName;

pub mod unseen;
pub mod writer;

/// Lines that wait for the reader, of which one for a request may have 2 kB at most.
const MOST_LINES: usize = 4096;
/// Lines that wait for it where one more says that something is wrong: requests alone must not crowd it out.
const MOST_WARNINGS: usize = 2 * MOST_LINES;

/// The log, for whoever makes its lines.
#[derive(Clone)]
pub struct Log(Arc<LogWriter<Said>>, Form);

/// Waits for the last lines when it is dropped.
pub struct Ending(Log, Duration);

/// A line.
struct Said(String, Form);

impl Log {
    /// Begins to write what this process says from `level` up, and says its faults too.
    ///
    /// # Errors
    ///
    /// Where the thread that writes cannot be started.
    pub fn start(is_json: bool, level: LevelFilter) -> io::Result<Self> {
        let is_terminal = io::stderr().is_terminal();
        let form = match (is_json, is_terminal) {
            (true, _) => Form::Json,
            (false, true) => Form::Colored,
            (false, false) => Form::Text,
        };
        let log = Self(Arc::new(LogWriter::start(Outlet::StandardError)?), form);
        let lines = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_target(false)
            .with_ansi(is_terminal)
            .log_internal_errors(false)
            .with_writer(log.clone());
        if is_json {
            lines.json().flatten_event(true).init();
        } else {
            lines.init();
        }
        // A panic is a line of the log like any other, in its form.
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the program made a mistake")));
        Ok(log)
    }

    /// Has the last lines be waited for, for at most `within`, at the end of the scope.
    pub fn ends_within(&self, within: Duration) -> Ending {
        Ending(self.clone(), within)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // Nobody is left who could be told.
        let _ = self.0.0.finish(self.1);
    }
}

impl LogRecord for Said {
    const LOG: LogName = LogName::Normal;

    fn write_to(&self, text: &mut String) {
        push_escaped(text, &self.0, self.1);
    }

    fn is_important(&self) -> bool {
        false
    }

    fn missing(lines: u64) -> Option<Self> {
        tracing::warn!(lines, "lines of the log are missing: its reader is too slow");
        None
    }

    /// There is no other log that could say so.
    fn failed(_: &io::Error) {}
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Pen<'a>;

    fn make_writer(&'a self) -> Pen<'a> {
        Pen { log: self, most: MOST_LINES }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Pen<'a> {
        let most = match *about.level() {
            // It comes once for each batch that was written, and has to come.
            _ if about.target() == module_path!() => usize::MAX,
            Level::ERROR | Level::WARN => MOST_WARNINGS,
            _ => MOST_LINES,
        };
        Pen { log: self, most }
    }
}

/// What one line is written with.
pub struct Pen<'a> {
    log: &'a Log,
    most: usize,
}

impl io::Write for Pen<'_> {
    /// Takes a whole line at once, as it is always given.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Log(writer, form) = self.log;
        writer.write(Said(String::from_utf8_lossy(line).into_owned(), *form), self.most);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
