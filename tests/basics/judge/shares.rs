//! Of locks that several hold at once.

use kit::history::{Place, Share};

use super::*;

/// What one asks for, and is told.
fn beside(slots: u16, slot: u16, operation: Operation) -> Operation {
    let place = Some(Place { slot, slots });
    let terms = Terms { slots: Some(slots), ..operation.terms };
    Operation { terms, share: Share { place, ..Share::default() }, ..operation }
}

fn refused(slots: u16, operation: Operation) -> Operation {
    Operation { terms: Terms { slots: Some(slots), ..Terms::default() }, ..operation }
}

/// A look that shows these: their requests, numbers, slots of three, and when they asked for their leases.
fn shown(at: (u64, u64), held: u64, those: &[(&str, u64, u16, u64)]) -> Operation {
    let each = those.iter().map(|(id, number, slot, since_ms)| {
        let left_ms = (since_ms + TTL_MS).saturating_sub(at.0);
        (Holder { left_ms, ..holder(id, *number) }, Place { slot: *slot, slots: 3 })
    });
    let holders: Vec<_> = each.collect();
    let first = holders[0].0.clone();
    let share = Share { place: None, holders, held, slots: Some(3) };
    Operation { share, ..look(at, Answer::Held { holder: first, yours: None }) }
}

/// Three come in, one leaves, and another has its slot; a writer has the lock afterwards.
fn right() -> Vec<Operation> {
    vec![
        beside(3, 1, acquire("a1", "a", (0, 10), granted(1))),
        beside(3, 2, acquire("b1", "b", (11, 20), granted(2))),
        refused(1, acquire("w1", "w", (21, 30), held_by("a1", 1))),
        beside(3, 3, acquire("c1", "c", (31, 40), granted(3))),
        refused(3, acquire("d1", "d", (41, 50), Answer::HeldByAnother(None))),
        shown((51, 60), 3, &[("a1", 1, 1, 0), ("b1", 2, 2, 11), ("c1", 3, 3, 31)]),
        beside(3, 2, renew("b2", "b", (61, 70), renewed(2))),
        refused(2, acquire("c2", "c", (61, 70), Answer::HeldOtherwise { slots: 3 })),
        release("a2", "a", (71, 80), Answer::Released),
        release("a3", "a", (81, 85), Answer::Released),
        beside(3, 1, acquire("d2", "d", (86, 95), granted(4))),
        shown((96, 99), 3, &[("b1", 2, 2, 61), ("c1", 3, 3, 31), ("d2", 4, 1, 86)]),
        release("b3", "b", (101, 110), Answer::Released),
        release("c3", "c", (111, 120), Answer::Released),
        release("d3", "d", (121, 130), Answer::Released),
        look((131, 140), Answer::NotHeld),
        acquire("w2", "w", (141, 150), granted(5)),
        release("w3", "w", (151, 160), Answer::Released),
    ]
}

/// What the judge says of it with one operation more.
fn judge_with(operation: Operation) -> Vec<&'static str> {
    judge(right().into_iter().chain([operation]).collect())
}

/// Finds that this promise was broken, whatever else follows from it.
fn breaks(promise: &str, found: &[&str]) {
    assert!(found.contains(&promise), "{promise}: {found:?}");
}

#[test]
fn no_more_may_hold_a_lock_than_each_of_them_has_said() {
    assert_eq!(judge(right()), [""; 0]);
    breaks("S1", &judge_with(beside(4, 4, acquire("e1", "e", (51, 60), granted(9)))));
    // A writer stands beside nobody.
    breaks("S1", &judge_with(acquire("e1", "e", (51, 60), granted(9))));
    // It is the one that is there who has said less.
    let two = |slots| {
        judge(vec![
            beside(2, 1, acquire("a1", "a", (0, 10), granted(1))),
            beside(slots, 2, acquire("b1", "b", (11, 20), granted(2))),
        ])
    };
    assert_eq!(two(5), [""; 0]);
    let three = judge(vec![
        beside(5, 1, acquire("a1", "a", (0, 10), granted(1))),
        beside(2, 2, acquire("b1", "b", (11, 20), granted(2))),
        beside(5, 3, acquire("c1", "c", (21, 30), granted(3))),
    ]);
    assert_eq!(three, ["S1"]);
    breaks("S1", &judge_with(shown((61, 70), 4, &[("a1", 1, 1, 0), ("b1", 2, 2, 11), ("c1", 3, 3, 31)])));
}

