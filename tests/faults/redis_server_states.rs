//! How the Redis store is reached, and what it says of a server that is away, unfit, full, silent or new.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use kit::certificates::Certificates;
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, Gateway, Proxy, RedisServer, Stage, eventually, fresh_token, secrets};

const FENCE: &str = "fencepost:{0}:fence";

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
    let files = Certificates::new();
    let tls_port = kit::server_port();
    let args = files.args(tls_port);
    let _redis = RedisServer::start_with(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let url = format!("rediss://127.0.0.1:{tls_port}");
    let gateway = Gateway::start(&["--store", &url, "--redis-ca", &files.authority()]).await;
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

/// The connection that stands knows nothing of a password that was changed; a new one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn why_redis_takes_no_new_connection_is_said_at_once() {
    let redis = RedisServer::start_with(&["--user", "gateway", "on", ">before", "~*", "&*", "+@all"]).await;
    let url = format!("redis://gateway:before@127.0.0.1:{}", redis.port());
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect(200);
    let _: () = redis.command(&["ACL", "SETUSER", "gateway", "resetpass", ">after"]).await;
    // The one that only the question uses: it was the last to connect.
    let clients: String = redis.command(&["CLIENT", "LIST"]).await;
    let of_gateway = clients.lines().filter(|line| line.contains("user=gateway"));
    let ids = of_gateway.filter_map(|line| line.strip_prefix("id=")?.split_once(' ')?.0.parse::<u64>().ok());
    let last = ids.max().unwrap().to_string();
    let _: u64 = redis.command(&["CLIENT", "KILL", "ID", &last]).await;
    let mut slowest = Duration::ZERO;
    eventually("the reason is known", async || {
        let asked_at = Instant::now();
        let answer = client.get("/readyz").send().await;
        slowest = slowest.max(asked_at.elapsed());
        answer.status == 503
            && answer.json()["detail"]
                .as_str()
                .unwrap()
                .starts_with("Redis takes no new connection: the server refuses the password, or does not know the user (WRONGPASS)")
    })
    .await;
    let said = |line: &str| line.contains("the gateway is not ready") && line.contains("WRONGPASS");
    gateway.logs("the log has it", said).await;
    client.put("/locks/k").send().await.expect(201);
    assert!(slowest < Duration::from_millis(700), "{slowest:?}");
    let _: () = redis.command(&["ACL", "SETUSER", "gateway", ">before"]).await;
    eventually("it is ready again", async || client.get("/readyz").send().await.status == 200).await;
}

/// Most probes wait for a second or less, and the store may take longer.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_that_the_store_is_slow_also_where_each_probe_leaves_before_its_answer() {
    let stage = Stage::redis_with(&["--store-timeout", "30s"]).await;
    let (client, redis) = (stage.client(), stage.redis.as_ref().unwrap());
    redis.stand_still().await;
    eventually("it is told", async || {
        let probe = client.get("/readyz").within(Duration::from_millis(800));
        let _ = probe.try_send().await;
        let said =
            |line: &String| line.contains("the gateway is not ready") && line.contains("a probe has left");
        stage.gateway.log().iter().any(said)
    })
    .await;
    redis.signal("CONT");
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

/// The server changes its part while the connection stays: it is noticed without any error.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_becomes_a_replica_is_left() {
    let redis = RedisServer::start_with(&["--replica-read-only", "no"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/before").send().await.expect(201);
    let _: () = redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    eventually("it is refused", async || client.put("/locks/k?ttl=10ms").send().await.status == 503).await;
    eventually("the reason is known", async || {
        let answer = client.get("/readyz").send().await;
        answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains("it is a replica")
    })
    .await;
    let _: () = redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    eventually("it is used again", async || client.put("/locks/k").send().await.status == 201).await;
}

/// To learn a server is to write to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_can_meet_a_server_that_is_out_of_memory() {
    let redis = RedisServer::start().await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let late = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(late.address);
    // That token takes nothing from now on, and the server keeps that in mind.
    let token = fresh_token();
    client.delete("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    client.put("/locks/k").token(&token).send().await.expect_problem(409, "token-released");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_probes_share_one_look_at_the_server() {
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    let probes = (0..200).map(async |_| drop(client.get("/readyz").send().await.expect(200)));
    futures_util::future::join_all(probes).await;
    let pings = redis.calls("ping").await;
    assert!(pings < 20, "each look pings its connection: {pings}");
}

/// The connection falls silent without being closed, as behind a firewall that forgot it: the request's second try
/// goes over a fresh one.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_replaced_within_the_request() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
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

/// Nothing is asked on the connection that hears of turns, so nothing fails on it either.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_a_gateway_only_hears_is_replaced_once_it_is_silent() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    // Alone: the look at what the user may do names it too, on the other connection. The first one is the listener's.
    let mut ping = proxy.expect("*1\r\n$4\r\nPING\r\n", Fate::LoseAnswers);
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    ping.reaches(Progress::PassedOn).await;
    // And it is not taken for a slow one.
    let is_given_up =
        |line: &str| line.contains("is given up") && line.contains("the server does not answer");
    gateway.logs("it is given up", is_given_up).await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(201);
}

