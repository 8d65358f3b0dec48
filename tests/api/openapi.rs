//! The document: committed, complete, and usable by generators.

use std::collections::{BTreeSet, HashSet};
use std::process::Command;

use serde_json::Value;

use kit::{Answer, Client, Gateway, KeysFile, Stage, eventually, fresh_token, quorum};

use kit::document::DOCUMENT;
use kit::gateway::program;
use kit::http::{parse, raw, raw_call};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");

/// With `WRITE_OPENAPI`, the document is written anew first.
#[test]
fn the_committed_document_is_the_generated_one() {
    let generated = fencepost::api::generate_openapi();
    if std::env::var_os("WRITE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(committed == generated, "run `make openapi` and commit openapi/openapi.json");
}

#[test]
fn the_program_prints_the_committed_document() {
    let printed = Command::new(program()).arg("openapi").output().unwrap();
    assert!(printed.status.success());
    assert!(std::fs::read(COMMITTED).unwrap() == printed.stdout);
}

fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    DOCUMENT["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
        item.as_object()
            .unwrap()
            .iter()
            .map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

#[test]
fn operations_are_named_as_functions_of_a_client() {
    let ids: HashSet<_> =
        operations().map(|(_, _, operation)| operation["operationId"].as_str().unwrap()).collect();
    let expected = HashSet::from([
        "acquire_lock",
        "renew_lock",
        "release_lock",
        "get_lock",
        "acquire_lock_by_query",
        "renew_lock_by_query",
        "release_lock_by_query",
        "get_lock_by_query",
        "begin_work",
        "store_result",
        "renew_work",
        "give_up",
        "look_at_record",
        "begin_work_by_query",
        "store_result_by_query",
        "renew_work_by_query",
        "give_up_by_query",
        "look_at_record_by_query",
        "list_records",
        "hold_lock",
        "watch_locks",
        "list_locks",
        "healthz",
        "readyz",
        "explain_problem",
        "get_metrics",
        "get_openapi",
    ]);
    assert_eq!(ids, expected);
    assert_eq!(DOCUMENT["openapi"], "3.1.0");
}

#[test]
fn every_answer_has_a_description_the_common_headers_and_an_example() {
    for (path, method, operation) in operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let what = format!("{method} {path} {status}");
            assert!(!response["description"].as_str().unwrap().is_empty(), "{what}");
            for header in ["X-Request-Id", "Cache-Control"] {
                assert!(response["headers"][header].is_object(), "{what}: {header}");
            }
            for (media_type, content) in response["content"].as_object().into_iter().flatten() {
                let has_example = content.get("example").is_some() || content.get("examples").is_some();
                assert!(has_example || path == "/openapi.json", "{what} {media_type}: no example");
                for example in content["examples"].as_object().into_iter().flatten() {
                    kit::document::validate(&content["schema"], &example.1["value"], &what);
                }
                if let Some(example) = content.get("example").filter(|example| example.is_object()) {
                    kit::document::validate(&content["schema"], example, &what);
                }
            }
        }
    }
}

#[test]
fn every_parameter_is_described_and_optional_is_not_nullable() {
    for (path, method, operation) in operations() {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let what = format!("{method} {path} {}", parameter["name"]);
            assert!(!parameter["description"].as_str().unwrap_or_default().is_empty(), "{what}");
            let kind = parameter["schema"]["type"].as_str().unwrap_or_default();
            assert!(
                ["string", "integer", "boolean", "array"].contains(&kind),
                "{what}: {}",
                parameter["schema"]
            );
        }
    }
    let put = &DOCUMENT["paths"]["/lock"]["put"]["parameters"];
    let names: Vec<_> =
        put.as_array().unwrap().iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["key", "ttl", "wait", "owner", "max_hold", "min_hold", "slots", "Lease-Token"]);
    let number = &DOCUMENT["components"]["schemas"]["Grant"]["properties"]["fencing_token"];
    assert_eq!(number["maximum"].as_u64(), Some((1 << 53) - 1));
}

