//! Several locks at once: all of them or none, on every store and on the wire.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::on_each::each_store;
use kit::keys::KeysFile;
use kit::{Answer, Client, Gateway, PATIENCE, RedisServer, eventually, fresh_token};

mod in_order;
mod kept;

async fn is_free(client: &Client, key: &str) -> bool {
    client.get(&format!("/locks/{key}")).send().await.status == 404
}

fn keys_and_numbers(answer: &Answer) -> Vec<(String, u64)> {
    let body = answer.json();
    let locks = body["locks"].as_array().unwrap().iter();
    let of =
        |lock: &Value| (lock["key"].as_str().unwrap().to_owned(), lock["fencing_token"].as_u64().unwrap());
    locks.map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_taken_by_one_token_and_each_has_a_number_of_its_own() {
    each_store(async |client| {
        let taken = client.put("/lock?key=b&key=a&key=c&ttl=1m&owner=me").send().await.expect(201);
        let (body, token) = (taken.json(), taken.token());
        let given = keys_and_numbers(&taken);
        assert_eq!(given.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!((&body["owner"], taken.header("fencing-token")), (&json!("me"), None));
        let left_ms = body["ttl_ms"].as_u64().unwrap();
        assert!((55_000..=60_000).contains(&left_ms), "{body}");
        for (key, number) in given {
            let seen = client.get(&format!("/locks/{key}")).token(&token).send().await.expect(200).json();
            assert_eq!((&seen["yours"], &seen["fencing_token"]), (&json!(true), &json!(number)));
            assert!(seen["expires_in_ms"].as_u64().unwrap() > 50_000, "{seen}");
            client.patch(&format!("/locks/{key}?ttl=2m")).token(&token).send().await.expect(200);
            client.delete(&format!("/locks/{key}")).token(&token).send().await.expect(204);
            assert!(is_free(client, &key).await);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_names_the_lock_and_leaves_nothing_behind() {
    each_store(async |client| {
        let other = client.put("/locks/b?ttl=1m&owner=other").send().await.expect(201);
        for wait in ["", "&wait=300ms"] {
            let refused = client.put(&format!("/lock?key=c&key=b&key=a&ttl=1m{wait}")).send().await;
            let body = refused.expect_problem(423, "lock-held").json();
            assert_eq!((&body["key"], &body["holder"]["owner"]), (&json!("b"), &json!("other")));
            // The answer comes once they are given back.
            assert!(is_free(client, "a").await && is_free(client, "c").await, "something is left");
        }
        client.delete("/locks/b").token(&other.token()).send().await.expect(204);
        client.put("/lock?key=c&key=b&key=a").send().await.expect(201);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_token_gets_the_same_grants_and_keeps_what_it_had() {
    each_store(async |client| {
        let token = fresh_token();
        let path = "/lock?key=a&key=b&ttl=30s";
        let first = client.put(path).token(&token).send().await.expect(201);
        let again = client.put(path).token(&token).send().await.expect(200);
        assert_eq!(keys_and_numbers(&first), keys_and_numbers(&again));
        // With one more it is a new grant, and what cannot be had changes nothing of what was told before.
        let more = client.put("/lock?key=c&key=b&key=a&ttl=30s").token(&token).send().await.expect(201);
        assert_eq!(keys_and_numbers(&more)[2], keys_and_numbers(&first)[0]);
        let other = client.put("/locks/d?ttl=1m").send().await.expect(201);
        let refused = client.put("/lock?key=a&key=d&ttl=1m").token(&token).send().await;
        assert_eq!(refused.expect_problem(423, "lock-held").json()["key"], json!("d"));
        for key in ["a", "b", "c"] {
            let seen = client.get(&format!("/locks/{key}")).token(&token).send().await.expect(200).json();
            assert_eq!(seen["yours"], json!(true), "{key}");
            client.delete(&format!("/locks/{key}")).token(&token).send().await.expect(204);
        }
        client.delete("/locks/d").token(&other.token()).send().await.expect(204);
        let late = client.put(path).token(&token).send().await.expect_problem(409, "token-released");
        assert_eq!(late.json()["key"], json!("a"));
        assert!(is_free(client, "b").await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_for_all_of_them() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    for slot in 1..=2 {
        let taken = client.put("/lock?key=a&key=b&slots=2").send().await.expect(201).json();
        for lock in taken["locks"].as_array().unwrap() {
            assert_eq!((&lock["slot"], &lock["slots"]), (&json!(slot), &json!(2)));
        }
    }
    let refused =
        client.put("/lock?key=b&key=a&slots=2").send().await.expect_problem(423, "lock-held").json();
    assert_eq!((&refused["key"], &refused["held"]), (&json!("a"), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_and_changes_nothing() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let keys = |many: usize| (0..many).map(|n| format!("key=k{n:02}")).collect::<Vec<_>>().join("&");
    for (query, name) in [
        ("key=a&key=a".to_owned(), "bad-key"),
        ("key=a&key=%61".to_owned(), "bad-key"),
        ("key=a&key=".to_owned(), "bad-key"),
        (keys(17), "bad-parameter"),
        ("key=a&key=b&ttl=999ms".to_owned(), "bad-parameter"),
        ("key=a&key=b&key=c&wait=1s&wait=2s".to_owned(), "bad-parameter"),
    ] {
        for (method, path) in [("PUT", "/lock"), ("POST", "/hold")] {
            client.call(method, &format!("{path}?{query}")).send().await.expect_problem(400, name);
        }
    }
    // Each of them is for one lock.
    let token = fresh_token();
    for method in ["PATCH", "DELETE", "GET"] {
        let call = client.call(method, "/lock?key=a&key=b").token(&token);
        call.send().await.expect_problem(400, "bad-parameter");
    }
    client.put("/locks/a?key=b").send().await.expect_problem(400, "bad-parameter");
    assert!(is_free(&client, "a").await && is_free(&client, "b").await);
    client.put(&format!("/lock?{}&ttl=1s", keys(16))).send().await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_needs_its_right_and_counts_for_its_key() {
    let mut keys = KeysFile::new();
    let narrow = keys.add("narrow", "prefixes = [\"a/\"]\nallow = [\"acquire\"]");
    let slow = keys.add("slow", "every_key = true\nallow = [\"acquire\"]\nrate = 0.001\nburst = 3");
    let few = keys.add("few", "every_key = true\nallow = [\"acquire\"]\nmax_locks = 2");
    let holds = keys.add("holds", "every_key = true\nallow = [\"acquire\"]\nmax_holds = 2");
    let all = keys.add_for_all("all", "\"acquire\", \"inspect\"");
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path]).await;
    let client = Client::new(gateway.address);
    for keys in ["key=a/1&key=b&key=a/2", "key=b&key=a/1"] {
        for call in
            [client.put(&format!("/lock?{keys}")), client.call("POST", &format!("/hold?{keys}&ttl=1s"))]
        {
            let refused = call.key(&narrow).send().await.expect_problem(403, "right-missing");
            assert_eq!(refused.json()["key"], json!("b"), "{keys}");
        }
    }
    // That of one lock names none, as ever.
    let refused = client.put("/lock?key=b").key(&narrow).send().await.expect_problem(403, "right-missing");
    assert!(refused.json().get("key").is_none(), "{}", refused.json());
    client.put("/lock?key=a/1&key=a/2").key(&narrow).send().await.expect(201);
    // Three locks are three requests, and one that is refused takes nothing of the rate.
    let left = |answer: &Answer| answer.header("ratelimit").unwrap().split(';').nth(1).unwrap().to_owned();
    let first = client.put("/locks/1").key(&slow).send().await.expect(201);
    assert_eq!(left(&first), "r=2");
    for _ in 0..2 {
        client.put("/lock?key=2&key=3&%6Bey=4").key(&slow).send().await.expect_problem(429, "rate-limited");
    }
    assert_eq!(client.get("/locks/2").key(&all).send().await.status, 404);
    assert_eq!(left(&client.put("/lock?key=2&key=3").key(&slow).send().await.expect(201)), "r=0");
    // The share of locks is looked at before each, and the share of holds before the first.
    let before = client.put("/locks/5").key(&few).send().await.expect(201);
    let full = client.put("/lock?key=6&key=7").key(&few).send().await;
    assert_eq!(full.expect_problem(429, "too-many-locks").json()["key"], json!("7"));
    client.delete("/locks/5").key(&few).token(&before.token()).send().await.expect(204);
    let hold = client.call("POST", "/hold?key=h").key(&holds).open().await;
    client.put("/lock?key=6&key=7").key(&holds).send().await.expect_problem(429, "too-many-holds");
    drop(hold);
    // What could never be granted is told so.
    for key in [&few, &holds] {
        for request in [client.put("/lock?key=6&key=7&key=8"), client.call("POST", "/hold?key=6&key=7&key=8")]
        {
            let never = request.key(key).send().await.expect_problem(400, "bad-parameter");
            let detail = "this request names 3 keys, and this API key may have 2 of them at once (max_locks, max_holds)";
            assert_eq!(
                (&never.json()["parameter"], &never.json()["detail"]),
                (&json!("key"), &json!(detail))
            );
        }
    }
    eventually("nothing counts any more", async || {
        client.put("/lock?key=5&key=6").key(&few).send().await.status == 201
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_has_its_place_at_the_lock_that_it_waits_for() {
    let mut keys = KeysFile::new();
    let one = keys.add("one", "every_key = true\nallow = [\"acquire\"]\nmax_waiters = 1");
    keys.write();
    let [flag, path] = keys.flag();
    let audit = tempfile::tempdir().unwrap();
    let log = audit.path().join("audit.log").display().to_string();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path, "--audit-log", &log]).await;
    let (client, token) = (Client::new(gateway.address), fresh_token());
    client.put("/locks/b?ttl=1m").key(&one).send().await.expect(201);
    let refused = client.put("/lock?key=a&key=b&wait=200ms").key(&one).token(&token).send().await;
    refused.expect_problem(423, "lock-held");
    let other = || client.put("/locks/b?wait=100ms").key(&one).token(&token);
    // Its place is kept for its token, which comes back to it in any way.
    other().send().await.expect_problem(423, "lock-held");
    client
        .put("/lock?key=a&key=b&wait=100ms")
        .key(&one)
        .token(&token)
        .send()
        .await
        .expect_problem(423, "lock-held");
    client.delete("/locks/b").key(&one).token(&token).send().await.expect(204);
    client.put("/locks/b?wait=100ms").key(&one).send().await.expect_problem(423, "lock-held");
    // Whose lock it is: each has a line of its own.
    eventually("both are in the audit log", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        ["a", "b"].iter().all(|key| text.matches(&format!("\"lock\":\"{key}\"")).count() >= 2)
    })
    .await;
}

/// Its ticket stays in a queue, so it counts, whatever else is done with its token.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_several_that_has_left_while_it_waited_counts_until_its_ticket_ends() {
    let mut keys = KeysFile::new();
    let one =
        keys.add("one", "every_key = true\nallow = [\"acquire\", \"inspect\", \"once\"]\nmax_waiters = 1");
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path, "--ticket-ttl", "1m"]).await;
    let (client, token) = (Client::new(gateway.address), fresh_token());
    client.put("/locks/b?ttl=10m").key(&one).send().await.expect(201);
    let leaving = tokio::spawn(client.put("/lock?key=a&key=b&wait=1m").key(&one).token(&token).send());
    let waiters = async || client.get("/locks/b").key(&one).send().await.json()["waiters"].as_u64();
    eventually("it waits", async || waiters().await == Some(1)).await;
    leaving.abort();
    eventually("it has left", async || waiters().await == Some(0)).await;
    let free_a = || client.delete("/locks/a").key(&one).token(&token).send();
    eventually("it has no lock", async || free_a().await.status != 503).await;
    for path in ["/locks/b?wait=1ms", "/once/b?wait=1ms"] {
        let another = client.put(path).key(&one).token(&fresh_token()).send().await;
        another.expect_problem(429, "too-many-waiters");
    }
    client
        .put("/once/b?wait=1ms")
        .key(&one)
        .token(&token)
        .send()
        .await
        .expect_problem(429, "too-many-waiters");
}

/// Its token may ask for other locks, or for several of which one has its ticket. What it gets there uses another ticket.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_a_client_that_left_counts_whatever_else_its_token_asks_for() {
    let mut keys = KeysFile::new();
    let other = keys.add_for_all("other", "\"acquire\", \"inspect\"");
    let lines = "every_key = true\nallow = [\"acquire\"]\nmax_locks = 2\nmax_waiters";
    let mut key = |name: &str, most: usize| keys.add(name, &format!("{lines} = {most}"));
    let [left, later, full, moved] =
        [("left", 2), ("later", 1), ("full", 1), ("moved", 1)].map(|(name, most)| key(name, most));
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path, "--ticket-ttl", "1m"]).await;
    let client = Client::new(gateway.address);
    for lock in ["k2", "k3"] {
        client.put(&format!("/locks/{lock}?ttl=10m")).key(&other).send().await.expect(201);
    }
    let put =
        |key: &str, token: &str, query: &str| client.put(&format!("/lock?{query}")).key(key).token(token);
    let too_many = async |key: &str| {
        let refused = put(key, &fresh_token(), "key=k2&wait=1ms").send().await;
        refused.expect_problem(429, "too-many-waiters");
    };

    // It comes back for the one of several that it did not wait for.
    let token = fresh_token();
    let leaving = tokio::spawn(put(&left, &token, "key=k1&key=k2&wait=1m").send());
    let waiters = async || client.get("/locks/k2").key(&other).send().await.json()["waiters"].as_u64();
    eventually("it waits", async || waiters().await == Some(1)).await;
    leaving.abort();
    eventually("it has left", async || waiters().await == Some(0)).await;
    eventually("it has no lock", async || client.get("/locks/k1").key(&other).send().await.status == 404)
        .await;
    put(&left, &token, "key=k1&wait=1s").send().await.expect(201);
    client.delete("/locks/k1").key(&left).token(&token).send().await.expect(204);
    put(&left, &fresh_token(), "key=k2&wait=1ms").send().await.expect_problem(423, "lock-held");
    too_many(&left).await;

    // It holds one of several, so that it does not wait for the other.
    let token = fresh_token();
    put(&later, &token, "key=k2&wait=1ms").send().await.expect_problem(423, "lock-held");
    put(&later, &token, "key=z").send().await.expect(201);
    put(&later, &token, "key=k2&key=z&wait=20s").send().await.expect_problem(423, "lock-held");
    too_many(&later).await;

    // Its key has as many locks as it may, so that it may not wait.
    let token = fresh_token();
    put(&full, &token, "key=k2&wait=1ms").send().await.expect_problem(423, "lock-held");
    for lock in ["full-1", "full-2"] {
        client.put(&format!("/locks/{lock}?ttl=10m")).key(&full).send().await.expect(201);
    }
    put(&full, &token, "key=k2&wait=1s").send().await.expect_problem(429, "too-many-locks");
    too_many(&full).await;

    // It waits for another one besides. Both tickets count, and a third is not to be had by a further request for several.
    let token = fresh_token();
    put(&moved, &token, "key=k3&wait=1ms").send().await.expect_problem(423, "lock-held");
    put(&moved, &token, "key=k2&key=k3&wait=300ms").send().await.expect_problem(423, "lock-held");
    put(&moved, &token, "key=k1&key=k2&wait=1ms").send().await.expect_problem(429, "too-many-waiters");
    put(&moved, &token, "key=k2&key=k3&wait=1ms").send().await.expect_problem(423, "lock-held");
    client.delete("/locks/k2").key(&moved).token(&token).send().await.expect(204);
    too_many(&moved).await;
    client.delete("/locks/k3").key(&moved).token(&token).send().await.expect(204);
    put(&moved, &fresh_token(), "key=k3&wait=1ms").send().await.expect_problem(423, "lock-held");
}

/// Until a request waits for this lock.
async fn somebody_waits(client: &Client, key: &str) {
    eventually("somebody waits", async || {
        client.get(&format!("/locks/{key}")).send().await.json()["waiters"] == json!(1)
    })
    .await;
}

fn until(began: Instant, most: Duration) {
    assert!(began.elapsed() <= most, "it took {:?}", began.elapsed());
}