/// The kernel itself looks whether the other end is still there, also while nothing is said.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_redis_are_kept_alive() {
    const KEEPALIVE: &str = "02";
    let stage = Stage::redis().await;
    let to_redis = format!(":{:04X}", stage.redis.as_ref().unwrap().port());
    eventually("the timer of keepalive runs", async || {
        // Of each connection: addresses of both ends, state, queues, and the timer with its kind in front.
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let connections = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours: Vec<_> =
            connections.filter(|line| line[2].ends_with(&to_redis) && line[3] == "01").collect();
        // Anything under way has a timer of its own kind for a moment.
        !ours.is_empty() && ours.iter().all(|line| line[5].starts_with(KEEPALIVE))
    })
    .await;
}

/// The command reaches a server that stands still, the client leaves, and the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_leaves_no_lock() {
    let stage = Stage::redis_with(&["--store-timeout", "10s"]).await;
    let redis = stage.redis.as_ref().unwrap();
    let client = stage.client();
    client.put("/locks/warm").send().await.expect(201);
    for round in 1..=2 {
        redis.signal("STOP");
        let token = if round == 1 { format!("Lease-Token: {}\r\n", fresh_token()) } else { String::new() };
        let request = format!("PUT /locks/k?ttl=1h HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
        secrets::remember_head(request.as_bytes());
        let mut stream = tokio::net::TcpStream::connect(stage.gateway.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        // The server has the command in its socket, and answers nobody.
        eventually("the command is at the server", async || redis.unread_bytes() > 0).await;
        drop(stream);
        eventually("the gateway sees it", async || {
            let log = stage.gateway.log();
            log.iter().filter(|line| line.contains("the client left before the answer")).count() == round
        })
        .await;
        redis.signal("CONT");
        eventually("the lock is taken back", async || {
            let marks = redis.keys().await.iter().filter(|key| key.contains(":freed:")).count();
            marks == round && client.get("/locks/k").send().await.status == 404
        })
        .await;
    }
}

/// An address that is given to another server between the two connections of a gateway: it would hear of nothing that
/// happens where its locks are.
#[tokio::test(flavor = "multi_thread")]
async fn both_connections_of_a_gateway_lead_to_one_server() {
    let (former, latter) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = Proxy::start(former.port(), Framing::Resp).await;
    let open = Gate::new();
    let held = Fate::Hold { message: open.clone(), answer: open.clone() };
    // Behind the look at the start. The connection that listens is made once the first one stands.
    proxy.expect("HELLO", Fate::Pass);
    let mut first = proxy.expect("HELLO", held);
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    first.reaches(Progress::Seen).await;
    proxy.set_target(latter.port());
    open.cancel();

    let client = Client::new(gateway.address);
    eventually("the gateway is ready", async || client.get("/readyz").send().await.status == 200).await;
    let listens_to = async |redis: &RedisServer| {
        let channels: Vec<String> = redis.command(&["PUBSUB", "SHARDCHANNELS"]).await;
        !channels.is_empty()
    };
    client.put("/locks/k?ttl=30s").send().await.expect(201);
    assert!(!former.keys().await.contains(&"fencepost:{0}:lock:k".to_owned()));
    assert!(listens_to(&latter).await, "the gateway does not listen where its locks are");
    assert!(!listens_to(&former).await, "the gateway listens where none of its locks is");
}

/// The server is far away: each answer takes 150 ms, however many are under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_far_away_is_used_with_the_default_settings() {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let looks = Arc::new(AtomicU32::new(0));
    let looked = looks.clone();
    proxy.set_policy(move |message| {
        let is_look = message.windows(11).any(|part| part == b"$5\r\nstats\r\n");
        looked.fetch_add(u32::from(is_look), Ordering::Relaxed);
        Fate::late_answer(Duration::from_millis(150))
    });
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    client.put("/locks/before").send().await.expect(201);
    // The start, both connections, and three looks: each begins once the one before has ended well.
    eventually("it looks again", async || looks.load(Ordering::Relaxed) >= 6).await;
    client.put("/locks/after").send().await.expect(201);
    let log = gateway.log();
    let is_trouble = |line: &String| line.contains("is given up") || line.contains("requests are refused");
    assert!(!log.iter().any(is_trouble), "{log:#?}");

    // Half of it is too short for all that is asked, and long enough for the first answer.
    let gateway = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "500ms"]).await;
    let why = "Redis did not answer all that connecting asks within 250ms, half of --store-timeout";
    gateway.logs("it says why", |line| line.contains(why)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_server_cannot_be_used_is_said_though_its_other_connection_is_silent() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(201);
    proxy.set_policy(|message| match message.starts_with(b"*2\r\n$10\r\nSSUBSCRIBE") {
        true => Fate::LoseAnswers,
        false => Fate::Pass,
    });
    let _: () = redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let is_told = |line: &str| line.contains("requests are refused") && line.contains("it is a replica");
    gateway.logs("the reason is told", is_told).await;
}

