//! The normal log, on standard error. No request waits for its reader.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use self::later::later;
use self::unseen::{Form, push_escaped};
use self::writer::{LogRecord, LogWriter, MISSING, MOST_LINES, Outlet};
use crate::telemetry::metrics::LogName;

mod later;
pub mod unseen;
pub mod writer;

/// The most lines that wait when one more is a warning or an error. Requests alone must not crowd it out.
const MOST_WARNINGS: usize = 2 * MOST_LINES;

/// The log, as the maker of its lines needs it.
#[derive(Clone)]
pub struct Log(Arc<LogWriter<Said>>, Form);

/// Waits for the last lines when it is dropped.
pub struct Ending(Log, Duration);

/// A line.
struct Said(String, Form);

impl Log {
    /// Starts to write what this process logs from `level` up, and its panics.
    ///
    /// # Errors
    ///
    /// The thread that writes cannot be started.
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
            .with_timer(later::LineTimes)
            .with_target(false)
            .with_ansi(is_terminal)
            .log_internal_errors(false)
            .with_writer(log.clone());
        // What libraries say of a client names no address, and nothing bounds how often a client makes them say it.
        let ours = [env!("CARGO_PKG_NAME"), MISSING].map(|target| (target, level));
        let ours = Targets::new().with_default(LevelFilter::ERROR).with_targets(ours);
        if is_json {
            lines.json().flatten_event(true).finish().with(ours).init();
        } else {
            lines.finish().with(ours).init();
        }
        later::start()?;
        // A panic is a line like any other, in the form of the log.
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the program made a mistake")));
        Ok(log)
    }

    /// At the end of the scope, waits for the last lines, for at most `within`.
    pub fn ends_within(&self, within: Duration) -> Ending {
        Ending(self.clone(), within)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        later::finish(self.1);
        // If some lines could not be written, there is no way left to say so.
        let _ = self.0.0.finish(self.1);
    }
}

impl LogRecord for Said {
    const LOG: LogName = LogName::Normal;

    fn write_to(&self, text: &mut String) {
        push_escaped(text, &self.0, self.1);
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Pen<'a>;

    fn make_writer(&'a self) -> Pen<'a> {
        Pen { log: self, most: MOST_LINES }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Pen<'a> {
        let most = match *about.level() {
            // The line about missing lines. There is at most one for each written batch, and it must not be left out.
            _ if about.target() == MISSING => usize::MAX,
            Level::ERROR | Level::WARN => MOST_WARNINGS,
            _ => MOST_LINES,
        };
        Pen { log: self, most }
    }
}

/// Writes one line.
pub struct Pen<'a> {
    log: &'a Log,
    most: usize,
}

impl io::Write for Pen<'_> {
    /// Takes a whole line: each line is given in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Log(writer, form) = self.log;
        writer.write(Said(String::from_utf8_lossy(line).into_owned(), *form), self.most);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
