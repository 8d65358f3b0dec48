//! Every rule, once, without file or thread.

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::lock::{Acquired, Confirmed, Lease, LeaseToken, Reach, Refusal, Terms, Ttl};
use crate::store::{Confirm, LockRequest, Try};

mod queue;

const NOW: Duration = Duration::from_secs(1_000);
const MARK_TTL: Duration = Duration::from_secs(120);

fn key() -> LockKey {
    match LockKey::parse("百家号/{b}".as_bytes()) {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}

fn ttl(ttl_ms: u64) -> Ttl {
    match Ttl::from_ms(ttl_ms) {
        Some(ttl) => ttl,
        None => panic!("a ttl of zero"),
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn token() -> TokenHash {
    LeaseToken::generate().hash()
}

fn table() -> Table {
    let mut table = Table::new(EmbeddedSettings { mark_ttl: MARK_TTL, ..EmbeddedSettings::default() });
    table.start_run(0, Duration::from_secs(1));
    table
}

/// A fresh attempt of `token` for 10 s.
fn records_of(table: &Table) -> usize {
    table.records.parts.iter().map(HashMap::len).sum()
}

fn request(token: TokenHash) -> LockRequest {
    LockRequest {
        key: key(),
        token,
        attempt: Attempt::generate(),
        ttl: ttl(10_000),
        owner: None,
        terms: Terms::default(),
    }
}

fn asked(table: &mut Table, request: &LockRequest, now: Duration) -> Result<Acquired<Refusal>, StoreError> {
    table.try_lock(&Try(request.clone()), now)
}

fn renewed(table: &mut Table, token: &TokenHash, ttl: Ttl, now: Duration) -> Renewed {
    renewed_of(table, &key(), token, ttl, now)
}

fn renewed_of(table: &mut Table, key: &LockKey, token: &TokenHash, ttl: Ttl, now: Duration) -> Renewed {
    table.renew(&Renew { key: key.clone(), token: *token, ttl, by: Renewer::Token }, now)
}

fn released(table: &mut Table, token: &TokenHash, tombstone: Tombstone, now: Duration) -> Released {
    released_of(table, &key(), token, tombstone, now)
}

fn released_of(
    table: &mut Table,
    key: &LockKey,
    token: &TokenHash,
    tombstone: Tombstone,
    now: Duration,
) -> Released {
    table.release(&Release { key: key.clone(), token: *token, tombstone }, now).answer
}

fn roll_back(table: &mut Table, token: &TokenHash, attempt: Attempt, now: Duration) {
    let (key, token) = (key(), *token);
    let (ticket, known) = (TicketAfter::Removed, KnownTo::Nobody);
    table.roll_back(&RollBack { key, token, attempt, ticket, known }, now);
}

fn inspected(table: &mut Table, token: Option<TokenHash>, now: Duration) -> Inspected {
    table.inspect(&Inspect { key: key(), token }, now)
}

fn granted(table: &mut Table, request: &LockRequest, now: Duration) -> Lease {
    match asked(table, request, now) {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

fn is_free(table: &mut Table, now: Duration) -> bool {
    matches!(inspected(table, None, now), Inspected::Free { .. })
}

#[test]
fn the_same_attempt_is_the_same_grant_and_can_still_be_taken_back() {
    let mut table = table();
    let request = request(token());
    let first = granted(&mut table, &request, NOW);
    let again = granted(&mut table, &LockRequest { ttl: ttl(60_000), ..request.clone() }, NOW + ms(4_000));
    assert_eq!(again.fencing_token, first.fencing_token);
    assert_eq!(again.left_ms, 6_000);
    roll_back(&mut table, &request.token, request.attempt, NOW + ms(4_000));
    assert!(is_free(&mut table, NOW + ms(4_000)));
}

#[test]
fn another_attempt_pins_the_grant_and_never_shortens_it() {
    let mut table = table();
    let first = request(token());
    let lease = granted(&mut table, &first, NOW);
    let second = LockRequest { ttl: ttl(1_000), ..request(first.token) };
    let held = asked(&mut table, &second, NOW);
    assert_eq!(held, Ok(Acquired::AlreadyHeld(lease.clone())));
    // The first copy, arriving late, must not make the grant revocable once more.
    assert_eq!(asked(&mut table, &first, NOW), Ok(Acquired::AlreadyHeld(lease)));
    for attempt in [first.attempt, second.attempt] {
        roll_back(&mut table, &first.token, attempt, NOW);
        assert!(!is_free(&mut table, NOW));
    }
    let longer = LockRequest { ttl: ttl(20_000), ..request(first.token) };
    let Ok(Acquired::AlreadyHeld(lease)) = asked(&mut table, &longer, NOW) else { panic!("not held") };
    assert_eq!(lease.left_ms, 20_000);
}

#[test]
fn renewing_and_looking_with_the_token_pin_the_grant() {
    for pin in [true, false] {
        let mut table = table();
        let request = request(token());
        granted(&mut table, &request, NOW);
        let _ = match pin {
            true => renewed(&mut table, &request.token, ttl(1), NOW) == Renewed::NotHeld,
            false => inspected(&mut table, Some(request.token), NOW) == (Inspected::Free { waiters: 0 }),
        };
        roll_back(&mut table, &request.token, request.attempt, NOW);
        assert!(!is_free(&mut table, NOW));
    }
    let mut table = table();
    let request = request(token());
    granted(&mut table, &request, NOW);
    inspected(&mut table, Some(token()), NOW);
    inspected(&mut table, None, NOW);
    roll_back(&mut table, &request.token, request.attempt, NOW);
    assert!(is_free(&mut table, NOW));
}

#[test]
fn a_voided_attempt_is_refused_and_the_token_stays_usable() {
    let mut table = table();
    let late = request(token());
    roll_back(&mut table, &late.token, late.attempt, NOW);
    assert_eq!(asked(&mut table, &late, NOW), Ok(Acquired::AttemptVoided));
    let retry = request(late.token);
    granted(&mut table, &retry, NOW);
    assert_eq!(asked(&mut table, &late, NOW), Ok(Acquired::AttemptVoided));
    // Each taking back gives the mark its whole life again, and the end of it frees the attempt.
    roll_back(&mut table, &late.token, late.attempt, NOW + MARK_TTL / 2);
    assert_eq!(asked(&mut table, &late, NOW + MARK_TTL), Ok(Acquired::AttemptVoided));
    granted(&mut table, &late, NOW + MARK_TTL * 3 / 2);
}

#[test]
fn a_mark_remembers_a_bounded_number_of_attempts() {
    let mut table = table();
    let token = token();
    let attempts: Vec<Attempt> = (0..=1_000).map(|_| Attempt::generate()).collect();
    for attempt in &attempts {
        roll_back(&mut table, &token, *attempt, NOW);
        roll_back(&mut table, &token, *attempt, NOW);
    }
    let attempt = |number: usize| LockRequest { attempt: attempts[number], ..request(token) };
    assert_eq!(asked(&mut table, &attempt(1), NOW), Ok(Acquired::AttemptVoided));
    assert_eq!(asked(&mut table, &attempt(1_000), NOW), Ok(Acquired::AttemptVoided));
    granted(&mut table, &attempt(0), NOW);
}

#[test]
fn a_final_release_keeps_its_first_answer_and_retires_the_token() {
    let mut table = table();
    let (mine, other) = (request(token()), request(token()));
    let release = |table: &mut Table, token: &TokenHash, now| released(table, token, Tombstone::Final, now);
    assert_eq!(release(&mut table, &mine.token, NOW), Released::NotHeld);
    assert_eq!(asked(&mut table, &mine, NOW), Ok(Acquired::TokenReleased));
    granted(&mut table, &other, NOW);
    assert_eq!(release(&mut table, &mine.token, NOW), Released::NotHeld);
    assert_eq!(release(&mut table, &token(), NOW), Released::HeldByAnother);
    assert_eq!(release(&mut table, &other.token, NOW), Released::Released);
    assert_eq!(release(&mut table, &other.token, NOW + MARK_TTL - ms(1)), Released::Released);
    // Taking back must not turn the final answer into a mere list of attempts, nor make it live longer.
    roll_back(&mut table, &other.token, other.attempt, NOW + ms(5));
    assert_eq!(asked(&mut table, &request(other.token), NOW + ms(5)), Ok(Acquired::TokenReleased));
    granted(&mut table, &request(other.token), NOW + MARK_TTL);
}

#[test]
fn a_plain_release_leaves_nothing() {
    let mut table = table();
    let request = request(token());
    granted(&mut table, &request, NOW);
    assert_eq!(released(&mut table, &token(), Tombstone::None, NOW), Released::HeldByAnother);
    assert_eq!(released(&mut table, &request.token, Tombstone::None, NOW), Released::Released);
    assert_eq!(released(&mut table, &request.token, Tombstone::None, NOW), Released::NotHeld);
    assert!(records_of(&table) == 0 && table.ends.is_empty());
}

#[test]
fn a_lease_ends_with_its_last_whole_millisecond() {
    let mut table = table();
    let first = request(token());
    granted(&mut table, &first, NOW);
    let last = NOW + ms(9_999);
    let Ok(Acquired::NotTaken(Refusal { holder: Some(lease), .. })) =
        asked(&mut table, &request(token()), last)
    else {
        panic!("free")
    };
    assert_eq!(lease.left_ms, 1);
    let over = last + Duration::from_nanos(1);
    assert_eq!(renewed(&mut table, &first.token, ttl(10_000), over), Renewed::NotHeld);
    assert!(is_free(&mut table, over));
    let second = granted(&mut table, &request(token()), over);
    assert!(second.fencing_token > lease.fencing_token);
    assert_eq!(renewed(&mut table, &first.token, ttl(10_000), over), Renewed::HeldByAnother);
}

#[test]
fn renewing_sets_the_longer_of_what_is_left_and_the_ttl() {
    let mut table = table();
    let request = request(token());
    granted(&mut table, &request, NOW);
    for (asked_ms, left_ms) in [(5_000, 10_000), (15_000, 15_000), (1, 15_000)] {
        let Renewed::Renewed(lease) = renewed(&mut table, &request.token, ttl(asked_ms), NOW) else {
            panic!("not renewed")
        };
        assert_eq!(lease.left_ms, left_ms);
    }
}

#[test]
fn confirming_never_grants() {
    let mut table = table();
    let confirm = Confirm(request(token()));
    assert_eq!(table.confirm(&confirm, NOW), Confirmed::TokenReleased);
    granted(&mut table, &request(confirm.0.token), NOW);
    assert!(matches!(table.confirm(&confirm, NOW), Confirmed::AlreadyHeld(_)));
    let other = Confirm(request(token()));
    assert!(matches!(table.confirm(&other, NOW), Confirmed::Refused(_)));
}

#[test]
fn numbers_go_on_upward_from_the_larger_of_the_clock_and_the_last() {
    let mut table = Table::new(EmbeddedSettings { mark_ttl: MARK_TTL, ..EmbeddedSettings::default() });
    let second = Duration::from_secs(1);
    for (last, wall, first) in
        [(0, second, 1_000_000), (5, second, 1_000_000), (7_000_000, second, 7_000_001), (9, ms(0), 10)]
    {
        table.start_run(last, wall);
        assert_eq!(table.mint().map(FencingToken::get), Ok(first));
        assert_eq!(table.mint().map(FencingToken::get), Ok(first + 1));
    }
}

#[test]
fn numbers_that_are_used_up_change_nothing() {
    let mut table = Table::new(EmbeddedSettings { mark_ttl: MARK_TTL, ..EmbeddedSettings::default() });
    for last in [FencingToken::MAX, u64::MAX] {
        table.start_run(last, ms(0));
        assert!(matches!(asked(&mut table, &request(token()), NOW), Err(StoreError::Unavailable(_))));
        assert_eq!((table.change_count(), table.last_fence()), (0, last));
    }
}

/// The records that were touched, each once.
fn touched(table: &mut Table) -> Vec<RecordId> {
    let ids: BTreeSet<_> = table.take_changes().into_iter().map(|change| change.id).collect();
    ids.into_iter().collect()
}

/// A batch that could not be written: nothing is left of it but the numbers that it used up.
#[test]
fn what_is_undone_leaves_everything_as_it_was() {
    let mut table = table();
    let named = |name: &str| match LockKey::parse(name.as_bytes()) {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    };
    let [kept, freed, new] =
        ["kept", "freed", "new"].map(|name| LockRequest { key: named(name), ..request(token()) });
    granted(&mut table, &kept, NOW);
    granted(&mut table, &freed, NOW);
    table.take_changes();
    let all = |table: &mut Table| {
        let locks = table.list(&Reach::all(""), None, 10, NOW).0;
        let marks =
            [&kept, &freed, &new].map(|one| table.get(&RecordId::mark(&one.key, &one.token)).cloned());
        (locks, marks, table.ends.clone(), records_of(table))
    };
    let before = all(&mut table);
    let last = granted(&mut table, &new, NOW).fencing_token;
    renewed_of(&mut table, &kept.key, &kept.token, ttl(20_000), NOW);
    renewed_of(&mut table, &kept.key, &kept.token, ttl(30_000), NOW);
    released_of(&mut table, &freed.key, &freed.token, Tombstone::Final, NOW);
    released_of(&mut table, &new.key, &new.token, Tombstone::Final, NOW);
    assert_ne!(all(&mut table), before);
    let changes = table.take_changes();
    table.undo(changes);
    assert_eq!(all(&mut table), before);
    assert_eq!((table.change_count(), table.last_fence()), (0, last.get()));
}

#[test]
fn changes_are_told_once_each_and_only_where_something_changed() {
    let mut table = table();
    let request = request(token());
    granted(&mut table, &request, NOW);
    renewed(&mut table, &request.token, ttl(20_000), NOW);
    assert_eq!(touched(&mut table), vec![RecordId::Lock(key())]);
    renewed(&mut table, &request.token, ttl(1), NOW);
    inspected(&mut table, Some(request.token), NOW);
    assert_eq!(released(&mut table, &token(), Tombstone::None, NOW), Released::HeldByAnother);
    assert_eq!(table.change_count(), 0);
    released(&mut table, &request.token, Tombstone::Final, NOW);
    let changes = vec![RecordId::Lock(key()), RecordId::mark(&key(), &request.token)];
    assert_eq!(touched(&mut table), changes);
    assert!(table.get(&changes[0]).is_none() && table.get(&changes[1]).is_some());
}

#[test]
fn what_has_ended_is_purged_a_bounded_number_at_a_time() {
    let mut table = table();
    for number in 0..10u64 {
        let Ok(key) = LockKey::parse(number.to_string().as_bytes()) else { panic!("a bad key") };
        granted(&mut table, &LockRequest { key, ..request(token()) }, NOW + ms(number));
    }
    let end = NOW + ms(10_000);
    assert!(table.purge(end - ms(1), 100));
    assert_eq!(records_of(&table), 10);
    assert!(!table.purge(end + ms(7), 5));
    assert_eq!(records_of(&table), 5);
    assert!(table.purge(end + ms(7), 100));
    assert_eq!((records_of(&table), table.ends.len()), (2, 2));
}

#[test]
fn renewing_and_taking_anew_leave_one_end_per_record() {
    let mut table = table();
    let request = request(token());
    for step in 0..100 {
        granted(&mut table, &request, NOW);
        renewed(&mut table, &request.token, ttl(20_000 + step), NOW);
        released(&mut table, &request.token, Tombstone::None, NOW);
        roll_back(&mut table, &token(), request.attempt, NOW + ms(step));
    }
    assert_eq!(table.ends.len(), records_of(&table));
}

/// Also where most of the keys were put in order long ago, and others only now.
#[test]
fn a_list_is_in_order_whenever_the_locks_were_taken_and_freed() {
    const LOCKS: u64 = 3_000;
    let mut table = table();
    // Each number once, and in no order: the factor has no divisor in common with their count.
    let numbered = (0..LOCKS).map(|step| {
        let Ok(key) = LockKey::parse(format!("{:04}", step * 1_237 % LOCKS).as_bytes()) else {
            panic!("a bad key")
        };
        LockRequest { key, ..request(token()) }
    });
    let requests: Vec<_> = numbered.collect();
    for request in &requests {
        granted(&mut table, request, NOW);
    }
    for request in requests.iter().step_by(3) {
        released_of(&mut table, &request.key, &request.token, Tombstone::None, NOW);
    }
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let (locks, next) = table.list(&Reach::all(""), after.as_ref(), 700, NOW);
        listed.extend(locks.into_iter().map(|lock| lock.key));
        after = next;
        if after.is_none() {
            break;
        }
    }
    let mut left: Vec<_> =
        requests.iter().enumerate().filter(|(at, _)| at % 3 != 0).map(|(_, one)| one.key.clone()).collect();
    left.sort_unstable();
    assert_eq!(listed, left);
}
