//! Real proxies before real gateways, as docs/deploying/proxies.md has them: the name of a lock, the client's leaving, its waiting
//! and its events arrive as they were meant.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use self::front::{ALLOWED, Front, Kind, gateway};
use crate::pages::file;
use kit::keys::KeysFile;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

/// A test for each proxy.
macro_rules! on_each_proxy {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            use super::Kind;

            proxy_tests!($name: nginx Nginx, haproxy Haproxy, caddy Caddy, traefik Traefik, envoy Envoy);
        })+
    };
}

macro_rules! proxy_tests {
    ($test:ident: $($name:ident $kind:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            super::$test(Kind::$kind).await;
        })+
    };
}

mod asking;
mod front;

/// Names that a proxy might take for something else, and the way in which a query says them.
const NAMES: [(&str, &str); 11] = [
    ("a/b", "a/b"),
    ("a/b", "a%2Fb"),
    ("a%2Fb", "a%252Fb"),
    ("..", ".."),
    ("a/../b", "a/../b"),
    ("a//b", "a//b"),
    ("./a/", "%2E%2Fa%2F"),
    ("a b+c", "a+b%2Bc"),
    ("?#&%;", "%3F%23%26%25%3B"),
    ("schlüssel", "schl%C3%BCssel"),
    ("a;ttl=2m", "a;ttl=2m"),
];
/// How soon something comes about that takes no waiting, on a machine that is busy.
const SOON: Duration = Duration::from_secs(2);
const BOTH_VERSIONS: [&str; 2] = ["--http1.1", "--http2"];

on_each_proxy!(
    a_lock_has_the_same_name_behind_it,
    who_leaves_a_line_is_not_given_the_lock,
    a_hold_lasts_as_long_as_its_client,
    a_wait_is_answered_by_the_gateway,
    what_a_client_says_of_its_address_is_not_believed,
    renewals_pass_while_no_gateway_is_ready,
);

async fn a_lock_has_the_same_name_behind_it(kind: Kind) {
    let (gateway, client) = gateway(&[]).await;
    let front = Front::start(kind, &gateway).await;
    for (at, (name, written)) in NAMES.iter().enumerate() {
        let version = BOTH_VERSIONS[at % 2];
        let (status, granted) = front.ask("PUT", &format!("/lock?key={written}&ttl=1m"), &[version]).await;
        assert_eq!((status, granted["key"].as_str()), (201, Some(*name)), "{written}: {granted}");
        let token = granted["token"].as_str().unwrap();
        let seen = client.get(&format!("/lock?key={written}")).send().await.expect(200);
        assert_eq!(seen.json()["fencing_token"], granted["fencing_token"], "{written}");
        // In a path it is the same lock, or none.
        let in_path = written.replace('/', "%2F").replace('+', "%20");
        let (status, seen) = front.ask("GET", &format!("/locks/{in_path}"), &[version]).await;
        let is_risky = name.split('/').any(|part| matches!(part, "" | "." | ".."));
        assert_eq!(status, if is_risky { 400 } else { 200 }, "{in_path}: {seen}");
        assert!(is_risky || seen["fencing_token"] == granted["fencing_token"], "{in_path}: {seen}");
        client.delete(&format!("/lock?key={written}")).token(token).send().await.expect(204);
    }
}

async fn who_leaves_a_line_is_not_given_the_lock(kind: Kind) {
    let (gateway, client) = gateway(&[]).await;
    let front = Front::start(kind, &gateway).await;
    for version in BOTH_VERSIONS {
        let holder = client.put("/locks/k?ttl=1m").send().await.expect(201).token();
        let waiting = front.curl("PUT", "/lock?key=k&ttl=1m&wait=30s", &[version]).spawn().unwrap();
        stand(&client, 1).await;
        drop(waiting);
        stand(&client, 0).await;
        client.delete("/locks/k").token(&holder).send().await.expect(204);
        client.get("/locks/k").send().await.expect_problem(404, "not-held");
    }
}

