//! API keys: who may do what to which lock, how often, and what becomes of it when the keys change.

use std::collections::HashSet;

use kit::document::DOCUMENT;
use kit::http::raw_call;
use kit::{Client, Gateway, KeysFile, Stage, eventually, fresh_token};

mod certificates;
mod file;
mod limits;
mod locks;
mod records;
mod reload;
mod start;
mod tenants;

/// A gateway on a store in memory, with these keys.
async fn gateway(keys: &KeysFile, args: &[&str]) -> Gateway {
    keys.write();
    let flag = keys.flag();
    let ours = ["--store", "memory:", &flag[0], &flag[1]];
    Gateway::start(&[&ours, args].concat()).await
}

/// What is done to a lock, with what in the query, and the right that it needs.
const VERBS: [(&str, &str, &str); 6] = [
    ("PUT", "", "acquire"),
    ("PATCH", "", "acquire"),
    ("DELETE", "", "acquire"),
    ("POST", "", "acquire"),
    ("GET", "", "inspect"),
    ("DELETE", "force=true", "admin"),
];

/// Names of locks as they stand in an address, and whether the prefix `team` is for them.
const LOCKS: [(&str, bool); 17] = [
    ("team", true),
    ("team%2Fx", true),
    ("%74eam%2fx", true),
    ("team:x", true),
    ("team.x", true),
    ("team%2Fteam2", true),
    // As a key it has a percent sign after `team`.
    ("team%252Fx", false),
    ("%2574eam%2Fx", false),
    ("team2", false),
    ("team-b", false),
    ("team%5Fb", false),
    ("team%20x", false),
    ("Team%2Fx", false),
    ("tea", false),
    ("%2Fteam", false),
    ("xteam", false),
    ("%E2%80%8Bteam", false),
];

/// The addresses at which this is done to a lock; in the path, some names are never allowed.
fn addresses(verb: &str, query: &str, lock: &str) -> Vec<String> {
    if verb == "POST" {
        return vec![format!("/hold?key={lock}")];
    }
    let in_query = format!("/lock?key={lock}&{query}");
    if lock.starts_with("%2F") { vec![in_query] } else { vec![in_query, format!("/locks/{lock}?{query}")] }
}

