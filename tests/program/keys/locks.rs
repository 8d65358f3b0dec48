//! How many locks a key may have at once, by one gateway.

use http_body_util::BodyExt;

use super::gateway;
use kit::{Client, Gateway, KeysFile, RedisServer, eventually, fresh_token};

const ALL: &str = "every_key = true\nallow = [\"acquire\", \"inspect\", \"admin\"]";

/// A key that may have so many locks.
fn limited(file: &mut KeysFile, most: usize) -> String {
    file.add("limited", &format!("{ALL}\nmax_locks = {most}"))
}

/// With the keys that were written.
async fn gateway_on(redis: &RedisServer, file: &KeysFile) -> Gateway {
    let [flag, path] = file.flag();
    Gateway::on_redis(redis, &[flag.as_str(), &path]).await
}

async fn two_gateways(redis: &RedisServer, file: &KeysFile) -> [Gateway; 2] {
    [gateway_on(redis, file).await, gateway_on(redis, file).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_so_many_locks_and_no_more_until_one_has_ended() {
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 3), file.add("other", ALL));
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let put = |lock: &str| client.put(&format!("/locks/{lock}")).key(&key);
    let room = async |why: &str| {
        eventually(why, async || {
            let taken = put("probe").send().await;
            if taken.status != 201 {
                taken.expect_problem(429, "too-many-locks");
                return false;
            }
            client.delete("/locks/probe").key(&key).token(&taken.token()).send().await.expect(204);
            true
        })
        .await;
    };
    let full = async |what: &str| {
        let refused = put("probe").send().await;
        assert_eq!(refused.status, 429, "{what}");
        assert!(refused.expect_problem(429, "too-many-locks").header("retry-after").is_some());
    };
    let own = fresh_token();
    put("a?ttl=1h").token(&own).send().await.expect(201);
    let second = put("b?ttl=1h").send().await.expect(201).token();
    let third = put("c?ttl=1h").send().await.expect(201);
    for call in [
        put("d"),
        put("d").token(&fresh_token()),
        put("d?wait=5s"),
        put("d?wait=5s").token(&fresh_token()),
        client.call("POST", "/hold?key=d").key(&key),
        client.call("POST", "/hold?key=d&wait=5s").key(&key).token(&fresh_token()),
    ] {
        call.send().await.expect_problem(429, "too-many-locks");
    }
    client.get("/locks/d").key(&other).send().await.expect(404);
    client.put("/locks/d").key(&other).send().await.expect(201);
    // What it holds, it goes on to hold, and whoever holds a lock it is told of.
    assert_eq!(put("a?ttl=1h").token(&own).send().await.expect(200).json()["key"], "a");
    put("b?ttl=1h").token(&second).send().await.expect(200);
    client.patch("/locks/b?ttl=1h").key(&key).token(&second).send().await.expect(200);
    put("a").token(&fresh_token()).send().await.expect_problem(423, "lock-held");
    put("d").token(&fresh_token()).send().await.expect_problem(423, "lock-held");
    let mut held = client.call("POST", "/hold?key=a").key(&key).token(&own).open().await;
    assert_eq!(held.status(), 200);
    held.body_mut().frame().await.unwrap().unwrap();
    drop(held);
    full("the token holds it yet").await;
    // One that ends makes room, however it ends.
    client.delete("/locks/b").key(&key).token(&second).send().await.expect(204);
    room("it was released").await;
    let number = third.fencing_token();
    let short = put("short?ttl=700ms").send().await.expect(201);
    full("three again").await;
    room("its lease is over").await;
    client
        .delete(&format!("/locks/c?force=true&fencing_token={number}"))
        .key(&other)
        .send()
        .await
        .expect(204);
    put("e?ttl=1h").send().await.expect(201);
    room("it was broken").await;
    client.delete("/locks/short").key(&key).token(&short.token()).send().await.expect(404);
    let kept = put("kept?ttl=1h&min_hold=1500ms").send().await.expect(201).token();
    client.delete("/locks/kept").key(&key).token(&kept).send().await.expect(204);
    full("it is kept for the rest of its min_hold").await;
    room("it is kept no more").await;
    let mut hold = client.call("POST", "/hold?key=held").key(&key).open().await;
    hold.body_mut().frame().await.unwrap().unwrap();
    full("a connection holds it").await;
    drop(hold);
    room("its connection has ended").await;
    // What reaches nobody is taken back, and counts no more.
    let long = put("gone?wait=20s&ttl=1h").token(&fresh_token());
    client.put("/locks/gone?ttl=1s").key(&other).send().await.expect(201);
    let leaving = tokio::spawn(long.send());
    eventually("it waits", async || {
        client.get("/locks/gone").key(&other).send().await.json()["waiters"] == 1
    })
    .await;
    leaving.abort();
    room("nobody was told of it").await;
}

