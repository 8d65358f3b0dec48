//! How long leases are: I4, and I6.

use super::check::{Case, Found};
use super::connections::CONNECTION_ACTS_US;
use super::holds::ROUNDING_US;
use super::{Action, Answer, Operation};

impl Case<'_> {
    /// Until when an operation may have acted, as far as whoever looked by then could see.
    fn acted_by_us(&self, operation: &Operation, until_us: u64) -> u64 {
        let quiet_us = self.history.quiet_us.unwrap_or(until_us).min(until_us);
        if self.is_forgotten(operation, until_us) {
            return quiet_us;
        }
        let may_come_late = operation.may_come_late()
            || self.may_poll_late(operation, until_us)
            || self.may_pin_late(operation)
            || self.may_lose_a_voiding(operation, until_us);
        if may_come_late {
            let latest_us = operation.ended_us.map_or(u64::MAX, |ended_us| ended_us + CONNECTION_ACTS_US);
            return quiet_us.min(latest_us);
        }
        operation.span.end_us.min(until_us)
    }

    /// At a quorum, a token that asks for what it holds is answered after a renewal.
    fn may_pin_late(&self, operation: &Operation) -> bool {
        self.history.is_of_quorum && matches!(operation.answer, Answer::AlreadyHeld { .. })
    }

    /// Whether what voided an earlier attempt of it may be lost: a copy of that one which comes late to the next primary is taken
    /// for a repetition, and pins.
    fn may_lose_a_voiding(&self, operation: &Operation, until_us: u64) -> bool {
        let mut lost = self.history.failovers.iter().map(|failover| &failover.lost);
        operation.is_acquire() && lost.any(|lost| lost.start_us <= until_us && lost.overlaps(&operation.span))
    }

    /// Whether a copy of one of its polls may act when it has been granted: another request of its token may have pinned the grant,
    /// and then the copy is taken for a repetition. Who does not wait has no copy that is not voided.
    fn may_poll_late(&self, operation: &Operation, until_us: u64) -> bool {
        let pins = |other: &&Operation| {
            let is_of_it = other.token == operation.token && other.id != operation.id;
            let has_pinned = other.told().is_some() || other.is_in_doubt();
            is_of_it && has_pinned && other.span.start_us < until_us
        };
        operation.waits
            && operation.is_acquire()
            && operation.told().is_some()
            && self.operations.iter().any(pins)
    }

    /// What a quorum takes off such a lease: a hundredth, and 2 ms.
    pub(super) fn drift_us(&self, lease_us: u64) -> u64 {
        if self.history.is_of_quorum { lease_us / 100 + 2_000 } else { 0 }
    }

    /// What may have made the lease longer that `seen` speaks of, with a token or a holder of this id.
    fn asked_for<'b>(
        &'b self,
        seen: &'b Operation,
        id: &'b str,
        token: Option<&'b str>,
    ) -> Vec<&'b Operation> {
        let is_of_it =
            |other: &Operation| other.id == id || (token.is_some() && other.token.as_deref() == token);
        self.operations
            .iter()
            .copied()
            .filter(|other| other.asked_ttl_ms().is_some() && is_of_it(other))
            .filter(|other| other.span.start_us < seen.span.end_us)
            // A renewal that found nothing may come again, when its token has been granted the lock anew.
            .filter(|other| other.may_come_late() || !self.did_nothing_by(other, seen.span))
            .collect()
    }

    /// Whether an acquire may have been granted the lock itself, by a command that was not answered: another request of its
    /// token pinned it then, or what voided that command was lost, also where an older state came back. Nobody was shown the
    /// number before.
    fn may_be_its_own_grant(&self, operation: &Operation) -> bool {
        let may_have_pinned = |other: &&&Operation| {
            let is_of_it = other.token == operation.token && other.id != operation.id;
            let may_pin = other.action != Action::Release && other.may_come_late();
            is_of_it && may_pin && other.span.start_us < operation.span.end_us
        };
        let was_shown = |other: &&&Operation| {
            other.shown() == operation.told() && other.span.end_us < operation.span.start_us
        };
        operation.is_acquire()
            && (self.operations.iter().any(|other| may_have_pinned(&other))
                || self.is_lost_between(operation.span.start_us, operation.span.end_us))
            && !self.operations.iter().any(|other| was_shown(&other))
    }

    /// I4: renewing revives nothing.
    pub(super) fn leases_are_not_revived(&self, found: &mut Found) {
        for operation in &self.operations {
            let is_new = matches!(operation.answer, Answer::Granted { .. });
            if is_new || operation.left_ms().is_none() {
                continue;
            }
            let span = operation.span;
            if self.may_be_its_own_grant(operation) {
                continue;
            }
            let mut others = self.asked_for(operation, "", operation.token.as_deref());
            others.retain(|other| other.id != operation.id);
            let end_us = |other: &&Operation| {
                self.acted_by_us(other, span.end_us) + other.longest_ms().unwrap_or_default() * 1_000
            };
            let latest_us = others.iter().map(end_us).max().unwrap_or_default();
            let longest_us =
                others.iter().filter_map(|other| other.asked_ttl_ms()).max().unwrap_or_default() * 1_000;
            if latest_us + ROUNDING_US + self.drift_us(longest_us) < span.start_us {
                found.add("I4", "an ended lease was revived", operation);
            }
        }
    }

    /// I4: a lease is as long as it was asked for, and nothing makes it shorter.
    pub(super) fn leases_are_not_cut(&self, found: &mut Found) {
        for operation in &self.operations {
            let Some(left_ms) = operation.shown_left_ms() else { continue };
            let span = operation.span;
            let left_us = left_ms * 1_000 + ROUNDING_US;
            if self.max_hold_may_end_early(operation) {
                continue;
            }
            let asked_us = operation.asked_ttl_ms().unwrap_or_default() * 1_000;
            let asked_us = asked_us.min(self.most_by_terms_us(operation));
            // Who waits may find the grant of a command that was not answered, and counts from before both commands were sent.
            let lasted_us = (span.end_us - span.start_us) * if operation.waits { 2 } else { 1 };
            // A connection may be told what is left of the lease that its token had, and lengthens it a moment later.
            let is_claim =
                operation.ended_us.is_some() && matches!(operation.answer, Answer::AlreadyHeld { .. });
            if operation.told().is_some()
                && !is_claim
                && left_us + self.drift_us(asked_us) + lasted_us < asked_us
            {
                found.add("I4", "the lease is shorter than it was asked for", operation);
            }
            // A majority of a quorum may be answered by servers of which one missed an earlier renewal, and says less.
            if self.history.is_of_quorum {
                continue;
            }
            // A connection is told of no more than its own `max_hold`, whatever its token had before.
            let is_of_connection =
                operation.ended_us.is_some() || matches!(operation.action, Action::Renew { .. });
            if is_of_connection && operation.terms.max_hold_ms.is_some() {
                continue;
            }
            let certain_us = self
                .operations
                .iter()
                .filter(|other| other.told() == operation.shown() && other.span.end_us < span.start_us)
                .filter(|other| {
                    !self.is_forgotten(other, span.end_us) && !self.is_split_between(other, operation)
                })
                .filter_map(|other| other.told_until_us())
                .max();
            // What is told of a lease that is longer than it was asked for is counted from before it was asked, as is what a look
            // tells.
            let is_counted_on = operation.told().is_some() || matches!(operation.answer, Answer::Held { .. });
            let lasted_us = if is_counted_on { lasted_us } else { 0 };
            if certain_us.is_some_and(|certain_us| span.end_us + left_us + lasted_us < certain_us) {
                found.add("I4", "the lease was shortened", operation);
            }
        }
    }

    /// I6: no lease is longer than anybody asked for, and all of them end.
    pub(super) fn leases_end(&self, found: &mut Found) {
        for seen in &self.operations {
            let Some(left_ms) = seen.shown_left_ms() else { continue };
            let (id, token) = match seen.holder() {
                Some(holder) => {
                    (holder.id.as_str(), self.grant_of(holder).and_then(|grant| grant.token.as_deref()))
                }
                None => (seen.id.as_str(), seen.token.as_deref()),
            };
            let asked = self.asked_for(seen, id, token);
            let asked_ms = |other: &&Operation| other.longest_ms().unwrap_or_default();
            if left_ms > asked.iter().map(asked_ms).max().unwrap_or_default() {
                found.add("I6", "nobody asked for so long a lease", seen);
                continue;
            }
            let end_us =
                |other: &&Operation| self.acted_by_us(other, seen.span.end_us) + asked_ms(other) * 1_000;
            let latest_us = asked.iter().map(end_us).max().unwrap_or_default();
            let longest_us = asked.iter().map(asked_ms).max().unwrap_or_default() * 1_000;
            if seen.span.start_us + left_ms * 1_000 > latest_us + ROUNDING_US + self.drift_us(longest_us) {
                found.add("I6", "a lease outlives its ttl", seen);
            }
        }
    }
}
