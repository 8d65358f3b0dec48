//! How much may be told to all watchers, so that telling leaves most of the processor to those who ask for locks.
//!
//! Who would be told more than a fair share of it rests: what happens then is not told, and at the end of the rest they are
//! told once that they have missed something.

use std::cell::Cell;
use std::time::Duration;

/// For how long it is counted what was told.
const WINDOW: Duration = Duration::from_millis(100);
/// So often may something be told to somebody in that time.
const MOST_TOLD: usize = 20_000;
/// How long those are told nothing who were told too much.
pub(super) const REST: Duration = Duration::from_secs(1);

/// What was told in this window.
#[derive(Default)]
pub(super) struct Budget {
    window: Cell<u128>,
    told: Cell<usize>,
    /// To how many groups of watchers.
    groups: Cell<usize>,
}

/// What was told to those who watch the same.
#[derive(Default)]
pub(super) struct Share {
    window: Cell<u128>,
    told: Cell<usize>,
    /// When their rest ends, by the time since boot.
    pub(super) rests_until: Cell<Option<Duration>>,
}

impl Budget {
    /// Counts that something is told to so many who watch the same. Returns whether that is within their share; else their rest
    /// begins.
    pub(super) fn allows(&self, share: &Share, readers: usize, now: Duration) -> bool {
        let window = now.as_millis() / WINDOW.as_millis();
        if self.window.replace(window) != window {
            self.told.set(0);
            self.groups.set(0);
        }
        if share.window.replace(window) != window || self.groups.get() == 0 {
            share.told.set(0);
            self.groups.set(self.groups.get() + 1);
        }
        self.told.set(self.told.get() + readers);
        share.told.set(share.told.get() + readers);
        let is_allowed = self.told.get() <= MOST_TOLD || share.told.get() <= MOST_TOLD / self.groups.get();
        if !is_allowed {
            share.rests_until.set(Some(now + REST));
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_too_much_rests_and_others_do_not() {
        let (budget, crowd, few) = (Budget::default(), Share::default(), Share::default());
        let now = Duration::from_secs(7);
        for _ in 0..MOST_TOLD / 1_000 {
            assert!(budget.allows(&crowd, 1_000, now));
        }
        assert!(budget.allows(&few, 10, now) && few.rests_until.get().is_none());
        assert!(!budget.allows(&crowd, 1_000, now));
        assert_eq!(crowd.rests_until.get(), Some(now + REST));
        for _ in 1..MOST_TOLD / 2 / 10 {
            assert!(budget.allows(&few, 10, now));
        }
        assert!(!budget.allows(&few, 10, now), "half of it is the share of one of two");
        assert!(budget.allows(&crowd, 1_000, now + WINDOW) && budget.allows(&few, 10, now + WINDOW));
    }
}