/// Whoever waits for a lock of its own key is to have it in place of the one who holds it, and no other. Of slots there may be many.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_as_many_locks_as_it_may_have_waits_for_its_own() {
    let mut file = KeysFile::new();
    let key = limited(&mut file, 1);
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let first = client.put("/locks/own?ttl=1h").key(&key).send().await.expect(201).token();
    let slot = client.put("/locks/own?ttl=1h&slots=9&wait=50s").key(&key).token(&fresh_token());
    slot.send().await.expect_problem(429, "too-many-locks");
    let waiting = tokio::spawn(client.put("/locks/own?ttl=1h&wait=50s").key(&key).send());
    eventually("it waits", async || client.get("/locks/own").key(&key).send().await.json()["waiters"] == 1)
        .await;
    client.delete("/locks/own").key(&key).token(&first).send().await.expect(204);
    let second = waiting.await.unwrap().expect(201).token();
    client.put("/locks/else").key(&key).send().await.expect_problem(429, "too-many-locks");
    client.delete("/locks/own").key(&key).token(&second).send().await.expect(204);
    client.put("/locks/else").key(&key).send().await.expect(201);
}

/// They have no lock yet, and what they come to have was asked for before the others.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_take_no_room_before_they_are_granted_the_lock() {
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 2), file.add("other", ALL));
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let held = client.put("/locks/held?ttl=1h").key(&other).send().await.expect(201).token();
    let waiting = tokio::spawn(client.put("/locks/held?ttl=1h&wait=50s").key(&key).send());
    let waits = async || client.get("/locks/held").key(&other).send().await.json()["waiters"] == 1;
    eventually("it waits", waits).await;
    for lock in ["a", "b"] {
        client.put(&format!("/locks/{lock}?ttl=1h")).key(&key).send().await.expect(201);
    }
    client.put("/locks/c").key(&key).send().await.expect_problem(429, "too-many-locks");
    client.delete("/locks/held").key(&other).token(&held).send().await.expect(204);
    let token = waiting.await.unwrap().expect(201).token();
    client.delete("/locks/held").key(&key).token(&token).send().await.expect(204);
    client.put("/locks/c").key(&key).send().await.expect_problem(429, "too-many-locks");
}

/// A lock that is free is granted at once, also to one who would have waited for it.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_would_wait_take_no_more_free_locks_at_once_than_others() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let key = limited(&mut file, 5);
    file.write();
    let gateway = gateway_on(&redis, &file).await;
    let client = Client::new(gateway.address);
    let put = |n| client.put(&format!("/locks/{n}?ttl=1h&wait=1s")).key(&key).send();
    let mut answers = futures_util::future::join_all((0..100).map(put)).await;
    answers.retain(|answer| answer.status != 201);
    assert_eq!(answers.len(), 95);
    for answer in answers {
        answer.expect_problem(429, "too-many-locks");
    }
}

/// What another gateway does is not told to this one, which looks for itself before it refuses for long.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_another_gateway_granted_are_confirmed_and_those_that_it_released_make_room() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let key = limited(&mut file, 4);
    file.write();
    let gateways = two_gateways(&redis, &file).await;
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let (elsewhere, server_made) = (fresh_token(), there.put("/locks/y?ttl=1h").key(&key).send().await);
    there.put("/locks/x?ttl=1h").key(&key).token(&elsewhere).send().await.expect(201);
    let mut tokens = Vec::new();
    for n in 0..4 {
        tokens.push(here.put(&format!("/locks/{n}?ttl=1h")).key(&key).send().await.expect(201).token());
    }
    here.put("/locks/z").key(&key).token(&fresh_token()).send().await.expect_problem(429, "too-many-locks");
    here.put("/locks/x?ttl=1h").key(&key).token(&elsewhere).send().await.expect(200);
    here.put("/locks/y?ttl=1h").key(&key).token(&server_made.token()).send().await.expect(200);
    here.patch("/locks/x?ttl=1h").key(&key).token(&elsewhere).send().await.expect(200);
    here.delete("/locks/x").key(&key).token(&elsewhere).send().await.expect(204);
    here.delete("/locks/y").key(&key).token(&server_made.token()).send().await.expect(204);
    here.put("/locks/z").key(&key).send().await.expect_problem(429, "too-many-locks");
    for (n, token) in tokens.iter().enumerate() {
        there.delete(&format!("/locks/{n}")).key(&key).token(token).send().await.expect(204);
    }
    eventually("it has seen that they are free", async || {
        here.put("/locks/z?ttl=10ms").key(&key).send().await.status == 201
    })
    .await;
}

