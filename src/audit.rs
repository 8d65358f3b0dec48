//! The audit log: who did what with which key, one JSON object a line, for those who ask afterwards.
//!
//! A thread of its own writes it, so that a slow disk stops no request: uses of keys that it cannot follow are left out,
//! and how many there were is a line of its own. What is rare and matters most, a lock that was broken or a change of
//! the settings, has room where those have none, and stands in the normal log too. Nobody waits for either. No secret and
//! no token comes here.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Lines that wait for the disk.
const MOST_LINES: usize = 4096;
/// Lines that wait for it where one more must not be missed. Even breaks, of which each is in the normal log too, must not
/// fill the memory while a disk is full.
const MOST_IMPORTANT_LINES: usize = 16 * MOST_LINES;
/// Lines that are written at once.
const MOST_AT_ONCE: usize = 256;
/// The pause before a line is written again that must not be left out.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Failures are logged at most this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Where the audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    /// Standard error, among the lines of the normal log.
    StandardError,
    /// The end of this file.
    File(PathBuf),
}

/// Who made a request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Who {
    /// The request's id, as in the answer and in the normal log.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Where it came from: the last proxy, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The key that was shown; absent where none are in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Whom that key was given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
}

/// What is worth a line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A request with a good key.
    KeyUse {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it")]
        who: Who,
        /// The right that the request needed, where it came so far.
        #[serde(skip_serializing_if = "Option::is_none")]
        right: Option<&'static str>,
        /// The lock that it was about.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<String>,
        /// The status of the answer; absent where the client had left.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    },
    /// A key was shown that is not accepted, or several that were not worth a line each.
    KeyRefused {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it; the id is what the key claimed")]
        who: Who,
        /// Why not.
        reason: &'static str,
        /// How many.
        count: u64,
    },
    /// A lock was taken from its holder.
    Break {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it")]
        who: Who,
        /// The lock.
        lock: String,
        /// The number of the grant that was ended, or was to be; absent where nobody knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        fencing_token: Option<u64>,
        /// The note of its holder.
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// `broken`, or `unknown` where the store did not answer.
        outcome: &'static str,
    },
    /// Settings came into force, or did not.
    Configuration {
        /// Which: `start`, `keys`, `certificates`.
        what: &'static str,
        /// Whether they are in force.
        is_in_force: bool,
        /// What is different now, or what is wrong.
        detail: String,
        /// Those that matter here.
        #[serde(flatten)]
        settings: BTreeMap<&'static str, String>,
    },
    /// Uses of keys that are missing here.
    Dropped {
        /// How many.
        lines: u64,
    },
}

/// The audit log, or the lack of one.
#[derive(Debug, Default)]
pub struct Audit {
    orders: Option<mpsc::UnboundedSender<Order>>,
    queue: Arc<Queue>,
}

/// What both ends know of what is on its way to the disk.
#[derive(Debug, Default)]
struct Queue {
    /// Lines that wait.
    lines: AtomicUsize,
    dropped: AtomicU64,
    /// Whether the file is to be opened anew, for a writer that is not done with an order before that one.
    asks_to_reopen: AtomicBool,
}

#[derive(Debug)]
enum Order {
    Write(Timestamp, Event),
    Reopen,
    /// Told of when all that came before is written.
    Finish(oneshot::Sender<()>),
}

#[derive(Serialize)]
struct Line<'e> {
    time: String,
    #[serde(flatten)]
    event: &'e Event,
}

impl Audit {
    /// None: what matters most is in the normal log.
    pub fn off() -> Self {
        Self::default()
    }

