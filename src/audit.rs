//! The audit log: who did what with which key, as one JSON object a line.
//!
//! A thread of its own writes it, so a slow disk stops no request. If the disk cannot follow, uses of keys are left
//! out, and one line says how many. Broken locks and changes of settings are rare, and matter most. They have room when
//! uses of keys have none, and are also in the normal log. No request waits for them either. No secret and no token
//! gets into this log.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::Serialize;
use tokio::sync::watch;

use crate::log::unseen::{Form, push_escaped};
use crate::log::writer::{LogRecord, LogWriter, Opened, Outlet};
use crate::telemetry::metrics::LogName;

/// Lines that wait for the disk.
const MOST_LINES: usize = 4096;
/// The most lines that wait when one more is important. Even broken locks, which are also in the normal log, must not
/// fill the memory while a disk is full.
const MOST_IMPORTANT_LINES: usize = 16 * MOST_LINES;
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
    /// Where the request came from: the last proxy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The key that was shown; absent if the gateway has no keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The name of the one that the key was given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
}

/// An event that gets a line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A request with a good key.
    KeyUse {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it")]
        who: Who,
        /// The right that the request needed, if the request was read that far.
        #[serde(skip_serializing_if = "Option::is_none")]
        right: Option<&'static str>,
        /// What it asked for, as the metrics name it.
        operation: &'static str,
        /// The lock that it was about.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<String>,
        /// Or the record.
        #[serde(skip_serializing_if = "Option::is_none")]
        record: Option<String>,
        /// The status of the answer; absent if the connection ended before it was written.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// The name of its problem, where it refuses: other protocols may have the status 200 for that.
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<&'static str>,
    },
    /// A key was shown that is not accepted. Or several were, and they share a line.
    KeyRefused {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it; the id is what the key claimed")]
        who: Who,
        /// Why it is not accepted.
        reason: &'static str,
        /// How many keys were shown.
        count: u64,
    },
    /// Requests with a good key were refused, because its rate was used up. They share a line.
    RateLimited {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it")]
        who: Who,
        /// How many requests.
        count: u64,
    },
    /// A lock or a record was broken, or was to be.
    Break {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "the type says it")]
        who: Who,
        /// The right that it needed.
        #[serde(skip_serializing_if = "Option::is_none")]
        right: Option<&'static str>,
        /// The lock.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<String>,
        /// Or the record.
        #[serde(skip_serializing_if = "Option::is_none")]
        record: Option<String>,
        /// The fencing token of the grant that was ended, or was to be; absent if it is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        fencing_token: Option<u64>,
        /// The note of who had it.
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// `broken`, or `unknown` if the store did not answer.
        outcome: &'static str,
    },
    /// New settings are used, or could not be used.
    Configuration {
        /// Which: `start`, `keys`, `certificates`.
        what: &'static str,
        /// Whether they are used.
        is_in_force: bool,
        /// What has changed, or what is wrong.
        detail: String,
        /// The settings that matter for access.
        #[serde(flatten)]
        settings: BTreeMap<&'static str, String>,
    },
    /// Lines about uses of keys are missing here.
    Dropped {
        /// How many lines.
        lines: u64,
    },
}

/// The audit log, or the lack of one.
#[derive(Debug, Default)]
pub struct Audit(Option<LogWriter<Noted>>);

/// An event, as it waits to be written.
#[derive(Debug)]
struct Noted(Timestamp, Event);

/// A line as it is written.
#[derive(Serialize)]
struct Written<'e> {
    time: String,
    #[serde(flatten)]
    event: &'e Event,
}

impl Audit {
    /// No audit log: what matters most is in the normal log.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the audit log at `target`, to append to it.
    pub fn open(target: AuditTarget) -> io::Result<Self> {
        let outlet = match target {
            AuditTarget::StandardError => Outlet::StandardError,
            AuditTarget::File(path) => Outlet::File(path, append_to),
        };
        Ok(Self(Some(LogWriter::start(outlet)?)))
    }

    /// Whether there is an audit log. If not, a caller need not make a line.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes a line, unless the disk cannot follow.
    pub fn note(&self, event: Event) {
        self.write(event, MOST_LINES);
    }

    /// Writes a line that must not be missed, also to the normal log.
    pub fn record(&self, event: Event) {
        event.log();
        self.write(event, MOST_IMPORTANT_LINES);
    }

    fn write(&self, event: Event, most: usize) {
        if let Some(writer) = &self.0 {
            writer.write(Noted(Timestamp::now(), event), most);
        }
    }

