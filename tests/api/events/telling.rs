//! What is told of locks, on every store, by a gateway of what another one does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Pair, Stream, on_each_pair};
use crate::leaving::{pause, sends_and_leaves};
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, Gateway, Proxy, RedisServer, eventually, fresh_token};

on_each_pair!(
    all_that_is_done_to_a_lock_is_told_in_its_order,
    the_end_of_a_lease_is_told_though_nobody_does_anything,
    what_was_held_before_is_followed_to_its_end,
    those_who_wait_are_counted,
    what_a_connection_does_to_its_lock_is_told,
    a_lock_that_stays_taken_after_its_release_is_told_as_such,
    what_a_connection_leaves_taken_is_told_for_as_long_as_it_is,
    a_stream_has_what_was_asked_for_and_nothing_else,
    a_place_in_the_line_that_is_given_up_is_no_release,
    a_lock_that_is_broken_is_told_as_such,
    a_release_whose_client_has_left_is_told,
);

async fn a_release_whose_client_has_left_is_told(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let grant = pair.there().put("/locks/k?ttl=1m").send().await.expect(201);
    stream.next_news().await.is("granted");
    if let Some(redis) = &pair.redis {
        pause(redis).await;
    }
    let gateway = pair.there.as_ref().unwrap_or(&pair.here);
    let headers = format!("Lease-Token: {}\r\n", grant.token());
    sends_and_leaves(gateway, "DELETE", "/locks/k", &headers).await;
    assert_eq!(stream.next_news().await.is("released").fencing_token(), grant.fencing_token());
}

async fn all_that_is_done_to_a_lock_is_told_in_its_order(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let client = pair.there();
    let grant = client.put("/locks/k?ttl=20s&owner=me").send().await.expect(201);
    let granted = stream.next_news().await.is("granted");
    assert_eq!(granted.key(), Some("k"));
    assert_eq!(granted.fencing_token(), grant.fencing_token());
    assert_eq!(granted.data["owner"], "me");
    assert!((15_000..=20_000).contains(&granted.ttl_ms()), "{granted:?}");
    assert!(granted.data["expires_at"].is_string());
    client.put("/locks/other?ttl=20s").send().await.expect(201);
    client.patch("/locks/k?ttl=30s").token(&grant.token()).send().await.expect(200);
    let renewed = stream.next_news().await.is("renewed");
    assert_eq!((renewed.key(), renewed.fencing_token()), (Some("k"), grant.fencing_token()));
    assert!((25_000..=30_000).contains(&renewed.ttl_ms()), "{renewed:?}");
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    let released = stream.next_news().await.is("released");
    assert_eq!((released.key(), released.fencing_token()), (Some("k"), grant.fencing_token()));
    assert!(released.data.get("ttl_ms").is_none(), "it is free: {released:?}");
    // A repetition with a token of one's own is a renewal.
    let token = fresh_token();
    client.put("/locks/k?ttl=20s").token(&token).send().await.expect(201);
    let again = stream.next_news().await.is("granted");
    assert!(again.fencing_token() > grant.fencing_token());
    assert!(again.data.get("owner").is_none());
    client.put("/locks/k?ttl=25s").token(&token).send().await.expect(200);
    assert_eq!(stream.next_news().await.is("renewed").fencing_token(), again.fencing_token());
}

async fn the_end_of_a_lease_is_told_though_nobody_does_anything(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let grant = pair.there().put("/locks/k?ttl=3s").send().await.expect(201);
    stream.next_news().await.is("granted");
    // A renewal puts the end off.
    pair.there().patch("/locks/k?ttl=4s").token(&grant.token()).send().await.expect(200);
    stream.next_news().await.is("renewed");
    let expired = stream.next_news().await.is("expired");
    assert_eq!((expired.key(), expired.fencing_token()), (Some("k"), grant.fencing_token()));
    pair.here().get("/locks/k").send().await.expect(404);
}

async fn what_was_held_before_is_followed_to_its_end(pair: Pair) {
    for (key, query) in [("one", "key=one"), ("many", "prefix=m")] {
        let grant = pair.there().put(&format!("/locks/{key}?ttl=5s")).send().await.expect(201);
        let mut stream = Stream::open(&pair.here(), query).await;
        // What was told of the grant may still have been on its way.
        let expired = stream.until("expired").await;
        assert_eq!((expired.key(), expired.fencing_token()), (Some(key), grant.fencing_token()));
    }
}

