//! A server whose memory is full, or nearly: results leave room for locks, and each worker can store a short one.

use fencepost::lock::{Acquired, Terms};
use fencepost::store::{LockRequest, Release, Try};

use super::*;

const MEMORY: &str = "64mb";
/// As long as a result may be, unless a setting says otherwise.
const LONG: usize = 64 * 1024;

fn long(bytes: usize) -> WorkResult {
    WorkResult { status: None, content_type: None, body: vec![b'x'; bytes].into() }
}

/// Takes and releases locks.
async fn locks_go_on(scene: &AnyStore, pairs: usize) {
    for n in 0..pairs {
        let (key, token) =
            (LockKey::parse(format!("lock {n}").as_bytes()).unwrap(), LeaseToken::generate().hash());
        let lock = LockRequest {
            key: key.clone(),
            token,
            attempt: Attempt::generate(),
            ttl: ttl(LONG_MS),
            note: Note::default(),
            terms: Terms::default(),
        };
        let answer = scene.store.call(Try(lock), soon()).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{n}: {answer:?}");
        scene.store.call(Release { key, token, tombstone: Tombstone::None }, soon()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn begins_and_results_fill_no_more_than_their_share_and_locks_go_on() {
    let redis = RedisServer::start_with(&["--maxmemory", MEMORY]).await;
    let settings = RedisSettings { reply_timeout: PATIENCE, ..RedisSettings::default() };
    let scene = scene_on(&redis, &settings);
    scene.store.call(fencepost::store::Check, soon()).await.unwrap();
    let mut people = Vec::new();
    for n in 0..2_000 {
        let person = Person::new(&scene, &format!("k{n}"));
        person.grant().await;
        people.push(person);
    }
    let is_refused_by = async |person: &Person| match person.store_for(None, None, long(LONG)).await {
        Storing::Stored { .. } => false,
        Storing::NearlyFull => true,
        other => panic!("{other:?}"),
    };
    // Twice the memory that there is.
    let mut is_refused = Vec::new();
    for person in &people {
        is_refused.push(is_refused_by(person).await);
    }
    // Until the next look at the server a result counts twice, so a look may find room once more, half as much each time. That is
    // filled as well, and after two looks nothing new is begun.
    let mut is_full = false;
    for number in 0..3 {
        let newcomer = Person::new(&scene, &format!("newcomer {number}"));
        is_full = newcomer.begin().await == Begun::NearlyFull;
        if is_full {
            assert_eq!(newcomer.look().await, None);
            break;
        }
        for (person, is_refused) in people.iter().zip(&mut is_refused).filter(|(_, is_refused)| **is_refused)
        {
            *is_refused = is_refused_by(person).await;
            if *is_refused {
                break;
            }
        }
    }
    assert!(is_full, "new work is begun, though results have more than their share");
    let refused = is_refused.iter().filter(|is_refused| **is_refused).count();
    assert!((1_000..1_900).contains(&refused), "{refused} of 2000");
    // What is under way can be stored in a short form, and what is done is told.
    for (person, is_refused) in people.iter().zip(is_refused) {
        if is_refused {
            stored(person.store_for(None, None, long(WorkResult::SHORT_BYTES)).await);
        } else {
            assert_eq!(person.store_for(None, None, long(1)).await, Storing::Differs);
            assert_eq!(person.result().await.result, long(LONG));
        }
    }
    let used: u64 = redis.info("used_memory").await.parse().unwrap();
    assert!(used < 64 << 20, "{used}");
    locks_go_on(&scene, 1_000).await;
}

/// Many times within the second of one look at the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_stored_again_takes_no_room_from_others() {
    let redis = RedisServer::start().await;
    // Four times what is stored has room, and forty times it has none.
    let used: u64 = redis.info("used_memory").await.parse().unwrap();
    let once_memory = OnceMemory::Bytes(used + (4 << 20));
    let scene = scene_on(&redis, &RedisSettings { once_memory, ..settings() });
    for (key, bytes) in [("long", LONG), ("short", 4_000)] {
        let worker = Person::new(&scene, key);
        worker.grant().await;
        for n in 0..4 * (4 << 20) / bytes {
            stored(worker.store_for(None, None, long(bytes)).await);
            if n % 16 == 0 {
                let newcomer = Person::new(&scene, &format!("{key} {n}"));
                granted(newcomer.begin().await);
                assert_eq!(newcomer.give_up_clean().await, GivenUp::GivenUp);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_server_what_is_under_way_can_be_ended_in_each_way() {
    let redis = RedisServer::start().await;
    // No share stands in the way: the server itself has no room.
    let scene = scene_on(&redis, &settings());
    let person = |key: &str| Person::new(&scene, key);
    let [stores, renews, gives_up, gives_up_clean, repeats, broken, done] =
        ["stores", "renews", "gives up", "gives up clean", "repeats", "broken", "done"].map(person);
    for worker in [&stores, &renews, &gives_up, &gives_up_clean, &repeats, &done] {
        worker.grant().await;
    }
    let place = broken.grant().await;
    stored(done.store_for(None, None, long(LONG)).await);
    let (undone, attempt) = (person("undone"), Attempt::generate());
    granted(undone.begin_as(attempt, LONG_MS).await);
    // More is used already.
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;

    assert_eq!(stores.store_for(None, None, long(WorkResult::SHORT_BYTES + 1)).await, Storing::NearlyFull);
    assert!(stores.look_as_worker().await.unwrap().result.is_none(), "the place is still its worker's");
    stored(stores.store_for(None, None, long(WorkResult::SHORT_BYTES)).await);
    assert!(matches!(renews.renew(2 * LONG_MS).await, RenewedWork::Renewed(_)));
    assert!(matches!(repeats.begin().await, Begun::Continued(_)));
    assert_eq!(gives_up.give_up().await, GivenUp::GivenUp);
    assert_eq!(gives_up.give_up().await, GivenUp::GivenUp);
    assert_eq!(gives_up_clean.give_up_clean().await, GivenUp::GivenUp);
    assert_eq!(gives_up_clean.look().await, None);
    assert!(undone.undo(attempt).await);
    assert_eq!(undone.look().await, None);
    for _ in 0..2 {
        assert_eq!(broken.break_record(number(&place), false).await, BrokenRecord::Broken);
    }
    assert_eq!(broken.look().await.unwrap().place.earlier, 1);
    assert_eq!(person("done").result().await.result, long(LONG));
    // Nothing new is begun, and nothing was counted for it.
    let begin = begin_of(&LockKey::parse(b"new").unwrap(), stores.token, Attempt::generate());
    let begun = scene.store.call(begin, soon()).await;
    assert!(matches!(&begun, Err(StoreError::Unavailable(reason)) if reason.contains("OOM")), "{begun:?}");
    assert_eq!(person("new").look().await, None);
}