#[test]
fn a_slot_that_is_kept_for_its_min_hold_counts() {
    let judge_at = |asked_ms| {
        let mut first = beside(2, 1, acquire("a1", "a", (0, 10), granted(1)));
        first.terms.min_hold_ms = Some(500);
        judge(vec![
            beside(2, 2, acquire("b1", "b", (11, 15), granted(2))),
            first,
            release("a2", "a", (20, 30), Answer::Released),
            beside(3, 3, acquire("c1", "c", (asked_ms, asked_ms + 10), granted(3))),
            release("b2", "b", (600, 610), Answer::Released),
        ])
    };
    breaks("S1", &judge_at(400));
    // By then only b is there, which bears one more.
    assert_eq!(judge_at(510), [""; 0]);
}

#[test]
fn each_has_one_slot_of_its_own_that_stays() {
    let pair = |second: Operation| judge(vec![beside(3, 1, acquire("a1", "a", (0, 10), granted(1))), second]);
    assert_eq!(pair(beside(3, 2, acquire("b1", "b", (11, 20), granted(2)))), [""; 0]);
    breaks("S4", &pair(beside(3, 1, acquire("b1", "b", (11, 20), granted(2)))));
    breaks("S2", &pair(beside(3, 2, acquire("a2", "a", (11, 20), granted(2)))));
    breaks("S4", &pair(beside(3, 4, acquire("b1", "b", (11, 20), granted(2)))));
    breaks("S4", &pair(beside(3, 2, renew("a2", "a", (11, 20), renewed(1)))));
    breaks("S4", &pair(shown((11, 20), 2, &[("a1", 1, 1, 0), ("b1", 2, 1, 11)])));
    // It is beside two others, and asked for one.
    breaks(
        "S2",
        &pair(Operation {
            terms: Terms { slots: Some(2), ..Terms::default() },
            ..beside(3, 1, acquire("a2", "a", (11, 20), already_held(1)))
        }),
    );
}

#[test]
fn who_has_left_bears_no_fewer_any_more() {
    let mut look = shown((52, 59), 3, &[("a1", 1, 1, 0), ("b1", 2, 2, 11), ("c1", 3, 3, 31)]);
    look.share.slots = Some(4);
    breaks("S8", &judge_with(look));
}

#[test]
fn numbers_of_new_grants_outdo_those_of_all_who_hold() {
    let late = |number| beside(3, 1, acquire("e1", "e", (161, 170), granted(number)));
    assert_eq!(judge_with(late(6)), [""; 0]);
    breaks("I1", &judge_with(late(4)));
    breaks("S3", &judge_with(late(0)));
}

#[test]
fn nobody_who_holds_beside_others_is_denied() {
    let of_c = |answer: Answer| judge_with(Operation { answer, ..renew("c9", "c", (61, 70), renewed(3)) });
    breaks("S2", &of_c(Answer::HeldByAnother(None)));
    breaks("S2", &of_c(Answer::NotHeld));
    breaks("S2", &judge_with(look((61, 70), Answer::NotHeld)));
    // It shows one as if it were alone, or not all.
    breaks("S2", &judge_with(look((61, 70), held("c1", 3))));
    breaks("S2", &judge_with(shown((61, 70), 2, &[("a1", 1, 1, 0), ("c1", 3, 3, 31)])));
    breaks("S2", &judge_with(renew("x", "x", (61, 70), Answer::NotHeld)));
    assert_eq!(judge_with(renew("x", "x", (61, 70), Answer::HeldByAnother(None))), [""; 0]);
    // It asked for no fewer than it has.
    breaks("S2", &judge_with(refused(3, acquire("c9", "c", (61, 70), Answer::HeldOtherwise { slots: 3 }))));
}

#[test]
fn each_of_those_whom_a_look_shows_is_judged() {
    let left = |id, number| {
        let mut history = History { operations: right(), quiet_us: Some(200_000), ..History::default() };
        history.operations.push(shown((2_000, 2_010), 2, &[("f1", 6, 1, 1900), (id, number, 2, 1_911)]));
        history.operations.push(beside(3, 1, acquire("f1", "f", (1_900, 1_910), granted(6))));
        history.operations.push(beside(3, 2, acquire("g1", "g", (1_911, 1_920), granted(7))));
        judge_all(history)
    };
    assert_eq!(left("g1", 7), [""; 0]);
    breaks("I7", &left("nobody", 9));
}
