//! Tests of the judge: for each of its rules histories that are right, and histories that break the rule.

use std::time::Duration;

use super::super::{ALONE, Action, Answer, Operation, Seen, State};
use super::{Disturbances, judge};
use kit::history::Span;

mod of_places;
mod of_results;
mod of_tokens;

type Test = (&'static str, fn());

pub const ALL: [Test; 25] = [
    (
        "a_break_that_nobody_heard_of_may_still_be_done",
        of_results::a_break_that_nobody_heard_of_may_still_be_done,
    ),
    (
        "a_result_that_its_worker_never_posted_is_found",
        of_results::a_result_that_its_worker_never_posted_is_found,
    ),
    ("a_result_that_changes_is_found", of_results::a_result_that_changes_is_found),
    (
        "a_result_that_is_gone_before_its_time_is_found",
        of_results::a_result_that_is_gone_before_its_time_is_found,
    ),
    (
        "a_result_whose_time_a_wrong_clock_has_read_may_end_early",
        of_results::a_result_whose_time_a_wrong_clock_has_read_may_end_early,
    ),
    ("a_result_that_stays_after_its_time_is_found", of_results::a_result_that_stays_after_its_time_is_found),
    ("another_answer_to_the_same_result_is_found", of_results::another_answer_to_the_same_result_is_found),
    (
        "a_late_result_is_taken_from_the_last_worker_alone",
        of_results::a_late_result_is_taken_from_the_last_worker_alone,
    ),
    (
        "a_copy_of_a_refused_result_may_come_late_while_something_fails",
        of_results::a_copy_of_a_refused_result_may_come_late_while_something_fails,
    ),
    (
        "a_worker_that_is_refused_without_a_reason_is_found",
        of_results::a_worker_that_is_refused_without_a_reason_is_found,
    ),
    ("a_number_that_is_not_compared_is_found", of_results::a_number_that_is_not_compared_is_found),
    ("a_waiter_that_is_told_late_is_found", of_results::a_waiter_that_is_told_late_is_found),
    ("numbers_that_do_not_grow_are_found", of_places::numbers_that_do_not_grow_are_found),
    ("a_place_that_is_taken_too_early_is_found", of_places::a_place_that_is_taken_too_early_is_found),
    ("a_worker_that_is_not_counted_is_found", of_places::a_worker_that_is_not_counted_is_found),
    ("a_worker_that_is_counted_twice_is_found", of_places::a_worker_that_is_counted_twice_is_found),
    ("a_lease_that_is_revived_is_found", of_places::a_lease_that_is_revived_is_found),
    (
        "a_place_that_is_blocked_beyond_its_lease_is_found",
        of_places::a_place_that_is_blocked_beyond_its_lease_is_found,
    ),
    ("a_place_of_which_nobody_was_told_is_found", of_places::a_place_of_which_nobody_was_told_is_found),
    ("a_look_that_is_wrong_is_found", of_places::a_look_that_is_wrong_is_found),
    ("a_token_that_gave_up_and_works_on_is_found", of_tokens::a_token_that_gave_up_and_works_on_is_found),
    ("another_answer_to_the_same_request_is_found", of_tokens::another_answer_to_the_same_request_is_found),
    (
        "a_token_that_a_gateway_made_and_that_begins_is_found",
        of_tokens::a_token_that_a_gateway_made_and_that_begins_is_found,
    ),
    ("a_take_over_that_was_not_asked_for_is_found", of_tokens::a_take_over_that_was_not_asked_for_is_found),
    ("a_fingerprint_that_is_not_compared_is_found", of_tokens::a_fingerprint_that_is_not_compared_is_found),
];

const MS: u64 = 1_000;
/// The lease of each worker.
const TTL_MS: u64 = 1_000;
const KEEP_S: u64 = 120;

/// What workers ask one after the other, each 10 ms after the one before.
struct Told {
    operations: Vec<Operation>,
    now_us: u64,
    key: String,
    disturbances: Disturbances,
}

fn told() -> Told {
    Told {
        operations: Vec::new(),
        now_us: 1_000_000_000,
        key: "k".to_owned(),
        disturbances: Disturbances::default(),
    }
}

impl Told {
    /// What the worker with this token asks, and is told at once, while nothing fails.
    fn to(mut self, token: &str, action: Action, answer: Answer) -> Self {
        let start_us = self.now_us;
        self.now_us += 10 * MS;
        self.operations.push(Operation {
            key: self.key.clone(),
            token: (!token.is_empty()).then(|| token.to_owned()),
            shows_token: !token.is_empty(),
            action,
            start_us,
            end_us: start_us + MS,
            said_us: start_us + MS,
            answer,
            was_handed_out: true,
            is_seen_to_leave: true,
            calm_since_us: Some(0),
        });
        self
    }

    fn after_ms(mut self, ms: u64) -> Self {
        self.now_us += ms * MS;
        self
    }

    /// Changes the last one.
    fn but(mut self, change: impl FnOnce(&mut Operation)) -> Self {
        change(self.operations.last_mut().unwrap());
        self
    }

    /// All of it fell into the time in which the store lost something.
    fn lost(mut self) -> Self {
        self.disturbances.losses.push(Span { start_us: 0, end_us: u64::MAX });
        self
    }

    #[track_caller]
    fn is_right(&self) {
        assert_eq!(judge(&self.operations, &self.disturbances), Vec::<String>::new());
    }

    /// It breaks this promise, and would not if the store had lost something.
    #[track_caller]
    fn breaks(self, promise: &str) {
        self.breaks_also_after_a_loss(promise).lost().is_right();
    }

    #[track_caller]
    fn breaks_also_after_a_loss(self, promise: &str) -> Self {
        let violations = judge(&self.operations, &self.disturbances);
        assert!(violations.iter().any(|found| found.starts_with(promise)), "{violations:?}");
        self
    }
}

fn begin() -> Action {
    begin_for(None)
}

fn begin_for(fingerprint: Option<&str>) -> Action {
    Action::Begin {
        ttl_ms: TTL_MS,
        keep_s: KEEP_S,
        may_take_over: true,
        wait: Duration::ZERO,
        fingerprint: fingerprint.map(str::to_owned),
    }
}

fn wait_for_s(seconds: u64) -> Action {
    let Action::Begin { ttl_ms, keep_s, may_take_over, fingerprint, .. } = begin() else { unreachable!() };
    Action::Begin { ttl_ms, keep_s, may_take_over, wait: Duration::from_secs(seconds), fingerprint }
}

fn begin_without_taking_over() -> Action {
    let Action::Begin { ttl_ms, keep_s, wait, fingerprint, .. } = begin() else { unreachable!() };
    Action::Begin { ttl_ms, keep_s, may_take_over: false, wait, fingerprint }
}

fn store(result: &str) -> Action {
    Action::Store { result: result.to_owned(), status: None, keep_s: None, number: None }
}

fn store_by(result: &str, number: u64) -> Action {
    Action::Store { result: result.to_owned(), status: None, keep_s: None, number: Some(number) }
}

fn renew() -> Action {
    Action::Renew { ttl_ms: TTL_MS, number: None }
}

fn give_up() -> Action {
    Action::GiveUp { is_clean: false }
}

fn leave_cleanly() -> Action {
    Action::GiveUp { is_clean: true }
}

fn break_it(number: u64) -> Action {
    Action::Break { number: Some(number), is_clean: false }
}

fn break_cleanly(number: u64) -> Action {
    Action::Break { number: Some(number), is_clean: true }
}

/// A new grant.
fn work(number: u64, earlier: u64) -> Answer {
    Answer::Work { number, earlier, left_ms: TTL_MS, is_new: true }
}

/// The grant that the token has.
fn same(number: u64, earlier: u64) -> Answer {
    Answer::Work { number, earlier, left_ms: TTL_MS, is_new: false }
}

fn done(number: u64, result: &str) -> Answer {
    Answer::Done { number, result: result.to_owned(), status: None }
}

fn stored(number: u64) -> Answer {
    Answer::Stored { number }
}

fn superseded(number: u64, is_done: bool) -> Answer {
    Answer::Superseded { number, is_done }
}

fn seen(state: State, number: u64, earlier: u64, yours: Option<bool>) -> Answer {
    let left_ms = if state == State::Working { TTL_MS / 2 } else { 0 };
    let bytes = (state == State::Done).then_some(1);
    Answer::Seen(Seen { state, number, earlier, left_ms, yours, bytes })
}
