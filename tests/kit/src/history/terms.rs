//! How long a lock may and must be taken, and who breaks it: T1, T2 and B1.

use super::check::{Case, Found};
use super::holds::{Hold, ROUNDING_US};
use super::{Action, Answer, Operation, Span};

/// How long after its client has given up a request may still find a grant to break.
const LATEST_US: u64 = 5_000_000;

impl Operation {
    /// Whether it may have broken the grant of this number, of which its client was told at `told_us`.
    pub(super) fn may_break(&self, number: u64, told_us: u64) -> bool {
        let Action::Break { number: asked } = self.action else { return false };
        match self.answer {
            Answer::Broken { number: broken } => broken == number,
            _ if !self.is_in_doubt() => false,
            _ => asked.is_none_or(|asked| asked == number) && told_us < self.span.end_us + LATEST_US,
        }
    }
}

/// A grant that was released before the end of its `min_hold`, as far as that is certain.
pub(super) struct Kept<'a> {
    pub(super) grant: &'a Operation,
    pub(super) release: &'a Operation,
    pub(super) until_us: u64,
}

impl Case<'_> {
    /// The request that was granted the lock by this number.
    fn granted(&self, number: u64) -> Option<&Operation> {
        let is_told = |operation: &&&Operation| matches!(operation.answer, Answer::Granted { number: its, .. } if its == number);
        let told = self.operations.iter().find(is_told).copied();
        told.or_else(|| {
            let mut shown = self.operations.iter().filter_map(|operation| operation.holder());
            shown.find(|holder| holder.number == number).and_then(|holder| self.grant_of(holder))
        })
    }

    /// What may be left of a lease when its client is told, by the `max_hold` that its token may have been granted.
    pub(super) fn most_by_terms_us(&self, told: &Operation) -> u64 {
        let of_it = self.operations.iter().filter(|other| other.is_acquire() && other.token == told.token);
        let ends_us = of_it.filter_map(|other| Some(other.span.start_us + other.terms.max_hold_ms? * 1_000));
        ends_us.min().map_or(u64::MAX, |end_us| end_us.saturating_sub(told.span.end_us))
    }

    /// Whether a `max_hold` that its token may have been granted may end early: on a server of a quorum, where answers came late before
    /// a repair; or in a file that was opened by a wrong clock.
    pub(super) fn max_hold_may_end_early(&self, told: &Operation) -> bool {
        let has_one = |other: &&&Operation| {
            other.is_acquire() && other.token == told.token && other.terms.max_hold_ms.is_some()
        };
        let asked = self.operations.iter().filter(has_one).map(|other| other.span.start_us).min();
        asked.is_some_and(|asked_us| {
            self.history.is_of_quorum || self.is_lost_between(asked_us, told.span.end_us)
        })
    }

    /// T1: counted from the grant, which came before anybody was shown it.
    pub(super) fn no_lease_goes_past_its_max_hold(&self, found: &mut Found) {
        for seen in &self.operations {
            let (Some(number), Some(left_ms)) = (seen.shown(), seen.shown_left_ms()) else { continue };
            let Some(most_ms) = self.granted(number).and_then(|grant| grant.terms.max_hold_ms) else {
                continue;
            };
            let shown = self.operations.iter().filter(|other| other.shown() == Some(number));
            let granted_us = shown.map(|other| other.span.end_us).min().unwrap_or_default();
            let most_us = most_ms * 1_000 + ROUNDING_US + self.drift_us(most_ms * 1_000);
            // A file that is opened again may not know how long it was closed.
            let may_be_opened = |kill: &Span| kill.start_us <= seen.span.end_us && granted_us <= kill.end_us;
            if self.history.kills.iter().any(may_be_opened)
                || self.is_lost_between(granted_us, seen.span.end_us)
            {
                continue;
            }
            if seen.span.start_us + left_ms * 1_000 > granted_us + most_us {
                found.add("T1", "a lease goes past its max_hold", seen);
            }
        }
    }

    /// For how long a grant that is released is kept for its `min_hold`, if it is.
    pub(super) fn kept(&self, hold: &Hold) -> Option<Kept<'_>> {
        let grant = self.granted(hold.number)?;
        let least_us = grant.terms.min_hold_ms? * 1_000;
        let is_its = |operation: &&&Operation| {
            operation.action == Action::Release && operation.token.as_deref() == Some(hold.token)
        };
        let release = self.operations.iter().filter(is_its).min_by_key(|release| release.span.start_us)?;
        let is_within = hold.from_us <= release.span.start_us && release.span.end_us <= hold.lease_until_us;
        let until_us = (grant.span.start_us + least_us).saturating_sub(ROUNDING_US + self.drift_us(least_us));
        (is_within && release.answer == Answer::Released).then_some(Kept { grant, release, until_us })
    }

    /// T2: nobody has the lock, and nobody is told that it is free.
    pub(super) fn released_locks_stay_taken_for_their_min_hold(&self, found: &mut Found) {
        for hold in &self.holds {
            let Some(Kept { grant, release: first, until_us }) = self.kept(hold) else { continue };
            for other in &self.operations {
                let is_taken = matches!(other.answer, Answer::Granted { number, .. } if number > hold.number);
                let is_free = other.action == Action::Look && other.answer == Answer::NotHeld;
                let is_after = other.span.start_us > first.span.end_us;
                let is_before_the_end = other.span.end_us < until_us;
                let is_broken = || self.operations.iter().any(|it| it.may_break(hold.number, hold.from_us));
                if (is_taken || is_free && is_after)
                    && is_before_the_end
                    && !self.is_lost_between(grant.span.start_us, other.span.end_us)
                    && !is_broken()
                {
                    found.add("T2", &format!("{hold:?} is to be kept until {until_us}"), other);
                }
            }
        }
    }

    /// B1: a break ends the grant that it was asked to end, which nobody is shown any more.
    pub(super) fn what_is_broken_is_one_grant_for_good(&self, found: &mut Found) {
        for operation in &self.operations {
            let (Action::Break { number: asked }, Answer::Broken { number }) =
                (operation.action, &operation.answer)
            else {
                continue;
            };
            if asked.is_some_and(|asked| asked != *number) {
                found.add("B1", "another grant was broken", operation);
            }
            for later in &self.operations {
                let is_later = later.span.start_us > operation.span.end_us;
                let is_lost = || self.is_lost_between(operation.span.start_us, later.span.end_us);
                if is_later && later.shown() == Some(*number) && !is_lost() {
                    found.add("B1", "a broken grant holds the lock", later);
                }
            }
        }
    }
}
