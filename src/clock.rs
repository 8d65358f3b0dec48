//! Time as leases need it: a clock that counts while the machine sleeps, and the wall clock beside it; and the pauses
//! between tries.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep};

/// Where Linux says which run of the machine this is.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
/// Where Linux says by how much the clocks of this process are ahead of those of the machine.
const TIME_OFFSETS_PATH: &str = "/proc/self/timens_offsets";

/// A source of time. The program uses [`SystemClock`]; tests inject one that they can set.
pub trait Clock: Send + Sync + 'static {
    /// Time since the machine booted, suspend included. It never goes back.
    ///
    /// `std::time::Instant` stands still in suspend on Linux, so a lease counted by it would outlive its ttl.
    fn boot(&self) -> Duration;

    /// Time since the Unix epoch by the wall clock, which people and NTP may set either way.
    fn wall(&self) -> Duration;

    /// Names this run of the machine: times since boot mean something only within it.
    ///
    /// Empty if it is not known. Then every start counts as a reboot, and leases are counted on the wall clock across it.
    fn boot_id(&self) -> String;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        boottime()
    }

    fn wall(&self) -> Duration {
        // A wall clock before 1970 counts as 1970: nothing here depends on it for safety.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn boot_id(&self) -> String {
        let offsets = std::fs::read_to_string(TIME_OFFSETS_PATH).unwrap_or_default();
        counted_from(std::fs::read_to_string(BOOT_ID_PATH).unwrap_or_default().trim(), &offsets)
    }
}

/// Names a run of the machine as processes count its time that have such offsets. In a time namespace, the clock that
/// counts since boot may begin elsewhere, while the run has the name that it has outside.
fn counted_from(boot_id: &str, offsets: &str) -> String {
    let mut lines = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match lines.find(|line| line.first() == Some(&"boottime")).as_deref() {
        Some([_, offset @ ..]) if !boot_id.is_empty() && offset.iter().any(|part| *part != "0") => {
            format!("{boot_id} {}", offset.join(" "))
        }
        _ => boot_id.to_owned(),
    }
}

/// The machine's `CLOCK_BOOTTIME`: what leases are counted on.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// A time in whole milliseconds.
pub fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The moment at which this part of the time from now to a deadline is over.
pub fn part_of(deadline: Instant, part: f64) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now).mul_f64(part)
}

/// The pauses between tries of something that fails: each may be twice as long as the one before. Jitter keeps those who
/// failed together from coming back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    next_ms: u64,
    longest_ms: u64,
}

impl Backoff {
    /// Pauses of at most `first`, then at most twice that, and so on up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { next_ms: whole_ms(first), longest_ms: whole_ms(longest) }
    }

    /// The most that the next pause may take.
    pub fn next(&self) -> Duration {
        Duration::from_millis(self.next_ms)
    }

    /// Raises the longest pause to this, if it is shorter.
    pub fn allow(&mut self, longest: Duration) {
        self.longest_ms = self.longest_ms.max(whole_ms(longest));
    }

    /// Makes the next pause: at least half as long as it may be.
    pub async fn pause(&mut self) {
        let pause = jittered(self.next());
        self.next_ms = (self.next_ms * 2).min(self.longest_ms);
        sleep(pause).await;
    }
}

/// A pause of at most this, and at least half of it: those that begin together do not go on together.
pub fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: &str = "monotonic           0         0\nboottime            0         0\n";

    #[test]
    fn only_a_time_namespace_with_another_clock_gives_a_run_of_the_machine_another_name() {
        for same in ["", OFFSETS, "monotonic 5 0\nboottime 0 0\n"] {
            assert_eq!(counted_from("a-boot", same), "a-boot", "{same}");
        }
        let names = [("100         0", "a-boot 100 0"), ("-100 5", "a-boot -100 5"), ("0 7", "a-boot 0 7")];
        for (offset, name) in names {
            assert_eq!(counted_from("a-boot", &format!("monotonic 1 0\nboottime {offset}\n")), name);
            // A run without a name is another one at each start.
            assert_eq!(counted_from("", &format!("boottime {offset}\n")), "");
        }
    }
}
