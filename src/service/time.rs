//! When something is tried again, and what is left of a lease by then.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock::boottime;
use crate::lock::{Inspected, Lease};
use crate::store::StoreError;

/// The pause before an unanswered step is sent again. The real pause is random, from half of this to one and a half times this.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(40);

/// Waits a moment before something is tried again; `false` where the deadline leaves no room for it.
pub(super) async fn pause_before(deadline: Instant) -> bool {
    let pause = RETRY_PAUSE.mul_f64(0.5 + rand::random::<f64>());
    if Instant::now() + pause >= deadline {
        return false;
    }
    sleep(pause).await;
    true
}

/// A lease was renewed, and nothing was left of it when the answer came.
pub(super) fn renewed_too_late() -> StoreError {
    StoreError::Unknown(
        "the lease was renewed, and ended before the answer came: ask for a longer ttl".into(),
    )
}

/// What is left of a lease now, counted from before its command was sent; `None` if nothing is.
pub(super) fn lease_left(lease: Lease, sent_at: Duration) -> Option<Lease> {
    let elapsed_ms = boottime().saturating_sub(sent_at).as_nanos().div_ceil(1_000_000);
    // A lease may be told shorter than it is, never longer: a started millisecond counts as a whole one. Stores count in
    // milliseconds, and may free a lock almost a whole one before its end.
    let elapsed_ms = u64::try_from(elapsed_ms).unwrap_or(u64::MAX).saturating_add(1);
    let left_ms = lease.left_ms.saturating_sub(elapsed_ms);
    (left_ms > 0).then_some(Lease { left_ms, ..lease })
}

/// When a lease ends at the earliest, on the clock of [`boottime`]: counted from before its command was sent, as [`lease_left`] does.
pub(super) fn ends_at(lease: &Lease, sent_at: Duration) -> Duration {
    sent_at + Duration::from_millis(lease.left_ms.saturating_sub(1))
}

/// A look was answered when nothing was left of the lease that it tells of. Another client may hold the lock by then.
pub(super) fn seen_too_late() -> StoreError {
    StoreError::Unknown("the lease was over before the store's answer on it came".into())
}

/// Leaves of a lease that is told of among others what is left now: at least a millisecond, as it may have been renewed meanwhile.
pub(super) fn count_down(lease: &mut Lease, sent_at: Duration) {
    lease.left_ms = lease_left(lease.clone(), sent_at).map_or(1, |left| left.left_ms);
}

/// What a look has seen, with what is left of each lease now; an error where the lock is to be looked at again. Those who hold a lock
/// beside others are told of as they were counted: at least a millisecond is left of each.
pub(super) fn seen_by_now(seen: Inspected, sent_at: Duration) -> Result<Inspected, StoreError> {
    let Inspected::Held { lease, yours, mut sharing, waiters } = seen else { return Ok(seen) };
    let lease = lease_left(lease, sent_at).ok_or_else(seen_too_late)?;
    for holder in sharing.iter_mut().flat_map(|sharing| &mut sharing.holders) {
        count_down(holder, sent_at);
    }
    Ok(Inspected::Held { lease, yours, sharing, waiters })
}
