//! The numbers of a gateway, as a collector reads them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use kit::certificates::Certificates;
use kit::http::{parse, raw, raw_call};
use kit::keys::KeysFile;
use kit::metrics::{Scrape, metrics_address, without_suffix};
use kit::quorum::Quorum;
use kit::{Client, Gateway, PATIENCE, RedisServer, Stage, eventually, fresh_token, on_each_store};

mod records;

on_each_store!(
    every_request_is_counted_by_what_it_asked_for_and_what_became_of_it,
    no_client_chooses_a_label,
    those_who_wait_and_those_who_hold_are_seen,
);

const DASHBOARD: &str = include_str!("../../docker/grafana/fencepost.json");
const ALERTS: &str = include_str!("../../docker/alerts.yml");
const PAGE: &str = include_str!("../../docs/operations/metrics.md");
const ALERTS_PAGE: &str = include_str!("../../docs/operations/alerts.md");

/// Reads the numbers until they are as they should be.
async fn eventually_shows(address: SocketAddr, what: &str, mut is_so: impl FnMut(&Scrape) -> bool) {
    eventually(what, async || is_so(&Scrape::of(address).await)).await;
}

async fn every_request_is_counted_by_what_it_asked_for_and_what_became_of_it(stage: Stage) {
    let (client, address) = (stage.client(), stage.gateway.address);
    let token = fresh_token();
    client.put("/locks/a").token(&token).send().await.expect(201);
    client.put("/lock?key=a").token(&token).send().await.expect(200);
    for _ in 0..3 {
        client.put("/locks/a").send().await.expect(423);
    }
    client.patch("/lock?key=a").token(&token).send().await.expect(200);
    client.patch("/locks/b").token(&token).send().await.expect(404);
    client.get("/locks/a").send().await.expect(200);
    client.call("HEAD", "/lock?key=a").send().await.expect(200);
    client.get("/locks/b").send().await.expect(404);
    client.delete("/locks/a").token(&fresh_token()).send().await.expect(409);
    client.delete("/lock?key=a").token(&token).send().await.expect(204);
    client.put("/locks/a?ttl=5").send().await.expect(400);
    client.call("POST", "/locks/a").send().await.expect(405);
    let expected = [
        ("acquire", "granted", 1.0),
        ("acquire", "already-held", 1.0),
        ("acquire", "lock-held", 3.0),
        ("acquire", "bad-parameter", 1.0),
        ("renew", "ok", 1.0),
        ("renew", "not-held", 1.0),
        ("inspect", "ok", 2.0),
        ("inspect", "not-held", 1.0),
        ("release", "ok", 1.0),
        ("release", "held-by-another", 1.0),
        ("hold", "granted", 0.0),
        ("other", "method-not-allowed", 1.0),
    ];
    eventually_shows(address, "all are counted", |scrape| {
        expected.iter().all(|(operation, outcome, count)| scrape.requests(operation, outcome) == *count)
    })
    .await;
    let scrape = Scrape::of(address).await;
    for (operation, count) in [("acquire", 6.0), ("renew", 2.0), ("inspect", 3.0), ("release", 2.0)] {
        assert_eq!(
            scrape.get(&format!("fencepost_request_seconds_count{{operation=\"{operation}\"}}")),
            count
        );
        let asked = scrape.get(&format!("fencepost_store_seconds_count{{step=\"{operation}\"}}"));
        // One was refused before; what a slow store leaves unanswered is asked again.
        assert!(asked >= if operation == "acquire" { count - 1.0 } else { count }, "{operation}: {asked}");
        assert!(scrape.get(&format!("fencepost_store_seconds_sum{{step=\"{operation}\"}}")) > 0.0);
    }
    let store = if stage.redis.is_some() { "redis" } else { "file" };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(scrape.get(&format!("fencepost_build_info{{store=\"{store}\",version=\"{version}\"}}")), 1.0);
    assert!(scrape.get("process_resident_memory_bytes") > 1e6);
    assert!(scrape.get("process_max_fds") >= scrape.get("process_open_fds"));
    assert!(scrape.get("process_start_time_seconds") > 1.7e9);
    // The system counts in hundredths of a second.
    eventually_shows(address, "time passes", |scrape| scrape.get("process_cpu_seconds_total") > 0.0).await;
}

