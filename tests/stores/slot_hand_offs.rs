//! How slots of locks in Redis go from those who leave to those who wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::clock::SystemClock;
use fencepost::lock::{Attempt, LeaseToken, LockKey, Slots, Terms, Ttl};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{LockRequest, LockStore, Release, Tombstone};
use futures_util::future::join_all;

use crate::line_suite::{beat, in_line, soon};
use crate::redis_slots::take;
use crate::store_suite::granted;
use kit::asking::{Answer, Ask, Join, LockStoreExt, ask};
use kit::{Client, Gateway, PATIENCE, RedisServer};

/// S7. The next one is told of a slot by the release itself, and need not look each second.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_freed_is_offered_to_the_next_at_once() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let first = take(&client, "slots=2&ttl=1m").await;
    take(&client, "slots=2&ttl=1m").await;
    let waiting = client.put("/locks/k?slots=2&wait=30s").within(Duration::from_secs(40)).send();
    let waiting = tokio::spawn(waiting);
    kit::eventually("it waits", async || client.get("/locks/k").send().await.json()["waiters"] == 1).await;
    let _: () = redis.command(&["CONFIG", "RESETSTAT"]).await;
    client.delete("/locks/k").token(&first).send().await.expect(204);
    waiting.await.unwrap().expect(201);
    let calls = redis.all_calls().await;
    assert_eq!(calls.get("spublish"), Some(&1), "{calls:?}");
    let after = client.get("/locks/k").send().await.json();
    assert_eq!((&after["waiters"], &after["held"]), (&0.into(), &2.into()), "{after}");
    let left = redis.keys().await;
    assert!(!left.iter().any(|key| key.contains("seats:") || key.contains("line:")), "{left:?}");
}

/// S1, S3. One that waits alone and is offered a slot takes it only where it is free by then, and none has ended.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_alone_takes_the_slot_that_it_is_offered_if_there_is_room_by_then() {
    let redis = RedisServer::start().await;
    let store: Arc<dyn LockStore> = Arc::new(on(&redis));
    let asks = async |lock: &LockRequest, how| ask(&*store, lock.clone(), how, soon()).await.unwrap();
    let hash = |lock: &LockRequest| lock.token.to_string();
    for case in ["room", "fewer", "ended", "marked", "lost"] {
        let wants = || wants_slots(case, Slots::new(2).unwrap());
        let named = |kind: &str| format!("fencepost:{{0}}:{kind}:{case}");
        let (leaves, stays, waits) = (wants(), wants(), wants());
        for holder in [&leaves, &stays] {
            granted(asks(holder, Ask::Try).await);
        }
        beat(&store).await;
        in_line(asks(&waits, Ask::Enqueue(Join { takes_over: true, ..Join::default() })).await);
        let release = Release { key: leaves.key.clone(), token: leaves.token, tombstone: Tombstone::Final };
        store.call(release, soon()).await.unwrap();
        let by_hand = async |command: &[&str]| redis.command::<redis::Value>(command).await;
        match case {
            "fewer" => drop(by_hand(&["ZADD", &named("wide"), "1", &hash(&stays)]).await),
            "ended" => drop(by_hand(&["ZADD", &named("ends"), "1", &hash(&stays)]).await),
            // The second slot is held, and both are marked.
            "marked" => drop(by_hand(&["SET", &named("lock"), "?*##", "KEEPTTL"]).await),
            "lost" => drop(by_hand(&["DEL", &named("wide")]).await),
            _ => {}
        }
        let looks = redis.calls("exists").await;
        let answer = asks(&waits, Ask::Poll).await;
        if case == "room" {
            assert_eq!(redis.calls("exists").await, looks, "it looks at the whole line");
        }
        if case == "fewer" {
            in_line(answer);
            continue;
        }
        assert_eq!(granted(answer).slot.map(|slot| slot.number), Some(1), "{case}");
        let held: u64 = redis.command(&["ZCARD", &named("ends")]).await;
        assert_eq!(held, if matches!(case, "room" | "marked") { 3 } else { 2 }, "{case}");
    }
}

/// A gateway's store on a server.
fn on(redis: &RedisServer) -> RedisStore {
    let address = RedisAddress::parse(redis.url(), None).unwrap();
    let settings = RedisSettings { reply_timeout: PATIENCE, ..RedisSettings::default() };
    RedisStore::start(&address, &settings).unwrap()
}

