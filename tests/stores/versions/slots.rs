//! A gateway of 0.1.0, which knows no slots, beside one of this build where several hold a lock: N15.

use serde_json::Value;

use super::redis::ask;
use super::transcript::Other;
use kit::{Client, Gateway, RedisServer, eventually};

const BEFORE: &str = "0.1.0";

/// A Redis, a gateway of before that has started, and one of this build with its client.
async fn both() -> (RedisServer, Other, Gateway, Client) {
    let redis = RedisServer::start().await;
    let mut before = Other::played(&redis, BEFORE).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    before.repeats("start").await.unwrap();
    (redis, before, gateway, client)
}

/// The slots and numbers of all who hold a lock, as this build tells of them.
async fn holders(client: &Client, key: &str) -> Vec<(u64, u64)> {
    let seen = client.get(&format!("/locks/{key}?holders=true")).send().await.json();
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
    let all = seen["holders"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| (number(one, "slot"), number(one, "fencing_token"))).collect()
}

/// Has two of three slots taken at this build, and a gateway of before do all of this. It ends and takes nothing.
async fn stays_as_it_is(client: &Client, before: &mut Other, key: &str, steps: &[(&str, Option<&str>)]) {
    for name in ["here", "second"] {
        ask(client, "PUT", &format!("key={key}&slots=3&ttl=1h"), name).await.expect(201);
    }
    let all = holders(client, key).await;
    assert_eq!(all.len(), 2);
    for (step, answer) in steps {
        let told = before.repeats(step).await;
        assert_eq!(told.as_deref().ok(), *answer, "{step}: {told:?}");
        assert_eq!(holders(client, key).await, all, "after it {step}");
    }
    let third = ask(client, "PUT", &format!("key={key}&slots=3"), "third").await.expect(201).json();
    assert_eq!(third["slot"], 3);
    ask(client, "PUT", &format!("key={key}&slots=3"), "fourth").await.expect(423);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_before_slots_neither_takes_nor_ends_what_several_hold() {
    let (_redis, mut before, _gateway, client) = both().await;
    let short = [
        // Of a free lock, this takes it.
        ("is refused", Some("-1")),
        ("looks", Some(r#"[0 "" 0 0]"#)),
        ("lists", Some(r#"[[0 "" 0 0]]"#)),
        ("renews", Some("[1]")),
        ("releases", Some("-1")),
    ];
    stays_as_it_is(&client, &mut before, "mine", &short).await;
    // Its longer scripts read an offer without a time, and fail before they write.
    let taken = [
        ("is refused what is kept", None),
        ("takes with terms", None),
        ("releases what is kept", Some("[1]")),
    ];
    stays_as_it_is(&client, &mut before, "kept", &taken).await;
    stays_as_it_is(&client, &mut before, "line", &[("waits", None), ("takes its turn", None)]).await;
    // The token that has the slot is told that it has none. A gateway that knows of slots frees it all the same.
    stays_as_it_is(&client, &mut before, "limited", &[("releases early", Some("[1]"))]).await;
    ask(&client, "DELETE", "key=limited", "here").await.expect(204);
    ask(&client, "DELETE", "key=limited", "second").await.expect(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_before_slots_hands_a_lock_on_to_one_who_asked_for_a_slot() {
    let (_redis, mut before, _gateway, client) = both().await;
    before.repeats("beats before it is offered the lock").await.unwrap();
    ask(&client, "PUT", "key=line&ttl=1h", "holder").await.expect(201);
    before.repeats("waits").await.unwrap();
    let read = {
        let client = client.clone();
        async move { ask(&client, "PUT", "key=line&ttl=1h&slots=3&wait=30s", "reader").await }
    };
    let reader = tokio::spawn(read);
    eventually("both wait", async || client.get("/locks/line").send().await.json()["waiters"] == 2).await;
    ask(&client, "DELETE", "key=line", "holder").await.expect(204);
    assert!(before.is_told().await.contains("offered"));
    let taken = before.repeats("takes its turn").await.unwrap();
    assert!(taken.starts_with("[0 "), "{taken}");
    let seen = client.get("/locks/line").send().await.json();
    assert_eq!((&seen["slots"], &seen["waiters"]), (&Value::Null, &1.into()), "{seen}");
    assert!(!reader.is_finished());
    before.repeats("hands the lock on").await.unwrap();
    assert_eq!(reader.await.unwrap().expect(201).json()["slot"], 1);
}
