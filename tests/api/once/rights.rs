//! Who may do what with records, and that neither results nor fingerprints nor tokens are told to anybody else.

use super::{Pair, on_each_pair};
use kit::{Answer, Client, Gateway, KeysFile, eventually, fresh_token};

on_each_pair!(results_and_fingerprints_are_in_no_log_and_no_metric);

const ORDER: &str = "/once/a%2Forder";

async fn gateway(keys: &KeysFile) -> Gateway {
    keys.write();
    let flag = keys.flag();
    Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await
}

fn refused(answer: Answer, what: &str) {
    assert_eq!(answer.status, 403, "{what}: {}", answer.json());
    answer.expect_problem(403, "right-missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_right_reads_a_result() {
    let mut file = KeysFile::new();
    let once = file.add_for_all("once", "\"once\"");
    let others = file.add_for_all("others", "\"inspect\", \"list\", \"admin\", \"acquire\"");
    let gateway = gateway(&file).await;
    let client = Client::new(gateway.address);
    let (token, result) = (fresh_token(), fresh_token());
    client.put(ORDER).key(&once).token(&token).send().await.expect(201);
    refused(client.post(ORDER).key(&others).token(&token).body("forged").send().await, "store");
    client.post(ORDER).key(&once).token(&token).body(result.clone()).send().await.expect(200);
    for (what, call) in [
        ("begin", client.put(ORDER)),
        ("wait", client.put(&format!("{ORDER}?wait=1s"))),
        ("store", client.post(ORDER).token(&token).body("x")),
        ("renew", client.patch(ORDER).token(&token)),
        ("give up", client.delete(ORDER).token(&token)),
    ] {
        refused(call.key(&others).send().await, what);
    }
    for (address, right) in
        [(ORDER, "inspect"), ("/records", "list"), ("/locks", "list"), ("/metrics", "list")]
    {
        for method in ["GET", "HEAD"] {
            let answer = client.call(method, address).key(&others).send().await.expect(200);
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!text.contains(&result), "{right}: {text}");
            assert_eq!(
                client.call(method, address).key(&once).send().await.status,
                403,
                "{method} {address}"
            );
        }
    }
    // Nor does the right to begin break anything.
    let break_it = client.delete(&format!("{ORDER}?force=true"));
    refused(break_it.key(&once).send().await, "break");
    let read = client.put(ORDER).key(&once).send().await.expect(200);
    assert_eq!(read.body, result);
    client.delete(&format!("{ORDER}?force=true")).key(&others).send().await.expect(204);
    client.put(ORDER).send().await.expect_problem(401, "key-required");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_the_border_of_a_key_for_records_as_for_locks() {
    let mut file = KeysFile::new();
    let ours = file.add("ours", "prefixes = [\"a/\"]\nallow = [\"once\", \"list\", \"inspect\"]");
    let theirs = file.add("theirs", "prefixes = [\"b/\"]\nallow = [\"once\", \"list\"]");
    let gateway = gateway(&file).await;
    let client = Client::new(gateway.address);
    for (key, record) in [(&ours, "a/1"), (&ours, "a/2"), (&theirs, "b/1")] {
        client.put(&format!("/once?key={record}")).key(key).token(&fresh_token()).send().await.expect(201);
    }
    for (what, call) in [
        ("begin", client.put("/once?key=b/1")),
        ("a new one", client.put("/once?key=b/2")),
        ("store", client.post("/once?key=b/1").token(&fresh_token()).body("x")),
        ("look", client.get("/once?key=b/1")),
    ] {
        refused(call.key(&ours).send().await, what);
    }
    let names = async |key: &str, query: &str| {
        let list = client.get(&format!("/records{query}")).key(key).send().await.expect(200).json();
        let names = list["records"].as_array().unwrap().iter().map(|record| record["key"].clone());
        let mut names: Vec<_> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&ours, "").await, ["a/1", "a/2"]);
    assert_eq!(names(&theirs, "").await, ["b/1"]);
    assert_eq!(names(&ours, "?prefix=a/2").await, ["a/2"]);
    refused(client.get("/records?prefix=b/").key(&ours).send().await, "list");
    assert_eq!(
        client.get("/locks").key(&ours).send().await.expect(200).json()["locks"],
        serde_json::json!([])
    );
}

/// The body is not even read before.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_store_is_refused_before_the_body() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("looks", "\"inspect\"");
    let gateway = gateway(&file).await;
    for credentials in [format!("Authorization: Bearer {key}\r\n"), String::new()] {
        let request = format!(
            "POST /once/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLease-Token: {}\r\n{credentials}Content-Length: 60000\r\n\r\n",
            fresh_token()
        );
        let started = std::time::Instant::now();
        let answer = kit::http::parse(&kit::http::raw(gateway.address, request.as_bytes()).await);
        assert!([401, 403].contains(&answer.status), "{}", answer.status);
        assert!(started.elapsed() < std::time::Duration::from_secs(8), "it waited for the body");
    }
}

/// Whatever is remembered here is searched for in the log and the metrics when the gateway ends.
async fn results_and_fingerprints_are_in_no_log_and_no_metric(pair: Pair) {
    let client = pair.here();
    let (token, request, other) = (fresh_token(), fresh_token(), fresh_token());
    let put = |query: &str, request: &str| {
        client.put(&format!("/once/k?{query}")).token(&token).header("Once-Fingerprint", request)
    };
    put("ttl=1m&owner=me", &request).send().await.expect(201);
    put("", &other).send().await.expect_problem(422, "fingerprint-mismatch");
    put("", &format!("{other} ")).send().await;
    client.post("/once/k?keep=1s").token(&token).body(fresh_token()).send().await.expect(400);
    client.post("/once/k").token(&fresh_token()).body(fresh_token()).send().await.expect(409);
    client.post("/once/k").token(&token).body(fresh_token()).send().await.expect(200);
    client
        .post("/once/k")
        .token(&token)
        .body(fresh_token())
        .send()
        .await
        .expect_problem(409, "result-differs");
    put("", &request).send().await.expect(200);
    client.delete("/once/k?force=true").send().await.expect(204);
    let lines = async || pair.here.log().iter().filter(|line| line.contains("\"k\"")).count();
    eventually("each request has its line", async || lines().await >= 8).await;
    pair.here.logs("the break is told of", |line| line.contains("a record was broken")).await;
}
