//! A thread of its own writes the lines of a log. So no request waits for a slow disk, or for a reader that has
//! stopped.
//!
//! The number of waiting lines is limited. Lines beyond the limit are left out and counted. The [`LogRecord`]s say
//! which log it is, and how it tells of missing lines.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::telemetry::metrics::{LogName, metrics};

/// The most lines that wait for the reader of the normal log. The line of a request may have 2 kB.
pub const MOST_LINES: usize = 4096;
/// What tells the line about missing lines from others.
pub const MISSING: &str = "missing lines";
/// Lines that are written at once.
const MOST_AT_ONCE: usize = 256;
/// The pause after what was written, in which lines gather: to wake this thread costs a request more than its line.
const BETWEEN_WRITES: Duration = Duration::from_millis(5);
/// The pause before important lines are tried again, and before a file is opened again that could not be opened.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause while the pipe is full and does not block, because its reader shares our end of it.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// Failures are logged at most this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Held while lines are written to standard error: two logs may go there, and a pipe that does not block takes parts of lines.
static STANDARD_ERROR: Mutex<()> = Mutex::new(());

/// One line of a log, as it waits to be written.
pub trait LogRecord: Sized + Send + 'static {
    /// The log that the line belongs to.
    const LOG: LogName;

    /// Appends the line to `text`, with its newline.
    fn write_to(&self, text: &mut String);

    /// Whether the line is tried again until it is written, and never left out.
    fn is_important(&self) -> bool {
        false
    }

    /// Says that this many lines are missing: in the line that is returned, or in one of the normal log.
    fn missing(lines: u64) -> Option<Self> {
        tracing::warn!(target: MISSING, lines, "lines of the log are missing: its reader is too slow");
        None
    }

    /// The log cannot be written. Of the normal log no other could say so.
    fn failed(_: &io::Error) {}
}

/// Opens a file to append to it.
pub type Open = fn(&Path) -> io::Result<Opened>;

/// A file that was opened to append to it.
pub struct Opened {
    /// The file.
    pub file: File,
    /// Its device and its number, which tell it from others.
    pub identity: (u64, u64),
    /// Whether it ends within a line.
    pub is_torn: bool,
}

/// Where the lines go.
pub enum Outlet {
    /// Standard error.
    StandardError,
    /// The end of this file.
    File(PathBuf, Open),
}

/// The near end of a log: it takes the lines that are to be written.
#[derive(Debug)]
pub struct LogWriter<L> {
    orders: mpsc::UnboundedSender<Order<L>>,
    queue: Arc<Queue>,
}

/// What both ends know about the lines on their way.
#[derive(Debug, Default)]
struct Queue {
    /// How many lines wait.
    lines: AtomicUsize,
    /// How many lines were left out and not told of yet.
    dropped: AtomicU64,
    /// Whether the file is to be opened again: it may have been moved away.
    must_reopen: AtomicBool,
}

#[derive(Debug)]
enum Order<L> {
    Write(L),
    Reopen,
    /// Asks for a message when everything before it is written.
    Finish(SyncSender<()>),
}

impl<L: LogRecord> LogWriter<L> {
    /// Starts the thread that writes there.
    pub fn start(outlet: Outlet) -> io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let queue = Arc::new(Queue::default());
        let pen = Pen::open(outlet, queue.clone())?;
        thread::Builder::new().name(L::LOG.name().into()).spawn(move || pen.write_all::<L>(received))?;
        Ok(Self { orders, queue })
    }

    /// Passes a line on to be written, unless `most` lines wait already.
    pub fn write(&self, line: L, most: usize) {
        if self.queue.lines.fetch_add(1, Ordering::Relaxed) < most {
            // The other end lives as long as this one.
            let _ = self.orders.send(Order::Write(line));
        } else {
            self.queue.lines.fetch_sub(1, Ordering::Relaxed);
            self.queue.drop_lines(L::LOG, 1);
        }
    }

    /// Opens the file again: it may have been moved away.
    pub fn reopen(&self) {
        self.queue.must_reopen.store(true, Ordering::Relaxed);
        let _ = self.orders.send(Order::Reopen);
    }

    /// Blocks until all lines are written, for at most `within`. The error is the number of lines that are not.
    pub fn finish(&self, within: Duration) -> Result<(), usize> {
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        let _ = self.orders.send(Order::Finish(done));
        is_done.recv_timeout(within).map_err(|_| self.queue.lines.load(Ordering::Relaxed))
    }
}

impl Queue {
    fn drop_lines(&self, log: LogName, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
        metrics().log_lines_dropped.add(log, lines);
    }
}

/// The far end of a log: it has the file.
struct Pen {
    /// The path of the file, and how to open it again.
    place: Option<(PathBuf, Open)>,
    out: Box<dyn Write + Send>,
    /// Which file is open, if the outlet is a file.
    identity: Option<(u64, u64)>,
    /// Whether the last line was written only in part.
    is_torn: bool,
    /// Important lines that are not written yet, and how many they are.
    waiting: (String, usize),
    /// Those who ask for a message when all is written.
    finishing: Vec<SyncSender<()>>,
    queue: Arc<Queue>,
    warned_at: Option<Instant>,
    /// When the file could not be opened again.
    not_reopened_at: Option<Instant>,
}

impl Pen {
    fn open(outlet: Outlet, queue: Arc<Queue>) -> io::Result<Self> {
        let mut pen = Self {
            place: None,
            out: Box::new(io::stderr()),
            identity: None,
            is_torn: false,
            waiting: Default::default(),
            finishing: Vec::new(),
            queue,
            warned_at: None,
            not_reopened_at: None,
        };
        if let Outlet::File(path, open) = outlet {
            pen.append_to(open(&path)?);
            pen.place = Some((path, open));
        }
        Ok(pen)
    }

