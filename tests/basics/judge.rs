//! The judge of histories is judged: a run in which a promise was broken is found out, and one that was right is not.

use kit::history::{Action, Answer, Failover, History, Holder, Operation, Share, Span, Terms, Update, check};

mod connections;
mod losses;
mod shares;

const TTL_MS: u64 = 1_000;

/// One request on one key, at times in milliseconds.
fn operation(
    id: &str,
    token: &str,
    action: Action,
    (start_ms, end_ms): (u64, u64),
    answer: Answer,
) -> Operation {
    Operation {
        id: id.to_owned(),
        key: "k".to_owned(),
        token: Some(token.to_owned()),
        action,
        span: Span { start_us: start_ms * 1_000, end_us: end_ms * 1_000 },
        answer,
        waits: false,
        true_at_us: None,
        ended_us: None,
        terms: Terms::default(),
        share: Share::default(),
    }
}

fn acquire(id: &str, token: &str, at: (u64, u64), answer: Answer) -> Operation {
    operation(id, token, Action::Acquire { ttl_ms: TTL_MS }, at, answer)
}

fn renew(id: &str, token: &str, at: (u64, u64), answer: Answer) -> Operation {
    operation(id, token, Action::Renew { ttl_ms: TTL_MS }, at, answer)
}

fn release(id: &str, token: &str, at: (u64, u64), answer: Answer) -> Operation {
    operation(id, token, Action::Release, at, answer)
}

fn look(at: (u64, u64), answer: Answer) -> Operation {
    Operation { token: None, ..operation("look", "", Action::Look, at, answer) }
}

fn granted(number: u64) -> Answer {
    Answer::Granted { number, ttl_ms: TTL_MS - 1 }
}

fn already_held(number: u64) -> Answer {
    Answer::AlreadyHeld { number, ttl_ms: TTL_MS - 1 }
}

fn renewed(number: u64) -> Answer {
    Answer::Renewed { number, ttl_ms: TTL_MS - 1 }
}

fn holder(id: &str, number: u64) -> Holder {
    Holder { id: id.to_owned(), number, left_ms: TTL_MS - 20 }
}

fn held(id: &str, number: u64) -> Answer {
    Answer::Held { holder: holder(id, number), yours: None }
}

fn held_by(id: &str, number: u64) -> Answer {
    Answer::HeldByAnother(Some(holder(id, number)))
}

fn judge(operations: Vec<Operation>) -> Vec<&'static str> {
    judge_all(History { operations, ..History::default() })
}

fn judge_all(history: History) -> Vec<&'static str> {
    let mut promises: Vec<_> = check(&history).into_iter().map(|violation| violation.promise).collect();
    promises.dedup();
    promises
}

/// A right run in which most things happen that may happen.
fn right() -> Vec<Operation> {
    vec![
        acquire("a1", "a", (0, 10), lost()),
        acquire("a2", "a", (20, 30), already_held(1)),
        acquire("b1", "b", (31, 40), held_by("a1", 1)),
        look((41, 50), held("a1", 1)),
        renew("a3", "a", (51, 60), renewed(1)),
        renew("b2", "b", (61, 70), Answer::HeldByAnother(None)),
        release("b3", "b", (71, 80), Answer::HeldByAnother(None)),
        release("a4", "a", (90, 100), Answer::Unknown),
        release("a5", "a", (101, 110), Answer::Released),
        release("a6", "a", (111, 120), Answer::Released),
        acquire("a7", "a", (121, 130), Answer::TokenReleased),
        acquire("c1", "c", (131, 140), Answer::NotDone),
        acquire("c2", "c", (141, 150), granted(2)),
        release("b4", "b", (151, 160), Answer::HeldByAnother(None)),
        // The lease of c ends, and the same token takes the lock anew.
        acquire("d1", "d", (1_151, 1_160), granted(3)),
        renew("c3", "c", (1_161, 1_170), Answer::HeldByAnother(None)),
        release("d2", "d", (1_171, 1_180), Answer::Released),
        acquire("c4", "c", (1_181, 1_190), granted(4)),
        release("c5", "c", (1_191, 1_200), Answer::Released),
        look((1_201, 1_210), Answer::NotHeld),
    ]
}

