//! What refuses a hold: as with a `PUT`, and before any status line.

use std::collections::HashSet;

use super::{Pair, hold, stand};
use kit::document::DOCUMENT;
use kit::http::{parse, raw};
use kit::{Answer, Client, Gateway, KeysFile, Stage, eventually, fresh_token, quorum};

/// An answer, in short.
fn describe(answer: &Answer) -> String {
    let problem = answer.json()["type"].as_str().unwrap().trim_start_matches("/problems/").to_owned();
    format!("{} {problem}", answer.status)
}

/// What the document says that may refuse a hold, where no API keys are in use.
fn documented() -> HashSet<String> {
    let responses = DOCUMENT["paths"]["/hold"]["post"]["responses"].as_object().unwrap();
    let problems = responses.iter().filter(|(status, _)| *status != "200").flat_map(|(status, response)| {
        let examples = response["content"]["application/problem+json"]["examples"].as_object().unwrap();
        examples.keys().map(move |name| format!("{status} {name}"))
    });
    const WITH_KEYS: [&str; 5] = [
        "401 key-required",
        "401 key-refused",
        "403 right-missing",
        "429 rate-limited",
        "429 too-many-locks",
    ];
    problems.filter(|problem| !WITH_KEYS.contains(&problem.as_str())).collect()
}

fn post(client: &Client, query: &str) -> kit::http::Call {
    client.call("POST", &format!("/hold?{query}"))
}

