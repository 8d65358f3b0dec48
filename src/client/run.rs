//! `fencepost run`: a command that runs while a lock is held.
//!
//! It takes the lock, starts the command, renews at a third of the ttl and releases at the end. If the lease cannot be
//! renewed, the command and all that it has started are dead before the lease ends.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::sys::signal::Signal as SignalName;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitStatus, set_dumpable_behavior};

use crate::client::{
    AcquireSettings, CommandFailure, GatewaySettings, Gateways, HeldGrant, LOCK, LOST, by_signal, carry_out,
    fresh_token, say,
};
use crate::clock::boottime;
use crate::lock::LeaseToken;

mod apart;
mod ending;
mod lease;
mod once;
mod processes;
mod progress;
mod renewals;
mod signals;
mod supervisor;
mod terminal;
mod turn;

pub use apart::run_apart;
pub(crate) use signals::Signals;
pub(crate) use terminal::Terminal;
pub(crate) use turn::take;

use ending::{LAST_WORD_MAY_TAKE, release};
use lease::{Alarm, LeaseClock};
use once::CommandOutput;
use processes::{Family, adopt_orphans};
use renewals::{Renewals, grant_may_take};
use supervisor::{CommandState, CommandSupervisor, End};
use turn::{Cause, NotTaken};

/// What a command finds of its own lock or its own work only. `ONCE_EARLIER` is left as it is found: within `once`, it warns
/// the command of `run` of work that may be done already. It is no number to claim with.
const OWN_VARIABLES: [&str; 5] = ["LOCK_KEY", "LOCK_SLOT", "FENCING_TOKEN", "LEASE_TOKEN", "ONCE_KEY"];
/// What the command finds of each of several locks, with its number behind.
const NAMES_OF_SEVERAL: [&str; 3] = ["LOCK_KEY", "FENCING_TOKEN", "LOCK_SLOT"];
/// No gateway gives more.
const MOST_LOCKS: usize = 16;
/// The statuses that shells use for a command that cannot be started, and for one that does not exist.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What `run` needs to know, checked.
pub struct RunSettings {
    /// The gateways that are asked.
    pub gateways: GatewaySettings,
    /// The lock.
    pub lock: AcquireSettings,
    /// What asks the command to end.
    pub signal: Signal,
    /// How long processes that are asked to end may take for that.
    pub kill_after: Duration,
    /// The exit status if another client had the lock until the wait was over.
    pub busy_exit: u8,
    /// The exit statuses that say: certainly nothing of the work was done.
    pub clean_statuses: Vec<u8>,
    /// Whether the command gets the token.
    pub passes_token: bool,
    /// The command.
    pub program: OsString,
    /// What it is called with.
    pub arguments: Vec<OsString>,
}

/// Runs the command under the lock, and returns its exit status.
pub fn run(settings: &RunSettings) -> ExitCode {
    carry_out(run_under_lock(settings))
}

fn unsupervised(error: io::Error) -> CommandFailure {
    CommandFailure::not_possible(format!("cannot supervise a command: {error}"))
}

async fn run_under_lock(settings: &RunSettings) -> Result<u8, CommandFailure> {
    // All that can fail on this machine does so before there is a lock.
    conceal().map_err(unsupervised)?;
    let mut signals = Signals::catch().map_err(unsupervised)?;
    // SIGTERM is what a command hears unless its starter wants otherwise.
    if settings.signal != Signal::TERM {
        Signals::hear(settings.signal).map_err(unsupervised)?;
    }
    adopt_orphans().map_err(unsupervised)?;
    let alarm = Alarm::new().map_err(unsupervised)?;
    let mut terminal = Terminal::open();
    let (mut token, lock) = (fresh_token()?, &settings.lock);
    let path = if lock.once.is_some() { "once" } else { LOCK };
    let keys: Vec<_> = lock.all_keys().cloned().collect();
    let mut gateways = Gateways::at(path, &settings.gateways, &keys, Some(&token))?;

    let may_take = grant_may_take(lock.ttl, settings.kill_after);
    let held = match take(&mut gateways, lock, Some(&mut token), may_take, &mut signals, &terminal).await {
        Ok(held) => held,
        // That is no failure, and cron would mail what is said.
        Err(NotTaken { cause: Cause::Busy, may_be_held: false, .. }) if settings.busy_exit == 0 => {
            return Ok(0);
        }
        Err(NotTaken { cause: Cause::Done(result), .. }) => {
            return once::replay(lock, result, &mut signals).await;
        }
        Err(not_taken) => return Err(not_taken.explain(lock, settings.busy_exit)),
    };
    let lease = LeaseClock::new(&held, lock.ttl, settings.kill_after);
    let is_ready = signals.catch_stop().map_err(unsupervised);
    // Since the grant, this process may have been stopped, or blocked by its terminal. Or the machine slept.
    if boottime() >= lease.terms_at() {
        let keys = lock.keys();
        say(&format!("the lease of {keys} was almost over before the command could be started"));
        let _ = gateways.release(true, LAST_WORD_MAY_TAKE).await;
        return Ok(LOST);
    }
    let (command, mut output) = match is_ready.and_then(|()| start(settings, &token, &held)) {
        Ok(started) => started,
        Err(failure) => {
            release(lock, true, false, &mut gateways, &mut signals).await;
            return Err(failure);
        }
    };
    let family = Family { command };
    terminal.lend(command);
    let supervisor = CommandSupervisor {
        settings,
        signals: &mut signals,
        terminal: &mut terminal,
        family: &family,
        lease,
        renewals: Renewals::new(&mut gateways, &held, lock.ttl),
        alarm,
        state: CommandState::default(),
    };
    let end = supervisor.watch().await;
    if end.is_err() {
        // From here on nothing watches the lease.
        family.kill();
    }
    terminal.take_back();
    if let Some(output) = &mut output {
        output.close();
    }
    let ended = match end.map_err(unsupervised)? {
        End::Ended { status, is_nobody_left, passed_on } => {
            let code = exit_status(status);
            let ended = match &output {
                Some(output) if code == 0 => {
                    if !is_nobody_left {
                        say("something that the command started could not be ended");
                    }
                    once::store(lock, &mut gateways, &mut signals, &output.whole()).await
                }
                _ if is_nobody_left => {
                    // A signal may have come in the middle of the work, and 128 + n is ours to say.
                    let is_clean = status.exited() && settings.clean_statuses.contains(&code);
                    release(lock, is_clean, passed_on.is_some(), &mut gateways, &mut signals).await;
                    Ok(code)
                }
                _ => {
                    let (name, is) = (lock.name(), lock.said_of("is", "are"));
                    say(&format!(
                        "something that the command started could not be ended: {name} {is} not released"
                    ));
                    Ok(code)
                }
            };
            // Only now: others wait for the lock.
            tell_of_signal(status, passed_on);
            ended
        }
        End::Lost { problem, is_nobody_left } => {
            terminal.restore();
            // Before the release, which takes a while where no gateway answers.
            say(&problem);
            if is_nobody_left {
                // So the next client need not wait until the lease ends. What refused to renew may release.
                gateways.forget_troubles();
                let _ = gateways.release(false, LAST_WORD_MAY_TAKE).await;
            }
            Ok(LOST)
        }
    };
    if let Some(output) = output {
        let printed = output.finish(&mut signals).await;
        if matches!(ended, Ok(0)) {
            printed?;
        }
    }
    ended
}