async fn no_client_chooses_a_label(stage: Stage) {
    let (client, address) = (stage.client(), stage.gateway.address);
    client.put("/locks/first").send().await.expect(201);
    let before = Scrape::of(address).await;
    for word in ["hostile", "hostile\"}", "hostile{a=\"b\"}", "hostile\n1", "höstile"] {
        let encoded: String = word.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for path in [
            format!("/locks/{encoded}"),
            format!("/locks/a?owner={encoded}"),
            format!("/locks/a?{encoded}=1"),
            format!("/lock?key={encoded}&wait=1ms"),
            format!("/hold?key={encoded}&ttl={encoded}"),
            format!("/problems/{encoded}"),
            format!("/{encoded}"),
            format!("/metrics?{encoded}"),
            format!("/metrics/{encoded}"),
        ] {
            for method in ["GET", "PUT", "PATCH", "DELETE", "POST", "HOSTILE"] {
                client.call(method, &path).token("hostile-hostile-hostile").send().await;
            }
        }
        let header = word.replace('\n', " ");
        for name in
            ["X-Request-Id", "Lease-Token", "Authorization", "Origin", "Accept", "traceparent", "User-Agent"]
        {
            raw_call(address, "GET", "/locks/b", &format!("{name}: {header}\r\n")).await;
        }
        raw_call(address, "GET", &format!("/locks/{}", "hostile".repeat(2_000)), "").await.expect(414);
        let request = format!("{header} / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        raw(address, request.as_bytes()).await;
    }
    let after = Scrape::of(address).await;
    assert_eq!(after.series(), before.series());
    assert!(after.series().iter().all(|series| !series.contains("stile")));
    assert!(after.requests("acquire", "granted") > before.requests("acquire", "granted"));
}

async fn those_who_wait_and_those_who_hold_are_seen(stage: Stage) {
    let (client, address) = (stage.client(), stage.gateway.address);
    let token = fresh_token();
    let hold = client.call("POST", "/hold?key=a&ttl=1s").token(&token).open().await;
    assert_eq!(hold.status(), 200);
    let waiting = tokio::spawn(client.put("/locks/a?wait=20s").within(PATIENCE).send());
    eventually_shows(address, "both are seen", |scrape| {
        (scrape.get("fencepost_holds"), scrape.get("fencepost_waiters")) == (1.0, 1.0)
    })
    .await;
    client.put("/locks/a?wait=1ms").send().await.expect(423);
    client.delete("/locks/a").token(&token).send().await.expect(204);
    waiting.await.unwrap().expect(201);
    eventually_shows(address, "both are over", |scrape| {
        (scrape.get("fencepost_holds"), scrape.get("fencepost_waiters")) == (0.0, 0.0)
            && scrape.get("fencepost_leases_lost_total{reason=\"held-by-another\"}") == 1.0
            && scrape.get("fencepost_wait_seconds_count{ended=\"granted\"}") == 1.0
            && scrape.get("fencepost_wait_seconds_count{ended=\"not-granted\"}") == 1.0
            && scrape.requests("acquire", "granted") == 1.0
            && scrape.requests("hold", "granted") == 1.0
    })
    .await;
    // A request that asks to wait says nothing of how fast this gateway is.
    let scrape = Scrape::of(address).await;
    assert_eq!(scrape.get("fencepost_request_seconds_count{operation=\"acquire\"}"), 0.0);
    assert_eq!(scrape.get("fencepost_request_seconds_count{operation=\"hold\"}"), 1.0);
    drop(hold);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_of_a_client_that_left_is_a_wait() {
    let gateway = Gateway::embedded(&[]).await;
    let (client, address) = (Client::new(gateway.address), gateway.address);
    client.put("/locks/a?ttl=1m").send().await.expect(201);
    let waiting = tokio::spawn(client.put("/locks/a?wait=20s").within(PATIENCE).send());
    eventually_shows(address, "it waits", |scrape| scrape.get("fencepost_waiters") == 1.0).await;
    waiting.abort();
    eventually_shows(address, "its wait is over", |scrape| {
        scrape.get("fencepost_wait_seconds_count{ended=\"not-granted\"}") == 1.0
            && scrape.requests("acquire", "client-left") == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_shows_with_the_doubt_and_its_end() {
    let stage = Stage::redis_with(&["--store-timeout", "400ms"]).await;
    let (client, address) = (stage.client(), stage.gateway.address);
    let redis = stage.redis.as_ref().unwrap();
    client.put("/locks/before").send().await.expect(201);
    redis.stand_still().await;
    client.put("/locks/a").send().await.expect_problem(503, "outcome-unknown");
    let scrape = Scrape::of(address).await;
    assert_eq!(scrape.requests("acquire", "outcome-unknown"), 1.0);
    assert!(scrape.get("fencepost_store_errors_total{kind=\"unknown\",step=\"acquire\"}") >= 1.0);
    assert_eq!(scrape.get("fencepost_doubts_total{ended=\"unknown\"}"), 1.0);
    assert_eq!(scrape.get("fencepost_takes_back_pending"), 1.0);
    redis.signal("CONT");
    eventually_shows(address, "it is taken back", |scrape| {
        let of = |result| scrape.get(&format!("fencepost_takes_back_total{{result=\"{result}\"}}"));
        of("freed") + of("voided") == 1.0 && scrape.get("fencepost_takes_back_pending") == 0.0
    })
    .await;
    client.get("/locks/a").send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_the_store_does_not_answer_is_no_doubt() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let gateway = Gateway::on_redis(&redis, &["--store-timeout", "400ms"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k").send().await.expect(201);
    client.put("/once/r").send().await.expect(201);
    redis.stand_still().await;
    for (method, address) in [
        ("GET", "/locks/k"),
        ("GET", "/locks"),
        ("GET", "/once/r"),
        ("GET", "/records"),
        ("DELETE", "/locks/k?force=true"),
        ("DELETE", "/once/r?force=true"),
    ] {
        client.call(method, address).send().await.expect_problem(503, "store-unavailable");
    }
    let scrape = Scrape::of(gateway.address).await;
    assert!(scrape.get("fencepost_store_errors_total{kind=\"unknown\",step=\"inspect\"}") >= 1.0);
    for ended in ["answered", "undone", "unknown"] {
        assert_eq!(scrape.get(&format!("fencepost_doubts_total{{ended=\"{ended}\"}}")), 0.0, "{ended}");
    }
    redis.signal("CONT");
}

/// An alarm on it rings also at night, when no client asks for anything.
#[tokio::test(flavor = "multi_thread")]
async fn whether_it_is_ready_shows_without_any_request_and_without_asking_the_store() {
    const READY: &str = "fencepost_ready";
    let stage = Stage::redis_with(&["--store-timeout", "400ms"]).await;
    let (address, redis) = (stage.gateway.address, stage.redis.as_ref().unwrap());
    eventually_shows(address, "it is ready", |scrape| scrape.get(READY) == 1.0).await;
    let asked = async || Scrape::of(address).await.get("fencepost_store_seconds_count{step=\"check\"}");
    let before = asked().await;
    redis.stand_still().await;
    eventually_shows(address, "the store is away", |scrape| scrape.get(READY) == 0.0).await;
    redis.signal("CONT");
    eventually_shows(address, "the store is back", |scrape| scrape.get(READY) == 1.0).await;
    assert_eq!(asked().await, before);
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]).await;
    eventually_shows(address, "the store is not safe", |scrape| scrape.get(READY) == 0.0).await;

    let mut quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    eventually_shows(gateway.address, "a quorum is there", |scrape| scrape.get(READY) == 1.0).await;
    quorum.nodes[0].kill();
    eventually_shows(gateway.address, "one is away", |scrape| {
        let server = format!("127.0.0.1:{}", quorum.nodes[0].port());
        scrape.get(&format!("fencepost_quorum_members{{server=\"{server}\",status=\"unusable\"}}")) == 1.0
    })
    .await;
    assert_eq!(Scrape::of(gateway.address).await.get(READY), 1.0, "two are enough");
    quorum.nodes[1].kill();
    eventually_shows(gateway.address, "too few are there", |scrape| scrape.get(READY) == 0.0).await;

    let gateway = Gateway::start(&["--store", "memory:"]).await;
    assert_eq!(Scrape::of(gateway.address).await.get(READY), 1.0);
}

/// How many seconds each connection of the gateway is old.
async fn ages_of_connections(redis: &RedisServer) -> Vec<u64> {
    let clients: String = redis.command(&["CLIENT", "LIST"]).await;
    let of_gateway = clients.lines().filter(|line| line.contains("user=gateway"));
    of_gateway.filter_map(|line| line.split_once(" age=")?.1.split_once(' ')?.0.parse().ok()).collect()
}

/// An alarm on it rings also where no balancer asks.
#[tokio::test(flavor = "multi_thread")]
async fn whether_redis_takes_new_connections_shows_without_any_request() {
    let redis = RedisServer::start_with(&["--user", "gateway", "on", ">before", "~*", "&*", "+@all"]).await;
    let gateway =
        Gateway::start(&["--store", &format!("redis://gateway:before@127.0.0.1:{}", redis.port())]).await;
    eventually("it has the third one", async || ages_of_connections(&redis).await.len() == 3).await;
    let shows = async |what: &str, ready: f64| {
        eventually_shows(gateway.address, what, |scrape| scrape.get("fencepost_ready") == ready).await;
    };
    shows("it takes them", 1.0).await;
    let _: () = redis.command(&["ACL", "SETUSER", "gateway", "resetpass", ">after"]).await;
    shows("it takes none", 0.0).await;
    let _: () = redis.command(&["ACL", "SETUSER", "gateway", ">before"]).await;
    shows("it takes them again", 1.0).await;
}

/// Each would cost a handshake and a password.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_ping_is_not_connected_to_at_each_look() {
    let user = ["--user", "gateway", "on", ">pass", "~*", "&*", "+@all", "-ping"];
    let redis = RedisServer::start_with(&user).await;
    let store = format!("redis://gateway:pass@127.0.0.1:{}", redis.port());
    let _gateway = Gateway::start(&["--store", &store, "--redis-accept", "missing-permission"]).await;
    eventually("the third one stays", async || {
        ages_of_connections(&redis).await.into_iter().filter(|age| *age >= 4).count() == 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_counted_from_first_to_last() {
    let gateway = Gateway::embedded(&["--first-request-timeout", "500ms"]).await;
    let before = Scrape::of(gateway.address).await;
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(gateway.address).await.unwrap());
    }
    let mut busy = TcpStream::connect(gateway.address).await.unwrap();
    busy.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    eventually_shows(gateway.address, "all are open", |scrape| {
        scrape.get("fencepost_connections_accepted_total")
            >= before.get("fencepost_connections_accepted_total") + 6.0
    })
    .await;
    eventually_shows(gateway.address, "those that said nothing are closed", |scrape| {
        scrape.get("fencepost_connections_refused_total{reason=\"no-request\"}") == 5.0
    })
    .await;
    drop((silent, busy));
    eventually_shows(gateway.address, "only the collector is connected", |scrape| {
        scrape.get("fencepost_connections") == 1.0
    })
    .await;
}

/// It has no line in the log.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_as_a_request_is_counted() {
    let gateway = Gateway::embedded(&[]).await;
    let long = format!("GET /locks/k HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(40_000));
    let unreadable = [
        b"garbage\r\n\r\n".as_slice(),
        b"GET /locks/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /locks/k HTTP/3.1\r\nHost: localhost\r\n\r\n",
        long.as_bytes(),
    ];
    for (before, request) in unreadable.into_iter().enumerate() {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        // The gateway may have closed it before all of it was sent.
        let _ = stream.write_all(request).await;
        eventually_shows(gateway.address, "it is counted", |scrape| {
            let counted = scrape.get("fencepost_connections_refused_total{reason=\"unreadable\"}");
            counted == before as f64 + 1.0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_keys_are_in_use_one_that_may_list_reads_the_numbers() {
    let mut keys = KeysFile::new();
    let lister = keys.add_for_all("lister", "\"list\"");
    let some_lister = keys.add("some", "prefixes = [\"some/\"]\nallow = [\"list\"]");
    let taker = keys.add_for_all("taker", "\"acquire\", \"inspect\", \"admin\"");
    keys.write();
    let [flag, file] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &file]).await;
    let client = Client::new(gateway.address);
    let show = |key: &str| client.get("/metrics").header("Authorization", format!("Bearer {key}"));
    client.get("/metrics").send().await.expect_problem(401, "key-required");
    show(&taker).send().await.expect_problem(403, "right-missing");
    show(&some_lister).send().await.expect(200);
    let wrong = format!("{}x", &lister[..lister.len() - 1]);
    show(&wrong).send().await.expect_problem(401, "key-refused");
    let page = show(&lister).send().await.expect(200);
    let scrape = Scrape::read(std::str::from_utf8(&page.body).unwrap());
    for outcome in ["key-required", "right-missing", "key-refused", "ok"] {
        assert_eq!(scrape.requests("other", outcome), 1.0, "{outcome}");
    }
    // Who asks is no label.
    for key in [&lister, &some_lister, &taker] {
        let id = key.split('_').nth(1).unwrap();
        assert!(scrape.series().iter().all(|series| !series.contains(id)));
    }
    // On an address of their own the numbers ask for none.
    let gateway =
        Gateway::start(&["--store", "memory:", &flag, &file, "--metrics-listen", "127.0.0.1:0"]).await;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    parse(&raw(metrics_address(&gateway), request.as_bytes()).await).expect(200);
    let elsewhere =
        Client::new(gateway.address).get("/metrics").header("Authorization", format!("Bearer {lister}"));
    elsewhere.send().await.expect_problem(404, "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_may_have_an_address_of_their_own() {
    let gateway = Gateway::embedded(&["--metrics-listen", "127.0.0.1:0"]).await;
    let address = metrics_address(&gateway);
    Client::new(gateway.address).get("/metrics").send().await.expect_problem(404, "not-found");
    Client::new(gateway.address).put("/locks/a").send().await.expect(201);
    eventually_shows(address, "it is counted", |scrape| scrape.requests("acquire", "granted") == 1.0).await;
    // Nothing else is there.
    for path in ["/locks/a", "/lock?key=a", "/readyz", "/docs", "/"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = parse(&raw(address, request.as_bytes()).await);
        assert_eq!(answer.status, 404, "{path}");
    }
    // Whatever name it is called by: a collector may have one of its own for it.
    let request = "GET /metrics HTTP/1.1\r\nHost: gateway:9464\r\nConnection: close\r\n\r\n";
    parse(&raw(address, request.as_bytes()).await).expect(200);
    // However many are asked for at once: each takes as long as many requests for locks.
    let many = raw(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50).as_bytes()).await;
    assert_eq!(String::from_utf8_lossy(&many).matches("HTTP/1.1 200 OK").count(), 1);
}

/// Whatever keeps connections there open: silence, half a head, or an answer that is not read.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_stall_do_not_keep_a_collector_out() {
    let gateway = Gateway::embedded(&["--metrics-listen", "127.0.0.1:0"]).await;
    let address = metrics_address(&gateway);
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".as_slice();
    let mut stalled = Vec::new();
    for number in 0..200 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, 1 + number % 2), 0).into()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let said = match number % 3 {
            0 => b"".to_vec(),
            1 => request[..20].to_vec(),
            _ => request.repeat(20),
        };
        // It may be closed already, for those that came after.
        let _ = stream.write_all(&said).await;
        stalled.push(stream);
    }
    for _ in 0..10 {
        Scrape::of(address).await;
    }
}

/// The metrics that a text speaks of.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    words
        .filter(|word| word.starts_with("fencepost_") || word.starts_with("process_"))
        .map(without_suffix)
        .collect()
}

/// All that a dashboard asks for, one question a line.
fn questions(dashboard: &Value) -> String {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned() + "\n").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_dashboard_and_the_alerts_ask_for_is_there_and_the_page_explains_all() {
    // Some numbers are there only where they mean something: of a certificate, of the servers of a quorum, and of records in Redis.
    let (certificates, quorum) = (Certificates::new(), Quorum::start(3).await);
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let gateway = quorum.gateway(&[]).await;
    eventually_shows(gateway.address, "each server was looked at", |scrape| {
        scrape.series().iter().filter(|series| series.starts_with("fencepost_quorum_members")).count() == 12
    })
    .await;
    let mut scrape = Scrape::of(gateway.address).await;
    let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
    let secure = Gateway::start(&[&tls[..], &["--metrics-listen", "127.0.0.1:0"]].concat()).await;
    scrape.0.extend(Scrape::of(metrics_address(&secure)).await.0);
    let (_redis, keeping) = keeping_records().await;
    scrape.0.extend(Scrape::of(keeping.address).await.0);
    let names = scrape.names();
    let asked = questions(&serde_json::from_str(DASHBOARD).unwrap());
    for (what, text) in [("dashboard", asked.as_str()), ("alerts", ALERTS)] {
        let missing: Vec<_> = names_in(text).difference(&names).map(|name| name.to_string()).collect();
        assert!(missing.is_empty() && !names_in(text).is_empty(), "{what}: there is no {missing:?}");
        // The values of labels too, since a question for one that is not there is answered with nothing.
        for (before, rest) in text
            .match_indices("=\"")
            .chain(text.match_indices("=~\""))
            .map(|(at, sign)| (&text[..at], &text[at + sign.len()..]))
        {
            let label = before.rsplit(|c: char| !c.is_ascii_lowercase()).next().unwrap();
            for value in
                rest.split('"').next().unwrap().split('|').filter(|_| !["instance", "job"].contains(&label))
            {
                let pair = format!("{label}=\"{value}\"");
                assert!(
                    scrape.series().iter().any(|series| series.contains(&pair)),
                    "{what}: there is no {pair}"
                );
            }
        }
    }
    assert_eq!(names_in(PAGE), names, "the page lists what there is");
    let unseen: Vec<_> = names.difference(&names_in(&asked)).map(|name| name.to_string()).collect();
    assert!(unseen.is_empty(), "the dashboard does not show {unseen:?}");
}

/// They are most of all requests where few clients ask for locks.
#[test]
fn probes_and_scrapes_do_not_thin_out_the_share_of_requests_that_failed_at_the_store() {
    let asked = questions(&serde_json::from_str(DASHBOARD).unwrap());
    let shares: Vec<_> = asked.lines().filter(|line| line.contains(") / sum(rate(fencepost_req")).collect();
    assert_eq!(shares.len(), 1, "{shares:?}");
    assert_eq!(shares[0].matches("operation!=\"other\"").count(), 2, "{shares:?}");
}

/// A gateway on a Redis with room for records, which is shown.
async fn keeping_records() -> (RedisServer, Gateway) {
    let redis = RedisServer::start_with(&["--maxmemory", "1000000000"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    eventually_shows(gateway.address, "the server was looked at", |scrape| {
        scrape.series().iter().any(|series| series.starts_with("fencepost_once_room"))
    })
    .await;
    (redis, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn how_full_a_redis_is_with_records_is_seen_while_it_keeps_some() {
    let (redis, gateway) = keeping_records().await;
    let of =
        |what: &str| format!("fencepost_once_room_{what}_bytes{{server=\"127.0.0.1:{}\"}}", redis.port());
    let scrape = Scrape::of(gateway.address).await;
    assert_eq!(scrape.get(&of("limit")), 600_000_000.0);
    assert!((500_000.0..60_000_000.0).contains(&scrape.get(&of("used"))), "{}", scrape.get(&of("used")));
    let before = scrape.get(&of("used"));
    let _: () = redis.command(&["SET", "large", &"x".repeat(10_000_000)]).await;
    eventually_shows(gateway.address, "it is seen", |scrape| scrape.get(&of("used")) >= before + 1e7).await;
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually_shows(gateway.address, "there is no limit", |scrape| {
        !scrape.series().iter().any(|series| series.starts_with("fencepost_once_room"))
    })
    .await;
}

/// A person who is woken by an alarm finds it by its name.
#[test]
fn each_alarm_has_a_section_that_says_what_to_do() {
    let alarms: Vec<_> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: Vec<_> = ALERTS_PAGE.lines().filter_map(|line| line.strip_prefix("## Fencepost")).collect();
    let sections: Vec<_> = sections.iter().map(|rest| format!("Fencepost{rest}")).collect();
    assert_eq!(sections, alarms);
    for (rule, name) in ALERTS.split("- alert: ").skip(1).zip(&alarms) {
        let severities = ["critical", "warning"].map(|severity| format!("severity: {severity}\n"));
        assert!(severities.iter().any(|severity| rule.contains(severity)), "{name}");
        let section = format!("runbook: docs/operations/alerts.md#{}\n", name.to_lowercase());
        assert!(rule.contains(&section), "{name}");
    }
    for (section, name) in ALERTS_PAGE.split("\n## Fencepost").skip(1).zip(&alarms) {
        assert!(section.contains("**What to do**"), "{name}");
    }
}