/// A restart that loses what was done since the last snapshot: the numbers of that time are not given again.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_from_an_older_snapshot_never_lowers_a_number() {
    let mut stage = Stage::redis().await;
    let client = stage.client();
    let grant = async || {
        let granted = client.put("/locks/k?ttl=30s").send().await.expect(201);
        client.delete("/locks/k").token(&granted.token()).send().await.expect(204);
        granted.fencing_token()
    };
    grant().await;
    let _: () = stage.redis.as_ref().unwrap().command(&["SAVE"]).await;
    let mut last = 0;
    for _ in 0..50 {
        last = grant().await;
    }
    stage.redis.as_mut().unwrap().restart().await;
    let after = grant().await;
    assert!(after > last, "{after} after {last}");
}

/// A run that started with the next grant only could start on a deposed primary, above the numbers of its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_noticed_without_any_request_and_the_run_starts_anew() {
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
    let primary_at = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::start_with(&["--replicaof", &primary_at]).await;
    // Its arrival gives the primary another name, and a gateway that learned the old one would learn anew.
    eventually("the replica has arrived", async || {
        replica.command::<String>(&["INFO", "replication"]).await.contains("master_link_status:up")
    })
    .await;
    let before = Gateway::on_redis(&primary, &[]).await;
    let deposed = Client::new(before.address);
    deposed.put("/locks/other?ttl=30s").send().await.expect(201);
    let _: () = primary.command(&["FLUSHALL"]).await;
    eventually("the run is there again", async || primary.keys().await.contains(&FENCE.to_owned())).await;

    // Nothing tells the old primary that it has a successor.
    let _: () = replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    let after = Gateway::on_redis(&replica, &[]).await;
    let successor = Client::new(after.address);
    let of_successor = successor.put("/locks/k?ttl=30s").send().await.expect(201).fencing_token();
    let of_deposed = deposed.put("/locks/k?ttl=30s").send().await.expect(201).fencing_token();
    assert!(of_deposed < of_successor, "{of_deposed} on the deposed one, {of_successor} on its successor");
}

/// Whoever finds a thousand commands before its own, at a Redis that says nothing, was certainly not served, and is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_redis_leaves_no_more_in_doubt_than_are_under_way() {
    const MOST_UNDER_WAY: usize = 1_024;
    const CONNECTIONS: usize = 25;
    const PER_CONNECTION: usize = 100;
    let stage = Stage::redis().await;
    let redis = stage.redis.as_ref().unwrap();
    redis.stand_still().await;
    let mut requests = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let client = Client::h2c(stage.gateway.address);
        for number in 0..PER_CONNECTION {
            let client = client.clone();
            let put = client.put(&format!("/locks/many-{connection}-{number}?ttl=1s"));
            requests.spawn(async move {
                put.send().await.expect(503).json()["type"].as_str().unwrap().to_owned()
            });
        }
    }
    let told = requests.join_all().await;
    redis.signal("CONT");
    let in_doubt = told.iter().filter(|kind| *kind == "/problems/outcome-unknown").count();
    let in_none = told.iter().filter(|kind| *kind == "/problems/store-unavailable").count();
    assert_eq!(in_doubt + in_none, CONNECTIONS * PER_CONNECTION, "{told:?}");
    assert!((1..=MOST_UNDER_WAY).contains(&in_doubt), "{in_doubt} in doubt, {in_none} in none");
}

