//! When a client certainly holds a lock, judged by what it was told alone.

use super::{Action, Answer, History, Operation};

/// Leases are counted in whole milliseconds, by more than one clock.
pub(super) const ROUNDING_US: u64 = 3_000;

/// A grant, for as long as its client may rely on it.
#[derive(Clone, Debug)]
pub(super) struct Hold<'a> {
    pub(super) number: u64,
    pub(super) token: &'a str,
    /// When its client was first told.
    pub(super) from_us: u64,
    /// What is certainly within its lease: counted from before the request for the lease was sent.
    pub(super) until_us: u64,
    /// The same, were it not for releases.
    pub(super) lease_until_us: u64,
}

impl Hold<'_> {
    /// Whether an operation lies within it altogether.
    pub(super) fn covers(&self, operation: &Operation) -> bool {
        operation.span.start_us >= self.from_us && operation.span.end_us <= self.until_us
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.from_us.max(other.from_us) < self.until_us.min(other.until_us)
    }
}

/// The holds on one key, of which these are all operations.
pub(super) fn holds<'a>(history: &History, operations: &[&'a Operation]) -> Vec<Hold<'a>> {
    let mut holds: Vec<Hold> = Vec::new();
    for operation in operations {
        let (Some(number), Some(token)) = (operation.told(), operation.token.as_deref()) else { continue };
        let Some(told_until_us) = operation.told_until_us() else { continue };
        let is_copied = history.asks_replicas && operation.is_acquire();
        if !is_copied && history.failovers.iter().any(|failover| failover.forgets(operation)) {
            continue;
        }
        let mut until_us = told_until_us.saturating_sub(ROUNDING_US);
        for loss in &history.losses {
            let may_be_before = operation.span.start_us <= loss.end_us;
            if may_be_before && loss.start_us < until_us {
                until_us = loss.start_us;
            }
        }
        let from_us = operation.span.end_us;
        let came_back = |hold: &Hold| {
            history.returns.iter().any(|back| hold.from_us <= back.end_us && back.start_us <= from_us)
        };
        let is_same = |hold: &&mut Hold| hold.number == number && hold.token == token && !came_back(hold);
        match holds.iter_mut().find(is_same) {
            // A renewal that succeeded proves that the lease had not ended in between.
            Some(hold) => {
                hold.from_us = hold.from_us.min(from_us);
                hold.until_us = hold.until_us.max(until_us);
            }
            None => holds.push(Hold { number, token, from_us, until_us, lease_until_us: 0 }),
        }
    }
    for hold in &mut holds {
        let is_its = |operation: &&&Operation| operation.token.as_deref() == Some(hold.token);
        if operations.iter().filter(is_its).any(|operation| operation.terms.max_hold_ms.is_some()) {
            // Near its `max_hold` a lease that a connection renews gets shorter, and the last word counts.
            let told =
                operations.iter().filter(is_its).filter(|operation| operation.told() == Some(hold.number));
            let last = told.max_by_key(|operation| operation.span.end_us);
            let until_us = last.and_then(|last| last.told_until_us());
            let until_us = until_us.map_or(hold.until_us, |until_us| until_us.saturating_sub(ROUNDING_US));
            hold.until_us = hold.until_us.min(until_us);
        }
        let breaks = operations.iter().filter(|operation| operation.may_break(hold.number, hold.from_us));
        if let Some(first) = breaks.map(|operation| operation.span.start_us).min() {
            hold.until_us = hold.until_us.min(first);
        }
        hold.lease_until_us = hold.until_us;
        // Whatever a release is answered, but for "not done", the token is used up from when it was sent.
        let releases = operations.iter().filter(|operation| {
            let is_of_it = operation.token.as_deref() == Some(hold.token);
            operation.action == Action::Release && is_of_it && operation.answer != Answer::NotDone
        });
        if let Some(first) = releases.map(|release| release.span.start_us).min() {
            hold.until_us = hold.until_us.min(first);
        }
    }
    holds.retain(|hold| hold.from_us < hold.lease_until_us);
    holds
}
