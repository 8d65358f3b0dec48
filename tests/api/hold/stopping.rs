//! A gateway that stops tells everybody who holds a lock by it, and hands the locks over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::lock::LockKey;
use fencepost::service::{Denial, HoldEvent, Holding, Loss, NotAcquired, Several};
use futures_util::future::{join_all, pending};
use tokio::time::Instant;

use super::doubt::{MARK_TTL, Scene, TTL_MS, next, own_token};
use super::{Held, Pair, hold, hold_with, is_free, stand};
use kit::stores::AnyStore;
use kit::{Client, Gateway, eventually, fresh_token, sockets};

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_given_locks_once_the_gateway_stops() {
    let store = AnyStore::memory(MARK_TTL).await;
    let (scene, token) = (Scene::on(&store), own_token());
    scene.service.stop_waiting();
    let one = scene.service.hold(scene.wish(&token), pending()).await.unwrap();
    assert!(matches!(one, Holding::NotHeld(_, NotAcquired::ShuttingDown)));
    let keys = [scene.key.clone(), LockKey::parse(b"another").unwrap()];
    let denied: Vec<Denial> = vec![Box::pin(pending()), Box::pin(pending())];
    let all = scene.service.hold_several(scene.wish(&token), &keys, denied).await;
    assert!(matches!(all, Several::NotHeld(_, _, NotAcquired::ShuttingDown)));
    assert!(scene.is_free().await);
}

/// A client reads when it likes, and its lease goes on ending.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_handed_over_is_told_as_it_is_when_it_is_read() {
    let store = AnyStore::memory(MARK_TTL).await;
    for is_late in [false, true] {
        let (scene, token) = (Scene::on(&store), own_token());
        let mut hold = scene.hold(&token).await;
        assert!(hold.delivered().is_some());
        let stopped_at = Instant::now();
        scene.service.stop_waiting();
        let pause = Duration::from_millis(if is_late { TTL_MS + 500 } else { TTL_MS / 4 });
        tokio::time::sleep(pause).await;
        match next(&mut hold).await {
            Some(HoldEvent::Lost(Loss::ShuttingDown(lease))) => {
                let most_ms = TTL_MS.saturating_sub(stopped_at.elapsed().as_millis() as u64);
                assert!(!is_late && lease.left_ms <= most_ms + TTL_MS / 8, "{lease:?} of {most_ms} ms");
            }
            event => assert!(is_late && matches!(event, Some(HoldEvent::Lost(Loss::Expired))), "{event:?}"),
        }
    }
}

/// Fails the test when the lock `k` is free at any look, until it is told to stop.
fn watch(client: Client) -> (Arc<AtomicBool>, tokio::task::JoinHandle<u64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let looks = tokio::spawn(async move {
        let mut looks = 0;
        while !stopped.load(Ordering::SeqCst) {
            assert!(!is_free(&client).await, "the lock was free in between");
            looks += 1;
        }
        looks
    });
    (stop, looks)
}