async fn a_hold_lasts_as_long_as_its_client(kind: Kind) {
    let (gateway, client) = gateway(&[]).await;
    // What the limits are made to be is less than the hold lasts, and more than its events are apart.
    let front = Front::start_with(kind, &[&gateway], &shorter_limits(kind)).await;
    for (version, accepted) in [("--http1.1", "text/event-stream"), ("--http2", "application/x-ndjson")] {
        let began = Instant::now();
        let accept = format!("Accept: {accepted}");
        let (holding, mut lines) = open(&front, &[version, "-H", &accept]);
        assert!(lines.next_line().await.unwrap().unwrap().contains("granted"));
        assert!(began.elapsed() < SOON, "granted after {:?}", began.elapsed());
        let mut renewals = 0;
        while began.elapsed() < Duration::from_secs(4) {
            let line = lines.next_line().await.unwrap().expect("the connection ends");
            renewals += usize::from(line.contains("renewed") && !line.starts_with("data"));
        }
        assert!(renewals > 6, "{renewals}");
        let left = Instant::now();
        drop(holding);
        eventually("the lock is free", async || client.get("/locks/k").send().await.status == 404).await;
        assert!(left.elapsed() < SOON, "free after {:?}", left.elapsed());
    }
}

async fn a_wait_is_answered_by_the_gateway(kind: Kind) {
    let (gateway, client) = gateway(&["--max-wait", "2500ms"]).await;
    let front = Front::start_with(kind, &[&gateway], &shorter_limits(kind)).await;
    client.put("/locks/k?ttl=1m").send().await.expect(201);
    let (status, answer) = front.ask("PUT", "/lock?key=k&wait=2500ms", &[]).await;
    assert_eq!((status, answer["type"].as_str()), (423, Some("/problems/lock-held")), "{answer}");
}

/// What it says is in no log, and gives it no other name: the `Host` of a stranger stays one.
async fn what_a_client_says_of_its_address_is_not_believed(kind: Kind) {
    let gateway = Gateway::start(&["--store", "memory:", "--allow-host", front::NAME]).await;
    let front = Front::start(kind, &gateway).await;
    let said = [
        ["-H", "X-Forwarded-For: 198.51.100.7"],
        ["-H", "X-Real-IP: 198.51.100.7"],
        ["-H", "Forwarded: for=198.51.100.7;host=localhost"],
        ["-H", "X-Forwarded-Host: localhost"],
    ];
    let (status, _) = front.ask("PUT", "/lock?key=k", &said.concat()).await;
    assert_eq!(status, 201);
    let client = Client::new(gateway.address);
    let stranger =
        client.put("/locks/k").header("Host", "evil.example").header("X-Forwarded-Host", "localhost");
    let stranger = stranger.header("Forwarded", "host=localhost").send().await;
    stranger.expect_problem(403, "unknown-host");
    assert!(!gateway.log().concat().contains("198.51.100"), "{:#?}", gateway.log());
}

/// A Redis that becomes unsafe gets no new locks, and those that are held go on.
async fn renewals_pass_while_no_gateway_is_ready(kind: Kind) {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &ALLOWED).await, Gateway::on_redis(&redis, &ALLOWED).await];
    let front = Front::start_with(kind, &[&gateways[0], &gateways[1]], &[]).await;
    let header = format!("Lease-Token: {}", fresh_token());
    let token = ["-H", &*header];
    assert_eq!(front.ask("PUT", "/lock?key=k&ttl=1m", &token).await.0, 201);
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"]).await;
    for gateway in &gateways {
        let client = Client::new(gateway.address);
        eventually("it is not ready", async || client.get("/readyz").send().await.status == 503).await;
    }
    let renew = async || {
        let (status, answer) = front.ask("PATCH", "/lock?key=k&ttl=1m", &token).await;
        assert_eq!(status, 200, "{answer}");
    };
    eventually("the proxy has noticed", async || {
        renew().await;
        match kind {
            Kind::Haproxy => front.log().contains("'fencepost' has no server available"),
            // Of each gateway three times, and the second time counts.
            Kind::Envoy => front.log().matches("response_code=503").count() >= 6,
            _ => true,
        }
    })
    .await;
    for _ in 0..4 {
        renew().await;
    }
    let (status, answer) = front.ask("PUT", "/lock?key=other", &[]).await;
    assert_eq!((status, answer["type"].as_str()), (503, Some("/problems/store-unavailable")), "{answer}");
    assert_eq!(front.ask("DELETE", "/lock?key=k", &token).await.0, 204);
}

