//! What is true of the Redis store alone: its scripts, its keys, its memory, and how it is reached.

use std::collections::HashSet;
use std::time::Duration;

use fencepost::lock::{Acquired, Attempt, LeaseToken, LockKey, Ttl};
use fencepost::service::{Acquire, LockService, Outcome};
use fencepost::store::{AcquireRequest, Intent, LockStore};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::store_suite::redis_store;
use crate::support::{Client, Gateway, PATIENCE, Proxy, RedisServer, Stage, eventually, fresh_token};

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
    assert!(!stage.gateway.log().iter().any(|line| line.contains("leaving the connection")));
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
                    let wish = Acquire { key: key.clone(), token: None, ttl, owner: None };
                    let acquisition = service.acquire(wish).await.unwrap();
                    let Outcome::Granted(_, guard) = acquisition.outcome else { panic!("not granted") };
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
        tokens.extend([own, made]);
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

/// One script per operation, and nothing else, on the hot path.
#[tokio::test(flavor = "multi_thread")]
async fn each_operation_is_one_script() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let token = fresh_token();
    let rounds: [(&str, &str); 5] = [
        ("PUT", "/locks/k?ttl=30s"),
        ("PUT", "/locks/k?ttl=30s"),
        ("PATCH", "/locks/k?ttl=30s"),
        ("GET", "/locks/k"),
        ("DELETE", "/locks/k"),
    ];
    // The first call of each script sends its text.
    for _ in 0..2 {
        for (method, address) in rounds {
            let before = script_calls(redis).await;
            client.call(method, address).token(&token).send().await;
            assert_eq!(script_calls(redis).await - before, 1, "{method}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_password_database_and_prefix_are_used() {
    let users = [
        "--user default off",
        "--user gateway on >s3cret:/?#word ~shop:* +@all",
        "--user admin on >admin ~* &* +@all",
    ];
    let users: Vec<_> = users.iter().flat_map(|user| user.split(' ')).collect();
    let redis = RedisServer::start_with(&users).await;
    let port = redis.port();
    let url = format!("redis://gateway:s3cret%3A%2F%3F%23word@127.0.0.1:{port}/3");
    let gateway = Gateway::start(&["--store", &url, "--redis-prefix", "shop"]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect(200);
    let token = client.put("/locks/k?ttl=30s").send().await.expect(201).token();
    let admin = redis::Client::open(format!("redis://admin:admin@127.0.0.1:{port}/3")).unwrap();
    let mut admin = admin.get_multiplexed_async_connection().await.unwrap();
    let keys: HashSet<String> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
    assert_eq!(keys, HashSet::from(["shop:{0}:lock:k".into(), "shop:{0}:fence".into()]));
    client.delete("/locks/k").token(&token).send().await.expect(204);

    let wrong = format!("redis://gateway:guessed-it@127.0.0.1:{port}/3");
    let gateway = Gateway::start(&["--store", &wrong]).await;
    let client = Client::new(gateway.address);
    let answer = client.get("/readyz").send().await.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains("WRONGPASS"), "{}", answer.json());
    client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    let said = gateway.log().join("\n") + &answer.json().to_string();
    assert!(!said.contains("guessed-it"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rediss_checks_the_certificate() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = rcgen::CertifiedIssuer::self_signed(ca, key).unwrap();
    let server_key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let server = server.signed_by(&server_key, &ca).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    std::fs::write(path("cert.pem"), server.pem()).unwrap();
    std::fs::write(path("key.pem"), server_key.serialize_pem()).unwrap();
    let tls_port = crate::support::free_port();
    let _redis = RedisServer::start_with(&[
        "--tls-port",
        &tls_port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ])
    .await;
    let url = format!("rediss://127.0.0.1:{tls_port}");
    let gateway = Gateway::start(&["--store", &url, "--redis-ca", &path("ca.pem")]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect(200);
    let token = client.put("/locks/k?ttl=30s").send().await.expect(201).token();
    client.delete("/locks/k").token(&token).send().await.expect(204);
    // The system's authorities know nothing of ours.
    let stranger = Gateway::start(&["--store", &url]).await;
    let client = Client::new(stranger.address);
    client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    client.get("/readyz").send().await.expect_problem(503, "store-unavailable");
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

/// Without persistence a restart loses all; numbers go on upward, and the gateway goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_or_a_flush_never_lowers_a_number() {
    let mut stage = Stage::redis().await;
    let client = stage.client();
    let mut last = 0;
    for round in 0..4 {
        let redis = stage.redis.as_mut().unwrap();
        match round {
            0 => {}
            1 => redis.restart().await,
            2 => redis.command::<()>(&["FLUSHALL"]).await,
            _ => redis.restart().await,
        }
        for _ in 0..50 {
            let granted = client.put("/locks/k?ttl=30s").send().await.expect(201);
            assert!(
                granted.fencing_token() > last,
                "round {round}: {} after {last}",
                granted.fencing_token()
            );
            last = granted.fencing_token();
            client.delete("/locks/k").token(&granted.token()).send().await.expect(204);
        }
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
    let request = AcquireRequest {
        key: LockKey::parse(b"k").unwrap(),
        token: LeaseToken::generate().hash(),
        attempt: Attempt::generate(),
        ttl: Ttl::from_ms(1_000).unwrap(),
        owner: None,
        intent: Intent::Grant,
    };
    let answer = store.acquire(&request, Instant::now() + PATIENCE).await.unwrap();
    let Acquired::Granted(lease) = answer else { panic!("{answer:?}") };
    assert!(lease.fencing_token.get() > ahead);
    let fields: Vec<String> = redis.command(&["HKEYS", "fencepost:{0}:fence"]).await;
    assert_eq!(fields.len(), 1, "the old run is gone: {fields:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_redis_is_said_at_once_and_found_again() {
    let mut redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?ttl=30s").send().await.expect(201);
    redis.kill();
    eventually("the outage is known", async || client.get("/readyz").send().await.status == 503).await;
    let started = Instant::now();
    let answer = client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    assert!(started.elapsed() < Duration::from_secs(1), "a known outage is no reason to wait");
    assert_eq!(answer.header("retry-after"), Some("1"));
    client.get("/healthz").send().await.expect(200);
    redis.restart().await;
    eventually("the gateway is back", async || client.put("/locks/k?ttl=30s").send().await.status == 201)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_evict_locks_is_not_ready() {
    let redis = RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let gateway = Gateway::start(&["--store", redis.url()]).await;
    let client = Client::new(gateway.address);
    eventually("the policy is noticed", async || {
        let answer = client.get("/readyz").send().await.expect(503);
        answer.json()["detail"].as_str().unwrap().contains("allkeys-lru")
    })
    .await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    eventually("it is ready now", async || client.get("/readyz").send().await.status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    let primary = RedisServer::start().await;
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]).await;
    let gateway = Gateway::start(&["--store", replica.url()]).await;
    let client = Client::new(gateway.address);
    let answer = client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains("replica"), "{}", answer.json());
}

/// A server that is out of memory grants nothing more, and lets holders renew and release.
#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_stops_grants_only() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let tokens: Vec<_> = futures_util::stream::iter(0..4)
        .then(async |n| {
            let token = fresh_token();
            client.put(&format!("/locks/k{n}?ttl=30s")).token(&token).send().await.expect(201);
            token
        })
        .collect()
        .await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let answer = client.put("/locks/new").send().await.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains("OOM"), "{}", answer.json());
    client.patch("/locks/k0?ttl=50s").token(&tokens[0]).send().await.expect(200);
    client.get("/locks/k1").token(&tokens[1]).send().await.expect(200);
    client.put("/locks/k2?ttl=50s").token(&tokens[2]).send().await.expect(200);
    for (n, token) in tokens.iter().enumerate() {
        client.delete(&format!("/locks/k{n}")).token(token).send().await.expect(204);
        client.delete(&format!("/locks/k{n}")).token(token).send().await.expect(204);
    }
    client.delete("/locks/never").token(&fresh_token()).send().await.expect_problem(404, "not-held");
    // A gateway that starts now can still learn the server.
    let late = Gateway::on_redis(redis, &[]).await;
    Client::new(late.address).get("/readyz").send().await.expect(200);
}

async fn script_calls(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// A script that fails half-way keeps what it wrote: that must never become a number.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_of_a_run_leaves_no_small_number() {
    let stage = Stage::redis().await;
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
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-hincrby"]).await;
    let before = script_calls(redis).await;
    for put in [client.put("/locks/k"), client.put("/locks/k").token(&fresh_token())] {
        put.send().await.expect(503);
    }
    let calls = script_calls(redis).await - before;
    assert!((4..=16).contains(&calls), "{calls} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_probes_share_one_look_at_the_server() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let probes = (0..200).map(async |_| drop(client.get("/readyz").send().await.expect(200)));
    futures_util::future::join_all(probes).await;
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    let pings = stats.lines().find_map(|line| line.strip_prefix("cmdstat_ping:calls="));
    let pings: u64 = pings.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap());
    assert!(pings < 20, "each look pings its connection: {pings}");
}

/// The connection falls silent without being closed, as behind a firewall that forgot it: the request's second try
/// goes over a fresh one.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_replaced_within_the_request() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    for round in 0..5 {
        client.put(&format!("/locks/before-{round}")).send().await.expect(201);
        proxy.freeze();
        let own = client.put(&format!("/locks/own-{round}")).token(&fresh_token()).send();
        let made = client.put(&format!("/locks/made-{round}")).send();
        let (own, made) = tokio::join!(own, made);
        own.expect(201);
        made.expect(201);
    }
}
