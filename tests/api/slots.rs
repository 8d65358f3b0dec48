//! Locks that several hold: each row of the contract, on the wire.

use serde_json::{Value, json};

use crate::on_each::each_store_with_slots as each_store;
use kit::{Answer, Client, Gateway, fresh_token, quorum};

mod lines;

/// The two forms of the address.
const FORMS: [&str; 2] = ["/locks/k?", "/lock?key=k&"];

async fn takes(client: &Client, token: &str, query: &str) -> Answer {
    client.put(&format!("/locks/k?ttl=1m&{query}")).token(token).send().await
}

fn share(answer: &Answer) -> (Value, Value, Option<String>) {
    let body = answer.json();
    (body["slot"].clone(), body["slots"].clone(), answer.header("slot").map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_names_its_slot_and_a_refusal_says_how_many_hold() {
    each_store(async |client| {
        let tokens = [(); 3].map(|()| fresh_token());
        let first = takes(client, &tokens[0], "slots=2&owner=a").await.expect(201);
        assert_eq!(share(&first), (json!(1), json!(2), Some("1".to_owned())));
        let second = takes(client, &tokens[1], "slots=any").await.expect(201);
        assert_eq!(share(&second), (json!(2), json!(1000), Some("2".to_owned())));
        for form in FORMS {
            let refused = client.put(&format!("{form}slots=9")).send().await.expect_problem(423, "lock-held");
            let body = refused.json();
            assert_eq!(
                (&body["held"], &body["slots"], &body["holder"]["owner"]),
                (&json!(2), &json!(2), &json!("a"))
            );
        }
        // The token knows its slot, and only that is renewed and released.
        let renewed = client.patch("/locks/k?ttl=2m").token(&tokens[1]).send().await.expect(200);
        assert_eq!(share(&renewed).0, json!(2));
        client
            .patch("/locks/k?ttl=2m&slots=2")
            .token(&tokens[1])
            .send()
            .await
            .expect_problem(400, "bad-parameter");
        client.delete("/locks/k").token(&tokens[0]).send().await.expect(204);
        client.delete("/locks/k").token(&fresh_token()).send().await.expect_problem(409, "held-by-another");
        let next = takes(client, &tokens[2], "slots=2").await.expect(201);
        assert_eq!(share(&next).0, json!(1), "the smallest that is free");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_it_is_told_once_and_by_name_if_asked_for() {
    each_store(async |client| {
        let tokens = [(); 2].map(|()| fresh_token());
        takes(client, &tokens[0], "slots=3&owner=a").await.expect(201);
        client.put("/locks/k?ttl=10s&slots=5&owner=b").token(&tokens[1]).send().await.expect(201);
        let seen = client.get("/locks/k").send().await.expect(200).json();
        assert_eq!((&seen["owner"], &seen["held"], &seen["slots"]), (&json!("b"), &json!(2), &json!(3)));
        assert!(seen["slot"].is_null() && seen["holders"].is_null(), "{seen}");
        let own = client.get("/locks/k").token(&tokens[0]).send().await.expect(200).json();
        assert_eq!((&own["owner"], &own["slot"], &own["yours"]), (&json!("a"), &json!(1), &json!(true)));
        let named = client.get("/lock?key=k&holders=true").send().await.expect(200).json();
        let holders = named["holders"].as_array().unwrap();
        let of = |holder: &Value| (holder["owner"].clone(), holder["slot"].clone(), holder["slots"].clone());
        assert_eq!(of(&holders[0]), (json!("b"), json!(2), json!(5)));
        assert_eq!(of(&holders[1]), (json!("a"), json!(1), json!(3)));
        assert!(!named.to_string().contains(&tokens[0]));
        let list = client.get("/locks").send().await.expect(200).json();
        assert_eq!(list["locks"].as_array().unwrap().len(), 1);
        assert!(list["locks"][0]["slot"].is_null() && list["locks"][0]["held"].is_null(), "{list}");
    })
    .await;
}

/// A slot that was released, and is kept for its `min_hold`, says nothing of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_which_one_slot_was_released_is_not_told_as_released() {
    each_store(async |client| {
        let tokens = [(); 2].map(|()| fresh_token());
        client
            .put("/locks/k?ttl=30s&min_hold=30s&slots=3&owner=a")
            .token(&tokens[0])
            .send()
            .await
            .expect(201);
        client.put("/locks/k?ttl=10m&slots=3&owner=b").token(&tokens[1]).send().await.expect(201);
        client.delete("/locks/k").token(&tokens[0]).send().await.expect(204);
        for form in ["/locks/k", "/lock?key=k"] {
            let seen = client.get(form).send().await.expect(200).json();
            assert_eq!((&seen["owner"], &seen["held"]), (&json!("b"), &json!(2)), "{seen}");
            assert!(seen["released"].is_null(), "{seen}");
        }
        let named = client.get("/locks/k?holders=true").send().await.expect(200).json();
        assert_eq!(
            (&named["holders"][0]["released"], &named["holders"][1]["owner"]),
            (&json!(true), &json!("b"))
        );
        let list = client.get("/locks").send().await.expect(200).json();
        assert!(list["locks"][0]["owner"].is_null() && list["locks"][0]["released"].is_null(), "{list}");
        client.delete("/locks/k").token(&tokens[1]).send().await.expect(204);
        let kept = client.get("/locks/k").send().await.expect(200).json();
        assert_eq!((&kept["held"], &kept["released"]), (&json!(1), &json!(true)), "no slot has a holder");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_grant_that_is_named_is_broken() {
    each_store(async |client| {
        let tokens = [(); 2].map(|()| fresh_token());
        let first = takes(client, &tokens[0], "slots=2").await.expect(201);
        takes(client, &tokens[1], "slots=2").await.expect(201);
        let number = first.json()["fencing_token"].as_u64().unwrap();
        client.delete("/locks/k?force=true").send().await.expect_problem(409, "held-by-several");
        let broken = format!("/locks/k?force=true&fencing_token={number}");
        client.delete(&broken).send().await.expect(204);
        client.delete(&broken).send().await.expect_problem(409, "held-by-another");
        client.patch("/locks/k").token(&tokens[0]).send().await.expect_problem(409, "held-by-another");
        client.patch("/locks/k").token(&tokens[1]).send().await.expect(200);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_asks_for_less_company_than_it_has_is_refused() {
    each_store(async |client| {
        let token = fresh_token();
        takes(client, &token, "slots=5").await.expect(201);
        takes(client, &token, "slots=4").await.expect_problem(409, "held-otherwise");
        takes(client, &token, "").await.expect_problem(409, "held-otherwise");
        assert_eq!(share(&takes(client, &token, "slots=6").await.expect(200)).1, json!(5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_slots_is_bare_and_within_its_bounds() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    for wrong in ["0", "1001", "05", "+5", "5.0", "-1", "", "all", "5,", "65541"] {
        let refused = client.put(&format!("/locks/k?slots={wrong}")).send().await;
        let body = refused.expect_problem(400, "bad-parameter").json();
        assert_eq!(body["parameter"], "slots", "{wrong}");
    }
    client.put("/locks/k?slots=1000").send().await.expect(201);
}

/// An exclusive lock is told as ever, also where `slots=1` was said.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_slots_is_said_of_a_lock_that_excludes_all_others() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let granted = client.put("/locks/k?slots=1&ttl=1m").send().await.expect(201);
    assert!(granted.header("slot").is_none());
    let refused = client.put("/locks/k?slots=5").send().await.expect_problem(423, "lock-held");
    let seen = client.get("/locks/k?holders=true").send().await.expect(200);
    for answer in [granted, refused, seen] {
        for field in ["slot", "slots", "held", "holders"] {
            assert!(answer.json()[field].is_null(), "{field}: {}", answer.json());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_count_says_so_and_is_not_asked() {
    let gateway = quorum::shared().await.gateway(&["--redis-prefix", &fresh_token()]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    client.put("/locks/k?slots=2").send().await.expect_problem(501, "mode-not-available");
    let is_no_warning = |line: &str| line.contains("mode-not-available") && line.contains("\"INFO\"");
    gateway.logs("it is logged as a refusal", is_no_warning).await;
    client.put("/locks/k?slots=0").send().await.expect_problem(400, "bad-parameter");
    client.put("/locks/k?slots=1").send().await.expect(201);
}
