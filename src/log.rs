//! The normal log, on standard error. Nobody waits for whoever reads it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::telemetry::metrics;
use crate::writer::{Form, Line, Outlet, Writer, push_escaped};

/// Lines that wait for the reader, of which one for a request may have 2 kB at most.
const MOST_LINES: usize = 4096;
/// Lines that wait for it where one more says that something is wrong: requests alone must not crowd it out.
const MOST_WARNINGS: usize = 2 * MOST_LINES;

/// The log, for whoever makes its lines.
#[derive(Clone)]
pub struct Log(Arc<Writer<Said>>, Form);

/// Waits for the last lines when it is dropped.
pub struct Ending(Log, Duration);

/// A line.
struct Said(String, Form);

impl Log {
    /// Begins to write.
    pub fn start(form: Form) -> io::Result<Self> {
        Ok(Self(Arc::new(Writer::start(Outlet::StandardError)?), form))
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

impl Line for Said {
    const LOG: metrics::Log = metrics::Log::Normal;

    fn write_to(&self, text: &mut String) {
        push_escaped(text, &self.0, self.1);
    }

    fn is_important(&self) -> bool {
        false
    }

    fn missing(lines: u64) -> Option<Self> {
        tracing::warn!(lines, "there was no room for lines of the log: whoever reads it is too slow");
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
