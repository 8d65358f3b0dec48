//! What was measured on, and what was measured.

use std::ffi::OsStr;
use std::fs::read_to_string;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_gb: f64,
    kernel: String,
    /// The file system that durable stores are on.
    disk: String,
    rustc: String,
    redis: String,
    /// The commit that was measured, and whether something else was changed.
    commit: String,
    /// As cargo calls its directory.
    profile: Option<&'static str>,
}

impl Machine {
    pub fn here() -> Self {
        let memory_kb: u64 = proc_field("meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
        let redis = said("redis-server", &["--version"]);
        Self {
            cpu: proc_field("cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gb: (memory_kb as f64 * 1024.0 / 1e8).round() / 10.0,
            kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            disk: said("stat", &["-f", "-c", "%T", env!("CARGO_TARGET_TMPDIR")]),
            rustc: said("rustc", &["--version"]),
            redis: redis
                .split_whitespace()
                .find_map(|word| word.strip_prefix("v="))
                .unwrap_or("?")
                .to_owned(),
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]),
            profile: Path::new(env!("CARGO_BIN_EXE_fencepost")).iter().rev().nth(1).and_then(OsStr::to_str),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, memory_gb, kernel, disk, rustc, redis, commit, profile } = self;
        let profile = profile.unwrap_or("unknown");
        write!(
            formatter,
            "{cores} × {cpu}, {memory_gb} GB, Linux {kernel}, {disk}; {rustc}; Redis {redis}; \
             commit {commit}, profile {profile}"
        )
    }
}

fn proc_field(file: &str, name: &str) -> String {
    let text = read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

/// What a command says, where there is one.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let said = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    said.map_or("unknown".to_owned(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}
