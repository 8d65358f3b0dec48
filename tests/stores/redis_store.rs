//! What is true of the Redis store alone: its scripts, its keys, its memory, and how it is reached.

use std::time::Duration;

use fencepost::lock::{Acquired, Attempt, LeaseToken, LockKey, Terms, Ttl};
use fencepost::service::{AcquireRequest, LockService, Outcome, Tenant};
use fencepost::store::{LockRequest, Try};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::stores::redis_store;
use kit::{Client, Gateway, PATIENCE, RedisServer, Stage, cluster, fresh_token, sentinels};

const TWO_MINUTES: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn script_flush_between_requests_is_invisible() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let token = fresh_token();
    let forget = async || redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
    forget().await;
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect(201);
    forget().await;
    client.patch("/locks/k?ttl=40s").token(&token).send().await.expect(200);
    forget().await;
    client.get("/locks/k").token(&token).send().await.expect(200);
    forget().await;
    client.delete("/locks/k").token(&token).send().await.expect(204);
    forget().await;
    client.get("/readyz").send().await.expect(200);
    assert!(!stage.gateway.log().iter().any(|line| line.contains("the connection to Redis is given up")));
}

/// Whatever the store is.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_the_server_that_it_is_connected_to() {
    let redis = RedisServer::start().await;
    let (sentinels, cluster) = (sentinels::shared().await, cluster::shared().await);
    for url in [redis.url().to_owned(), sentinels.url(), cluster.url()] {
        let gateway = Gateway::start(&["--store", &url, "--redis-prefix", &fresh_token()]).await;
        let names_one = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["message"] == "connected to Redis" && line["address"].as_str().unwrap().starts_with("127.")
        };
        gateway.logs(&url, names_one).await;
    }
}

