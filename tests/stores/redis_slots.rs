//! Locks that several hold, as they lie in Redis: their keys, their lives, and what the small scripts do with them.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use kit::{Client, Gateway, RedisServer, Stage, fresh_token};

/// What a lock that several hold consists of.
const KEYS: [&str; 4] = ["lock", "held", "ends", "wide"];

/// A gateway on a server of its own.
async fn stage() -> (Stage, Client) {
    let stage = Stage::redis().await;
    let client = stage.client();
    (stage, client)
}

fn name(kind: &str) -> String {
    format!("fencepost:{{0}}:{kind}:k")
}

/// Takes a slot of `k`, of so many, and returns the token.
pub async fn take(client: &Client, query: &str) -> String {
    let token = fresh_token();
    client.put(&format!("/locks/k?{query}")).token(&token).send().await.expect(201);
    token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_which_a_key_is_missing_is_free() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    for kind in KEYS {
        let (first, _) = (take(&client, "slots=2").await, take(&client, "slots=2").await);
        let removed: u64 = redis.command(&["DEL", &name(kind)]).await;
        assert_eq!(removed, 1, "{kind}");
        client.get("/locks/k").send().await.expect(404);
        assert_eq!(client.get("/locks").send().await.json()["locks"].as_array().unwrap().len(), 0, "{kind}");
        client.patch("/locks/k?ttl=1m").token(&first).send().await.expect_problem(404, "not-held");
        client.delete("/locks/k").token(&first).send().await.expect(404);
        // Nothing of what was left counts for those who come next.
        let alone = take(&client, "slots=1").await;
        client.put("/locks/k?slots=5").send().await.expect_problem(423, "lock-held");
        client.delete("/locks/k").token(&alone).send().await.expect(204);
        let (one, two) = (take(&client, "slots=2").await, take(&client, "slots=2").await);
        client.put("/locks/k?slots=2").send().await.expect_problem(423, "lock-held");
        for token in [one, two] {
            client.delete("/locks/k").token(&token).send().await.expect(204);
        }
    }
}

/// S4. A server that was killed may have done a part of a script, and so have a slot marked that none holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_marked_and_held_by_none_is_given_before_one_that_there_is_not() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    let slot = async || client.put("/locks/k?slots=3").send().await.expect(201).json()["slot"].as_u64();
    assert_eq!(slot().await, Some(1));
    let second = take(&client, "slots=3").await;
    client.delete("/locks/k").token(&second).send().await.expect(204);
    let _: () = redis.command(&["SET", &name("lock"), "?*##", "KEEPTTL"]).await;
    assert_eq!(slot().await, Some(3));
    assert_eq!(slot().await, Some(2));
    client.put("/locks/k?slots=3").send().await.expect_problem(423, "lock-held");
}

/// S4. The same where it has a part of a release: the lease is over, and all else is there yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_release_was_cut_off_is_given_again() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    let slot = async || client.put("/locks/k?slots=3").send().await.expect(201).json()["slot"].as_u64();
    let _first = take(&client, "slots=3").await;
    let ends: Vec<String> = redis.command(&["ZRANGE", &name("ends"), "0", "-1"]).await;
    assert_eq!(slot().await, Some(2));
    let gone: u64 = redis.command(&["ZREM", &name("ends"), &ends[0]]).await;
    assert_eq!(gone, 1);
    assert_eq!(slot().await, Some(3));
    assert_eq!(slot().await, Some(1));
    client.put("/locks/k?slots=3").send().await.expect_problem(423, "lock-held");
}

