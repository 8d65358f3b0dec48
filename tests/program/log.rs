//! The log: one line per request, with its id, and never a token.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use kit::gateway::bare_command;
use kit::h2::{PREFACE, SETTINGS, cancel, frame, request};
use kit::http::{raw, raw_call};
use kit::metrics::Scrape;
use kit::{Client, Gateway, KeysFile, PATIENCE, RedisServer, Stage, eventually, fresh_token, on_each_store};

mod names;
mod stalled;

on_each_store!(one_line_per_request_and_never_a_token, request_ids_are_taken_over_or_made);

fn requests(stage: &Stage) -> Vec<Value> {
    let lines = stage.gateway.log();
    let values =
        lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("every line is an object"));
    // The stage itself asks whether the gateway is ready, and its line may come at any time.
    values.filter(|line| line.get("request_id").is_some() && line["route"] != "/readyz").collect()
}

async fn one_line_per_request_and_never_a_token(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let call = |method: &str, address: &str| client.call(method, address).token(&token);
    call("PUT", "/locks/k?owner=me").send().await.expect(201);
    call("PUT", "/locks/k").send().await.expect(200);
    call("PATCH", "/lock?key=k").send().await.expect(200);
    call("GET", "/locks/k").send().await.expect(200);
    let made = client.put("/locks/m").send().await.expect(201).token();
    client.put("/locks/k").send().await.expect(423);
    // Where a token does not belong, it does not get into the log either.
    client.put(&format!("/locks/x?token={token}")).send().await.expect(400);
    client.put(&format!("/locks/x/{token}")).send().await.expect(404);
    call("GET", "/locks/k").header("X-Request-Id", &token).send().await.expect(200);
    call("HEAD", "/locks/k").send().await.expect(200);
    raw(stage.gateway.address, format!("{token}\r\n\r\n").as_bytes()).await;
    call("DELETE", "/locks/k").send().await.expect(204);
    client.delete("/locks/m").token(&made).send().await.expect(204);
    eventually("all lines are written", async || requests(&stage).len() == 12).await;

    let lines = requests(&stage);
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 200, 200, 201, 423, 400, 404, 200, 200, 204, 204]);
    assert_eq!(lines[0]["key"], "k");
    assert_eq!(lines[0]["route"], "/locks/{key}");
    assert_eq!(lines[0]["method"], "PUT");
    assert_eq!(lines[2]["route"], "/lock");
    assert_eq!(lines[5]["problem"], "lock-held");
    assert!(lines.iter().all(|line| line["message"] == "answered"), "{lines:#?}");
    assert!(lines.iter().all(|line| line["elapsed_us"].is_u64() && line["timestamp"].is_string()));
    let log = stage.gateway.log().join("\n");
    for secret in [&token, &made, &made[1..]] {
        assert!(!log.contains(secret), "a token is in the log");
    }
}

async fn request_ids_are_taken_over_or_made(stage: Stage) {
    let address = stage.gateway.address;
    let longest = "x".repeat(128);
    for id in ["abc-123", "!~", &longest] {
        let answer = raw_call(address, "GET", "/openapi.json", &format!("X-Request-Id: {id}\r\n")).await;
        assert_eq!(answer.header("x-request-id"), Some(id));
    }
    let mut made = std::collections::HashSet::new();
    for id in ["", "with space", &"x".repeat(129), "ümlaut"] {
        let answer = raw_call(address, "GET", "/locks/free", &format!("X-Request-Id: {id}\r\n")).await;
        made.insert(answer.header("x-request-id").unwrap().to_owned());
    }
    assert_eq!(made.len(), 4, "each is fresh: {made:?}");
    eventually("the ids are in the log", async || {
        requests(&stage).iter().any(|line| line["request_id"] == "abc-123")
    })
    .await;
}