/// The answers of a gateway at which one may hold and one may wait, and that stops while one waits.
async fn crowd_out() -> Vec<Answer> {
    let gateway = Gateway::start(&["--store", "memory:", "--max-holds", "2", "--max-waiters", "1"]).await;
    let client = Client::new(gateway.address);
    let _holder = hold(&client, "ttl=1h").await;
    let waiting = tokio::spawn(post(&client, "key=k&wait=15s").send());
    stand(&client, 1).await;
    let mut answers = vec![post(&client, "key=other").send().await];
    waiting.abort();
    stand(&client, 0).await;
    let waiting = tokio::spawn(client.put("/locks/k?wait=15s").send());
    stand(&client, 1).await;
    answers.push(post(&client, "key=k&wait=15s").send().await);
    waiting.abort();
    stand(&client, 0).await;
    let waiting = tokio::spawn(post(&client, "key=k&wait=15s").send());
    stand(&client, 1).await;
    gateway.signal("TERM");
    answers.push(waiting.await.unwrap());
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_refuses_a_put_refuses_a_hold_before_any_status_line() {
    let mut missing = documented();
    // Only a fault of the program gives it.
    assert!(missing.remove("500 internal-error"));
    // It takes thousands of requests: `facades::dapr` has them.
    assert!(missing.remove("429 too-many-results"));
    let mut answers = crowd_out().await;
    let stage = Stage::redis_with(&["--replicas-ack", "1"]).await;
    answers.push(post(&stage.client(), "key=k").send().await);

    let cannot_count = quorum::shared().await.gateway(&["--redis-prefix", &fresh_token()]).await;
    answers.push(post(&Client::new(cannot_count.address), "key=k&slots=2").send().await);
    let stage = Stage::redis_with(&["--store-timeout", "400ms"]).await;
    let client = stage.client();
    let reader = fresh_token();
    client.put("/locks/shared?slots=2").token(&reader).send().await.expect(201);
    answers.push(post(&client, "key=shared").token(&reader).send().await);
    client.put("/locks/held?owner=somebody").send().await.expect(201);
    let refused = post(&client, "key=held").send().await.expect_problem(423, "lock-held");
    assert_eq!(refused.json()["holder"]["owner"], "somebody");
    assert!(refused.header("retry-after").is_some());
    answers.push(refused);
    answers.push(post(&client, "key=held&wait=200ms").send().await.expect(423));
    let own = fresh_token();
    client.put("/locks/own").token(&own).send().await.expect(201);
    client.delete("/locks/own").token(&own).send().await.expect(204);
    answers.push(post(&client, "key=own").token(&own).send().await);
    for query in
        ["key=k&ttl=500ms", "key=k&ttl=1h&max_hold=1m", "key=k&min_hold=3h&max_hold=2h", "key=k&tll=5s"]
    {
        answers.push(post(&client, query).send().await.expect_problem(400, "bad-parameter"));
    }
    answers.push(post(&client, "ttl=5s").send().await);
    answers.push(post(&client, "key=k").token("short").send().await);
    answers.push(post(&client, "key=k").body("{}").send().await);
    answers.push(post(&client, "key=k").header("Origin", "https://evil.example").send().await);
    answers.push(post(&client, "key=k").header("Host", "evil.example").send().await);
    let two_ways = b"POST /hold?key=k#1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    answers.push(parse(&raw(stage.gateway.address, two_ways).await));
    answers.push(post(&client, &format!("key={}", "k".repeat(9_000))).send().await);
    answers.push(post(&client, "key=k").header("X-Long", "x".repeat(17_000)).send().await);

    let redis = stage.redis.as_ref().unwrap();
    redis.signal("STOP");
    answers.push(post(&client, "key=k").send().await);
    eventually("the outage is known", async || {
        answers.push(post(&client, "key=k").send().await);
        answers.last().is_some_and(|answer| describe(answer) == "503 store-unavailable")
    })
    .await;
    for answer in answers {
        missing.remove(&describe(&answer));
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_nothing_but_posted() {
    let pair = Pair::embedded().await;
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        let refused = pair.here().call(method, "/hold?key=k").send().await;
        let refused = refused.expect_problem(405, "method-not-allowed");
        assert_eq!(refused.header("allow"), Some("POST"));
    }
    pair.here().call("HEAD", "/hold?key=k").send().await.expect(405);
    assert!(super::is_free(&pair.here()).await);
}

/// By HTTP/1 each of them keeps a connection, and others need some too.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_hold_leave_connections_to_others() {
    let gateway = Gateway::start(&[
        "--store",
        "memory:",
        "--max-connections",
        "12",
        "--max-connections-per-address",
        "12",
    ])
    .await;
    let client = Client::new(gateway.address);
    let mut holds = Vec::new();
    for number in 0..9 {
        holds.push(client.call("POST", &format!("/hold?key={number}&ttl=1h")).open().await);
    }
    for _ in 0..2 {
        post(&client, "key=other").send().await.expect_problem(429, "too-many-holds");
    }
    client.put("/locks/other?wait=1s").send().await.expect_problem(429, "too-many-waiters");
    client.put("/locks/other").send().await.expect(201);
    drop(holds);
    eventually("there is room again", async || {
        let held = client.call("POST", "/hold?key=more").open().await;
        held.status() == 200
    })
    .await;
}

/// Pages of a site that is allowed may hold locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_allowed_site_may_hold_a_lock() {
    let gateway = Gateway::start(&["--store", "memory:", "--cors-origin", "https://app.example"]).await;
    let client = Client::new(gateway.address);
    let preflight = client
        .call("OPTIONS", "/hold?key=k")
        .header("Origin", "https://app.example")
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "lease-token")
        .send()
        .await
        .expect(200);
    assert!(preflight.header("access-control-allow-methods").unwrap().contains("POST"));
    let held = client.call("POST", "/hold?key=k").header("Origin", "https://app.example").open().await;
    assert_eq!(held.status(), 200);
    assert_eq!(held.headers()["access-control-allow-origin"], "https://app.example");
}

/// So a key is told that may have none: as with a `PUT`.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_one_lock_by_a_key_that_may_have_none_is_beyond_its_limit() {
    let mut keys = KeysFile::new();
    let [holds, locks] = ["holds", "locks"]
        .map(|limit| keys.add(limit, &format!("every_key = true\nallow = [\"acquire\"]\nmax_{limit} = 0")));
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path]).await;
    let client = Client::new(gateway.address);
    post(&client, "key=k").key(&holds).send().await.expect_problem(429, "too-many-holds");
    for token in [None, Some(fresh_token())] {
        let of = |call: kit::http::Call| match &token {
            Some(token) => call.key(&locks).token(token),
            None => call.key(&locks),
        };
        of(post(&client, "key=k")).send().await.expect_problem(429, "too-many-locks");
        of(client.put("/locks/k")).send().await.expect_problem(429, "too-many-locks");
    }
    post(&client, "key=k&key=l").key(&holds).send().await.expect_problem(400, "bad-parameter");
}
