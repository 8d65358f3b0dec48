//! A record is for the requests of one fingerprint (§0 of the contract, O2).

use super::super::{Action, Answer, Operation};
use super::{Found, Record};

impl Record<'_> {
    /// Somebody must have begun the record for another request.
    pub(super) fn a_fingerprint_differs_from_another(&self, told: &Operation, found: &mut Found) {
        let is_another = |other: &&Operation| {
            let its = fingerprint(other);
            its.is_some_and(|its| its.is_some() && fingerprint(told) != Some(its))
                && other.start_us <= told.end_us
        };
        if told.answer == Answer::FingerprintDiffers && !self.operations.iter().any(is_another) {
            found.add("O2: a fingerprint differs from none", &[told]);
        }
    }

    /// Who begins a record binds it, until it is over or its first worker has given up cleanly.
    pub(super) fn a_record_is_bound_to_its_fingerprint(
        &self,
        before: &Operation,
        after: &Operation,
        found: &mut Found,
    ) {
        let (Some(bound), Some(shown)) = (fingerprint(before), fingerprint(after)) else { return };
        let is_first = matches!(before.answer, Answer::Work { earlier: 0, is_new: true, .. });
        if !is_first || self.may_be_over(before, after) || self.may_be_left_cleanly(before, after, None) {
            return;
        }
        let is_bound_to_another = bound.is_some() && bound != shown;
        let is_wrong = match after.answer {
            Answer::FingerprintDiffers => !is_bound_to_another,
            Answer::Work { .. }
            | Answer::Done { .. }
            | Answer::Busy { .. }
            | Answer::Abandoned
            | Answer::TokenReleased => is_bound_to_another,
            _ => false,
        };
        if is_wrong {
            found.add("O2: a fingerprint is not compared rightly", &[before, after]);
        }
    }
}

/// That of a request to begin.
fn fingerprint(operation: &Operation) -> Option<Option<&str>> {
    match &operation.action {
        Action::Begin { fingerprint, .. } => Some(fingerprint.as_deref()),
        _ => None,
    }
}
