//! How much of everything there is to be, and how long it is measured.

use std::time::Duration;

pub struct Plan {
    /// Whether its results are worth to be kept.
    pub is_full: bool,
    pub live_locks: &'static [usize],
    /// How many keys are to have been used in the end, and for how long that may take.
    pub distinct_keys: usize,
    pub keys_for: Duration,
    /// How many want one lock, a lock each, and hold a lock each by a connection.
    pub waiters: [&'static [usize]; 3],
    /// How many API keys with limits there are.
    pub api_keys: &'static [usize],
    pub ending_locks: usize,
    /// How long before and after the moment at which they end.
    pub before_end: Duration,
    pub after_end: Duration,
    pub connections: &'static [usize],
    /// How often each is measured, in turn with what it is compared with, and how long; beside live locks more often, as a goal
    /// is set for that.
    pub rounds: usize,
    pub live_rounds: usize,
    pub warm_up: Duration,
    pub measured: Duration,
}

/// About ten minutes on two cores.
pub const MEASUREMENT: Plan = Plan {
    is_full: true,
    live_locks: &[1_000, 10_000, 100_000, 1_000_000],
    distinct_keys: 1_000_000,
    keys_for: Duration::from_secs(25),
    waiters: [&[1, 10, 100, 1_000, 10_000], &[1, 10, 100, 1_000, 10_000, 100_000], &[1_000, 10_000]],
    api_keys: &[10, 1_000],
    ending_locks: 1_000_000,
    before_end: Duration::from_secs(3),
    after_end: Duration::from_secs(7),
    connections: &[10, 100, 1_000, 10_000],
    rounds: 3,
    live_rounds: 9,
    warm_up: Duration::from_millis(150),
    measured: Duration::from_millis(600),
};

/// Just enough to see that everything still works together.
pub const TRIAL: Plan = Plan {
    is_full: false,
    live_locks: &[10, 100],
    distinct_keys: 100,
    keys_for: Duration::from_millis(100),
    waiters: [&[1, 20], &[1, 20], &[20]],
    api_keys: &[2],
    ending_locks: 100,
    before_end: Duration::from_millis(300),
    after_end: Duration::from_millis(300),
    connections: &[2, 20],
    rounds: 1,
    live_rounds: 1,
    warm_up: Duration::from_millis(20),
    measured: Duration::from_millis(100),
};
