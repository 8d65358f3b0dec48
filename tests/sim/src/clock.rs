//! The clock of a simulated server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A clock that a test moves. Clones are the same clock. It may go with tokio's clock besides, which a test may pause.
#[derive(Clone, Debug)]
pub struct Clock {
    us: Arc<AtomicU64>,
    since: Option<Instant>,
    /// By how many millionths it is faster than tokio's.
    drift_ppm: i64,
}

impl Clock {
    /// A clock that stands still at so many microseconds since 1970, until it is moved.
    pub fn standing(us: u64) -> Self {
        Self { us: Arc::new(AtomicU64::new(us)), since: None, drift_ppm: 0 }
    }

    /// A clock that goes on from there as tokio's does.
    pub fn running(us: u64) -> Self {
        Self { since: Some(Instant::now()), ..Self::standing(us) }
    }

    /// The same, but faster by so many millionths.
    pub fn drifting(us: u64, drift_ppm: i64) -> Self {
        Self { drift_ppm, ..Self::running(us) }
    }

    /// Microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        let run_us = self.since.map_or(0, |since| since.elapsed().as_micros() as i64);
        let drift_us = run_us * self.drift_ppm / 1_000_000;
        self.us.load(Ordering::SeqCst).saturating_add_signed(run_us + drift_us)
    }

    /// The time of one step of a server. A clock that stands still is a microsecond further at each, since no real server does
    /// two at one time.
    pub(crate) fn step_us(&self) -> u64 {
        if self.since.is_none() {
            self.us.fetch_add(1, Ordering::SeqCst);
        }
        self.now_us()
    }

    /// Milliseconds since 1970, by which keys end.
    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// Sets it forward.
    pub fn step(&self, by: Duration) {
        self.us.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
    }

    /// Sets it back.
    pub fn step_back(&self, by: Duration) {
        self.us.fetch_sub(by.as_micros() as u64, Ordering::SeqCst);
    }
}
