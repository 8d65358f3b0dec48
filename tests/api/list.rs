//! The list of all locks, through real gateways: what it says, page by page, and what it asks of Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use kit::proxy::{Fate, Framing, gate_after};
use kit::{
    Answer, Client, Gateway, KeysFile, Proxy, RedisCluster, RedisServer, Stage, cluster, eventually,
    fresh_token, on_each_store, quorum,
};

on_each_store!(
    a_list_says_who_holds_what_and_never_by_which_token,
    pages_go_on_until_there_is_no_cursor,
    a_prefix_is_percent_decoded_and_means_itself,
    what_makes_no_sense_is_refused,
);

/// The most keys that one `SCAN` may look at, and the most of them for one page.
const MOST_AT_ONCE: usize = 1_000;
const MOST_STEPS: u64 = 100;

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn get(client: &Client, query: &str) -> Answer {
    client.get(&format!("/locks{query}")).send().await
}

/// The names of the locks on all pages, and how many pages there were.
async fn walk(client: &Client, prefix: &str, limit: usize) -> (BTreeSet<String>, usize) {
    let (mut found, mut cursor, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let page =
            get(client, &format!("?prefix={}&limit={limit}{cursor}", encoded(prefix))).await.expect(200);
        let page = page.json();
        let locks = page["locks"].as_array().unwrap();
        assert!(locks.len() <= limit, "{} of {limit}", locks.len());
        let names: BTreeSet<_> = locks.iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names.len(), locks.len(), "each once: {page}");
        found.extend(names);
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (found, pages),
        }
    }
}

async fn a_list_says_who_holds_what_and_never_by_which_token(stage: Stage) {
    let client = stage.client();
    assert_eq!(get(&client, "").await.expect(200).json(), serde_json::json!({"locks": []}));
    let own = fresh_token();
    let named = client.put("/locks/named?ttl=1m&owner=cron%40db1").token(&own).send().await.expect(201);
    let made = client.put("/locks/made?ttl=1m").send().await.expect(201);
    let kept = client.put("/locks/kept?ttl=1m&min_hold=1m").send().await.expect(201);
    client.delete("/locks/kept").token(&kept.token()).send().await.expect(204);
    let answer = get(&client, "").await.expect(200);
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(!text.contains(&own) && !text.contains(&made.token()), "{text}");
    let list = answer.json();
    assert_eq!(list["next_cursor"], Value::Null);
    let lock = |name: &str| {
        let locks = list["locks"].as_array().unwrap();
        locks.iter().find(|lock| lock["key"] == name).unwrap_or_else(|| panic!("{list}")).clone()
    };
    assert_eq!(lock("named")["owner"], "cron@db1");
    assert_eq!(lock("named")["fencing_token"], named.fencing_token());
    assert_eq!(lock("named")["waiters"], 0);
    assert!((1..=60_000).contains(&lock("named")["expires_in_ms"].as_u64().unwrap()));
    assert!(lock("made").get("owner").is_none() && lock("made").get("released").is_none());
    assert_eq!(lock("kept")["released"], true);
    assert!(lock("kept").get("yours").is_none());
    // A lock in a list is what a look at it says.
    let look = client.get("/locks/named").send().await.expect(200).json();
    for field in ["key", "owner", "fencing_token", "waiters"] {
        assert_eq!(lock("named")[field], look[field], "{field}");
    }
}

async fn pages_go_on_until_there_is_no_cursor(stage: Stage) {
    let client = stage.client();
    let names: BTreeSet<_> = (0..25).map(|n| format!("job {n}")).collect();
    for name in &names {
        client.put(&format!("/lock?key={}&ttl=5m", encoded(name))).send().await.expect(201);
    }
    for limit in [1, 4, 25, 1_000] {
        assert_eq!(walk(&client, "", limit).await.0, names, "by {limit}");
    }
    let head = client.call("HEAD", "/locks?limit=3").send().await.expect(200);
    assert!(head.body.is_empty());
}