/// A client that is generated from a closed list fails on an answer with a value that was added later. And the constants of
/// two lists may not be called the same in Go, where all are in one namespace.
#[test]
fn no_list_of_values_is_closed() {
    fn look_for_lists(place: &str, value: &Value) {
        assert!(!place.ends_with("/enum") && !place.ends_with("/const"), "{place}: {value}");
        for (name, value) in value.as_object().into_iter().flatten() {
            look_for_lists(&format!("{place}/{name}"), value);
        }
        for value in value.as_array().into_iter().flatten() {
            look_for_lists(place, value);
        }
    }
    look_for_lists("", &DOCUMENT);
    for (schema, property) in
        [("Problem", "type"), ("HoldEvent", "event"), ("HoldEvent", "reason"), ("LockEvent", "event")]
    {
        assert!(known_values(schema, property).len() >= 4, "{schema}.{property}");
        let about = &DOCUMENT["components"]["schemas"][schema]["properties"][property];
        assert_eq!(about["type"], "string", "{schema}.{property}");
    }
}

/// The values that a property has today.
pub fn known_values(schema: &str, property: &str) -> &'static Vec<Value> {
    let about = &DOCUMENT["components"]["schemas"][schema]["properties"][property];
    about["x-extensible-enum"].as_array().unwrap()
}

#[test]
fn every_problem_type_is_in_the_schema_and_documented_somewhere() {
    let text = DOCUMENT["paths"].to_string();
    for problem in known_values("Problem", "type") {
        let name = problem.as_str().unwrap();
        // A method that does not exist has no operation that could describe the answer to it.
        assert!(text.contains(name) || name == "/problems/method-not-allowed", "{name}");
    }
}

#[test]
fn the_document_names_each_right_that_may_be_missing() {
    let about = &DOCUMENT["components"]["schemas"]["Problem"]["properties"]["right"]["description"];
    for right in fencepost::access::Right::ALL {
        assert!(about.as_str().unwrap().contains(&format!("`{}`", right.name())), "{about}");
    }
}

#[test]
fn the_document_says_who_made_it_and_under_which_license() {
    assert!(DOCUMENT["info"]["contact"]["name"].is_string());
    assert_eq!(DOCUMENT["info"]["license"]["identifier"], env!("CARGO_PKG_LICENSE"));
}

/// The parameters of an operation.
fn parameters(operation: &Value) -> impl Iterator<Item = &Value> {
    operation["parameters"].as_array().into_iter().flatten()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schemas_of_parameters_are_as_tight_as_the_rules() {
    let stage = Stage::embedded().await;
    let fits = |name: &str, value: &str| {
        let put = &DOCUMENT["paths"]["/lock"]["put"];
        let parameter = parameters(put).find(|parameter| parameter["name"] == name).unwrap();
        jsonschema::is_valid(&parameter["schema"], &Value::from(value))
    };
    let cases = [
        ("ttl", "30s", true),
        ("ttl", "1h30m", true),
        ("ttl", "1d", true),
        ("ttl", "500ms", true),
        ("ttl", "30", false),
        ("ttl", "", false),
        ("ttl", "-5s", false),
        ("ttl", "s", false),
        ("ttl", "30 parsecs", false),
        ("wait", "5s", true),
        ("wait", "5", false),
        ("max_hold", "2h", true),
        ("max_hold", "7200", false),
        ("min_hold", "1s", true),
        ("min_hold", "1", false),
        ("owner", "", true),
        ("owner", "cron@db1", true),
        ("owner", "a\nb", false),
        ("owner", "a\u{85}b", false),
        ("key", "a/b", true),
        ("key", "\u{e9}", true),
        ("key", "", false),
        ("key", "a\0b", false),
        ("key", "\u{7f}", false),
        ("Lease-Token", "0123456789abcdef", true),
        ("Lease-Token", "short", false),
        ("Lease-Token", "with a space in it", false),
    ];
    for (number, (name, value, is_valid)) in cases.into_iter().enumerate() {
        assert_eq!(fits(name, value), is_valid, "the schema of {name}: {value:?}");
        let encoded: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let free = format!("/lock?key=free-{number}");
        let ask = match name {
            "key" => stage.client().put(&format!("/lock?key={encoded}")),
            "Lease-Token" => stage.client().put(&free).token(value),
            _ => stage.client().put(&format!("{free}&{name}={encoded}")),
        };
        ask.send().await.expect(if is_valid { 201 } else { 400 });
    }
}

/// Somebody who tries the examples in this order is never told to wait, nor refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_can_be_tried_one_after_the_other() {
    let stage = Stage::embedded().await;
    let paths = ["/locks/{key}", "/lock"];
    let story = [("put", 201), ("put", 200), ("get", 200), ("patch", 200), ("delete", 204)];
    let all = paths.into_iter().flat_map(|path| story.map(|(method, status)| (path, method, status)));
    for (path, method, status) in all.chain([("/locks", "get", 200)]) {
        let mut address = path.to_owned();
        let mut query = Vec::new();
        let mut token = None;
        for parameter in parameters(&DOCUMENT["paths"][path][method]) {
            let Some(example) = parameter.get("example") else { continue };
            let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            match (parameter["in"].as_str().unwrap(), parameter["name"].as_str().unwrap()) {
                ("path", name) => address = address.replace(&format!("{{{name}}}"), &text),
                ("query", "cursor") => {}
                ("query", name) => query.push(format!("{name}={text}")),
                (_, name) => {
                    assert_eq!(name, "Lease-Token");
                    token = Some(text);
                }
            }
        }
        let call = stage.client().call(&method.to_uppercase(), &format!("{address}?{}", query.join("&")));
        match token {
            Some(token) => call.token(&token).send().await.expect(status),
            None => call.send().await.expect(status),
        };
    }
    let key_of = |path: &str, method: &str| {
        parameters(&DOCUMENT["paths"][path][method]).find(|parameter| parameter["name"] == "key").unwrap()
            ["example"]
            .clone()
    };
    let held = key_of("/hold", "post");
    assert!(held != key_of("/lock", "put") && held != key_of("/locks/{key}", "put"), "{held}");
}