    /// Appends to where it is asked for.
    pub fn open(target: AuditTarget) -> io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let queue = Arc::new(Queue::default());
        let writer = Writer::open(target, queue.clone())?;
        thread::Builder::new().name("audit".into()).spawn(move || writer.write_all(received))?;
        Ok(Self { orders: Some(orders), queue })
    }

    /// Whether there is one, for those who would make a line in vain.
    pub fn is_on(&self) -> bool {
        self.orders.is_some()
    }

    /// Writes a line if the disk can follow.
    pub fn note(&self, event: Event) {
        self.write(event, MOST_LINES);
    }

    /// Writes a line that must not be missing, also into the normal log.
    pub fn record(&self, event: Event) {
        event.log();
        self.write(event, MOST_IMPORTANT_LINES);
    }

    fn write(&self, event: Event, most: usize) {
        let Some(orders) = &self.orders else { return };
        if self.queue.lines.fetch_add(1, Ordering::Relaxed) < most {
            // Its other end lives as long as this one.
            let _ = orders.send(Order::Write(Timestamp::now(), event));
        } else {
            self.queue.lines.fetch_sub(1, Ordering::Relaxed);
            self.queue.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file anew, which may have been moved away.
    pub fn reopen(&self) {
        let Some(orders) = &self.orders else { return };
        self.queue.asks_to_reopen.store(true, Ordering::Relaxed);
        let _ = orders.send(Order::Reopen);
    }

    /// Waits until all lines are written, for at most `within`.
    pub async fn finish(&self, within: Duration) {
        let Some(orders) = &self.orders else { return };
        let (done, is_done) = oneshot::channel();
        let _ = orders.send(Order::Finish(done));
        if timeout(within, is_done).await.is_err() {
            let lines = self.queue.lines.load(Ordering::Relaxed);
            tracing::warn!(lines, "the last lines of the audit log could not be written");
        }
    }
}

impl Event {
    /// Settings were read anew, with what is different now; or they cannot be used.
    pub fn changed(what: &'static str, read: Result<String, String>) -> Self {
        let (is_in_force, detail) = match read {
            Ok(different) if different.is_empty() => (true, "nothing is different".to_owned()),
            Ok(different) => (true, different),
            Err(problem) => (false, problem),
        };
        Self::Configuration { what, is_in_force, detail, settings: BTreeMap::new() }
    }

    fn is_important(&self) -> bool {
        matches!(self, Self::Break { .. } | Self::Configuration { .. })
    }

    fn log(&self) {
        match self {
            Self::Break { who, lock, fencing_token, owner, outcome } => {
                let Who { request_id, address, key_id, .. } = who;
                tracing::warn!(
                    request_id,
                    address,
                    key_id,
                    key = lock,
                    fencing_token,
                    owner,
                    outcome,
                    "a lock was broken"
                );
            }
            Self::Configuration { what, is_in_force: true, detail, settings } if settings.is_empty() => {
                tracing::info!(what, detail, "settings are in force");
            }
            Self::Configuration { what, is_in_force: true, detail, settings } => {
                tracing::info!(what, detail, ?settings, "settings are in force");
            }
            Self::Configuration { what, detail, .. } => {
                tracing::warn!(what, detail, "settings are refused, and those before stay in force");
            }
            Self::KeyUse { .. } | Self::KeyRefused { .. } | Self::Dropped { .. } => {}
        }
    }
}

/// What has the file.
struct Writer {
    path: Option<PathBuf>,
    out: Box<dyn Write + Send>,
    /// Which file that is, where it is one.
    identity: Option<(u64, u64)>,
    /// Whether the last line is not whole.
    is_torn: bool,
    queue: Arc<Queue>,
    warned_at: Option<Instant>,
}

impl Writer {
    fn open(target: AuditTarget, queue: Arc<Queue>) -> io::Result<Self> {
        let (path, identity, out): (_, _, Box<dyn Write + Send>) = match target {
            AuditTarget::StandardError => (None, None, Box::new(io::stderr())),
            AuditTarget::File(path) => {
                let (file, identity) = append_to(&path)?;
                (Some(path), Some(identity), Box::new(file))
            }
        };
        Ok(Self { path, out, identity, is_torn: false, queue, warned_at: None })
    }

    /// Until nobody is left who could have something to say.
    fn write_all(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut batch = Vec::with_capacity(MOST_AT_ONCE);
        while orders.blocking_recv_many(&mut batch, MOST_AT_ONCE) > 0 {
            let (mut text, mut is_important, mut lines) = (String::new(), false, 0);
            for order in batch.drain(..) {
                match order {
                    Order::Write(time, event) => {
                        lines += 1;
                        is_important |= event.is_important();
                        text += &line(time, &event);
                    }
                    Order::Reopen => {
                        self.write(&std::mem::take(&mut text), is_important);
                        self.queue.asks_to_reopen.store(false, Ordering::Relaxed);
                        self.reopen();
                    }
                    Order::Finish(done) => {
                        self.write(&std::mem::take(&mut text), is_important);
                        // Nobody may wait any more.
                        let _ = done.send(());
                    }
                }
            }
            self.write(&text, is_important);
            self.queue.lines.fetch_sub(lines, Ordering::Relaxed);
        }
    }

    /// Writes whole lines. What does not matter so much is counted where it cannot be written.
    fn write(&mut self, text: &str, is_important: bool) {
        let mut rest = text;
        while let Err(error) = self.try_write(&mut rest) {
            if self.warned_at.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                self.warned_at = Some(Instant::now());
                tracing::warn!(%error, "cannot write the audit log");
            }
            if !is_important {
                self.queue.dropped.fetch_add(rest.lines().count() as u64, Ordering::Relaxed);
                return;
            }
            thread::sleep(RETRY_PAUSE);
            // Whoever makes room by moving the file away says so, and that waits behind what cannot be written.
            if self.queue.asks_to_reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
        }
        let dropped = self.queue.dropped.swap(0, Ordering::Relaxed);
        let told =
            if dropped > 0 { line(Timestamp::now(), &Event::Dropped { lines: dropped }) } else { return };
        if self.try_write(&mut told.as_str()).is_err() {
            self.queue.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
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

    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match append_to(path) {
            Ok((file, identity)) => {
                self.is_torn &= self.identity == Some(identity);
                (self.out, self.identity) = (Box::new(file), Some(identity));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot open the audit log anew, and goes on in the old file")
            }
        }
    }
}

/// With what tells it from others.
fn append_to(path: &Path) -> io::Result<(File, (u64, u64))> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let about = file.metadata()?;
    Ok((file, (about.dev(), about.ino())))
}

