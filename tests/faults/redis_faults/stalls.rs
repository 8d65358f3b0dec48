//! A Redis that stands still: whoever asks is answered in time and truly, and what nobody was told of is gone within a
//! second of the server's going on.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{LeaseToken, LockKey, Terms, Ttl};
use fencepost::service::{AcquireRequest, LockService, Tenant};
use fencepost::store::StoreError;
use tokio::time::{Instant, sleep, sleep_until};

use super::client_scenarios::{CLEAN_WITHIN, Done, Scene, WISHES, Wish, check_all};
use kit::stores::redis_store;
use kit::{RedisServer, eventually, fresh_token};

fn count(done: &[Done], is_it: impl Fn(&Done) -> bool) -> usize {
    done.iter().filter(|done| is_it(done)).count()
}
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_of_two_seconds_is_answered_truly_and_leaves_no_orphan() {
    let scene = Scene::new(2, &[]).await;
    let length = Duration::from_secs(2) + Duration::from_millis(500).mul_f64(rand::random());
    let errands = scene.errands(&WISHES, 400, length, true).await;
    let (done, locks) = scene.stall(errands, sleep(length)).await;
    check_all(&scene, &done, &locks).await;
    assert!(scene.taken_back() > 0, "no late command took anything");
    assert!(count(&done, |done| done.answer.is_none()) > 0, "nobody has left");
    assert!(
        count(&done, |done| done.failure().is_some() && done.may_have_happened()) > 0,
        "nobody was in doubt"
    );
    assert!(
        count(&done, |done| done.failure().is_some() && !done.may_have_happened()) > 0,
        "nobody was refused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_longer_than_a_lease_ends_that_lease_and_leaves_no_orphan() {
    let scene = Scene::new(2, &[]).await;
    let length = Duration::from_secs(5) + Duration::from_secs(1).mul_f64(rand::random());
    let errands = scene.errands(&WISHES, 400, length, true).await;
    let client = scene.client(0);
    let holder = fresh_token();
    let short = client.put("/locks/short?ttl=3s").token(&holder).send().await.expect(201);
    let revived = client.put("/locks/revived?ttl=3s").token(&holder).send().await.expect(201).token();
    let renewal = client.patch("/locks/revived?ttl=1h").token(&revived);
    let (done, locks) = scene
        .stall(errands, async {
            // It waits at the server when the lease ends, and must not revive it.
            renewal.send().await.expect(503);
            sleep(length).await;
        })
        .await;
    check_all(&scene, &done, &locks).await;
    client.patch("/locks/short?ttl=1h").token(&holder).send().await.expect_problem(404, "not-held");
    client.get("/locks/revived").send().await.expect_problem(404, "not-held");
    let next = scene.client(1).put("/locks/short?ttl=1h").send().await.expect(201);
    assert!(next.fencing_token() > short.fencing_token());
    client.patch("/locks/short?ttl=1h").token(&holder).send().await.expect_problem(409, "held-by-another");
}

/// The server goes on when all gateways have long given it up, and are about to pause before they look again.
#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_have_given_up_come_back_within_a_second() {
    const GATEWAYS: usize = 6;
    let scene = Scene::new(GATEWAYS, &["--store-timeout", "800ms"]).await;
    let errands = scene.errands(&[Wish::TakeFree], 200, Duration::from_millis(200), true).await;
    let (done, locks) = scene
        .stall(errands, async {
            // Each probe that ends leaves a connection behind.
            let probes = || scene.redis.abandoned_connections();
            eventually("the pauses are at their longest", async || probes() > 9 * GATEWAYS).await;
            let before = probes();
            eventually("a probe has just ended", async || probes() > before).await;
        })
        .await;
    check_all(&scene, &done, &locks).await;
    assert!(scene.taken_back() > 0, "no late command took anything");
    for number in 0..GATEWAYS {
        scene.client(number).put(&format!("/locks/after-{number}")).send().await.expect(201);
    }
}

/// Commands are cut off from their answers at any point, and late ones run beside those that were sent for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_stuttering_server_is_answered_for_truly_and_leaves_no_orphan() {
    const STOPS: u32 = 5;
    let scene = Scene::new(2, &[]).await;
    // All stay: of those who leave while the server runs, no gateway can always say whether they were told.
    let errands = scene.errands(&WISHES, 600, STOPS * Duration::from_millis(1300), false).await;
    let (done, locks) = scene
        .stall(errands, async {
            for _ in 1..STOPS {
                sleep(Duration::from_millis(rand::random_range(900..1100))).await;
                scene.redis.signal("CONT");
                sleep(Duration::from_millis(rand::random_range(0..300))).await;
                scene.redis.stand_still().await;
            }
            // The last is longer than a request may take, so that some are in trouble however lucky the others were.
            sleep(Duration::from_millis(rand::random_range(2300..2600))).await;
        })
        .await;
    check_all(&scene, &done, &locks).await;
    assert!(count(&done, |done| done.failure().is_some()) > 0, "nobody was in trouble");
    assert!(count(&done, |done| done.failure().is_none()) > 0, "nobody had luck");
}

/// The command waits at the server for longer than its lease would be, and for longer than marks live.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_taken_back_however_long_the_server_stood_still() {
    let redis = RedisServer::start().await;
    let store = Arc::new(redis_store(&redis, Duration::from_secs(120)));
    let store_timeout = Duration::from_secs(1);
    let service = LockService::new(store, store_timeout, Duration::from_millis(300));
    let ttl = Ttl::from_ms(2_000).unwrap();
    let wish = |key: &str| {
        let token = Some(LeaseToken::parse(fresh_token().as_bytes()).unwrap());
        AcquireRequest {
            key: LockKey::parse(key.as_bytes()).unwrap(),
            token,
            ttl,
            note: Default::default(),
            wait: Duration::ZERO,
            terms: Terms::default(),
            tenant: Tenant::default(),
        }
    };
    let marks = async || redis.keys().await.iter().filter(|key| key.contains(":freed:")).count();
    // From here on the server knows the script, and needs nothing but the command.
    eventually("it is connected", async || service.acquire(wish("warm")).await.is_ok()).await;
    eventually("that was nothing", async || redis.locks().await.is_empty() && marks().await > 0).await;
    let before = marks().await;
    redis.stand_still().await;
    let answer = service.acquire(wish("k")).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    sleep(2 * ttl.as_duration()).await;
    let resumed = Instant::now();
    redis.signal("CONT");
    sleep_until(resumed + CLEAN_WITHIN).await;
    let locks = redis.locks().await;
    assert!(locks.is_empty(), "nobody was told of it: {locks:?}");
    assert!(marks().await > before, "its command is voided, however late it comes");
}