/// What the document says that an operation can answer, each as `status problem`.
fn documented(path: &str, method: &str) -> HashSet<String> {
    let responses = DOCUMENT["paths"][path][method]["responses"].as_object().unwrap();
    let mut all = HashSet::new();
    for (status, response) in responses {
        match response["content"]["application/problem+json"]["examples"].as_object() {
            Some(problems) => all.extend(problems.keys().map(|name| format!("{status} {name}"))),
            None => drop(all.insert(format!("{status} "))),
        }
    }
    all
}

fn describe(answer: &Answer) -> String {
    let problem = if answer.status >= 400 { answer.json()["type"].clone() } else { Value::Null };
    format!("{} {}", answer.status, problem.as_str().unwrap_or_default().trim_start_matches("/problems/"))
}

/// One form of the address of a lock, as a function of its key.
type Address = fn(&str) -> String;

#[tokio::test(flavor = "multi_thread")]
async fn each_address_takes_the_methods_that_the_document_gives_it() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        let target = path.replace("{key}", "a").replace("{name}", "lock-held");
        let answer = raw_call(gateway.address, "BREW", &target, "").await.expect(405);
        let allowed: BTreeSet<_> =
            answer.header("allow").unwrap().split(',').map(str::to_lowercase).collect();
        let mut documented: BTreeSet<_> = item.as_object().unwrap().keys().cloned().collect();
        if documented.contains("get") {
            documented.insert("head".to_owned());
        }
        assert_eq!(allowed, documented, "{path}");
    }
}

/// The other direction is checked with every answer of every test: here each documented one is provoked.
#[tokio::test(flavor = "multi_thread")]
async fn every_documented_answer_is_given() {
    let forms: [(&str, Address); 2] =
        [("/locks/{key}", |key| format!("/locks/{key}?")), ("/lock", |key| format!("/lock?key={key}&"))];
    for (path, address) in forms {
        for method in ["put", "patch", "delete", "get"] {
            let mut missing = documented(path, method);
            // Only a fault of the program gives it; a test with a handler of its own has it.
            assert!(missing.remove("500 internal-error"));
            // It takes thousands of requests: `facades::dapr` has them.
            assert!(missing.remove("429 too-many-results"));
            // Only a request for several locks gets this one, and a path has one.
            if method == "put" {
                let gateway = Gateway::start(&["--store", "memory:", "--max-holds", "1"]).await;
                let several = Client::new(gateway.address).put("/lock?key=a&key=b").send().await;
                assert!(missing.remove(&describe(&several)));
            }
            for answer in provoke(&method.to_uppercase(), address).await {
                missing.remove(&describe(&answer));
            }
            assert!(missing.is_empty(), "{method} {path}: {missing:?}");
        }
    }
}

/// The answers of a gateway at which nobody else may wait, and that stops while somebody does.
async fn crowd_out(address: Address) -> Vec<Answer> {
    let stage = Stage::redis_with(&["--max-waiters", "1"]).await;
    let client = stage.client();
    client.put("/locks/held").send().await.expect(201);
    let waiting = tokio::spawn(client.put(&(address("held") + "wait=15s")).send());
    eventually("somebody waits", async || client.get("/locks/held").send().await.json()["waiters"] == 1)
        .await;
    let refused = client.put(&(address("held") + "wait=15s")).send().await;
    stage.gateway.signal("TERM");
    vec![refused, waiting.await.unwrap()]
}