/// Keeps the environment and the memory of this process, with the API key and the token in them, from other processes of
/// the same user, such as the command. Only root can read them then.
fn conceal() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

fn start(
    settings: &RunSettings,
    token: &LeaseToken,
    held: &HeldGrant,
) -> Result<(Pid, Option<CommandOutput>), CommandFailure> {
    let mut command = Command::new(&settings.program);
    command
        .args(&settings.arguments)
        // The command need not ask for locks, so it does not get the key to all of them.
        .env_remove("FENCEPOST_API_KEY")
        // The command gets a process group of its own. So a signal reaches all of it, and nothing else.
        .process_group(0);
    // What this process was given is of another lock or other work. A command that found the key of the one beside the number
    // of the other would claim with a number that is no grant of that lock.
    for name in OWN_VARIABLES {
        command.env_remove(name);
    }
    for number in 1..=MOST_LOCKS {
        for name in NAMES_OF_SEVERAL {
            command.env_remove(format!("{name}_{number}"));
        }
    }
    let (name, output) = if settings.lock.once.is_some() {
        let (output, writer) = CommandOutput::open(held.max_result_bytes).map_err(unsupervised)?;
        command.stdout(writer).env("ONCE_EARLIER", held.earlier.to_string());
        ("ONCE_KEY", Some(output))
    } else {
        ("LOCK_KEY", None)
    };
    if held.locks.is_empty() {
        command.env(name, settings.lock.key.as_str()).env("FENCING_TOKEN", held.fencing_token.to_string());
        if let Some(slot) = settings.lock.slot(held.slot) {
            command.env("LOCK_SLOT", slot.to_string());
        }
    }
    // A command of several locks finds neither name without a number: it could take the number of the first for that of all.
    for (number, lock) in (1..).zip(&held.locks) {
        let values = [
            Some(lock.key.clone()),
            Some(lock.fencing_token.to_string()),
            settings.lock.slot(lock.slot).map(|slot| slot.to_string()),
        ];
        for (name, value) in NAMES_OF_SEVERAL.into_iter().zip(values) {
            command.envs(value.map(|value| (format!("{name}_{number}"), value)));
        }
    }
    if settings.passes_token {
        command.env("LEASE_TOKEN", token.reveal());
    }
    match command.spawn() {
        Ok(child) => Ok((Pid::from_child(&child), output)),
        Err(error) => {
            let problem = format!("cannot run {:?}: {error}", settings.program);
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            Err(CommandFailure { problem, status: if is_missing { NOT_FOUND } else { NOT_EXECUTABLE } })
        }
    }
}

fn exit_status(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, Some(signal)) => by_signal(signal),
        (None, None) => u8::MAX,
    }
}

/// Says which signal has ended the command: it may have had no time to say anything. The sender of one that came through this
/// process knows of it, and shells are silent about SIGINT and SIGPIPE too.
fn tell_of_signal(status: WaitStatus, passed_on: Option<Signal>) {
    let Some(number) = status.terminating_signal() else { return };
    let is_known = [Some(Signal::INT), Some(Signal::PIPE), passed_on];
    if is_known.into_iter().flatten().any(|signal| signal.as_raw() == number) {
        return;
    }
    let name = SignalName::try_from(number).map_or("unknown", SignalName::as_str);
    say(&format!("the command was ended by signal {number} ({name})"));
}
