//! One result, which stays as long as it is kept (O1 to O3).

use super::super::{Action, Answer, Operation, Seen, State};
use super::{Found, ROUNDING_US, Record, overlaps};

impl Record<'_> {
    /// O2: what one is told was posted by the worker of that number, and not too long ago.
    pub(super) fn a_result_is_its_workers(&self, told: &Operation, found: &mut Found) {
        let Answer::Done { number, result, status } = &told.answer else { return };
        let is_its = |other: &&&Operation| {
            matches!(&other.action, Action::Store { result: posted, status: said, .. } if posted == result && said == status)
                && other.start_us <= told.end_us
                && self.may_be_done(other)
                && self.may_have_been_told(other, *number)
        };
        if !self.operations.iter().any(|store| is_its(&store)) {
            return found.add("O2: a result that its worker never posted", &[told]);
        }
        let stores = || self.operations.iter().filter(is_its);
        // It was stored before a worker was first told so, whatever later copies of the request say.
        let known_us = stores().filter(|store| !store.answer.is_in_doubt()).map(|store| store.end_us).min();
        let kept_us = stores()
            .filter(|store| known_us.is_none_or(|known_us| store.start_us <= known_us))
            .map(|store| {
                known_us.map_or(store.latest_us(), |known_us| known_us.min(store.latest_us()))
                    + self.keeps_us(store).1
            });
        if kept_us.max().is_some_and(|until_us| until_us + ROUNDING_US < told.start_us) {
            found.add("O1: a result that is kept no longer", &[told]);
        }
    }

    /// Whether the token of this request may have been told that it has the place by this number.
    pub(super) fn may_have_been_told(&self, request: &Operation, number: u64) -> bool {
        self.operations.iter().any(|grant| {
            grant.token == request.token
                && grant.is_begin()
                && grant.start_us <= request.latest_us()
                && (grant.work() == Some(number)
                    || grant.answer.is_in_doubt()
                    || self.found_its_own(grant, number)
                    // An earlier try of the same begin was granted it, and its answer was late or lost.
                    || !grant.is_calm() && grant.work().is_some_and(|later| later > number)
                    // The same, and the place was another's when it asked again.
                    || !grant.is_calm() && grant.end_us >= request.start_us && grant.heard_of_later(number)
                    // The store lost the grant that was told, and a late copy of the same begin was granted the place anew.
                    || !grant.is_calm() && self.is_lost(grant, request))
        })
    }

    /// Whether a begin may have been granted the place, and have heard only of the result: a copy of its token's own post came
    /// before the answer.
    fn found_its_own(&self, begin: &Operation, number: u64) -> bool {
        let Answer::Done { number: of, result, .. } = &begin.answer else { return false };
        let is_its = |store: &Operation| {
            matches!(&store.action, Action::Store { result: posted, .. } if posted == result)
                && store.token == begin.token
                && store.start_us <= begin.end_us
                && self.may_be_done(store)
        };
        *of == number && self.operations.iter().any(|other| is_its(other))
    }

    /// O3: a worker stores by a number that it was told, and renews that one.
    pub(super) fn a_worker_is_told_its_own_number(&self, told: &Operation, found: &mut Found) {
        let (said, number) = match (&told.action, &told.answer) {
            (Action::Store { number: said, .. }, Answer::Stored { number })
            | (Action::Renew { number: said, .. }, Answer::Work { number, .. }) => (*said, *number),
            _ => return,
        };
        if said.is_some_and(|said| said != number) {
            found.add("O3: taken from one who showed another number", &[told]);
        }
        if !self.may_have_been_told(told, number) {
            found.add("O3: by a number that the worker was never told", &[told]);
        }
    }

    /// O1, O2, O7: one number is one grant, with one result.
    pub(super) fn one_number_is_one_grant(&self, before: &Operation, after: &Operation, found: &mut Found) {
        if self.is_lost(before, after) {
            return;
        }
        if let (Some((number, result)), Some((same, other))) = (result_of(before), result_of(after))
            && number == same
            && result != other
        {
            found.add("O1: two results of one number", &[before, after]);
        }
        let (Answer::Work { number, earlier, .. }, Some(same)) = (&before.answer, after.number()) else {
            return;
        };
        if *number != same {
            return;
        }
        match &after.answer {
            Answer::Work { .. } if before.token != after.token => {
                found.add("O7: two workers have one number", &[before, after]);
            }
            Answer::Work { earlier: other, .. }
            | Answer::Seen(Seen { earlier: other, state: State::Working | State::Done, .. })
                if earlier != other =>
            {
                found.add("O9: one grant, and others before it", &[before, after]);
            }
            _ => {}
        }
    }

    /// O1: what is done stays done, for as long as it is kept, and everybody is told so. The same to a worker that stores again
    /// is the same answer (O10).
    pub(super) fn what_is_done_stays_done(&self, before: &Operation, after: &Operation, found: &mut Found) {
        let (Answer::Done { number, .. } | Answer::Stored { number }) = &before.answer else { return };
        let is_its = |store: &&&Operation| {
            matches!(store.action, Action::Store { .. })
                && self.may_be_done(store)
                && self.may_have_been_told(store, *number)
        };
        let stores = || self.operations.iter().filter(is_its);
        let least_us = stores().map(|store| store.start_us + self.keeps_us(store).0).min();
        let is_kept = least_us.is_some_and(|until_us| after.end_us + ROUNDING_US < until_us);
        let is_misread = stores().any(|store| overlaps(&self.disturbances.misread, store, after));
        if !is_kept || is_misread || self.may_be_broken(before, after) {
            return;
        }
        let its_worker = match &before.answer {
            Answer::Stored { .. } => before.token.as_ref(),
            _ => self
                .operations
                .iter()
                .find(|grant| grant.work() == Some(*number))
                .and_then(|grant| grant.token.as_ref()),
        };
        let is_worker = its_worker.is_some_and(|token| after.token.as_ref() == Some(token));
        let is_another = its_worker.is_some_and(|token| after.token.as_ref() != Some(token));
        let is_same = match &before.answer {
            Answer::Done { result, status, .. } => posted(after) == Some((result, *status)),
            _ => posted(after) == posted(before),
        };
        let is_wrong = match (&after.action, &after.answer) {
            (_, Answer::Done { number: other, .. } | Answer::Stored { number: other }) => {
                other != number || posted(after).is_some() && !is_same
            }
            (_, Answer::Work { .. } | Answer::Busy { .. } | Answer::Abandoned) => true,
            (Action::Begin { .. }, Answer::TokenReleased) => true,
            (Action::Look, Answer::Seen(seen)) => seen.state != State::Done || seen.number != *number,
            (Action::Look, Answer::NotBegun) => true,
            (Action::Store { number: said, .. }, answer) => match answer {
                Answer::NotBegun => true,
                Answer::ResultDiffers => is_another || is_same,
                Answer::Superseded { number: by, is_done } => {
                    by != number || !is_done || is_worker && said.is_none_or(|said| said == *number)
                }
                _ => false,
            },
            (Action::Renew { .. }, answer) => match answer {
                Answer::NotBegun | Answer::LeaseOver => true,
                Answer::AlreadyStored => is_another,
                Answer::Superseded { number: by, is_done } => by != number || !is_done,
                _ => false,
            },
            // It is told what it was told at first.
            (Action::GiveUp { .. }, Answer::GivenUp) => !self.may_have(0, after.end_us, |other| {
                !std::ptr::eq(other, after)
                    && other.token == after.token
                    && matches!(other.action, Action::GiveUp { .. })
            }),
            _ => false,
        };
        if is_wrong {
            found.add("O1: it is done, and that is not told", &[before, after]);
        }
    }

    /// O3: who was superseded stores nothing.
    pub(super) fn who_was_superseded_stores_nothing(
        &self,
        before: &Operation,
        after: &Operation,
        found: &mut Found,
    ) {
        if let (Answer::Work { number, .. }, Answer::Stored { number: by }) = (&before.answer, &after.answer)
            && by < number
            && !self.may_be_undone(*number, after)
        {
            found.add("O3: stored by one who was superseded", &[before, after]);
        }
    }

    /// O3: a worker stores its result for as long as nobody has taken over, whether its lease runs or not.
    pub(super) fn a_worker_can_store(&self, before: &Operation, after: &Operation, found: &mut Found) {
        let Some(number) = before.work() else { return };
        let Action::Store { number: said, .. } = after.action else { return };
        let is_refused = matches!(after.answer, Answer::Superseded { .. } | Answer::NotBegun);
        if !is_refused || before.token != after.token || said.is_some_and(|said| said != number) {
            return;
        }
        let runs = before.lease_ends_us().is_some_and(|ends_us| after.end_us < ends_us);
        let gave_up =
            |other: &Operation| other.token == before.token && matches!(other.action, Action::GiveUp { .. });
        let between = || self.between(before.start_us, after.end_us);
        let takes_over = |other: &Operation| other.is_begin() && !std::ptr::eq(other, before);
        // Its own, too, if its lease is over.
        let is_undone = |other: &Operation| after.answer == Answer::NotBegun && other.work().is_none();
        // A take-over that no client was told of is undone, and puts back the worker whose place it was. Of two, only the last is undone;
        // and one that was given up puts nobody back.
        let is_put_back = |other: &Operation| {
            is_undone(other)
                && other.is_calm()
                && between().filter(|one| takes_over(one)).count() == 1
                && !between().any(|one| matches!(one.action, Action::GiveUp { .. }))
        };
        let begins = |other: &Operation| {
            takes_over(other)
                && (said.is_some() || other.token != before.token || is_undone(other))
                && !is_put_back(other)
        };
        // A later number is that of another, or its own since.
        let breaks = |other: &Operation| match other.action {
            Action::Break { number, .. } => number.is_none() || number >= before.number(),
            _ => false,
        };
        if self.may_have(before.start_us, after.end_us, gave_up)
            || self.may_have(before.start_us, after.end_us, breaks)
            || self.may_be_over(before, after)
            || !runs && self.may_have(before.start_us, after.end_us, begins)
        {
            return;
        }
        found.add("O3: refused, although nobody has taken over", &[before, after]);
    }
}

/// The result of a number, as it was told or stored.
fn result_of(told: &Operation) -> Option<(u64, (&String, Option<u16>))> {
    match &told.answer {
        Answer::Done { number, result, status } => Some((*number, (result, *status))),
        Answer::Stored { number } => Some((*number, posted(told)?)),
        _ => None,
    }
}

/// What this request has stored.
fn posted(store: &Operation) -> Option<(&String, Option<u16>)> {
    match &store.action {
        Action::Store { result, status, .. } => Some((result, *status)),
        _ => None,
    }
}
