//! Dapr's locks over HTTP: what its SDK for Node sends, and what it makes of the answers.

use futures_util::future::join_all;
use kit::document::DOCUMENT;
use kit::http::raw_call;
use kit::metrics::Scrape;
use kit::{Client, Gateway, RedisServer, eventually, h2};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::listed;
use crate::on_each::each_store_and;

async fn lock(client: &Client, owner: &str, expiry_s: i64) -> Value {
    let body =
        json!({ "resourceId": "order 7", "lockOwner": owner, "expiryInSeconds": expiry_s }).to_string();
    client.post("/v1.0-alpha1/lock/orders").body(body).send().await.expect(200).json()["success"].clone()
}

async fn unlock(client: &Client, owner: &str) -> Value {
    let body = json!({ "resourceId": "order 7", "lockOwner": owner }).to_string();
    client.post("/v1.0-alpha1/unlock/orders").body(body).send().await.expect(200).json()["status"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_locks_and_unlocks_by_name() {
    each_store_and(&["--dapr"], async |client| {
        assert_eq!(unlock(client, "ann").await, 1, "nobody holds it");
        assert_eq!(lock(client, "ann", 60).await, true);
        assert_eq!(lock(client, "ann", 60).await, false, "as in Dapr's own stores");
        assert_eq!(lock(client, "ben", 60).await, false);
        let [(key, owner)] = &listed(client).await[..] else { panic!() };
        assert!(key == "dapr:orders:order 7" && owner.starts_with("ann "), "{key} {owner}");
        assert_eq!(unlock(client, "ben").await, 2);
        assert_eq!(unlock(client, "ann").await, 0);
        assert_eq!(unlock(client, "ann").await, 1);
        // The name is used again.
        assert_eq!(lock(client, "ann", 60).await, true);
        assert_eq!(unlock(client, "ann").await, 0);
        assert_eq!(lock(client, "a b", 1).await, true);
        eventually("the lock expires", async || lock(client, "ben", 60).await == true).await;
        assert_eq!(unlock(client, "a b").await, 2);
        assert_eq!(unlock(client, "ben").await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_min_hold_keeps_is_held_by_no_owner() {
    each_store_and(&["--dapr"], async |client| {
        let key = "/lock?key=dapr:orders:order+7";
        let put = client.put(&format!("{key}&ttl=1m&min_hold=50s&owner=w")).send().await.expect(201);
        assert_eq!(unlock(client, "ann").await, 2);
        client.delete(key).token(&put.token()).send().await.expect(204);
        assert_eq!(unlock(client, "ann").await, 1);
        assert_eq!(lock(client, "ann", 60).await, false);
    })
    .await;
}

/// Each has the status 200.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_one_in_the_log_and_in_the_metrics() {
    let gateway = Gateway::start(&["--store", "memory:", "--dapr"]).await;
    let client = Client::new(gateway.address);
    assert_eq!(unlock(&client, "ann").await, 1);
    assert_eq!(lock(&client, "ann", 60).await, true);
    assert_eq!(lock(&client, "ben", 60).await, false);
    assert_eq!(unlock(&client, "ben").await, 2);
    assert_eq!(unlock(&client, "ann").await, 0);
    for (problem, route) in [("not-held", "unlock"), ("lock-held", "lock"), ("held-by-another", "unlock")] {
        let operation = if route == "lock" { "facade-acquire" } else { "facade-release" };
        let route = format!("/v1.0-alpha1/{route}/{{store}}");
        let what = format!("{problem} is in the log");
        gateway.logs(&what, |line| line.contains(problem) && line.contains(&route)).await;
        let counted = async || Scrape::of(gateway.address).await.requests(operation, problem) == 1.0;
        eventually("it is counted", counted).await;
    }
    for operation in ["facade-acquire", "facade-release"] {
        let counted = async || Scrape::of(gateway.address).await.requests(operation, "ok") == 1.0;
        eventually("what was done is counted", counted).await;
    }
}

/// Else they fill the memory of the gateway, and cost their clients nothing.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_take_no_more_than_a_share_of_the_memory() {
    let gateway = Gateway::start(&["--store", "memory:", "--dapr", "--allow-host", "t"]).await;
    let client = Client::new(gateway.address);
    let mut open = Vec::new();
    // Each takes 8 KiB from its first byte on, and those of an address may take 16 MiB: 2,048 of these 2,160.
    for _ in 0..9 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let mut bytes = [h2::PREFACE, &h2::frame(h2::SETTINGS, 0, 0, &[])].concat();
        for number in (1..480).step_by(2) {
            let head = h2::header_block("POST", "/v1.0-alpha1/lock/orders");
            bytes.extend(h2::frame(h2::HEADERS, h2::END_HEADERS, number, &head));
            // Many frames that are smaller end their connection.
            bytes.extend(h2::frame(h2::DATA, 0, number, &[b' '; 256]));
        }
        stream.write_all(&bytes).await.unwrap();
        open.push(stream);
    }
    let body = json!({ "resourceId": "other", "lockOwner": "ann", "expiryInSeconds": 60 }).to_string();
    let ask = async || client.post("/v1.0-alpha1/lock/orders").body(body.clone()).send().await.status;
    eventually("the address has its share", async || ask().await == 429).await;
    // Nor is it waited for the end of a body that should not be there, as the document says of each request that has none.
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let problems = |status: &str| {
                &operation["responses"][status]["content"]["application/problem+json"]["examples"]
            };
            if problems("400")["unexpected-body"].is_null() {
                continue;
            }
            let has_query = !path.contains("{key}") && !["/locks", "/records"].contains(&path.as_str());
            let target = path.replace("{key}", "k") + if has_query { "?key=k" } else { "" };
            let chunked = "Transfer-Encoding: chunked\r\n";
            let refused = raw_call(gateway.address, &method.to_uppercase(), &target, chunked).await;
            refused.expect_problem(429, "too-many-results");
            assert!(problems("429")["too-many-results"].is_object(), "{method} {path}");
        }
    }
    // All others are served.
    client.get("/locks/k").send().await.expect(404);
    drop(open);
    eventually("there is room again", async || ask().await == 200).await;
}

/// Copies of its request, which arrive at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_not_told_that_another_holds_what_it_has_just_unlocked() {
    each_store_and(&["--dapr"], async |client| {
        for _ in 0..20 {
            assert_eq!(lock(client, "ann", 60).await, true);
            let mut statuses = join_all((0..4).map(|_| unlock(client, "ann"))).await;
            statuses.sort_by_key(Value::as_u64);
            assert_eq!(statuses[0], 0);
            assert!(statuses.iter().all(|status| *status == 0 || *status == 1), "{statuses:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_unlocks_at_another_gateway() {
    let redis = RedisServer::start().await;
    let mut gateway = Gateway::on_redis(&redis, &["--dapr"]).await;
    assert_eq!(lock(&Client::new(gateway.address), "ann", 60).await, true);
    gateway.kill();
    let gateway = Gateway::on_redis(&redis, &["--dapr"]).await;
    assert_eq!(unlock(&Client::new(gateway.address), "ann").await, 0);
}

/// What says its owner's name was taken in another way: its token is not ours to make.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_only_looks_like_the_owners_stays() {
    let gateway = Gateway::start(&["--store", "memory:", "--dapr"]).await;
    let client = Client::new(gateway.address);
    // What ann has released before, too.
    assert_eq!(lock(&client, "ann", 60).await, true);
    let [(_, released)] = &listed(&client).await[..] else { panic!() };
    let released = released.replace(' ', "+");
    assert_eq!(unlock(&client, "ann").await, 0);
    for owner in ["ann", "ann+0123456789abcdef", "ann+", "", &released] {
        let put = client.put(&format!("/lock?key=dapr:orders:order+7&ttl=1m&owner={owner}"));
        let token = put.send().await.expect(201).token();
        assert_eq!(unlock(&client, "ann").await, 2, "{owner}");
        client.delete("/lock?key=dapr:orders:order+7").token(&token).send().await.expect(204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told_in_the_form_of_dapr() {
    let gateway = Gateway::start(&["--store", "memory:", "--dapr"]).await;
    let client = Client::new(gateway.address);
    let bad = async |address: &str, body: &str| {
        let answer = client.post(address).body(body.to_owned()).send().await;
        assert_eq!(
            (answer.status, answer.json()["errorCode"].as_str().unwrap()),
            (400, "ERR_MALFORMED_REQUEST"),
            "{body}"
        );
        assert!(answer.json()["message"].as_str().is_some());
    };
    let lock = "/v1.0-alpha1/lock/orders";
    for body in ["", "x", "{}", r#"{"resourceId":"7","lockOwner":"a"}"#] {
        bad(lock, body).await;
    }
    let long = "o".repeat(240);
    for (resource, owner, expiry_s) in [
        ("", "a", 10),
        ("7", "", 10),
        ("7", "a", 0),
        ("7", "a", -1),
        ("7", "a", 86_401),
        ("7", &long, 10),
        ("7", "a\nb", 10),
        ("7\n", "a", 10),
    ] {
        let body =
            json!({ "resourceId": resource, "lockOwner": owner, "expiryInSeconds": expiry_s }).to_string();
        bad(lock, &body).await;
    }
    bad("/v1.0-alpha1/lock/a%20b", r#"{"resourceId":"7","lockOwner":"a","expiryInSeconds":10}"#).await;
    assert!(listed(&client).await.is_empty());
    let body =
        json!({ "resourceId": "7", "lockOwner": "o".repeat(239), "expiryInSeconds": 86_400 }).to_string();
    assert_eq!(client.post(lock).body(body).send().await.expect(200).json(), json!({ "success": true }));
}