/// S10. No key outlives the last lease by more than a minute, also if all holders have died.
#[tokio::test(flavor = "multi_thread")]
async fn all_keys_end_a_minute_after_the_last_lease() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    let ttls = async || {
        let mut ttls = Vec::new();
        for kind in KEYS {
            ttls.push(redis.command::<i64>(&["PTTL", &name(kind)]).await);
        }
        ttls
    };
    let short = take(&client, "slots=3&ttl=200ms").await;
    let (longer, _) = (take(&client, "slots=3&ttl=20s").await, take(&client, "slots=3&ttl=5s").await);
    for ttl in ttls().await {
        assert!((50_000..=80_000).contains(&ttl), "{ttl}");
    }
    client.patch("/locks/k?ttl=2m").token(&longer).send().await.expect(200);
    for ttl in ttls().await {
        assert!((150_000..=180_000).contains(&ttl), "{ttl}");
    }
    // The slot of one that is over is taken again, and no key has lost its life by that.
    kit::eventually("a lease is over", async || {
        client.patch("/locks/k?ttl=1ms").token(&short).send().await.status != 200
            && client.get("/locks/k").send().await.json()["held"] == 2
    })
    .await;
    assert_eq!(client.put("/locks/k?slots=3&ttl=10s").send().await.expect(201).json()["slot"], 1);
    for ttl in ttls().await {
        assert!((140_000..=180_000).contains(&ttl), "{ttl}");
    }
    client.delete("/locks/k").token(&longer).send().await.expect(204);
    // With the last one all of them go.
    let held = client.get("/locks/k?holders=true").send().await.expect(200).json();
    for holder in held["holders"].as_array().unwrap() {
        let number = &holder["fencing_token"];
        client.delete(&format!("/locks/k?force=true&fencing_token={number}")).send().await.expect(204);
    }
    assert_eq!(ttls().await, [-2; 4]);
}

/// Rule 6: a server that is out of memory grants no slot, and a holder can renew and release its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_renewed_and_released_where_memory_is_out() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    let (first, second) = (take(&client, "slots=3&ttl=20s").await, take(&client, "slots=3").await);
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    client.put("/locks/k?slots=3").send().await.expect(503);
    client.patch("/locks/k?ttl=10m").token(&first).send().await.expect(200);
    client.put("/locks/k?slots=3&ttl=20m").token(&second).send().await.expect(200);
    client.delete("/locks/k").token(&first).send().await.expect(204);
    assert_eq!(client.get("/locks/k").send().await.json()["held"], 1);
}

/// S2. What comes to Redis in one call may have been asked for the same slot. No answer is outdated by another one of the call.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_one_slot_at_one_moment_make_none_of_them_shorter() {
    let (_stage, client) = stage().await;
    take(&client, "slots=100&ttl=10m").await;
    let renew = async || {
        let token = take(&client, "slots=100&ttl=5s").await;
        let patch = |ttl: &str| client.patch(&format!("/locks/k?ttl={ttl}")).token(&token).send();
        let (longer, shorter) = tokio::join!(patch("5m"), patch("1m"));
        longer.expect(200);
        shorter.expect(200);
        let left_ms =
            client.get("/locks/k").token(&token).send().await.expect(200).json()["expires_in_ms"].as_u64();
        assert!(left_ms.unwrap() > 240_000, "{left_ms:?}");
    };
    for _ in 0..20 {
        join_all((0..4).map(|_| renew())).await;
    }
}

/// S9. What most locks need knows no slots, and is not changed by a byte.
#[test]
fn the_small_scripts_are_those_of_before() {
    let text = |files: &[&str]| {
        let of = |file: &&str| {
            let path = format!("{}/src/store/redis/{file}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).unwrap()
        };
        files.iter().map(of).collect::<String>()
    };
    let constants = "scripts/shared/constants.lua";
    let renew = [
        constants,
        "scripts/renew_own.lua",
        "scripts/shared/each.lua",
        "scripts/shared/lock.lua",
        "scripts/shared/terms.lua",
        "scripts/renew.lua",
    ];
    for (files, hash) in [
        (&[constants, "fast_path/take_free.lua"][..], "806ea31f8d426c6a2ad3f2bb0d2cd9de649c7116"),
        (&[constants, "fast_path/free_own.lua"], "0e41e0dd9eebd539de275223206a012bdee82c5b"),
        (&renew, "60a997aa0ea096d3ed4e7e75dff0a52da60b88f9"),
    ] {
        assert_eq!(redis::Script::new(&text(files)).get_hash(), hash, "{files:?}");
    }
}

/// A gateway that died leaves its tickets in the line, here behind one that lives and has no room either.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_full_of_the_dead_lets_the_living_in_while_all_slots_are_held() {
    let redis = RedisServer::start().await;
    let few = ["--max-waiters-per-key", "4"];
    let (here, mut dies) = (Gateway::on_redis(&redis, &few).await, Gateway::on_redis(&redis, &few).await);
    let (client, of_dead) = (Client::new(here.address), Client::new(dies.address));
    take(&client, "slots=2&ttl=1h").await;
    take(&client, "slots=2&ttl=1h").await;
    let wait = |client: &Client| {
        tokio::spawn(client.put("/locks/k?slots=2&wait=50s").within(Duration::from_secs(60)).send())
    };
    let mut waiting = Vec::new();
    for (number, waits_by) in [&client, &of_dead, &of_dead, &of_dead].into_iter().enumerate() {
        waiting.push(wait(waits_by));
        let waiters = async || client.get("/locks/k").send().await.json()["waiters"].clone();
        kit::eventually("it waits", async || waiters().await == number + 1).await;
    }
    let newcomer = async || client.put("/locks/k?slots=2&wait=100ms").send().await;
    newcomer().await.expect_problem(429, "too-many-waiters");
    dies.kill();
    kit::eventually("there is a place", async || newcomer().await.status == 423).await;
}

