//! Who is told what, where API keys are in use.

use super::Stream;
use crate::support::http::Call;
use crate::support::{Client, Gateway, KeysFile, fresh_token};

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
        assert_eq!(seen.next().await.is("granted").key(), Some(key));
    }
    assert_eq!(one.next().await.is("granted").key(), Some("a/2"));
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
    assert_eq!(first.rest().await, []);
    assert_eq!(second.rest().await, []);
    with(&kept, client.put("/locks/k")).send().await.expect(201);
    third.next().await.is("granted");
}
