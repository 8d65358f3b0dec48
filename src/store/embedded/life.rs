//! How long a record lives.

use std::time::Duration;

use crate::clock::whole_ms;

/// When a record ends, on the clock that counts since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The end, as time since boot.
    pub(super) end: Duration,
    /// The rest that the record was last given: what a clock that cannot be trusted may at most leave it.
    pub(super) longest: Duration,
}

impl Life {
    /// A life of `length` from `now` on.
    pub(super) fn starting(now: Duration, length: Duration) -> Self {
        Self { end: now + length, longest: length }
    }

    /// The same life, or one of `length` from `now` on where that ends later.
    pub(super) fn extended(self, now: Duration, length: Duration) -> Self {
        if now + length > self.end { Self::starting(now, length) } else { self }
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