/// A look names a hundred of those who share a lock: those whose leases end first.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_another_gateway_released_make_room_however_many_share_the_lock() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 8), file.add("other", ALL));
    file.write();
    let gateways = two_gateways(&redis, &file).await;
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    for _ in 0..110 {
        there.put("/locks/m?slots=1000&ttl=1h").key(&other).send().await.expect(201);
    }
    let mut tokens = Vec::new();
    for _ in 0..8 {
        let taken = here.put("/locks/m?slots=1000&ttl=2h").key(&key).send().await;
        tokens.push(taken.expect(201).token());
    }
    here.put("/locks/more").key(&key).send().await.expect_problem(429, "too-many-locks");
    for token in &tokens[1..] {
        there.delete("/locks/m").key(&key).token(token).send().await.expect(204);
    }
    for n in 1..tokens.len() {
        eventually("it has seen that they are free", async || {
            here.put(&format!("/locks/{n}?ttl=1h")).key(&key).send().await.status == 201
        })
        .await;
    }
    here.put("/locks/more").key(&key).send().await.expect_problem(429, "too-many-locks");
}

/// Its value may be none of ours, or its server be down.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_cannot_be_looked_at_keeps_no_other_from_making_room() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let key = limited(&mut file, 4);
    file.write();
    let gateways = two_gateways(&redis, &file).await;
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    here.put("/locks/a?ttl=1h").key(&key).send().await.expect(201);
    let _: () = redis.command(&["SET", "fencepost:{0}:lock:a", "?garbage", "PX", "3600000"]).await;
    let mut held = Vec::new();
    for path in ["/locks/b", "/locks/c", "/locks/d"] {
        let taken = here.put(&format!("{path}?ttl=1h")).key(&key).send().await;
        held.push((path, taken.expect(201).token()));
    }
    for (path, token) in &held {
        there.delete(path).key(&key).token(token).send().await.expect(204);
    }
    eventually("it has seen that the others are free", async || {
        here.put("/locks/z?ttl=10ms").key(&key).send().await.status == 201
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_says_nothing_has_as_many_locks_as_the_gateway_says() {
    let mut file = KeysFile::new();
    let (first, second) = (file.add("first", ALL), file.add("second", ALL));
    let started = gateway(&file, &["--default-max-locks", "2"]).await;
    let client = Client::new(started.address);
    for (key, name) in [(&first, "a"), (&second, "b")] {
        for n in 0..2 {
            client.put(&format!("/locks/{name}{n}")).key(key).send().await.expect(201);
        }
        client.put("/locks/x").key(key).send().await.expect_problem(429, "too-many-locks");
    }
    // Where nobody is told apart, nobody is counted.
    let anonymous = Gateway::start(&["--store", "memory:", "--default-max-locks", "2"]).await;
    let client = Client::new(anonymous.address);
    for n in 0..5 {
        client.put(&format!("/locks/{n}")).send().await.expect(201);
    }
}

/// A repeated release is what a client sends that has heard nothing, and its token may be shown in any other way.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_kept_counts_however_often_its_token_is_shown() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 1), file.add("other", ALL));
    file.write();
    let gateways = two_gateways(&redis, &file).await;
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    for (lock, releases) in [("again", [&here, &here]), ("elsewhere", [&there, &here])] {
        let (path, token) = (format!("/locks/{lock}"), fresh_token());
        here.put(&format!("{path}?ttl=1h&min_hold=1h")).key(&key).token(&token).send().await.expect(201);
        for client in releases {
            client.delete(&path).key(&key).token(&token).send().await.expect(204);
        }
        here.put(&path).key(&key).token(&token).send().await.expect_problem(409, "token-released");
        here.patch(&path).key(&key).token(&token).send().await.expect_problem(409, "token-released");
        here.put("/locks/more").key(&key).send().await.expect_problem(429, "too-many-locks");
        here.delete(&format!("{path}?force=true")).key(&other).send().await.expect(204);
        eventually("what was broken makes room", async || {
            let taken = here.put("/locks/more").key(&key).send().await;
            if taken.status == 201 {
                here.delete("/locks/more").key(&key).token(&taken.token()).send().await.expect(204);
            }
            taken.status == 201
        })
        .await;
    }
}

/// On Redis it takes a second round trip to find that a token holds nothing, and its grant may come meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_are_overtaken_by_the_grant_of_their_token_uncount_nothing() {
    const MOST: usize = 3;
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let key = limited(&mut file, MOST);
    file.write();
    let gateway = gateway_on(&redis, &file).await;
    let client = Client::new(gateway.address);
    let mut held = Vec::new();
    for n in 0..600 {
        let (path, token) = (format!("/locks/{n}?ttl=1h"), fresh_token());
        let renew = client.patch(&path).key(&key).token(&token).send();
        let take = client.put(&path).key(&key).token(&token).send();
        let (_, taken) = tokio::join!(renew, take);
        if taken.status != 429 {
            taken.expect(201);
            held.push((n, token));
        }
        assert!(held.len() <= MOST, "{} are held", held.len());
        if held.len() == MOST {
            client.put("/locks/more").key(&key).send().await.expect_problem(429, "too-many-locks");
            let (n, token) = held.remove(0);
            client.delete(&format!("/locks/{n}")).key(&key).token(&token).send().await.expect(204);
        }
    }
    assert!(!held.is_empty());
}

