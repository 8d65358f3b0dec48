//! Decides from what workers asked, and were told, whether the promises of records were kept.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::history::Span;

use super::{Action, Answer, Operation};

/// Between a result or an end that was answered and the answer to whoever waits for it.
const WOKEN_WITHIN_US: u64 = 3_000_000;
/// So long before, nothing must have failed.
const CALM_FOR_US: u64 = 2_000_000;

/// For so long a token that gave up is refused: shorter than tombstones live here.
const REFUSED_FOR_US: u64 = 10_000_000;

/// All that is wrong. `disturbances` are the times in which the store lost something, or older data came back.
pub fn judge(operations: &[Operation], disturbances: &[Span]) -> Vec<String> {
    let mut by_key = BTreeMap::<&str, Vec<&Operation>>::new();
    for operation in operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut violations = Vec::new();
    violations.extend(judge_waits(operations));
    for operations in by_key.values() {
        let record = Record { operations, disturbances };
        for before in operations {
            for after in operations {
                record.compare(before, after, &mut violations);
            }
            record.look_at(before, &mut violations);
        }
    }
    violations
}

impl Operation {
    /// What nobody has heard of is done at any time, or never.
    fn may_be_done_after(&self, time_us: u64) -> bool {
        self.end_us >= time_us || matches!(self.answer, Answer::Lost | Answer::Unknown)
    }
}

struct Record<'a> {
    operations: &'a [&'a Operation],
    disturbances: &'a [Span],
}

impl Record<'_> {
    /// Whether anything was lost from the beginning of the one to the end of the other.
    fn is_excused(&self, before: &Operation, after: &Operation) -> bool {
        let (start_us, end_us) = (before.start_us.min(after.start_us), before.end_us.max(after.end_us));
        self.disturbances.iter().any(|lost| lost.start_us <= end_us && start_us <= lost.end_us)
    }

    /// Whether such a request may have been done before `end_us`.
    fn may_have(&self, end_us: u64, is_it: impl Fn(&Operation) -> bool) -> bool {
        self.operations.iter().any(|other| other.start_us <= end_us && is_it(other))
    }

    fn look_at(&self, told: &Operation, violations: &mut Vec<String>) {
        // O2: what one is told was posted by the worker of that number.
        if let Answer::Done { number, result } = &told.answer {
            let is_its = |other: &Operation| {
                matches!(&other.action, Action::Store { result: posted } if posted == result)
                    && self.may_have(told.end_us, |grant| {
                        let may_be_its = match grant.answer {
                            Answer::Work { number: its, .. } => its == *number,
                            Answer::Lost | Answer::Unknown => true,
                            _ => false,
                        };
                        grant.token == other.token && may_be_its
                    })
            };
            if !self.may_have(told.end_us, is_its) {
                violations.push(format!("O2: a result that its worker never posted: {told:?}"));
            }
        }
    }

    fn compare(&self, before: &Operation, after: &Operation, violations: &mut Vec<String>) {
        let is_excused = self.is_excused(before, after);
        // O1, O2: one number has one result. Of one that was lost, its worker may have stored another.
        if let (Answer::Done { number, result }, Answer::Done { number: same, result: other }) =
            (&before.answer, &after.answer)
            && number == same
            && result != other
            && !is_excused
        {
            violations.push(format!("O2: two results of one number: {before:?} {after:?}"));
        }
        if before.end_us >= after.start_us {
            return;
        }
        // O7: a grant that begins after another was answered has the larger number. Nothing excuses that but an older server.
        if let (Answer::Work { number, .. }, Answer::Work { number: later, is_new: true, .. }) =
            (&before.answer, &after.answer)
            && before.token != after.token
            && later <= number
            && !is_excused
        {
            violations.push(format!("O7: numbers do not grow: {before:?} {after:?}"));
        }
        if is_excused {
            return;
        }
        // O10: whoever gave up never works on this again, for as long as that is remembered.
        let gave_up = matches!(before.action, Action::GiveUp { .. })
            && matches!(before.answer, Answer::GivenUp | Answer::NotBegun | Answer::Superseded { .. });
        if gave_up
            && before.token == after.token
            && matches!(after.answer, Answer::Work { .. })
            && after.end_us < before.start_us + REFUSED_FOR_US
        {
            violations.push(format!("O10: a token that gave up works on: {before:?} {after:?}"));
        }
        let was_broken = self.may_have(after.end_us, |other| {
            matches!(other.action, Action::Break { .. }) && other.may_be_done_after(before.start_us)
        });
        let stored = match &before.answer {
            Answer::Done { number, .. } | Answer::Stored { number } => Some(*number),
            _ => None,
        };
        // O1: what is done stays done.
        if let Some(number) = stored
            && !was_broken
        {
            match &after.answer {
                Answer::Work { .. } | Answer::Busy => {
                    violations.push(format!("O1: begun although it is done: {before:?} {after:?}"));
                }
                Answer::Done { number: other, .. } | Answer::Stored { number: other } if *other != number => {
                    violations.push(format!("O1: a second result: {before:?} {after:?}"));
                }
                _ => {}
            }
        }
        let Answer::Work { number, left_ms, .. } = before.answer else { return };
        let is_another = before.token != after.token;
        // O3: whoever was superseded stores nothing.
        if let Answer::Stored { number: by } = after.answer
            && by < number
        {
            violations.push(format!("O3: stored by one who was superseded: {before:?} {after:?}"));
        }
        let (Answer::Work { is_new: true, earlier, .. }, true) = (&after.answer, is_another) else { return };
        let has_left = |is_it: fn(&Action) -> bool| {
            self.may_have(after.end_us, |other| other.token == before.token && is_it(&other.action))
        };
        // O5: nobody else ends a place while its lease runs.
        let ends_us = before.said_us + left_ms * 1_000;
        if after.end_us < ends_us
            && !was_broken
            && !has_left(|action| matches!(action, Action::Store { .. } | Action::GiveUp { .. }))
        {
            violations.push(format!("O5: a place was taken from one who is at work: {before:?} {after:?}"));
        }
        // O9: `earlier: 0` is told to the first alone.
        let was_cleaned = self.may_have(after.end_us, |other| {
            matches!(other.action, Action::Break { is_clean: true, .. })
                && other.may_be_done_after(before.start_us)
        });
        if *earlier == 0
            && !was_cleaned
            && !has_left(|action| matches!(action, Action::GiveUp { is_clean: true }))
        {
            violations.push(format!("O9: told to be the first, and is not: {before:?} {after:?}"));
        }
    }
}