#[test]
fn text_is_the_default_and_has_no_colours_off_a_terminal() {
    use std::io::{BufRead, BufReader};
    let mut child = bare_command()
        .args(["--listen", "127.0.0.1:0", "--store", "memory:"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains(" WARN locks live in memory") && !line.contains('\u{1b}'), "{line:?}");
}

/// What strangers ask for without any key, and what is refused at the door.
const STRANGE: [(&str, &str, &str); 6] = [
    ("GET", "/healthz", ""),
    ("GET", "/problems/lock-held", ""),
    ("GET", "/ui/page.js", ""),
    ("GET", "/docs/swagger-initializer.js", ""),
    ("PUT", "/locks/k", "Origin: https://evil.example\r\n"),
    ("PUT", "/locks/k", "X-Long: "),
];

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_fill_the_log_whatever_they_ask_for() {
    const TIMES: usize = 60;
    let mut file = KeysFile::new();
    let key = file.add_for_all("known", "\"inspect\"");
    file.write();
    let flag = file.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    for _ in 0..TIMES {
        for (method, target, headers) in STRANGE {
            let long = "x".repeat(if headers.starts_with("X-Long") { 17_000 } else { 0 });
            let end = if long.is_empty() { "" } else { "\r\n" };
            raw_call(gateway.address, method, target, &format!("{headers}{long}{end}")).await;
        }
        client.get("/locks/mine").key(&key).send().await.expect(404);
    }
    let lines = || gateway.log().iter().filter(|line| line.contains("\"request_id\"")).count();
    let said = |text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    eventually("each request with a key is a line", async || said("\"key\":\"mine\"") == TIMES).await;
    eventually("the others are counted", async || said("more requests without an accepted API key") > 0)
        .await;
    // One more a second has a line, however slow this machine is.
    assert!((10..TIMES * STRANGE.len() / 2).contains(&(lines() - TIMES)), "{}", lines());
}

/// The library for HTTP/2 has a warning for each such connection, which names no address.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_resets_its_requests_is_no_line_of_the_log() {
    const STREAMS: usize = 60;
    let mut gateway = Gateway::start(&["--store", "memory:"]).await;
    let greeting = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let streams = (1..).step_by(2).take(STREAMS);
    let resets = streams.flat_map(|n| [request(n, "GET", "/healthz"), cancel(n)].concat());
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&greeting.into_iter().chain(resets).collect::<Vec<_>>()).await.unwrap();
    let mut answer = Vec::new();
    // However the connection ends, the answer is what came before.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is ended");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("too_many_resets"), "the library has had enough: {answer:?}");
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
    let log = gateway.log();
    assert!(log.iter().any(|line| line.contains("\"stopped\"")), "this is all of it: {log:#?}");
    assert!(!log.iter().any(|line| line.contains("reset")), "{log:#?}");
}

/// Where no keys are in use everybody is known, but for who is refused at the door.
#[tokio::test(flavor = "multi_thread")]
async fn without_keys_each_request_is_a_line_unless_it_is_refused_at_the_door() {
    const TIMES: usize = 60;
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    for _ in 0..TIMES {
        client.get("/locks/mine").send().await.expect(404);
        client.get("/openapi.json").send().await.expect(200);
        client.get("/locks/x").header("Origin", "https://evil.example").send().await.expect(403);
        client.get("/locks/x").header("Host", "evil.example").send().await.expect(403);
    }
    let said = |text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    eventually("each is a line", async || {
        said("\"key\":\"mine\"") == TIMES && said("\"/openapi.json\"") == TIMES
    })
    .await;
    eventually("the others are counted", async || said("more requests without an accepted API key") > 0)
        .await;
    let refused = said("\"cross-origin\"") + said("\"unknown-host\"");
    assert!((10..TIMES).contains(&refused), "{refused}");
}

/// Balancers ask once a second. A bad answer stays a line for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn good_answers_to_probes_are_lines_of_debug_alone_and_all_others_stay() {
    let redis = RedisServer::start().await;
    let args = ["--store", redis.url(), "--store-timeout", "400ms"];
    let (normal, talkative) =
        (Gateway::start(&args).await, Gateway::start(&[&args[..], &["--log-level", "debug"]].concat()).await);
    for gateway in [&normal, &talkative] {
        let client = Client::new(gateway.address);
        for probe in ["/healthz", "/readyz"] {
            client.get(probe).send().await.expect(200);
        }
        client.call("POST", "/healthz").send().await.expect(405);
        client.get("/locks/last").send().await.expect(404);
    }
    let lines =
        |gateway: &Gateway, text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    for gateway in [&normal, &talkative] {
        eventually("all is written", async || lines(gateway, "\"key\":\"last\"") == 1).await;
    }
    assert_eq!(
        (lines(&normal, "\"/healthz\""), lines(&normal, "\"/readyz\"")),
        (1, 0),
        "{:#?}",
        normal.log()
    );
    assert_eq!(lines(&talkative, "\"/healthz\""), 2);
    let is_of_debug = |line: &String| line.contains("\"DEBUG\"") && line.contains("\"/readyz\"");
    assert!(talkative.log().iter().any(is_of_debug), "{:#?}", talkative.log());
    redis.stand_still().await;
    let client = Client::new(normal.address);
    eventually("it is not ready", async || client.get("/readyz").send().await.status == 503).await;
    eventually("that is a line", async || lines(&normal, "\"/readyz\"") > 0).await;
}

/// The store is away for longer than the gateway may take to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_request_the_gateway_has_cut_is_not_said_to_have_left() {
    let redis = RedisServer::start().await;
    let mut gateway = Gateway::on_redis(&redis, &["--store-timeout", "6s", "--drain-timeout", "1s"]).await;
    let client = Client::new(gateway.address);
    redis.stand_still().await;
    let asking = tokio::spawn(client.put("/locks/mine?wait=30s").try_send());
    let waits = async || Scrape::of(gateway.address).await.get("fencepost_waiters") == 1.0;
    eventually("it is under way", waits).await;
    gateway.signal("TERM");
    assert!(asking.await.unwrap().is_err(), "it is answered");
    gateway.exit_status().await;
    let log = gateway.log();
    let said: Vec<_> = log.iter().filter(|line| line.contains("\"key\":\"mine\"")).collect();
    let is_cut = |line: &&String| line.contains("the gateway ended the connection before the answer");
    assert!(said.iter().any(is_cut) && !log.iter().any(|line| line.contains("the client left")), "{log:#?}");
}

