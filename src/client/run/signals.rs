//! The signals that reach this process while a command runs under it.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::timeout;

use super::processes::ShellJob;

/// Those that would end this process: the command gets them instead.
pub(super) const PASSED_ON: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The signals that arrive. They are caught as long as this exists, so none is lost between the grant and the command.
///
/// They are caught and not ignored: `exec` removes handlers, but a command inherits what is ignored.
pub(crate) struct Signals {
    passed_on: Vec<(Signal, Stream)>,
    child: Stream,
    resumed: Stream,
    /// It would end this process, and not its command: what prints learns from the failed write that a file is too long.
    _file_too_long: Stream,
    /// From when there is a command to stop with.
    stop: Option<Stream>,
}

impl Signals {
    /// A signal that the starter of this process blocks would never arrive, and a command that has ended would not be
    /// noticed. So those that are caught are unblocked, also for the command.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored_signals()?;
        // What was ignored when this process started, as by `nohup`, stays so, here and for the command.
        let is_heard = |signal: &Signal| ignored & (1 << (signal.as_raw() - 1)) == 0;
        let streams = PASSED_ON.into_iter().filter(is_heard).map(|name| {
            let stream = signal(SignalKind::from_raw(name.as_raw()))?;
            Ok((name, stream))
        });
        let caught = Self {
            passed_on: streams.collect::<io::Result<_>>()?,
            child: signal(SignalKind::child())?,
            resumed: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
            _file_too_long: signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?,
            stop: None,
        };
        let mut open =
            SigSet::from_iter([Blocked::SIGCHLD, Blocked::SIGCONT, Blocked::SIGTSTP, Blocked::SIGXFSZ]);
        open.extend(PASSED_ON.into_iter().filter_map(|signal| Blocked::try_from(signal.as_raw()).ok()));
        // Only now: one that waited already would have ended this process.
        open.thread_unblock()?;
        Ok(caught)
    }

    /// Has the command hear this signal, although it was ignored, as a shell has its background jobs ignore SIGINT. It is not passed on.
    pub(super) fn hear(name: Signal) -> io::Result<()> {
        // The handler stays when the stream is dropped.
        signal(SignalKind::from_raw(name.as_raw())).map(drop)
    }

    /// Catches what a terminal sends to stop us: from now on we stop when the command has stopped, and not before.
    pub(super) fn catch_stop(&mut self) -> io::Result<()> {
        let stop = Signal::TSTP.as_raw();
        if ignored_signals()? & (1 << (stop - 1)) == 0 {
            self.stop = Some(signal(SignalKind::from_raw(stop))?);
        }
        Ok(())
    }

    /// One that is to be passed on.
    pub(crate) async fn next(&mut self) -> Signal {
        next_of(&mut self.passed_on).await
    }

    /// The same when gateways have been told all. If the terminal stops us, or has since the command ended, there is none to stop
    /// with any more.
    pub(super) async fn next_or_stop(&mut self) -> Signal {
        loop {
            tokio::select! {
                biased;
                signal = next_of(&mut self.passed_on) => return signal,
                Some(_) = async { self.stop.as_mut()?.recv().await } => stop_alone(),
            }
        }
    }

    /// Drops those that have arrived and were not passed on.
    pub(super) async fn forget(&mut self) {
        while timeout(Duration::ZERO, self.next()).await.is_ok() {}
    }

    /// Whatever comes first. Children may end all the time: that they do must not keep other signals waiting.
    pub(super) async fn any(&mut self) -> SignalEvent {
        tokio::select! {
            biased;
            _ = self.resumed.recv() => SignalEvent::Resumed,
            signal = next_of(&mut self.passed_on) => SignalEvent::ToPassOn(signal),
            Some(_) = async { self.stop.as_mut()?.recv().await } => SignalEvent::ToPassOn(Signal::TSTP),
            _ = self.child.recv() => SignalEvent::Child,
        }
    }
}

/// What a signal means here.
pub(super) enum SignalEvent {
    /// A child has ended or stopped.
    Child,
    /// This process goes on after it was stopped.
    Resumed,
    ToPassOn(Signal),
}

async fn next_of(streams: &mut [(Signal, Stream)]) -> Signal {
    poll_fn(|context| {
        for (name, stream) in streams.iter_mut() {
            if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                return Poll::Ready(*name);
            }
        }
        Poll::Pending
    })
    .await
}

/// Stops this process, if there is a shell that can let it go on.
fn stop_alone() {
    if ShellJob::find().is_some() {
        // It is always allowed.
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// The signals that this process ignores, as a mask.
fn ignored_signals() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| io::Error::other("/proc/self/status does not say which signals are ignored"))
}
