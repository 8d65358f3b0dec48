//! The numbers that a gateway proposes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::Bucket;
use crate::store::redis::scripts::keys::SLOTS;

/// For each bucket, the largest number that was proposed, or that most servers are known to have passed.
pub(super) struct Ballots(Box<[AtomicU64]>);

impl Ballots {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// A number above all that this gateway knows of in the bucket, and not below `now_us`.
    ///
    /// The time only saves most rounds in which a number turns out to be too small, and keeps the order where the servers
    /// have forgotten all numbers at once.
    pub(super) fn next(&self, bucket: Bucket, now_us: u64) -> u64 {
        let last = &self.0[usize::from(bucket.0)];
        let next = |last: u64| (last + 1).max(now_us);
        // It always succeeds, as it is always given a value.
        last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last))).map_or(now_us, next)
    }

    /// Notes a number that most servers have passed.
    pub(super) fn note(&self, bucket: Bucket, number: u64) {
        self.0[usize::from(bucket.0)].fetch_max(number, Ordering::AcqRel);
    }
}
