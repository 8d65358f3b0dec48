//! The command and all that it has started: finding them, signaling them, reaping them.
//!
//! This process is a *child subreaper*: a descendant whose parent has ended becomes its child, whatever session or group
//! it is in. So as long as there is a descendant there is a child. When the kernel says that there is no child, no process
//! has escaped. This process has no other children: if it had some before, the run is [apart](super::apart) from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SIGCONT, SigEvent, SigevNotify};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpgrp, getpid, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, set_child_subreaper, wait, waitid,
};

use crate::clock::boottime;

/// How long killing may take. A process that hangs in the kernel for longer does not run its own code again.
const DYING_MAY_TAKE: Duration = Duration::from_secs(5);
/// The pause between two looks when no new process was found.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// After so many looks at new processes alone, all processes are looked at, since numbers are used again in time.
const LOOKS_BETWEEN_WHOLE_ONES: u32 = 100;

/// How many children are reaped in one go. The kernel goes past all that live to find one that has ended, so where many live,
/// others may end faster than they are reaped.
pub(super) const REAPED_AT_ONCE: usize = 64;

/// How often a run that is stopped beyond its time is let go on.
const WAKES_EACH: Duration = Duration::from_millis(50);

/// A process, told from a later one of the same number by when it started.
type Identity = (i32, u64);

/// The command and its descendants.
pub(super) struct Family {
    /// The command, which leads a process group of its own.
    pub(super) command: Pid,
}

/// What became of a child.
pub(super) struct Reaped {
    pub(super) pid: Pid,
    pub(super) status: WaitStatus,
}

struct Process {
    identity: Identity,
    parent: i32,
    group: i32,
    session: i32,
}

/// Makes this process the one to which orphans among its descendants come.
pub(super) fn adopt_orphans() -> io::Result<()> {
    let own = getpid();
    let status = fs::read("/proc/self/status")?;
    if !is_of_own_namespace(&String::from_utf8_lossy(&status), own) {
        let advice = "mount one for this namespace, as unshare --mount-proc does";
        return Err(io::Error::other(format!("/proc is that of another PID namespace: {advice}")));
    }
    Ok(set_child_subreaper(Some(own))?)
}

impl Family {
    /// The next child that has ended or stopped, if any.
    pub(super) fn reap(&self) -> Option<Reaped> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => return Some(Reaped { pid, status }),
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Whether no process is left, not even a zombie.
    pub(super) fn is_gone(&self) -> bool {
        !has_child(WaitId::All)
    }

    /// Sends a signal to the command's process group, while the command is there, be it as a zombie.
    pub(super) fn signal_command(&self, signal: Signal) {
        // A process that has ended needs no signal.
        let _ = kill_process_group(self.command, signal);
    }

    /// Asks all to end by this signal, those that are stopped too. A command that was told already is not told again: by a second
    /// signal, many a program ends without waiting.
    pub(super) fn terminate(&self, signal: Signal, was_told: bool) {
        let told_by = [signal, Signal::CONT];
        self.signal_all(&told_by[usize::from(was_told)..], &told_by, &mut BTreeSet::new());
    }

    /// Ends all at once, and the processes that they start meanwhile, and reaps them. Returns whether none is left.
    pub(super) fn kill(&self) -> bool {
        let give_up = boottime() + DYING_MAY_TAKE;
        let mut others = BTreeSet::new();
        let (mut found, mut looks_alike) = (BTreeSet::new(), 0);
        for look in 0_u32.. {
            if look % LOOKS_BETWEEN_WHOLE_ONES == 0 {
                others.clear();
            }
            let found_before =
                std::mem::replace(&mut found, self.signal_all(&[Signal::KILL], &[Signal::KILL], &mut others));
            looks_alike = if found == found_before { looks_alike + 1 } else { 0 };
            // Not all that have ended: others may end as fast, and would be seen by no look any more.
            let most = found.len().max(REAPED_AT_ONCE);
            let _ = (0..most).try_for_each(|_| self.reap().map(drop));
            if self.is_gone() {
                return true;
            }
            if boottime() >= give_up {
                break;
            }
            // A process that forks as fast as it can is caught only by a faster loop. But processes that just stay may belong
            // to another user, or hang in the kernel: for them a pause is right.
            if found.is_empty() || looks_alike > LOOKS_BETWEEN_WHOLE_ONES {
                thread::sleep(LOOK_AGAIN);
            }
        }
        false
    }

    /// Sends signals to the command's group, and to all that are not in it, and returns who that was.
    fn signal_all(
        &self,
        of_group: &[Signal],
        of_rest: &[Signal],
        others: &mut BTreeSet<i32>,
    ) -> BTreeSet<Identity> {
        let members = self.members(others);
        let group = self.command.as_raw_nonzero().get();
        let (in_group, alone): (Vec<_>, Vec<_>) = members.iter().partition(|process| process.group == group);
        for &signal in of_group {
            // A group gets a signal in one step, in which none of it can have a child. Once it is empty and its leader is
            // reaped, its number may be another's.
            if !in_group.is_empty() || has_child(WaitId::Pid(self.command)) {
                self.signal_command(signal);
            }
        }
        for &signal in of_rest {
            alone.iter().for_each(|process| process.signal(signal));
        }
        members.iter().map(|process| process.identity).collect()
    }

