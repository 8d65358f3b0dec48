//! What no other store has, or shows: exact ends, changes and how they are undone. The suite of all stores has the rules.

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::lock::{Acquired, Attempt, Lease, LeaseToken, Reach, Refusal, Slots, Terms, TokenHash, Ttl};
use crate::store::{LockRequest, Renewer, Try};

mod once;
mod queue;
mod slots;

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

fn records_of(table: &Table) -> usize {
    table.records.parts.iter().map(HashMap::len).sum()
}

/// A fresh attempt of `token` for 10 s.
fn request(token: TokenHash) -> LockRequest {
    LockRequest {
        key: key(),
        token,
        attempt: Attempt::generate(),
        ttl: ttl(10_000),
        note: Default::default(),
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
fn less_than_a_millisecond_is_no_gain_at_max_hold() {
    for offset_us in (1..1_000).step_by(37) {
        let mut table = table();
        let terms = Terms { max_hold: Some(ms(1_500)), ..Terms::default() };
        let first = LockRequest { terms, ..request(token()) };
        granted(&mut table, &LockRequest { ttl: ttl(1_000), ..first.clone() }, NOW);
        let soon = NOW + ms(600) + Duration::from_micros(offset_us);
        assert!(matches!(renewed(&mut table, &first.token, ttl(899), soon), Renewed::Renewed(_)));
        let again = renewed(&mut table, &first.token, ttl(3_000), soon + Duration::from_micros(417));
        assert!(matches!(again, Renewed::MaxHoldReached(_)), "{offset_us}: {again:?}");
    }
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
    let past_all = Duration::from_micros(FencingToken::MAX + 1);
    for (last, wall) in [(FencingToken::MAX, ms(0)), (5, past_all), (5, Duration::MAX)] {
        table.start_run(last, wall);
        let last = table.last_fence();
        assert!(matches!(asked(&mut table, &request(token()), NOW), Err(StoreError::Unavailable(_))));
        assert!(matches!(table.check(&Check, NOW), Err(StoreError::Unavailable(_))), "it is not ready");
        assert_eq!((table.change_count(), table.last_fence()), (0, last));
    }
}

/// A clock was wrong at a start, and no grant has such a number.
#[test]
fn a_last_number_past_the_largest_gives_way_to_those_of_the_records_and_the_clock() {
    let mut table = table();
    let held = granted(&mut table, &request(token()), NOW).fencing_token.get();
    for last in [FencingToken::MAX + 1, u64::MAX] {
        for (wall, first) in [(ms(0), held + 1), (Duration::from_micros(held + 9), held + 9)] {
            table.start_run(last, wall);
            assert_eq!(table.next_fence().map(FencingToken::get), Ok(first));
        }
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
    table.undo(changes, NOW);
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

#[test]
fn a_key_that_several_held_is_in_no_list_once_they_have_left() {
    let mut table = table();
    let terms = Terms { slots: Slots::MOST, ..Terms::default() };
    let [first, second] = [(); 2].map(|()| LockRequest { terms, ..request(token()) });
    granted(&mut table, &first, NOW);
    // It is put in order while one holds it.
    table.list(&Reach::all(""), None, 10, NOW);
    granted(&mut table, &second, NOW);
    for request in [&first, &second] {
        assert_eq!(released(&mut table, &request.token, Tombstone::None, NOW), Released::Released);
    }
    assert_eq!(table.records.listed_keys(), 0);
}