/// S7, W5. As where a gateway dies, and its tickets outlive what is known of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_line_without_a_ticket_keeps_no_other_waiting() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    let first = take(&client, "slots=2&ttl=1m").await;
    take(&client, "slots=2&ttl=1m").await;
    let waiting = client.put("/locks/k?slots=2&wait=20s").within(Duration::from_secs(30)).send();
    let waiting = tokio::spawn(waiting);
    kit::eventually("it waits", async || client.get("/locks/k").send().await.json()["waiters"] == 1).await;
    let _: () = redis.command(&["ZADD", &name("line"), "1", &"0".repeat(64)]).await;
    client.delete("/locks/k").token(&first).send().await.expect(204);
    waiting.await.unwrap().expect(201);
    assert_eq!(client.get("/locks/k").send().await.json()["waiters"], 0);
}

/// The first is a writer whose wait is over, and the last comes after the loss. Each case has a gateway of its own: what one
/// learns of a line it does for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn each_key_of_a_line_may_be_lost() {
    let heals = async |kind: &str, slots: u64| {
        let stage = Stage::redis_with(&["--ticket-ttl", "5s"]).await;
        let (client, redis) = (stage.client(), stage.redis.as_ref().unwrap());
        let put = |query: &str| {
            let call = client.put(&format!("/locks/k?{query}")).token(&fresh_token());
            tokio::spawn(call.within(Duration::from_secs(60)).send())
        };
        let tickets = async || redis.command::<u64>(&["HLEN", &name("seats")]).await;
        let mut holder = String::new();
        for _ in 0..slots {
            holder = put(&format!("slots={slots}&ttl=1m")).await.unwrap().expect(201).token();
        }
        put("wait=1ms").await.unwrap().expect_problem(423, "lock-held");
        let wait = format!("slots={slots}&ttl=300ms&wait=50s");
        let mut waiting: Vec<_> = (0..6).map(|_| put(&wait)).collect();
        kit::eventually("they wait", async || tickets().await == 7).await;
        let is_of_all = matches!(kind, "due" | "gates");
        let lost = if is_of_all { format!("fencepost:{{0}}:{kind}") } else { name(kind) };
        let _: () = redis.command(&["DEL", &lost]).await;
        let there = tickets().await;
        waiting.push(put(&wait));
        kit::eventually("one more waits", async || tickets().await > there).await;
        client.delete("/locks/k").token(&holder).send().await.expect(204);
        let released = Instant::now();
        for granted in join_all(waiting).await {
            granted.unwrap().expect(201);
        }
        // The writer's ticket ends after 5 s. Waiters that are found one by one, at a look each 5 s, take longer.
        let took = released.elapsed();
        assert!(took < Duration::from_secs(15), "{kind} {slots}: {took:?}");
    };
    let kinds = ["seats", "line", "away", "due", "gates"];
    join_all(kinds.iter().flat_map(|kind| [heals(kind, 1), heals(kind, 2)])).await;
}

/// K4. Its tombstone is written before the slot is freed.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_a_slot_that_was_cut_short_is_not_answered_by_anothers() {
    let (stage, client) = stage().await;
    let redis = stage.redis.as_ref().unwrap();
    // With terms, the general script frees it.
    let (first, _) = (take(&client, "slots=3&max_hold=1h").await, take(&client, "slots=3&max_hold=1h").await);
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-hdel"]).await;
    client.delete("/locks/k").token(&first).send().await.expect(204);
    assert_eq!(client.get("/locks/k").send().await.json()["held"], 1);
    let _: () = redis.command(&["ACL", "SETUSER", "default", "+hdel"]).await;
    client.delete("/locks/k").token(&first).send().await.expect(204);
}
