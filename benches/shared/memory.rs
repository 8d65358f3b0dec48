//! Memory, as the kernel tells it in `/proc`.

use std::fs::read_to_string;

/// What of a process is in memory, in kB (1024 bytes).
pub fn rss_kb(pid: u32) -> u64 {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