async fn a_prefix_is_percent_decoded_and_means_itself(stage: Stage) {
    let client = stage.client();
    let names = ["a*b", "a?b", "a[b]", "a\\b", "axb", "a/b", "a%2Fb", "a b", "a+b", "百家号"];
    for name in names {
        client.put(&format!("/lock?key={}&ttl=5m", encoded(name))).send().await.expect(201);
    }
    for prefix in ["a", "a*", "a?", "a[", "a\\", "a/", "a%2", "a ", "a+", "百", "*", "b"] {
        let expected: BTreeSet<_> =
            names.into_iter().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect();
        assert_eq!(walk(&client, prefix, 100).await.0, expected, "{prefix}");
    }
}

async fn what_makes_no_sense_is_refused(stage: Stage) {
    let client = stage.client();
    let long = format!("?prefix={}", "x".repeat(513));
    for (query, parameter) in [
        ("?limit=0", "limit"),
        ("?limit=%2B5", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=-1", "limit"),
        ("?limit=ten", "limit"),
        ("?limit=", "limit"),
        ("?cursor=", "cursor"),
        ("?cursor=a%20b", "cursor"),
        ("?prefix=%FF", "prefix"),
        ("?prefix=%0A", "prefix"),
        (&long, "prefix"),
        ("?prefix=%zz", "prefix"),
        ("?prefix=a&prefix=b", "prefix"),
        ("?key=a", "key"),
    ] {
        let refused = get(&client, query).await.expect_problem(400, "bad-parameter");
        assert_eq!(refused.json()["parameter"], parameter, "{query}");
    }
    client.get("/locks").body("{}").send().await.expect_problem(400, "unexpected-body");
    client.call("POST", "/locks").send().await.expect_problem(405, "method-not-allowed");
    // A cursor of another day begins anew.
    client.put("/locks/k").send().await.expect(201);
    let page = get(&client, "?cursor=0123456789abcdef.0.17").await.expect(200).json();
    assert_eq!(page["locks"][0]["key"], "k");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_store_answers_late_says_what_is_left_by_then() {
    const TTL_MS: u128 = 60_000;
    const LATE: Duration = Duration::from_secs(1);
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let flags = ["--store", &proxy.redis_url(), "--store-timeout", "10s", "--once-memory", "64000000"];
    let gateway = Gateway::start(&flags).await;
    let client = Client::new(gateway.address);
    client.put("/locks/late-lock?ttl=1m").send().await.expect(201);
    client.put("/once?key=late-work&ttl=1m").token(&fresh_token()).send().await.expect(201);
    let begun = Instant::now();
    proxy.set_policy(|message| match message.windows(5).any(|word| word == b"late-") {
        true => Fate::Hold { message: gate_after(Duration::ZERO), answer: gate_after(LATE) },
        false => Fate::Pass,
    });
    for (address, of) in [("/locks?prefix=late-", "/locks/0"), ("/records?prefix=late-", "/records/0")] {
        let asked = Instant::now();
        let list = client.get(address).send().await.expect(200).json();
        let took_ms = asked.elapsed().as_millis();
        let left = list.pointer(of).and_then(|of| of["expires_in_ms"].as_u64());
        let left = left.unwrap_or_else(|| panic!("{list}"));
        // On a busy machine, all of it takes longer.
        let (told, most) = (u128::from(left) + begun.elapsed().as_millis(), TTL_MS + took_ms / 2);
        assert!(told <= most, "{told} of {most}: {list}");
    }
}

/// What a server was asked since its log was made empty: each command with its words, and how long it took, in µs.
async fn asked(redis: &RedisServer) -> Vec<(Vec<String>, u64)> {
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let entries: Vec<Entry> = redis.command(&["SLOWLOG", "GET", "-1"]).await;
    entries.into_iter().map(|(_, _, took_us, words, ..)| (words, took_us)).collect()
}

/// Scans take their time beside others.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_is_asked_for_a_bounded_piece_at_a_time() {
        let stage = Stage::redis().await;
        let (client, redis) = (stage.client(), stage.redis.as_ref().unwrap());
        // Others keep far more there, among which the locks are hard to find.
        let fill = "for i = 1, 150000 do redis.call('SET', 'other:' .. i, 'x') end";
        let _: Option<u64> = redis.command(&["EVAL", fill, "0"]).await;
        let names: BTreeSet<_> = (0..120).map(|n| format!("lock {n}")).collect();
        for name in &names {
            client.put(&format!("/lock?key={}&ttl=5m", encoded(name))).send().await.expect(201);
        }
        let _: () = redis.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]).await;
        let _: () = redis.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
        let scans_before = redis.calls("scan").await;
        let (found, pages) = walk(&client, "lock", 1_000).await;
        assert_eq!(found, names);
        let scans = redis.calls("scan").await - scans_before;
        let asked = asked(redis).await;
        println!("{pages} pages, {scans} scans, {} commands", asked.len());
        assert!(pages > 1, "one page does not go through all of it");
        assert!(scans <= MOST_STEPS * u64::try_from(pages).unwrap(), "{scans} for {pages} pages");
        let mut took_us = Vec::new();
        for (words, took) in &asked {
            match words[0].to_uppercase().as_str() {
                "SCAN" => {
                    assert_eq!(words[4], "COUNT", "{words:?}");
                    assert!(words[5].parse::<usize>().unwrap() <= MOST_AT_ONCE, "{words:?}");
                    took_us.push(*took);
                }
                // Six keys for each of fifty locks.
                "EVALSHA" | "EVAL" => assert!(words[2].parse::<usize>().unwrap() <= 300, "{} keys", words[2]),
                "KEYS" => panic!("{words:?}"),
                _ => {}
            }
        }
        took_us.sort_unstable();
        let (median, longest) = (took_us[took_us.len() / 2], took_us[took_us.len() - 1]);
        println!("a scan takes {median} µs, the longest {longest} µs");
        assert!(median < 5_000, "a scan takes {median} µs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_redis_has_a_list_begin_anew() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let names: BTreeSet<_> = (0..40).map(|n| format!("k{n}")).collect();
    for name in &names {
        client.put(&format!("/locks/{name}?ttl=5m")).send().await.expect(201);
    }
    let first = get(&client, "?limit=20").await.expect(200).json();
    // The process that comes after it has its keys in another order.
    redis.restart().await;
    quorum::is_ready(&client).await;
    let mut cursor = first["next_cursor"].as_str().unwrap().to_owned();
    let mut found = BTreeSet::new();
    loop {
        let page = get(&client, &format!("?limit=20&cursor={cursor}")).await.expect(200).json();
        found.extend(
            page["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap().to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_slot_that_moves_are_listed_on_both_sides() {
    let cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url(), "--store-timeout", "4s"]).await;
    let client = Client::new(gateway.address);
    let names: BTreeSet<_> = (0..30).map(|n| format!("k{n}")).collect();
    for name in &names {
        client.put(&format!("/locks/{name}?ttl=5m")).send().await.expect(201);
    }
    let slot = cluster::slot_of_lock("k7");
    let from = cluster.owner_of(slot).await;
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await;
    // The lock is still there, and what is not there may be at the other server already.
    assert_eq!(walk(&client, "", 10).await.0, names);
    cluster.move_keys(migration, usize::MAX).await;
    assert_eq!(walk(&client, "", 10).await.0, names);
    cluster.end_migration(migration).await;
    assert_eq!(walk(&client, "", 10).await.0, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_listed_while_a_server_is_away() {
    let mut quorum = quorum::Quorum::start(3).await;
    let gateway = quorum.gateway(&["--store-timeout", "4s"]).await;
    let client = Client::new(gateway.address);
    // A lock that was granted with the help of the one that goes may be held by too few of the others.
    quorum::asks_all(&gateway, &quorum).await;
    let names: BTreeSet<_> = (0..30).map(|n| format!("k{n}")).collect();
    for name in &names {
        client.put(&format!("/locks/{name}?ttl=2m")).send().await.expect(201);
    }
    for node in &quorum.nodes {
        let count = async || node.keys().await.iter().filter(|name| name.contains("}:lock:")).count();
        eventually("it has all of them", async || count().await == names.len()).await;
    }
    let half = get(&client, "?limit=10").await.expect(200).json();
    quorum.nodes[0].kill();
    let cursor = half["next_cursor"].as_str().unwrap();
    // The list goes on with those that are left, from their beginning.
    eventually("a page comes", async || {
        get(&client, &format!("?limit=10&cursor={cursor}")).await.status == 200
    })
    .await;
    let (found, _) = walk(&client, "", 10).await;
    assert_eq!(found, names);
}

/// The lengths of all pages, as a key sees them.
async fn shape(client: &Client, key: &str, limit: usize) -> Vec<usize> {
    let (mut lengths, mut cursor) = (Vec::new(), String::new());
    loop {
        let page =
            client.get(&format!("/locks?limit={limit}{cursor}")).key(key).send().await.expect(200).json();
        lengths.push(page["locks"].as_array().unwrap().len());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return lengths,
        }
    }
}

/// Neither by empty pages nor by short ones: what a key may not see takes no place on them.
#[tokio::test(flavor = "multi_thread")]
async fn pages_do_not_say_how_many_locks_a_key_may_not_see() {
    let mut keys = KeysFile::new();
    let all = keys.add_for_all("all", "\"acquire\"");
    let narrow = keys.add("narrow", "prefixes = [\"m/\", \"team\", \"d/\"]\nallow = [\"list\"]");
    keys.write();
    let flag = keys.flag();
    let flags = ["--store", "memory:", flag[0].as_str(), &flag[1]];
    let (redis, memory) = (RedisServer::start().await, Gateway::start(&flags).await);
    let by_redis = Gateway::on_redis(&redis, &flags[2..]).await;
    for (gateway, is_exact) in [(memory, true), (by_redis, false)] {
        let client = Client::new(gateway.address);
        let take = async |names: &mut dyn Iterator<Item = String>| {
            for name in names {
                client.put(&format!("/lock?key={name}&ttl=5m")).key(&all).send().await.expect(201);
            }
        };
        take(&mut ["m/1", "m/2", "team", "team:x", "d/1"].into_iter().map(str::to_owned)).await;
        let (by_one, by_two) = (shape(&client, &narrow, 1).await, shape(&client, &narrow, 2).await);
        take(&mut (0..30).map(|n| format!("a{n}"))).await;
        take(&mut (0..30).map(|n| format!("n{n}"))).await;
        take(&mut (0..30).map(|n| format!("team2{n}"))).await;
        take(&mut (0..30).map(|n| format!("z{n}"))).await;
        let (hiding_one, hiding_two) = (shape(&client, &narrow, 1).await, shape(&client, &narrow, 2).await);
        println!("{by_one:?} {hiding_one:?} {by_two:?} {hiding_two:?}");
        if is_exact {
            assert_eq!((hiding_one, hiding_two), (by_one, by_two));
        } else {
            // Redis goes through all that it holds, in its own order: only the last page may be empty.
            for (limit, shape) in [(1, hiding_one), (2, hiding_two)] {
                assert_eq!(shape.iter().sum::<usize>(), 5, "{shape:?}");
                assert!(
                    shape.len() <= 6 && shape[..shape.len() - 1].iter().all(|length| *length > 0),
                    "by {limit}: {shape:?}"
                );
            }
        }
    }
}