async fn a_gateway_that_stops_hands_over(mut pair: Pair) {
    // Before and after the first renewal, by which the second one becomes the connection's own.
    let mut held = hold_with(&pair.here(), "ttl=20s", &fresh_token()).await;
    let again = Held::take_of(&pair.here(), "other", "ttl=20s").await;
    let others = join_all(
        (0..20)
            .map(async |number: usize| Held::take_of(&pair.here(), &format!("k{number}"), "ttl=20s").await),
    )
    .await;
    let (here, other) = (pair.here(), fresh_token());
    let waiting = {
        let (here, other) = (here.clone(), other.clone());
        tokio::spawn(async move { here.call("POST", "/hold?key=k&wait=15s").token(&other).send().await })
    };
    stand(&pair.here(), 1).await;
    let (stop, looks) = watch(pair.there());
    let asked = Instant::now();
    pair.here.signal("TERM");
    let lost = held.lost().await;
    assert!(asked.elapsed() < Duration::from_secs(3), "told after {:?}", asked.elapsed());
    assert_eq!(lost.reason(), "shutting-down");
    assert_eq!(lost.data["token"], held.granted.data["token"]);
    assert_eq!(lost.fencing_token(), held.granted.fencing_token());
    assert!((15_000..=20_000).contains(&lost.ttl_ms()), "{lost:?}");
    waiting.await.unwrap().expect_problem(503, "shutting-down");
    for mut other in others.into_iter().chain([again]) {
        assert_eq!(other.lost().await.reason(), "shutting-down");
    }
    drop(held.body);
    assert!(pair.here.exit_status().await.success());
    assert!(asked.elapsed() < Duration::from_secs(8), "it did not wait to be cut: {:?}", asked.elapsed());
    let token = lost.data["token"].as_str().unwrap();
    let renewed = pair.there().patch("/locks/k?ttl=20s").token(token).send().await.expect(200);
    assert_eq!(renewed.fencing_token(), lost.fencing_token());
    let next = hold_with(&pair.there(), "ttl=20s", token).await;
    assert_eq!(next.granted.fencing_token(), lost.fencing_token());
    stop.store(true, Ordering::SeqCst);
    println!("held at {} looks", looks.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_hands_over_on_redis() {
    a_gateway_that_stops_hands_over(Pair::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_hands_over_on_a_quorum() {
    a_gateway_that_stops_hands_over(Pair::quorum().await).await;
}

/// What is known of the lease is told, and nothing ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_while_its_store_is_silent_tells_all_the_same() {
    let mut pair = Pair::redis_with(&["--store-timeout", "1s"]).await;
    let mut held = hold(&pair.here(), "ttl=3s&max_hold=1h").await;
    assert_eq!(held.next().await.unwrap().name, "renewed");
    let long = Held::take_of(&pair.here(), "long", "ttl=20s").await;
    pair.redis_server().signal("STOP");
    // A renewal of the first one is under way, and not answered.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let asked = Instant::now();
    pair.here.signal("TERM");
    for (mut held, longest_ms) in [(held, 3_000), (long, 20_000)] {
        let lost = held.lost().await;
        assert!(["shutting-down", "expired"].contains(&lost.reason()), "{lost:?}");
        assert!(asked.elapsed() < Duration::from_secs(4), "told after {:?}", asked.elapsed());
        if longest_ms == 20_000 {
            assert_eq!(lost.reason(), "shutting-down");
            assert!(lost.ttl_ms() <= longest_ms - 1_200, "{lost:?}");
            pair.redis_server().signal("CONT");
            let token = held.token();
            eventually("it is renewed elsewhere", async || {
                pair.there().patch("/locks/long").token(&token).send().await.status == 200
            })
            .await;
        }
    }
    assert!(pair.here.exit_status().await.success());
    pair.there().get("/locks/long").send().await.expect(200);
}

/// Has a client leave that the gateway knows to have been told of its lock, and waits until the gateway has seen that it left.
pub(super) async fn leaves(held: Held, gateway: &Gateway) {
    let client = Client::new(gateway.address);
    eventually("the gateway knows that its client was told", async || {
        let metrics = client.get("/metrics").send().await;
        String::from_utf8_lossy(&metrics.body).contains("\nfencepost_holds 1\n")
    })
    .await;
    drop(held);
    let sees_it = |line: &str| line.contains("a connection that held a lock was closed");
    gateway.logs("the gateway has seen it", sees_it).await;
}

/// Within the `min_hold` of the grant, and while a lease runs that was told before the connection had the lock.
async fn a_gateway_that_stops_keeps_no_lock_for_clients_that_left(mut pair: Pair) {
    let began = Instant::now();
    leaves(Held::take_of(&pair.here(), "kept", "ttl=4m&min_hold=4s").await, &pair.here).await;
    pair.here.signal("TERM");
    assert!(pair.here.exit_status().await.success());
    eventually("the lock is free", async || pair.there().get("/locks/kept").send().await.status == 404).await;
    assert!(began.elapsed() >= Duration::from_millis(3_900), "its min_hold is {:?}", began.elapsed());
}

async fn a_gateway_that_stops_keeps_no_lock_for_a_claim_whose_client_left(mut pair: Pair) {
    let (began, token) = (Instant::now(), fresh_token());
    pair.here().put("/locks/k?ttl=4s").token(&token).send().await.expect(201);
    leaves(hold_with(&pair.here(), "ttl=4m", &token).await, &pair.here).await;
    pair.here.signal("TERM");
    assert!(pair.here.exit_status().await.success());
    eventually("the lock is free", async || is_free(&pair.there()).await).await;
    assert!(began.elapsed() >= Duration::from_millis(3_800), "the lease is {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_keeps_no_lock_for_clients_that_left_on_redis() {
    a_gateway_that_stops_keeps_no_lock_for_clients_that_left(Pair::redis().await).await;
    a_gateway_that_stops_keeps_no_lock_for_a_claim_whose_client_left(Pair::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_keeps_no_lock_for_clients_that_left_on_a_quorum() {
    a_gateway_that_stops_keeps_no_lock_for_clients_that_left(Pair::quorum().await).await;
    a_gateway_that_stops_keeps_no_lock_for_a_claim_whose_client_left(Pair::quorum().await).await;
}

/// The one that reads the file next finds what was left.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_keeps_no_lock_for_clients_that_left_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut first = Gateway::on_file(&file, &[]).await;
    let client = Client::new(first.address);
    leaves(Held::take_of(&client, "kept", "ttl=4m&min_hold=4s").await, &first).await;
    first.signal("TERM");
    assert!(first.exit_status().await.success());
    let second = Gateway::on_file(&file, &[]).await;
    let client = Client::new(second.address);
    eventually("the lock is free", async || client.get("/locks/kept").send().await.status == 404).await;
}

/// It is told that the lock is handed over, and is gone before it reads that.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_hands_nothing_over_to_a_client_that_left() {
    let mut pair = Pair::redis_with(&["--store-timeout", "6s"]).await;
    let held = hold(&pair.here(), "ttl=4m").await;
    pair.redis_server().signal("STOP");
    pair.here.signal("TERM");
    pair.here.logs("it stops", |line| line.contains("draining")).await;
    drop(held);
    // Its client's connection ends by a task of its own, and the gateway must have seen that before it is answered.
    let port = pair.here.address.port();
    eventually("the connection ends", async || {
        ["01", "08"].iter().all(|state| sockets(port, state).is_empty())
    })
    .await;
    pair.redis_server().signal("CONT");
    assert!(pair.here.exit_status().await.success());
    eventually("the lock is free", async || is_free(&pair.there()).await).await;
}
