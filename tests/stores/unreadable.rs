//! Locks whose values no gateway can read: that none is written on any machine, and what is said of those that are there.

use std::time::Duration;

use fencepost::lock::LeaseToken;
use tokio::time::Instant;

use kit::gateway::run;
use kit::http::Call;
use kit::quorum::{has_lock, shared};
use kit::{Client, Gateway, PATIENCE, RedisServer, eventually, fresh_token};

const TAKE_FREE: &str = concat!(
    include_str!("../../src/store/redis/scripts/shared/constants.lua"),
    include_str!("../../src/store/redis/fast_path/take_free.lua")
);

/// What stands before a script to have Lua write numbers as where a C `long` has 32 bits.
const WITH_32_BITS: &str = "local all, string = string, {}
    for _, name in ipairs({ 'find', 'gmatch', 'gsub', 'match', 'rep', 'sub' }) do string[name] = all[name] end
    string.format = function(form, number)
        if all.find(form, '%%[diuxXoc]') and number > 2147483647 then number = -2147483648 end
        return all.format(form, number)
    end
    ";

/// What makes of a lock's number what Redis on 32 bits once did.
const SPOIL: &str = "local lock, left_ms = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
    lock = string.sub(lock, 1, 98) .. '-2147483648' .. string.match(lock, '^%d+(.*)$', 99)
    redis.call('SET', KEYS[1], lock, 'PX', left_ms)";

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_written_whole_where_a_long_has_32_bits() {
    const LAST: u64 = 1_700_000_000_000_000;
    let redis = RedisServer::start().await;
    let _: () = redis.command(&["HSET", "fence", "server", &LAST.to_string()]).await;
    let script = format!("{WITH_32_BITS}{TAKE_FREE}");
    let by = format!("{} {} ", "a".repeat(64), "b".repeat(32));
    let words = ["EVAL", &script, "4", "lock", "seats", "mark", "fence", "server", &by, "60000"];
    assert_eq!(redis.command::<u64>(&words).await, LAST + 1);
    assert_eq!(redis.command::<String>(&["GET", "lock"]).await, format!("{by}{} ", LAST + 1));
}

/// A gateway on one server, and a lock on it that its token holds and nobody can read.
async fn spoiled(client: &Client, redis: &RedisServer, key: &str) -> String {
    let token = fresh_token();
    client.put(&format!("/locks/{key}?ttl=1m")).token(&token).send().await.expect(201);
    spoil(redis, key).await;
    token
}

/// What is asked is answered by "outcome unknown". An answer that cannot be read costs the gateway its connection, and a busy
/// machine may not give it another one in time: then nothing was sent, which the gateway says, and it is asked again.
async fn expect_in_doubt(request: impl Fn() -> Call) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let answer = request().send().await;
        let is_unsent = answer.json()["detail"].as_str().unwrap().contains("no connection to Redis in time");
        if !is_unsent || Instant::now() > give_up {
            answer.expect_problem(503, "outcome-unknown");
            return;
        }
    }
}

