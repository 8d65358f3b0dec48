//! What connections hold that have ended.

use super::*;

/// What a connection was told that ended at this moment, in milliseconds.
fn until(ended_ms: u64, operation: Operation) -> Operation {
    Operation { ended_us: Some(ended_ms * 1_000), ..operation }
}

fn long(id: &str, at: (u64, u64), answer: Answer) -> Operation {
    operation(id, "a", Action::Acquire { ttl_ms: 9_000 }, at, answer)
}

fn in_the_end(operations: Vec<Operation>, kills: Vec<Span>) -> Vec<&'static str> {
    judge_all(History { operations, kills, quiet_us: Some(500_000), ..History::default() })
}

#[test]
fn a_lock_that_outlives_its_connection_is_found() {
    let lease = || Answer::Granted { number: 5, ttl_ms: 8_999 };
    let seen =
        |ended_ms| vec![until(ended_ms, long("a", (0, 10), lease())), look((2_000, 2_010), held("a", 5))];
    assert_eq!(in_the_end(seen(300), vec![]), ["H5"]);
    // It has only just ended; its gateway was killed; its token may have the lock by another request.
    assert_eq!(in_the_end(seen(1_500), vec![]), [""; 0]);
    let killed = |start_us| vec![Span { start_us, end_us: start_us + 100_000 }];
    assert_eq!(in_the_end(seen(300), killed(400_000)), [""; 0]);
    // It may have been cut off from its servers until then.
    assert_eq!(in_the_end(seen(300), killed(9_200_000)), [""; 0]);
    assert_eq!(in_the_end(seen(300), killed(9_400_000)), ["H5"]);
    let again = long("again", (20, 30), lost());
    assert_eq!(in_the_end([seen(300), vec![again]].concat(), vec![]), [""; 0]);
    // Its token had it before, for as long as that was asked for.
    let before = |ttl_ms, told_ms| {
        let action = Action::Acquire { ttl_ms };
        let answer = Answer::Granted { number: 5, ttl_ms: told_ms };
        let first = operation("a", "a", action, (0, 10), answer);
        let lease = Answer::AlreadyHeld { number: 5, ttl_ms: 8_999 };
        vec![first, until(300, long("b", (20, 30), lease)), look((2_000, 2_010), held("a", 5))]
    };
    assert_eq!(in_the_end(before(600, 599), vec![]), ["H5"]);
    assert_eq!(in_the_end(before(2_970, 2_969), vec![]), [""; 0]);
}

#[test]
fn what_a_token_was_told_before_its_connection_lasts_and_what_the_connection_was_told_does_not() {
    let granted = || acquire("a", "a", (0, 10), granted(5));
    let claimed = || until(100, acquire("b", "a", (20, 30), already_held(5)));
    let free_at = |at| vec![granted(), claimed(), look(at, Answer::NotHeld)];
    assert_eq!(judge(free_at((200, 210))), ["I3"]);
    assert_eq!(judge(free_at((1_200, 1_210))), [""; 0]);
    let alone = until(100, granted());
    assert_eq!(judge(vec![alone, look((200, 210), Answer::NotHeld)]), [""; 0]);
    // A connection may be told of the lease that there was, before it has lengthened it; a request may not.
    let short = Answer::AlreadyHeld { number: 5, ttl_ms: 500 };
    let told = |operation| vec![granted(), operation];
    let claimed = until(100, acquire("b", "a", (20, 30), short.clone()));
    assert_eq!(judge(told(claimed)), ["I4"], "it is shorter than it was");
    let late = until(700, acquire("b", "a", (500, 510), Answer::AlreadyHeld { number: 5, ttl_ms: 489 }));
    assert_eq!(judge(told(late.clone())), [""; 0]);
    assert_eq!(judge(told(Operation { ended_us: None, ..late })), ["I4"]);
}

#[test]
fn a_lock_of_a_connection_that_is_not_kept_for_its_min_hold_is_found() {
    let terms = Terms { min_hold_ms: Some(800), ..Terms::default() };
    let first = until(100, Operation { terms, ..acquire("a", "a", (0, 10), granted(5)) });
    let next = |at| vec![first.clone(), acquire("b", "b", at, granted(6))];
    assert_eq!(judge(next((500, 510))), ["H15"]);
    assert_eq!(judge(next((790, 801))), [""; 0]);
    let broken =
        operation("x", "x", Action::Break { number: None }, (200, 210), Answer::Broken { number: 5 });
    assert_eq!(judge([next((500, 510)), vec![broken]].concat()), [""; 0]);
}

/// It has voided itself, and a copy of it finds nothing.
#[test]
fn a_late_last_poll_lengthens_no_lease_of_a_later_request_of_its_token() {
    let stranger = operation("x", "x", Action::Acquire { ttl_ms: TTL_MS }, (0, 10), granted(4));
    let released = release("x2", "x", (510, 520), Answer::Released);
    let refused = Operation { waits: true, ..acquire("a1", "a", (0, 500), held_by("x", 4)) };
    let later = acquire("a2", "a", (600, 610), granted(5));
    let judge = |longer: Operation| {
        let operations = vec![stranger.clone(), released.clone(), refused.clone(), later.clone(), longer];
        judge_all(History { operations, quiet_us: Some(9_000_000), ..History::default() })
    };
    assert_eq!(judge(look((600, 610), held("a2", 5))), [""; 0]);
    assert_eq!(judge(look((900, 910), held("a2", 5))), ["I6"]);
}
