//! CPU time, as the kernel tells it in `/proc`.

use std::fs::read_to_string;
use std::time::Duration;

use crate::servers::Server;

/// The unit of these times: every program is shown hundredths of a second.
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
            server: servers.iter().map(|server| of_process(server.pid())).sum(),
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

/// What all threads of a process have used so far.
fn of_process(pid: u32) -> Duration {
    let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program stands in parentheses, and may itself have spaces: the fields are counted from its end.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // User and system time.
    duration(fields.split(' ').skip(11).take(2).map(ticks).sum())
}

/// What everything on this machine, the kernel included, has used so far.
fn of_machine() -> Duration {
    let stat = read_to_string("/proc/stat").unwrap();
    let times: Vec<u64> = stat.lines().next().unwrap().split_whitespace().skip(1).map(ticks).collect();
    // User, nice and system; then idle and waiting, which nobody uses; then the kernel's interrupts.
    duration(times[..3].iter().chain(&times[5..7]).sum())
}

fn ticks(text: &str) -> u64 {
    text.parse().unwrap()
}

fn duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks * TICK_MS)
}
