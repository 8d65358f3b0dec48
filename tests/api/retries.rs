//! Blind repetition over HTTP: what a client that chose its own token may rely on.

use std::time::Instant;

use kit::{PATIENCE, Stage, eventually, fresh_token, on_each_store};

on_each_store!(
    the_same_put_twice_is_the_same_grant,
    delete_twice_answers_the_same_and_a_late_put_is_refused,
    a_delete_that_comes_first_wins,
    a_put_after_expiry_is_a_new_grant,
    a_renewal_after_expiry_changes_nothing,
    a_renewal_by_a_stranger_changes_nothing,
    a_server_made_token_never_grants_anew,
    looking_does_not_lengthen_a_lease,
);

async fn the_same_put_twice_is_the_same_grant(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let first = client.put("/locks/k?ttl=30s&owner=me").token(&token).send().await.expect(201);
    let second = client.put("/locks/k?ttl=60s&owner=me").token(&token).send().await.expect(200);
    assert_eq!(first.fencing_token(), second.fencing_token());
    assert_eq!(first.token(), second.token());
    assert!(second.json()["ttl_ms"].as_u64().unwrap() > 50_000);
}

async fn delete_twice_answers_the_same_and_a_late_put_is_refused(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect(201);
    client.delete("/locks/k").token(&token).send().await.expect(204);
    client.delete("/locks/k").token(&token).send().await.expect(204);
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect_problem(409, "token-released");
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    // Also while another holds the lock the answer stays, and the other is left alone.
    let other = client.put("/locks/k?ttl=30s").send().await.expect(201);
    client.delete("/locks/k").token(&token).send().await.expect(204);
    assert_eq!(client.get("/locks/k").send().await.expect(200).fencing_token(), other.fencing_token());
}

async fn a_delete_that_comes_first_wins(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    client.delete("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect_problem(409, "token-released");
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    client.delete("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
}

async fn a_put_after_expiry_is_a_new_grant(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let first = client.put("/locks/k?ttl=1s").token(&token).send().await.expect(201).fencing_token();
    eventually("the lease ends", async || client.get("/locks/k").send().await.status == 404).await;
    let second = client.put("/locks/k?ttl=30s").token(&token).send().await.expect(201).fencing_token();
    assert!(second > first);
}

async fn a_renewal_after_expiry_changes_nothing(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    client.put("/locks/k?ttl=1s").token(&token).send().await.expect(201);
    eventually("the lease ends", async || client.get("/locks/k").send().await.status == 404).await;
    client.patch("/locks/k?ttl=30s").token(&token).send().await.expect_problem(404, "not-held");
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
}

async fn a_renewal_by_a_stranger_changes_nothing(stage: Stage) {
    let client = stage.client();
    let held = client.put("/locks/k?ttl=30s").send().await.expect(201);
    let stranger = fresh_token();
    client.patch("/locks/k?ttl=24h").token(&stranger).send().await.expect_problem(409, "held-by-another");
    let look = client.get("/locks/k").send().await.expect(200);
    assert_eq!(look.fencing_token(), held.fencing_token());
    assert!(look.json()["expires_in_ms"].as_u64().unwrap() <= 30_000);
}

async fn a_server_made_token_never_grants_anew(stage: Stage) {
    let client = stage.client();
    let granted = client.put("/locks/k?ttl=30s").send().await.expect(201);
    let token = granted.token();
    let confirmed = client.put("/locks/k?ttl=30s").token(&token).send().await.expect(200);
    assert_eq!(confirmed.fencing_token(), granted.fencing_token());
    client.delete("/locks/k").token(&token).send().await.expect(204);
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect_problem(409, "token-released");
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    client.put("/locks/k?ttl=30s").send().await.expect(201);
    client.put("/locks/k?ttl=30s").token(&token).send().await.expect_problem(423, "lock-held");
    // One that nobody ever made is no better.
    let invented = format!("~{}", fresh_token());
    client.put("/locks/free?ttl=30s").token(&invented).send().await.expect_problem(409, "token-released");
}

async fn looking_does_not_lengthen_a_lease(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let granted = Instant::now();
    client.put("/locks/k?ttl=2s").token(&token).send().await.expect(201);
    let looks =
        (0..4).map(async |_| while client.get("/locks/k").token(&token).send().await.status == 200 {});
    let looks = futures_util::future::join_all(looks);
    tokio::time::timeout(PATIENCE, looks).await.expect("the lease never ends");
    let lasted = granted.elapsed();
    // Whoever looks all the time sees the end at once, but for what a busy machine takes for one look.
    assert!((1_999..3_500).contains(&lasted.as_millis()), "{lasted:?}");
}
