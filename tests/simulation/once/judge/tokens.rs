//! What a token is told again, and what one is not granted (O10).

use fencepost::lock::LeaseToken;

use super::super::{Action, Answer, Operation};
use super::{Found, Record};

/// For so long a token that gave up is refused: shorter than tombstones live here.
const REFUSED_FOR_US: u64 = 10_000_000;

impl Record<'_> {
    /// Who may not take over does not, and a token that a gateway made confirms a place, and never begins.
    pub(super) fn a_request_gets_no_more_than_it_asks_for(&self, told: &Operation, found: &mut Found) {
        let Action::Begin { may_take_over, .. } = told.action else { return };
        match told.answer {
            Answer::Work { earlier, is_new: true, .. } if earlier > 0 && !may_take_over => {
                found.add("O3: it has taken over, and was not to", &[told]);
            }
            Answer::Abandoned if may_take_over => {
                found.add("O4: told that it may not take over, and may", &[told]);
            }
            Answer::Work { is_new: true, .. } if told.shows_token && is_of_a_gateway(told) => {
                found.add("O10: begun by a token that a gateway made", &[told]);
            }
            _ => {}
        }
    }

    /// O10: a token is released only if it gave up, or if a gateway made it.
    pub(super) fn a_token_is_released_once_it_gave_up(&self, told: &Operation, found: &mut Found) {
        let gave_up = |other: &&Operation| {
            other.token == told.token
                && other.start_us <= told.end_us
                && matches!(other.action, Action::GiveUp { .. })
        };
        if told.answer == Answer::TokenReleased
            && !is_of_a_gateway(told)
            && !self.operations.iter().any(gave_up)
        {
            found.add("O10: a token is released that never gave up", &[told]);
        }
    }

    /// O10: whoever gave up never works on this again, for as long as that is remembered, and is told the same again.
    pub(super) fn a_token_that_gave_up_works_no_more(
        &self,
        before: &Operation,
        after: &Operation,
        found: &mut Found,
    ) {
        let has_given_up = matches!(before.action, Action::GiveUp { .. })
            && matches!(
                before.answer,
                Answer::GivenUp | Answer::NotBegun | Answer::Superseded { .. } | Answer::AlreadyStored
            );
        if !has_given_up
            || before.token != after.token
            || is_of_a_gateway(before)
            || after.end_us >= before.start_us + REFUSED_FOR_US
        {
            return;
        }
        let is_wrong = match (&after.action, &after.answer) {
            (Action::Begin { .. }, Answer::Work { .. } | Answer::Busy { .. } | Answer::Abandoned) => true,
            (Action::GiveUp { .. }, answer) => {
                !answer.is_in_doubt() && *answer != Answer::Refused && *answer != before.answer
            }
            (Action::Renew { .. }, Answer::Work { .. }) => true,
            (Action::Store { .. }, Answer::Stored { .. }) => before.answer != Answer::AlreadyStored,
            _ => false,
        };
        if is_wrong {
            found.add("O10: a token that gave up works on, or is told something else", &[before, after]);
        }
    }

    /// O3: nobody's place is not begun. It is superseded only where another token was granted it.
    pub(super) fn nobodys_place_is_not_begun(
        &self,
        before: &Operation,
        after: &Operation,
        found: &mut Found,
    ) {
        let Answer::Superseded { number, .. } = after.answer else { return };
        let said = match after.action {
            Action::Store { number, .. } | Action::Renew { number, .. } => number,
            _ => return,
        };
        let is_by_itself = before.work() == Some(number)
            && before.token == after.token
            && said.is_none_or(|said| said == number);
        // The first of those that give up ends it, and the others are told the same.
        let is_first = || {
            !self.operations.iter().any(|other| {
                other.token == before.token
                    && matches!(other.action, Action::GiveUp { .. })
                    && other.start_us <= before.start_us
                    && !std::ptr::eq(*other, before)
            })
        };
        // Who leaves a place as it was found leaves it to the worker before.
        let has_found_it = matches!(before.action, Action::GiveUp { is_clean: true })
            && self.operations.iter().any(|grant| grant.work() > Some(number) && grant.token == before.token);
        let has_ended = matches!(before.answer, Answer::GivenUp)
            && !has_found_it
            && is_first()
            && !self.may_have(before.start_us, after.end_us, Operation::is_begin);
        if is_by_itself || has_ended {
            found.add("O3: superseded by nobody", &[before, after]);
        }
    }
}

fn is_of_a_gateway(operation: &Operation) -> bool {
    let token = operation.token.as_ref().and_then(|token| LeaseToken::parse(token.as_bytes()).ok());
    token.is_some_and(|token| token.is_server_made())
}