/// What waits behind a thousand commands was sent nowhere: it does not wait for the end of those, on a server that may be another by
/// then.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_behind_others_go_on_over_the_next_link_once_theirs_is_left() {
    const MOST_UNDER_WAY: usize = 1_024;
    const PER_CONNECTION: usize = 100;
    const ALL: usize = 11 * PER_CONNECTION;
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "20s"]).await;
    Client::new(gateway.address).put("/locks/warm").send().await.expect(201);
    let mut silence = proxy.expect("lock:many-", Fate::LoseAnswers);
    let mut requests = JoinSet::new();
    for connection in 0..ALL / PER_CONNECTION {
        let client = Client::h2c(gateway.address);
        for number in 0..PER_CONNECTION {
            let put = client.put(&format!("/locks/many-{connection}-{number}?ttl=1m"));
            requests.spawn(async move { put.send().await.status });
        }
    }
    silence.reaches(Progress::Answered).await;
    let taken = async || redis.locks().await.keys().filter(|key| key.contains("many-")).count();
    eventually("as many are under way as may be", async || taken().await == MOST_UNDER_WAY).await;
    // The connection on which the gateway hears, and with it the link. No command has failed.
    let killed: u32 = redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(killed, 1);
    for number in MOST_UNDER_WAY..ALL {
        let status = requests.join_next().await.unwrap().unwrap();
        assert_eq!(status, 201, "of number {number}");
    }
    assert_eq!(taken().await, ALL);
}

/// A balancer may hang between, or the server on one command: nothing is closed, and all is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_call_that_is_never_answered_keeps_no_connection_of_a_broken_link_open() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "1s"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/warm").send().await.expect(201);
    for round in 0..4 {
        let hanging = proxy.expect(&format!("lock:hanging-{round}"), Fate::LoseAnswers);
        client.put(&format!("/locks/hanging-{round}?ttl=1s")).send().await;
        assert_eq!(hanging.progress(), Progress::Answered);
        eventually("the next link is there", async || client.get("/readyz").send().await.status == 200).await;
    }
    client.put("/locks/after").send().await.expect(201);
    eventually("there are the connections of one link", async || {
        let clients: String = redis.command(&["CLIENT", "LIST"]).await;
        // That for commands, that for what is told unasked, and that which knocks; and this test's own.
        clients.lines().filter(|line| !line.contains(" cmd=client|list ")).count() == 3
    })
    .await;
}

/// As behind a proxy that loses its server.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_closed_at_once_are_told_a_few_times_and_made_again_after_a_pause() {
    let redis = RedisServer::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (port, made, lasts) = (redis.port(), Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, may_last) = (made.clone(), lasts.clone());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let life = Duration::from_millis(if may_last.load(Ordering::SeqCst) { 60_000 } else { 100 });
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                let _ = timeout(life, copy_bidirectional(&mut near, &mut far)).await;
                std::io::Result::Ok(())
            });
        }
    });
    let started = Instant::now();
    let gateway = Gateway::start(&["--store", &url]).await;
    eventually("many were closed", async || made.load(Ordering::SeqCst) >= 40).await;
    let elapsed = started.elapsed();
    assert!(elapsed > Duration::from_secs(3), "two for each try, and a pause behind it: {elapsed:?}");
    let told = || -> Vec<String> {
        let is_of_link = |line: &String| line.contains("connected to Redis") || line.contains("is given up");
        gateway.log().into_iter().filter(is_of_link).collect()
    };
    assert!(told().len() <= 16, "{:#?}", told());
    lasts.store(true, Ordering::SeqCst);
    eventually("it says that this one lasts", async || told().last().unwrap().contains("connected to")).await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(201);
}

/// As of a proxy that has no server behind it and closes each connection in another way.
#[tokio::test(flavor = "multi_thread")]
async fn reasons_that_change_with_each_try_are_logged_once_a_second_at_most() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let gateway = Gateway::start(&["--store", &url, "--store-timeout", "100ms"]).await;
    let started = Instant::now();
    for number in 0..40 {
        let (mut connection, _) = listener.accept().await.unwrap();
        connection.write_all(format!("-LOADING number {number}\r\n").as_bytes()).await.unwrap();
    }
    let told = async || {
        gateway.log().into_iter().filter(|line| line.contains("Redis cannot be used: requests")).count()
    };
    eventually("it says why", async || told().await > 0).await;
    let (told, seconds) = (told().await, started.elapsed().as_secs());
    assert!(told as u64 <= seconds + 2, "{told} lines in {seconds} s: {:#?}", gateway.log());
}

/// Connecting asks two things at once, and either may be refused first.
#[tokio::test(flavor = "multi_thread")]
async fn reasons_that_come_in_turns_are_logged_once_each() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let gateway = Gateway::start(&["--store", &url, "--store-timeout", "100ms"]).await;
    let (started, mut number) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(5) {
        number += 1;
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.write_all(format!("-LOADING number {}\r\n", number / 4 % 2).as_bytes()).await;
    }
    let told = gateway.log();
    let told: Vec<_> = told.iter().filter(|line| line.contains("Redis cannot be used: requests")).collect();
    for reason in ["number 0", "number 1"] {
        assert_eq!(told.iter().filter(|line| line.contains(reason)).count(), 1, "{told:#?}");
    }
}
