//! One worker at a time, with a number of its own, and what is remembered of those before (O4, O5, O7, O9, O11).

use std::collections::BTreeSet;

use kit::history::Span;

use super::super::{Action, Answer, Operation, Seen, State};
use super::{Disturbances, Found, LATEST_US, ROUNDING_US, Record, overlaps};

/// So long after the end of a lease somebody who waits has its place, if nothing fails.
const GRANTED_WITHIN_US: u64 = 1_500_000;
/// So long after a request was sent, all of it is taken back that nobody was told of, unless its gateway ends before.
const TAKEN_BACK_WITHIN_US: u64 = 15_000_000;
/// How many attempts of one request may have been granted the place, and lost it again by the end of their leases.
const MOST_ATTEMPTS: u64 = 3;

impl Record<'_> {
    /// O7: numbers grow, whoever is told them.
    pub(super) fn numbers_grow(&self, before: &Operation, after: &Operation, found: &mut Found) {
        let (Some(number), Some(later)) = (before.number(), after.number()) else { return };
        let is_new = matches!(after.answer, Answer::Work { is_new: true, .. });
        // A token that gave up is told again what it was told then.
        let is_old_news = matches!(after.action, Action::GiveUp { .. });
        let is_excused = match is_new {
            // Nothing excuses that but an older server.
            true => overlaps(&self.disturbances.splits, before, after),
            // A place that is left as it was found has the number of the worker before.
            false => self.is_lost(before, after) || self.may_be_undone(number, after),
        };
        if !is_excused && !is_old_news && (later < number || is_new && later == number) {
            found.add("O7: numbers do not grow", &[before, after]);
        }
    }

    /// O5: nobody ends a place while its lease runs but its worker, or who breaks it. O10: the worker is told the same again.
    pub(super) fn a_place_is_its_workers_while_the_lease_runs(
        &self,
        before: &Operation,
        after: &Operation,
        found: &mut Found,
    ) {
        let (Some(number), Some(ends_us)) = (before.work(), before.lease_ends_us()) else { return };
        let token = before.token.as_deref();
        if after.end_us >= ends_us
            || self.may_be_broken(before, after)
            || self.may_have_left(before, after, token)
            || overlaps(&self.disturbances.moves, before, after)
        {
            return;
        }
        let is_its = after.token.as_deref() == token;
        let is_own_number = |said: &Option<u64>| said.is_none_or(|said| said == number);
        let is_wrong = match (&after.action, &after.answer) {
            (Action::Begin { .. }, Answer::Work { number: other, is_new, .. }) => {
                !is_its || *is_new || *other != number
            }
            (Action::Begin { .. }, Answer::Busy { number: other }) => is_its || *other != number,
            (Action::Begin { .. }, Answer::Abandoned | Answer::Done { .. }) => true,
            (Action::Begin { .. }, Answer::TokenReleased) => is_its,
            (Action::Renew { number: said, .. }, answer) if is_its && is_own_number(said) => matches!(
                answer,
                Answer::LeaseOver | Answer::NotBegun | Answer::Superseded { .. } | Answer::AlreadyStored
            ),
            (Action::Look, Answer::Seen(Seen { state, number: other, yours, .. })) => {
                *state != State::Working || *other != number || yours.is_some_and(|yours| yours != is_its)
            }
            (Action::Look, Answer::NotBegun) => true,
            _ => false,
        };
        if is_wrong {
            found.add("O5: a place was taken from one who is at work", &[before, after]);
        }
    }

    /// O9: a new worker is told of all before it that may have done something, and of no more than those.
    pub(super) fn earlier_counts_those_before(&self, after: &Operation, found: &mut Found) {
        let Answer::Work { number, earlier, is_new: true, .. } = after.answer else { return };
        let told: BTreeSet<_> = self
            .operations
            .iter()
            .filter(|grant| grant.work().is_some_and(|before| before < number))
            .filter(|grant| {
                !self.is_lost(grant, after)
                    && !self.may_be_over(grant, after)
                    && !self.may_be_left_cleanly(grant, after, grant.token.as_deref())
            })
            .filter_map(|grant| grant.work())
            .collect();
        if (told.len() as u64) > earlier {
            found.add("O9: fewer workers before it than there were", &[after]);
        }
        // Who began while a result was kept that is over by now has nothing to do with it, unless it was broken or lost.
        let over_us = self
            .operations
            .iter()
            .filter(|store| matches!(store.answer, Answer::Stored { .. }))
            .filter(|store| matches!(store.action, Action::Store { .. }))
            .filter(|store| !self.may_be_broken(store, after) && !self.is_lost(store, after))
            .map(|store| store.end_us + self.keeps_us(store).1 + ROUNDING_US)
            .filter(|over_us| *over_us < after.start_us)
            .max()
            .unwrap_or(0);
        let counts = self.operations.iter().filter(|grant| {
            grant.is_begin() && grant.start_us <= after.end_us && grant.latest_us() >= over_us
        });
        let (mut known, mut most) = (BTreeSet::new(), 0);
        for grant in counts {
            let Action::Begin { ttl_ms, wait, .. } = grant.action else { continue };
            if let Some(before) = grant.work() {
                known.extend((before < number).then_some(before));
            }
            // A place that nobody was told of counts if its lease ended before it was taken back.
            let outlasts_its_lease = grant.latest_us() > grant.start_us + ttl_ms * 1_000;
            // What undid a refused one may be lost, and the one itself not.
            let is_kept = !self.is_lost(grant, grant);
            let is_certain = grant.is_calm() || grant.answer == Answer::Refused && wait.is_zero() && is_kept;
            most += match grant.answer {
                Answer::Work { .. } if grant.is_calm() => 0,
                Answer::Work { .. } => MOST_ATTEMPTS - 1,
                _ if is_certain && !outlasts_its_lease && !grant.answer.is_in_doubt() => 0,
                _ => MOST_ATTEMPTS,
            };
        }
        if most + (known.len() as u64) < earlier && !self.is_lost(after, after) {
            found.add("O9: more workers before it than there were", &[after]);
        }
    }

    /// O4: nobody blocks a record beyond its lease, and renewing revives none.
    pub(super) fn a_place_is_busy_while_a_lease_runs(&self, told: &Operation, found: &mut Found) {
        let since_us = match (&told.action, &told.answer) {
            (Action::Begin { may_take_over: true, wait, .. }, Answer::Busy { .. }) if wait.is_zero() => {
                told.start_us
            }
            // It is told what it saw last.
            (Action::Begin { may_take_over: true, .. }, Answer::Busy { .. }) if told.is_calm() => {
                (told.said_us - GRANTED_WITHIN_US).max(told.start_us)
            }
            (Action::Renew { .. }, Answer::Work { .. }) => told.start_us,
            (Action::Look, Answer::Seen(Seen { state: State::Working, .. })) => told.start_us,
            _ => return,
        };
        let may_run = |other: &&Operation| {
            let is_of_another = match told.action {
                Action::Begin { .. } => other.token != told.token || told.token.is_none(),
                Action::Renew { .. } => other.token == told.token,
                _ => true,
            };
            !std::ptr::eq(*other, told)
                && is_of_another
                && other.start_us <= told.end_us
                && other.may_run_until_us() >= since_us
        };
        if !self.operations.iter().any(may_run)
            && !overlaps(&self.disturbances.moves, self.operations[0], told)
            && !self.is_lost(self.operations[0], told)
        {
            found.add("O4: a lease lasts for longer than was asked for", &[told]);
        }
    }

    /// O11, O8: what nobody was told of is taken back, and what was refused is not done.
    pub(super) fn nothing_is_left_of_what_nobody_learned(&self, found: &mut Found) {
        let Some(begin) = self.operations.iter().find(|operation| operation.is_begin()) else { return };
        let is_without_place = |look: &Operation| match begin.answer {
            Answer::Refused => true,
            Answer::Lost => begin.is_seen_to_leave && !begin.was_handed_out,
            _ => self
                .operations
                .iter()
                .any(|other| other.answer == Answer::GivenUp && other.end_us <= look.start_us),
        };
        let Disturbances { losses, returns, kills, .. } = self.disturbances;
        // Later there is nothing left to take back, and no copy on its way.
        let taken_back_us = begin.start_us + TAKEN_BACK_WITHIN_US;
        let may_be_left = |spans: &[Span], until_us: u64| {
            spans.iter().any(|span| span.start_us <= until_us && begin.start_us <= span.end_us)
        };
        for look in &self.operations {
            let is_there = matches!(&look.answer, Answer::Seen(seen) if seen.state == State::Working);
            if is_without_place(look)
                && is_there
                && !may_be_left(losses, taken_back_us)
                && !may_be_left(kills, taken_back_us)
                && !may_be_left(returns, look.end_us)
            {
                found.add("O11: a place is left that nobody was told of", &[begin, look]);
            }
        }
    }

    /// O9: a record is not forgotten before its worker has stored or given up.
    pub(super) fn a_worker_is_not_forgotten(&self, before: &Operation, after: &Operation, found: &mut Found) {
        let is_forgotten = matches!((&after.action, &after.answer), (Action::Look, Answer::NotBegun));
        if before.work().is_some()
            && is_forgotten
            && !self.may_be_over(before, after)
            && !self.may_be_left_cleanly(before, after, before.token.as_deref())
        {
            found.add("O9: nobody remembers one who was at work", &[before, after]);
        }
    }
}

impl Operation {
    /// Until when a lease may run that this request asked for. The largest number if nobody can say.
    fn may_run_until_us(&self) -> u64 {
        let (Action::Begin { ttl_ms, .. } | Action::Renew { ttl_ms, .. }) = &self.action else { return 0 };
        let until_us = |from_us: u64| from_us + ttl_ms * 1_000 + ROUNDING_US;
        if self.answer.is_in_doubt() || !self.is_calm() {
            return until_us(self.start_us + LATEST_US);
        }
        // A place that too few replicas have heard of is taken back before that is answered.
        if self.work().is_some() { until_us(self.end_us) } else { self.end_us + ROUNDING_US }
    }
}
