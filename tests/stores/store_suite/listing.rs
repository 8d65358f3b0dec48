//! Listing locks: all that are held, page by page, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fencepost::lock::{Attempt, Listed, Page, Reach, Terms};
use fencepost::store::{List, Tombstone};

use super::{AnyStore, Caller, MARK_TTL, eventually, for_each_store, soon};
use kit::asking::LockStoreExt;
use kit::asking::{Ask, Join};

for_each_store!(
    every_lock_that_is_held_is_listed,
    a_prefix_means_itself,
    what_nobody_holds_is_not_listed,
    a_lock_that_is_held_all_the_while_is_listed_while_others_come_and_go,
    a_page_may_be_asked_for_again,
    a_cursor_that_was_never_given_begins_anew,
    a_cursor_of_another_list_or_without_one_of_its_characters_begins_anew,
);

async fn page(scene: &AnyStore, prefix: &str, cursor: Option<&str>, limit: usize) -> Page {
    let page = scene
        .store
        .call(List { reach: Reach::all(prefix), cursor: cursor.map(str::to_owned), limit }, soon())
        .await
        .unwrap();
    let keys: BTreeSet<_> = page.locks.iter().map(|lock| lock.key.as_str()).collect();
    assert!(page.locks.len() <= limit, "{} on a page of {limit}", page.locks.len());
    assert_eq!(keys.len(), page.locks.len(), "each once: {page:?}");
    assert!(keys.iter().all(|key| key.starts_with(prefix)), "{prefix}: {keys:?}");
    page
}

/// All pages, and what to do between them.
async fn walk(
    scene: &AnyStore,
    prefix: &str,
    limit: usize,
    mut between: impl AsyncFnMut(usize),
) -> BTreeMap<String, Listed> {
    let mut found = BTreeMap::new();
    let mut cursor = None;
    for number in 0.. {
        let Page { locks, next } = page(scene, prefix, cursor.as_deref(), limit).await;
        found.extend(locks.into_iter().map(|lock| (lock.key.as_str().to_owned(), lock)));
        cursor = next;
        if cursor.is_none() {
            break;
        }
        assert!(number < 10_000, "it does not end");
        between(number).await;
    }
    found
}

async fn all(scene: &AnyStore, prefix: &str, limit: usize) -> BTreeMap<String, Listed> {
    walk(scene, prefix, limit, async |_| ()).await
}

async fn every_lock_that_is_held_is_listed(scene: &AnyStore) {
    assert_eq!(page(scene, "", None, 100).await, Page::default());
    let mut numbers = BTreeMap::new();
    for n in 0..23 {
        let key = format!("k/{n}");
        numbers.insert(key.clone(), Caller::new(scene, &key).grant(30_000).await.fencing_token);
    }
    for limit in [1, 2, 7, 23, 1_000] {
        let found = all(scene, "", limit).await;
        let listed: BTreeMap<_, _> =
            found.iter().map(|(key, lock)| (key.clone(), lock.lease.fencing_token)).collect();
        assert_eq!(listed, numbers, "by {limit}");
    }
    let found = all(scene, "k/1", 5).await;
    assert_eq!(found.len(), 11, "{:?}", found.keys());
    let lock = &found["k/1"];
    assert_eq!(lock.lease.owner(), Some("somebody"));
    assert!((10_000..=30_000).contains(&lock.lease.left_ms), "{}", lock.lease.left_ms);
    assert!(!lock.lease.is_released);
    assert_eq!(lock.waiters, 0);
}

async fn a_prefix_means_itself(scene: &AnyStore) {
    let keys = [
        "*",
        "?",
        "[",
        "]",
        "\\",
        "[a-z]",
        "a",
        "aa",
        "a*",
        "a*b",
        "axb",
        "a?b",
        "a[b]",
        "a\\b",
        "a\\*b",
        "b",
        "}{",
        "{1}",
        "a{b}c",
        "x}:lock:a",
        "lock:a",
        "a/b",
        "a%2Fb",
        "A",
        "百家号",
        "百家",
        "^a",
        "a b",
        "-",
        "ü",
        "u\u{308}",
    ];
    for key in keys {
        Caller::new(scene, key).grant(60_000).await;
    }
    for prefix in keys.into_iter().chain(["", "[a", "百", "none", "a**"]) {
        let expected: BTreeSet<_> = keys.into_iter().filter(|key| key.starts_with(prefix)).collect();
        let found = all(scene, prefix, 100).await;
        assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{prefix}");
    }
    // Such keys there cannot be.
    for prefix in ["a".repeat(600), "\n".to_owned()] {
        assert_eq!(all(scene, &prefix, 100).await.len(), 0);
    }
}

async fn what_nobody_holds_is_not_listed(scene: &AnyStore) {
    let [held, brief, released, voided] =
        ["held", "brief", "released", "voided"].map(|key| Caller::new(scene, key));
    let attempt = Attempt::generate();
    brief.grant(50).await;
    released.grant(30_000).await;
    released.release(Tombstone::Final).await;
    voided.acquire_as(attempt, 30_000, Ask::Try).await;
    voided.take_back(attempt).await;
    held.grant(30_000).await;
    let waiter = Caller::new(scene, "held");
    waiter.acquire_as(Attempt::generate(), 30_000, Ask::Enqueue(Join::default())).await;
    let terms = Terms { min_hold: Some(Duration::from_secs(60)), max_hold: None, ..Terms::default() };
    let kept = Caller { terms, ..Caller::new(scene, "kept") };
    kept.grant(30_000).await;
    kept.release(Tombstone::None).await;
    eventually("the brief one ends", async || brief.is_free().await).await;
    let found = all(scene, "", 100).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["held", "kept"]);
    assert_eq!(found["held"].waiters, 1);
    assert!(found["kept"].lease.is_released);
    // A lock that is promised to somebody is held by nobody.
    held.release(Tombstone::None).await;
    assert_eq!(all(scene, "", 100).await.into_keys().collect::<Vec<_>>(), ["kept"]);
}

