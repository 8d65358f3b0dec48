//! The protocols of other tools, as they are on the wire: the tools themselves ask in `tests/docs`.

mod dapr;
mod fleet_lock;
mod terraform;

use std::path::PathBuf;

use kit::gateway::run;
use kit::keys::KeysFile;
use kit::metrics::{Scrape, metrics_address};
use kit::{Client, Gateway, eventually};
use serde_json::Value;
use tempfile::TempDir;

/// What a gateway lists of its locks: key and owner.
async fn listed(client: &Client) -> Vec<(String, String)> {
    let list = client.get("/locks").send().await.expect(200).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list["locks"].as_array().unwrap().iter().map(|lock| (text(&lock["key"]), text(&lock["owner"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_off_unless_a_setting_names_it() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    for (method, address) in [
        ("LOCK", "/terraform/k"),
        ("LOCK", "/terraform?key=k"),
        ("GET", "/v1.0/metadata"),
        ("POST", "/v1.0-alpha1/lock/s"),
        ("POST", "/v1.0-alpha1/unlock/s"),
        ("POST", "/fleet-lock/v1/pre-reboot"),
        ("POST", "/fleet-lock/v1/steady-state"),
    ] {
        let off = client.call(method, address).body("{}").send().await.expect_problem(404, "not-found");
        let says_so = off.json()["detail"].as_str().unwrap().contains("without --terraform");
        assert_eq!(says_so, address.starts_with("/terraform"), "{address}");
    }
    let other = client.call("LOCK", "/terraforms").send().await.expect_problem(404, "not-found");
    assert!(other.json()["detail"].as_str().unwrap().contains("there is nothing at this address"));
}

#[test]
fn a_setting_that_cannot_be_kept_is_refused_at_the_start() {
    let long = format!("{}=1", "x".repeat(201));
    let quorum = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    for (args, says) in [
        (&["--terraform", "--max-ttl", "23h"][..], "--terraform: needs a --max-ttl of 24h or more"),
        (&["--fleet-lock", "default=1", "--max-ttl", "23h"], "--fleet-lock: needs a --max-ttl of 24h"),
        (&["--terraform", "--store", quorum], "--terraform: needs a --max-ttl of 24h"),
        (
            &["--fleet-lock", "a=2", "--max-ttl", "24h", "--store", quorum],
            "--fleet-lock: must be of one slot",
        ),
        (&["--fleet-lock", "a=1,a=2"], "--fleet-lock: must be there once for each group"),
        (&["--dapr", "--max-ttl", "500ms"], "--dapr: needs a --max-ttl of 1s or more"),
        (&["--fleet-lock", &long], "write a group and its slots"),
        (&["--fleet-lock", "default"], "write a group and its slots"),
        (&["--fleet-lock", "default=0"], "write a group and its slots"),
        (&["--fleet-lock", "default=101"], "write a group and its slots"),
        (&["--fleet-lock", "a b=1"], "write a group and its slots"),
    ] {
        let output = run(&[&["serve"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{args:?}: {said}");
        assert!(!said.contains("given: true"), "{args:?}: {said}");
    }
}

/// What is no key is in the place of one: its client is told where.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_or_a_token_that_is_no_key_is_refused_by_its_place() {
    let mut keys = KeysFile::new();
    keys.add_for_all("ci", "\"acquire\"");
    keys.write();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", "--terraform", "--dapr", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    let basic = ("authorization", "Basic ejp3cm9uZw==");
    let token = ("dapr-api-token", "nope");
    for (method, address, (header, value), says) in [
        ("GET", "/locks/k", basic, "the password of Basic authentication is not an API key"),
        ("LOCK", "/terraform/k", basic, "the password of Basic authentication is not an API key"),
        ("POST", "/v1.0-alpha1/lock/s", token, "dapr-api-token is not an API key"),
    ] {
        let answer = client.call(method, address).header(header, value).send().await;
        let refused = answer.expect_problem(401, "key-refused").json();
        assert!(refused["detail"].as_str().unwrap().starts_with(says), "{method} {address}: {refused}");
    }
    // It was meant for a proxy on the way, and is no guess at a key: an address is told to wait after ten of these.
    for _ in 0..20 {
        let again = client.get("/locks/k").header(basic.0, basic.1).send().await;
        again.expect_problem(401, "key-refused");
    }
    let log = gateway.log();
    assert!(!log.iter().any(|line| line.contains("an API key was refused")), "{log:?}");
    // Nothing there, or there for others.
    let nothing = client.post("/v1.0-alpha1/lock/s").header("dapr-api-token", "");
    nothing.send().await.expect_problem(401, "key-required");
    client.get("/locks/k").header(token.0, token.1).send().await.expect_problem(401, "key-required");
    // An SDK asks this first, and takes a refusal for a sidecar that is down.
    client.get("/v1.0/metadata").header(token.0, token.1).send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_lacks_a_field_is_told_which() {
    let gateway =
        Gateway::start(&["--store", "memory:", "--terraform", "--dapr", "--fleet-lock", "default=1"]).await;
    let client = Client::new(gateway.address);
    for (method, address, body, says) in [
        ("LOCK", "/terraform/k", "{}", "lacks ID"),
        ("UNLOCK", "/terraform/k", r#"{"Who":"a"}"#, "lacks ID"),
        ("LOCK", "/terraform/k", "", "is empty"),
        ("LOCK", "/terraform/k", "{", "line 1, column 1"),
        ("POST", "/v1.0-alpha1/lock/s", "{}", "lacks resourceId"),
        ("POST", "/v1.0-alpha1/unlock/s", r#"{"resourceId":"7"}"#, "lacks lockOwner"),
        ("POST", "/fleet-lock/v1/pre-reboot", "{}", "lacks client_params"),
        ("POST", "/fleet-lock/v1/steady-state", r#"{"client_params":{"id":"m1"}}"#, "lacks group"),
    ] {
        let call = client.call(method, address).header("fleet-lock-protocol", "true").body(body);
        let answer = call.send().await.expect(400).json();
        let told = ["detail", "message", "value"].into_iter().find_map(|name| answer[name].as_str()).unwrap();
        assert!(told.contains(says), "{method} {address} {body}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_and_a_list_are_refused_where_a_tool_says_all_in_an_object() {
    let gateway =
        Gateway::start(&["--store", "memory:", "--terraform", "--dapr", "--fleet-lock", "default=1"]).await;
    let client = Client::new(gateway.address);
    let (dapr, fleet) = (
        r#"{"resourceId":"r","lockOwner":"o","expiryInSeconds":30}"#,
        r#"{"client_params":{"id":"m","group":"default"}}"#,
    );
    for (method, address, body, says) in [
        ("POST", "/v1.0-alpha1/lock/s?ttl=5s", dapr, "no parameter \"ttl\"; it takes no parameters"),
        ("POST", "/v1.0-alpha1/unlock/s?x", dapr, "no parameter \"x\""),
        ("POST", "/fleet-lock/v1/pre-reboot?x=1", fleet, "no parameter \"x\""),
        ("POST", "/fleet-lock/v1/steady-state?x=1", fleet, "no parameter \"x\""),
        ("POST", "/v1.0-alpha1/lock/s", r#"["r","o",30]"#, "is not what this protocol has"),
        ("POST", "/fleet-lock/v1/pre-reboot", r#"[["m","default"]]"#, "is not what this protocol has"),
        (
            "POST",
            "/fleet-lock/v1/pre-reboot",
            r#"{"client_params":["m","default"]}"#,
            "is not what this protocol has",
        ),
        ("LOCK", "/terraform/k", r#"["i","o","w","",""]"#, "is not what this protocol has"),
    ] {
        let call = client.call(method, address).header("fleet-lock-protocol", "true").body(body);
        let answer = call.send().await.expect(400).json();
        let told = ["detail", "message", "value"].into_iter().find_map(|name| answer[name].as_str()).unwrap();
        assert!(told.contains(says), "{method} {address} {body}: {told}");
    }
    assert_eq!(listed(&client).await, []);
}

/// A gateway with an audit log, and a key that may take locks there.
struct Audited {
    gateway: Gateway,
    client: Client,
    key: String,
    audit: PathBuf,
    _files: (KeysFile, TempDir),
}

impl Audited {
    async fn with(args: &[&str]) -> Self {
        let mut keys = KeysFile::new();
        let key = keys.add_for_all("ci", "\"acquire\"");
        keys.write();
        let (flag, directory) = (keys.flag(), tempfile::tempdir().unwrap());
        let audit = directory.path().join("audit.log");
        let common = ["--store", "memory:", &flag[0], &flag[1], "--audit-log", audit.to_str().unwrap()];
        let gateway = Gateway::start(&[&common[..], args].concat()).await;
        let client = Client::new(gateway.address);
        Self { gateway, client, key, audit, _files: (keys, directory) }
    }
}

/// Without a key, with a body that cannot be read, and by a method that the protocol does not have.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_before_its_lock_is_known_is_counted_as_a_tools() {
    let tools = ["--terraform", "--dapr", "--fleet-lock", "default=1", "--metrics-listen", "127.0.0.1:0"];
    let Audited { gateway, client, key, audit, _files } = Audited::with(&tools).await;
    let requests = [
        ("LOCK", "/terraform/k"),
        ("UNLOCK", "/terraform?key=k"),
        ("POST", "/v1.0-alpha1/lock/s"),
        ("POST", "/v1.0-alpha1/unlock/s"),
        ("POST", "/fleet-lock/v1/pre-reboot"),
        ("POST", "/fleet-lock/v1/steady-state"),
    ];
    for (method, address) in requests {
        let call = || client.call(method, address).header("fleet-lock-protocol", "true").body("x");
        call().send().await.expect_problem(401, "key-required");
        call().key(&key).send().await.expect(400);
    }
    client.get("/terraform/k").key(&key).send().await.expect(405);
    for (operation, problem, times) in [
        ("facade-acquire", "key-required", 3.0),
        ("facade-release", "key-required", 3.0),
        ("facade-acquire", "bad-parameter", 3.0),
        ("facade-release", "bad-parameter", 3.0),
        ("facade", "method-not-allowed", 1.0),
    ] {
        let numbers = metrics_address(&gateway);
        let counted = async || Scrape::of(numbers).await.requests(operation, problem) == times;
        eventually(&format!("{problem} of {operation} is counted"), counted).await;
    }
    // They are written after the answers.
    let noted = async || {
        let uses = std::fs::read_to_string(&audit).unwrap();
        uses.lines().filter(|line| line.contains(r#""operation":"facade"#)).count() == 7
    };
    eventually("each use of the key is written", noted).await;
}

/// Each has the status 200.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_tells_a_tools_grant_from_a_refusal_and_from_an_unlock() {
    let Audited { gateway: _gateway, client, key, audit, _files } = Audited::with(&["--dapr"]).await;
    for (step, owner) in [("lock", "ann"), ("lock", "ben"), ("unlock", "ben"), ("unlock", "ann")] {
        let body = format!(r#"{{"resourceId":"r","lockOwner":"{owner}","expiryInSeconds":60}}"#);
        client.post(&format!("/v1.0-alpha1/{step}/s")).key(&key).body(body).send().await.expect(200);
    }
    let uses = || -> Vec<(String, String)> {
        let text = std::fs::read_to_string(&audit).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_lock = lines.filter(|line| line["event"] == "key-use" && line["lock"] == "dapr:s:r");
        let said = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        of_lock.map(|line| (said(&line["operation"]), said(&line["problem"]))).collect()
    };
    eventually("each use of the key is written", async || uses().len() == 4).await;
    let said = uses();
    let said: Vec<_> =
        said.iter().map(|(operation, problem)| (operation.as_str(), problem.as_str())).collect();
    let expected = [
        ("facade-acquire", ""),
        ("facade-acquire", "lock-held"),
        ("facade-release", "held-by-another"),
        ("facade-release", ""),
    ];
    assert_eq!(said, expected);
}

/// Tools that can send no `Bearer` show a key as the password, elsewhere too, or where Dapr has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_be_a_password() {
    let mut keys = KeysFile::new();
    let key = keys.add_for_all("ci", "\"acquire\", \"inspect\"");
    let of_tool = keys.add_for_all("tool", "\"acquire\"");
    keys.write();
    let flag = keys.flag();
    let flags = ["--store", "memory:", "--terraform", "--dapr", &flag[0], &flag[1]];
    let gateway = Gateway::start(&flags).await;
    let client = Client::new(gateway.address);
    let basic = |text: String| format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()));
    let wrong = key[..key.len() - 1].to_owned() + "!";
    for (shown, expected) in [
        (basic(format!("ci:{key}")), 404),
        (basic(format!(":{key}")), 404),
        (basic(format!("a:b:{key}")), 401),
        (basic(format!("ci:{wrong}")), 401),
        (basic("ci:secret".to_owned()), 401),
        (basic("ci".to_owned()), 401),
        ("Basic !".to_owned(), 401),
        (basic(format!("ci:{key}")).replace("Basic", "bASIC"), 404),
    ] {
        let answer = client.get("/locks/k").header("Authorization", &shown).send().await;
        assert_eq!(answer.status, expected, "{shown}");
    }
    // It may do all that a tool asks for, and not look.
    let look = client.get("/locks/k").header("Authorization", basic(format!("tool:{of_tool}")));
    look.send().await.expect_problem(403, "right-missing");
    let dapr = |path| client.get(path).header("dapr-api-token", &key);
    let unlock = |token: &str| {
        let body = r#"{"resourceId":"7","lockOwner":"a"}"#;
        client.post("/v1.0-alpha1/unlock/s").header("dapr-api-token", token).body(body)
    };
    unlock(&key).send().await.expect(200);
    unlock(&key).key(&key).send().await.expect_problem(401, "key-refused");
    // Elsewhere it is meant for others.
    dapr("/locks/k").send().await.expect_problem(401, "key-required");
    dapr("/locks/k").key(&key).send().await.expect(404);
    let lock = client.call("LOCK", "/terraform/k").header("Authorization", basic(format!("ci:{key}")));
    lock.body(r#"{"ID":"1"}"#).send().await.expect(200);
    client
        .call("LOCK", "/terraform/k")
        .body(r#"{"ID":"1"}"#)
        .send()
        .await
        .expect_problem(401, "key-required");
}
