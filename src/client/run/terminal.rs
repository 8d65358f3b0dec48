//! The terminal, if there is one: who may read from it.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blocked};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal that controls this session.
pub(crate) struct Terminal {
    tty: Option<File>,
    own_group: Pid,
    /// Whether the command is to have it whenever we have it.
    is_wanted: bool,
    is_lent: bool,
    /// Its modes before the command could change them.
    modes: Option<Termios>,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok();
        let modes = tty.as_ref().and_then(|tty| tcgetattr(tty).ok());
        // In a pipe, another of the same job may be the one that reads keys, as `less` does. The command gets the
        // terminal then once it turns out to want it.
        let is_wanted = io::stdin().is_terminal() && io::stdout().is_terminal();
        Self { tty, own_group: getpgrp(), is_wanted, is_lent: false, modes }
    }

    pub(super) fn is_there(&self) -> bool {
        self.tty.is_some()
    }

    /// Whether it is our group that the terminal listens to.
    pub(super) fn is_ours(&self) -> bool {
        self.belongs_to(self.own_group)
    }

    /// Whether it is this group that the terminal listens to.
    pub(super) fn belongs_to(&self, group: Pid) -> bool {
        self.tty.as_ref().is_some_and(|tty| tcgetpgrp(tty).ok() == Some(group))
    }

    /// The command has been stopped because it wanted the terminal.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Lets the command have it, if it is ours and wanted.
    pub(super) fn lend(&mut self, command: Pid) {
        if self.is_wanted && self.is_ours() {
            self.is_lent = self.set_foreground(command).is_ok();
        }
    }

    /// Takes it back from the command.
    pub(super) fn take_back(&mut self) {
        if std::mem::take(&mut self.is_lent) {
            // If the terminal has gone, no process reads from it any more.
            let _ = self.set_foreground(self.own_group);
        }
    }

    /// Sets the modes that it had, after a command that could not do so itself.
    pub(super) fn restore(&self) {
        if let (Some(tty), Some(modes)) = (&self.tty, &self.modes)
            && self.is_ours()
        {
            let _ = tcsetattr(tty, OptionalActions::Now, modes);
        }
    }

    fn set_foreground(&self, group: Pid) -> io::Result<()> {
        let Some(tty) = &self.tty else { return Ok(()) };
        // From the background this stops a process that does not block SIGTTOU. To ignore it would be inherited by the
        // command.
        let ttou = SigSet::from(Blocked::SIGTTOU);
        let before = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let done = tcsetpgrp(tty, group);
        before.thread_set_mask()?;
        Ok(done?)
    }
}
