//! Records that replicas must have acknowledged before anybody is told of them (`--replicas-ack`).

use super::*;

/// A primary, its replica, and a store that waits for it.
async fn with_a_replica() -> (RedisServer, RedisServer, AnyStore) {
    // Without the delay, a replica need not wait for others that might come.
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
    let replica = RedisServer::start().await;
    replica.follow(primary.port()).await;
    let scene = scene_on(&primary, &RedisSettings { replicas_ack: 1, ..settings() });
    (primary, replica, scene)
}

#[tokio::test(flavor = "multi_thread")]
async fn begins_and_results_are_on_enough_replicas_before_they_are_told() {
    let (_primary, replica, scene) = with_a_replica().await;
    let (worker, other) = (Person::new(&scene, "k"), Person::new(&scene, "other"));
    let place = worker.grant().await;
    assert!(value(&replica, "k").await.starts_with('w'));
    stored(worker.store("done").await);
    assert!(value(&replica, "k").await.ends_with("\ndone"));
    other.grant().await;

    replica.stand_still().await;
    let briefly = || Instant::now() + Duration::from_secs(1);
    let (attempt, key) = (Attempt::generate(), LockKey::parse(b"new").unwrap());
    let store = &scene.store;
    for (attempt, expected) in [(attempt, true), (attempt, true), (Attempt::generate(), false)] {
        match store.call(begin_of(&key, other.token, attempt), briefly()).await.unwrap() {
            Begun::NotReplicated { is_new, reason } => {
                assert_eq!(is_new, expected);
                assert!(reason.contains("0 replicas acknowledged the record in time"), "{reason}");
            }
            answer => panic!("{answer:?}"),
        }
    }
    let post = StoreResult {
        key: other.key.clone(),
        token: other.token,
        fence: None,
        keep: None,
        result: text("x"),
    };
    for _ in 0..2 {
        let answer = store.call(post.clone(), briefly()).await.unwrap();
        assert!(matches!(answer, Storing::NotReplicated(_)), "{answer:?}");
    }
    // A look, and a renewal, wait for no replica.
    assert!(worker.look().await.is_some());
    replica.signal("CONT");
    stored(other.store("x").await);
    assert!(value(&replica, "other").await.ends_with("\nx"));
    assert_eq!(Person::new(&scene, "k").result().await.fencing_token, number(&place));
}

/// It would be lost with the primary, and the next client would do the work again.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_on_enough_replicas_before_it_is_told_once_more() {
    let (_primary, replica, scene) = with_a_replica().await;
    // No script tells the long one.
    let long: &'static str = "long".repeat(2_000).leak();
    for (key, body) in [("short", "x"), ("long", long)] {
        let worker = Person::new(&scene, key);
        let place = worker.grant().await;
        replica.stand_still().await;
        let briefly = || Instant::now() + Duration::from_secs(1);
        let (key, token) = (worker.key.clone(), worker.token);
        let post = StoreResult { key, token, fence: None, keep: None, result: text(body) };
        let unsure = scene.store.call(post, briefly()).await.unwrap();
        assert!(matches!(unsure, Storing::NotReplicated(_)), "{unsure:?}");
        for token in [worker.token, LeaseToken::generate().record_hash()] {
            let begin = begin_of(&worker.key, token, Attempt::generate());
            match scene.store.call(begin, briefly()).await.unwrap() {
                Begun::NotReplicated { is_new: false, reason } => {
                    assert!(reason.contains("0 replicas acknowledged the record in time"), "{reason}");
                }
                told => panic!("{body}: {told:?}"),
            }
        }
        replica.signal("CONT");
        let told = Person { token: LeaseToken::generate().record_hash(), ..worker.clone() }.result().await;
        assert_eq!((told.fencing_token, told.result.body), (number(&place), body.into()));
        // They are asked once.
        replica.stand_still().await;
        Person { token: LeaseToken::generate().record_hash(), ..worker.clone() }.result().await;
        replica.signal("CONT");
    }
}

/// Each would be in the gateway's memory for as long as it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_read_once_enough_replicas_have_it() {
    let (primary, replica, scene) = with_a_replica().await;
    let worker = Person::new(&scene, "k");
    worker.grant().await;
    let result = text("long".repeat(2_000).leak());
    stored(worker.store_for(None, None, result.clone()).await);
    // A new gateway has asked no replica yet.
    let scene = scene_on(&primary, &RedisSettings { replicas_ack: 1, ..settings() });
    scene.store.call(fencepost::store::Check, soon()).await.unwrap();
    replica.stand_still().await;
    let before = primary.calls("get").await;
    let begin = begin_of(&worker.key, LeaseToken::generate().record_hash(), Attempt::generate());
    let told = scene.store.call(begin, Instant::now() + Duration::from_secs(1)).await.unwrap();
    assert!(matches!(told, Begun::NotReplicated { is_new: false, .. }), "{told:?}");
    assert_eq!(primary.calls("get").await, before, "it was read");
    replica.signal("CONT");
    assert_eq!(Person::new(&scene, "k").result().await.result, result);
}

/// Another program took its TTL, or a restore left it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_an_end_is_kept_and_gets_one() {
    let (primary, _replica, scene) = with_a_replica().await;
    let worker = Person::new(&scene, "k");
    worker.grant().await;
    stored(worker.store("done").await);
    let loses_its_end = async || {
        assert_eq!(primary.command::<u64>(&["PERSIST", &name("k")]).await, 1);
    };
    let has_an_end = async |what: &str| {
        let life_ms = life_ms(&primary, "k").await;
        assert!((WEEK_MS - 20_000..=WEEK_MS).contains(&life_ms), "{what}: {life_ms}");
    };
    loses_its_end().await;
    // The same result once more: nothing is written but for the replicas.
    let (_, kept_ms, _) = stored(worker.store("done").await);
    assert!(i64::try_from(kept_ms).unwrap() > WEEK_MS / 2, "{kept_ms}");
    has_an_end("stored again").await;
    loses_its_end().await;
    Person::new(&scene, "k").result().await;
    has_an_end("told").await;
    loses_its_end().await;
    worker.look().await;
    has_an_end("looked at").await;
    assert!(value(&primary, "k").await.ends_with("\ndone"));
}
