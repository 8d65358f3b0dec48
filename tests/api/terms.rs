//! `max_hold` and `min_hold`, as clients see them.

use kit::{Stage, fresh_token, on_each_store};

on_each_store!(
    a_renewal_past_max_hold_is_cut_and_then_refused,
    a_lock_that_is_released_before_its_min_hold_is_said_to_be_kept,
    terms_are_accepted_at_their_edges_and_refused_beyond,
);

async fn a_renewal_past_max_hold_is_cut_and_then_refused(stage: Stage) {
    let client = stage.client();
    for address in ["/locks/k?", "/lock?key=q&"] {
        let token = fresh_token();
        let granted =
            client.put(&format!("{address}ttl=5s&max_hold=20s")).token(&token).send().await.expect(201);
        let renew = async || client.patch(&format!("{address}ttl=1h")).token(&token).send().await;
        let cut_ms = renew().await.expect(200).json()["ttl_ms"].as_u64().unwrap();
        assert!((10_000..=20_000).contains(&cut_ms), "{cut_ms}");
        let refused = renew().await.expect_problem(409, "max-hold-reached").json();
        assert_eq!(refused["holder"]["fencing_token"], granted.fencing_token());
        assert!(refused["holder"]["expires_in_ms"].as_u64().unwrap() <= 20_000, "{refused}");
        let seen = client.get(address).token(&token).send().await.expect(200).json();
        assert_eq!((&seen["yours"], seen.get("released")), (&true.into(), None), "it still holds the lock");
        let again = client.put(&format!("{address}ttl=1h")).token(&token).send().await.expect(200).json();
        assert!(again["ttl_ms"].as_u64().unwrap() <= 20_000, "{again}");
        client.delete(address).token(&token).send().await.expect(204);
    }
}

async fn a_lock_that_is_released_before_its_min_hold_is_said_to_be_kept(stage: Stage) {
    let client = stage.client();
    let token = fresh_token();
    let granted = client.put("/locks/k?ttl=30s&min_hold=20s&owner=me").token(&token).send().await.expect(201);
    for _ in 0..2 {
        client.delete("/locks/k").token(&token).send().await.expect(204);
    }
    let kept = client.get("/locks/k").token(&token).send().await.expect(200);
    assert_eq!(kept.fencing_token(), granted.fencing_token());
    let kept = kept.json();
    assert_eq!(
        (&kept["released"], &kept["yours"], &kept["owner"]),
        (&true.into(), &false.into(), &"me".into())
    );
    assert!((10_000..=20_000).contains(&kept["expires_in_ms"].as_u64().unwrap()), "{kept}");
    let refused = client.put("/locks/k").send().await.expect_problem(423, "lock-held").json();
    assert_eq!(refused["holder"]["released"], true, "{refused}");
    client.patch("/locks/k").token(&token).send().await.expect_problem(409, "token-released");
    client.put("/locks/k").token(&token).send().await.expect_problem(409, "token-released");
    // A token of the server's leaves no mark that would answer again; the lock that is kept does.
    let token = client.put("/locks/other?min_hold=20s").send().await.expect(201).token();
    for _ in 0..2 {
        client.delete("/locks/other").token(&token).send().await.expect(204);
    }
}

async fn terms_are_accepted_at_their_edges_and_refused_beyond(stage: Stage) {
    let client = stage.client();
    for (terms, parameter) in [
        ("max_hold=29999ms", "max_hold"),
        ("ttl=10s&max_hold=9s", "max_hold"),
        ("max_hold=366days1ms", "max_hold"),
        ("max_hold=60", "max_hold"),
        ("max_hold=1h&max_hold=2h", "max_hold"),
        ("min_hold=0s", "min_hold"),
        ("min_hold=24h1ms", "min_hold"),
        ("max_hold=1h&min_hold=3600001ms", "min_hold"),
        ("min_hold=soon", "min_hold"),
    ] {
        let answer =
            client.put(&format!("/locks/k?{terms}")).send().await.expect_problem(400, "bad-parameter");
        assert_eq!(answer.json()["parameter"], parameter, "{terms}");
    }
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    for method in ["PATCH", "DELETE", "GET"] {
        let call = client.call(method, "/locks/k?max_hold=1h").token(&fresh_token());
        call.send().await.expect_problem(400, "bad-parameter");
    }
    for (number, terms) in
        ["max_hold=30s", "max_hold=366days", "min_hold=1ms", "min_hold=24h", "max_hold=1h&min_hold=1h"]
            .into_iter()
            .enumerate()
    {
        client.put(&format!("/locks/edge-{number}?{terms}")).send().await.expect(201);
    }
}