async fn spoil(redis: &RedisServer, key: &str) {
    let names: Vec<String> = redis.command(&["KEYS", &format!("*}}:lock:{key}")]).await;
    let _: () = redis.command(&["EVAL", SPOIL, "1", &names[0]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_written_to_a_lock_that_cannot_be_read_is_in_doubt() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    let lock = |key: &str| format!("fencepost:{{0}}:lock:{key}");

    let token = spoiled(&client, &redis, "renewed").await;
    expect_in_doubt(|| client.patch("/locks/renewed?ttl=4m").token(&token)).await;
    assert!(redis.command::<u64>(&["PTTL", &lock("renewed")]).await > 120_000, "it has renewed the lock");

    let token = spoiled(&client, &redis, "again").await;
    expect_in_doubt(|| client.put("/locks/again?ttl=4m").token(&token)).await;
    let token = spoiled(&client, &redis, "shown").await;
    expect_in_doubt(|| client.get("/locks/shown").token(&token)).await;

    // Whoever only looks at it, or does not get it, has certainly changed nothing.
    spoiled(&client, &redis, "seen").await;
    let before: String = redis.command(&["GET", &lock("seen")]).await;
    client.get("/locks/seen").send().await.expect_problem(503, "store-unavailable");
    client.put("/locks/seen").token(&fresh_token()).send().await.expect_problem(503, "store-unavailable");
    client.get("/locks/seen").token(&fresh_token()).send().await.expect_problem(503, "store-unavailable");
    assert_eq!(redis.command::<String>(&["GET", &lock("seen")]).await, before);

    // To free it nobody must read its number.
    let token = spoiled(&client, &redis, "freed").await;
    client.delete("/locks/freed").token(&token).send().await.expect(204);
    client.put("/locks/freed").send().await.expect(201);
}

/// What begins as an offer does, and is none, may be a later version's way to say that the lock is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_only_looks_like_an_offer_is_not_called_free() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    let lock = "fencepost:{0}:lock:k";
    let _: () = redis.command(&["SET", lock, "?garbage", "PX", "60000"]).await;
    client.get("/locks/k").send().await.expect_problem(503, "store-unavailable");
    client.get("/locks/k?fencing_token=5").send().await.expect_problem(503, "store-unavailable");
    for query in ["ttl=1m", "ttl=1m&slots=5"] {
        let put = client.put(&format!("/locks/k?{query}")).token(&fresh_token());
        put.send().await.expect_problem(503, "store-unavailable");
    }
    assert_eq!(redis.command::<String>(&["GET", lock]).await, "?garbage");
    let output = run(&["check", "--store", redis.url()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("cannot be read: the value of lock \"k\""), "{page}");
    assert_eq!(output.status.code(), Some(1), "{page}");
}

/// Of what another program put in the place of a lock, no lease is told as missing, whatever lock was looked at before.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_in_the_place_of_a_lock_is_not_told_as_a_lock_without_a_ttl() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    // In the order of Redis, some list comes right behind some lock.
    for n in 0..10 {
        client.put(&format!("/locks/held-{n}?ttl=1m")).send().await.expect(201);
        let _: u64 = redis.command(&["LPUSH", &format!("fencepost:{{0}}:lock:list-{n}"), "x"]).await;
    }
    let output = run(&["check", "--store", redis.url()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("cannot be read: the value of lock \"list-"), "{page}");
    assert!(!page.contains("lease of lock"), "{page}");
}

/// K3. Another program took the TTL, or a restore forgot it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_a_ttl_is_not_told_of_and_its_token_gives_it_one_again() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    let (token, lock) = (fresh_token(), "fencepost:{0}:lock:k");
    client.put("/locks/k?ttl=1m").token(&token).send().await.expect(201);
    let _: u64 = redis.command(&["PERSIST", lock]).await;
    client.get("/locks/k").send().await.expect_problem(503, "store-unavailable");
    client.put("/locks/k").token(&fresh_token()).send().await.expect_problem(503, "store-unavailable");
    // To pin it would set its lease to what is left, which is nothing.
    expect_in_doubt(|| client.get("/locks/k").token(&token)).await;
    assert_eq!(redis.command::<i64>(&["PTTL", lock]).await, -1, "it is there yet");
    let output = run(&["check", "--store", redis.url()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("cannot be read: the lease of lock \"k\""), "{page}");
    assert_eq!(output.status.code(), Some(1), "{page}");

    let _: () = redis.command(&["CONFIG", "RESETSTAT"]).await;
    let waits = client.put("/locks/k?wait=2s").token(&fresh_token()).within(PATIENCE);
    waits.send().await.expect_problem(503, "store-unavailable");
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    let (_, calls) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
    let calls: u64 = calls.split(',').next().unwrap().parse().unwrap();
    assert!(calls < 100, "one that waits has asked {calls} times");

    client.patch("/locks/k?ttl=1m").token(&token).send().await.expect(200);
    assert!(redis.command::<i64>(&["PTTL", lock]).await > 0);
    client.get("/locks/k").token(&token).send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_calls_no_lock_free_that_it_cannot_read() {
    let quorum = shared().await;
    let prefix = fresh_token();
    let gateway = quorum.gateway(&["--redis-prefix", &prefix, "--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    // Nobody else's lock on the shared nodes is called so.
    let key = fresh_token();
    let path = format!("/locks/{key}");
    client.put(&format!("{path}?ttl=1m")).token(&token).send().await.expect(201);
    for node in &quorum.nodes {
        // Two are enough for a grant.
        eventually("it has the lock", async || {
            client.patch(&path).token(&token).send().await.expect(200);
            has_lock(node, &key).await
        })
        .await;
    }
    for node in &quorum.nodes {
        spoil(node, &key).await;
    }
    client.get(&path).send().await.expect_problem(503, "store-unavailable");
    expect_in_doubt(|| client.get(&path).token(&token)).await;
    expect_in_doubt(|| client.patch(&path).token(&token)).await;
    expect_in_doubt(|| client.put(&path).token(&token)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_the_locks_that_cannot_be_read_and_fails() {
    let redis = RedisServer::start().await;
    let check = || {
        let output = run(&["check", "--store", redis.url()]);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/good?ttl=1m").send().await.expect(201);
    let (code, page) = check();
    assert!(code == 0 && !page.contains("cannot be read"), "{page}");
    spoiled(&client, &redis, "bad").await;
    let _: () = redis.command(&["RPUSH", "fencepost:{0}:lock:list", "something"]).await;
    let before = redis.keys().await;
    let (code, page) = check();
    assert_eq!(code, 1, "{page}");
    for key in ["bad", "list"] {
        assert!(page.contains(&format!("cannot be read: the value of lock \"{key}\"")), "{page}");
    }
    assert!(!page.contains("\"good\""), "{page}");
    assert_eq!(redis.keys().await.len(), before.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_all_that_no_script_can_read_and_nothing_that_scripts_wrote() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let check = |prefix: &str| {
        let output = run(&["check", "--store", redis.url(), "--redis-prefix", prefix]);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (token, waiter) = (fresh_token(), fresh_token());
    client.put("/locks/freed?ttl=1m").token(&token).send().await.expect(201);
    client.delete("/locks/freed").token(&token).send().await.expect(204);
    client.put("/locks/slots?ttl=1m&slots=3").token(&token).send().await.expect(201);
    client.put("/locks/held?ttl=1m").token(&token).send().await.expect(201);
    client.put("/locks/held?ttl=1m&wait=100ms").token(&waiter).send().await.expect(423);
    client.put("/once/begun?ttl=1m").token(&token).send().await.expect(201);
    client.put("/once/done?ttl=1m").token(&token).send().await.expect(201);
    client.post("/once/done").token(&token).body("a result\nof two lines").send().await.expect(200);
    let (code, page) = check("fencepost");
    assert!(code == 0 && !page.contains("cannot be read"), "{page}");

    let _: () = redis.command(&["SET", "fencepost:{0}:once:odd", "something"]).await;
    for kind in ["once:list", "seats:odd", "ends:odd"] {
        let _: i64 = redis.command(&["RPUSH", &format!("fencepost:{{0}}:{kind}"), "something"]).await;
    }
    let _: i64 = redis.command(&["RPUSH", "another:{0}:fence", "something"]).await;
    let (code, page) = check("fencepost");
    assert!(code == 1 && page.matches("cannot be read").count() == 4, "{page}");
    let (keys, (code_of_another, page_of_another)) = (redis.keys().await.len(), check("another"));
    assert_eq!(code_of_another, 1, "{page_of_another}");
    let page = page + &page_of_another;
    for what in [
        "record \"odd\"",
        "record \"list\"",
        "key \"fencepost:{0}:seats:odd\"",
        "key \"fencepost:{0}:ends:odd\"",
        "key \"another:{0}:fence\"",
    ] {
        assert!(page.contains(&format!("cannot be read: the value of {what}: another")), "{what}: {page}");
    }
    assert_eq!(redis.keys().await.len(), keys);
}

/// What `held` has for a token: its name there.
fn field(token: &str) -> String {
    LeaseToken::parse(token.as_bytes()).unwrap().hash().to_string()
}

/// N13. It is counted by when it ends, so it is there although what stands of it cannot be read, or is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_cannot_be_read_is_neither_free_nor_anothers() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    for text in [Some("v2 1 2 of another version"), Some("1 2 x y"), Some("1 2 "), None] {
        let key = fresh_token();
        let (path, held) = (format!("/locks/{key}"), format!("fencepost:{{0}}:held:{key}"));
        let (first, second) = (fresh_token(), fresh_token());
        client.put(&format!("{path}?slots=2&ttl=1m")).token(&first).send().await.expect(201);
        let put = client.put(&format!("{path}?slots=2&ttl=2m")).token(&second).send().await.expect(201);
        match text {
            Some(text) => redis.command::<i64>(&["HSET", &held, &field(&first), text]).await,
            None => redis.command(&["HDEL", &held, &field(&first)]).await,
        };
        let number = put.fencing_token() - 1;
        let by_number = format!("{path}?force=true&fencing_token={number}");
        let [get, all] = [path.clone(), format!("{path}?holders=true")].map(|path| client.get(&path));
        let [alone, beside] = ["ttl=1m", "slots=2"].map(|query| client.put(&format!("{path}?{query}")));
        let own = [client.patch(&path), client.delete(&path)].map(|request| request.token(&first));
        for request in [get, all, alone, beside, client.delete(&by_number)].into_iter().chain(own) {
            let answer = request.send().await.expect_problem(503, "store-unavailable");
            assert!(
                !answer.json()["detail"].as_str().unwrap().contains("script"),
                "{text:?}: {}",
                answer.json()
            );
        }
        client.patch(&format!("{path}?ttl=3m")).token(&second).send().await.expect(200);
        let page = client.get("/locks?limit=1000").send().await.expect(200).json().to_string();
        assert!(!page.contains(&key), "{page}");
        let output = run(&["check", "--store", redis.url()]);
        let page = String::from_utf8(output.stdout).unwrap();
        let is_named = page.contains(&format!("cannot be read: the value of key {held:?}"));
        assert_eq!((is_named, output.status.code() == Some(1)), (text.is_some(), text.is_some()), "{page}");
        let _: i64 = redis.command(&["DEL", &held]).await;
        client.put(&path).send().await.expect(201);
    }
}

/// A value of another type beside one lock says nothing of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_with_a_key_of_another_type_beside_it_keeps_no_other_out_of_the_list() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    for path in ["/locks/shared?slots=2", "/locks/plain", "/locks/spoiled"] {
        client.put(path).send().await.expect(201);
    }
    let _: () = redis.command(&["SET", "fencepost:{0}:line:spoiled", "x"]).await;
    let page = client.get("/locks?limit=1000").send().await.expect(200).json().to_string();
    let listed = ["shared", "plain", "spoiled"].map(|key| page.contains(&format!("\"{key}\"")));
    assert_eq!(listed, [true, true, false], "{page}");
}

/// It may be the token's own, and be read by another version.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_cannot_be_read_is_not_said_to_be_anothers() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "2s"]).await;
    let client = Client::new(gateway.address);
    let (lock, foreign) = ("fencepost:{0}:lock:k", format!("{} {} number ", "a".repeat(64), "b".repeat(32)));
    for value in ["garbage", "", "?garbage", &foreign] {
        let token = fresh_token();
        client.put("/locks/k?ttl=1m").token(&token).send().await.expect(201);
        let _: () = redis.command(&["SET", lock, value, "KEEPTTL"]).await;
        for request in [
            client.patch("/locks/k?ttl=1m").token(&token),
            client.delete("/locks/k").token(&token),
            client.delete("/locks/k?force=true&fencing_token=5"),
        ] {
            request.send().await.expect_problem(503, "store-unavailable");
        }
        let _: i64 = redis.command(&["DEL", lock]).await;
        client.put("/locks/k?ttl=1m").token(&token).send().await.expect(201);
        let anothers = client.patch("/locks/k?ttl=1m").token(&fresh_token());
        anothers.send().await.expect_problem(409, "held-by-another");
        client.delete("/locks/k").token(&token).send().await.expect(204);
    }
}

/// W22. Nothing tells of it, and the end of the lease is an hour away.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_lock_whose_key_is_deleted_is_granted_it_soon() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    clients[0].put("/locks/k?ttl=1h").send().await.expect(201);
    let waiting = clients.each_ref().map(|client| client.put("/locks/k?wait=1m&ttl=100ms").within(PATIENCE));
    let waiting = waiting.map(|request| tokio::spawn(async { request.send().await }));
    eventually("both wait", async || redis.command::<u64>(&["ZCARD", "fencepost:{0}:line:k"]).await == 2)
        .await;
    let deleted = Instant::now();
    let _: i64 = redis.command(&["DEL", "fencepost:{0}:lock:k"]).await;
    for waits in waiting {
        waits.await.unwrap().expect(201);
    }
    assert!(deleted.elapsed() < Duration::from_secs(20), "{:?}", deleted.elapsed());
}
