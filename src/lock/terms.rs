//! For how long a lock may, and must, be taken.

use std::time::Duration;

/// The terms of a grant, counted from the grant by the clock of its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// No renewal goes past it.
    pub max_hold: Option<Duration>,
    /// If a lock is released before, it stays taken until then, without a holder.
    pub min_hold: Option<Duration>,
}

impl Terms {
    /// The longest `max_hold`. A longer one would be as good as none.
    pub const LONGEST_MAX_HOLD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}
