#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use super::*;
use crate::lock::Slot;

/// When a request is sent of which a test does not say when: after all grants.
const LATER: Duration = Duration::from_secs(u32::MAX as u64);
/// What is asked for where that makes no difference.
const ASKED: AskedLease = AskedLease { at: Duration::ZERO, min_hold: None };

fn lease(number: u64, left_ms: u64) -> Lease {
    Lease {
        fencing_token: FencingToken::new(number).unwrap(),
        left_ms,
        note: Default::default(),
        is_released: false,
        slot: None,
    }
}

fn key(name: &str) -> LockKey {
    LockKey::parse(name.as_bytes()).unwrap()
}

#[test]
fn what_is_held_counts_until_it_is_known_to_have_ended() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 2 });
    let (token, hour_ms) = (TokenHash::from_bytes([1; 32]), 3_600_000);
    let take = |name: &str, number, ms| match ledger.room(&key(name), Slots::ONE, &account) {
        Room::Free(room) => {
            ledger.holds(&key(name), token, &lease(number, ms), ASKED, &account, room);
            true
        }
        Room::Full => false,
    };
    let count = || account.count.load(Ordering::Relaxed);
    assert!(take("a", 1, hour_ms) && take("b", 2, hour_ms) && !take("c", 3, hour_ms));
    // The same lock anew takes no further room, and news of the grant before do not end this one.
    assert!(take("a", 4, hour_ms));
    ledger.ended(&key("a"), Ended { fencing_token: lease(1, 1).fencing_token, kept_ms: 0 });
    assert_eq!(count(), 2);
    ledger.ended(&key("a"), Ended { fencing_token: lease(4, 1).fencing_token, kept_ms: hour_ms });
    assert_eq!(count(), 2, "it is kept for its min_hold");
    ledger.ended(&key("a"), Ended { fencing_token: lease(4, 1).fencing_token, kept_ms: 0 });
    assert_eq!(count(), 1);
    ledger.lost(&key("b"), &TokenHash::from_bytes([2; 32]), LATER, false);
    assert_eq!(count(), 1, "another token never held it");
    ledger.lost(&key("b"), &token, LATER, false);
    assert_eq!(count(), 0);
    // A lease that is over counts no more, and a room that was not used is given back.
    assert!(take("d", 5, 0) && take("e", 6, hour_ms) && take("f", 7, hour_ms) && !take("g", 8, hour_ms));
    ledger.ended(&key("f"), Ended { fencing_token: lease(7, 1).fencing_token, kept_ms: 0 });
    drop(ledger.room(&key("h"), Slots::ONE, &account));
    assert_eq!(count(), 1);
    // What was granted elsewhere counts once it is renewed here, also beyond the most.
    for number in 10..13 {
        ledger.holds(&key(&number.to_string()), token, &lease(number, hour_ms), ASKED, &account, None);
    }
    assert_eq!((count(), ledger.size.load(Ordering::Relaxed)), (4, 4));
    // Another's grant takes the place of it.
    let other = Account { count: Arc::default(), most: 1 };
    ledger.holds(&key("e"), token, &lease(20, hour_ms), ASKED, &other, None);
    assert_eq!((count(), other.count.load(Ordering::Relaxed)), (3, 1));
    let books = ledger.books.lock();
    assert_eq!((books.held.len(), books.ends.len()), (4, 4));
}

#[test]
fn each_slot_of_a_lock_counts() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 3 });
    let token = |byte| TokenHash::from_bytes([byte; 32]);
    let slot =
        |number, at| Lease { slot: Some(Slot { number: at, slots: Slots::MOST }), ..lease(number, 9_000) };
    let takes = |by, lease: Lease, slots| match ledger.room(&key("a"), slots, &account) {
        Room::Free(room) => {
            ledger.holds(&key("a"), token(by), &lease, ASKED, &account, room);
            true
        }
        Room::Full => false,
    };
    let count = || account.count.load(Ordering::Relaxed);
    for number in 1..=3 {
        assert!(takes(number, slot(number.into(), number.into()), Slots::MOST));
    }
    assert!(count() == 3 && !takes(4, slot(4, 4), Slots::MOST));
    // Who has one already is told of it again, and it is the same.
    ledger.holds(&key("a"), token(2), &slot(2, 2), ASKED, &account, None);
    assert_eq!(count(), 3);
    ledger.ended(&key("a"), Ended { fencing_token: lease(2, 1).fencing_token, kept_ms: 0 });
    ledger.lost(&key("a"), &token(3), LATER, false);
    assert_eq!(count(), 1);
    // A grant of the lock alone has no others beside it.
    assert!(takes(5, slot(5, 2), Slots::MOST) && takes(6, lease(6, 9_000), Slots::ONE));
    assert_eq!((count(), ledger.size.load(Ordering::Relaxed)), (1, 1));
    assert!(takes(7, slot(7, 1), Slots::MOST) && count() == 1);
}

/// Any number of them could follow it.
#[test]
fn a_lock_that_an_account_holds_alone_makes_no_room_for_slots_of_it() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 1 });
    let Room::Free(room) = ledger.room(&key("a"), Slots::ONE, &account) else { panic!("it has none yet") };
    ledger.holds(&key("a"), TokenHash::from_bytes([1; 32]), &lease(1, 9_000), ASKED, &account, room);
    assert!(matches!(ledger.room(&key("a"), Slots::MOST, &account), Room::Full));
    assert!(matches!(ledger.room(&key("a"), Slots::ONE, &account), Room::Free(None)));
}

