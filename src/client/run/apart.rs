//! A run in a process of its own, where this one has children that the command did not start.
//!
//! A shell that has started jobs and then becomes this program by `exec` leaves it those jobs as children. What such a
//! job leaves behind, and what the command leaves behind, would both come to this process, and could not be told apart.
//! So the run gets a new process, which has no children but those of its command. This one, whose number others know,
//! passes signals on to it, stops after it, and ends with its exit status.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::errno::Errno as NixErrno;
use nix::sys::signal::{SigSet, Signal as Blocked};
use nix::sys::signalfd::SignalFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::signals::{PASSED_ON, Signals};
use super::{conceal, exit_status};
use crate::client::{CommandFailure, exit_code, expect_descriptors};

/// The `si_code` of a signal that the kernel sends by itself, as for a key of the terminal.
const FROM_KERNEL: i32 = 0x80;

/// Has another process do the run, and returns its exit status, if this one has children already; otherwise nothing.
pub fn run_apart() -> Option<ExitCode> {
    if !has_children() {
        return None;
    }
    Some(match start_and_follow() {
        Ok(status) => ExitCode::from(exit_status(status)),
        Err(error) => exit_code(Err(CommandFailure::not_possible(format!(
            "cannot start a process of its own: {error}"
        )))),
    })
}

/// Whether there is a child that has not ended.
fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn start_and_follow() -> io::Result<WaitStatus> {
    conceal()?;
    expect_descriptors()?;
    // From here on no signal ends this process. Handlers are not inherited, as what is ignored or blocked would be.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut early = runtime.block_on(async { Signals::catch() })?;
    // In the same process group, so that it is stopped, and goes on, with this one.
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let run = Pid::from_child(&command.args(arguments).spawn()?);
    // Only this way of hearing a signal says where it comes from.
    let mut heard = SigSet::from(Blocked::SIGCHLD);
    heard.extend(PASSED_ON.into_iter().filter_map(|signal| Blocked::try_from(signal.as_raw()).ok()));
    heard.thread_block()?;
    let stop = SigSet::from(Blocked::SIGTSTP);
    stop.thread_block()?;
    let signals = SignalFd::new(&heard)?;
    let pass_on = |signal| {
        // A process that has ended needs none.
        let _ = kill_process(run, signal);
    };
    runtime.block_on(async {
        while let Ok(signal) = timeout(Duration::ZERO, early.next()).await {
            pass_on(signal);
        }
    });
    loop {
        // Several children that end at once are one signal.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid != run {
                continue;
            }
            if status.stopping_signal().is_none() {
                return Ok(status);
            }
            // Only now may the terminal's SIGTSTP, or the run's, stop this process. A shell that sees it stopped may let
            // all go on at once, and a run that stopped after that would stay so. A SIGCONT has discarded the SIGTSTP.
            stop.thread_unblock()?;
            stop.thread_block()?;
        }
        let received = match signals.read_signal() {
            Ok(Some(received)) => received,
            Ok(None) | Err(NixErrno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let signal = i32::try_from(received.ssi_signo).ok().and_then(Signal::from_named_raw);
        // What the terminal sends, it sends to the whole group.
        if let Some(signal) = signal
            && signal != Signal::CHILD
            && received.ssi_code != FROM_KERNEL
        {
            pass_on(signal);
        }
    }
}