/// The answer of a gateway that wants a lock to be on a replica which is not there.
async fn ask_in_vain_for_replicas(address: Address) -> Answer {
    let stage = Stage::redis_with(&["--replicas-ack", "1"]).await;
    stage.client().put(&address("k")).send().await
}

/// The answers to who shows no key, one that is not accepted, one that is for something else, one that has used
/// up its rate, and one that may have no locks.
async fn ask_without_right(method: &str, address: Address) -> Vec<Answer> {
    let mut file = KeysFile::new();
    let other = file.add_for_all("other", "\"list\"");
    let slow = file.add("slow", "every_key = true\nallow = [\"acquire\", \"inspect\"]\nrate = 0.001");
    let full = file.add("full", "every_key = true\nallow = [\"acquire\", \"inspect\"]\nmax_locks = 0");
    file.write();
    let flag = file.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    let ask = || client.call(method, &address("k")).token(&fresh_token());
    let mut answers = vec![ask().send().await];
    for key in ["nonsense", &other, &full, &slow, &slow] {
        answers.push(ask().key(key).send().await);
    }
    answers
}

/// The answer of a store that cannot count who holds a lock.
async fn ask_for_slots_on_a_quorum(address: Address) -> Answer {
    let gateway = quorum::shared().await.gateway(&["--redis-prefix", &fresh_token()]).await;
    Client::new(gateway.address).put(&(address("k") + "slots=2")).send().await
}

/// The answers about a lock that two hold, where there are slots: to one of them, who wants less company, and to who would end both.
async fn ask_beside_others(method: &str, address: Address) -> [Answer; 2] {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let (client, tokens) = (Client::new(gateway.address), [fresh_token(), fresh_token()]);
    for token in &tokens {
        client.put("/locks/k?slots=2").token(token).send().await.expect(201);
    }
    let ask = |query| client.call(method, &(address("k") + query));
    [ask("").token(&tokens[0]).send().await, ask("force=true").send().await]
}

/// The answers of one method, at one form of the address, in every situation there is.
async fn provoke(method: &str, address: Address) -> Vec<Answer> {
    let stage = Stage::redis_with(&["--store-timeout", "400ms"]).await;
    let client = stage.client();
    let redis = stage.redis.as_ref().unwrap();
    let ask = |address: String| client.call(method, &address);
    let ask_with = |address: String| ask(address).token(&fresh_token());
    let mut answers = Vec::new();

    // A lock that is free, one that another holds, one of the caller's own, and one that the caller released.
    answers.push(ask(address("free")).send().await);
    answers.push(ask_with(address("unused")).send().await);
    client.put("/locks/held").send().await.expect(201);
    answers.push(ask_with(address("held")).send().await);
    let own = fresh_token();
    client.put("/locks/own").token(&own).send().await.expect(201);
    answers.push(ask(address("own")).token(&own).send().await);
    client.delete("/locks/own").token(&own).send().await.expect(204);
    answers.push(ask(address("own")).token(&own).send().await);

    // What is refused before the store is asked.
    answers.push(ask_with(address("k")).header("Origin", "https://evil.example").send().await);
    answers.push(ask_with(address("k")).header("Host", "evil.example").send().await);
    let two_ways = format!("{method} {}#1 HTTP/1.1\r\nHost: localhost\r\n\r\n", address("k"));
    answers.push(parse(&raw(stage.gateway.address, two_ways.as_bytes()).await));
    answers.push(ask_with(address(&"k".repeat(9_000))).send().await);
    answers.push(ask_with(address("k")).header("X-Long", "x".repeat(17_000)).send().await);
    answers.push(ask_with(address("k") + "tll=5s").send().await);
    answers.push(ask_with(address("%00")).send().await);
    answers.push(ask(address("k")).token("short").send().await);
    answers.push(ask_with(address("k")).body("{}").send().await);
    if method == "PATCH" {
        let kept = client.put("/locks/kept?min_hold=30s").send().await.expect(201).token();
        client.delete("/locks/kept").token(&kept).send().await.expect(204);
        answers.push(client.patch(&address("kept")).token(&kept).send().await);
        let token = client.put("/locks/longest?max_hold=30s").send().await.expect(201).token();
        answers.push(ask(address("longest") + "ttl=1h").token(&token).send().await);
    }
    if method == "GET" {
        for (key, slots, ahead) in [("checked", 1, 0), ("other", 1, 1), ("shared", 2, 0)] {
            let granted = client.put(&format!("/locks/{key}?slots={slots}")).send().await.expect(201);
            let number = granted.fencing_token() + ahead;
            answers.push(ask(address(key) + &format!("fencing_token={number}")).send().await);
        }
    }
    if method == "PUT" {
        answers.extend(crowd_out(address).await);
        answers.push(ask_in_vain_for_replicas(address).await);
        answers.push(ask_for_slots_on_a_quorum(address).await);
    }

    answers.extend(ask_beside_others(method, address).await);
    answers.extend(ask_without_right(method, address).await);

    // A store that has just stopped answering, and one of which that is known.
    redis.signal("STOP");
    answers.push(ask_with(address("k")).send().await);
    eventually("the outage is known", async || {
        answers.push(ask_with(address("k")).send().await);
        answers.last().is_some_and(|answer| describe(answer) == "503 store-unavailable")
    })
    .await;
    answers
}

