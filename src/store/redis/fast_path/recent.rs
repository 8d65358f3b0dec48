//! Locks to which the fast path does not apply for a while.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::whole_ms;

/// How long a lock is left to the script that knows all cases.
pub(crate) const SLOW_FOR: Duration = Duration::from_secs(1);
/// Locks that are remembered at a time; of two that fall on one slot, the later one is.
const REMEMBERED: usize = 1024;

/// Locks that were not as most are, a moment ago. To be wrong about one costs a call, or some of Redis' time, and no more.
pub(crate) struct RecentKeys {
    /// For each slot the milliseconds at which its lock is forgotten, by the time since `began`, below half of its hash.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    began: Instant,
    lasts: Duration,
}

impl RecentKeys {
    pub(crate) fn new(lasts: Duration) -> Self {
        let slots = (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect();
        Self { slots, hasher: RandomState::new(), began: Instant::now(), lasts }
    }

    pub(crate) fn note(&self, key: &str) {
        let (slot, hash) = self.slot(key);
        slot.store(
            hash << 32 | (self.now_ms() + whole_ms(self.lasts)) & u64::from(u32::MAX),
            Ordering::Relaxed,
        );
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        let (slot, hash) = self.slot(key);
        let known = slot.load(Ordering::Relaxed);
        // The milliseconds begin anew after 49 days, and no lock is remembered for that long.
        let left_ms = (known as u32).wrapping_sub(self.now_ms() as u32);
        known != 0
            && known >> 32 == hash & u64::from(u32::MAX)
            && (1..=whole_ms(self.lasts)).contains(&left_ms.into())
    }

    fn slot(&self, key: &str) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key);
        // Other bits than those that are compared.
        (&self.slots[(hash >> 32) as usize % REMEMBERED], hash)
    }

    fn now_ms(&self) -> u64 {
        whole_ms(self.began.elapsed()) & u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_remembered_for_its_time_also_where_the_milliseconds_begin_anew() {
        for before_ms in [0, 60_000, 500] {
            let recent = RecentKeys::new(SLOW_FOR);
            tokio::time::advance(Duration::from_millis(u64::from(u32::MAX) - before_ms)).await;
            recent.note("a");
            assert!(recent.has("a") && !recent.has("b"), "{before_ms}");
            tokio::time::advance(SLOW_FOR / 2 + Duration::from_millis(100)).await;
            assert!(recent.has("a"), "{before_ms}");
            tokio::time::advance(SLOW_FOR / 2).await;
            assert!(!recent.has("a"), "{before_ms}");
        }
    }
}