    /// Opens the file again whenever that is asked for, as after it was moved away.
    pub async fn keep_open(self: Arc<Self>, mut asked: watch::Receiver<()>) {
        while asked.changed().await.is_ok() {
            self.reopen();
        }
    }

    fn reopen(&self) {
        if let Some(writer) = &self.0 {
            writer.reopen();
        }
    }

    /// Blocks until all lines are written, for at most `within`.
    pub fn finish(&self, within: Duration) {
        if let Some(Err(lines)) = self.0.as_ref().map(|writer| writer.finish(within)) {
            tracing::warn!(lines, "the last lines of the audit log could not be written");
        }
    }
}

impl LogRecord for Noted {
    const LOG: LogName = LogName::Audit;

    fn write_to(&self, text: &mut String) {
        let Self(time, event) = self;
        let line = Written { time: format!("{time:.3}"), event };
        // Events are plain structs, which always have a JSON form.
        push_escaped(text, &serde_json::to_string(&line).unwrap_or_default(), Form::Json);
    }

    fn is_important(&self) -> bool {
        self.1.is_important()
    }

    fn missing(lines: u64) -> Option<Self> {
        Some(Self(Timestamp::now(), Event::Dropped { lines }))
    }

    fn failed(error: &io::Error) {
        tracing::warn!(%error, "cannot write the audit log");
    }
}

impl Event {
    /// The settings were read again. `read` is what has changed, or why they cannot be used.
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
            Self::Break { who, right, lock, record, fencing_token, owner, outcome } => {
                let Who { request_id, address, key_id, key_name } = who;
                let doubt = if *outcome == "unknown" { "it is not known whether " } else { "" };
                tracing::warn!(
                    request_id,
                    address,
                    key_id,
                    key_name,
                    right,
                    key = lock.as_ref().or(record.as_ref()),
                    fencing_token,
                    owner,
                    outcome,
                    "{doubt}a {} was broken",
                    if record.is_some() { "record" } else { "lock" }
                );
            }
            Self::Configuration { what, is_in_force: true, detail, settings } if settings.is_empty() => {
                tracing::info!(what, detail, "settings are in force");
            }
            Self::Configuration { what, is_in_force: true, detail, settings } => {
                let settings = settings.iter().map(|(name, value)| format!("{name}: {value}"));
                let settings = settings.collect::<Vec<_>>().join("; ");
                tracing::info!(what, detail, settings, "settings are in force");
            }
            Self::Configuration { what, detail, .. } => {
                tracing::warn!(what, detail, "new settings are wrong: those before stay in force");
            }
            Self::KeyUse { .. }
            | Self::KeyRefused { .. }
            | Self::RateLimited { .. }
            | Self::Dropped { .. } => {}
        }
    }
}

/// Opens the file to append to it.
fn append_to(path: &Path) -> io::Result<Opened> {
    // A pipe that no process reads is an error, and lets no line wait.
    let at_once = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(at_once).open(path)?;
    let about = file.metadata()?;
    let read_ends = || {
        let (read, mut first, mut last) = (File::open(path)?, [0], [0]);
        read.read_exact_at(&mut first, 0)?;
        read.read_exact_at(&mut last, about.len() - 1)?;
        io::Result::Ok((first, last))
    };
    let ends = if about.is_file() && about.len() > 0 { read_ends().ok() } else { None };
    // A line more makes a store, or a file of keys, useless. A power cut may leave zeros in the place of lines.
    if ends.is_some_and(|(first, _)| !matches!(&first, b"{" | b"\n" | b"\0")) {
        return Err(io::Error::other("it is no audit log: it does not begin with a JSON object"));
    }
    // The process before may have ended while the disk was full.
    let is_torn = ends.is_some_and(|(_, last)| last != *b"\n");
    Ok(Opened { file, identity: (about.dev(), about.ino()), is_torn })
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

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
            let (who, operation) = (Who::default(), "other");
            audit.note(Event::KeyUse {
                who,
                right: None,
                operation,
                lock: None,
                record: None,
                status: None,
                problem: None,
            });
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
        assert_eq!(text.lines().count(), 3, "no use of a key waits behind a line that matters");
        let dropped = format!("\"event\":\"dropped\",\"lines\":{}}}", 2 * MOST_LINES);
        assert!(text.contains(&dropped), "{:?}", text.lines().last());
        Ok(())
    }
}
