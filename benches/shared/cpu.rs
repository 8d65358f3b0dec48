//! CPU time, as the kernel tells it.

use std::fs::read_to_string;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::servers::Server;

/// The unit of what the kernel says of the whole machine: every program is shown hundredths of a second.
const TICK_MS: u64 = 10;

/// What was used so far.
pub struct Cpu {
    pub server: Duration,
    pub redis: Option<Duration>,
    pub generator: Duration,
    machine: Duration,
}

impl Cpu {
    /// What these servers have used, all together.
    pub fn read(servers: &[&Server]) -> Self {
        let redis = servers.iter().flat_map(|server| server.redis_pids());
        Self {
            server: servers.iter().filter_map(|server| server.pid()).map(of_process).sum(),
            redis: redis.map(of_process).reduce(|sum, of_another| sum + of_another),
            generator: of_process(std::process::id()),
            machine: of_machine(),
        }
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            server: self.server - before.server,
            redis: self.redis.zip(before.redis).map(|(now, before)| now - before),
            generator: self.generator - before.generator,
            machine: self.machine - before.machine,
        }
    }

    pub fn others(&self) -> Duration {
        let ours = self.server + self.redis.unwrap_or_default() + self.generator;
        // The kernel counts the two in different ways, so that a quiet machine can seem to have done less than we.
        self.machine.saturating_sub(ours)
    }
}

/// What all threads of a process have used so far, those that have ended too: user and system time, to the nanosecond.
fn of_process(pid: u32) -> Duration {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    ClockId::pid_cpu_clock_id(pid).unwrap().now().unwrap().into()
}

/// What everything on this machine has used so far, the kernel included, and other machines that share its processors.
fn of_machine() -> Duration {
    let stat = read_to_string("/proc/stat").unwrap();
    let times: Vec<u64> = stat.lines().next().unwrap().split_whitespace().skip(1).map(ticks).collect();
    // User, nice and system; then idle and waiting, which nobody uses; then the kernel's interrupts, and what was stolen.
    let ticks: u64 = times[..3].iter().chain(&times[5..8]).sum();
    Duration::from_millis(ticks * TICK_MS)
}

fn ticks(text: &str) -> u64 {
    text.parse().unwrap()
}