/// Whoever guesses keys is not somebody else each time because of what it says.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_counted_for_the_address_of_the_proxy() {
    let mut keys = KeysFile::new();
    let good = keys.add_for_all("good", "\"inspect\"");
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path]).await;
    let front = Front::start(Kind::Nginx, &gateway).await;
    let client = Client::new(gateway.address);
    let mut statuses = Vec::new();
    for number in 0..30 {
        let other = format!("Bearer fp_{number:012}_{}", fresh_token());
        let look = client.get("/locks/k").header("Authorization", other);
        statuses.push(look.header("X-Forwarded-For", format!("198.51.100.{number}")).send().await.status);
    }
    assert!(statuses.starts_with(&[401; 10]) && statuses.contains(&429), "{statuses:?}");
    // Who has a good key is answered all the same.
    let shown = format!("Authorization: Bearer {good}");
    assert_eq!(front.ask("GET", "/lock?key=k", &["-H", &shown]).await.0, 404);
}

/// As HAProxy before 3.3 does without `abortonclose`, Apache, and Caddy with `flush_interval -1`.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_hides_that_its_client_left_keeps_a_lock_until_its_ttl_or_a_delete() {
    let (gateway, client) = gateway(&[]).await;
    let hiding = [("option abortonclose", "no option abortonclose")];
    let front = Front::start_with(Kind::Haproxy, &[&gateway], &hiding).await;
    for is_deleted in [true, false] {
        let holder = client.put("/locks/k?ttl=1m").send().await.expect(201).token();
        let token = fresh_token();
        let query = if is_deleted { "ttl=1h" } else { "ttl=2s" };
        let header = format!("Lease-Token: {token}");
        let waiting =
            front.curl("PUT", &format!("/lock?key=k&wait=30s&{query}"), &["-H", &header]).spawn().unwrap();
        stand(&client, 1).await;
        drop(waiting);
        if is_deleted {
            front.ask("DELETE", "/lock?key=k", &["-H", &header]).await;
        }
        client.delete("/locks/k").token(&holder).send().await.expect(204);
        eventually("the lock is free", async || client.get("/locks/k").send().await.status == 404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_name_with_two_gateways_one_may_die() {
    let redis = RedisServer::start().await;
    let mut gateways = [Gateway::on_redis(&redis, &ALLOWED).await, Gateway::on_redis(&redis, &ALLOWED).await];
    let front = Front::start_with(Kind::Haproxy, &[&gateways[0], &gateways[1]], &[]).await;
    let token = fresh_token();
    let header = format!("Lease-Token: {token}");
    let (status, _) = front.ask("PUT", "/lock?key=k&ttl=1m", &["-H", &header]).await;
    assert_eq!(status, 201);
    for number in 0..8 {
        if number == 4 {
            gateways[0].kill();
        }
        // Each time perhaps by the other one.
        let (status, answer) = front.ask("PATCH", "/lock?key=k&ttl=1m", &["-H", &header]).await;
        assert_eq!(status, 200, "{number}: {answer}");
    }
    for gateway in &gateways {
        gateway.logs("it has served", |line| line.contains("PATCH")).await;
    }
}

/// As Debian has its rules, with what the page says before them.
#[tokio::test(flavor = "multi_thread")]
async fn a_firewall_with_the_owasp_rules_lets_locks_be_taken() {
    let (gateway, client) = gateway(&[]).await;
    let ours = file("before-crs.conf");
    let front = Front::with_firewall(&gateway, &ours).await;
    let attacks = [
        "..%2F..%2Fetc%2Fpasswd",
        "a;b%27%20or%201=1--",
        "%3Cscript%3Ealert(1)%3C/script%3E",
        "%24(cat%20x)",
    ];
    for key in attacks.iter().chain(NAMES.iter().map(|(_, written)| written)) {
        let token = fresh_token();
        let header = format!("Lease-Token: {token}");
        let address = format!("/lock?key={key}");
        let put = format!("{address}&owner=cron@db1:/bin/sh%20-c&ttl=1m");
        for (method, address, expected) in
            [("PUT", &put, 201), ("PATCH", &address, 200), ("GET", &address, 200), ("DELETE", &address, 204)]
        {
            let (status, answer) = front.ask(method, address, &["-H", &header]).await;
            assert_eq!(status, expected, "{method} {address}: {answer}");
        }
    }
    let token = format!("Lease-Token: {}", fresh_token());
    let result = ["-H", &token, "-H", "Content-Type: text/plain", "-d", "cat /etc/passwd; <script>"];
    for key in attacks {
        let (record, records) = (format!("/once?key={key}"), format!("/records?prefix={key}"));
        let terraform = format!("/terraform?key={key}");
        for (method, address, args, expected) in [
            ("PUT", &record, &result[..2], 201),
            ("POST", &record, &result, 200),
            ("GET", &record, &[], 200),
            ("GET", &records, &[], 200),
            ("LOCK", &terraform, &[], 404),
        ] {
            let (status, answer) = front.ask(method, address, args).await;
            assert_eq!(status, expected, "{method} {address}: {answer}");
        }
    }
    // Those of Terraform reach the gateway, which says itself that it does not speak its protocol.
    for method in ["LOCK", "UNLOCK"] {
        assert_eq!(front.ask(method, "/terraform/k", &[]).await.0, 404, "{method}");
    }
    let (_holding, mut lines) = open(&front, &[]);
    assert!(lines.next_line().await.unwrap().unwrap().contains("granted"));
    eventually("the lock is held", async || client.get("/locks/k").send().await.status == 200).await;
    // Without it they let nobody take anything: so it is what the page says that helps.
    let strict = Front::with_firewall(&gateway, "").await;
    assert_eq!(strict.ask("PUT", "/lock?key=plain", &[]).await.0, 403);
    assert_eq!(strict.ask("GET", &format!("/lock?key={}", attacks[0]), &[]).await.0, 403);
}

/// Each limit of the proxy that the page sets, so short that a test can wait for longer.
fn shorter_limits(kind: Kind) -> Vec<(&'static str, &'static str)> {
    match kind {
        Kind::Nginx => vec![("proxy_read_timeout 75s", "proxy_read_timeout 3s")],
        Kind::Haproxy => {
            vec![("timeout client 75s", "timeout client 3s"), ("timeout server 75s", "timeout server 3s")]
        }
        Kind::Envoy => vec![("stream_idle_timeout: 75s", "stream_idle_timeout: 3s")],
        // They have none.
        Kind::Caddy | Kind::Traefik => vec![],
    }
}

type Lines = tokio::io::Lines<BufReader<tokio::process::ChildStdout>>;

/// A hold of the lock `k`, and what its client is told.
fn open(front: &Front, args: &[&str]) -> (Child, Lines) {
    let mut holding = front.curl("POST", "/hold?key=k&ttl=1s", args).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(holding.stdout.take().unwrap()).lines();
    (holding, lines)
}

/// Waits until so many stand in the line of the lock `k`.
async fn stand(client: &Client, waiters: u64) {
    eventually(&format!("{waiters} wait"), async || {
        client.get("/locks/k").send().await.json()["waiters"] == waiters
    })
    .await;
}
