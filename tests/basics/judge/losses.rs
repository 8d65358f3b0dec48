//! What a store loses while a request is under way, and what comes back.

use super::*;

/// The store forgets what was voided while somebody looks, and a copy of it is granted before the answer.
#[test]
fn what_is_lost_during_a_look_excuses_what_it_shows() {
    let operations = vec![acquire("a", "a", (0, 10), Answer::NotDone), look((100, 900), held("a", 5))];
    let judge = |losses| {
        let quiet_us = Some(9_000_000);
        judge_all(History { operations: operations.clone(), losses, quiet_us, ..History::default() })
    };
    assert_eq!(judge(vec![Span { start_us: 500_000, end_us: 500_000 }]), [""; 0]);
    assert_eq!(judge(vec![Span { start_us: 950_000, end_us: 950_000 }]), ["I6", "I9"]);
}

/// Its first command was granted the lock, the next ones went to a successor, and the first primary was called back.
#[test]
fn a_waiter_may_find_its_own_grant_in_an_older_state_that_came_back() {
    let found = Operation { waits: true, ..acquire("a", "a", (100, 900), already_held(5)) };
    let judge = |start_us, end_us| {
        let lost = Span { start_us, end_us };
        let failovers = vec![Failover { lost, split: lost, successor_from: 9 }];
        judge_all(History { operations: vec![found.clone()], failovers, ..History::default() })
    };
    assert_eq!(judge(300_000, 600_000), [""; 0]);
    assert_eq!(judge(1_000_000, 2_000_000), ["I4"]);
}

/// What voided its first command was lost, and a copy of that is granted the lock before the next one finds it.
#[test]
fn an_acquire_may_find_its_own_grant_whose_voiding_was_lost() {
    let judge = |lost_us| {
        let operations = vec![acquire("a", "a", (100, 900), already_held(5))];
        let losses = vec![Span { start_us: lost_us, end_us: lost_us }];
        judge_all(History { operations, losses, ..History::default() })
    };
    assert_eq!(judge(500_000), [""; 0]);
    assert_eq!(judge(1_000_000), ["I4"]);
}

/// The gateway made two tokens for one request. What voided the first one was lost, and its copy was granted the lock.
#[test]
fn of_two_tokens_that_a_gateway_made_for_a_request_one_may_be_released() {
    let judge = |number| {
        let first = acquire("a", "~made", (0, 10), granted(5));
        let released = release("r", "~made", (20, 30), Answer::Released);
        let operations = vec![first, released, look((40, 50), held("a", number))];
        let losses = vec![Span { start_us: 15_000, end_us: 15_000 }];
        judge_all(History { operations, losses, ..History::default() })
    };
    assert_eq!(judge(7), [""; 0]);
    assert_eq!(judge(5), ["I8"]);
}

/// Its first attempt was on its way to a primary, the second one voided it at the successor, and the first primary was called back.
#[test]
fn an_attempt_whose_voiding_was_lost_may_lengthen_the_lease() {
    let judge = |start_us, end_us| {
        let lost = Span { start_us, end_us };
        let failovers = vec![Failover { lost, split: lost, successor_from: 5 }];
        let found = Operation { waits: true, ..acquire("a", "a", (100, 900), granted(5)) };
        let operations = vec![found, look((1_200, 1_210), held("a", 5))];
        judge_all(History { operations, failovers, quiet_us: Some(9_000_000), ..History::default() })
    };
    assert_eq!(judge(300_000, 600_000), [""; 0]);
    assert_eq!(judge(950_000, 960_000), ["I6"]);
}

/// It was sent twice. The first copy comes when the token has been granted the lock again, for less.
#[test]
fn a_renewal_that_found_nothing_may_come_again() {
    let judge = |ttl_ms| {
        let renewal =
            Operation { action: Action::Renew { ttl_ms }, ..renew("r", "a", (0, 10), Answer::NotHeld) };
        let longer = Answer::Held { holder: Holder { left_ms: 1_500, ..holder("a", 5) }, yours: None };
        let operations = vec![renewal, acquire("a", "a", (100, 110), granted(5)), look((200, 210), longer)];
        judge_all(History { operations, quiet_us: Some(9_000_000), ..History::default() })
    };
    assert_eq!(judge(1_600), [""; 0]);
    assert_eq!(judge(1_400), ["I6"]);
}

/// What pins the grant at a quorum is a renewal, and one that is late is not voided.
#[test]
fn a_repeated_acquire_may_lengthen_the_lease_late_at_a_quorum() {
    let judge = |is_of_quorum| {
        let repeated = acquire("b", "a", (200, 210), already_held(5));
        let late = look((900, 910), held("a", 5));
        let operations = vec![acquire("a", "a", (100, 110), granted(5)), repeated, late];
        judge_all(History { operations, is_of_quorum, quiet_us: Some(9_000_000), ..History::default() })
    };
    assert_eq!(judge(true), [""; 0]);
    assert_eq!(judge(false), ["I6"]);
}