    /// Writes until all near ends are dropped.
    fn write_all<L: LogRecord>(mut self, mut orders: mpsc::UnboundedReceiver<Order<L>>) {
        let mut batch = Vec::with_capacity(MOST_AT_ONCE);
        let mut text = String::new();
        loop {
            let most = match self.waiting.0.is_empty() {
                true => MOST_AT_ONCE,
                // While important lines wait, no other line waits behind them.
                false => {
                    thread::sleep(RETRY_PAUSE);
                    orders.len()
                }
            };
            let received = orders.blocking_recv_many(&mut batch, most);
            if received == 0 && most > 0 {
                return;
            }
            if self.not_reopened_at.is_some() {
                self.reopen::<L>();
            }
            let mut lines = 0;
            for order in batch.drain(..) {
                match order {
                    Order::Write(line) if line.is_important() => {
                        // Those that came before it.
                        self.write::<L>(&mut text);
                        line.write_to(&mut self.waiting.0);
                        self.waiting.1 += 1;
                    }
                    Order::Write(line) => {
                        lines += 1;
                        line.write_to(&mut text);
                    }
                    Order::Reopen => {
                        self.write::<L>(&mut text);
                        self.not_reopened_at = None;
                        self.reopen::<L>();
                    }
                    Order::Finish(done) => self.finishing.push(done),
                }
            }
            batch.shrink_to(MOST_AT_ONCE);
            self.write::<L>(&mut text);
            self.queue.lines.fetch_sub(lines, Ordering::Relaxed);
            if self.waiting.0.is_empty() {
                for done in self.finishing.drain(..) {
                    // `finish` may have stopped waiting.
                    let _ = done.send(());
                }
            }
            if received < MOST_AT_ONCE {
                thread::sleep(BETWEEN_WRITES);
            }
        }
    }

    /// Writes the lines that wait, and then `text`, which it leaves empty. Those of `text` that cannot be written are counted.
    fn write<L: LogRecord>(&mut self, text: &mut String) {
        let (mut waiting, lines) = std::mem::take(&mut self.waiting);
        let (mut first, mut rest) = (waiting.as_str(), text.as_str());
        let written = self.try_write::<L>(&mut first);
        if written.is_ok() {
            self.queue.lines.fetch_sub(lines, Ordering::Relaxed);
        } else {
            let end = waiting.len() - first.len();
            waiting.drain(..end);
            self.waiting = (waiting, lines);
        }
        if let Err(error) = written.and_then(|()| self.try_write::<L>(&mut rest)) {
            if self.warned_at.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                self.warned_at = Some(Instant::now());
                L::failed(&error);
            }
            self.queue.drop_lines(L::LOG, rest.lines().count() as u64);
            text.clear();
            return;
        }
        text.clear();
        let dropped = self.queue.dropped.swap(0, Ordering::Relaxed);
        let Some(told) = (dropped > 0).then(|| L::missing(dropped)).flatten() else { return };
        told.write_to(text);
        if self.try_write::<L>(&mut text.as_str()).is_err() {
            self.queue.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        text.clear();
    }

    /// Writes `text`. After an error, the lines that are still to be written are left in it.
    fn try_write<L: LogRecord>(&mut self, text: &mut &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let _alone = self.place.is_none().then(|| STANDARD_ERROR.lock());
        loop {
            let Err(error) = self.write_lines(text) else { return Ok(()) };
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            // Where it cannot be opened, the pipe is waited for, until that is to be tried again.
            self.reopen::<L>();
        }
    }

    fn write_lines(&mut self, text: &mut &str) -> io::Result<()> {
        if self.is_torn {
            self.push(b"\n").map_err(|(_, error)| error)?;
            self.is_torn = false;
        }
        let Err((written, error)) = self.push(text.as_bytes()) else {
            *text = "";
            return Ok(());
        };
        let whole =
            text.as_bytes().iter().take(written).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.is_torn = whole < written;
        *text = text.get(whole..).unwrap_or_default();
        Err(error)
    }

    /// Writes these bytes. The error comes with how many of them are written. A pipe that is full is waited for, unless another
    /// file is to be opened in its place: its reader may have stopped for good.
    fn push(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match self.out.write(rest) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_reopen_due() => {
                    thread::sleep(FULL_PAUSE);
                }
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    fn is_reopen_due(&self) -> bool {
        let is_asked = self.place.is_some() && self.queue.must_reopen.load(Ordering::Relaxed);
        is_asked && self.not_reopened_at.is_none_or(|at| at.elapsed() >= RETRY_PAUSE)
    }

    /// Opens the file again if that is due.
    fn reopen<L: LogRecord>(&mut self) {
        let Some((path, open)) = self.place.as_ref().filter(|_| self.is_reopen_due()) else { return };
        // What is asked for while it is opened is due after that.
        self.queue.must_reopen.store(false, Ordering::Relaxed);
        match open(path) {
            Ok(opened) => {
                self.append_to(opened);
                self.not_reopened_at = None;
            }
            Err(error) => {
                self.queue.must_reopen.store(true, Ordering::Relaxed);
                if self.not_reopened_at.replace(Instant::now()).is_none() {
                    let log = L::LOG.name();
                    tracing::warn!(%error, log, "cannot open the log again: until it can, the gateway writes on to the old file");
                }
            }
        }
    }

    fn append_to(&mut self, Opened { file, identity, is_torn }: Opened) {
        self.is_torn = is_torn || self.is_torn && self.identity == Some(identity);
        (self.out, self.identity) = (Box::new(file), Some(identity));
    }
}