/// The store stands still: who is refused is refused before it is asked, and so learns nothing of any lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_does_what_it_is_for_to_the_locks_it_is_for_and_nothing_else() {
    let mut file = KeysFile::new();
    let rights = ["acquire", "inspect", "list", "admin"];
    let keys = rights.map(|right| {
        let lines = format!("prefixes = [\"team\", \"other/\"]\nallow = [\"{right}\"]");
        (right, file.add(right, &lines))
    });
    let expired =
        file.add("expired", "every_key = true\nallow = [\"acquire\"]\nexpires = 2026-01-01T00:00:00Z");
    file.write();
    let flag = file.flag();
    let stage = Stage::redis_with(&[&flag[0], &flag[1], "--store-timeout", "300ms"]).await;
    let client = stage.client();
    client.put("/locks/team").key(&keys[0].1).send().await.expect(201);
    stage.redis.as_ref().unwrap().signal("STOP");
    let unknown = KeysFile::new().add("unknown", "");
    let wrong = format!("{}{}", &keys[0].1[..keys[0].1.len() - 1], "z");
    let mut said = HashSet::new();
    for (verb, query, needed) in VERBS {
        let call = |address: &str| {
            let call = client.call(verb, address);
            if query.is_empty() { call.token("0123456789abcdef") } else { call }
        };
        for (lock, is_own) in LOCKS {
            for address in addresses(verb, query, lock) {
                let what = format!("{verb} {address}");
                let none = call(&address).send().await.expect_problem(401, "key-required");
                assert_eq!(none.header("www-authenticate"), Some("Bearer realm=\"fencepost\""), "{what}");
                for (right, key) in &keys {
                    let is_allowed = *right == needed && is_own;
                    // Of those who are allowed, a few are enough: each has to be waited for.
                    if is_allowed && !["team", "%74eam%2fx"].contains(&lock) {
                        continue;
                    }
                    let answer = call(&address).key(key).send().await;
                    if is_allowed {
                        answer.expect(503);
                        continue;
                    }
                    let answer = answer.expect_problem(403, "right-missing");
                    assert_eq!(answer.json()["right"], needed, "{what} with {right}");
                    said.insert((*right == needed, answer.json()["detail"].as_str().unwrap().to_owned()));
                }
            }
        }
        for key in [&expired, &unknown, &wrong] {
            for address in addresses(verb, query, "team") {
                let answer = call(&address).key(key).send().await;
                // Those who guess that often are not listened to.
                assert!([401, 429].contains(&answer.status), "{verb} {address}: {answer:?}");
            }
        }
    }
    // What is said depends on the key and the right alone, and not on the lock.
    assert_eq!(said.len(), 6, "{said:#?}");
    stage.redis.as_ref().unwrap().signal("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_not_accepted_is_told_so_and_why_is_only_in_the_log() {
    let mut file = KeysFile::new();
    let good = file.add_for_all("good", "\"acquire\"");
    let expired =
        file.add("expired", "every_key = true\nallow = [\"acquire\"]\nexpires = 2026-01-01T00:00:00+02:00");
    let gateway = gateway(&file, &[]).await;
    let address = gateway.address;
    let show = async |header: &str| raw_call(address, "GET", "/locks/k", header).await;
    let bearer = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let wrong = good.replace(&good[16..18], "__");
    let mut said = Vec::new();
    for header in [
        bearer(&format!("fp_aaaaaaaaaaaa_{}", &good[16..])),
        bearer(&format!("{}{}", &good[..47], "-")),
        bearer(&format!("{}x", good)),
        bearer(&wrong),
        bearer("nonsense"),
        bearer(&good) + &bearer(&good),
        "Authorization: Basic Zm9vOmJhcg==\r\n".to_owned(),
        bearer(&expired),
    ] {
        let answer = show(&header).await.expect_problem(401, "key-refused");
        let challenge = "Bearer realm=\"fencepost\", error=\"invalid_token\"";
        assert_eq!(answer.header("www-authenticate"), Some(challenge));
        said.push(answer.json()["detail"].as_str().unwrap().to_owned());
    }
    assert!(said.last().unwrap().contains("expired"), "{said:?}");
    for header in ["", "Authorization:\r\n", "Authorization: Bearer\r\n"] {
        show(header).await.expect_problem(401, "key-required");
    }
    // The scheme is written in any case.
    show(&format!("authorization: bEARER {good}\r\n")).await.expect_problem(403, "right-missing");
    let id = &good[3..15];
    eventually("it is in the log", async || gateway.log().join("\n").contains("the key has expired")).await;
    let log = gateway.log().join("\n");
    assert!(log.contains("the id is unknown") && log.contains("the key is malformed"), "{log}");
    assert!(log.contains(id) && log.contains("aaaaaaaaaaaa"), "{log}");
    assert!(!log.contains(&good[16..40]) && !log.contains(&expired[16..40]), "a secret is in the log");
}

/// What says nothing of locks is open; everything else asks for a key, also what does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_only_what_says_nothing_of_locks_is_open() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("all", "\"acquire\", \"inspect\"");
    let gateway = gateway(&file, &["--cors-origin", "https://app.example"]).await;
    let client = Client::new(gateway.address);
    for address in ["/healthz", "/readyz", "/openapi.json", "/docs/", "/problems/lock-held"] {
        client.get(address).send().await.expect(200);
        client.get(address).key("nonsense").send().await.expect(200);
    }
    for (method, address) in [
        ("GET", "/locks/k"),
        ("GET", "/locks/"),
        ("GET", "/locks"),
        ("POST", "/hold?key=k"),
        ("POST", "/locks/k"),
        ("GET", "/metrics"),
        ("GET", "/healthz/"),
        ("GET", "/docsx"),
        ("GET", "//docs/"),
        ("GET", "/nothing"),
    ] {
        client.call(method, address).send().await.expect_problem(401, "key-required");
    }
    client.get("/nothing").key(&key).send().await.expect_problem(404, "not-found");
    // A proxy's own name is nothing that a key does not outweigh.
    client.get("/locks/k").key(&key).header("Host", "locks.example").send().await.expect(404);
    // The preflight of a page carries no key, and asks whether it may send one.
    let preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n\
                     Access-Control-Request-Headers: authorization\r\n";
    let answer = raw_call(gateway.address, "OPTIONS", "/locks/k", preflight).await.expect(200);
    assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
    let origin = "https://app.example";
    let answer =
        client.get("/locks/k").header("Origin", origin).send().await.expect_problem(401, "key-required");
    let exposed = answer.header("access-control-expose-headers").unwrap().to_ascii_lowercase();
    assert!(exposed.contains("www-authenticate") && exposed.contains("ratelimit-policy"), "{exposed}");
}