#[test]
fn a_right_run_is_called_right() {
    let violations = check(&History { operations: right(), quiet_us: Some(3_000_000), ..History::default() });
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Whatever answer of a right run is replaced by a wrong one, it is found out.
#[test]
fn one_wrong_answer_in_a_right_run_is_found() {
    let wrong = [
        ("a2", already_held(2), "a number that is granted later"),
        ("b1", granted(2), "a second holder"),
        ("b1", held_by("x", 9), "a stranger"),
        ("a3", Answer::NotHeld, "a lock that is lost"),
        ("a3", Answer::HeldByAnother(None), "a lock that is another's"),
        ("b2", Answer::NotHeld, "a lock that is lost, to somebody else"),
        ("b2", renewed(1), "somebody else's token renews"),
        ("b3", Answer::Released, "somebody else's token releases"),
        ("a6", Answer::NotHeld, "a repetition is answered in another way"),
        ("a7", granted(2), "a released token holds the lock"),
        ("c2", granted(1), "a number that was given before"),
        ("c2", Answer::Granted { number: 2, ttl_ms: 500 }, "a lease that is too short"),
        ("b4", Answer::NotHeld, "another answer than before"),
        ("d1", granted(2), "a number twice"),
        ("c4", already_held(2), "a lease that is over and revived"),
    ];
    for (id, answer, what) in wrong {
        let mut operations = right();
        operations.iter_mut().find(|operation| operation.id == id).unwrap().answer = answer;
        assert!(!judge(operations).is_empty(), "not found: {what}");
    }
}

#[test]
fn each_promise_has_a_run_that_breaks_it() {
    // Two tokens of one number; a smaller number; two holders at once.
    let (first, second) =
        (acquire("a", "a", (0, 10), granted(5)), acquire("b", "b", (2_000, 2_010), granted(5)));
    assert_eq!(judge(vec![first, second]), ["I1", "I2"]);
    let (first, second) =
        (acquire("a", "a", (0, 10), granted(5)), acquire("b", "b", (2_000, 2_010), granted(4)));
    assert_eq!(judge(vec![first, second]), ["I2"]);
    let (first, second) = (acquire("a", "a", (0, 10), granted(5)), acquire("b", "b", (20, 30), granted(6)));
    assert_eq!(judge(vec![first, second]), ["I3"]);
    // A renewal after the end; one that shortens.
    let (first, second) =
        (acquire("a", "a", (0, 10), granted(5)), renew("r", "a", (1_100, 1_110), renewed(5)));
    assert_eq!(judge(vec![first, second]), ["I4"]);
    let mut first = acquire("a", "a", (0, 10), Answer::Granted { number: 5, ttl_ms: 9_000 });
    first.action = Action::Acquire { ttl_ms: 9_000 };
    assert_eq!(judge(vec![first, renew("r", "a", (20, 30), renewed(5))]), ["I4"]);
    // A lost update.
    let update = |number| Update { resource: "r".into(), number, before: 7 };
    assert_eq!(judge_all(History { updates: vec![update(1), update(2)], ..History::default() }), ["I5"]);
    // A lease longer than anybody asked for; one that outlives its ttl.
    let first = acquire("a", "a", (0, 10), granted(5));
    let mut endless = holder("a", 5);
    endless.left_ms = TTL_MS + 1;
    let endless = look((20, 30), Answer::Held { holder: endless, yours: None });
    assert_eq!(judge(vec![first.clone(), endless]), ["I6"]);
    let operations = vec![first, look((1_500, 1_510), held("a", 5))];
    assert_eq!(judge_all(History { operations, quiet_us: Some(20_000), ..History::default() }), ["I6"]);
    // A lock that nobody was told of, and the two ways in which that is no fault.
    let long = |answer| operation("a", "a", Action::Acquire { ttl_ms: 9_000 }, (0, 10), answer);
    let orphan = |grant, others: Vec<Operation>| {
        let operations = [vec![grant, look((2_000, 2_010), held("a", 5))], others].concat();
        judge_all(History { operations, quiet_us: Some(500_000), ..History::default() })
    };
    assert_eq!(orphan(long(lost()), vec![]), ["I7"]);
    assert_eq!(orphan(long(Answer::Unknown), vec![]), ["I7"]);
    assert!(orphan(long(Answer::Lost { was_written: true }), vec![]).is_empty());
    assert!(orphan(long(lost()), vec![acquire("again", "a", (20, 30), lost())]).is_empty());
    // A token that was released holds the lock.
    let used = vec![release("r", "a", (0, 10), Answer::NotHeld), acquire("a", "a", (20, 30), granted(5))];
    assert_eq!(judge(used), ["I8"]);
    // Who was refused holds the lock.
    for refusal in [Answer::NotDone, held_by("x", 4), Answer::TokenReleased] {
        let operations = vec![acquire("a", "~a", (0, 10), refusal), look((2_020, 2_030), held("a", 5))];
        assert_eq!(judge(operations), ["I6", "I9"]);
    }
    // A release that was "not done" and took effect.
    let undone = vec![
        acquire("a", "a", (0, 10), granted(5)),
        release("r", "a", (20, 30), Answer::NotDone),
        look((40, 50), Answer::NotHeld),
    ];
    assert_eq!(judge(undone), ["I3"]);
}

/// What a store lost with its data is no broken promise, but numbers grow all the same.
#[test]
fn lost_data_excuses_a_lost_lock_and_no_number() {
    let operations =
        |number| vec![acquire("a", "a", (0, 10), granted(5)), acquire("b", "b", (40, 50), granted(number))];
    let losses = vec![Span { start_us: 20_000, end_us: 30_000 }];
    let judge =
        |number, losses| judge_all(History { operations: operations(number), losses, ..History::default() });
    assert!(judge(6, losses.clone()).is_empty());
    assert_eq!(judge(6, Vec::new()), ["I3"]);
    assert_eq!(judge(4, losses), ["I2"]);
}

/// It was lost, another held it, and the lock came back to the first.
#[test]
fn what_came_back_with_an_older_state_was_not_held_meanwhile() {
    let operations = vec![
        acquire("a", "a", (0, 10), granted(1)),
        acquire("b", "b", (101, 110), granted(2)),
        renew("c", "a", (201, 210), renewed(1)),
    ];
    let at = |ms: u64| Span { start_us: ms * 1_000, end_us: ms * 1_000 };
    let losses = vec![at(50), at(150)];
    let history = History { operations, losses: losses.clone(), ..History::default() };
    assert!(!judge_all(history.clone()).is_empty());
    assert_eq!(judge_all(History { returns: losses, ..history }), Vec::<&str>::new());
}

#[test]
fn while_two_servers_grant_only_the_order_of_both_is_excused() {
    let both = Span { start_us: 90_000, end_us: 150_000 };
    let judge = |at, number, splits: &[Span]| {
        // The successor is asked first, and the deposed primary after that; it does not know of the grant.
        let operations =
            vec![acquire("b", "b", (100, 110), granted(5)), acquire("c", "c", at, granted(number))];
        judge_all(History { operations, losses: vec![both], splits: splits.to_vec(), ..History::default() })
    };
    assert_eq!(judge((120, 130), 4, &[both]), [""; 0]);
    assert_eq!(judge((120, 130), 4, &[]), ["I2"]);
    assert_eq!(judge((120, 130), 5, &[both]), ["I1"]);
    assert_eq!(judge((160, 170), 4, &[both]), ["I2"]);
    // Who holds the lock by the word of the successor, before and after, is denied by the deposed primary alone.
    let judge = |splits: &[Span]| {
        let operations = vec![
            acquire("b", "b", (0, 10), granted(5)),
            look((100, 110), Answer::NotHeld),
            renew("r", "b", (200, 210), renewed(5)),
        ];
        judge_all(History { operations, losses: vec![both], splits: splits.to_vec(), ..History::default() })
    };
    assert_eq!(judge(&[both]), [""; 0]);
    assert_eq!(judge(&[]), ["I3"]);
}

/// Both sides of a failover: what the old primary did within the time that the replica lacked, and everything else.
#[test]
fn a_failover_loses_what_its_replica_lacked_and_nothing_else() {
    let failover = Failover {
        lost: Span { start_us: 100_000, end_us: 300_000 },
        split: Span { start_us: 200_000, end_us: 300_000 },
        successor_from: 9,
    };
    let judge_with = |operations: Vec<Operation>, asks_replicas| {
        let failovers = vec![failover];
        judge_all(History { operations, failovers, asks_replicas, ..History::default() })
    };
    let judge = |operations| judge_with(operations, false);
    let two = |first, number| {
        vec![acquire("a", "a", first, granted(5)), acquire("b", "b", (400, 410), granted(number))]
    };
    // A lock is lost if it was granted within that time, unless the replica had it.
    assert_eq!(judge(two((110, 120), 9)), [""; 0]);
    assert_eq!(judge_with(two((110, 120), 9), true), ["I3"]);
    assert_eq!(judge(two((80, 90), 9)), ["I3"]);
    // The successor's numbers are larger than all before, and what it granted is not lost.
    assert_eq!(judge(two((110, 120), 4)), ["I2"]);
    let of_successor =
        |at| vec![acquire("a", "a", at, granted(9)), acquire("b", "b", (400, 410), granted(10))];
    assert_eq!(judge(of_successor((250, 260))), ["I3"]);
    // Only while both serve, the old one may still give smaller numbers.
    let of_old = |at| vec![acquire("a", "a", (210, 220), granted(9)), acquire("b", "b", at, granted(6))];
    assert!(!judge(of_old((250, 260))).contains(&"I2"));
    assert!(judge(of_old((320, 330))).contains(&"I2"));
    // A release may be lost too, but not one before.
    let released = |at| {
        vec![
            acquire("a", "a", (10, 20), granted(5)),
            release("r", "a", at, Answer::Released),
            look((400, 410), Answer::Held { holder: Holder { left_ms: 600, ..holder("a", 5) }, yours: None }),
        ]
    };
    assert_eq!(judge(released((110, 120))), [""; 0]);
    assert_eq!(judge(released((80, 90))), ["I8"]);
}

#[test]
fn a_quorum_takes_a_hundredth_and_two_milliseconds_off_a_lease_and_no_more() {
    let judge = |ttl_ms, is_of_quorum| {
        let grant = acquire("a", "a", (0, 10), Answer::Granted { number: 5, ttl_ms });
        judge_all(History { operations: vec![grant], is_of_quorum, ..History::default() })
    };
    // Ten were spent on the way, ten are a hundredth, and three are allowed for rounding.
    assert_eq!(judge(975, true), [""; 0]);
    assert_eq!(judge(974, true), ["I4"]);
    assert_eq!(judge(975, false), ["I4"]);
}

#[test]
fn a_lease_of_a_quorum_may_last_longer_by_what_its_clocks_may_differ_and_no_more() {
    let judge = |left_ms, is_of_quorum| {
        let seen = Answer::Held { holder: Holder { left_ms, ..holder("a", 5) }, yours: None };
        let operations = vec![acquire("a", "a", (0, 10), granted(5)), look((1_000, 1_005), seen)];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    // It ends at 1,010 at the latest. Three are allowed for rounding, ten are a hundredth, and two are for small ones.
    assert_eq!(judge(25, true), [""; 0]);
    assert_eq!(judge(26, true), ["I6"]);
    assert_eq!(judge(25, false), ["I6"]);
    let judge = |at, is_of_quorum| {
        let operations = vec![acquire("a", "a", (0, 10), granted(5)), renew("r", "a", at, renewed(5))];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    assert_eq!(judge((1_025, 1_030), true), [""; 0]);
    assert_eq!(judge((1_026, 1_030), true), ["I4"]);
    assert_eq!(judge((1_025, 1_030), false), ["I4"]);
}

#[test]
fn what_a_quorum_says_may_be_less_than_it_told_the_holder_before() {
    let judge = |second, is_of_quorum| {
        let operations = vec![acquire("a", "a", (0, 10), granted(5)), second];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    let stale = |left_ms| Answer::Held { holder: Holder { left_ms, ..holder("a", 5) }, yours: None };
    assert_eq!(judge(look((20, 30), stale(900)), true), [""; 0]);
    assert_eq!(judge(look((20, 30), stale(900)), false), ["I4"]);
    let renewed = |ttl_ms, left_ms| {
        let answer = Answer::Renewed { number: 5, ttl_ms: left_ms };
        Operation { action: Action::Renew { ttl_ms }, ..renew("r", "a", (20, 30), answer) }
    };
    // Of two servers, one missed the first lease.
    assert_eq!(judge(renewed(850, 840), true), [""; 0]);
    assert_eq!(judge(renewed(850, 840), false), ["I4"]);
    assert_eq!(judge(renewed(850, 800), true), ["I4"]);
}

#[test]
fn a_release_beside_a_holder_is_wrong_whatever_became_of_the_request_before() {
    for is_of_quorum in [false, true] {
        for answer in [lost(), held_by("a", 5), Answer::NotDone] {
            let operations = vec![
                acquire("a", "a", (0, 10), granted(5)),
                acquire("b", "b", (20, 30), answer),
                release("r", "b", (40, 50), Answer::Released),
            ];
            assert_eq!(judge_all(History { operations, is_of_quorum, ..History::default() }), ["I3"]);
        }
    }
}

#[test]
fn an_acquire_may_find_a_grant_of_its_own_that_another_request_pinned_and_no_earlier_one() {
    let judge = |told: Answer, others: Vec<Operation>| {
        let found = acquire("a2", "a", (5_000, 5_100), told);
        judge([vec![acquire("a1", "a", (0, 10), granted(5)), found], others].concat())
    };
    let look = |at| operation("look", "a", Action::Look, at, lost());
    assert_eq!(judge(already_held(7), vec![look((5_010, 5_050))]), [""; 0]);
    // It may come late.
    assert_eq!(judge(already_held(7), vec![look((20, 30))]), [""; 0]);
    assert_eq!(judge(already_held(7), Vec::new()), ["I4"]);
    assert_eq!(judge(already_held(7), vec![look((5_101, 5_110))]), ["I4"]);
    assert_eq!(judge(already_held(7), vec![release("r", "a", (5_010, 5_050), lost())]), ["I4"]);
    let voided = acquire("a3", "a", (4_900, 4_950), Answer::NotDone);
    assert_eq!(judge(already_held(7), vec![voided]), ["I4"]);
    // It was told of before, and has ended.
    assert_eq!(judge(already_held(5), vec![look((5_010, 5_050))]), ["I4"]);
}

#[test]
fn a_max_hold_of_a_quorum_or_by_a_wrong_clock_may_end_early() {
    let judge_told = |left_ms, is_of_quorum, losses| {
        let asks = |id, at, answer| {
            let terms = Terms { max_hold_ms: Some(7_000), ..Terms::default() };
            Operation { terms, ..operation(id, "a", Action::Acquire { ttl_ms: 6_000 }, at, answer) }
        };
        let first = asks("a", (0, 10), Answer::Granted { number: 5, ttl_ms: 5_999 });
        let again = asks("b", (3_000, 3_010), Answer::AlreadyHeld { number: 5, ttl_ms: left_ms });
        judge_all(History { operations: vec![first, again], is_of_quorum, losses, ..History::default() })
    };
    let lost_at = |ms: u64| vec![Span { start_us: ms * 1_000, end_us: ms * 1_000 }];
    assert_eq!(judge_told(3_800, true, Vec::new()), [""; 0]);
    assert_eq!(judge_told(3_800, false, lost_at(1_000)), [""; 0]);
    assert_eq!(judge_told(3_800, false, lost_at(4_000)), ["I4"]);
    assert_eq!(judge_told(3_800, false, Vec::new()), ["I4"]);
}

#[test]
fn a_poll_that_comes_late_may_lengthen_a_lease_that_another_request_pinned() {
    let judge_with = |waits, others: Vec<Operation>| {
        let grant = Operation { waits, ..acquire("a", "a", (0, 100), granted(5)) };
        judge([vec![grant], others, vec![look((1_500, 1_510), held("a", 5))]].concat())
    };
    let pin = |answer| vec![operation("own", "a", Action::Look, (200, 210), answer)];
    let yours = Answer::Held { holder: Holder { left_ms: 890, ..holder("a", 5) }, yours: Some(true) };
    assert_eq!(judge_with(true, pin(yours.clone())), [""; 0]);
    assert_eq!(judge_with(false, pin(yours.clone())), ["I6"]);
    assert_eq!(judge_with(true, Vec::new()), ["I6"]);
    let strangers = Answer::Held { holder: Holder { left_ms: 890, ..holder("a", 5) }, yours: Some(false) };
    assert_eq!(judge_with(true, vec![operation("other", "b", Action::Look, (200, 210), strangers)]), ["I6"]);
    // Nobody heard of the renewal that pinned it.
    let lost = |token| {
        let answer = Answer::Lost { was_written: true };
        vec![operation("own", token, Action::Renew { ttl_ms: 1 }, (200, 210), answer)]
    };
    assert_eq!(judge_with(true, lost("a")), [""; 0]);
    assert_eq!(judge_with(true, lost("b")), ["I6"]);
}

#[test]
fn of_a_quorum_another_may_be_told_by_its_release_that_nobody_holds_the_lock() {
    let judge = |token: &str, is_of_quorum| {
        let operations =
            vec![acquire("a", "a", (0, 10), granted(5)), release("r", token, (40, 50), Answer::NotHeld)];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    assert_eq!(judge("b", true), [""; 0]);
    assert_eq!(judge("b", false), ["I3"]);
    assert_eq!(judge("a", true), ["I9"]);
}

#[test]
fn of_a_quorum_one_who_held_nothing_may_be_told_so_in_two_ways() {
    let judge = |first, second, is_of_quorum| {
        let operations = vec![release("r1", "a", (0, 10), first), release("r2", "a", (20, 30), second)];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    let by_another = || Answer::HeldByAnother(None);
    assert_eq!(judge(Answer::NotHeld, by_another(), true), [""; 0]);
    assert_eq!(judge(by_another(), Answer::NotHeld, true), [""; 0]);
    assert_eq!(judge(Answer::NotHeld, by_another(), false), ["I8"]);
    assert_eq!(judge(Answer::NotHeld, Answer::Released, true), ["I8"]);
    assert_eq!(judge(Answer::Released, by_another(), true), ["I8"]);
}

#[test]
fn who_may_wait_may_give_back_a_ticket_and_find_a_grant_of_its_own() {
    let judge_ticket = |waits| {
        let refused = Operation { waits, ..acquire("b", "b", (20, 30), held_by("a", 5)) };
        let release = release("r", "b", (40, 50), Answer::Released);
        judge(vec![acquire("a", "a", (0, 10), granted(5)), refused, release])
    };
    assert_eq!(judge_ticket(true), [""; 0]);
    assert_eq!(judge_ticket(false), ["I3"]);
    let judge_lease = |waits, ttl_ms| {
        judge(vec![Operation { waits, ..acquire("a", "a", (0, 100), Answer::Granted { number: 5, ttl_ms }) }])
    };
    assert_eq!(judge_lease(true, 850), [""; 0]);
    assert_eq!(judge_lease(false, 850), ["I4"]);
    assert_eq!(judge_lease(true, 750), ["I4"]);
}

fn with_terms(terms: Terms, operation: Operation) -> Operation {
    Operation { terms, ..operation }
}

#[test]
fn no_lease_goes_past_the_max_hold_of_its_grant() {
    let judge = |renewed_ms| {
        let terms = Terms { max_hold_ms: Some(1_500), ..Terms::default() };
        let left = Answer::Renewed { number: 5, ttl_ms: renewed_ms };
        judge(vec![
            with_terms(terms, acquire("a", "a", (0, 10), granted(5))),
            renew("r", "a", (800, 810), left),
        ])
    };
    // It was granted by 10, and three are allowed for rounding.
    assert_eq!(judge(713), [""; 0]);
    assert_eq!(judge(714), ["T1"]);
    // Cut, but by more than to its end.
    assert_eq!(judge(676), ["I4"]);
}

#[test]
fn the_last_word_counts_of_a_lease_that_its_max_hold_cuts() {
    let judge = |max_hold_ms| {
        let terms = Terms { max_hold_ms, ..Terms::default() };
        judge(vec![
            with_terms(terms, acquire("a", "a", (0, 10), granted(5))),
            renew("r", "a", (500, 690), Answer::Renewed { number: 5, ttl_ms: 300 }),
            acquire("b", "b", (850, 860), granted(6)),
        ])
    };
    assert_eq!(judge(Some(1_000)), [""; 0]);
    assert_eq!(judge(None), ["I3", "I4"]);
}

#[test]
fn a_lock_that_was_released_before_its_min_hold_is_taken_until_then() {
    let judge = |least_ms, more: Vec<Operation>| {
        let terms = Terms { min_hold_ms: Some(least_ms), ..Terms::default() };
        let taken = vec![
            with_terms(terms, acquire("a", "a", (0, 10), granted(5))),
            release("r", "a", (20, 30), Answer::Released),
        ];
        judge([taken, more].concat())
    };
    assert_eq!(judge(500, vec![acquire("b", "b", (480, 490), granted(6))]), ["T2"]);
    assert_eq!(judge(500, vec![acquire("b", "b", (480, 500), granted(6))]), [""; 0]);
    assert_eq!(judge(500, vec![look((40, 50), Answer::NotHeld)]), ["T2"]);
    assert_eq!(judge(500, vec![look((40, 50), Answer::HeldByAnother(None))]), [""; 0]);
    assert_eq!(judge(500, vec![look((500, 510), Answer::NotHeld)]), [""; 0]);
    let broken = operation("x", "", Action::Break { number: None }, (31, 39), Answer::Broken { number: 5 });
    assert_eq!(judge(500, vec![broken, look((40, 50), Answer::NotHeld)]), [""; 0]);
}

#[test]
fn a_break_ends_the_grant_that_it_names_and_no_other() {
    let judge = |number, answer: Answer, more: Vec<Operation>| {
        let broken =
            Operation { token: None, ..operation("x", "", Action::Break { number }, (20, 30), answer) };
        judge([vec![acquire("a", "a", (0, 10), granted(5)), broken], more].concat())
    };
    let next = || vec![acquire("b", "b", (40, 50), granted(6))];
    for number in [None, Some(5)] {
        assert_eq!(judge(number, Answer::Broken { number: 5 }, next()), [""; 0]);
        assert_eq!(judge(number, Answer::Unknown, next()), [""; 0]);
        assert_eq!(judge(number, Answer::NotHeld, Vec::new()), ["I3"]);
        assert_eq!(judge(number, Answer::NotDone, next()), ["I3"]);
    }
    assert_eq!(judge(Some(4), Answer::HeldByAnother(None), Vec::new()), [""; 0]);
    assert_eq!(judge(Some(5), Answer::HeldByAnother(None), Vec::new()), ["I3"]);
    assert_eq!(judge(Some(4), Answer::Unknown, next()), ["I3"]);
    assert_eq!(judge(Some(4), Answer::Broken { number: 5 }, Vec::new()), ["B1"]);
    assert_eq!(
        judge(None, Answer::Broken { number: 5 }, vec![renew("r", "a", (40, 50), renewed(5))]),
        ["B1"]
    );
    let release = release("r", "a", (40, 50), Answer::NotHeld);
    assert_eq!(judge(None, Answer::Broken { number: 5 }, vec![release.clone()]), [""; 0]);
    assert_eq!(judge(Some(4), Answer::NotDone, vec![release]), ["I9"]);
}

/// Of three servers one is freed by the release and one by the break: neither is told that it was done.
#[test]
fn on_a_quorum_a_release_and_a_break_may_end_a_grant_together() {
    let judge = |is_of_quorum, at| {
        let broken = operation("x", "", Action::Break { number: Some(5) }, at, Answer::NotHeld);
        let operations = vec![
            acquire("a", "a", (0, 10), granted(5)),
            Operation { token: None, ..broken },
            release("r", "a", (40, 60), Answer::NotHeld),
        ];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    assert_eq!(judge(true, (41, 50)), [""; 0]);
    assert!(judge(false, (41, 50)).contains(&"I9"));
    assert!(judge(true, (61, 70)).contains(&"I9"));
}

#[test]
fn without_holds_only_exclusion_is_not_judged() {
    let judge = |second: Vec<Operation>| {
        let first = vec![acquire("a", "a", (0, 10), granted(5)), renew("r", "a", (40, 50), Answer::NotHeld)];
        let operations = [first, second].concat();
        let history = History { operations, is_without_holds: true, ..History::default() };
        assert!(judge_all(History { is_without_holds: false, ..history.clone() }).contains(&"I3"));
        judge_all(history)
    };
    assert_eq!(judge(vec![acquire("b", "b", (20, 30), granted(6))]), [""; 0]);
    assert_eq!(judge(vec![acquire("b", "b", (20, 30), granted(5))]), ["I1", "I2"]);
    assert_eq!(judge(vec![acquire("b", "b", (20, 30), granted(4))]), ["I2"]);
    let used = vec![release("b", "b", (12, 18), Answer::NotHeld), acquire("b", "b", (20, 30), granted(6))];
    assert_eq!(judge(used), ["I8"]);
}

fn lost() -> Answer {
    Answer::Lost { was_written: false }
}

/// What looks wrong at first sight, and is what a network, a crash or a loss of data does to a run that was right.
#[test]
fn strange_runs_that_were_right_are_called_right() {
    // The answer to a renewal took longer than the lease it tells of, and another was granted the lock meanwhile.
    let slow = vec![
        acquire("a", "a", (0, 10), granted(1)),
        renew("r", "a", (900, 3_000), renewed(1)),
        acquire("b", "b", (1_950, 1_960), granted(2)),
    ];
    assert_eq!(judge(slow), [""; 0]);
    // A copy of the first renewal came at 900 ms, when the second one had long been answered.
    let late = vec![
        acquire("a", "a", (0, 10), granted(1)),
        renew("r1", "a", (20, 60), renewed(1)),
        renew("r2", "a", (1_500, 1_510), renewed(1)),
    ];
    assert_eq!(judge(late), [""; 0]);
    // With the data the store lost what it knew of a voided attempt, whose copy came after that.
    let mut brief = acquire("a", "a", (0, 10), granted(1));
    brief.action = Action::Acquire { ttl_ms: 100 };
    brief.answer = Answer::Granted { number: 1, ttl_ms: 99 };
    let operations = vec![
        brief,
        acquire("b", "b", (20, 30), held_by("a", 1)),
        look((120, 130), held("b", 2)),
        renew("b2", "b", (140, 150), renewed(2)),
    ];
    let mut history = History { operations, ..History::default() };
    history.operations[1].answer =
        Answer::HeldByAnother(Some(Holder { id: "a".into(), number: 1, left_ms: 75 }));
    assert_eq!(judge_all(history.clone()), ["I4", "I6", "I9"]);
    history.losses = vec![Span { start_us: 100_000, end_us: 110_000 }];
    assert_eq!(judge_all(history.clone()), [""; 0]);
    history.operations.pop();
    history.operations[1].action = Action::Acquire { ttl_ms: 600_000 };
    history.quiet_us = Some(200_000);
    history.operations.push(look((2_000, 2_010), held("b", 2)));
    assert_eq!(judge_all(history), [""; 0], "and nobody could take it back");
    // A copy of an earlier renewal pinned a grant that reached nobody.
    let operations = vec![
        renew("r", "a", (0, 10), Answer::NotHeld),
        operation("a", "a", Action::Acquire { ttl_ms: 9_000 }, (20, 30), lost()),
        look((2_000, 2_010), held("a", 5)),
    ];
    assert_eq!(judge_all(History { operations, quiet_us: Some(500_000), ..History::default() }), [""; 0]);
    // A request came five seconds after its client had left, just when its gateway was killed.
    let operations = vec![
        operation("a", "a", Action::Acquire { ttl_ms: 60_000 }, (0, 10), lost()),
        look((9_000, 9_010), held("a", 5)),
    ];
    let kills = vec![Span { start_us: 5_010_000, end_us: 5_100_000 }];
    let history = History { operations, kills, quiet_us: Some(6_000_000), ..History::default() };
    assert_eq!(judge_all(history), [""; 0]);
}

#[test]
fn two_requests_of_a_token_may_be_granted_one_number_by_a_quorum() {
    let judge = |token: &str, is_of_quorum| {
        let (one, other) = (acquire("a", "a", (0, 10), lost()), acquire("b", token, (0, 10), lost()));
        let operations = vec![one, other, look((20, 30), held("a", 5)), look((31, 40), held("b", 5))];
        judge_all(History { operations, is_of_quorum, ..History::default() })
    };
    assert_eq!(judge("a", true), [""; 0]);
    assert_eq!(judge("b", true), ["I1"]);
    assert_eq!(judge("a", false), ["I1"]);
}

#[test]
fn wrong_runs_are_found_by_what_strangers_see() {
    // A smaller number after a larger one; one number of two grants; a holder that never asked.
    let (a, b) = (acquire("a", "a", (0, 10), lost()), acquire("b", "b", (0, 10), lost()));
    let looks = |first, second| vec![a.clone(), b.clone(), look((20, 30), first), look((31, 40), second)];
    assert_eq!(judge(looks(held("a", 5), held("b", 6))), [""; 0]);
    assert_eq!(judge(looks(held("b", 6), held("a", 5))), ["I2"]);
    assert_eq!(judge(looks(held("a", 5), held("b", 5))), ["I1"]);
    assert_eq!(judge(vec![look((20, 30), held("x", 5))]), ["I6"]);
    // A lease that is longer than it was asked for, that nobody made longer, or that somebody cut.
    let grant = |ttl_ms| acquire("a", "a", (0, 10), Answer::Granted { number: 5, ttl_ms });
    let seen = |at, left_ms| {
        let holder = Holder { left_ms, ..holder("a", 5) };
        judge(vec![grant(999), look(at, Answer::Held { holder, yours: None })])
    };
    assert_eq!(judge(vec![grant(1_001)]), ["I6"]);
    assert_eq!(seen((500, 510), 495), [""; 0]);
    assert_eq!(seen((500, 510), 600), ["I6"]);
    assert_eq!(seen((500, 510), 400), ["I4"]);
    assert_eq!(seen((1_500, 1_510), 1), ["I6"]);
    // A token that was released holds the lock, whatever the release was answered, and nobody was told.
    for answer in [Answer::NotHeld, Answer::Released, Answer::HeldByAnother(None)] {
        let orphan = vec![a.clone(), release("r", "a", (20, 30), answer), look((40, 50), held("a", 5))];
        assert_eq!(judge(orphan), ["I8"]);
    }
    // A token that nobody released is refused as if it were; one of the server's is granted anew.
    assert_eq!(judge(vec![acquire("a", "a", (0, 10), Answer::TokenReleased)]), ["I8"]);
    assert_eq!(judge(vec![acquire("a", "~a", (0, 10), Answer::TokenReleased)]), [""; 0]);
    let made = vec![acquire("a", "~a", (0, 10), granted(5)), acquire("b", "~a", (1_500, 1_510), granted(6))];
    assert_eq!(judge(made), ["I8"]);
    // What a gateway may have renewed meanwhile, which no client heard of, makes a lease longer, and is no other grant.
    let late = |token| {
        let mut unheard = renew("r", token, (0, 10), lost());
        unheard.action = Action::Renew { ttl_ms: 1_000 };
        let holder = Holder { left_ms: 950, ..holder("a", 5) };
        let seen = look((100, 110), Answer::Held { holder, yours: None });
        judge(vec![acquire("a", "~a", (0, 10), granted(5)), unheard, seen])
    };
    assert_eq!(late("~a"), [""; 0]);
    assert_eq!(late("another"), ["I6"]);
    // Who holds the lock is told, by the first answer to a release, that it does not.
    for answer in [Answer::NotHeld, Answer::HeldByAnother(None)] {
        let denied = vec![acquire("a", "~a", (0, 10), granted(5)), release("r", "~a", (20, 30), answer)];
        assert_eq!(judge(denied), ["I9"]);
    }
    // Who was told by a look that the lock is its own may rely on that.
    let yours = Answer::Held { holder: holder("a", 5), yours: Some(true) };
    let look_of_its_own = Operation { token: Some("a".into()), ..look((20, 30), yours) };
    assert_eq!(judge(vec![a.clone(), look_of_its_own, look((40, 50), Answer::NotHeld)]), ["I3"]);
}

/// A history that was saved is judged as it was; `TEST_HISTORY` names one of a run that failed.
#[test]
fn a_saved_history_is_judged_alike() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.json");
    let mut operations = right();
    operations[1].answer = already_held(2);
    let history = History { operations, ..History::default() };
    history.save(&file);
    let judge = |history: &History| check(history).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(!judge(&history).is_empty());
    assert_eq!(judge(&History::load(&file)), judge(&history));
    if let Some(file) = std::env::var_os("TEST_HISTORY") {
        let violations = judge(&History::load(file.as_ref()));
        assert!(violations.is_empty(), "{violations:#?}");
    }
}
