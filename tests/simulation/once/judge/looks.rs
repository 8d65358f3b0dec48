//! What looks say.

use super::super::{Action, Answer, Operation, State};
use super::{Found, Record};

impl Record<'_> {
    /// A look with a token says whether it is the worker's, and one at a result how long that is.
    pub(super) fn a_look_says_whose_it_is(&self, look: &Operation, found: &mut Found) {
        let Answer::Seen(seen) = &look.answer else { return };
        let is_its = self.operations.iter().any(|grant| {
            grant.is_begin()
                && grant.token == look.token
                && matches!(grant.answer, Answer::Work { number, .. } if number == seen.number)
        });
        let is_wrong = match seen.yours {
            None => look.shows_token,
            Some(true) => !look.shows_token || !self.may_have_been_told(look, seen.number),
            // Nobody has a place that was given up or broken.
            Some(false) => !look.shows_token || is_its && seen.state != State::Lapsed,
        };
        if is_wrong {
            found.add("O10: a look does not know its worker", &[look]);
        }
        let lengths = |other: &&Operation| match (&other.action, &other.answer) {
            (_, Answer::Done { number, result, .. }) => {
                *number == seen.number && Some(result.len() as u64) != seen.bytes
            }
            (Action::Store { result, .. }, Answer::Stored { number }) => {
                *number == seen.number && Some(result.len() as u64) != seen.bytes
            }
            _ => false,
        };
        if seen.state == State::Done
            && let Some(told) = self.operations.iter().find(|other| lengths(other))
            && !self.is_lost(told, look)
        {
            found.add("O2: a result of another length", &[told, look]);
        }
    }
}