fn line(time: Timestamp, event: &Event) -> String {
    let line = Line { time: format!("{time:.3}"), event };
    // These are plain structs, which always have a JSON form.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device is always full, and a link to it can be moved away.
    #[test]
    fn nobody_waits_for_a_full_disk_and_what_matters_is_written_once_the_file_is_moved_away() -> io::Result<()>
    {
        let file = std::env::temp_dir().join(format!("fencepost-audit-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        std::os::unix::fs::symlink("/dev/full", &file)?;
        let audit = Audit::open(AuditTarget::File(file.clone()))?;
        let changed = |detail: &str| Event::changed("keys", Ok(detail.to_owned()));
        audit.record(changed("first"));
        for _ in 0..2 * MOST_LINES {
            audit.note(Event::KeyUse { who: Who::default(), right: None, lock: None, status: None });
        }
        audit.record(changed("last"));
        std::fs::remove_file(&file)?;
        audit.reopen();
        let read = || std::fs::read_to_string(&file).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !(read().contains("\"last\"") && read().contains("dropped")) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let text = read();
        std::fs::remove_file(&file)?;
        assert!(text.contains("\"first\"") && text.contains("\"last\""), "{}", text.len());
        assert!(text.lines().count() < MOST_LINES + 10, "there is no room for all");
        assert!(text.contains("\"event\":\"dropped\",\"lines\":4"), "{:?}", text.lines().last());
        Ok(())
    }
}
