//! CPU time, as the kernel tells it in `/proc`.

use std::fs::read_to_string;
use std::time::Duration;

/// The unit of these times: every program is shown hundredths of a second.
const TICK_MS: u64 = 10;

/// What all threads of a process have used so far.
pub fn of_process(pid: u32) -> Duration {
    let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program stands in parentheses, and may itself have spaces: the fields are counted from its end.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // User and system time.
    duration(fields.split(' ').skip(11).take(2).map(ticks).sum())
}

/// What everything on this machine, the kernel included, has used so far.
pub fn of_machine() -> Duration {
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
