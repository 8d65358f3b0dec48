//! Listing records: all that there are, page by page, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use fencepost::lock::{Reach, Terms};
use fencepost::once::{RecordPage, WorkState};
use fencepost::store::{List, ListRecords, LockRequest, Try};

use super::*;

for_each_record_store!(
    every_record_is_listed,
    what_is_out_of_reach_is_not_listed,
    a_cursor_of_a_list_of_locks_begins_anew,
);
for_each_record_store_with_a_clock!(what_has_ended_is_not_listed);

async fn lock(scene: &AnyStore, key: &str) {
    let lock = LockRequest {
        key: LockKey::parse(key.as_bytes()).unwrap(),
        token: LeaseToken::generate().hash(),
        attempt: Attempt::generate(),
        ttl: ttl(LONG_MS),
        note: Note::default(),
        terms: Terms::default(),
    };
    scene.store.call(Try(lock), soon()).await.unwrap();
}

/// All pages.
async fn listed(scene: &AnyStore, reach: Reach, limit: usize) -> BTreeMap<String, RecordView> {
    listed_from(scene, None, reach, limit).await
}

async fn listed_from(
    scene: &AnyStore,
    mut cursor: Option<String>,
    reach: Reach,
    limit: usize,
) -> BTreeMap<String, RecordView> {
    let mut found = BTreeMap::new();
    for page in 0.. {
        assert!(page < 1_000, "it does not end");
        let request = ListRecords { reach: reach.clone(), cursor, limit };
        let RecordPage { records, next } = scene.store.call(request, soon()).await.unwrap();
        assert!(records.len() <= limit, "{} on a page of {limit}", records.len());
        let keys: BTreeSet<_> = records.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys.len(), records.len(), "each once: {records:?}");
        // One may be on more than one page, as with locks.
        found.extend(records.into_iter().map(|(key, view)| (key.as_str().to_owned(), view)));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    found
}

async fn every_record_is_listed(scene: &AnyStore) {
    assert_eq!(listed(scene, Reach::all(""), 10).await, BTreeMap::new());
    let mut numbers = BTreeMap::new();
    for n in 0..23 {
        let person = Person::new(scene, &format!("k/{n}"));
        let place = person.grant().await;
        match n % 3 {
            0 => drop(stored(person.store("done").await)),
            1 => drop(person.give_up().await),
            _ => {}
        }
        numbers.insert(person.key.as_str().to_owned(), number(&place));
    }
    // A lock is no record, and what was given up clean is none any more.
    lock(scene, "k/lock").await;
    Person::new(scene, "k/undone").undone().await;
    for limit in [1, 2, 7, 23, 1_000] {
        let found = listed(scene, Reach::all(""), limit).await;
        let places = found.iter().map(|(key, view)| (key.clone(), number(&view.place)));
        assert_eq!(places.collect::<BTreeMap<_, _>>(), numbers, "by {limit}");
        for (key, view) in &found {
            let n: usize = key[2..].parse().unwrap();
            let state = [WorkState::Done, WorkState::Lapsed, WorkState::Working][n % 3];
            assert_eq!(
                (view.state, view.yours, view.result.is_some()),
                (state, None, state == WorkState::Done),
                "{key}"
            );
        }
    }
    assert_eq!(listed(scene, Reach::all("k/1"), 5).await.len(), 11);
}

async fn what_is_out_of_reach_is_not_listed(scene: &AnyStore) {
    for key in ["a", "a/1", "a/2", "ab", "b/1", "*", "百"] {
        Person::new(scene, key).grant().await;
    }
    let names = async |reach: Reach| Vec::from_iter(listed(scene, reach, 2).await.into_keys());
    assert_eq!(names(Reach::all("a/")).await, ["a/1", "a/2"]);
    assert_eq!(names(Reach::all("*")).await, ["*"]);
    assert_eq!(names(Reach::all("none")).await, [""; 0]);
    let two = Reach::limited(vec!["b/".into(), "a".into()], &[], |key| key.as_str() != "a/1");
    assert_eq!(names(two).await, ["a", "a/2", "ab", "b/1"]);
}

async fn a_cursor_of_a_list_of_locks_begins_anew(scene: &AnyStore) {
    let names: BTreeSet<_> = (0..40).map(|n| format!("k/{n}")).collect();
    for name in &names {
        Person::new(scene, name).grant().await;
        lock(scene, name).await;
    }
    let list = List { reach: Reach::all("k/"), cursor: None, limit: 20 };
    let cursor = scene.store.call(list, soon()).await.unwrap().next;
    assert!(cursor.is_some());
    let found = listed_from(scene, cursor, Reach::all("k/"), 20).await;
    assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), names);
}

async fn what_has_ended_is_not_listed(scene: &AnyStore) {
    let person = Person::new(scene, "result").keeping(HOUR);
    person.grant().await;
    stored(person.store("done").await);
    Person::new(scene, "crash").crash().await;
    scene.pass(HOUR).await;
    assert_eq!(Vec::from_iter(listed(scene, Reach::all(""), 10).await.into_keys()), ["crash"]);
    scene.pass(7 * DAY).await;
    assert_eq!(listed(scene, Reach::all(""), 10).await.len(), 0);
}