/// A release, and so its repetition, a late copy of the `PUT` and a renewal: all of them show the token.
#[test]
fn a_lock_that_is_kept_counts_until_then_whatever_its_token_is_told() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 9 });
    let (token, min_hold) = (TokenHash::from_bytes([1; 32]), Duration::from_secs(3_600));
    let asked = AskedLease { min_hold: Some(min_hold), ..ASKED };
    let count = || account.count.load(Ordering::Relaxed);
    let takes = |name: &str, number| {
        ledger.holds(&key(name), token, &lease(number, 9_000), asked, &account, None);
    };
    let ends_at = |name: &str| {
        let books = ledger.books.lock();
        let held = books.of(&key(name)).next().map(|(_, held)| held.ends_at);
        held.unwrap()
    };
    let ended = |number, kept_ms| Ended { fencing_token: lease(number, 1).fencing_token, kept_ms };
    takes("a", 1);
    ledger.ended(&key("a"), ended(1, 60_000));
    let kept_until = ends_at("a");
    ledger.lost(&key("a"), &token, LATER, false);
    ledger.lost(&key("a"), &token, LATER, true);
    ledger.may_last(&key("a"), &token, boottime(), LATER);
    ledger.lasts(&key("a"), &lease(1, 1_000), LATER);
    // The answer to a renewal may come late.
    takes("a", 1);
    assert!(count() == 1 && ends_at("a") == kept_until);
    ledger.ended(&key("a"), ended(1, 0));
    assert_eq!(count(), 0, "it was broken");
    // What another gateway has released is not told here, and may be kept. What is free is not.
    takes("b", 2);
    ledger.lost(&key("b"), &token, LATER, false);
    assert!(count() == 1 && ends_at("b") > boottime() + min_hold / 2);
    takes("c", 3);
    ledger.lost(&key("c"), &token, LATER, true);
    assert_eq!(count(), 1);
    // The next grant takes its place.
    ledger.holds(&key("b"), token, &lease(4, 9_000), ASKED, &account, None);
    assert!(count() == 1 && ends_at("b") < boottime() + min_hold / 2);
    // Another gateway may release it while nothing of its token is asked here.
    ledger.holds(&key("d"), token, &lease(5, 0), asked, &account, None);
    ledger.lasts(&key("d"), &lease(5, 0), LATER);
    assert!(count() == 2 && ends_at("d") > boottime() + min_hold / 2);
}

#[test]
fn what_a_request_was_told_says_nothing_of_a_grant_that_is_later_than_the_request() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 9 });
    let token = TokenHash::from_bytes([1; 32]);
    let asked_at = boottime();
    ledger.holds(&key("a"), token, &lease(1, 9_000), ASKED, &account, None);
    ledger.lost(&key("a"), &token, asked_at, true);
    assert_eq!(account.count.load(Ordering::Relaxed), 1);
    ledger.lost(&key("a"), &token, LATER, true);
    assert_eq!(account.count.load(Ordering::Relaxed), 0);
}

/// Answers overtake each other, and some never come.
#[test]
fn a_lease_counts_for_as_long_as_any_answer_says_or_a_request_without_one_may_have_made_it() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 9 });
    let (token, asked_at) = (TokenHash::from_bytes([1; 32]), boottime());
    let told =
        |at, ms| ledger.holds(&key("a"), token, &lease(1, ms), AskedLease { at, ..ASKED }, &account, None);
    let left = || {
        let books = ledger.books.lock();
        let ends_at = books.of(&key("a")).next().map(|(_, held)| held.ends_at);
        ends_at.unwrap().saturating_sub(asked_at)
    };
    let second = Duration::from_secs(1);
    told(asked_at, 1_000);
    let [first, last] = [asked_at + second, asked_at + 2 * second];
    // Both are under way. The answer to the first says nothing of the second.
    ledger.may_last(&key("a"), &token, last, 600 * second);
    ledger.may_last(&key("a"), &token, first, second);
    told(first, 1_000);
    ledger.lasts(&key("a"), &lease(1, 1_000), first);
    assert_eq!(left(), 602 * second);
    told(last, 60_000);
    assert!(left() < 90 * second, "what the last was told is how it is: {:?}", left());
    // It was longer already when the last was answered, or the other way round.
    told(last, 1_000);
    assert!(left() >= 60 * second, "{:?}", left());
    // What a connection leaves to the token may be shorter.
    ledger.lasts(&key("a"), &lease(1, 9_000), last);
    assert!(left() < 30 * second, "{:?}", left());
}

#[test]
fn a_late_answer_does_not_lengthen_what_is_kept_and_a_later_grant_keeps_no_earlier_one() {
    let (ledger, account) = (Ledger::default(), Account { count: Arc::default(), most: 2 });
    let (token, hour_ms) = (TokenHash::from_bytes([1; 32]), 3_600_000);
    let ends = |name: &str, number| {
        let fencing_token = lease(number, 1).fencing_token;
        ledger.ended(&key(name), Ended { fencing_token, kept_ms: hour_ms });
    };
    let ends_at = |name: &str| ledger.books.lock().held.get(&(key(name), 0)).map(|held| held.ends_at);
    ledger.holds(&key("a"), token, &lease(1, hour_ms), ASKED, &account, None);
    ends("a", 1);
    let kept_until = ends_at("a");
    ledger.holds(&key("a"), token, &lease(1, 24 * hour_ms), ASKED, &account, None);
    assert!(kept_until.is_some() && ends_at("a") == kept_until);
    // Another gateway has granted it since, and that grant is kept.
    ledger.holds(&key("b"), token, &lease(2, hour_ms), ASKED, &account, None);
    ends("b", 3);
    assert_eq!(ends_at("b"), None);
}
