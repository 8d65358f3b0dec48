//! What is ready at the same moment, on its way to the servers of a quorum.

use std::sync::Arc;

use fencepost::clock::SystemClock;
use fencepost::lock::{Acquired, Attempt, LeaseToken, LockKey, Released, Terms, Ttl};
use fencepost::store::{LockRequest, Release, Tombstone, Try};
use futures_util::future::join_all;
use kit::asking::LockStoreExt;
use kit::{PATIENCE, Quorum, fresh_token};
use tokio::time::Instant;

use super::{store, take_and_release};

const LOCKS: u64 = 320;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ready_shares_a_call_on_each_server() {
    let (quorum, prefix) = (Quorum::start(3).await, fresh_token());
    let store = store(&quorum, &prefix, Arc::new(SystemClock));
    take_and_release(&store).await;
    let calls = async || join_all(quorum.nodes.iter().map(|node| node.calls("evalsha"))).await;
    let keys: Vec<_> =
        (0..LOCKS).map(|at| LockKey::parse(format!("{at}-{prefix}").as_bytes()).unwrap()).collect();
    let soon = || Instant::now() + PATIENCE;
    let before = calls().await;
    let taken = join_all(keys.iter().map(async |key| {
        let (token, attempt) = (LeaseToken::generate().hash(), Attempt::generate());
        let ttl = Ttl::from_ms(30_000).unwrap();
        let request = LockRequest {
            key: key.clone(),
            token,
            attempt,
            ttl,
            note: Default::default(),
            terms: Default::default(),
        };
        let answer = store.call(Try(request), soon()).await;
        assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
        token
    }))
    .await;
    join_all(keys.iter().zip(taken).map(async |(key, token)| {
        let release = Release { key: key.clone(), token, tombstone: Tombstone::None };
        assert_eq!(store.call(release, soon()).await.unwrap().answer, Released::Released);
    }))
    .await;
    for (before, after) in before.into_iter().zip(calls().await) {
        let spent = after - before;
        assert!(spent < LOCKS, "{spent} calls for {LOCKS} acquires and as many releases");
    }
}

/// Locks that a small script leaves to the general one go there at once for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_with_terms_is_not_asked_for_twice_on_and_on() {
    const ROUNDS: u64 = 40;
    let (quorum, prefix) = (Quorum::start(3).await, fresh_token());
    let store = store(&quorum, &prefix, Arc::new(SystemClock));
    take_and_release(&store).await;
    let calls = async || join_all(quorum.nodes.iter().map(|node| node.calls("evalsha"))).await;
    let (key, before, began) = (LockKey::parse(b"bounded").unwrap(), calls().await, Instant::now());
    for _ in 0..ROUNDS {
        let (token, attempt) = (LeaseToken::generate().hash(), Attempt::generate());
        let terms = Terms { max_hold: Some(PATIENCE), ..Terms::default() };
        let ttl = Ttl::from_ms(10_000).unwrap();
        let request = LockRequest { key: key.clone(), token, attempt, ttl, note: Default::default(), terms };
        let taken = store.call(Try(request), Instant::now() + PATIENCE).await;
        assert!(matches!(taken, Ok(Acquired::Granted(_))), "{taken:?}");
        let release = Release { key: key.clone(), token, tombstone: Tombstone::None };
        store.call(release, Instant::now() + PATIENCE).await.unwrap();
    }
    // Each second the small script is tried once more, and the membership looks at each server.
    let more = 4 * (began.elapsed().as_secs() + 2) + ROUNDS / 2;
    for (before, after) in before.into_iter().zip(calls().await) {
        let spent = after - before;
        assert!(spent < 2 * ROUNDS + more, "{spent} calls for {ROUNDS} rounds");
    }
}
