//! What a quorum of independent servers does that no other store does: which servers count, and that nobody's clock matters.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fencepost::clock::{Clock, SystemClock};
use fencepost::lock::{
    Acquired, Attempt, Lease, LeaseToken, LockKey, Released, Renewed, RolledBack, Terms, Ttl,
};
use fencepost::store::quorum::QuorumStore;
use fencepost::store::redis::{RedisAddress, RedisSettings};
use fencepost::store::{
    KnownTo, LockRequest, Release, Renew, Renewer, RollBack, TicketAfter, Tombstone, Try,
};
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::gateway::run;
use kit::quorum::{Quorum, counts_soon, has_lock, shared, url_of};
use kit::{Client, Gateway, PATIENCE, RedisServer, eventually, fresh_token};

mod ids;
mod losses;
mod members;
mod refusals;
mod silent;
mod together;
mod waiting;

const AN_HOUR_MS: i64 = 3_600_000;

/// A clock that is wrong by so much, and may be set.
struct WrongClock {
    ahead_ms: AtomicI64,
}

impl WrongClock {
    fn ahead(ahead_ms: i64) -> Arc<Self> {
        Arc::new(Self { ahead_ms: ahead_ms.into() })
    }

    fn shown(&self, time: Duration) -> Duration {
        // A machine that has just booted can be an hour behind, too.
        let time_ms = i64::try_from(time.as_millis()).unwrap() + 24 * AN_HOUR_MS;
        Duration::from_millis(u64::try_from(time_ms + self.ahead_ms.load(Ordering::Relaxed)).unwrap())
    }
}

impl Clock for WrongClock {
    fn boot(&self) -> Duration {
        self.shown(SystemClock.boot())
    }

    fn wall(&self) -> Duration {
        self.shown(SystemClock.wall())
    }

    fn boot_id(&self) -> String {
        String::new()
    }
}

fn store(quorum: &Quorum, prefix: &str, clock: Arc<dyn Clock>) -> QuorumStore {
    let address = RedisAddress::parse(&quorum.url(), None).unwrap();
    QuorumStore::start(
        &address,
        &RedisSettings { prefix: prefix.to_owned(), ..RedisSettings::default() },
        clock,
    )
    .unwrap()
}

/// Takes the lock and gives it back, trying for as long as the store says that nothing happened.
async fn take_and_release(store: &QuorumStore) -> Lease {
    let key = LockKey::parse(b"k").unwrap();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let deadline = Instant::now() + Duration::from_secs(1);
        let token = LeaseToken::generate().hash();
        let (attempt, ttl) = (Attempt::generate(), Ttl::from_ms(30_000).unwrap());
        let request = LockRequest {
            key: key.clone(),
            token,
            attempt,
            ttl,
            note: Default::default(),
            terms: Terms::default(),
        };
        if let Ok(Acquired::Granted(lease)) = store.call(Try(request.clone()), deadline).await {
            let released = store
                .call(
                    Release { key: key.clone(), token, tombstone: Tombstone::None },
                    Instant::now() + PATIENCE,
                )
                .await
                .map(|release| release.answer);
            assert_eq!(released, Ok(Released::Released));
            return lease;
        }
        assert!(Instant::now() < give_up, "nothing is granted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_clock_is_wrong_by_an_hour_neither_breaks_the_order_nor_stops_others() {
    let (quorum, prefix) = (shared().await, fresh_token());
    let set = WrongClock::ahead(0);
    let stores = [
        store(quorum, &prefix, Arc::new(SystemClock)),
        store(quorum, &prefix, WrongClock::ahead(AN_HOUR_MS)),
        store(quorum, &prefix, WrongClock::ahead(-AN_HOUR_MS)),
        store(quorum, &prefix, set.clone()),
    ];
    let mut last = 0;
    // The last one's clock is set while it works, and before it can find that out.
    for ahead_ms in [0, AN_HOUR_MS, 0, -AN_HOUR_MS, 24 * AN_HOUR_MS, 0] {
        set.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        for _ in 0..10 {
            for store in &stores {
                let started = Instant::now();
                let number = take_and_release(store).await.fencing_token.get();
                assert!(number > last, "{number} after {last}");
                last = number;
                assert!(
                    started.elapsed() < Duration::from_secs(10),
                    "it was stopped for {:?}",
                    started.elapsed()
                );
            }
        }
        let now_us = u64::try_from(SystemClock.wall().as_micros()).unwrap();
        assert!(
            last < now_us + 60_000_000,
            "no clock of a gateway drives numbers far ahead: {last} at {now_us}"
        );
    }
}

/// The servers themselves see to it that no number is far ahead of their clocks, whoever proposes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_far_ahead_is_refused_by_each_server() {
    let (quorum, prefix) = (Quorum::start(3).await, fresh_token());
    let store = store(&quorum, &prefix, Arc::new(SystemClock));
    take_and_release(&store).await;
    let record = format!("{prefix}:{{quorum}}:record");
    let bucket = async || {
        let fields = quorum.nodes[0].command::<Vec<String>>(&["HKEYS", &record]).await;
        fields.into_iter().find(|field| field.starts_with('b') && field != "born")
    };
    // The other two are enough for a grant.
    eventually("it has heard of the number", async || bucket().await.is_some()).await;
    let bucket = bucket().await.unwrap();
    // A number ran an hour ahead on one of them: it drags nobody along.
    let ahead_us = u64::try_from(SystemClock.wall().as_micros()).unwrap() + 3_600_000_000;
    let _: i64 = quorum.nodes[0].command(&["HSET", &record, &bucket, &ahead_us.to_string()]).await;
    for _ in 0..5 {
        let number = take_and_release(&store).await.fencing_token.get();
        assert!(number < ahead_us - 3_000_000_000, "{number} was dragged towards {ahead_us}");
    }
}

