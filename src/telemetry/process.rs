//! What the system knows about this process, under the usual names of Prometheus. It is read when the metrics are read.

use std::fs;
use std::time::SystemTime;

use prometheus::{Gauge, IntGauge, Opts, Registry};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::labels::{gauge, register, valid};

/// The places of the fields in `/proc/self/stat`, counted from the first field after the program's name.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const RESIDENT_PAGES: usize = 21;

/// The metrics of the process.
pub(super) struct Process {
    cpu_seconds: prometheus::Counter,
    resident_bytes: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl Process {
    pub(super) fn register(registry: &Registry) -> Self {
        let gauge = |name, help| gauge(registry, name, help);
        let cpu_seconds = valid(prometheus::Counter::with_opts(Opts::new(
            "process_cpu_seconds_total",
            "Processor time that this process has used.",
        )));
        register(registry, cpu_seconds.clone());
        let start = valid(Gauge::with_opts(Opts::new(
            "process_start_time_seconds",
            "When this process began, since 1970.",
        )));
        start.set(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64());
        register(registry, start);
        Self {
            cpu_seconds,
            resident_bytes: gauge("process_resident_memory_bytes", "Memory that this process occupies."),
            open_fds: gauge("process_open_fds", "File descriptors that are open."),
            max_fds: gauge("process_max_fds", "File descriptors that may be open."),
        }
    }

    /// Reads all of them again. A value that cannot be read stays as it was.
    pub(super) fn read(&self) {
        if let Some((cpu_seconds, resident_bytes)) = read_stat() {
            self.cpu_seconds.inc_by((cpu_seconds - self.cpu_seconds.get()).max(0.0));
            self.resident_bytes.set(resident_bytes);
        }
        if let Ok(fds) = fs::read_dir("/proc/self/fd") {
            // One of them is open only for this count.
            self.open_fds.set(i64::try_from(fds.count()).unwrap_or(i64::MAX) - 1);
        }
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.max_fds.set(i64::try_from(most).unwrap_or(i64::MAX));
    }
}

/// The processor time in seconds, and the memory in bytes.
fn read_stat() -> Option<(f64, i64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name is in parentheses, and may contain any character.
    let fields: Vec<i64> =
        stat.rsplit_once(')')?.1.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let ticks = fields.get(USER_TICKS)? + fields.get(SYSTEM_TICKS)?;
    #[expect(clippy::cast_precision_loss, reason = "it is exact for some million years")]
    let cpu_seconds = ticks as f64 / clock_ticks_per_second() as f64;
    Some((cpu_seconds, fields.get(RESIDENT_PAGES)? * i64::try_from(page_size()).ok()?))
}