/// Whoever waits is told in time, while nothing fails (O12).
fn judge_waits(operations: &[Operation]) -> Vec<String> {
    let mut violations = Vec::new();
    for waits in operations {
        let Action::Begin { wait, .. } = waits.action else { continue };
        if wait.is_zero() || matches!(waits.answer, Answer::Lost | Answer::Unknown) {
            continue;
        }
        let is_late = |stored: &&Operation| {
            stored.key == waits.key
                && matches!(stored.answer, Answer::Stored { .. })
                && stored.start_us > waits.start_us + CALM_FOR_US
                && waits.calm_since_us.is_some_and(|since| since + CALM_FOR_US < stored.start_us)
                && stored.end_us + WOKEN_WITHIN_US < waits.said_us
        };
        if let Some(stored) = operations.iter().find(is_late) {
            violations.push(format!("O12: not told in time: {waits:?} of {stored:?}"));
        }
    }
    violations
}

/// A break whose answer was lost may be done after the result was told. One that was answered was done before.
pub fn a_break_that_nobody_heard_of_may_still_be_done() {
    let begin = |token: &str| {
        let action = Action::Begin { ttl_ms: 1_000, may_take_over: true, wait: Duration::ZERO };
        (Some(token.to_owned()), action)
    };
    let operation = |(token, action), start_us, answer| Operation {
        key: "k".to_owned(),
        token,
        action,
        start_us,
        end_us: start_us + 1,
        said_us: start_us + 1,
        answer,
        calm_since_us: None,
    };
    let work = |number| Answer::Work { number, earlier: 0, left_ms: 1_000, is_new: true };
    let store = (Some("a".to_owned()), Action::Store { result: "r".to_owned() });
    let is_kept = |broken: Answer| {
        let history = [
            operation(begin("a"), 0, work(1)),
            operation(store.clone(), 10, Answer::Stored { number: 1 }),
            operation((None, Action::Break { number: Some(1), is_clean: true }), 20, broken),
            operation(begin("b"), 30, Answer::Done { number: 1, result: "r".to_owned() }),
            operation(begin("c"), 40, work(2)),
        ];
        judge(&history, &[]).is_empty()
    };
    assert!(is_kept(Answer::Lost));
    assert!(is_kept(Answer::Unknown));
    assert!(!is_kept(Answer::Broken));
}