/// On each server one script runs for each operation, all at once, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn each_operation_is_one_script_on_each_server() {
    let quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&[]).await).await;
    let client = Client::new(gateway.address);
    let scripts = async || {
        let mut calls = Vec::new();
        for node in &quorum.nodes {
            calls.push(node.calls("evalsha").await);
        }
        calls
    };
    let warm = client.put("/locks/k").send().await.expect(201).token();
    client.delete("/locks/k").token(&warm).send().await.expect(204);
    let before = scripts().await;
    const ROUNDS: u64 = 200;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        let token = client.put("/locks/k?ttl=30s").send().await.expect(201).token();
        client.patch("/locks/k?ttl=40s").token(&token).send().await.expect(200);
        client.delete("/locks/k").token(&token).send().await.expect(204);
    }
    // Each second the membership looks at each server; and on a busy machine a vote has to be repeated now and then.
    let looks = 2 * (started.elapsed().as_secs() + 2) + ROUNDS / 2;
    for (before, after) in before.into_iter().zip(scripts().await) {
        let spent = after - before;
        assert!(
            (3 * ROUNDS - 3..=3 * ROUNDS + looks).contains(&spent),
            "{spent} scripts for {ROUNDS} rounds"
        );
    }
}

/// A server that missed the grant gets the lock as the others have it: held by the connection's attempt, with its terms.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lacks_a_connections_lock_is_given_it_with_its_terms() {
    let (quorum, prefix) = (Quorum::start(3).await, fresh_token());
    let store = store(&quorum, &prefix, Arc::new(SystemClock));
    take_and_release(&store).await;
    let key = LockKey::parse(b"held").unwrap();
    let (token, attempt) = (LeaseToken::generate().hash(), Attempt::for_connection());
    let terms = Terms {
        max_hold: Some(Duration::from_secs(100)),
        min_hold: Some(Duration::from_secs(50)),
        ..Terms::default()
    };
    let ttl = Ttl::from_ms(10_000).unwrap();
    let request = LockRequest { key: key.clone(), token, attempt, ttl, note: Default::default(), terms };
    let soon = || Instant::now() + PATIENCE;
    assert!(matches!(store.call(Try(request.clone()), soon()).await, Ok(Acquired::Granted(_))));
    let lock_on = async |node: usize| {
        let names: Vec<String> = quorum.nodes[node].command(&["KEYS", "*:lock:held"]).await;
        let name = names.first()?;
        Some((name.clone(), quorum.nodes[node].command::<String>(&["GET", name]).await))
    };
    for node in [0, 1, 2] {
        eventually("all have it", async || lock_on(node).await.is_some()).await;
    }
    let (name, granted) = lock_on(2).await.unwrap();
    let _: i64 = quorum.nodes[2].command(&["DEL", &name]).await;
    let by = Renewer::Connection(attempt);
    assert!(matches!(
        store.call(Renew { key: key.clone(), token, ttl, by }, soon()).await,
        Ok(Renewed::Renewed(_))
    ));
    eventually("it is given the lock", async || lock_on(2).await.is_some()).await;
    let (_, repaired) = lock_on(2).await.unwrap();
    let fields = |lock: &str| lock.split([' ', ':']).map(str::to_owned).collect::<Vec<_>>();
    let (granted, repaired) = (fields(&granted), fields(&repaired));
    assert_eq!(granted[..3], repaired[..3], "holder, attempt and number are the same");
    for term in [3, 4] {
        let [before_ms, after_ms] = [&granted, &repaired].map(|lock| lock[term].parse::<i64>().unwrap());
        assert!((before_ms - after_ms).abs() < 1_000, "{granted:?} became {repaired:?}");
    }
    assert_eq!(
        store
            .call(
                RollBack {
                    key: key.clone(),
                    token,
                    attempt,
                    ticket: TicketAfter::Removed,
                    known: KnownTo::Nobody
                },
                soon()
            )
            .await,
        Ok(RolledBack::Ended { kept_ms: 0 })
    );
    eventually("no server has it", async || {
        lock_on(0).await.is_none() && lock_on(1).await.is_none() && lock_on(2).await.is_none()
    })
    .await;
}

/// Waits until the gateway can serve.
async fn ready(gateway: Gateway) -> Gateway {
    let client = Client::new(gateway.address);
    eventually("the gateway is ready", async || client.get("/readyz").send().await.status == 200).await;
    gateway
}

/// Why the gateway is not ready; nothing where it is.
async fn why_not_ready(gateway: &Gateway) -> Option<String> {
    let answer = Client::new(gateway.address).get("/readyz").send().await;
    (answer.status == 503).then(|| answer.json()["detail"].as_str().unwrap().to_owned())
}
