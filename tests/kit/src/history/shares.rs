//! Locks that several hold at once: S1 to S4, and for each grant by itself what is promised of a lock that excludes all others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::check::{Case, Found};
use super::holds::Hold;
use super::terms::Kept;
use super::{Action, Answer, Holder, Operation};

/// The place of one of those who share a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub slot: u16,
    /// Beside how many others it may be, itself included.
    pub slots: u16,
}

/// What an answer says of those who share a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The place that its client was told to have.
    pub place: Option<Place>,
    /// All who hold it, as a look shows them. Those who are released, and kept for their `min_hold`, are not among them.
    pub holders: Vec<(Holder, Place)>,
    /// How many hold it, those included.
    pub held: u64,
    /// The least that any of them has said.
    pub slots: Option<u16>,
}

impl Case<'_> {
    /// Whether anybody asked to share the lock.
    pub(super) fn is_shared(&self) -> bool {
        self.operations.iter().any(|operation| operation.terms.slots.is_some())
    }

    /// All that is promised of such a lock.
    pub(super) fn of_those_who_share(&self, found: &mut Found) {
        let shown: Vec<_> = self.operations.iter().flat_map(|look| each_shown_by(look)).collect();
        let mut operations: Vec<_> = self.operations.iter().copied().chain(&shown).collect();
        operations.sort_by_key(|operation| operation.span.start_us);
        let case = Case { history: self.history, operations, holds: self.holds.clone() };
        case.numbers_are_unique(found);
        case.numbers_of_grants_grow(found);
        case.no_more_hold_than_each_bears(found);
        case.looks_show_no_more_than_may_hold(found);
        case.places_stay(found);
        case.all_are_told_of_those_who_hold(found);
        case.holders_are_believed_by_their_first_release(found);
        case.leases_are_not_revived(found);
        case.leases_are_not_cut(found);
        case.leases_end(found);
        case.nothing_is_left_of_what_nobody_learnt(found);
        case.nothing_is_left_of_connections(found);
        case.released_tokens_stay_released(found);
        case.tokens_are_used_up_by_releases(found);
        case.what_was_refused_did_not_happen(found);
        case.no_lease_goes_past_its_max_hold(found);
        case.what_is_broken_is_one_grant_for_good(found);
    }

    /// The place of this grant; nothing of one that excludes all others.
    fn place(&self, number: u64) -> Option<Place> {
        let mut told = self.operations.iter().filter(|operation| operation.told() == Some(number));
        told.find_map(|operation| operation.share.place)
    }

    /// S3: a new grant has a larger number than all that were shown before it was asked for. A holder of old has a smaller one.
    fn numbers_of_grants_grow(&self, found: &mut Found) {
        let grants = self.operations.iter().filter_map(|operation| match operation.answer {
            Answer::Granted { number, .. } => Some((operation, number)),
            _ => None,
        });
        for (grant, number) in grants {
            let outdoes = |other: &&&Operation| {
                other.span.end_us < grant.span.start_us
                    && other.shown().is_some_and(|before| before >= number)
                    && !self.is_split_between(other, grant)
            };
            if let Some(other) = self.operations.iter().find(outdoes) {
                found.add("S3", &format!("{:?} was shown before", other.shown()), grant);
            }
        }
    }

    /// S1, S2 and S4: at each moment no more hold it than each of them has said, each once, and each in a place of its own.
    fn no_more_hold_than_each_bears(&self, found: &mut Found) {
        for hold in &self.holds {
            let at_us = hold.from_us;
            let is_there = |other: &&Hold| other.from_us <= at_us && at_us < self.taken_until_us(other);
            let there: Vec<_> = self.holds.iter().filter(is_there).collect();
            let bears = |hold: &Hold| self.place(hold.number).map_or(1, |place| usize::from(place.slots));
            let least = there.iter().map(|hold| bears(hold)).min().unwrap_or(usize::MAX);
            if there.len() > least {
                found.add("S1", &format!("more than {least} hold it at {at_us}"), &there);
            }
            for other in there.iter().filter(|other| other.number != hold.number) {
                if other.token == hold.token && at_us < other.until_us {
                    found.add("S2", "a token has two places", &[hold, other]);
                }
                let slot = |hold: &Hold| self.place(hold.number).map(|place| place.slot);
                if slot(hold).is_some() && slot(hold) == slot(other) {
                    found.add("S4", "two are in one place", &[hold, other]);
                }
            }
        }
    }

    /// Until when a grant certainly counts: also when it is released, until its `min_hold` is over.
    fn taken_until_us(&self, hold: &Hold) -> u64 {
        let Some(Kept { grant, until_us, .. }) = self.kept(hold) else { return hold.until_us };
        let is_broken = self.operations.iter().any(|other| other.may_break(hold.number, hold.from_us));
        let is_over = is_broken || self.is_lost_between(grant.span.start_us, until_us);
        if is_over { hold.until_us } else { hold.until_us.max(until_us) }
    }

    /// S1, S4 and S8, as the store sees it at one moment.
    fn looks_show_no_more_than_may_hold(&self, found: &mut Found) {
        for look in &self.operations {
            let Share { holders, held, slots, .. } = &look.share;
            let Some(slots) = slots else { continue };
            let mut taken: Vec<_> = holders.iter().map(|(_, place)| place.slot).collect();
            taken.sort_unstable();
            taken.dedup();
            if *held > u64::from(*slots) {
                found.add("S1", "more are seen to hold it than one of them has said", look);
            }
            let least = holders.iter().map(|(_, place)| place.slots).min();
            if *held == holders.len() as u64 && least.is_some_and(|least| least != *slots) {
                found.add("S8", "none of those who hold it has said so few", look);
            }
            if taken.len() < holders.len() {
                found.add("S4", "two are seen in one place", look);
            }
        }
    }

    /// S4: a place is one of those that there are, and never changes. S2: who is told of one can rely on what it asked for.
    fn places_stay(&self, found: &mut Found) {
        let mut places = HashMap::new();
        for operation in &self.operations {
            let most = operation.terms.slots.unwrap_or(1);
            let is_asked = operation.is_acquire() && operation.told().is_some();
            if is_asked && operation.share.place.is_some_and(|place| place.slots > most) {
                found.add("S2", "it shares the lock with more than it asked for", operation);
            }
            let told = operation.told().zip(operation.share.place);
            let shown = operation.share.holders.iter().map(|(holder, place)| (holder.number, *place));
            for (number, place) in told.into_iter().chain(shown) {
                if *places.entry(number).or_insert(place) != place {
                    found.add("S4", "its place has changed", operation);
                }
                if place.slot == 0 || place.slot > place.slots {
                    found.add("S4", "there is no such place", operation);
                }
            }
        }
    }

    /// I8 and S2: as long as a client certainly holds it, no answer denies that.
    fn all_are_told_of_those_who_hold(&self, found: &mut Found) {
        for hold in &self.holds {
            for operation in self.operations.iter().filter(|operation| hold.covers(operation)) {
                if self.is_denied(hold, operation) && !self.may_be_of_a_deposed(operation) {
                    found.add("S2", &format!("{hold:?} is denied"), operation);
                }
            }
        }
    }

    fn is_denied(&self, hold: &Hold, operation: &Operation) -> bool {
        let is_its = operation.token.as_deref() == Some(hold.token);
        let place = self.place(hold.number);
        let is_shown = || {
            let mut holders = operation.share.holders.iter();
            holders.any(|(holder, _)| holder.number == hold.number)
        };
        match &operation.answer {
            Answer::NotDone | Answer::Unknown | Answer::Lost { .. } => false,
            Answer::AlreadyHeld { number, .. } | Answer::Renewed { number, .. } if is_its => {
                *number != hold.number || operation.share.place != place
            }
            Answer::Held { holder, yours } if is_its => {
                *yours != Some(true) || holder.number != hold.number || operation.share.place != place
            }
            Answer::HeldOtherwise { slots } if is_its => {
                let asked = operation.terms.slots.unwrap_or(1);
                place.is_none_or(|place| asked >= place.slots || *slots != place.slots)
            }
            _ if is_its => true,
            // One alone, or one of those who are shown together.
            Answer::Held { .. } if operation.share.held == 0 => {
                operation.share.place.is_none() && operation.shown() != Some(hold.number)
            }
            Answer::Held { .. } => !is_shown(),
            Answer::HeldByAnother(None) if operation.action == Action::Look => {
                operation.share.slots.is_none() || !is_shown()
            }
            Answer::NotHeld => !(operation.action == Action::Release && self.was_released_before(operation)),
            Answer::Broken { number } => *number == hold.number,
            _ => false,
        }
    }
}

/// A look that shows several, as one for each of them.
fn each_shown_by(look: &Operation) -> impl Iterator<Item = Operation> {
    look.share.holders.iter().map(|(holder, place)| Operation {
        token: None,
        answer: Answer::Held { holder: holder.clone(), yours: None },
        share: Share { place: Some(*place), ..Share::default() },
        ..look.clone()
    })
}
