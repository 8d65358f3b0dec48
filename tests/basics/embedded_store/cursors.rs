//! Cursors of lists: they rest on nothing that others could push out, and say nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost::clock::SystemClock;
use fencepost::lock::{LockKey, Reach};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{List, LockStore, Try};
use tokio::time::Instant;

use super::request;
use kit::PATIENCE;
use kit::asking::LockStoreExt;
use kit::stores::AnyStore;

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

async fn holding(keys: &[&str]) -> EmbeddedStore {
    let store = EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
    hold(&store, keys).await;
    store
}

async fn hold(store: &dyn LockStore, keys: &[&str]) {
    for key in keys {
        store.call(Try(request(key)), soon()).await.unwrap();
    }
}

/// One page: the names on it, and where to go on.
async fn page(
    store: &dyn LockStore,
    prefix: &str,
    cursor: Option<&str>,
    limit: usize,
) -> (Vec<String>, Option<String>) {
    let page = store
        .call(List { reach: Reach::all(prefix), cursor: cursor.map(str::to_owned), limit }, soon())
        .await
        .unwrap();
    (page.locks.iter().map(|lock| lock.key.as_str().to_owned()).collect(), page.next)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_number_of_other_lists_pushes_a_cursor_out() {
    let mark_ttl = Duration::from_secs(120);
    for scene in [AnyStore::file(mark_ttl).await, AnyStore::memory(mark_ttl).await] {
        hold(&*scene.store, &["a", "b", "c"]).await;
        let (first, cursor) = page(&*scene.store, "", None, 1).await;
        assert_eq!(first, ["a"]);
        for _ in 0..2_000 {
            assert!(page(&*scene.store, "", None, 1).await.1.is_some());
        }
        let (rest, end) = page(&*scene.store, "", cursor.as_deref(), 10).await;
        assert_eq!((rest, end), (vec!["b".to_owned(), "c".to_owned()], None));
    }
}

/// Who is shown a cursor may not be allowed to know of the lock at which the page ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_does_not_tell_where_the_page_ended() {
    let long = "ä".repeat(LockKey::MAX_BYTES / 2);
    let store = holding(&["hidden", &long, "~"]).await;
    let mut cursors = BTreeSet::new();
    for _ in 0..20 {
        let (names, first) = page(&store, "", None, 1).await;
        assert_eq!(names, ["hidden"]);
        // The longest name of all is where this one is left.
        let (names, second) = page(&store, "", None, 2).await;
        assert_eq!(names.last(), Some(&"~".to_owned()));
        let (rest, end) = page(&store, "", second.as_deref(), 2).await;
        assert_eq!((rest, end), (vec![long.clone()], None));
        cursors.extend(first.into_iter().chain(second));
    }
    // No two are alike but in length, so none can be told from another.
    assert_eq!(cursors.len(), 40);
    let lengths: BTreeSet<_> = cursors.iter().map(String::len).collect();
    assert_eq!(lengths.len(), 1, "{lengths:?}");
    assert!(lengths.first().is_some_and(|length| *length <= 1_024), "{lengths:?}");
    let in_alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    assert!(cursors.iter().all(|cursor| cursor.bytes().all(in_alphabet)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_behind_every_name_there_can_be() {
    let longest = "x".repeat(LockKey::MAX_BYTES);
    let mut keys = ["a", "a b", "a\u{301}", "百家号/{b}", "\u{10ffff}", "!", &longest];
    let store = holding(&keys).await;
    keys.sort_unstable();
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let (names, next) = page(&store, "", cursor.as_deref(), 1).await;
        found.extend(names);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, keys);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_was_changed_or_is_not_of_this_list_begins_anew() {
    let store = holding(&["a", "b", "c"]).await;
    let another = holding(&["a", "b", "c"]).await;
    let cursor = page(&store, "", None, 2).await.1.unwrap();
    let all = ["a", "b", "c"];
    assert_eq!(page(&store, "", Some(&cursor), 10).await.0, ["c"]);
    assert_eq!(page(&another, "", Some(&cursor), 10).await.0, all, "of another process");
    assert_eq!(page(&store, "c", Some(&cursor), 10).await.0, ["c"]);
    hold(&store, &["a/1"]).await;
    assert_eq!(page(&store, "a", Some(&cursor), 10).await.0, ["a", "a/1"], "of another prefix");
    for at in [0, 1, cursor.len() / 2, cursor.len() - 1] {
        let mut changed = cursor.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(page(&store, "", Some(&changed), 10).await.0.len(), 4, "changed at {at}");
        assert_eq!(page(&store, "", Some(&cursor[..at]), 10).await.0.len(), 4, "cut at {at}");
    }
    for foreign in ["x", "0123456789abcdef", &"A".repeat(4_096), &format!("{cursor}A"), "..."] {
        assert_eq!(page(&store, "", Some(foreign), 10).await.0.len(), 4, "{foreign}");
    }
}