/// One million different keys, and hardly anything is left of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_million_keys_with_server_made_tokens_leave_at_most_a_hundred() {
    const KEYS: u64 = 1_000_000;
    const AT_ONCE: u64 = 200;
    let redis = RedisServer::start().await;
    let store = std::sync::Arc::new(redis_store(&redis, TWO_MINUTES));
    let service = std::sync::Arc::new(LockService::new(store, PATIENCE, TWO_MINUTES));
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|task| {
            let service = service.clone();
            tokio::spawn(async move {
                for number in (task..KEYS).step_by(AT_ONCE as usize) {
                    let key = LockKey::parse(format!("key {number}").as_bytes()).unwrap();
                    let ttl = Ttl::from_ms(30_000).unwrap();
                    let wish = AcquireRequest {
                        key: key.clone(),
                        token: None,
                        ttl,
                        note: Default::default(),
                        wait: Duration::ZERO,
                        terms: Terms::default(),
                        tenant: Tenant::default(),
                    };
                    let acquisition = service.acquire(wish).await.unwrap();
                    let Outcome::Granted(_, guard, ..) = acquisition.outcome else { panic!("not granted") };
                    guard.disarm();
                    service.release(&key, &acquisition.token).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let left: usize = redis.command(&["DBSIZE"]).await;
    assert!(left <= 100, "{left} keys are left");
    assert_eq!(redis.keys().await, ["fencepost:{0}:fence"]);
    let numbers: usize = redis.command(&["HLEN", "fencepost:{0}:fence"]).await;
    assert_eq!(numbers, 1, "the fence has one field, however many keys there were");
}

/// Everything that travels to Redis, and everything that it stores, is searched for the tokens.
#[tokio::test(flavor = "multi_thread")]
async fn monitor_and_dump_never_show_a_token() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let mut monitor = tokio::net::TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap();
    monitor.write_all(b"MONITOR\r\n").await.unwrap();
    let mut seen = vec![0; 5];
    monitor.read_exact(&mut seen).await.unwrap();

    let mut tokens = Vec::new();
    for n in 0..20 {
        let own = fresh_token();
        let address = format!("/locks/k{n}?ttl=30s");
        client.put(&address).token(&own).send().await.expect(201);
        client.put(&address).token(&own).send().await.expect(200);
        client.patch(&address).token(&own).send().await.expect(200);
        client.get(&format!("/locks/k{n}")).token(&own).send().await.expect(200);
        if n % 2 == 0 {
            client.delete(&format!("/locks/k{n}")).token(&own).send().await.expect(204);
        }
        let made = client.put(&format!("/locks/m{n}?ttl=30s")).send().await.expect(201).token();
        // One that waited and has a ticket, and one that is still waiting.
        let patient = fresh_token();
        client.put(&format!("/locks/m{n}?wait=1ms")).token(&patient).send().await.expect(423);
        let waiting = client.put(&format!("/locks/m{n}?wait=30s")).token(&fresh_token());
        let waiting = tokio::spawn(waiting.try_send());
        if n % 2 == 1 {
            waiting.abort();
        }
        tokens.extend([own, made, patient]);
    }
    let marker = format!("end-{}", fresh_token());
    let _: String = redis.command(&["ECHO", &marker]).await;
    let contains = |seen: &[u8], text: &str| seen.windows(text.len()).any(|window| window == text.as_bytes());
    while !contains(&seen, &marker) {
        let mut chunk = [0; 65536];
        let read = tokio::time::timeout(PATIENCE, monitor.read(&mut chunk)).await.unwrap().unwrap();
        assert!(read > 0);
        seen.extend(&chunk[..read]);
    }
    assert!(contains(&seen, "EVALSHA"), "MONITOR saw the traffic");
    for key in redis.keys().await {
        seen.extend(key.as_bytes());
        seen.extend(redis.command::<Vec<u8>>(&["DUMP", &key]).await);
        let value: redis::Value = match redis.command::<String>(&["TYPE", &key]).await.as_str() {
            "hash" => redis.command(&["HGETALL", &key]).await,
            "zset" => redis.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await,
            _ => redis.command(&["GET", &key]).await,
        };
        seen.extend(format!("{value:?}").as_bytes());
    }
    for token in &tokens {
        assert!(!contains(&seen, token), "Redis saw a token");
        assert!(!contains(&seen, token.trim_start_matches('~')), "Redis saw a token without its ~");
    }
}

/// While clients come, renew and go, every key but the fence has a TTL, at every moment that we look.
#[tokio::test(flavor = "multi_thread")]
async fn every_lock_has_a_ttl_at_every_moment() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let end = Instant::now() + Duration::from_secs(3);
    let clients: Vec<_> = (0..16)
        .map(|n| {
            let client = stage.client();
            tokio::spawn(async move {
                while Instant::now() < end {
                    let address = format!("/locks/k{}?ttl=20s", n % 5);
                    let token = fresh_token();
                    client.put(&address).token(&token).send().await;
                    client.put(&address).token(&token).send().await;
                    client.patch(&address).token(&token).send().await;
                    client.delete(&format!("/locks/k{}", n % 5)).token(&token).send().await;
                }
            })
        })
        .collect();
    let mut connection = redis.connect().await;
    // One script sees one moment.
    let look = "local bare, seen = {}, 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('TYPE', key).ok ~= 'hash' then
                seen = seen + 1
                if redis.call('PTTL', key) < 0 then bare[#bare + 1] = key end
            end
        end
        return { seen, bare }";
    let (mut looks, mut most) = (0, 0);
    while Instant::now() < end {
        let (seen, bare): (usize, Vec<String>) =
            redis::cmd("EVAL").arg(look).arg(0).query_async(&mut connection).await.unwrap();
        assert!(bare.is_empty(), "without TTL: {bare:?}");
        looks += 1;
        most = most.max(seen);
    }
    assert!(looks > 50 && most > 5, "{looks} looks, at most {most} keys");
    for client in clients {
        client.await.unwrap();
    }
}

/// What is left is told in whole milliseconds: to set it anew would lengthen a lease a little with each renewal, past its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_lengthens_nothing_sets_nothing() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    for terms in ["", "&max_hold=1h"] {
        let token = fresh_token();
        client.put(&format!("/lock?key=k&ttl=30s{terms}")).token(&token).send().await.expect(201);
        // The first renewal pins the grant.
        client.patch("/lock?key=k&ttl=30s").token(&token).send().await.expect(200);
        let sets = async || redis.calls("pexpire").await + redis.calls("set").await;
        let before = sets().await;
        for _ in 0..3 {
            client.patch("/lock?key=k&ttl=10s").token(&token).send().await.expect(200);
        }
        assert_eq!(sets().await, before, "{terms}");
        client.patch("/lock?key=k&ttl=40s").token(&token).send().await.expect(200);
        assert_eq!(sets().await, before + 1, "{terms}");
        client.delete("/lock?key=k").token(&token).send().await.expect(204);
    }
}

/// Two gateways on one Redis see the same locks, and their numbers form one row.
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_share_the_locks() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let mut last = 0;
    for n in 0..20 {
        let (here, there) = (&clients[n % 2], &clients[(n + 1) % 2]);
        let granted = here.put("/locks/k?ttl=30s").send().await.expect(201);
        assert!(granted.fencing_token() > last);
        last = granted.fencing_token();
        there.put("/locks/k?ttl=30s").send().await.expect_problem(423, "lock-held");
        there.delete("/locks/k").token(&granted.token()).send().await.expect(204);
    }
}

/// Numbers that were given before, such as those of a clock that ran ahead, are never given again.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_run_begins_above_the_old_one() {
    let redis = RedisServer::start().await;
    let ahead = 8_000_000_000_000_000_u64;
    let _: i64 =
        redis.command(&["HSET", "fencepost:{0}:fence", "another incarnation", &ahead.to_string()]).await;
    let store = redis_store(&redis, TWO_MINUTES);
    let request = LockRequest {
        key: LockKey::parse(b"k").unwrap(),
        token: LeaseToken::generate().hash(),
        attempt: Attempt::generate(),
        ttl: Ttl::from_ms(1_000).unwrap(),
        note: Default::default(),
        terms: Terms::default(),
    };
    let answer = store.call(Try(request.clone()), Instant::now() + PATIENCE).await.unwrap();
    let Acquired::Granted(lease) = answer else { panic!("{answer:?}") };
    assert!(lease.fencing_token.get() > ahead);
    let fields: Vec<String> = redis.command(&["HKEYS", "fencepost:{0}:fence"]).await;
    assert_eq!(fields.len(), 1, "the old run is gone: {fields:?}");
}