/// As where a client takes one random text for all. Also in capitals, and percent-encoded once more or twice.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_and_no_id_of_a_request_has_its_lease_token_in_it() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let made = client.put("/locks/k").send().await.expect(201).token();
    let token = format!("run~{}", fresh_token());
    client.put("/locks/run~1?owner=run").token(&token).send().await.expect(201);
    let spelled = |secret: &str, depth: &str| {
        let encoded = secret.replace('~', &format!("%{depth}7E")).replace('_', &format!("%{depth}5F"));
        [secret.to_owned(), secret.to_uppercase(), encoded]
    };
    for token in [&token, &made] {
        for name in spelled(token, "25") {
            for (method, address, problem) in [
                ("PUT", format!("/lock?key={name}"), "bad-key"),
                ("PUT", format!("/locks/job-{name}"), "bad-key"),
                ("PUT", format!("/lock?key=a&key={name}"), "bad-key"),
                ("POST", format!("/hold?key=a&owner=x{name}"), "bad-parameter"),
                ("PUT", format!("/once/{name}"), "bad-key"),
                ("PUT", format!("/once/a?owner={name}"), "bad-parameter"),
            ] {
                client.call(method, &address).token(token).send().await.expect_problem(400, problem);
            }
        }
    }
    // What is too long for a token is not searched for.
    let long = "x".repeat(129);
    client.put(&format!("/locks/{long}")).token(&long).send().await.expect_problem(400, "bad-token");
    let key = format!("fp_k3y0f4lice00_{}", fresh_token());
    for (token, secret) in [(&token, &token), (&made, &made), (&made, &key)] {
        for id in [spelled(secret, ""), spelled(secret, "25")].concat() {
            let answer = client.get("/locks/free").token(token).header("X-Request-Id", &id).send().await;
            assert_eq!(answer.header("x-request-id").map(str::len), Some(16), "{id}");
        }
    }
    // A token that a gateway has made is known by its form, whatever the request shows.
    for id in spelled(&made, "") {
        let answer = client.get("/locks/free").header("X-Request-Id", &id).send().await;
        assert_eq!(answer.header("x-request-id").map(str::len), Some(16), "{id}");
    }
    let is_last = |line: &str| line.contains("\"key\":\"free\"");
    eventually("all are in the log", async || {
        gateway.log().iter().filter(|line| is_last(line)).count() == 21
    })
    .await;
    let log = gateway.log().join("\n").to_lowercase();
    for secret in [&token[4..], &made[1..], &key[16..]] {
        assert!(!log.contains(secret), "{log}");
    }
}

/// What turns the text around, what ends a line for some readers, and what has no shape.
const UNSEEN: &str = "a\u{202e}gpj\u{2066}\u{2028}b\u{200b}\u{feff}\u{34f}\u{2800}\u{fe0f}\u{e0041}é";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_escaped_in_both_forms_of_the_log_and_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let mut file = KeysFile::new();
    let key = file.add_for_all("x\u{202e}y", "\"acquire\", \"admin\"");
    file.write();
    let flag = file.flag();
    for form in ["json", "text"] {
        let args = ["--store", "memory:", &flag[0], &flag[1], "--audit-log", audit.to_str().unwrap()];
        let args = [&args[..], &["--listen", "127.0.0.1:0", "--log-format", form]].concat();
        let mut program = bare_command();
        program.args(&args);
        let gateway = Gateway::try_start_by(program, &args).await.unwrap();
        let client = Client::new(gateway.address);
        let name: String = UNSEEN.bytes().map(|byte| format!("%{byte:02x}")).collect();
        client.put(&format!("/locks/{name}?owner={name}")).key(&key).send().await.expect(201);
        client.delete(&format!("/locks/{name}?force=true")).key(&key).send().await.expect(204);
        let of_lock = || -> Vec<String> {
            gateway.log().into_iter().filter(|line| line.contains("a lock was broken")).collect()
        };
        eventually("it is in the log", async || of_lock().len() == 1).await;
        eventually("and in the other one", async || {
            std::fs::read_to_string(&audit).unwrap_or_default().contains("\"event\":\"break\"")
        })
        .await;
        let audited = std::fs::read_to_string(&audit).unwrap();
        let line = &of_lock()[0];
        for text in [line, &audited] {
            let raw: Vec<_> =
                UNSEEN.chars().filter(|c| !"agpjbé".contains(*c) && text.contains(*c)).collect();
            assert!(raw.is_empty(), "{form}: {raw:?} in {text}");
            assert!(text.contains('é'), "what can be seen is as it was: {text}");
        }
        if form == "json" {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&line["key"], &line["owner"]), (&UNSEEN.into(), &UNSEEN.into()));
        }
        for line in audited.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            assert!(line.get("lock").is_none_or(|lock| lock == UNSEEN), "{line}");
            assert!(line.get("key_name").is_none_or(|name| name == "x\u{202e}y"), "{line}");
        }
    }
}