/// The statuses that clients tell apart, by what they ask of a record.
const OF_RECORDS: [(&str, &[&str]); 5] = [
    ("put", &["200", "201", "409", "422", "423", "429", "501", "503"]),
    ("post", &["200", "404", "408", "409", "411", "413", "415", "429", "501", "503"]),
    ("patch", &["200", "404", "409", "501", "503"]),
    ("delete", &["204", "404", "409", "501", "503"]),
    ("get", &["200", "404", "501", "503"]),
];

#[test]
fn each_status_of_a_record_is_documented_at_both_of_its_addresses() {
    let paths = &DOCUMENT["paths"];
    for (method, statuses) in OF_RECORDS {
        for path in ["/once/{key}", "/once"] {
            let responses = paths[path][method]["responses"].as_object().unwrap();
            let told: HashSet<_> = responses.keys().map(String::as_str).collect();
            // What every request may be told.
            let common = ["400", "401", "403", "414", "429", "431", "500", "501", "503"];
            let expected: HashSet<_> = statuses.iter().chain(&common).copied().collect();
            assert_eq!(told, expected, "{method} {path}");
        }
        let [by_path, by_query] =
            ["/once/{key}", "/once"].map(|path| paths[path][method]["responses"].clone());
        assert_eq!(by_path, by_query, "{method}");
    }
    let list = &paths["/records"]["get"]["responses"];
    assert!(["200", "403", "501", "503"].iter().all(|status| list[*status].is_object()), "{list}");
    // A look and a list tell of a result, and never the result.
    let record = DOCUMENT["components"]["schemas"]["Record"].to_string();
    for name in ["result", "body", "token", "fingerprint"] {
        assert!(!record.contains(&format!("\"{name}\":")), "{name}: {record}");
    }
    assert!(record.contains("\"result_bytes\":"), "{record}");
}

#[test]
fn a_result_is_the_only_body_and_is_any_bytes() {
    for (path, method, operation) in operations() {
        let body = operation.get("requestBody");
        assert_eq!(body.is_some(), method == "post" && path.starts_with("/once"), "{method} {path}");
        let Some(body) = body else { continue };
        let types: Vec<_> = body["content"].as_object().unwrap().keys().collect();
        assert_eq!(types, ["application/octet-stream"], "{path}");
        assert_eq!(body["required"], true, "{path}");
        // So is what a begin is answered with, if the work is done. `application/json` with a schema for anything would take the type of
        // other answers from clients in TypeScript.
        let replay = &DOCUMENT["paths"][path]["put"]["responses"]["200"];
        let types: Vec<_> = replay["content"].as_object().unwrap().keys().collect();
        assert_eq!(types, ["application/octet-stream", "text/plain"], "{path}");
        for header in [
            "Lease-Token",
            "Fencing-Token",
            "Once",
            "Once-Status",
            "Once-Content-Type",
            "Once-Bytes",
            "Once-Stored-At",
            "Once-Kept-Until",
        ] {
            assert!(replay["headers"][header].is_object(), "{path}: {header}");
        }
        let granted = &DOCUMENT["paths"][path]["put"]["responses"]["201"]["headers"];
        for header in ["Lease-Token", "Fencing-Token", "Once", "Once-Earlier"] {
            assert!(granted[header].is_object(), "{path}: {header}");
        }
    }
}
