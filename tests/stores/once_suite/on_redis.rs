//! What is true of records on Redis alone: their keys and values, and what becomes of them as servers fail.

use fencepost::lock::Reach;
use fencepost::store::redis::{OnceMemory, RedisAddress, RedisSettings, RedisStore};
use fencepost::store::{ListRecords, LockStore, StoreError};
use kit::{RedisServer, eventually};

use super::*;

mod full;
mod long;
mod migrating;
mod replicas;
mod unbounded;

/// Where the record of this key stands.
fn name(key: &str) -> String {
    format!("fencepost:{{0}}:once:{key}")
}

fn settings() -> RedisSettings {
    let once_memory = OnceMemory::Bytes(u64::MAX - 1);
    RedisSettings { reply_timeout: PATIENCE, once_memory, ..RedisSettings::default() }
}

fn store_on(url: &str, settings: &RedisSettings) -> RedisStore {
    RedisStore::start(&RedisAddress::parse(url, None).unwrap(), settings).unwrap()
}

/// A begin of which nothing special is said.
fn begin_of(key: &LockKey, token: TokenHash, attempt: Attempt) -> Begin {
    Begin {
        key: key.clone(),
        token,
        attempt,
        ttl: ttl(LONG_MS),
        keep: Keep::DEFAULT,
        note: Note::default(),
        fingerprint: None,
        may_take_over: true,
        only_confirms: false,
    }
}

/// A store on a server of the test's, for as long as the server lives.
fn scene_on(redis: &RedisServer, settings: &RedisSettings) -> AnyStore {
    AnyStore::of(store_on(redis.url(), settings))
}

async fn value(redis: &RedisServer, key: &str) -> String {
    redis.command(&["GET", &name(key)]).await
}

async fn life_ms(redis: &RedisServer, key: &str) -> i64 {
    redis.command(&["PTTL", &name(key)]).await
}

/// How long a crash is remembered.
const WEEK_MS: i64 = 7 * 24 * 3600 * 1000;

#[tokio::test(flavor = "multi_thread")]
async fn every_record_has_a_ttl_at_every_moment() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let person = Person::new(&scene, "k").keeping(HOUR);
    let is_about = async |expected_ms: i64, what: &str| {
        let life_ms = life_ms(&redis, "k").await;
        assert!((expected_ms - 20_000..=expected_ms + 1).contains(&life_ms), "{what}: {life_ms}");
    };
    let place = person.grant().await;
    is_about(WEEK_MS + 30_000, "begun").await;
    assert!(matches!(person.renew(300_000).await, RenewedWork::Renewed(_)));
    is_about(WEEK_MS + 300_000, "renewed").await;
    assert_eq!(person.break_record(number(&place), false).await, BrokenRecord::Broken);
    is_about(WEEK_MS + 300_000, "broken").await;
    // Neither a shorter lease nor its undoing makes the memory shorter.
    person.undone().await;
    is_about(WEEK_MS + 300_000, "undone").await;
    let next = Person::new(&scene, "k").keeping(HOUR);
    let place = next.grant().await;
    is_about(WEEK_MS + 300_000, "taken over").await;
    stored(next.store("done").await);
    is_about(3_600_000, "stored").await;
    assert_eq!(next.break_record(number(&place), false).await, BrokenRecord::Broken);
    is_about(WEEK_MS, "its result is broken").await;
    let names = redis.keys().await;
    let records = names.iter().filter(|name| name.contains(":once:")).count();
    assert_eq!((records, names.len()), (1, 3), "the fence, and the mark of the undone attempt: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn header_and_result_are_one_value_and_nothing_of_the_token_is_in_it() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let token = LeaseToken::generate();
    let person = Person { token: token.record_hash(), ..Person::new(&scene, "k").with_print("a") };
    let place = person.grant().await;
    let number = number(&place).get();
    let text = value(&redis, "k").await;
    assert!(text.starts_with(&format!("w{} ", person.token)) && text.ends_with(" 0 somebody"), "{text}");
    stored(person.store("the\nresult").await);
    let text = value(&redis, "k").await;
    assert!(text.starts_with(&format!("d{} - {number} ", person.token)), "{text}");
    assert!(text.ends_with(" 0 - somebody\n\nthe\nresult"), "{text}");
    assert!(!text.contains(token.reveal()) && !text.contains(&token.hash().to_string()), "{text}");
}

