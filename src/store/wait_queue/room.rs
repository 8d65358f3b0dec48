//! Who holds a lock, as far as it matters to those who wait for it.

use std::time::Duration;

use crate::lock::{Sharing, Slots};

/// How many hold a lock, and what they say of how many may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct SlotRoom {
    held: usize,
    /// The smallest number of slots that any of them has said.
    least: Slots,
    /// Until when it stays so at the longest, unless it is free.
    left: Option<Duration>,
}

impl SlotRoom {
    /// It has no holder.
    pub(in super::super) const FREE: Self = Self { held: 0, least: Slots::MOST, left: None };

    /// So many share it, and for `left` no lease of theirs ends.
    pub(in super::super) fn shared(held: usize, least: Slots, left: Duration) -> Self {
        Self { held, least, left: Some(left) }
    }

    /// Whether it has no holder.
    pub(in super::super) fn is_free(self) -> bool {
        self.held == 0
    }

    /// How many share it.
    pub(in super::super) fn sharing(self) -> Sharing<()> {
        Sharing { held: self.held as u64, slots: self.least, holders: () }
    }

    /// How much is left of the lease that ends first.
    pub(super) fn left(self) -> Option<Duration> {
        self.left
    }

    /// Whether one holder excludes all others, so that no offer means anything.
    pub(super) fn is_closed(self) -> bool {
        self.held > 0 && self.least == Slots::ONE
    }

    /// The room that is left once somebody is offered one of so many slots.
    pub(super) fn less(self, slots: Slots) -> Self {
        Self { held: self.held + 1, least: self.least.min(slots), ..self }
    }

    /// Whether one more may hold it who says so many. This is the rule of all shared locks: nothing else is counted.
    pub(super) fn admits(self, slots: Slots) -> bool {
        self.held < usize::from(self.least.min(slots).get())
    }
}

impl From<Option<Duration>> for SlotRoom {
    /// One alone holds it for so long, or it is free.
    fn from(left: Option<Duration>) -> Self {
        left.map_or(Self::FREE, |left| Self::shared(1, Slots::ONE, left))
    }
}
