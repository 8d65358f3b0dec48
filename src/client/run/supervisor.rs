//! The command while it runs: its lease is renewed, signals are passed on, and no process outlives the lease.
//!
//! One loop in one thread. Each turn begins with a look at the clock. This process may have been stopped, or the machine
//! may have slept: so it first kills what has outlived its lease, whatever has woken it.

use std::time::Duration;

use rustix::process::{Signal, WaitStatus};
use tokio::task::yield_now;

use super::RunSettings;
use super::lease::{Alarm, LeaseClock};
use super::processes::{Family, REAPED_AT_ONCE, Reaped, ShellJob};
use super::renewals::Renewals;
use super::signals::{SignalEvent, Signals};
use super::terminal::Terminal;
use crate::client::{RenewAnswer, Trouble};
use crate::clock::boottime;
use crate::lock::written;

/// How often a command that was stopped for the terminal is let go on, if it cannot have it and nothing stops us with it.
const LET_GO_ON: Duration = Duration::from_millis(50);

/// How it has ended.
pub(super) enum End {
    /// The command has ended by itself.
    Ended { status: WaitStatus, is_nobody_left: bool, passed_on: Option<Signal> },
    /// The lease was lost, and everybody was killed.
    Lost { problem: String, is_nobody_left: bool },
}

/// What holds while a command runs.
pub(super) struct CommandSupervisor<'a> {
    pub(super) settings: &'a RunSettings,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: &'a mut Terminal,
    pub(super) family: &'a Family,
    pub(super) lease: LeaseClock,
    pub(super) renewals: Renewals<'a>,
    pub(super) alarm: Alarm,
    pub(super) state: CommandState,
}

/// How far things have come.
#[derive(Default)]
pub(super) struct CommandState {
    /// How the command has ended.
    status: Option<WaitStatus>,
    /// The last signal that it was sent through this process.
    passed_on: Option<Signal>,
    /// It was sent what tells it to end.
    was_told: bool,
    /// The command was stopped.
    stopped: Option<Signal>,
    /// When what the command has left behind is killed, after it was asked to end.
    leftovers_end_at: Option<Duration>,
    /// The lease is not going to be renewed, and all were asked to end.
    is_losing: bool,
    /// Why the lock is not ours any more.
    gone: Option<String>,
    /// It may not be held any longer.
    is_longest: bool,
}

/// What a look at the children has found.
enum ChildrenFound {
    All,
    /// So many that others may be there.
    Many,
    /// The command was stopped.
    StoppedCommand,
}

