//! Results that are too long for scripts.

use fencepost::once::WorkStatus;

use super::*;
use crate::outcomes::commands::Spy;

/// The longest that goes through a script, with the line of its media type.
const SHARED_BYTES: usize = 4096;
/// More than a script is told of anything else.
const FEW_BYTES: usize = 2048;

fn long(bytes: usize) -> WorkResult {
    WorkResult { status: None, content_type: None, body: vec![b'x'; bytes].into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_script_is_given_a_long_result() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let worker = Person::new(&scene, "k");
    let result = long(64 * 1024);
    // At the first call of a script its text goes along.
    for key in ["first", "k"] {
        let worker = Person { key: LockKey::parse(key.as_bytes()).unwrap(), ..worker.clone() };
        worker.grant().await;
        let mut spy = Spy::on(&redis).await;
        stored(worker.store_for(None, None, result.clone()).await);
        assert!(worker.result().await.result == result);
        let heard = spy.heard_all(&redis).await;
        let longest = |words: &[String]| words.iter().map(String::len).max().unwrap_or_default();
        for (is_of_script, words) in &heard {
            let is_plain = !is_of_script && ["SET", "GET"].contains(&&*words[0]);
            let is_text = words[0] == "EVAL";
            let says = (&words[0], words.get(1).map(|word| &word[..word.len().min(80)]));
            assert!(is_plain || is_text || longest(words) < FEW_BYTES, "{says:?}: {}", longest(words));
            // What a script reads, it is given.
            assert!(!is_of_script || words[0] != "GET" || !words[1].contains(":once:"), "{says:?}");
        }
        assert!(heard.iter().any(|(_, words)| longest(words) > 64 * 1024), "the result was sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_long_result_but_its_record() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let is_aside = async || redis.keys().await.iter().any(|name| name.contains(":aside:"));
    let (worker, other) = (Person::new(&scene, "k"), Person::new(&scene, "k"));
    let not_begun = Storing::Refused(NotWorker::NotBegun);
    assert_eq!(worker.store_for(None, None, long(5_000)).await, not_begun);
    let place = worker.grant().await;
    let superseded = Storing::Refused(superseded(&place));
    assert_eq!(other.store_for(None, None, long(5_000)).await, superseded);
    assert!(!is_aside().await, "refused");
    stored(worker.store_for(None, Some(keep(HOUR)), long(5_000)).await);
    assert!((3_580_000..=3_600_000).contains(&life_ms(&redis, "k").await), "it is kept for an hour");
    assert!(!is_aside().await, "stored");
    stored(worker.store_for(None, None, long(5_000)).await);
    for other in [long(5_001), long(65_536), text("short")] {
        assert_eq!(worker.store_for(None, None, other).await, Storing::Differs);
    }
    assert!(!is_aside().await, "stored once more");
    assert!((3_570_000..=3_600_000).contains(&life_ms(&redis, "k").await), "and no longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_kept_byte_for_byte_behind_each_kind_of_header() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let bytes = |count: usize| (0..count).map(|n| b"\t\nabc\0\xff"[n * 31 % 7]).collect::<Vec<u8>>();
    // The line of the media type ends in one byte.
    let lengths = [SHARED_BYTES - 1, SHARED_BYTES, SHARED_BYTES + 1, 65_536, 1 << 20];
    let owners = ["", "somebody", "with a space behind ", &"o".repeat(256)];
    for (n, (length, owner)) in
        lengths.iter().flat_map(|length| owners.map(|owner| (length, owner))).enumerate()
    {
        let worker = Person::new(&scene, &format!("k{n}")).with_print(&"p".repeat(128));
        let (key, token, attempt) = (worker.key.clone(), worker.token, Attempt::generate());
        let note = Note::from_stored(owner).unwrap_or_default();
        let place = granted(
            worker
                .ask(Begin {
                    key,
                    token,
                    attempt,
                    ttl: ttl(LONG_MS),
                    keep: worker.keep,
                    note: note.clone(),
                    fingerprint: worker.fingerprint,
                    may_take_over: true,
                    only_confirms: false,
                })
                .await,
        );
        let content_type = Some("t".repeat(WorkResult::MAX_CONTENT_TYPE_CHARS));
        let result = WorkResult { status: WorkStatus::new(999), content_type, body: bytes(*length).into() };
        stored(worker.store_for(Some(number(&place)), None, result.clone()).await);
        let told = worker.result().await;
        assert!(told.result == result, "{length} {owner:?}: another result");
        assert_eq!((told.fencing_token, told.fingerprint), (number(&place), worker.fingerprint));
        assert!(told.age_ms < 20_000, "{told:?}");
        let view = worker.look().await.unwrap();
        assert_eq!(view.place.lease.note, note, "{length} {owner:?}");
        assert_eq!(view.result.unwrap().bytes, *length as u64);
        stored(worker.store_for(None, None, result).await);
        assert_eq!(worker.break_record(number(&place), false).await, BrokenRecord::Broken);
        assert_eq!(worker.look().await.unwrap().place.lease.note, note, "{length} {owner:?}, broken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_aside_and_is_gone_is_not_stored() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &settings());
    let worker = Person::new(&scene, "k");
    worker.grant().await;
    let begun = value(&redis, "k").await;
    let mut spy = Spy::on(&redis).await;
    let other = Person { key: LockKey::parse(b"other").unwrap(), ..worker.clone() };
    other.grant().await;
    stored(other.store_for(None, None, long(5_000)).await);
    let heard = spy.heard(&redis).await;
    let storing =
        heard.iter().find(|words| words.iter().any(|word| word.contains(":aside:")) && words[0] != "SET");
    // The same call for a record whose result was never put aside.
    let call: Vec<_> = storing.unwrap().iter().map(|word| word.replace(":once:other", ":once:k")).collect();
    let call: Vec<_> = ["EVALSHA"].into_iter().chain(call[1..].iter().map(String::as_str)).collect();
    let reply: Vec<i64> = redis.command(&call).await;
    assert_eq!(reply, [6]);
    assert_eq!(value(&redis, "k").await, begun);
    stored(worker.store_for(None, None, long(5_000)).await);
}
