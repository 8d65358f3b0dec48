//! How long a record lives, how the rest of a life survives a restart, and what is said of a clock that is wrong.

use std::time::Duration;

use crate::clock::{Clock, whole_ms};
use crate::lock::FencingToken;

/// Longest life in milliseconds, then its end in nanoseconds: since boot, and since the Unix epoch.
pub(super) type LifeRow = (u64, u64, u64);

/// So much the last number may be ahead of a clock that runs right.
const MOST_AHEAD: Duration = Duration::from_secs(10);

/// By so much both clocks may be apart without a step: they are read one after the other. Slewing moves both alike.
pub(super) const MOST_APART: Duration = Duration::from_millis(1);

/// When a record ends, on the clock that counts since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The end, as time since boot.
    pub(super) end: Duration,
    /// The length that it was last given: what a clock that cannot be trusted may at most leave of it.
    pub(super) longest_ms: u64,
    /// Its latest end by a wall clock, in nanoseconds since the Unix epoch, as its row has it; long ago where it has no row yet.
    pub(super) told_ns: u64,
}

impl Life {
    /// A life of `length` from `now` on.
    pub(super) fn starting(now: Duration, length: Duration) -> Self {
        Self { end: now + length, longest_ms: whole_ms(length), told_ns: 0 }
    }

    /// The same life, or one of `length` from `now` on where that ends later.
    pub(super) fn extended(self, now: Duration, length: Duration) -> Self {
        if now + length > self.end { self.given(now, length) } else { self }
    }

    /// One of `length` from `now` on in the place of this one. What it was told by other clocks moves with its end.
    pub(super) fn given(self, now: Duration, length: Duration) -> Self {
        let given = Self::starting(now, length);
        let told_ns = self.told_ns.saturating_add(nanoseconds(given.end));
        Self { told_ns: told_ns.saturating_sub(nanoseconds(self.end)), ..given }
    }

    /// Notes its end by a wall clock that would have said so much at boot. A later one that it was told before stays.
    pub(super) fn tell(&mut self, wall_at_boot: Duration) {
        self.told_ns = self.told_ns.max(nanoseconds(wall_at_boot + self.end));
    }

    /// What is left in whole milliseconds; 0 means that it is over.
    pub(super) fn left_ms(self, now: Duration) -> u64 {
        whole_ms(self.end.saturating_sub(now))
    }

    /// Whether less than a millisecond is left: no answer could say how much, so it counts as nothing.
    pub(super) fn is_over(self, now: Duration) -> bool {
        self.left_ms(now) == 0
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Time since boot.
    pub(super) boot: Duration,
    /// Time since the Unix epoch.
    pub(super) wall: Duration,
}

impl Moment {
    /// Reads both clocks.
    pub(super) fn now(clock: &dyn Clock) -> Self {
        Self { boot: clock.boot(), wall: clock.wall() }
    }

    /// What the wall clock would have said at boot, if it had not been set since.
    pub(super) fn wall_at_boot(self) -> Duration {
        self.wall.saturating_sub(self.boot)
    }
}

/// In which boot rows were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenIn {
    ThisBoot,
    AnotherBoot {
        /// The [`Moment::wall_at_boot`] of the last batch, where that is known.
        wall_at_boot: Option<Duration>,
    },
}

/// Refuses a wall clock at which no run of fencing tokens can begin: it is past the largest of them.
pub(super) fn judge_clock(clock: &dyn Clock) -> Result<(), &'static str> {
    match clock.wall().as_micros() < u128::from(FencingToken::MAX) {
        true => Ok(()),
        false => Err("the clock of this machine is wrong: it is past June 2255. Set it right"),
    }
}

/// An older copy of the file, or an empty one, begins its numbers at the clock. It repeats numbers, or begins below them, if the
/// clock was ahead once, and has not passed the last of them yet.
pub(super) fn warn_if_ahead(last: u64, wall: Duration) {
    let ahead = Duration::from_micros(last).saturating_sub(wall);
    if last > FencingToken::MAX {
        tracing::warn!(
            "the clock was wrong at an earlier start, so that no fencing token was left: they begin at the clock again. If it was ahead \
             before that start, too, they may repeat"
        );
    } else if ahead > MOST_AHEAD {
        tracing::warn!(
            ahead_s = ahead.as_secs(),
            "the clock was wrong once: fencing tokens are ahead of it. They go on growing, but until the clock has passed them, do not \
             delete this file or restore an older copy of it: fencing tokens would repeat"
        );
    }
}

/// The row of a life.
pub(super) fn life_row(life: Life) -> LifeRow {
    (life.longest_ms, nanoseconds(life.end), life.told_ns)
}

