//! The lease that a command runs under: what is known of it, and when what must have ended.
//!
//! All of it is counted on the clock that goes on while the machine sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, read};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::sync::Notify;

use crate::client::HeldGrant;
use crate::clock::boottime;

/// SIGKILL is sent this part of the ttl before the lease ends: so much may this machine's clock differ from the store's,
/// and so long may a loaded kernel take until the last thread has stopped.
const MARGIN_PART: u32 = 10;
const SHORTEST_MARGIN: Duration = Duration::from_millis(100);
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// What all answers so far say of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseClock {
    ends_at: Duration,
    ttl: Duration,
    kill_after: Duration,
}

impl LeaseClock {
    pub(super) fn new(held: &HeldGrant, ttl: Duration, kill_after: Duration) -> Self {
        Self { ends_at: held.ends_at, ttl, kill_after }
    }

    /// Notes a renewal. Answers may come in any order, and none shortens a lease.
    pub(super) fn extend(&mut self, held: &HeldGrant) {
        self.ends_at = self.ends_at.max(held.ends_at);
    }

    pub(super) fn ends_at(&self) -> Duration {
        self.ends_at
    }

    /// When everything that was started under it is killed.
    pub(super) fn kills_at(&self) -> Duration {
        let margin = (self.ttl / MARGIN_PART).clamp(SHORTEST_MARGIN, LONGEST_MARGIN);
        self.ends_at.saturating_sub(margin)
    }

    /// When the command must be asked to end, so that it can do so in its own way.
    pub(super) fn terms_at(&self) -> Duration {
        self.kills_at().saturating_sub(self.kill_after)
    }
}

/// An alarm on `CLOCK_BOOTTIME`: tokio's own stand still while the machine sleeps.
pub(super) struct Alarm {
    timer: Arc<OwnedFd>,
    rings: Arc<Notify>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let timer = Arc::new(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?);
        let rings = Arc::new(Notify::new());
        // It sleeps in the kernel, and ends with the process.
        thread::Builder::new().name("alarm".into()).spawn({
            let (timer, rings) = (timer.clone(), rings.clone());
            move || {
                let mut times = [0; size_of::<u64>()];
                while matches!(read(&timer, &mut times), Ok(_) | Err(Errno::INTR)) {
                    rings.notify_one();
                }
            }
        })?;
        Ok(Self { timer, rings })
    }

    /// Waits until then, or ends at once where that has passed.
    pub(super) async fn until(&self, at: Duration) -> io::Result<()> {
        let value = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        while boottime() < at {
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            // What is left of an earlier alarm costs one turn.
            self.rings.notified().await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ttl_ms: u64, kill_after_ms: u64) -> LeaseClock {
        let ttl = Duration::from_millis(ttl_ms);
        let sent_at = Duration::from_secs(1000);
        let held = HeldGrant { sent_at, ends_at: sent_at + ttl, ..HeldGrant::default() };
        LeaseClock::new(&held, ttl, Duration::from_millis(kill_after_ms))
    }

    #[test]
    fn there_is_time_to_renew_before_the_command_is_asked_to_end() {
        for (ttl_ms, kill_after_ms) in [(1_000, 333), (3_000, 1_000), (30_000, 5_000), (30_000, 10_000)] {
            let lease = lease(ttl_ms, kill_after_ms);
            let renews_at = Duration::from_secs(1000) + Duration::from_millis(ttl_ms) / 3;
            assert!(lease.terms_at() >= renews_at + Duration::from_millis(ttl_ms) / 5, "{ttl_ms}");
        }
    }

    #[test]
    fn everything_is_dead_before_the_lease_ends() {
        let lease = lease(30_000, 5_000);
        assert_eq!(lease.ends_at() - lease.kills_at(), Duration::from_secs(1));
        assert_eq!(lease.kills_at() - lease.terms_at(), Duration::from_secs(5));
    }

    #[test]
    fn a_late_answer_does_not_shorten_it() {
        let mut lease = lease(30_000, 5_000);
        let before = lease.ends_at();
        lease.extend(&HeldGrant { ends_at: Duration::from_secs(9), ..HeldGrant::default() });
        assert_eq!(lease.ends_at(), before);
    }

    #[tokio::test]
    async fn the_alarm_rings_when_it_is_time() {
        let alarm = Alarm::new().unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..3 {
            let at = boottime() + Duration::from_millis(20);
            assert!(alarm.until(at).await.is_ok());
            assert!(boottime() >= at);
        }
    }
}