impl CommandSupervisor<'_> {
    /// Watches until no process is left.
    pub(super) async fn watch(mut self) -> std::io::Result<End> {
        let mut event = None;
        loop {
            if let Some(end) = self.end_of_lease() {
                return Ok(end);
            }
            let found = self.reap();
            if matches!(found, ChildrenFound::StoppedCommand) {
                self.stop_with_command();
                continue;
            }
            match event.take() {
                // What it left behind was asked to end already.
                Some(SignalEvent::ToPassOn(signal)) if self.state.status.is_none() => {
                    // SIGTERM asks for the end, so the command gets what tells it to end.
                    let sent = if signal == Signal::TERM { self.settings.signal } else { signal };
                    self.state.passed_on = Some(sent);
                    self.state.was_told |= sent == self.settings.signal;
                    self.family.signal_command(sent);
                    // If it was stopped, it hears of that only when it goes on.
                    match signal {
                        _ if self.state.stopped.is_none() => {}
                        Signal::USR1 | Signal::USR2 => {}
                        // That may have taken long, so look at the lease first.
                        Signal::TSTP => {
                            self.stop_with_command();
                            continue;
                        }
                        _ => self.let_command_go_on(),
                    }
                }
                Some(SignalEvent::Resumed) if self.state.stopped.is_some() => self.let_command_go_on(),
                Some(_) | None => {}
            }
            if let Some(end) = self.end_of_command() {
                return Ok(end);
            }
            self.renewals.send_if_due(&self.lease);
            tokio::select! {
                biased;
                rung = self.alarm.until(self.wakes_at()) => rung?,
                (number, answer) = self.renewals.answer() => self.learn(number, answer),
                any = self.signals.any() => event = Some(any),
                // The rest of the children is for the next turn.
                () = yield_now(), if matches!(found, ChildrenFound::Many) => {}
            }
        }
    }

    /// Kills everybody if the lease is over, or almost.
    fn end_of_lease(&mut self) -> Option<End> {
        let now = boottime();
        if self.state.gone.is_none() && now < self.lease.kills_at() {
            return None;
        }
        // What has ended by itself was not ended by us. A result is stored without a lease, unless another took over.
        self.reap();
        let is_nobody_left = self.family.kill();
        let passed_on = self.state.passed_on;
        let is_work = self.settings.lock.once.is_some() && !self.state.is_losing;
        if let Some(status) = self.state.status.filter(|status| is_work && status.exit_status() == Some(0)) {
            return Some(End::Ended { status, is_nobody_left, passed_on });
        }
        let keys = self.settings.lock.keys();
        let why = match self.state.gone.take() {
            Some(reason) => {
                let one = self.settings.lock.said_of("", "one of ");
                format!("{one}{} was lost: {reason}", self.settings.lock.name())
            }
            None if now >= self.lease.ends_at() => {
                format!("the lease of {keys} ended while this process or the machine stood still")
            }
            None => self.why_not_renewed(),
        };
        let what = if is_nobody_left {
            "the command was ended"
        } else {
            "the command, or something that it started, could not be ended"
        };
        Some(End::Lost { problem: format!("{why}; {what}"), is_nobody_left })
    }

    fn why_not_renewed(&self) -> String {
        let lock = &self.settings.lock;
        match lock.max_hold.filter(|_| self.state.is_longest) {
            Some(most) => {
                let most = written(most);
                format!("{} may not be held for longer than {most} (--max-hold)", lock.name())
            }
            None => format!("the lease of {} could not be renewed: {}", lock.keys(), self.renewals.failure()),
        }
    }

    /// Ends what the command leaves behind, and the command itself when its lease is about to end.
    fn end_of_command(&mut self) -> Option<End> {
        let now = boottime();
        let Some(status) = self.state.status else {
            if now >= self.renewals.terms_at(&self.lease) && !self.state.is_losing {
                self.state.is_losing = true;
                // The command was asked to end. A gateway that comes back changes nothing about that.
                let failure = self.renewals.failure();
                self.renewals.end(failure);
                self.family.terminate(self.settings.signal, self.state.was_told);
            }
            return None;
        };
        let passed_on = self.state.passed_on;
        if self.family.is_gone() {
            if !self.state.is_losing {
                return Some(End::Ended { status, is_nobody_left: true, passed_on });
            }
            let problem = format!("{}; the command was ended", self.why_not_renewed());
            return Some(End::Lost { problem, is_nobody_left: true });
        }
        match self.state.leftovers_end_at {
            // They were asked to end together with the command.
            _ if self.state.is_losing && self.settings.signal == Signal::TERM => None,
            Some(end_at) if now >= end_at => {
                let is_nobody_left = self.family.kill();
                Some(End::Ended { status, is_nobody_left, passed_on })
            }
            Some(_) => None,
            None => {
                self.state.leftovers_end_at = Some(now + self.settings.kill_after);
                // What ends the command may be for it alone: shells have their background jobs ignore SIGINT.
                self.family.terminate(Signal::TERM, false);
                None
            }
        }
    }

    /// When something is to be done, if nothing happens before.
    fn wakes_at(&self) -> Duration {
        let may_term = !self.state.is_losing && self.state.status.is_none();
        let terms_at = may_term.then(|| self.renewals.terms_at(&self.lease));
        let times = [terms_at, self.state.leftovers_end_at, self.renewals.next_at()];
        times.into_iter().flatten().fold(self.lease.kills_at(), Duration::min)
    }

    fn learn(&mut self, number: usize, answer: Result<RenewAnswer, Trouble>) {
        match answer {
            Ok(RenewAnswer::Held(held)) => {
                self.lease.extend(&held);
                self.renewals.succeeded(number, &held);
            }
            Ok(RenewAnswer::Gone(reason)) => self.state.gone = Some(reason),
            Ok(RenewAnswer::MaxHoldReached(_)) => {
                self.state.is_longest = true;
                self.renewals.end("it may not be held any longer".into());
            }
            Err(trouble) => self.renewals.failed(number, trouble),
        }
    }

    /// Notes what has become of children. The kernel names the oldest first, so the command comes before what it leaves behind.
    fn reap(&mut self) -> ChildrenFound {
        for _ in 0..REAPED_AT_ONCE {
            let Some(Reaped { pid, status }) = self.family.reap() else { return ChildrenFound::All };
            if pid != self.family.command {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                self.state.stopped = Signal::from_named_raw(signal);
                return ChildrenFound::StoppedCommand;
            }
            self.state.status = Some(status);
            self.state.stopped = None;
        }
        ChildrenFound::Many
    }

    /// The command was stopped: from the terminal, we stop with it, as one job does. SIGSTOP is from the terminal if the command
    /// is in its foreground: so stops what had to do something else first, as a `run` within this one or an interactive shell.
    fn stop_with_command(&mut self) {
        let stopped = self.state.stopped;
        let wants_terminal = matches!(stopped, Some(Signal::TTIN | Signal::TTOU));
        // A quick command may have read before it was lent the terminal. By now it may have it.
        let can_have_it = self.terminal.is_ours() || self.terminal.belongs_to(self.family.command);
        if !self.terminal.is_there() || !(wants_terminal || can_have_it || stopped == Some(Signal::TSTP)) {
            // It goes on when the one that stopped it says so. Meanwhile the lease is renewed.
            return;
        }
        let job = ShellJob::find();
        // Without a shell, one that sent SIGSTOP sends SIGCONT too.
        if job.is_none() && stopped == Some(Signal::STOP) {
            return;
        }
        if wants_terminal {
            self.terminal.want();
        }
        if !(wants_terminal && can_have_it) {
            self.terminal.take_back();
            if let Some(job) = job {
                job.stop(self.lease.kills_at());
            }
            let left = self.lease.kills_at().saturating_sub(boottime());
            std::thread::sleep(LET_GO_ON.min(left));
        }
        if boottime() < self.lease.kills_at() {
            self.let_command_go_on();
        } else {
            self.renewals.end("run was stopped".into());
        }
    }

    fn let_command_go_on(&mut self) {
        self.terminal.lend(self.family.command);
        self.state.stopped = None;
        self.family.signal_command(Signal::CONT);
    }
}