/// What holds up the first look at the locks of a stream, so that a lease may end before it.
const LOOKED_LATE: Duration = Duration::from_millis(150);

#[tokio::test(flavor = "multi_thread")]
async fn those_whose_locks_were_looked_for_late_are_told_once_to_look_again() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let client = Client::new(gateway.address);
    for (query, key, looks_at) in
        [("key=watched", "watched", Some("watched")), ("prefix=listed", "listed", None)]
    {
        let gate = Gate::new();
        let mut look = proxy.expect(key, Fate::Hold { message: gate.clone(), answer: gate.clone() });
        let mut stream = Stream::open(&client, query).await;
        look.reaches(Progress::Seen).await;
        tokio::time::sleep(LOOKED_LATE).await;
        gate.cancel();
        assert_eq!(stream.next().await.is("resync").key(), looks_at);
        client.put(&format!("/locks/{key}?ttl=20s")).send().await.expect(201);
        stream.next().await.is("granted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_is_told_while_a_long_list_is_read_for_another_stream() {
    /// Each step of the list looks at some 400 of these.
    const FILL: &str = "for n = 1, 50000 do redis.call('SET', 'other:' .. n, '') end";
    let redis = RedisServer::start().await;
    redis.command::<()>(&["EVAL", FILL, "0"]).await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let is_told = Arc::new(AtomicBool::new(false));
    let may_hurry = is_told.clone();
    // Together they take twice as long as the lease, until its end is told.
    proxy.set_policy(move |message| {
        let is_slow = !may_hurry.load(Ordering::Relaxed) && message.windows(4).any(|word| word == b"SCAN");
        if is_slow { Fate::delay(Duration::from_millis(160)) } else { Fate::Pass }
    });
    let here = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let there = Gateway::on_redis(&redis, &[]).await;
    // Before anybody watches, so that the other gateway tells nothing of it.
    let grant = Client::new(there.address).put("/locks/k?ttl=10s").send().await.expect(201);
    let client = Client::new(here.address);
    let mut many = Stream::open(&client, "prefix=many").await;
    let mut one = Stream::open(&client, "key=k").await;
    assert_eq!(one.until("expired").await.fencing_token(), grant.fencing_token());
    is_told.store(true, Ordering::Relaxed);
    many.until("resync").await;
}

async fn those_who_wait_are_counted(pair: Pair) {
    // A gateway knows on every store who waits at itself.
    let client = pair.here();
    let mut stream = Stream::open(&client, "key=k").await;
    let grant = client.put("/locks/k?ttl=20s").send().await.expect(201);
    stream.until("granted").await;
    let waiting = tokio::spawn(client.put("/locks/k?ttl=20s&wait=15s").send());
    assert_eq!(stream.until("waiting").await.data["waiters"], 1);
    let gone = tokio::spawn(client.put("/locks/k?ttl=20s&wait=15s").send());
    assert_eq!(stream.until("waiting").await.data["waiters"], 2);
    gone.abort();
    assert_eq!(stream.until("waiting").await.data["waiters"], 1);
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    let next = waiting.await.unwrap().expect(201);
    assert_eq!(stream.until("granted").await.fencing_token(), next.fencing_token());
    assert_eq!(stream.until("waiting").await.data["waiters"], 0);
}

async fn what_a_connection_does_to_its_lock_is_told(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let held = pair.there().call("POST", "/hold?key=k&ttl=1s").open().await;
    assert_eq!(held.status(), 200);
    let granted = stream.next_news().await.is("granted");
    assert_eq!(stream.next_news().await.is("renewed").fencing_token(), granted.fencing_token());
    drop(held);
    assert_eq!(stream.until("released").await.fencing_token(), granted.fencing_token());
}

async fn a_lock_that_stays_taken_after_its_release_is_told_as_such(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let client = pair.there();
    let grant = client.put("/locks/k?ttl=20s&min_hold=1500ms").send().await.expect(201);
    stream.next_news().await.is("granted");
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    let released = stream.next_news().await.is("released");
    assert!((1..=1_500).contains(&released.ttl_ms()), "{released:?}");
    assert_eq!(stream.next_news().await.is("expired").fencing_token(), grant.fencing_token());
}

/// For the rest of its `min_hold`; and for what the token was told of before the connection had the lock.
async fn what_a_connection_leaves_taken_is_told_for_as_long_as_it_is(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let client = pair.there();
    let hold = client.call("POST", "/hold?key=k&ttl=30s&min_hold=5s").open().await;
    let number = stream.next_news().await.is("granted").fencing_token();
    drop(hold);
    let released = stream.next_news().await.is("released");
    assert!((1..=5_000).contains(&released.ttl_ms()) && released.fencing_token() == number, "{released:?}");
    client.delete("/locks/k?force=true").send().await.expect(204);
    stream.next_news().await.is("broken");
    let token = fresh_token();
    client.put("/locks/k?ttl=5s").token(&token).send().await.expect(201);
    let number = stream.next_news().await.is("granted").fencing_token();
    let hold = client.call("POST", "/hold?key=k&ttl=30s").token(&token).open().await;
    let renewed = stream.next_news().await.is("renewed");
    assert!(renewed.ttl_ms() > 20_000, "{renewed:?}");
    drop(hold);
    let left = stream.next_news().await.is("renewed");
    assert!((1..=5_000).contains(&left.ttl_ms()) && left.fencing_token() == number, "{left:?}");
    assert_eq!(stream.next_news().await.is("expired").fencing_token(), number);
}

async fn a_stream_has_what_was_asked_for_and_nothing_else(pair: Pair) {
    let mut all = Stream::open(&pair.here(), "prefix=").await;
    let mut some = Stream::open(&pair.here(), "prefix=a%2F").await;
    let mut one = Stream::open(&pair.here(), "key=a%2Fb").await;
    let keys = ["a", "a/", "a/b", "a/bc", "b/a/b"];
    let token = fresh_token();
    for key in keys {
        pair.there().put(&format!("/lock?key={key}")).token(&token).send().await.expect(201);
    }
    for (stream, expected) in [(&mut all, &keys[..]), (&mut some, &keys[1..4]), (&mut one, &keys[2..3])] {
        for key in expected {
            assert_eq!(stream.next_news().await.is("granted").key(), Some(*key));
        }
    }
    pair.there().put("/lock?key=a%2Fb%2F").send().await.expect(201);
    for stream in [&mut all, &mut some] {
        assert_eq!(stream.next_news().await.is("granted").key(), Some("a/b/"));
    }
    pair.there().patch("/lock?key=a%2Fb").token(&token).send().await.expect(200);
    assert_eq!(one.next_news().await.is("renewed").key(), Some("a/b"));
}

async fn a_place_in_the_line_that_is_given_up_is_no_release(pair: Pair) {
    let client = pair.here();
    let mut stream = Stream::open(&client, "key=k").await;
    let grant = client.put("/locks/k?ttl=20s").send().await.expect(201);
    stream.until("granted").await;
    let token = fresh_token();
    let waiting = tokio::spawn(client.put("/locks/k?wait=15s").token(&token).send());
    eventually("somebody waits", async || client.get("/locks/k").send().await.json()["waiters"] == 1).await;
    client.delete("/locks/k").token(&token).send().await.expect(204);
    waiting.await.unwrap().expect(409);
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    assert_eq!(stream.until("released").await.fencing_token(), grant.fencing_token());
}

async fn a_lock_that_is_broken_is_told_as_such(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "key=k").await;
    let client = pair.there();
    let grant = client.put("/locks/k?ttl=20s").send().await.expect(201);
    stream.next_news().await.is("granted");
    client.delete("/locks/k?force=true").send().await.expect(204);
    let broken = stream.next_news().await.is("broken");
    assert_eq!((broken.key(), broken.fencing_token()), (Some("k"), grant.fencing_token()));
    client.delete("/locks/k?force=true").send().await.expect(404);
    // Also where it is only kept.
    let grant = client.put("/locks/k?ttl=20s&min_hold=20s").send().await.expect(201);
    stream.next_news().await.is("granted");
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    stream.next_news().await.is("released");
    client.delete("/locks/k?force=true").send().await.expect(204);
    assert_eq!(stream.next_news().await.is("broken").fencing_token(), grant.fencing_token());
}