/// A request of a new token.
fn wants_slots(key: &str, slots: Slots) -> LockRequest {
    let (key, token, attempt) =
        (LockKey::parse(key.as_bytes()).unwrap(), LeaseToken::generate().hash(), Attempt::generate());
    let (ttl, terms) = (Ttl::from_ms(60_000).unwrap(), Terms { slots, ..Terms::default() });
    LockRequest { key, token, attempt, ttl, note: Default::default(), terms }
}

/// S7. When a writer leaves, all readers go in: through two gateways, by more offers than there are at a time.
async fn readers_go_in(readers: usize, within: Duration) {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let writer = take(&clients[0], "ttl=1m").await;
    let wait = |at: usize| {
        tokio::spawn(
            clients[at % 2].put("/locks/k?slots=any&ttl=1m&wait=30s").within(Duration::from_secs(40)).send(),
        )
    };
    let waiting: Vec<_> = (0..readers).map(wait).collect();
    kit::eventually("all of them wait", async || {
        clients[0].get("/locks/k").send().await.json()["waiters"] == readers
    })
    .await;
    let released = Instant::now();
    clients[0].delete("/locks/k").token(&writer).send().await.expect(204);
    let granted = join_all(waiting).await;
    let took = released.elapsed();
    let mut slots: Vec<_> =
        granted.into_iter().map(|told| told.unwrap().expect(201).json()["slot"].as_u64().unwrap()).collect();
    slots.sort_unstable();
    assert_eq!(slots, (1..=readers as u64).collect::<Vec<_>>());
    assert!(took < within, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_readers_go_in_when_the_writer_leaves() {
    readers_go_in(100, Duration::from_secs(2)).await;
}

/// On a machine that does nothing else they are in within a second. Beside other tests offers lapse.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_readers_go_in_when_the_writer_leaves() {
    readers_go_in(1_000, Duration::from_secs(20)).await;
}

/// S7. At most thirty are offered a slot at once. For the next one there is room, too: it is in when it asks, and passes nobody.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_for_whom_there_is_no_offer_yet_is_in_when_it_asks() {
    let redis = RedisServer::start().await;
    let stores: [Arc<dyn LockStore>; 2] = [
        Arc::new(on(&redis)),
        Arc::new(EmbeddedStore::in_memory(EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap()),
    ];
    for store in stores {
        for waits in [true, false] {
            for round in 0.. {
                if is_in_when_it_asks(&store, waits, round).await {
                    break;
                }
                assert!(round < 50, "the machine is too slow: no round was over while the offers lasted");
            }
        }
    }
}

/// Offers last 800 ms, and all step aside once they have lapsed. Returns false if the round took about as long, and tells nothing.
async fn is_in_when_it_asks(store: &Arc<dyn LockStore>, waits: bool, round: u32) -> bool {
    let wants = |slots| wants_slots(&format!("{waits} {round}"), slots);
    let asks = async |lock: &LockRequest, how| ask(&**store, lock.clone(), how, soon()).await.unwrap();
    beat(store).await;
    let writer = wants(Slots::ONE);
    granted(asks(&writer, Ask::Try).await);
    let readers: Vec<_> = (0..32).map(|_| wants(Slots::MOST)).collect();
    for reader in &readers {
        in_line(asks(reader, Ask::Enqueue(Join { takes_over: true, ..Join::default() })).await);
    }
    let began = Instant::now();
    beat(store).await;
    let release = Release { key: writer.key.clone(), token: writer.token, tombstone: Tombstone::Final };
    store.call(release, soon()).await.unwrap();
    let by_another = |reader: &LockRequest| LockRequest { attempt: Attempt::generate(), ..reader.clone() };
    let behind = asks(&by_another(&readers[31]), Ask::Try).await;
    if began.elapsed() > Duration::from_millis(700) {
        return false;
    }
    assert!(matches!(behind, Answer::Refused(_)), "{behind:?}");
    granted(match waits {
        true => asks(&readers[30], Ask::Poll).await,
        false => asks(&by_another(&readers[30]), Ask::Try).await,
    });
    true
}
