//! How much a key may do with records, and what becomes of those who wait when it is taken out.

use kit::metrics::{Scrape, metrics_address};
use kit::{Client, KeysFile, eventually, fresh_token};

use super::gateway;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_a_rate_for_records_as_for_locks() {
    let mut file = KeysFile::new();
    // One request in 1000 seconds, so that none comes back while the test runs.
    let slow = file.add("slow", "every_key = true\nallow = [\"once\", \"acquire\"]\nrate = 0.001\nburst = 5");
    let gateway = gateway(&file, &[]).await;
    let (client, token) = (Client::new(gateway.address), fresh_token());
    client.put("/once/k").key(&slow).token(&token).send().await.expect(201);
    client.patch("/once/k").key(&slow).token(&token).send().await.expect(200);
    client.post("/once/k").key(&slow).token(&token).body("done").send().await.expect(200);
    client.put("/once/k").key(&slow).send().await.expect(200);
    // Records and locks are of one rate.
    client.put("/locks/k").key(&slow).send().await.expect(201);
    for call in [
        client.put("/once/other"),
        client.post("/once/k").token(&token).body("done"),
        client.delete("/once/k").token(&token),
        client.put("/locks/other"),
    ] {
        call.key(&slow).send().await.expect_problem(429, "rate-limited");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_a_share_of_those_who_wait_for_records_and_locks_together() {
    let mut file = KeysFile::new();
    let allow = "every_key = true\nallow = [\"once\", \"acquire\"]";
    let small = file.add("small", &format!("{allow}\nmax_waiters = 1\nmax_ttl = \"10s\""));
    let large = file.add("large", allow);
    let gateway = gateway(&file, &["--metrics-listen", "127.0.0.1:0"]).await;
    let (client, numbers) = (Client::new(gateway.address), metrics_address(&gateway));
    let worker = fresh_token();
    client.put("/once/k?ttl=1h").key(&large).token(&worker).send().await.expect(201);
    client.put("/locks/held?ttl=1h").key(&large).send().await.expect(201);
    let wait = |address: &str, key: &str| {
        tokio::spawn(client.put(&format!("{address}?wait=30s&ttl=5s")).key(key).token(&fresh_token()).send())
    };
    let waiters = async |expected: f64| {
        eventually("so many wait", async || {
            Scrape::of(numbers).await.get("fencepost_once_waiters") == expected
        })
        .await;
    };
    let first = wait("/once/k", &small);
    waiters(1.0).await;
    for address in ["/once/k", "/once/other", "/locks/held"] {
        let refused = wait(address, &small).await.unwrap().expect_problem(429, "too-many-waiters");
        assert!(refused.json()["detail"].as_str().unwrap().contains("API key"), "{address}: {refused:?}");
    }
    let other = wait("/once/k", &large);
    waiters(2.0).await;
    // What does not wait goes on, and no lease is longer than the key's.
    client.put("/once/k").key(&small).send().await.expect_problem(423, "once-in-progress");
    let long = client.put("/once/long?ttl=11s").key(&small).send().await.expect_problem(400, "bad-parameter");
    assert_eq!(long.json()["parameter"], "ttl");
    client.post("/once/k").key(&large).token(&worker).body("done").send().await.expect(200);
    for waiting in [first, other] {
        assert_eq!(waiting.await.unwrap().expect(200).body, "done");
    }
    // It has its place again.
    client.put("/once/k2?ttl=1h").key(&large).token(&worker).send().await.expect(201);
    let again = wait("/once/k2", &small);
    waiters(1.0).await;
    again.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_out_is_told_no_result_also_where_it_waits() {
    let mut file = KeysFile::new();
    let (stays, goes) = (file.add_for_all("stays", "\"once\""), file.add_for_all("goes", "\"once\""));
    let gateway = gateway(&file, &["--metrics-listen", "127.0.0.1:0"]).await;
    let numbers = metrics_address(&gateway);
    let (client, worker, own) = (Client::new(gateway.address), fresh_token(), fresh_token());
    client.put("/once/k?ttl=1h").key(&stays).token(&worker).send().await.expect(201);
    client.put("/once/own?ttl=1h").key(&goes).token(&own).send().await.expect(201);
    let waiting = tokio::spawn(client.put("/once/k?wait=60s").key(&goes).send());
    eventually("it waits", async || Scrape::of(numbers).await.get("fencepost_once_waiters") == 1.0).await;
    file.remove("goes");
    file.write();
    gateway.signal("HUP");
    let refused = waiting.await.unwrap().expect_problem(401, "key-refused");
    assert!(refused.json()["detail"].as_str().unwrap().contains("revoked"), "{}", refused.json());
    let store = client.post("/once/own").key(&goes).token(&own).body("done");
    store.send().await.expect_problem(401, "key-refused");
    client.post("/once/k").key(&stays).token(&worker).body("done").send().await.expect(200);
    client.put("/once/k").key(&goes).send().await.expect_problem(401, "key-refused");
    assert_eq!(client.put("/once/k").key(&stays).send().await.expect(200).body, "done");
}
