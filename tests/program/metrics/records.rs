//! The numbers of records.

use super::eventually_shows;
use kit::metrics::Scrape;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

#[tokio::test(flavor = "multi_thread")]
async fn every_request_for_a_record_is_counted_by_what_it_asked_for_and_what_became_of_it() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let stores = [Gateway::embedded(&[]).await, Gateway::on_redis(&redis, &[]).await];
    for gateway in &stores {
        of_gateway(gateway).await;
    }
}

async fn of_gateway(gateway: &Gateway) {
    let (client, address) = (Client::new(gateway.address), gateway.address);
    let put = |key: &str, query: &str, token: &str| client.put(&format!("/once/{key}?{query}")).token(token);
    let (first, second, third) = (fresh_token(), fresh_token(), fresh_token());
    put("a", "", &first).header("Once-Fingerprint", "one").send().await.expect(201);
    put("a", "", &first).header("Once-Fingerprint", "one").send().await.expect(201);
    put("a", "", &second).header("Once-Fingerprint", "one").send().await.expect(423);
    put("a", "", &second).header("Once-Fingerprint", "two").send().await.expect(422);
    put("a", "keep=1s", &first).send().await.expect(400);
    client.patch("/once?key=a").token(&first).send().await.expect(200);
    client.patch("/once/a").token(&second).send().await.expect(409);
    client.post("/once/a").token(&second).body("x").send().await.expect(409);
    client.post("/once/b").token(&first).body("x").send().await.expect(404);
    client.post("/once/a").token(&first).body("x").send().await.expect(200);
    client.post("/once/a").token(&first).body("x").send().await.expect(200);
    client.post("/once/a").token(&first).body("y").send().await.expect(409);
    client.patch("/once/a").token(&first).send().await.expect(409);
    put("a", "", &second).header("Once-Fingerprint", "one").send().await.expect(200);
    client.delete("/once/a").token(&first).send().await.expect(409);
    client.get("/once/a").send().await.expect(200);
    client.get("/once/b").send().await.expect(404);
    client.get("/records").send().await.expect(200);
    client.delete("/once/a?force=true").send().await.expect(204);
    client.delete("/once/b?force=true").send().await.expect(404);
    // Over a lapsed record.
    put("c", "ttl=300ms", &first).send().await.expect(201);
    eventually("it is lapsed", async || client.get("/once/c").send().await.json()["state"] == "lapsed").await;
    client.patch("/once/c").token(&first).send().await.expect(409);
    put("c", "takeover=false", &second).send().await.expect(409);
    client.post("/once/c").token(&first).body("late").send().await.expect(200);
    put("d", "ttl=1m", &second).send().await.expect(201);
    client.delete("/once/d").token(&second).send().await.expect(204);
    put("d", "", &second).send().await.expect(409);
    put("d", "", &third).send().await.expect(201);

    let expected = [
        ("begin", "begun", 3.0),
        ("begin", "continued", 1.0),
        ("begin", "taken-over", 1.0),
        ("begin", "replayed", 1.0),
        ("begin", "once-in-progress", 1.0),
        ("begin", "fingerprint-mismatch", 1.0),
        ("begin", "bad-parameter", 1.0),
        ("begin", "once-abandoned", 1.0),
        ("begin", "token-released", 1.0),
        ("once-renew", "continued", 1.0),
        ("once-renew", "superseded", 1.0),
        ("once-renew", "already-stored", 1.0),
        ("once-renew", "lease-over", 1.0),
        ("store", "stored", 2.0),
        ("store", "stored-late", 1.0),
        ("store", "superseded", 1.0),
        ("store", "not-begun", 1.0),
        ("store", "result-differs", 1.0),
        ("give-up", "ok", 1.0),
        ("give-up", "already-stored", 1.0),
        ("once-look", "not-begun", 1.0),
        ("records", "ok", 1.0),
        ("once-break", "ok", 1.0),
        ("once-break", "not-begun", 1.0),
    ];
    for (operation, outcome, count) in expected {
        let series = format!("{count} of {operation} are {outcome}");
        eventually_shows(address, &series, |scrape| scrape.requests(operation, outcome) == count).await;
    }
    let scrape = Scrape::of(address).await;
    assert!(scrape.requests("once-look", "ok") >= 2.0);
    for (operation, least) in [
        ("begin", 11.0),
        ("store", 6.0),
        ("once-renew", 4.0),
        ("give-up", 2.0),
        ("once-look", 3.0),
        ("records", 1.0),
    ] {
        let counted = scrape.get(&format!("fencepost_request_seconds_count{{operation=\"{operation}\"}}"));
        assert!(counted >= least, "{operation}: {counted}");
    }
    // Three were stored, one of them again.
    assert_eq!(scrape.get("fencepost_once_result_bytes_count"), 3.0);
}
