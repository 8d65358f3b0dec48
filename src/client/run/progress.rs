//! What a person at a terminal sees while `run` waits for the lock. In a pipe, nothing.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::terminal::Terminal;
use crate::client::Busy;
use crate::clock::boottime;
use crate::log::unseen::{Form, escaped};

/// To the beginning of the line, and nothing on it.
const ERASE: &str = "\r\x1b[K";

/// A line on the terminal that is written anew again and again.
pub(super) struct Progress<'a> {
    began_at: Duration,
    terminal: &'a Terminal,
    is_terminal: bool,
    place: Option<String>,
    is_shown: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(terminal: &'a Terminal) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { began_at: boottime(), terminal, is_terminal, place: None, is_shown: false }
    }

    /// Whether anybody sees it. A job in the background stays silent: its terminal shows something else.
    pub(super) fn is_seen(&self) -> bool {
        self.is_terminal && self.terminal.is_ours()
    }

    /// Notes the position in the queue, and shows it.
    pub(super) fn note(&mut self, key: &str, busy: &Busy) {
        self.place = Some(match busy.position {
            Some(position) => format!("waiting for {key:?}: position {position} of {}", busy.waiters),
            None => format!("waiting for {key:?}: {}", busy.reason),
        });
        self.show();
    }

    /// Notes why there is no answer, and shows it.
    pub(super) fn trouble(&mut self, key: &str, reason: &str) {
        self.place = Some(format!("waiting for {key:?}: {reason}"));
        self.show();
    }

    /// Shows it with the time that has passed.
    pub(super) fn show(&mut self) {
        let Some(place) = self.place.as_ref().filter(|_| self.is_seen()) else { return };
        let elapsed = Duration::from_secs((boottime() - self.began_at).as_secs());
        let line = escaped(&format!("{place}, {}", humantime::format_duration(elapsed)), Form::Text);
        self.is_shown |= write(&format!("{ERASE}{}", line.trim_end()));
    }

    /// Leaves an empty line for what comes next.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            // The next writer finds out what is wrong with the terminal.
            let _ = write(ERASE);
        }
    }
}

/// Returns whether it is written. A terminal that takes nothing, as after Ctrl-S, must not keep the signals and the answers waiting.
fn write(text: &str) -> bool {
    let mut stderr = io::stderr();
    let takes_more = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default()));
    takes_more == Ok(1) && stderr.write_all(text.as_bytes()).is_ok()
}
