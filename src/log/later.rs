//! Lines that another thread puts into words, so that a request does not wait for that. They have the times of what they tell, and
//! may come some milliseconds after lines that are later.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::writer::{LogRecord, LogWriter, MOST_LINES, Outlet};
use crate::telemetry::metrics::LogName;

/// The thread, once there is a log.
static THREAD: OnceLock<Arc<LogWriter<Later>>> = OnceLock::new();

thread_local! {
    /// When that happened which this thread puts into words, unless it is now.
    static HAPPENED_AT: Cell<Option<SystemTime>> = const { Cell::new(None) };
}

/// Has another thread write a line by `log`. Without such a thread it is written at once.
pub fn later(log: impl Fn() + Send + 'static) {
    match THREAD.get() {
        Some(thread) => thread.write(Later(SystemTime::now(), Box::new(log)), MOST_LINES),
        None => log(),
    }
}

/// Starts the thread.
pub(super) fn start() -> io::Result<()> {
    let thread = Arc::new(LogWriter::start(Outlet::StandardError)?);
    THREAD.get_or_init(|| thread);
    Ok(())
}

/// Waits until all lines are put into words, for at most `within`.
pub(super) fn finish(within: Duration) {
    // If some are not, there is no way left to say so.
    let _ = THREAD.get().map(|thread| thread.finish(within));
}

/// When it happened, and what puts it into words.
struct Later(SystemTime, Box<dyn Fn() + Send>);

impl LogRecord for Later {
    const LOG: LogName = LogName::Normal;

    /// The line goes the way of all lines of the log, and none from here.
    fn write_to(&self, _: &mut String) {
        HAPPENED_AT.set(Some(self.0));
        (self.1)();
        HAPPENED_AT.set(None);
    }
}

/// The times of lines, in UTC.
pub(super) struct LineTimes;

impl FormatTime for LineTimes {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let at = HAPPENED_AT.get().unwrap_or_else(SystemTime::now);
        // Far from all times that a clock has, it would be no time of the calendar.
        write!(writer, "{:.6}", Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}