async fn a_lock_that_is_held_all_the_while_is_listed_while_others_come_and_go(scene: &AnyStore) {
    let stays: BTreeSet<_> = (0..60).map(|n| format!("stays {n}")).collect();
    for key in &stays {
        Caller::new(scene, key).grant(120_000).await;
    }
    let mut guests: Vec<Caller<'_>> = Vec::new();
    let found = walk(scene, "", 7, async |number| {
        // They come many at a time, so that the tables of a server grow, and leave again.
        if number % 3 == 2 {
            for guest in guests.drain(..) {
                guest.release(Tombstone::None).await;
            }
        } else if number < 12 {
            for n in 0..40 {
                let guest = Caller::new(scene, &format!("guest {number} {n}"));
                guest.grant(120_000).await;
                guests.push(guest);
            }
        }
    })
    .await;
    let listed: BTreeSet<_> = found.into_keys().filter(|key| key.starts_with("stays")).collect();
    assert_eq!(listed, stays);
}

async fn a_page_may_be_asked_for_again(scene: &AnyStore) {
    let keys: BTreeSet<_> = (0..30).map(|n| format!("k{n}")).collect();
    for key in &keys {
        Caller::new(scene, key).grant(60_000).await;
    }
    let names = |locks: Vec<Listed>| locks.into_iter().map(|lock| lock.key.as_str().to_owned());
    let Page { locks, next } = page(scene, "", None, 10).await;
    let first: BTreeSet<_> = names(locks).collect();
    // An answer may have been lost, or two may go on from here.
    for _ in 0..2 {
        let (mut found, mut cursor) = (first.clone(), next.clone());
        while let Some(from) = cursor {
            let Page { locks, next } = page(scene, "", Some(&from), 10).await;
            found.extend(names(locks));
            cursor = next;
        }
        assert_eq!(found, keys);
    }
}

async fn a_cursor_that_was_never_given_begins_anew(scene: &AnyStore) {
    Caller::new(scene, "k").grant(60_000).await;
    for cursor in ["x", "0", "0.0.0", "ffffffffffffffff.7.9", "0123456789abcdef", "k"] {
        let mut found = BTreeSet::new();
        let mut page = page(scene, "", Some(cursor), 10).await;
        loop {
            found.extend(page.locks.into_iter().map(|lock| lock.key.as_str().to_owned()));
            let Some(next) = page.next else { break };
            page = scene
                .store
                .call(List { reach: Reach::all(""), cursor: Some(next), limit: 10 }, soon())
                .await
                .unwrap();
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["k"], "{cursor}");
    }
}

async fn a_cursor_of_another_list_or_without_one_of_its_characters_begins_anew(scene: &AnyStore) {
    let keys: BTreeSet<_> = (0..60).map(|n| format!("k{n}")).collect();
    for key in &keys {
        Caller::new(scene, key).grant(120_000).await;
    }
    let next = async |reach: &Reach, cursor: &str| {
        let list = List { reach: reach.clone(), cursor: Some(cursor.to_owned()), limit: 10 };
        scene.store.call(list, soon()).await.unwrap()
    };
    let rest = async |reach: &Reach, cursor: &str| {
        let (mut found, mut cursor) = (Vec::new(), cursor.to_owned());
        loop {
            let Page { locks, next } = next(reach, &cursor).await;
            found.extend(locks.into_iter().map(|lock| lock.key.as_str().to_owned()));
            let Some(next) = next else { return found };
            cursor = next;
        }
    };
    let limited = |limit: &str| Reach::limited(vec!["k".to_owned()], &[limit.to_owned()], |_| true);
    let first = page(scene, "k", None, 10).await;
    let cursor = first.next.unwrap();
    let first: BTreeSet<_> = first.locks.iter().map(|lock| lock.key.as_str().to_owned()).collect();
    let names = |found: &[String]| found.iter().cloned().collect::<BTreeSet<_>>();
    for another in [Reach::all(""), limited("k")] {
        assert_eq!(names(&rest(&another, &cursor).await), keys, "{another:?}: {cursor}");
    }
    for at in [0, cursor.len() / 2, cursor.len() - 1] {
        let cut = format!("{}{}", &cursor[..at], &cursor[at + 1..]);
        assert_eq!(names(&rest(&Reach::all("k"), &cut).await), keys, "{cut} of {cursor}");
    }
    let narrow = next(&limited("k"), "").await.next.unwrap();
    assert_eq!(names(&rest(&limited("other"), &narrow).await), keys, "of another caller");
    // In its own list it goes on. The servers of a quorum list the same locks one after the other.
    let (all, found) = (rest(&Reach::all("k"), "").await, rest(&Reach::all("k"), &cursor).await);
    assert!(found.len() < all.len(), "{found:?}");
    assert_eq!(names(&found).union(&first).cloned().collect::<BTreeSet<_>>(), keys);
}
