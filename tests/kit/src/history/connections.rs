//! What a connection holds ends with it: H5, and H15.

use super::check::{CLEANING_US, Case, Found, ORPHANS_END_WITHIN_US};
use super::holds::ROUNDING_US;
use super::{Action, Answer, Operation, Span};

/// How long after its connection has ended a copy of a renewal may arrive.
pub(super) const CONNECTION_ACTS_US: u64 = 12_000_000;

impl Case<'_> {
    /// Those who were told that they hold the lock by this number.
    fn told(&self, number: u64) -> impl Iterator<Item = &Operation> {
        self.operations.iter().copied().filter(move |operation| operation.told() == Some(number))
    }

    /// H5, H10: soon after the last fault, a lock lasts no longer than its connections, and what its token was told besides.
    pub(super) fn nothing_is_left_of_connections(&self, found: &mut Found) {
        let Some(quiet_us) = self.history.quiet_us else { return };
        for look in &self.operations {
            let Some(holder) = look.holder() else { continue };
            let told: Vec<_> = self.told(holder.number).collect();
            let Some(ended_us) = told.iter().filter_map(|told| told.ended_us).max() else { continue };
            let others = || told.iter().filter(|told| told.ended_us.is_none());
            let asked_us =
                |told: &Operation| told.span.end_us + told.longest_ms().unwrap_or_default() * 1_000;
            let lasts_us = others().filter_map(|told| Some(told.told_until_us()?.max(asked_us(told)))).max();
            let over_us = quiet_us.max(ended_us).max(lasts_us.unwrap_or_default());
            let may_pin = |other: &&Operation| {
                let is_of_it = other.token == told[0].token && other.ended_us.is_none();
                is_of_it && other.action != Action::Release && (other.waits || other.may_come_late())
            };
            let start_us = told.iter().map(|told| told.span.start_us).min().unwrap_or_default();
            let was_killed = |kill: &Span| start_us <= kill.end_us && kill.start_us <= ended_us + CLEANING_US;
            let is_excused = self.operations.iter().any(may_pin)
                || self.history.kills.iter().any(was_killed)
                || self.is_lost_between(start_us, look.span.start_us);
            if look.span.start_us > over_us + ORPHANS_END_WITHIN_US && !is_excused {
                found.add("H5", "the lock of a connection that has ended", look);
            }
        }
    }

    /// H15: who gets a lock within its `min_hold`, while the lease still runs that its connection was told of?
    pub(super) fn locks_of_connections_stay_taken_for_their_min_hold(&self, found: &mut Found) {
        for grant in &self.operations {
            let (Answer::Granted { number, .. }, Some(_)) = (&grant.answer, grant.ended_us) else { continue };
            let Some(least_ms) = grant.terms.min_hold_ms else { continue };
            let least_us = least_ms * 1_000;
            let lease_until_us = |told: &Operation| Some(told.left_since_us() + told.left_ms()? * 1_000);
            let lease_until_us = self.told(*number).filter_map(lease_until_us).max().unwrap_or_default();
            let until_us = lease_until_us.min(grant.span.start_us + least_us);
            let until_us = until_us.saturating_sub(ROUNDING_US + self.drift_us(least_us));
            let is_broken = self.operations.iter().any(|other| other.may_break(*number, grant.span.end_us));
            for other in &self.operations {
                let is_taken =
                    matches!(other.answer, Answer::Granted { number: later, .. } if later > *number);
                if is_taken
                    && !is_broken
                    && other.span.end_us < until_us
                    && !self.is_lost_between(grant.span.start_us, other.span.end_us)
                {
                    found.add("H15", &format!("{grant:?} is to be kept until {until_us}"), other);
                }
            }
        }
    }
}