/// A new address is closed until somebody opens it, and the document says which are open.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_says_what_needs_a_key_and_so_it_is() {
    let mut file = KeysFile::new();
    file.add_for_all("all", "\"acquire\"");
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    assert_eq!(DOCUMENT["security"], serde_json::json!([{}, {"bearer": []}]));
    assert_eq!(DOCUMENT["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let (mut open, mut closed) = (0, 0);
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let address = path.replace("{key}", "k").replace("{name}", "lock-held");
            let answer = client.call(&method.to_uppercase(), &address).send().await;
            let is_open = operation["security"].as_array().is_some_and(|needed| needed.is_empty());
            assert_eq!(answer.status != 401, is_open, "{method} {path}: {}", answer.status);
            *(if is_open { &mut open } else { &mut closed }) += 1;
        }
    }
    assert!(open == 4 && closed >= 10, "{open} {closed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_what_the_key_may_see() {
    let mut file = KeysFile::new();
    let all = file.add_for_all("all", "\"acquire\", \"list\"");
    let team = file.add("team", "prefixes = [\"team\", \"other/\"]\nallow = [\"list\"]");
    let blind = file.add_for_all("blind", "\"acquire\", \"inspect\", \"admin\"");
    let gateway = gateway(&file, &[]).await;
    let client = Client::new(gateway.address);
    for lock in ["team", "team%2Fa", "team2", "team-b", "other%2Fx", "otherx", "x"] {
        client.put(&format!("/locks/{lock}")).key(&all).send().await.expect(201);
    }
    let list = async |key: &str, prefix: &str| {
        let page = client.get(&format!("/locks?prefix={prefix}")).key(key).send().await.expect(200).json();
        let locks = page["locks"].as_array().unwrap().iter();
        locks.map(|lock| lock["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(&all, "").await.len(), 7);
    assert_eq!(list(&team, "").await, ["other/x", "team", "team/a"]);
    assert_eq!(list(&team, "team").await, ["team", "team/a"]);
    assert_eq!(list(&team, "o").await, ["other/x"]);
    for prefix in ["team2", "team-", "x", "otherx"] {
        let answer = client.get(&format!("/locks?prefix={prefix}")).key(&team).send().await;
        assert_eq!(answer.expect_problem(403, "right-missing").json()["right"], "list", "{prefix}");
    }
    for address in ["/locks", "/locks?prefix=x", "/metrics"] {
        client.get(address).key(&blind).send().await.expect_problem(403, "right-missing");
        client.get(address).send().await.expect_problem(401, "key-required");
    }
    client.get("/metrics").key(&team).send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_the_key_of_each_request() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("all", "\"acquire\"");
    let gateway = gateway(&file, &[]).await;
    let token = fresh_token();
    Client::new(gateway.address).put("/locks/k").key(&key).token(&token).send().await.expect(201);
    let line = || gateway.log().into_iter().find(|line| line.contains("\"route\":\"/locks/{key}\""));
    eventually("it is in the log", async || line().is_some()).await;
    let line = line().unwrap();
    assert!(line.contains(&format!("\"key_id\":\"{}\"", &key[3..15])), "{line}");
    assert!(!gateway.log().join("\n").contains(&key[16..]), "a secret is in the log");
}

/// Addresses of the store and what it says of itself are the operator's; whoever shows a key is told, and so is the log.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_learn_that_the_gateway_is_not_ready_and_not_why() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("sees", "\"inspect\"");
    file.write();
    let flag = file.flag();
    let mut stage = Stage::redis_with(&[&flag[0], &flag[1], "--store-timeout", "300ms"]).await;
    let client = stage.client();
    drop(stage.redis.take());
    eventually("it is not ready", async || client.get("/readyz").send().await.status == 503).await;
    let ask = async |key: Option<&str>| {
        let call = client.get("/readyz");
        let call = if let Some(key) = key { call.key(key) } else { call };
        call.send().await.expect_problem(503, "store-unavailable").json()["detail"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let wrong = format!("{}x", &key[..key.len() - 1]);
    for stranger in [None, Some("nonsense"), Some(wrong.as_str())] {
        let detail = ask(stranger).await;
        assert_eq!(
            detail,
            "the store cannot be used; the log says why, and so does this answer if you send an API key"
        );
    }
    // Why it is so may change while the outage goes on, and the log follows.
    eventually("the log says what a key is told", async || {
        let told = ask(Some(&key)).await;
        assert!(!told.is_empty() && !told.contains("API key"), "{told}");
        let log = stage.gateway.log().join("\n");
        log.contains("the gateway is not ready") && log.contains(&told)
    })
    .await;
    let log = stage.gateway.log().join("\n");
    // Once for each reason, however often it is asked.
    assert!(log.matches("the gateway is not ready").count() < 4, "{log}");
}
