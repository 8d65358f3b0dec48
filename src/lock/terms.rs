//! For how long a lock may, and must, be taken, and beside how many others.

use std::time::Duration;

use super::Slots;

/// The terms of a grant, counted from the grant by the clock of its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// No renewal goes past it.
    pub max_hold: Option<Duration>,
    /// If a lock is released before, it stays taken until then, without a holder.
    pub min_hold: Option<Duration>,
    /// How many may hold the lock at once, for as long as this grant does.
    pub slots: Slots,
}

impl Terms {
    /// The longest `max_hold`. A longer one would be as good as none.
    pub const LONGEST_MAX_HOLD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}