/// The number of the operation's calls, none of which is of a look at the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_somebody_else_is_left_alone_and_stops_nobody() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let person = Person::new(&scene, "foreign");
    Person::new(&scene, "own").grant().await;
    let kinds: [&[&str]; 4] =
        [&["SET", "somebody else's"], &["SET", "w00 - 1 2"], &["SET", "d"], &["HSET", "field", "value"]];
    for words in kinds {
        let foreign = name("foreign");
        let words = [&words[..1], &[&*foreign], &words[1..]].concat();
        let _: redis::Value = redis.command(&words).await;
        let is_text = words[0] == "SET";
        let before: Vec<u8> = redis.command(&["DUMP", &foreign]).await;
        let key = person.key.clone();
        let begin = begin_of(&key, person.token, Attempt::generate());
        let store = &scene.store;
        let begun = store.call(begin, soon()).await.map(drop);
        let posted = StoreResult { key, token: person.token, fence: None, keep: None, result: text("x") };
        let posted = store.call(posted, soon()).await.map(drop);
        for answer in [begun, posted] {
            match answer {
                // The script looked before it wrote anything.
                Err(StoreError::Unavailable(reason)) if is_text => {
                    assert!(reason.contains("\"foreign\" cannot be read"), "{reason}");
                }
                Err(StoreError::Unknown(reason)) if !is_text => {
                    assert!(reason.contains("WRONGTYPE"), "{reason}")
                }
                other => panic!("{words:?}: {other:?}"),
            }
        }
        let list = ListRecords { reach: Reach::all(""), cursor: None, limit: 10 };
        let page = store.call(list, soon()).await.unwrap();
        assert_eq!(page.records.len(), 1, "{page:?}");
        assert_eq!(redis.command::<Vec<u8>>(&["DUMP", &foreign]).await, before);
        let _: () = redis.command(&["DEL", &foreign]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_data_gives_larger_numbers_and_takes_no_result_of_before() {
    let mut redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let (working, done) = (Person::new(&scene, "working"), Person::new(&scene, "done"));
    let mut before = working.grant().await;
    done.grant().await;
    stored(done.store("done").await);
    let flush = async |redis: &mut RedisServer| redis.command::<()>(&["FLUSHALL"]).await;
    let restart = async |redis: &mut RedisServer| redis.restart_empty().await;
    for restarts in [false, true] {
        if restarts {
            restart(&mut redis).await
        } else {
            flush(&mut redis).await
        }
        assert_eq!(working.store("late").await, Storing::Refused(NotWorker::NotBegun));
        // It begins once more with the same token, and stores at once.
        let again = working.grant().await;
        assert_eq!(history(&again), (0, None));
        assert!(number(&again) > number(&before), "{again:?} after {before:?}");
        before = again;
    }
    stored(working.store("late").await);
    assert_eq!(Person::new(&scene, "done").grant().await.earlier, 0, "the result is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_not_use_records_has_its_locks() {
    let user = ["--user", "narrow", "on", ">word", "~*", "&*", "+@all", "-getrange"];
    let redis = RedisServer::start_with(&user).await;
    let url = redis.url().replace("redis://", "redis://narrow:word@");
    let store = store_on(&url, &settings());
    let mut said = None;
    eventually("it says why", async || {
        said = store.keeps_no_records(None);
        said.is_some()
    })
    .await;
    assert!(said.as_ref().unwrap().contains("may not use GETRANGE"), "{said:?}");
    store.call(fencepost::store::Check, soon()).await.unwrap();
    let _: () = redis.command(&["ACL", "SETUSER", "narrow", "+getrange"]).await;
    eventually("it keeps some", async || store.keeps_no_records(None).is_none()).await;
}

/// That of an older version's page has all but one.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_not_use_records_is_told_which_commands_it_lacks_and_no_others() {
    let user = ["--user", "narrow", "on", ">word", "~*", "&*", "+@all", "-rename"];
    let redis = RedisServer::start_with(&user).await;
    let url = redis.url().replace("redis://", "redis://narrow:word@");
    let store = store_on(&url, &settings());
    for (change, lacking) in [(None, "RENAME"), (Some("-strlen"), "STRLEN, RENAME")] {
        if let Some(change) = change {
            let _: () = redis.command(&["ACL", "SETUSER", "narrow", change]).await;
        }
        let said = format!("may not use {lacking} on records");
        let is_said = || store.keeps_no_records(None).is_some_and(|why| why.contains(&said));
        eventually(&said, async || is_said()).await;
    }
}