/// Else it would ask again at once, as one does whose wait is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_not_wait_since_its_key_has_too_many_locks_is_told_so() {
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 1), file.add("other", ALL));
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    let own = fresh_token();
    client.put("/locks/own?ttl=1h").key(&key).token(&own).send().await.expect(201);
    client.put("/locks/held?ttl=1h").key(&other).send().await.expect(201);
    for call in [client.put("/locks/held?wait=5s"), client.call("POST", "/hold?key=held&wait=5s")] {
        call.key(&key).token(&fresh_token()).send().await.expect_problem(429, "too-many-locks");
    }
    client.put("/locks/own?wait=5s").key(&key).token(&own).send().await.expect(200);
    client.put("/locks/held").key(&key).token(&fresh_token()).send().await.expect_problem(423, "lock-held");
}

/// Others hold such a lock, and yet a client of another key would be granted it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_as_many_locks_as_it_may_have_is_told_so_where_a_lock_has_free_slots() {
    let redis = RedisServer::start().await;
    let mut file = KeysFile::new();
    let (key, other) = (limited(&mut file, 2), file.add("other", ALL));
    file.write();
    let [flag, path] = file.flag();
    for store in ["memory:", redis.url()] {
        let gateway = Gateway::start(&["--store", store, &flag, &path, "--fleet-lock", "w=3"]).await;
        let client = Client::new(gateway.address);
        let put = async |query: &str, key: &str| {
            client.put(&format!("/lock?ttl=1h&{query}")).key(key).send().await.expect(201).token()
        };
        eventually("the store is there", async || client.get("/readyz").send().await.status == 200).await;
        put("key=own-1", &key).await;
        put("key=own-2", &key).await;
        for query in
            ["key=room&slots=3", "key=fleet-lock:w&slots=3", "key=taken&slots=2", "key=taken&slots=2"]
        {
            put(query, &other).await;
        }
        for (call, status, problem) in [
            (client.put("/locks/room?slots=3"), 429, "too-many-locks"),
            (client.put("/locks/room?slots=any&wait=1s"), 429, "too-many-locks"),
            (client.put("/lock?key=room&key=z&slots=2"), 429, "too-many-locks"),
            (client.call("POST", "/hold?key=room&slots=3"), 429, "too-many-locks"),
            (client.put("/locks/room"), 423, "lock-held"),
            (client.put("/locks/taken?slots=3"), 423, "lock-held"),
        ] {
            call.key(&key).token(&fresh_token()).send().await.expect_problem(status, problem);
        }
        let machine = r#"{"client_params":{"id":"m1","group":"w"}}"#;
        let reboot = client.post("/fleet-lock/v1/pre-reboot").header("fleet-lock-protocol", "true");
        assert_eq!(reboot.body(machine).key(&key).send().await.status, 429);
        // A token that the gateway made takes nothing anew, and no other client is in its way.
        let made = put("key=room&slots=3", &other).await;
        client.delete("/locks/room").key(&other).token(&made).send().await.expect(204);
        let again = client.put("/locks/room?slots=3").key(&other).token(&made);
        again.send().await.expect_problem(409, "token-released");
    }
}