/// A server that is out of memory grants nothing more, and lets holders renew and release.
/// A script that fails half-way keeps what it wrote: that must never become a number.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_of_a_run_leaves_no_small_number() {
    // Otherwise nothing would be tried.
    let stage = Stage::redis_with(&["--redis-accept", "missing-permission"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let before = client.put("/locks/k?ttl=30s").send().await.expect(201).fencing_token();
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-time"]).await;
    let _: () = redis.command(&["FLUSHALL"]).await;
    for token in [None, Some(fresh_token())] {
        let put = client.put("/locks/k?ttl=30s");
        let put = if let Some(token) = token { put.token(&token) } else { put };
        put.send().await.expect(503);
    }
    let count: u64 = redis.command(&["HGET", "fencepost:{0}:fence", &incarnation(redis).await]).await;
    assert!(count < 1_000_000, "the failed tries did count: {count}");
    let _: () = redis.command(&["ACL", "SETUSER", "default", "+time"]).await;
    let after = client.put("/locks/k?ttl=30s").send().await.expect(201).fencing_token();
    assert!(after > before, "{after} after {before}");
}

async fn incarnation(redis: &RedisServer) -> String {
    let fields: Vec<String> = redis.command(&["HKEYS", "fencepost:{0}:fence"]).await;
    fields.into_iter().next().unwrap()
}

/// Each unanswered acquire leaves a mark, so one request may send only a few of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_always_fails_costs_a_few_calls() {
    let stage = Stage::redis_with(&["--redis-accept", "missing-permission"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-hincrby"]).await;
    let before = redis.calls("evalsha").await;
    for put in [client.put("/locks/k"), client.put("/locks/k").token(&fresh_token())] {
        put.send().await.expect(503);
    }
    let calls = redis.calls("evalsha").await - before;
    assert!((4..=16).contains(&calls), "{calls} calls");
}

/// HEAD has no place for "yours", so it promises nothing: the grant can still be taken back.
#[tokio::test(flavor = "multi_thread")]
async fn head_does_not_pin_and_get_does() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let token = fresh_token();
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect(201);
    let lock = async || redis.command::<String>(&["GET", "fencepost:{0}:lock:k"]).await;
    let granted = lock().await;
    client.call("HEAD", "/locks/k").token(&token).send().await.expect(200);
    assert_eq!(lock().await, granted);
    client.get("/locks/k").token(&token).send().await.expect(200);
    assert_ne!(lock().await, granted);
}

/// What no JSON parser would keep exactly is refused before anything is written.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_used_up_leave_no_lock() {
    let stage = Stage::redis_with(&["--once-memory", "1000000000"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let last = ((1_u64 << 53) - 1).to_string();
    // A script of their own counts where some hold a lock by slots already.
    client.put("/locks/s?slots=3").send().await.expect(201);
    let _: i64 = redis.command(&["HSET", "fencepost:{0}:fence", &incarnation(redis).await, &last]).await;
    client.put("/locks/k?ttl=30s").token(&fresh_token()).send().await.expect(503);
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    for path in ["/locks/s?slots=3", "/locks/k?slots=2", "/once/k?ttl=30s", "/locks/k"] {
        client.put(path).token(&fresh_token()).send().await.expect(503);
    }
    let kept: String = redis.command(&["HGET", "fencepost:{0}:fence", &incarnation(redis).await]).await;
    assert_eq!(kept, last, "a start would take what is above it for no grant's");
    let status = async || client.get("/readyz").send().await.status;
    kit::eventually("it is not ready", async || status().await == 503).await;
    let _: i64 = redis.command(&["DEL", "fencepost:{0}:fence"]).await;
    kit::eventually("it is ready again", async || status().await == 200).await;
}

/// As programs before this one left them where a server was started with a clock past the largest number.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_past_the_largest_which_no_grant_has_keep_nothing_from_being_granted() {
    let stage = Stage::redis_with(&["--once-memory", "1000000000"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let mut last = client.put("/locks/first?ttl=30s").send().await.expect(201).fencing_token();
    let run = incarnation(redis).await;
    for path in ["/locks/k?ttl=30s", "/locks/slots?slots=2", "/locks/slots?slots=2", "/once/k?ttl=30s"] {
        let past = "30000000000000000";
        let words = ["HSET", "fencepost:{0}:fence", &run, past, "another incarnation", past];
        let _: i64 = redis.command(&words).await;
        let next = client.put(path).token(&fresh_token()).send().await.expect(201).fencing_token();
        assert!(next > last && next < 8_000_000_000_000_000, "{path}: {next} after {last}");
        last = next;
    }
    let fields: Vec<String> = redis.command(&["HKEYS", "fencepost:{0}:fence"]).await;
    assert_eq!(fields, [run]);
}
