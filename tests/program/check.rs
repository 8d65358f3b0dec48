//! `fencepost check`: what it says of a store, and that it leaves no trace.

use std::path::Path;
use std::time::Duration;

use fencepost::clock::{Clock, SystemClock};
use kit::gateway::run;
use kit::proxy::{Fate, Framing, Proxy};
use kit::quorum::{self, Quorum, asks_all, shows};
use kit::{Client, Gateway, RedisServer, cluster, eventually, fresh_token, sentinels, server_port};

const PAGE: &str = include_str!("../../docs/stores.md");

/// What it prints, and its exit code.
fn check(args: &[&str]) -> (i32, String) {
    let output = run(&[&["check"], args].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.is_empty(), "all is on standard output: {stderr}");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// The value of a row.
fn row<'a>(page: &'a str, name: &str) -> &'a str {
    let mut values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("  "));
    values.next().unwrap_or_else(|| panic!("no row {name}: {page}")).trim()
}

/// The text with each number in it replaced by one digit, which keeps what is said.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if plain.ends_with('0') => {}
            '0'..='9' => plain.push('0'),
            _ => plain.push(c),
        }
    }
    plain
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_server_is_described_as_on_the_page() {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let (code, page) = check(&["--store", redis.url()]);
    assert_eq!(code, 0, "{page}");
    let (_, sample) = PAGE.split_once("```console\n$ fencepost check --store redis://127.0.0.1\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    assert_eq!(without_numbers(&page), without_numbers(sample));
    assert_eq!(row(&page, "server"), format!("127.0.0.1:{}", redis.port()));
    assert!(row(&page, "version").ends_with(&redis.info("redis_version").await), "{page}");
    // It is the clock of the same machine.
    assert!(row(&page, "clock").starts_with("that of this machine, to within"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_server_is_refused_with_each_reason_and_what_becomes_of_the_promises() {
    let args = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
    let redis = RedisServer::start_with(&args).await;
    let _: () = redis.command(&["ACL", "SETUSER", "default", "-zrank"]).await;
    let (code, page) = check(&["--store", redis.url()]);
    assert_eq!(code, 1, "{page}");
    assert_eq!(row(&page, "persistence"), "none");
    assert_eq!(row(&page, "eviction"), "volatile-lru at 104857600 bytes");
    // Of what is used, 60 % may be so with records.
    assert!(row(&page, "records").starts_with("kept; no new ones at 62914560 bytes"), "{page}");
    assert!(row(&page, "I3  one holder at a time").starts_with("does not hold: it evicts"), "{page}");
    assert_eq!(page.matches("\nrefused: ").count(), 2, "{page}");
    assert!(
        page.contains("refused: the Redis user lacks permissions: zrank (--redis-accept missing"),
        "{page}"
    );
    assert!(page.contains("\nwarning: no persistence: "), "{page}");
    assert!(page.ends_with("It cannot be used.\n"), "{page}");
    let accepted = ["--redis-accept", "eviction", "--redis-accept", "missing-permission"];
    let (code, page) = check(&[&["--store", redis.url()], &accepted[..]].concat());
    assert_eq!(code, 0, "{page}");
    assert!(
        page.contains("does not hold") && page.matches("accepted by --redis-accept").count() == 2,
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restart_would_forget_stands_beside_the_promise() {
    let holder = "I3  one holder at a time";
    for (args, persistence, promise) in [
        (
            &["--appendonly", "yes", "--appendfsync", "always"][..],
            "append-only file, synced with each write",
            "holds",
        ),
        (
            &["--appendonly", "yes", "--appendfsync", "no"],
            "append-only file, not always synced",
            "what was not synced",
        ),
        (
            &["--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"],
            "append-only file, not always synced",
            "what was not synced",
        ),
        (&["--save", "3600 1"], "snapshots only", "it forgets the last minutes"),
        (&[], "none", "it forgets all locks"),
    ] {
        let redis = RedisServer::start_with(args).await;
        let (code, page) = check(&["--store", redis.url()]);
        assert_eq!(code, 0, "{page}");
        assert!(row(&page, "persistence").starts_with(persistence), "{page}");
        assert!(row(&page, holder).contains(promise), "{page}");
        assert_eq!(row(&page, holder) == "holds", promise == "holds", "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_replicas_may_fail_over_to_them() {
    let primary = RedisServer::start_with(&["--appendonly", "yes", "--repl-diskless-sync-delay", "0"]).await;
    let replica = RedisServer::start().await;
    replica.follow(primary.port()).await;
    let page = check(&["--store", primary.url()]).1;
    assert_eq!(row(&page, "replicas"), "1 connected, min-replicas-to-write is 0");
    assert!(row(&page, "I2  fencing tokens grow").contains("min-replicas-to-write is 0"), "{page}");
    let _: () = primary.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    // A replica that has caught up counts only once the primary has heard from it, which is within a second.
    eventually("the replica counts", async || primary.info("min_slaves_good_slaves").await == "1").await;
    let page = check(&["--store", primary.url()]).1;
    assert_eq!(row(&page, "replicas"), "1 connected, min-replicas-to-write is 1, and 1 keep up");
    for promise in [
        "I1  no fencing token is given twice",
        "I2  fencing tokens grow",
        "I5  a resource that claims loses no update",
    ] {
        assert!(row(&page, promise).contains("(replicas are not asked)"), "{promise}: {page}");
    }
    assert!(row(&page, "I3  one holder at a time").contains("a replica is promoted"), "{page}");
    let page = check(&["--store", primary.url(), "--replicas-ack", "1"]).1;
    assert!(
        row(&page, "I3  one holder at a time")
            .contains("it may lack the last renewals, and its clock may be ahead"),
        "{page}"
    );
    assert!(!page.contains("warning: "), "{page}");
    let (code, page) = check(&["--store", primary.url(), "--replicas-ack", "2"]);
    let told =
        "cannot be used now: 1 replicas are connected, and --replicas-ack asks for 2: no lock is granted";
    assert!(code == 1 && page.contains(told) && !page.contains("warning: "), "{page}");
    let _: () = primary.command(&["CONFIG", "SET", "min-replicas-to-write", "2"]).await;
    let (code, page) = check(&["--store", primary.url()]);
    assert!(code == 1 && page.contains("cannot be used now: Redis: NOREPLICAS"), "{page}");
    let (code, page) = check(&["--store", replica.url()]);
    assert!(
        code == 1 && row(&page, "role") == "replica" && page.contains("refused: it is a replica"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_their_primary_are_named() {
    let setup = sentinels::shared().await;
    let (code, page) = check(&["--store", &setup.url()]);
    assert_eq!(code, 0, "{page}");
    for sentinel in &setup.sentinels {
        assert!(row(&page, "store").contains(&sentinel.port().to_string()), "{page}");
    }
    let primary = format!("127.0.0.1:{}", setup.servers[setup.current().await.unwrap()].port());
    assert!(row(&page, "primary").starts_with(&format!("{primary} by the word of all sentinels")), "{page}");
    assert_eq!((row(&page, "server"), row(&page, "role")), (&*primary, "primary"), "{page}");
    assert!(row(&page, "replicas").starts_with("2 connected"), "{page}");
    let (code, page) = check(&["--store", &setup.url().replace(sentinels::MASTER, "nobody")]);
    assert!(code == 1 && page.contains("cannot be reached: "), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_primary_of_a_cluster_has_its_block() {
    let cluster = cluster::shared().await;
    let (code, page) = check(&["--store", &cluster.url()]);
    assert_eq!(code, 0, "{page}");
    assert_eq!(row(&page, "primaries"), "3");
    assert_eq!(row(&page, "slots"), "16384 of 16384 have a server");
    for node in &cluster.nodes[..3] {
        assert!(page.contains(&format!("\nserver       127.0.0.1:{}\n", node.port())), "{page}");
    }
    assert_eq!(page.matches("min-replicas-to-write is 0: a primary that").count(), 3, "{page}");
    assert_eq!(page.matches("\nI3  ").count(), 1, "{page}");
}

/// The address by which it would be known to others is empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_server_that_never_met_another_is_asked_at_the_address_of_the_store() {
    let bus_port = server_port().to_string();
    let args = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
    let named = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let node = RedisServer::start_with(&[&args[..], &named].concat()).await;
    let _: () = node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    eventually("it has found itself whole", async || {
        node.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    let (code, page) = check(&["--store", &node.url().replace("redis://", "redis+cluster://")]);
    assert_eq!((code, row(&page, "server")), (0, &*format!("127.0.0.1:{}", node.port())), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_not_usable_and_no_password_is_told() {
    let nobody = format!("redis://user:hunter2@127.0.0.1:{}", server_port());
    let silent = RedisServer::start().await;
    silent.stand_still().await;
    for (args, reason) in [
        (&["--store", &nobody][..], "Connection refused"),
        (&["--store", silent.url(), "--store-timeout", "200ms"], "no answer within 100ms"),
        (&["--store", &nobody.replace("redis://", "redis+cluster://")], "Connection refused"),
        (&["--store", &format!("{}/name", nobody.replace("redis://", "redis+sentinel://"))], "no majority"),
    ] {
        let (code, page) = check(args);
        assert_eq!(code, 1, "{page}");
        assert!(page.contains("cannot be reached: ") && page.contains(reason), "{page}");
        assert!(!page.contains("hunter") && !page.contains("user:") && !page.contains("holds"), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_far_away_is_usable_unless_all_that_is_asked_takes_too_long() {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    proxy.set_policy(|_| Fate::late_answer(Duration::from_millis(150)));
    let (code, page) = check(&["--store", &proxy.redis_url()]);
    assert!(code == 0 && row(&page, "round trip").starts_with('1'), "{page}");
    let (code, page) = check(&["--store", &proxy.redis_url(), "--store-timeout", "500ms"]);
    let why = "it did not answer all that is asked within 250ms, half of --store-timeout";
    assert!(code == 1 && page.contains(why), "{page}");
}

/// As with TLS, opening takes some round trips more. All that is asked then comes close to the limit too.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_connects_to_what_is_usable_however_far_away() {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    proxy.set_policy(|message| {
        let round_trips = if message.windows(5).any(|part| part == b"HELLO") { 3 } else { 1 };
        Fate::late_answer(Duration::from_millis(230) * round_trips)
    });
    let (code, page) = check(&["--store", &proxy.redis_url()]);
    assert_eq!(code, 0, "{page}");
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let client = Client::new(gateway.address);
    eventually("it connects", async || client.put("/locks/k?ttl=30s").send().await.status == 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_a_password_or_no_tls_is_told_of_with_what_to_do() {
    let redis = RedisServer::start_with(&["--requirepass", "hunter2"]).await;
    for (store, problem) in [
        (redis.url().to_owned(), "asks for a password (NOAUTH)"),
        (format!("redis://:hunter3@127.0.0.1:{}", redis.port()), "refuses the password"),
    ] {
        let (code, page) = check(&["--store", &store]);
        assert_eq!(code, 1, "{page}");
        let line = page.lines().find(|line| line.contains(problem)).unwrap_or_else(|| panic!("{page}"));
        assert!(line.starts_with("cannot be used now: ") && line.contains("--redis-password-file"), "{page}");
        assert!(page.ends_with("It cannot be used now.\n") && !page.contains("hunter"), "{page}");
        assert!(!page.contains("cannot be reached"), "{page}");
        // No server of a cluster says who the others are before it has the password.
        let (code, page) = check(&["--store", &store.replace("redis://", "redis+cluster://")]);
        assert!(code == 1 && !page.contains("hunter"), "{page}");
        let is_told = |line: &str| line.contains(problem) && line.contains("--redis-password-file");
        assert!(page.lines().any(is_told), "{page}");
        let gateway = Gateway::start(&["--store", &store]).await;
        let answer = Client::new(gateway.address).get("/readyz").send().await;
        assert!(answer.expect_problem(503, "store-unavailable").json().to_string().contains(problem));
    }
    let plain = RedisServer::start().await;
    let (code, page) = check(&["--store", &plain.url().replace("redis://", "rediss://")]);
    assert!(code == 1 && row(&page, "store").ends_with(", with TLS"), "{page}");
    assert!(page.contains("no answer within 1s: does the server speak TLS at this port?"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_quorum_it_says_what_readyz_says_and_each_server_has_a_block() {
    let mut quorum = Quorum::start(3).await;
    let url = quorum.url();
    let (code, page) = check(&["--store", &url]);
    assert_eq!(code, 0, "a gateway would begin a new one: {page}");
    assert!(row(&page, "records").starts_with("none: a quorum keeps no records"), "{page}");
    assert_eq!(page.matches("\nrecords ").count(), 1, "{page}");
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    let is_ready = async |status| client.get("/readyz").send().await.status == status;
    eventually("it is ready", async || is_ready(200).await).await;
    assert_eq!(check(&["--store", &url]).0, 0);
    quorum.nodes[2].kill();
    eventually("it is seen", async || check(&["--store", &url]).1.contains("warning: cannot be reached"))
        .await;
    let (code, page) = check(&["--store", &url]);
    assert!(code == 0 && page.ends_with("It can be used.\n"), "{page}");
    let block = format!(
        "server  127.0.0.1:{}\nquorum  does not count: it cannot be reached: ",
        quorum.nodes[2].port()
    );
    assert!(page.contains(&block), "{page}");
    // It may have forgotten.
    let _: () = quorum.nodes[1].command(&["FLUSHALL"]).await;
    eventually("too few count", async || is_ready(503).await).await;
    eventually("it is in quarantine", async || check(&["--store", &url]).1.contains("in quarantine for"))
        .await;
    let (code, page) = check(&["--store", &url]);
    assert!(code == 1 && page.ends_with("It cannot be used now.\n"), "{page}");
    let said = "cannot be used now: 2 of 3 servers are needed, and 1 can be used: ";
    let line = page.lines().find(|line| line.starts_with(said)).unwrap_or_else(|| panic!("{page}"));
    assert!(line.contains(&format!("127.0.0.1:{}: in quarantine for ", quorum.nodes[1].port())), "{page}");
    // The next gateway takes the last one for one that forgot, unless it ignores what servers evict.
    drop(gateway);
    quorum.nodes[0].evict().await;
    let page = check(&["--store", &url]).1;
    assert!(page.contains(", and 0 can be used: ") && page.contains("or has evicted keys, since"), "{page}");
    let page = check(&["--store", &url, "--redis-accept", "eviction"]).1;
    assert!(page.contains(", and 1 can be used: ") && !page.contains("has evicted keys"), "{page}");
}

/// As after a step of their clocks: the clock cannot be set here, so the numbers are.
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_quorum_whose_clocks_are_far_behind_their_fencing_tokens_cannot_be_used() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    asks_all(&gateway, &quorum).await;
    let ahead_us = (SystemClock.wall() + Duration::from_secs(3_600)).as_micros().to_string();
    for (count, node) in quorum.nodes[..2].iter().enumerate() {
        let _: i64 = node.command(&["HSET", "fencepost:{quorum}:record", "b7", &ahead_us]).await;
        let (code, page) = check(&["--store", &quorum.url()]);
        assert_eq!(code, i32::from(count == 1), "one can be done without: {page}");
        assert!(page.contains("s behind its fencing tokens: it refuses most others"), "{page}");
    }
    let page = check(&["--store", &quorum.url()]).1;
    assert!(page.contains("cannot be used now: 2 of 3 servers are needed, and 1 can be used: "), "{page}");
    let later = quorum.gateway(&[]).await;
    for (node, status) in quorum.nodes.iter().zip(["unusable", "unusable", "counts"]) {
        shows(&later, node, status).await;
    }
}

/// Such a server is not in quarantine, if the risk is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_quorum_with_a_server_that_loses_held_locks_it_says_that_several_may_hold_one() {
    let quorum = Quorum::start(3).await;
    let holder = |accepted| {
        let (_, page) = check(&["--store", &quorum.url(), "--redis-accept", accepted]);
        row(&page, "I3  one holder at a time").to_owned()
    };
    assert!(holder("eviction").starts_with("holds, unless most servers forget at once"));
    for (setting, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "volatile-lru")] {
        let _: () = quorum.nodes[1].command(&["CONFIG", "SET", setting, value]).await;
    }
    assert!(holder("eviction").starts_with("does not hold: it evicts"));
    let primary = RedisServer::start().await;
    quorum.nodes[1].follow(primary.port()).await;
    assert!(holder("replica").starts_with("does not hold: it is a replica"));
}

/// One name that resolves to the same server is another name.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_servers_of_a_quorum_do_not_know_is_seen() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&["--redlock-epoch", "1"]).await;
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    let port = quorum.nodes[1].port();
    let other = quorum.url().replace(&format!("127.0.0.1:{port}"), &format!("localhost:{port}"));
    let (code, page) = check(&["--store", &other]);
    assert_eq!(
        (code, page.matches("it knows another list of servers of epoch 1 (127.0.0.1:").count()),
        (1, 6),
        "{page}"
    );
    assert!(page.contains("2 of 3 servers are needed, and 0 can be used"), "{page}");
    let next = check(&["--store", &quorum.url(), "--redlock-epoch", "2"]);
    assert!(next.0 == 0, "a gateway gives them this list: {}", next.1);
    // It gives them no list that is longer.
    let longer = format!("{},127.0.0.1:{}", quorum.url(), server_port());
    let (code, page) = check(&["--store", &longer, "--redlock-epoch", "2"]);
    let why = "a new list of servers must be as long as the one before";
    assert!(code == 1 && page.contains("0 can be used") && page.contains(why), "{page}");
    let refused = Gateway::start(&["--store", &longer, "--redlock-epoch", "2"]).await;
    eventually("the gateway says the same", async || {
        let answer = Client::new(refused.address).get("/readyz").send().await;
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        detail.contains("0 can be used") && detail.contains(why)
    })
    .await;
    drop(refused);
    drop(gateway);
    let gateway = quorum.gateway(&["--redlock-epoch", "2"]).await;
    let client = Client::new(gateway.address);
    eventually("it is ready", async || client.get("/readyz").send().await.status == 200).await;
    let (code, page) = check(&["--store", &quorum.url()]);
    assert!(code == 1 && page.contains("it knows a later list of servers, that of epoch 2"), "{page}");
}

/// Each needed command, taken away alone, is named; so are keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_missing_is_named() {
    let redis = RedisServer::start().await;
    let url = format!("redis://u:x@127.0.0.1:{}", redis.port());
    let check_with = async |rules: &[&str]| {
        let user = [&["ACL", "SETUSER", "u", "reset", "on", "nopass", "&*"], rules].concat();
        let _: () = redis.command(&user).await;
        check(&["--store", &url])
    };
    let (code, page) = check_with(&["~fencepost:*", "+@all"]).await;
    assert_eq!(code, 0, "{page}");
    let commands = "del eval evalsha exists get hgetall hincrby info mget ping pttl set time zadd zmscore \
                    zrank zscore";
    for command in commands.split(' ') {
        let (code, page) = check_with(&["~fencepost:*", "+@all", &format!("-{command}")]).await;
        assert_eq!(code, 1, "{command}: {page}");
        let refusals: Vec<_> = page.lines().filter(|line| line.starts_with("refused: ")).collect();
        assert!(refusals.len() == 1 && refusals[0].contains("lacks permissions: "), "{command}: {page}");
        assert!(refusals[0].contains(command) && !refusals[0].contains('~'), "{command}: {page}");
    }
    for (keys, lacking) in [
        ("~shop:*", "lacks permissions: ~fencepost:*, or all commands on it ("),
        ("%R~fencepost:*", "lacks permissions: del, hdel, hincrby, hset, pexpire, set, zadd, "),
        ("~fencepost:{0}:[^f]*", "lacks permissions: ~fencepost:{0}:freed:"),
        (
            "~fencepost:{0}:[^l]*",
            "lacks permissions: ~fencepost:{0}:lock:preflight, ~fencepost:{0}:line:preflight (",
        ),
    ] {
        let (code, page) = check_with(&[keys, "+@all"]).await;
        assert_eq!(code, 1, "{page}");
        assert!(page.contains(lacking), "{keys}: {page}");
    }
}

/// It may not look where a quorum has its record, and the server would log it as an attack.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_not_see_whether_there_is_a_quorum_is_told_so() {
    const TOLD: &str =
        "warning: whether it is part of a quorum, which would grant the same locks, is not known";
    let redis = RedisServer::start().await;
    for (keys, is_told) in [("~fencepost:*", false), ("~fencepost:{0}:*", true)] {
        let user = ["ACL", "SETUSER", "u", "reset", "on", "nopass", "&*", "+@all", keys];
        let _: () = redis.command(&user).await;
        let (code, page) = check(&["--store", &format!("redis://u:x@127.0.0.1:{}", redis.port())]);
        assert_eq!((code, page.contains(TOLD)), (0, is_told), "{page}");
    }
    let denied: Vec<redis::Value> = redis.command(&["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "{denied:?}");
    // Also where something else is lacking: that may be accepted.
    for (lacking, is_told) in [("-zrank", false), ("-hmget", true), ("-eval", true)] {
        let user = ["ACL", "SETUSER", "u", "reset", "on", "nopass", "&*", "+@all", "~fencepost:*", lacking];
        let _: () = redis.command(&user).await;
        let (code, page) = check(&["--store", &format!("redis://u:x@127.0.0.1:{}", redis.port())]);
        assert_eq!((code, page.contains(TOLD)), (1, is_told), "{lacking}: {page}");
    }
}

/// Redis reads beyond the arguments of a call that has too few, and may crash: each must be one that could be made.
#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_asked_for_with_complete_calls() {
    let redis = RedisServer::start().await;
    let quoted = |text: &'static str, quote| text.split(quote).skip(1).step_by(2);
    let list = include_str!("../../src/store/redis/health/permissions.rs")
        .split("/// What a user lacks")
        .next()
        .unwrap();
    let script = include_str!("../../src/store/redis/health/permissions.lua");
    let calls = quoted(list, '"').chain(quoted(script.split_once("local calls, keys").unwrap().1, '\''));
    let is_upper = |word: &&str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    let mut count = 0;
    for call in calls.filter(|text| text.starts_with(|c: char| c.is_ascii_uppercase())) {
        let words: Vec<_> = call.split(' ').collect();
        let name = words.iter().copied().take_while(is_upper).collect::<Vec<_>>().join("|");
        let known: Vec<Vec<redis::Value>> = redis.command(&["COMMAND", "INFO", &name]).await;
        // Below zero it is the least that a call must have.
        let redis::Value::Int(arity) = known[0][1] else { panic!("{call}: {known:?}") };
        let words = i64::try_from(words.len()).unwrap();
        assert!(if arity < 0 { words >= -arity } else { words == arity }, "{call}: {arity}");
        count += 1;
    }
    assert!(count > 35, "{count} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_user_of_the_page_can_do_all_that_is_needed() {
    let redis = RedisServer::start().await;
    let rule = PAGE.lines().find(|line| line.contains("ACL SETUSER fencepost")).unwrap().trim();
    let _: () = redis.command(&rule.split(' ').collect::<Vec<_>>()).await;
    let url = format!("redis://fencepost:password@127.0.0.1:{}", redis.port());
    let (code, page) = check(&["--store", &url]);
    assert!(code == 0 && !page.contains("by polling"), "{page}");
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    client.put("/locks/k").token(&token).send().await.expect(201);
    let waiting = tokio::spawn(client.put("/locks/k?wait=20s").send());
    eventually("it waits", async || client.get("/locks/k").send().await.json()["waiters"] == 1).await;
    client.patch("/locks/k?ttl=1m").token(&token).send().await.expect(200);
    client.delete("/locks/k").token(&token).send().await.expect(204);
    waiting.await.unwrap().expect(201);
    let denied: Vec<redis::Value> = redis.command(&["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "{denied:?}");
}

/// Whoever learns its password can end the gateway's own locks, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_user_of_the_page_is_refused_what_harms_others() {
    let redis = RedisServer::start().await;
    let rule = PAGE.lines().find(|line| line.contains("ACL SETUSER fencepost")).unwrap().trim();
    let _: () = redis.command(&rule.split(' ').collect::<Vec<_>>()).await;
    let url = format!("redis://fencepost:password@127.0.0.1:{}", redis.port());
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for call in [
        "CLIENT PAUSE 1",
        "CLIENT KILL TYPE normal",
        "CLIENT LIST",
        "CLIENT UNBLOCK 1",
        "CONFIG SET maxmemory 1",
        "CONFIG GET save",
        "ACL LIST",
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "MONITOR",
        "REPLICAOF NO ONE",
        "SAVE",
        "SCRIPT FLUSH",
        "SCRIPT KILL",
        "SWAPDB 0 1",
        "GET other",
        "SET other 1",
        "EVAL return(redis.call('DEL',KEYS[1])) 1 other",
        "PUBLISH other 1",
        "SHUTDOWN NOSAVE",
    ] {
        let mut words = call.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        let reply: redis::RedisResult<redis::Value> =
            command.arg(words.collect::<Vec<_>>()).query_async(&mut connection).await;
        let error = reply.expect_err(call);
        assert_eq!(error.code(), Some("NOPERM"), "{call}: {error}");
    }
}

/// Then an older copy, or an empty server, would repeat them.
#[tokio::test(flavor = "multi_thread")]
async fn fencing_tokens_that_are_ahead_of_the_clock_are_warned_of_in_any_bucket() {
    const AHEAD: &str = "8000000000000000";
    let (redis, cluster, quorum) =
        (RedisServer::start().await, cluster::shared().await, quorum::shared().await);
    let prefix = fresh_token();
    let bucket = cluster::bucket_of("b");
    let owner = &cluster.nodes[cluster.owner_of(cluster::slot_of_lock("b")).await];
    let fence = |bucket| format!("{prefix}:{{{bucket}}}:fence");
    for (url, server, key, field) in [
        (redis.url().to_owned(), &redis, fence(0), "another".to_owned()),
        (cluster.url(), owner, fence(bucket), "another".to_owned()),
        (quorum.url(), &quorum.nodes[0], format!("{prefix}:{{quorum}}:record"), format!("b{bucket}")),
    ] {
        let args = ["--store", &url, "--redis-prefix", &prefix];
        let gateway = Gateway::start(&args).await;
        let client = Client::new(gateway.address);
        eventually("the store is there", async || client.get("/readyz").send().await.status == 200).await;
        for key in ["a", "b", "c"] {
            client.put(&format!("/locks/{key}")).send().await.expect(201);
        }
        let (code, page) = check(&args);
        assert!(code == 0 && !page.contains("fencing tokens are"), "{page}");
        let _: i64 = server.command(&["HSET", &key, &field, AHEAD]).await;
        let (code, page) = check(&args);
        let lines: Vec<_> = page.lines().filter(|line| line.contains("its fencing tokens are ")).collect();
        assert!(code == 0 && lines.len() == 1 && lines[0].starts_with("warning: "), "{page}");
        let is_named = lines[0].contains(&format!("127.0.0.1:{}: ", server.port()));
        assert_eq!(is_named, url != redis.url(), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_leaves_nothing_behind_in_redis() {
    let redis = RedisServer::start().await;
    check(&["--store", redis.url()]);
    assert!(redis.keys().await.is_empty(), "{:?}", redis.keys().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_neither_made_nor_disturbed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let store = format!("file:{}", file.display());
    let state = || {
        let (code, page) = check(&["--store", &store]);
        (code, row(&page, "file").to_owned())
    };
    assert_eq!(state(), (0, "there is none yet; a gateway makes it".to_owned()));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

    let mut gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/before?ttl=1m").send().await.expect(201);
    let before = std::fs::read(&file).unwrap();
    let (code, said) = state();
    assert!(code == 0 && said.ends_with("in use by another process"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), before, "it was not written to");
    client.put("/locks/after?ttl=1m").send().await.expect(201);
    gateway.kill();
    let (code, said) = state();
    assert!(code == 0 && said.ends_with("it was not closed, and the next start repairs it"), "{said}");

    let mut gateway = Gateway::on_file(&file, &[]).await;
    let (client, token) = (Client::new(gateway.address), fresh_token());
    for key in ["before", "after"] {
        client.get(&format!("/locks/{key}")).send().await.expect(200);
    }
    for key in ["done", "broken", "under-way"] {
        client.put(&format!("/once/{key}")).token(&token).send().await.expect(201);
    }
    for key in ["done", "broken"] {
        let store = client.call("POST", &format!("/once/{key}"));
        store.token(&token).body("a result").send().await.expect(200);
    }
    client.delete("/once/broken?force=true").send().await.expect(204);
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
    let (code, said) = state();
    assert!(code == 0 && said.ends_with("not in use"), "{said}");
    assert_eq!(row(&check(&["--store", &store]).1, "records"), "3, with 8 bytes of results");
}

#[test]
fn a_file_that_cannot_be_used_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("notes.txt");
    std::fs::write(&other, "not a store at all\n".repeat(1_000)).unwrap();
    let refused = |path: &Path, reason: &str| {
        let (code, page) = check(&["--store", &format!("file:{}", path.display())]);
        assert_eq!(code, 1, "{page}");
        assert!(page.contains("\nrefused: ") && page.contains(reason), "{page}");
        assert!(page.ends_with("It cannot be used.\n") && !page.contains("holds"), "{page}");
    };
    refused(&other, "is not a Fencepost store");
    refused(&directory.path().join("no/such/directory"), "No such file or directory");
    refused(directory.path(), "Is a directory");
    // As at the start, which makes no file where a link leads to nothing.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("not-mounted"), &link).unwrap();
    refused(&link, "No such file or directory");
    // The start makes a file of another name first.
    refused(&directory.path().join("no-directory/"), "No such file or directory");
    refused(&directory.path().join("n".repeat(250)), "File name too long");
    let taken = directory.path().join("taken");
    std::fs::create_dir(directory.path().join("taken.unfinished")).unwrap();
    refused(&taken, "taken.unfinished is in the way");
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&pipe, "is not a Fencepost store");
}

#[test]
fn memory_says_what_it_is() {
    let (code, page) = check(&["--store", "memory:"]);
    assert_eq!((code, row(&page, "store")), (0, "embedded, in memory"));
    assert_eq!(
        row(&page, "I3  one holder at a time"),
        "holds, unless the process ends (all locks are forgotten)"
    );
    assert!(page.contains("\nwarning: all locks are lost"), "{page}");
}
