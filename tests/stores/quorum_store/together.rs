//! What is ready at the same moment, on its way to the servers of a quorum.

use std::sync::Arc;

use fencepost::clock::SystemClock;
use fencepost::lock::{Acquired, Attempt, LeaseToken, LockKey, Released, Ttl};
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
