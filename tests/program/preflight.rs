//! What is refused of a Redis, what is warned of, and what a gateway does on one that becomes unsafe.

use std::time::{Duration, Instant};

use kit::gateway::run;
use kit::quorum::{Quorum, RECORD, is_ready};
use kit::sentinels::SentinelOptions;
use kit::{
    Client, Gateway, RedisCluster, RedisServer, SentinelSetup, Stage, eventually, fresh_token, server_port,
};

mod loading;
mod room;

const EVICTS: [&str; 4] = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];

/// The one line with which the program ends.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = run(&[&["--listen", "127.0.0.1:0", "--log-level", "error"], args].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.starts_with("fencepost: "), "{stderr}");
    stderr
}

fn lines_with(gateway: &Gateway, text: &str) -> usize {
    gateway.log().iter().filter(|line| line.contains(text)).count()
}

/// Waits until the gateway says so in its log.
async fn says(gateway: &Gateway, text: &str) {
    eventually(text, async || lines_with(gateway, text) > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_server_ends_the_start_unless_its_risk_is_accepted() {
    let evicting = RedisServer::start_with(&EVICTS).await;
    let primary = RedisServer::start().await;
    let primary_at = format!("127.0.0.1 {}", primary.port());
    // One that takes writes, so that it is refused for what it is and not by an error of its own.
    let replica = RedisServer::start_with(&["--replicaof", &primary_at, "--replica-read-only", "no"]).await;
    let forbidding = RedisServer::start().await;
    let _: () = forbidding.command(&["ACL", "SETUSER", "default", "-zadd", "-zrank"]).await;
    for (server, reason, risk) in [
        (&evicting, "its maxmemory-policy is allkeys-lru, and must be noeviction", "eviction"),
        (&replica, "it is a replica, and locks need the primary", "replica"),
        (&forbidding, "the Redis user lacks permissions: zadd, zrank", "missing-permission"),
    ] {
        let said = refused(&["--store", server.url()]);
        assert!(said.contains(reason) && said.contains(&format!("--redis-accept {risk} ")), "{said}");
        // Another risk is not this one.
        refused(&["--store", server.url(), "--redis-accept", "old-server"]);
        let accepted = ["--store", server.url(), "--redis-accept", &format!("old-server,{risk}")];
        let gateway = Gateway::start(&accepted).await;
        let client = Client::new(gateway.address);
        client.get("/readyz").send().await.expect(200);
        client.put("/locks/k").send().await.expect(201);
        says(&gateway, &format!("accepted by --redis-accept {risk}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_reasons_are_said_in_one_line() {
    let redis = RedisServer::start_with(&EVICTS).await;
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-zadd"]).await;
    let said = refused(&["--store", redis.url()]);
    assert!(said.contains("allkeys-lru") && said.contains("lacks permissions: zadd"), "{said}");
}

/// Both would grant the same locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_quorum_is_refused_under_the_same_prefix_until_its_record_is_deleted() {
    const TOLD: &str = "it holds, or held, locks of a gateway with redis:// under this prefix";
    let quorum = Quorum::start(3).await;
    let (server, store) = (&quorum.nodes[0], quorum.url());
    let alone = Gateway::start(&["--store", server.url()]).await;
    let client = Client::new(alone.address);
    client.put("/locks/pay").send().await.expect(201);
    let check = |store: &str| {
        let output = run(&["check", "--store", store]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, page) = check(&store);
    assert!(code == Some(0) && page.matches(TOLD).count() == 1, "{page}");

    let gateway = quorum.gateway(&[]).await;
    is_ready(&Client::new(gateway.address)).await;
    says(&gateway, TOLD).await;
    let (code, page) = check(&store);
    assert!(code == Some(0) && page.matches(TOLD).count() == 1, "the other gateway still runs: {page}");
    eventually("it is noticed", async || client.get("/readyz").send().await.status == 503).await;
    let answer = client.put("/locks/other").send().await.expect_problem(503, "store-unavailable");
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("it is part of a quorum") && !detail.contains("127.0.0.1"), "{detail}");
    // Whatever else is accepted, and is lacking.
    let user =
        ["ACL", "SETUSER", "u", "reset", "on", "nopass", "&*", "~fencepost:*", "+@all", "-zrank", "-exists"];
    let _: () = server.command(&user).await;
    let lacking = format!("redis://u:x@127.0.0.1:{}", server.port());
    let said = refused(&["--store", &lacking, "--redis-accept", "missing-permission"]);
    assert!(said.contains("it is part of a quorum"), "{said}");
    let way_out = format!(
        "or another --redis-prefix than fencepost. Where that quorum is given up, stop its gateways, and delete the key {RECORD}"
    );
    let (said, (code, page)) = (refused(&["--store", server.url()]), check(server.url()));
    assert!(said.contains(&way_out) && !said.contains("--redis-accept"), "{said}");
    assert!(code == Some(1) && page.contains("refused: it is part of a quorum"), "{page}");
    for prefix in ["fence", "fencepost:own"] {
        let other = Gateway::start(&["--store", server.url(), "--redis-prefix", prefix]).await;
        Client::new(other.address).put("/locks/pay").send().await.expect(201);
    }

    drop(gateway);
    let _: i64 = server.command(&["DEL", RECORD]).await;
    is_ready(&client).await;
    client.put("/locks/other").send().await.expect(201);
    assert_eq!(check(server.url()).0, Some(0));

    drop(alone);
    for node in &quorum.nodes {
        let _: i64 = node.command(&["DEL", "fencepost:{0}:fence"]).await;
    }
    let (code, page) = check(&store);
    assert!(code.is_some() && !page.contains(TOLD), "it was stopped, and its key deleted: {page}");
}

/// One wrong start, as with servers out of reach, must not stop a store that is there by right.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_quorum_that_has_not_begun_is_warned_of_and_still_grants() {
    let server = RedisServer::start().await;
    let _: i64 =
        server.command(&["HSET", RECORD, "members", "a:1 b:2 c:3", "since", "1", "settled", "0"]).await;
    let gateway = Gateway::start(&["--store", server.url()]).await;
    says(&gateway, &format!("(a:1 b:2 c:3). Once it begins, nothing is granted here: stop its gateways, and delete the key {RECORD}")).await;
    let client = Client::new(gateway.address);
    client.put("/locks/pay").send().await.expect(201);
    let _: i64 = server.command(&["HSET", RECORD, "born", "1"]).await;
    eventually("it has begun", async || client.get("/readyz").send().await.status == 503).await;
}

/// What is held stays in the hands of its holders, and nobody new gets anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_unsafe_stops_grants_and_nothing_else() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let held = client.put("/locks/held?ttl=1m").send().await.expect(201).token();
    let (own, line) = (fresh_token(), client.put("/locks/line?ttl=1m").send().await.expect(201).token());
    let waiting =
        tokio::spawn(client.put("/locks/line?ttl=1m&wait=50s").within(Duration::from_secs(60)).send());
    let look = async || client.get("/locks/line").send().await;
    eventually("it waits", async || look().await.json()["waiters"] == 1).await;

    let _: () =
        redis.command(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-ttl"]).await;
    eventually("it is noticed", async || client.get("/readyz").send().await.status == 503).await;
    for path in ["/locks/new", "/locks/new?wait=5s"] {
        let answer = client.put(path).token(&own).send().await.expect_problem(503, "store-unavailable");
        assert!(answer.json()["detail"].as_str().unwrap().contains("volatile-ttl"), "{}", answer.json());
    }
    client.get("/locks/new").send().await.expect_problem(404, "not-held");
    client.patch("/locks/held?ttl=2m").token(&held).send().await.expect(200);
    client.get("/locks/held").token(&held).send().await.expect(200);
    // A token of the server's making can only be confirmed, which grants nothing.
    client.put("/locks/held?ttl=2m").token(&held).send().await.expect(200);
    client.delete("/locks/held").token(&held).send().await.expect(204);
    client.delete("/locks/new").token(&own).send().await.expect_problem(404, "not-held");
    // It is free, and the first of its line is not handed it.
    client.delete("/locks/line").token(&line).send().await.expect(204);
    look().await.expect_problem(404, "not-held");
    says(&stage.gateway, "nothing is granted on this Redis").await;

    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    waiting.await.unwrap().expect(201);
    client.get("/readyz").send().await.expect(200);
    client.put("/locks/new").send().await.expect(201);
    says(&stage.gateway, "safe to lock on again").await;
    assert_eq!(lines_with(&stage.gateway, "nothing is granted on this Redis"), 1, "it is said once");
}

/// Also where the gateway has not seen that it might.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_keys_is_told_of_when_that_begins_and_not_where_it_is_accepted() {
    const TOLD: &str = "this Redis has evicted keys, and with them perhaps locks that are held";
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let accepting = Gateway::start(&["--store", redis.url(), "--redis-accept", "eviction"]).await;
    let started = Instant::now();
    // Each second both look, and find more of them than before.
    while started.elapsed() < Duration::from_secs(6) {
        redis.evict().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    says(&stage.gateway, TOLD).await;
    // It begins again if the test itself stood still for so long.
    assert!(lines_with(&stage.gateway, TOLD) <= 2, "{:?}", stage.gateway.log());
    assert_eq!(lines_with(&accepting, TOLD), 0);
}

/// A take-back of what was granted before goes through.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_reached_nobody_is_taken_back_on_an_unsafe_server_too() {
    let stage = Stage::redis_with(&["--store-timeout", "10s"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    client.put("/locks/warm").send().await.expect(201);
    redis.stand_still().await;
    let request = "PUT /locks/k?ttl=1h HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(stage.gateway.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    eventually("the command is at the server", async || redis.unread_bytes() > 0).await;
    drop(stream);
    says(&stage.gateway, "the client left before the answer").await;
    // By the time that anything is taken back, the server has been found unsafe.
    let setting =
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"]);
    let goes_on = async {
        eventually("the setting is there too", async || redis.unread_bytes() > request.len() as u64).await;
        redis.signal("CONT");
    };
    tokio::join!(setting, goes_on);
    eventually("the lock is gone", async || !redis.locks().await.contains_key("k")).await;
    eventually("it is noticed", async || client.get("/readyz").send().await.status == 503).await;
    assert!(redis.keys().await.iter().any(|key| key.contains(":freed:")), "it was voided");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_before_its_redis_judges_it_when_it_is_there() {
    let port = server_port();
    let gateway = Gateway::start(&["--store", &format!("redis://127.0.0.1:{port}")]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect_problem(503, "store-unavailable");
    let redis = RedisServer::start_on(port, &EVICTS).await.unwrap();
    eventually("it is refused for what it is", async || {
        let answer = client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
        answer.json()["detail"].as_str().unwrap().contains("allkeys-lru")
    })
    .await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    eventually("it grants", async || client.put("/locks/k").send().await.status == 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_does_not_answer_does_not_end_the_start() {
    let redis = RedisServer::start_with(&EVICTS).await;
    redis.stand_still().await;
    let gateway = Gateway::start(&["--store", redis.url(), "--store-timeout", "200ms"]).await;
    redis.signal("CONT");
    let client = Client::new(gateway.address);
    eventually("it is judged then", async || {
        let answer = client.get("/readyz").send().await.expect_problem(503, "store-unavailable");
        answer.json()["detail"].as_str().unwrap().contains("allkeys-lru")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_may_lose_is_said_once_and_again_when_it_changes() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    says(&stage.gateway, "no persistence: a restart of the server frees every lock").await;
    let _: () = redis.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    says(&stage.gateway, "no longer: no persistence").await;
    assert_eq!(lines_with(&stage.gateway, ":\"no persistence"), 1, "it is said once");
    let _: () = redis.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    eventually("it is said again", async || lines_with(&stage.gateway, ":\"no persistence") == 2).await;

    let snapshots = RedisServer::start_with(&["--save", "3600 1"]).await;
    says(&Gateway::on_redis(&snapshots, &[]).await, "snapshots only, no append-only file").await;
    let _: () = snapshots.command(&["ACL", "SETUSER", "default", "-config"]).await;
    says(&Gateway::on_redis(&snapshots, &[]).await, "or all where it takes no snapshots").await;
    let denied: Vec<redis::Value> = snapshots.command(&["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "what is forbidden is not tried: {denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_that_cannot_be_told_or_heard_are_warned_of() {
    let redis = RedisServer::start().await;
    for (lacking, warns) in [
        (&["-publish", "-subscribe"][..], false),
        (&["-ssubscribe"], true),
        (&["-spublish"], true),
        // On plain channels it works as well, if it is both of them.
        (&["-ssubscribe", "-spublish"], false),
        (&["-ssubscribe", "-spublish", "-publish"], true),
        (&["resetchannels"], true),
        (&["-scan"], false),
    ] {
        let user = [&["ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "&*", "+@all"], lacking].concat();
        let _: () = redis.command(&user).await;
        let output = run(&["check", "--store", &format!("redis://u:x@127.0.0.1:{}", redis.port())]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{lacking:?}: {page}");
        assert_eq!(page.contains("waiters learn of their turn by polling"), warns, "{lacking:?}: {page}");
        assert_eq!(page.contains("locks cannot be listed"), lacking == ["-scan"], "{lacking:?}: {page}");
    }
}

/// Who may fail over, and loses what by it: warned of when it is so, and from the moment that it is so.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_could_go_on_alone_is_warned_of() {
    let server_args = &["--min-replicas-to-write", "2"];
    let setup = SentinelSetup::start_with(SentinelOptions { server_args, ..Default::default() }).await;
    let gateway = Gateway::start(&["--store", &setup.url()]).await;
    let check = || {
        let output = run(&["check", "--store", &setup.url()]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{page}");
        page
    };
    let unguarded = "a primary that is cut off can go on granting";
    let page = check();
    assert!(
        page.contains("min-replicas-to-write is 2, and 2 keep up") && !page.contains(unguarded),
        "{page}"
    );
    assert!(page.contains("by the word of all sentinels, config-epoch 0"), "{page}");
    let client = Client::new(gateway.address);
    client.put("/locks/k").send().await.expect(201);
    assert_eq!(lines_with(&gateway, unguarded), 0);
    // With one of two, the other one is promoted while this one goes on with its primary.
    for (number, reason) in [
        ("1", "min-replicas-to-write is 1, and 1 of 2 replicas may be cut off with the primary"),
        ("0", "min-replicas-to-write is 0"),
    ] {
        let _: () = setup.servers[0].command(&["CONFIG", "SET", "min-replicas-to-write", number]).await;
        says(&gateway, &format!("{reason}: {unguarded}")).await;
        let page = check();
        assert!(page.contains(&format!("warning: {reason}: {unguarded}")), "{page}");
        for promise in ["I1  ", "I2  ", "I3  ", "I5  "] {
            let is_told = |line: &str| line.starts_with(promise) && line.contains(reason);
            assert!(page.lines().any(is_told), "{promise}: {page}");
        }
    }
    let _: () = setup.servers[0].command(&["CONFIG", "SET", "min-replicas-to-write", "2"]).await;
    says(&gateway, "no longer: min-replicas-to-write is 0").await;
    assert!(!check().contains(unguarded));
    // What the user may not ask is not called safe.
    let user = ["ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "&*", "+@all", "-config"];
    let _: () = setup.servers[0].command(&user).await;
    let output = run(&["check", "--store", &setup.url().replace("://", "://u:x@")]);
    let page = String::from_utf8(output.stdout).unwrap();
    let unknown = "whether min-replicas-to-write is at least 2, the number of replicas, is not known";
    assert_eq!(page.matches(unknown).count(), 6, "in a row, four promises and a warning: {page}");
}

/// Locks of the other servers are granted as before.
#[tokio::test(flavor = "multi_thread")]
async fn one_unsafe_server_of_a_cluster_stops_grants_there() {
    let cluster = RedisCluster::start().await;
    let gateway = Gateway::start(&["--store", &cluster.url()]).await;
    let client = Client::new(gateway.address);
    let keys: Vec<_> = (0..30).map(|n| format!("/locks/k{n}")).collect();
    let grants = async || {
        let mut grants = 0;
        for key in &keys {
            let answer = client.put(key).send().await;
            if answer.status == 503 {
                assert!(answer.json()["detail"].as_str().unwrap().contains("allkeys-lru"), "{answer:?}");
                continue;
            }
            // Released rather than left to a short lease, which on a busy machine is over before its answer: also a 503.
            client.delete(key).token(&answer.expect(201).token()).send().await.expect(204);
            grants += 1;
        }
        grants
    };
    eventually("all are granted", async || grants().await == keys.len()).await;
    let unsafe_one = &cluster.nodes[0];
    let _: () =
        unsafe_one.command(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"]).await;
    eventually("it is noticed", async || client.get("/readyz").send().await.status == 503).await;
    assert!((1..keys.len()).contains(&grants().await));
    let said = refused(&["--store", &cluster.url()]);
    assert!(said.contains(&format!("127.0.0.1:{}: Redis may evict", unsafe_one.port())), "{said}");
    let output = run(&["check", "--store", &cluster.url()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{page}");
    assert!(page.contains("primaries  3\n") && page.matches("\nserver ").count() == 3, "{page}");
    assert!(page.matches("refused: ").count() == 1 && page.contains("does not hold: it evicts"), "{page}");
}
