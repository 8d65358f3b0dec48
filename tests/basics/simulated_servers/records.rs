//! Records on a cluster of which one server is silent or far away.

use std::future::Future;

use futures_util::future::join_all;

use super::*;
use fencepost::once::{Begun, Keep, Storing, WorkResult};
use fencepost::store::redis::OnceMemory;
use fencepost::store::{Begin, StoreResult};
use kit::cluster::slot_of_lock;

/// More than are under way on one link.
const CROWD: usize = 1_500;
/// As long as an answer of a server that is near may take.
const SOON: Duration = Duration::from_millis(50);

fn store_of_records(fleet: &Fleet) -> RedisStore {
    let settings = RedisSettings { once_memory: OnceMemory::Bytes(u64::MAX - 1), ..RedisSettings::default() };
    RedisStore::start(&fleet.address().unwrap(), &settings).unwrap()
}

/// Keys whose records are on this server.
fn keys_on(server: u16) -> impl Iterator<Item = LockKey> {
    let is_there = move |key: &String| slot_of_lock(key) / (16_384 / 3 + 1) == server;
    (0..).map(|n| format!("k{n}")).filter(is_there).map(|key| LockKey::parse(key.as_bytes()).unwrap())
}

fn begin(key: &LockKey) -> Begin {
    Begin {
        key: key.clone(),
        token: LeaseToken::generate().record_hash(),
        attempt: Attempt::generate(),
        ttl: Ttl::from_ms(TTL_MS).unwrap(),
        keep: Keep::DEFAULT,
        note: Note::default(),
        fingerprint: None,
        may_take_over: true,
        only_confirms: false,
    }
}

async fn ask(store: &RedisStore, begin: Begin) -> Result<Begun, StoreError> {
    store.call(begin, Instant::now() + DEADLINE).await
}

/// Stores a result of so many bytes.
async fn done(store: &RedisStore, key: &LockKey, bytes: usize) {
    let begin = begin(key);
    let token = begin.token;
    assert!(matches!(ask(store, begin).await, Ok(Begun::Granted(_))));
    let result = WorkResult { status: None, content_type: None, body: vec![b'x'; bytes].into() };
    let store_result = StoreResult { key: key.clone(), token, fence: None, keep: None, result };
    let stored = store.call(store_result, Instant::now() + DEADLINE).await;
    assert!(matches!(stored, Ok(Storing::Stored { .. })), "{stored:?}");
}

/// What an answer comes to, and how long it takes.
async fn timed<T>(answer: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    (answer.await, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn begins_that_wait_for_a_silent_server_hold_up_none_of_another() {
    let fleet = Fleet::cluster(&Clock::running(NOW_US));
    let store = Arc::new(store_of_records(&fleet));
    let (mut silent, mut healthy) = (keys_on(0), keys_on(1));
    for key in [silent.next().unwrap(), healthy.next().unwrap()] {
        assert!(matches!(ask(&store, begin(&key)).await, Ok(Begun::Granted(_))));
    }
    fleet.network.set("server1", 6379, |way| way.is_silent = true);
    for key in silent.take(CROWD) {
        let store = store.clone();
        tokio::spawn(async move { ask(&store, begin(&key)).await });
    }
    sleep(Duration::from_millis(100)).await;
    let (begun, took) = timed(ask(&store, begin(&healthy.next().unwrap()))).await;
    assert!(matches!(begun, Ok(Begun::Granted(_))) && took < SOON, "{begun:?} after {took:?}");
}

/// Each of them is told by two answers of that server.
#[tokio::test(start_paused = true)]
async fn long_results_of_a_server_that_is_far_away_hold_up_none_of_another() {
    const FAR: Duration = Duration::from_millis(200);
    let fleet = Fleet::cluster(&Clock::running(NOW_US));
    let store = Arc::new(store_of_records(&fleet));
    let (far, near) = (keys_on(0).next().unwrap(), keys_on(1).next().unwrap());
    let name = format!(":once:{}", far.as_str());
    for key in [&far, &near] {
        done(&store, key, 5_000).await;
    }
    fleet.network.set("server1", 6379, |way| way.delay = FAR);
    let is_read = Arc::new(AtomicBool::new(false));
    let seen = is_read.clone();
    fleet.servers[0].set_listener(move |words, _| {
        if words[0] == b"GET" && words[1].ends_with(name.as_bytes()) {
            seen.store(true, Ordering::SeqCst);
        }
    });
    let readers: Vec<_> = (0..16).map(|_| ask(&store, begin(&far))).collect();
    let one_of_another = async {
        while !is_read.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(1)).await;
        }
        timed(ask(&store, begin(&near))).await
    };
    let (told, (begun, took)) = tokio::join!(join_all(readers), one_of_another);
    assert!(matches!(&begun, Ok(Begun::Done(_))) && took < SOON, "{begun:?} after {took:?}");
    let told = told.iter().filter(|told| matches!(told, Ok(Begun::Done(_)))).count();
    assert!(told >= 4, "{told} of 16 were told");
}
