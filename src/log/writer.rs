//! Lines of a log, which a thread of its own writes: nobody waits for a disk that is slow, or for a reader that stands
//! still.
//!
//! So many lines wait, and those beyond are left out and counted. Which log it is, and how it tells of what is missing, is
//! the business of its [`LogRecord`]s.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::telemetry::metrics::{LogName, metrics};

/// Lines that are written at once.
const MOST_AT_ONCE: usize = 256;
/// The pause before a line is written again that must not be left out.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause while a reader that shares our end of the pipe has it never wait.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// Failures are told of at most this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// One line of a log, as it waits to be written.
pub trait LogRecord: Sized + Send + 'static {
    /// The log that it is of.
    const LOG: LogName;

    /// Appends it to `text`, with its newline.
    fn write_to(&self, text: &mut String);

    /// Whether it is written again until that works, rather than left out.
    fn is_important(&self) -> bool;

    /// Tells of so many lines that are missing, in a line that is written now, or by whatever way the log has.
    fn missing(lines: u64) -> Option<Self>;

    /// It cannot be written.
    fn failed(error: &io::Error);
}

/// Opens a file, to append to it. What tells the file from others comes with it.
pub type Open = fn(&Path) -> io::Result<(File, FileIdentity)>;
/// The device and the number of a file.
pub type FileIdentity = (u64, u64);

/// Where the lines go.
pub enum Outlet {
    /// Standard error.
    StandardError,
    /// The end of this file.
    File(PathBuf, Open),
}

/// The near end of a log: what is to be written goes in here.
#[derive(Debug)]
pub struct LogWriter<L> {
    orders: mpsc::UnboundedSender<Order<L>>,
    queue: Arc<Queue>,
}

/// What both ends know of what is on its way.
#[derive(Debug, Default)]
struct Queue {
    /// Lines that wait.
    lines: AtomicUsize,
    /// Those left out, of which nobody has told yet.
    dropped: AtomicU64,
    /// Whether the file is to be opened anew, for a thread that is not done with an order before that one.
    asks_to_reopen: AtomicBool,
}

#[derive(Debug)]
enum Order<L> {
    Write(L),
    Reopen,
    /// Told of when all that came before is written.
    Finish(SyncSender<()>),
}

impl<L: LogRecord> LogWriter<L> {
    /// Begins to write there.
    pub fn start(outlet: Outlet) -> io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let queue = Arc::new(Queue::default());
        let pen = Pen::open(outlet, queue.clone())?;
        thread::Builder::new().name(L::LOG.name().into()).spawn(move || pen.write_all::<L>(received))?;
        Ok(Self { orders, queue })
    }

    /// Has a line be written, unless so many wait already.
    pub fn write(&self, line: L, most: usize) {
        if self.queue.lines.fetch_add(1, Ordering::Relaxed) < most {
            // Its other end lives as long as this one.
            let _ = self.orders.send(Order::Write(line));
        } else {
            self.queue.lines.fetch_sub(1, Ordering::Relaxed);
            self.queue.drop_lines(L::LOG, 1);
        }
    }

    /// Opens the file anew, which may have been moved away.
    pub fn reopen(&self) {
        self.queue.asks_to_reopen.store(true, Ordering::Relaxed);
        let _ = self.orders.send(Order::Reopen);
    }

    /// Blocks until all lines are written, for at most `within`; the error is how many are not.
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

/// The far end, which has the file.
struct Pen {
    /// Where it is, and how it is opened anew.
    place: Option<(PathBuf, Open)>,
    out: Box<dyn Write + Send>,
    /// Which file that is, where it is one.
    identity: Option<FileIdentity>,
    /// Whether the last line is not whole.
    is_torn: bool,
    queue: Arc<Queue>,
    warned_at: Option<Instant>,
}

impl Pen {
    fn open(outlet: Outlet, queue: Arc<Queue>) -> io::Result<Self> {
        let (place, identity, out): (_, _, Box<dyn Write + Send>) = match outlet {
            Outlet::StandardError => (None, None, Box::new(io::stderr())),
            Outlet::File(path, open) => {
                let (file, identity) = open(&path)?;
                (Some((path, open)), Some(identity), Box::new(file))
            }
        };
        Ok(Self { place, out, identity, is_torn: false, queue, warned_at: None })
    }

    /// Until nobody is left who could have something to say.
    fn write_all<L: LogRecord>(mut self, mut orders: mpsc::UnboundedReceiver<Order<L>>) {
        let mut batch = Vec::with_capacity(MOST_AT_ONCE);
        let mut text = String::new();
        while orders.blocking_recv_many(&mut batch, MOST_AT_ONCE) > 0 {
            let (mut is_important, mut lines) = (false, 0);
            for order in batch.drain(..) {
                match order {
                    Order::Write(line) => {
                        lines += 1;
                        is_important |= line.is_important();
                        line.write_to(&mut text);
                    }
                    Order::Reopen => {
                        self.write::<L>(&mut text, is_important);
                        self.queue.asks_to_reopen.store(false, Ordering::Relaxed);
                        self.reopen::<L>();
                    }
                    Order::Finish(done) => {
                        self.write::<L>(&mut text, is_important);
                        // Nobody may wait any more.
                        let _ = done.send(());
                    }
                }
            }
            self.write::<L>(&mut text, is_important);
            self.queue.lines.fetch_sub(lines, Ordering::Relaxed);
        }
    }

    /// Writes whole lines, and leaves `text` empty. What does not matter so much is counted where it cannot be written.
    fn write<L: LogRecord>(&mut self, text: &mut String, is_important: bool) {
        let mut rest = text.as_str();
        while let Err(error) = self.try_write(&mut rest) {
            if self.warned_at.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                self.warned_at = Some(Instant::now());
                L::failed(&error);
            }
            if !is_important {
                self.queue.drop_lines(L::LOG, rest.lines().count() as u64);
                text.clear();
                return;
            }
            thread::sleep(RETRY_PAUSE);
            // Whoever makes room by moving the file away says so, and that waits behind what cannot be written.
            if self.queue.asks_to_reopen.swap(false, Ordering::Relaxed) {
                self.reopen::<L>();
            }
        }
        text.clear();
        let dropped = self.queue.dropped.swap(0, Ordering::Relaxed);
        let Some(told) = (dropped > 0).then(|| L::missing(dropped)).flatten() else { return };
        told.write_to(text);
        if self.try_write(&mut text.as_str()).is_err() {
            self.queue.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        text.clear();
    }

    /// Leaves in `text` the lines that are still to be written.
    fn try_write(&mut self, text: &mut &str) -> io::Result<()> {
        if self.is_torn {
            self.out.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut written = 0;
        while let Some(rest) = text.as_bytes().get(written..).filter(|rest| !rest.is_empty()) {
            let error = match self.out.write(rest) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(more) => {
                    written += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(FULL_PAUSE);
                    continue;
                }
                Err(error) => error,
            };
            let whole =
                text.as_bytes().iter().take(written).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.is_torn = whole < written;
            *text = text.get(whole..).unwrap_or_default();
            return Err(error);
        }
        *text = "";
        Ok(())
    }

    fn reopen<L: LogRecord>(&mut self) {
        let Some((path, open)) = &self.place else { return };
        match open(path) {
            Ok((file, identity)) => {
                self.is_torn &= self.identity == Some(identity);
                (self.out, self.identity) = (Box::new(file), Some(identity));
            }
            Err(error) => {
                let log = L::LOG.name();
                tracing::warn!(%error, log, "cannot open the log again: the gateway writes on to the old file")
            }
        }
    }
}
