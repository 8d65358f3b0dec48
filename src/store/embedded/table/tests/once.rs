//! What is counted of pieces of work, and what is undone.

use super::super::super::record::Format;
use super::*;
use crate::once::{Begun, Keep, Storing, WorkResult};
use crate::store::{Begin, BreakRecord, GiveUp, RenewWork, StoreResult};

fn begin(name: &str, token: TokenHash) -> Begin {
    let Ok(key) = LockKey::parse(name.as_bytes()) else { panic!("a bad key") };
    Begin {
        key,
        token,
        attempt: Attempt::generate(),
        ttl: ttl(10_000),
        keep: Keep::DEFAULT,
        note: Default::default(),
        fingerprint: None,
        may_take_over: true,
        only_confirms: false,
    }
}

fn begun(table: &mut Table, begin: &Begin) -> FencingToken {
    match table.begin(begin, NOW) {
        Ok(Begun::Granted(place)) => place.lease.fencing_token,
        other => panic!("not granted: {other:?}"),
    }
}

fn store(table: &mut Table, begin: &Begin, bytes: usize) {
    let result = WorkResult { status: None, content_type: None, body: vec![1; bytes].into() };
    let (key, token) = (begin.key.clone(), begin.token);
    let stored = table.store_result(&StoreResult { key, token, fence: None, keep: None, result }, NOW);
    assert!(matches!(stored, Storing::Stored { .. }), "{stored:?}");
}

fn give_up(table: &mut Table, begin: &Begin, is_clean: bool) {
    let (key, token) = (begin.key.clone(), begin.token);
    table.give_up(&GiveUp { key, token, is_clean, tombstone: Tombstone::Final }, NOW);
}

/// All pieces of work, with their results.
fn works(table: &Table) -> BTreeSet<String> {
    let all = table.records.all().filter(|(_, record)| record.format() == Format::Works);
    all.map(|(id, record)| format!("{id:?} {record:?}")).collect()
}

#[test]
fn what_is_undone_leaves_records_and_their_room_as_they_were() {
    let mut table = table();
    let [done, working, given_up, new] =
        ["done", "working", "given up", "new"].map(|name| begin(name, token()));
    let number = begun(&mut table, &done);
    store(&mut table, &done, 5_000);
    begun(&mut table, &working);
    begun(&mut table, &given_up);
    table.take_changes();
    let before = (works(&table), table.once_bytes, table.ends.clone());
    assert_eq!(before.1, 3 * 850 + "doneworkinggiven up".len() as u64 + 5_000);
    table.break_record(&BreakRecord { key: done.key, fence: number, is_clean: false }, NOW);
    let (key, token) = (working.key.clone(), working.token);
    table.renew_work(&RenewWork { key, token, fence: None, ttl: ttl(60_000) }, NOW);
    store(&mut table, &working, 70);
    give_up(&mut table, &given_up, true);
    begun(&mut table, &new);
    store(&mut table, &new, 2_000);
    assert_eq!(table.once_bytes, 3 * 850 + "doneworkingnew".len() as u64 + 70 + 2_000);
    assert_ne!(works(&table), before.0);
    let changes = table.take_changes();
    table.undo(changes, NOW);
    assert_eq!((works(&table), table.once_bytes, table.ends.clone()), before);
}

#[test]
fn what_has_ended_is_not_counted_once_it_is_removed() {
    let mut table = table();
    for name in ["a", "b", "c"] {
        let one = begin(name, token());
        begun(&mut table, &one);
        store(&mut table, &one, 100);
    }
    assert_eq!(table.once_bytes, 3 * 951);
    let end = NOW + Keep::DEFAULT.as_duration();
    assert!(table.purge(end - ms(1), 100));
    assert_eq!(table.once_bytes, 3 * 951);
    assert!(table.purge(end, 100));
    assert_eq!((table.once_bytes, works(&table).len()), (0, 0));
}

/// The file tells by that whether it has to write a body.
#[test]
fn what_is_touched_has_the_body_that_it_had() {
    let mut table = table();
    let [done, working] = ["done", "working"].map(|name| begin(name, token()));
    begun(&mut table, &done);
    store(&mut table, &done, 1_000);
    begun(&mut table, &working);
    table.take_changes();
    table.touch_all();
    let changes = table.take_changes();
    assert_eq!(changes.len(), 2);
    for change in &changes {
        assert_eq!(change.before.as_deref(), table.get(&change.id));
    }
    assert_eq!(
        changes.iter().filter(|change| change.before.as_ref().is_some_and(|it| it.body().is_some())).count(),
        1
    );
}