/// The life in a row, as it goes on from `now`.
///
/// Within one boot the clock that counts since boot is exact. Over a reboot only the wall clock bridges the gap, and
/// people may have set it. So after a reboot a life lasts at most the length that it was last given.
///
/// If the wall clock was set since the life began, or was wrong at an earlier boot, the end has several times by it. The row has the
/// latest of those by which it was written, and the last batch says another. Which was right is not known, so the latest one counts,
/// and stays in the row: a lock that stays for too long is better than one that is granted twice.
pub(super) fn restored((longest_ms, boot_ns, wall_ns): LifeRow, now: Moment, written_in: WrittenIn) -> Life {
    let (boot_end, wall_end) = (Duration::from_nanos(boot_ns), Duration::from_nanos(wall_ns));
    let (rest, told) = match written_in {
        WrittenIn::ThisBoot => (boot_end.saturating_sub(now.boot), wall_end),
        WrittenIn::AnotherBoot { wall_at_boot } => {
            let end = wall_at_boot.map_or(wall_end, |at_boot| wall_end.max(at_boot + boot_end));
            (end.saturating_sub(now.wall), end)
        }
    };
    let end = now.boot + rest.min(Duration::from_millis(longest_ms));
    Life { end, longest_ms, told_ns: nanoseconds(told) }
}

/// A time as a row has it.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const REBOOTED: WrittenIn = WrittenIn::AnotherBoot { wall_at_boot: None };

    fn moment(boot_s: u64, wall_s: u64) -> Moment {
        Moment { boot: Duration::from_secs(boot_s), wall: Duration::from_secs(wall_s) }
    }

    /// A life of 60 s that began at second 100 after boot and 1,000,000 on the wall.
    fn row() -> LifeRow {
        let began = moment(100, 1_000_000);
        written(Life::starting(began.boot, Duration::from_secs(60)), began)
    }

    fn written(mut life: Life, now: Moment) -> LifeRow {
        life.tell(now.wall_at_boot());
        life_row(life)
    }

    #[test]
    fn within_one_boot_the_wall_clock_does_not_matter() {
        for wall in [0, 1_000_020, 9_000_000] {
            let now = moment(120, wall);
            assert_eq!(restored(row(), now, WrittenIn::ThisBoot).left_ms(now.boot), 40_000);
        }
        let now = moment(161, 1_000_020);
        assert!(restored(row(), now, WrittenIn::ThisBoot).is_over(now.boot));
    }

    #[test]
    fn over_a_reboot_the_wall_clock_counts() {
        let now = moment(5, 1_000_020);
        let life = restored(row(), now, REBOOTED);
        assert_eq!(life.left_ms(now.boot), 40_000);
        assert_eq!((life.longest_ms, life.told_ns), (60_000, row().2));
    }

    #[test]
    fn a_wall_clock_that_was_set_leaves_between_nothing_and_the_longest_life() {
        let mut now = moment(5, 1_000_020);
        now.wall -= HOUR;
        assert_eq!(restored(row(), now, REBOOTED).left_ms(now.boot), 60_000);
        now.wall += 2 * HOUR;
        assert!(restored(row(), now, REBOOTED).is_over(now.boot));
    }

    #[test]
    fn a_renewal_by_a_slow_clock_counts_from_the_end_that_was_told_before() {
        let mut now = moment(5, 1_000_001);
        now.wall -= HOUR;
        let renewed = restored(row(), now, REBOOTED).extended(now.boot, 2 * HOUR);
        let life = restored(written(renewed, now), moment(5, 1_000_002), REBOOTED);
        assert_eq!(life.left_ms(Duration::from_secs(5)), 7_198_000);
        let shorter = restored(row(), now, REBOOTED).extended(now.boot, Duration::from_secs(61));
        let life = restored(written(shorter, now), moment(5, 1_000_002), REBOOTED);
        assert_eq!(life.left_ms(Duration::from_secs(5)), 59_000);
    }

    #[test]
    fn over_a_reboot_the_later_end_counts_where_the_wall_clock_was_set_after_the_row() {
        let now = moment(5, 1_000_020);
        // By the last batch, second 100 after boot was so much later, or earlier, than the row says.
        for (set_by, left_ms) in [(10, 50_000), (20, 60_000), (3600, 60_000), (0, 40_000), (-3600, 40_000)] {
            let wall_at_boot = Some(Duration::from_secs(999_900_u64.saturating_add_signed(set_by)));
            let life = restored(row(), now, WrittenIn::AnotherBoot { wall_at_boot });
            assert_eq!(life.left_ms(now.boot), left_ms, "{set_by}");
        }
    }
}