    /// All that have not been reaped. One that looks like a zombie may have ended its first thread alone: the others work on.
    /// The `others` are known to be none of them, and are not read again: a process cannot become a descendant later.
    fn members(&self, others: &mut BTreeSet<i32>) -> Vec<Process> {
        // If /proc cannot be read, the group of the command is all that can be reached.
        let Ok(processes) = processes(others) else { return Vec::new() };
        let own = getpid().as_raw_nonzero().get();
        let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
        for process in processes.into_iter().filter(|process| process.identity.0 != own) {
            children.entry(process.parent).or_default().push(process);
        }
        let mut members = Vec::new();
        let mut parents = vec![own];
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                parents.push(child.identity.0);
                members.push(child);
            }
        }
        // The rest have lost a parent while all this was read. They may be ours, so they are looked at again.
        parents.extend(others.iter());
        parents.push(0);
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                others.insert(child.identity.0);
                parents.push(child.identity.0);
            }
        }
        members
    }
}

impl Process {
    /// Reads what the kernel says of a process; nothing where there is none of this number.
    fn read(number: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{number}/stat")).ok()?;
        // The name stands in parentheses and may hold anything: what follows is counted from its end.
        let name_ends_at = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(stat.get(name_ends_at + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            identity: (number, fields.get(19)?.parse().ok()?),
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
        })
    }

    /// Sends it a signal, and to no other to which its number may have gone meanwhile.
    fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.identity.0) else { return };
        let handle = pidfd_open(pid, PidfdFlags::empty());
        let is_same = Self::read(self.identity.0).is_some_and(|now| now.identity == self.identity);
        if !is_same {
            return;
        }
        // A process that has ended needs no signal. Processes that we may not signal are named at the end.
        let _ = match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            // A kernel or a sandbox that knows no such handles.
            Err(_) => kill_process(pid, signal),
        };
    }
}

/// The other processes of our group, which a shell started.
pub(super) struct ShellJob(Vec<Process>);

impl ShellJob {
    /// Nothing where no shell started the group: then nothing could let it go on after a stop.
    pub(super) fn find() -> Option<Self> {
        let processes = processes(&BTreeSet::new()).ok()?;
        let (own, group) = (getpid().as_raw_nonzero().get(), getpgrp().as_raw_nonzero().get());
        let (mates, others): (Vec<_>, Vec<_>) =
            processes.into_iter().partition(|process| process.group == group);
        let has_shell = mates.iter().any(|mate| {
            others.iter().any(|other| other.identity.0 == mate.parent && other.session == mate.session)
        });
        has_shell.then(|| Self(mates.into_iter().filter(|mate| mate.identity.0 != own).collect()))
    }

    /// Stops this process and the others, as a terminal would have done. Returns when it goes on: when the shell says so, or at that
    /// time on `CLOCK_BOOTTIME`, since the command may have been let go on alone. Without a timer for that it does not stop.
    pub(super) fn stop(&self, wakes_at: Duration) {
        let wakes = SigevNotify::SigevSignal { signal: SIGCONT, si_value: 0 };
        let Ok(mut timer) = Timer::new(ClockId::CLOCK_BOOTTIME, SigEvent::new(wakes)) else { return };
        // Again and again: the first may come before the stop does.
        let at = Expiration::IntervalDelayed(wakes_at.into(), WAKES_EACH.into());
        if timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME).is_ok() {
            self.0.iter().for_each(|mate| mate.signal(Signal::TSTP));
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}

/// Whether there is such a child, be it as a zombie.
fn has_child(which: WaitId<'_>) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(which, look), Err(Errno::CHILD))
}

/// Whether /proc numbers processes as signals do, by what its `status` says of this process. In the /proc of an outer
/// namespace, the number of this process is a stranger's, and so are the children that stand there.
fn is_of_own_namespace(status: &str, own: Pid) -> bool {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // It begins with the namespace of /proc, and ends with that of the process. Not every kernel has it.
    let numbers = value("NSpid:").or_else(|| value("Pid:"));
    numbers.is_some_and(|numbers| numbers.trim() == own.as_raw_nonzero().to_string())
}

/// All processes of this machine but those that need not be read, as far as they can be seen.
fn processes(but: &BTreeSet<i32>) -> io::Result<Vec<Process>> {
    let entries = fs::read_dir("/proc")?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.filter(|number| !but.contains(number)).filter_map(Process::read).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    #[test]
    fn the_proc_of_another_namespace_is_told_from_ones_own() {
        let own = getpid();
        let number = own.as_raw_nonzero();
        assert!(is_of_own_namespace(&format!("Name:\tPid\nPid:\t{number}\nNSpid:\t{number}\n"), own));
        assert!(is_of_own_namespace(&format!("Pid:\t{number}\n"), own));
        let others = [
            format!("Pid:\t4711{number}\n"),
            format!("Pid:\t4711{number}\nNSpid:\t4711{number}\t{number}\n"),
            // The numbers may be the same.
            format!("Pid:\t{number}\nNSpid:\t{number}\t{number}\n"),
            String::new(),
        ];
        for status in others {
            assert!(!is_of_own_namespace(&status, own), "{status}");
        }
    }

    #[test]
    fn the_group_of_a_command_that_no_look_finds_is_killed() {
        let spawned = Command::new("/bin/sleep").arg("30").process_group(0).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{error}"));
        let command = Pid::from_child(&child);
        let family = Family { command };
        let mut others = BTreeSet::from([command.as_raw_nonzero().get()]);
        family.signal_all(&[Signal::KILL], &[], &mut others);
        let signal = child.wait().ok().and_then(|status| status.signal());
        assert_eq!(signal, Some(Signal::KILL.as_raw()));
        assert!(!has_child(WaitId::Pid(command)), "it is reaped");
    }
}
