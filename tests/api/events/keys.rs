//! Who is told what, where API keys are in use.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::Stream;
use kit::http::Call;
use kit::{Client, Gateway, KeysFile, eventually, fresh_token};

async fn gateway(keys: &KeysFile) -> Gateway {
    keys.write();
    let flag = keys.flag();
    Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await
}

fn with(key: &str, call: Call) -> Call {
    call.header("Authorization", format!("Bearer {key}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_sees_the_locks_that_its_key_is_for() {
    let mut keys = KeysFile::new();
    let taker = keys.add_for_all("taker", "\"acquire\"");
    let lister = keys.add("lister", "prefixes = [\"a/\", \"b/x\"]\nallow = [\"list\"]");
    let looker = keys.add("looker", "prefixes = [\"a/\"]\nallow = [\"inspect\"]");
    let gateway = gateway(&keys).await;
    let client = Client::new(gateway.address);
    let events = |query: &str| client.call("GET", &format!("/events?{query}"));
    events("key=a/1").send().await.expect_problem(401, "key-required");
    for (key, query) in [
        (&taker, "key=a/1"),
        (&taker, "prefix="),
        (&lister, "key=a/1"),
        (&lister, "prefix=c"),
        (&looker, "prefix=a/"),
        (&looker, "key=b/x"),
    ] {
        with(key, events(query)).send().await.expect_problem(403, "right-missing");
    }
    let mut seen = Stream::by(with(&lister, events("prefix="))).await;
    let mut one = Stream::by(with(&looker, events("key=a/2"))).await;
    for stream in [&mut seen, &mut one] {
        stream.next().await.is("resync");
    }
    for key in ["a/1", "b/1", "b/x", "b/xy", "c", "a/2"] {
        let put = client.put(&format!("/lock?key={key}")).token(&fresh_token());
        with(&taker, put).send().await.expect(201);
    }
    for key in ["a/1", "b/x", "a/2"] {
        assert_eq!(seen.next_news().await.is("granted").key(), Some(key));
    }
    assert_eq!(one.next_news().await.is("granted").key(), Some("a/2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_key_is_taken_away_or_loses_the_right() {
    let mut keys = KeysFile::new();
    let revoked = keys.add_for_all("revoked", "\"list\"");
    let lowered = keys.add_for_all("lowered", "\"list\", \"inspect\"");
    let kept = keys.add_for_all("kept", "\"list\", \"acquire\"");
    let gateway = gateway(&keys).await;
    let client = Client::new(gateway.address);
    let watch = async |key: &str| {
        let mut stream = Stream::by(with(key, client.call("GET", "/events?prefix="))).await;
        stream.next().await.is("resync");
        stream
    };
    let (mut first, mut second, mut third) =
        (watch(&revoked).await, watch(&lowered).await, watch(&kept).await);
    keys.remove("revoked");
    keys.change("lowered", "\"list\", ", "");
    keys.write();
    for stream in [&mut first, &mut second] {
        let rest = stream.rest().await;
        // On a busy machine a stream may begin anew.
        assert!(rest.iter().all(|event| event.name == "resync"), "{rest:?}");
    }
    with(&kept, client.put("/locks/k")).send().await.expect(201);
    third.next_news().await.is("granted");
}

/// Watches all that the key may see, behind this event.
async fn come_back(client: &Client, key: &str, after: &str) -> Stream {
    let call = client.call("GET", "/events?prefix=").header("Last-Event-ID", after);
    Stream::by(with(key, call)).await
}

/// What is hidden from a key is not counted by what it is told either.
#[tokio::test(flavor = "multi_thread")]
async fn the_ids_of_a_narrow_stream_do_not_say_how_much_else_was_told() {
    let mut keys = KeysFile::new();
    let all = keys.add_for_all("all", "\"acquire\", \"list\"");
    let narrow = keys.add("narrow", "prefixes = [\"a/\"]\nallow = [\"list\"]");
    let gateway = gateway(&keys).await;
    let client = Client::new(gateway.address);
    let watch = async |key: &str, after: &str| come_back(&client, key, after).await;
    let take = async |lock: &str| {
        with(&all, client.put(&format!("/lock?key={lock}"))).send().await.expect(201);
    };
    let mut everything = watch(&all, "").await;
    everything.next().await.is("resync");
    let (mut one, mut two) = (watch(&narrow, "").await, watch(&narrow, "").await);
    let (first, again) = (one.next().await.is("resync"), two.next().await.is("resync"));
    assert_ne!(first.id, again.id, "nothing has happened between them, which nobody is to know");
    take("a/1").await;
    for n in 0..20 {
        take(&format!("b/{n}")).await;
    }
    take("a/2").await;
    let (mut ids, mut lasts) = (vec![first.id, again.id], Vec::new());
    for stream in [&mut one, &mut two] {
        let told = [stream.next_news().await.is("granted"), stream.next_news().await.is("granted")];
        assert_eq!(told.each_ref().map(|event| event.key()), [Some("a/1"), Some("a/2")]);
        lasts.push(told[0].id.clone());
        ids.extend(told.map(|event| event.id));
    }
    let length = ids[0].len();
    assert!(ids.iter().all(|id| id.len() == length), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    // Two events, each by one id or by one for each stream, and the two resyncs.
    assert!((4..=6).contains(&ids.len()), "{ids:?}");
    // Each of them goes on behind its event all the same, but not for a key that is told of more.
    for last in &lasts {
        assert_eq!(watch(&narrow, last).await.next_news().await.is("granted").key(), Some("a/2"));
        assert_eq!(watch(&all, last).await.next().await.is("resync").key(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_key_is_for_other_locks_when_it_comes_back_looks() {
    for (before, after) in [("\"a/\", \"b/\"", "\"b/\""), ("\"b/\"", "\"a/\", \"b/\"")] {
        let mut keys = KeysFile::new();
        let all = keys.add_for_all("all", "\"acquire\", \"list\"");
        let moved = keys.add("moved", &format!("prefixes = [{before}]\nallow = [\"list\"]"));
        let gateway = gateway(&keys).await;
        let client = Client::new(gateway.address);
        let watch = async |key: &str, after: &str| come_back(&client, key, after).await;
        let take = async |lock: &str| {
            let put = client.put(&format!("/lock?key={lock}&ttl=1m")).token(&fresh_token());
            with(&all, put).send().await.expect(201);
        };
        // These keep everything followed.
        let mut others = Vec::new();
        for (key, prefix) in [(&all, ""), (&all, "a/"), (&all, "b/")] {
            let mut other =
                Stream::by(with(key, client.call("GET", &format!("/events?prefix={prefix}")))).await;
            other.next().await.is("resync");
            others.push(other);
        }
        let mut stream = watch(&moved, "").await;
        stream.next().await.is("resync");
        take("b/1").await;
        let last = stream.next_news().await.is("granted").id;
        drop(stream);
        // One who watches the same goes on.
        let mut same = watch(&moved, &last).await;
        take("b/2").await;
        assert_eq!(same.next_news().await.is("granted").key(), Some("b/2"));
        keys.change("moved", before, after);
        keys.write();
        same.next().await.is("resync");
        drop(same);
        // What `same` was told may have been of a look that was late, before its key was read anew.
        eventually("it looks", async || watch(&moved, &last).await.next().await.name == "resync").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_of_other_locks_once_its_key_is_for_others() {
    let mut keys = KeysFile::new();
    let all = keys.add_for_all("all", "\"acquire\"");
    let moved = keys.add("moved", "prefixes = [\"a/\"]\nallow = [\"list\"]");
    let gateway = gateway(&keys).await;
    let client = Client::new(gateway.address);
    let take = async |lock: &str| {
        let put = client.put(&format!("/lock?key={lock}&ttl=1m")).token(&fresh_token());
        with(&all, put).send().await.expect(201);
    };
    let mut stream = Stream::by(with(&moved, client.call("GET", "/events?prefix="))).await;
    // It may be told to look of a look that was late, too. It is told of these locks once its key was read anew.
    let hears = async |stream: &mut Stream, start: &str, lost: &[&str]| {
        stream.until("resync").await;
        let number = AtomicU32::new(0);
        eventually("it is told of a lock", async || {
            take(&format!("{start}{}", number.fetch_add(1, Ordering::Relaxed))).await;
            timeout(Duration::from_millis(200), stream.next_news()).await.is_ok()
        })
        .await;
        for lock in lost {
            take(lock).await;
        }
        let last = format!("{start}last");
        take(&last).await;
        let mut told = String::new();
        while told != last {
            told = stream.next_news().await.is("granted").key().unwrap().to_owned();
            assert!(told.starts_with(start), "{told}");
        }
    };
    hears(&mut stream, "a/1-", &["b/1"]).await;
    keys.change("moved", "\"a/\"", "\"b/\", \"c\"");
    keys.write();
    hears(&mut stream, "b/2-", &["a/2", "cd"]).await;
    take("c/1").await;
    assert_eq!(stream.next_news().await.is("granted").key(), Some("c/1"));
    keys.change("moved", "prefixes = [\"b/\", \"c\"]", "every_key = true");
    keys.write();
    hears(&mut stream, "a/3-", &[]).await;
    // And no longer of what it lost.
    keys.change("moved", "every_key = true", "prefixes = [\"a\"]");
    keys.write();
    let lists = async || with(&moved, client.get("/locks?prefix=b/")).send().await.status;
    eventually("its key is read", async || lists().await == 403).await;
    hears(&mut stream, "a/4-", &["b/3"]).await;
}
