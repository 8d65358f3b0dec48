//! Whoever waits is told in time, while nothing fails (O12).

use super::super::{Action, Answer, Operation};
use super::{Found, Record};

/// Between a result that was answered and the answer to whoever waits for it.
const WOKEN_WITHIN_US: u64 = 3_000_000;
/// So long before, nothing must have failed.
const CALM_FOR_US: u64 = 2_000_000;

impl Record<'_> {
    pub(super) fn who_waits_is_told(&self, found: &mut Found) {
        for waits in &self.operations {
            let Action::Begin { wait, .. } = waits.action else { continue };
            if wait.is_zero() || waits.answer.is_in_doubt() {
                continue;
            }
            let is_late = |stored: &&&Operation| {
                matches!(stored.answer, Answer::Stored { .. })
                    && stored.start_us > waits.start_us + CALM_FOR_US
                    && waits.calm_since_us.is_some_and(|since_us| since_us + CALM_FOR_US < stored.start_us)
                    && stored.end_us + WOKEN_WITHIN_US < waits.said_us
            };
            if let Some(stored) = self.operations.iter().find(is_late) {
                found.add("O12: not told in time", &[waits, stored]);
            }
        }
    }
}
