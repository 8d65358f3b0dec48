//! Locks that are broken, through real gateways: at once, by the number of the grant, and never the next holder's.

use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::lost_replies::Scene;
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Answer, Client, Gateway, PATIENCE, Proxy, Stage, eventually, fresh_token, on_each_store, quorum};

on_each_store!(
    a_lock_is_broken_whoever_holds_it,
    a_number_keeps_a_request_from_ending_another_grant,
    a_lock_that_is_kept_after_its_release_is_broken_too,
    the_first_in_line_is_next,
    a_connection_that_held_the_lock_is_told,
    what_makes_no_sense_is_refused_and_breaks_nothing,
);

async fn break_it(client: &Client, key: &str) -> Answer {
    client.delete(&format!("/locks/{key}?force=true")).send().await
}

async fn a_lock_is_broken_whoever_holds_it(stage: Stage) {
    let client = stage.client();
    for address in ["/locks/k?", "/lock?key=k&"] {
        let token = fresh_token();
        let held = client.put("/locks/k?ttl=5m&owner=stuck").token(&token).send().await.expect(201);
        client.delete(&format!("{address}force=true")).send().await.expect(204);
        client.get("/locks/k").send().await.expect_problem(404, "not-held");
        client.patch("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
        let next = client.put("/locks/k").send().await.expect(201);
        assert!(next.fencing_token() > held.fencing_token());
        client.patch("/locks/k").token(&token).send().await.expect_problem(409, "held-by-another");
        client.delete("/locks/k").token(&next.token()).send().await.expect(204);
        // The log says who lost it.
        let number = held.fencing_token().to_string();
        let says = |line: &str| {
            line.contains("a lock was broken") && line.contains(&number) && line.contains("stuck")
        };
        stage.gateway.logs("the log says so", says).await;
    }
    break_it(&client, "k").await.expect_problem(404, "not-held");
}

async fn a_number_keeps_a_request_from_ending_another_grant(stage: Stage) {
    let client = stage.client();
    let first = client.put("/locks/k?ttl=5m").send().await.expect(201);
    let end_first = format!("/locks/k?force=true&fencing_token={}", first.fencing_token());
    client.delete(&end_first).send().await.expect(204);
    client.delete(&end_first).send().await.expect_problem(404, "not-held");
    let second = client.put("/locks/k?ttl=5m").send().await.expect(201);
    client.delete(&end_first).send().await.expect_problem(409, "held-by-another");
    let look = client.get("/locks/k").token(&second.token()).send().await.expect(200).json();
    assert_eq!(look["yours"], true);
}

async fn a_lock_that_is_kept_after_its_release_is_broken_too(stage: Stage) {
    let client = stage.client();
    let token = client.put("/locks/k?min_hold=5m&ttl=5m").send().await.expect(201).token();
    client.delete("/locks/k").token(&token).send().await.expect(204);
    client.put("/locks/k").send().await.expect_problem(423, "lock-held");
    break_it(&client, "k").await.expect(204);
    client.put("/locks/k").send().await.expect(201);
}

async fn the_first_in_line_is_next(stage: Stage) {
    let client = stage.client();
    let held = client.put("/locks/k?ttl=5m").send().await.expect(201);
    let waits =
        |owner: &str| tokio::spawn(client.put(&format!("/locks/k?ttl=5m&wait=15s&owner={owner}")).send());
    let line = async |count: u64| {
        eventually("they wait", async || client.get("/locks/k").send().await.json()["waiters"] == count)
            .await;
    };
    let first = waits("first");
    line(1).await;
    let second = waits("second");
    line(2).await;
    break_it(&client, "k").await.expect(204);
    let granted = timeout(PATIENCE, first).await.unwrap().unwrap().expect(201);
    assert!(granted.fencing_token() > held.fencing_token());
    assert_eq!(client.get("/locks/k").send().await.json()["owner"], "first");
    client.delete("/locks/k").token(&granted.token()).send().await.expect(204);
    timeout(PATIENCE, second).await.unwrap().unwrap().expect(201);
}

async fn a_connection_that_held_the_lock_is_told(stage: Stage) {
    let client = stage.client();
    // Long enough for a machine that is busy; it learns at its next renewal, after a third of it.
    let held =
        client.call("POST", "/hold?key=k&ttl=3s").header("Accept", "application/x-ndjson").open().await;
    assert_eq!(held.status(), 200);
    let mut body = held.into_body();
    break_it(&client, "k").await.expect(204);
    let next = client.put("/locks/k?ttl=5m").send().await.expect(201);
    let told = timeout(PATIENCE, async {
        let mut told = String::new();
        while let Some(Ok(frame)) = body.frame().await {
            told.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        told
    })
    .await
    .unwrap();
    let last = told.lines().last().unwrap();
    // It may have asked before somebody else took the lock.
    let reasons = ["held-by-another", "released"];
    assert!(last.contains("lost") && reasons.iter().any(|reason| last.contains(reason)), "{told}");
    // The end of its connection takes nothing from the next holder.
    let look = client.get("/locks/k").token(&next.token()).send().await.expect(200).json();
    assert_eq!(look["yours"], true);
}

async fn what_makes_no_sense_is_refused_and_breaks_nothing(stage: Stage) {
    let client = stage.client();
    let held = client.put("/locks/k?ttl=5m").send().await.expect(201);
    for (query, parameter) in [
        ("force=false", "force"),
        ("force=", "force"),
        ("force", "force"),
        ("force=TRUE", "force"),
        ("force=true&force=true", "force"),
        ("force=true&fencing_token=", "fencing_token"),
        ("force=true&fencing_token=0", "fencing_token"),
        ("force=true&fencing_token=9007199254740992", "fencing_token"),
        ("force=true&fencing_token=x", "fencing_token"),
        ("fencing_token=7", "fencing_token"),
    ] {
        let answer = client.delete(&format!("/locks/k?{query}")).send().await;
        assert_eq!(answer.expect_problem(400, "bad-parameter").json()["parameter"], parameter, "{query}");
    }
    for token in [held.token(), fresh_token()] {
        let both = client.delete("/locks/k?force=true").token(&token).send().await;
        assert_eq!(both.expect_problem(400, "bad-parameter").json()["parameter"], "force");
    }
    client.delete("/locks/k").send().await.expect_problem(400, "token-required");
    client
        .patch("/locks/k?force=true")
        .token(&held.token())
        .send()
        .await
        .expect_problem(400, "bad-parameter");
    client.patch("/locks/k").token(&held.token()).send().await.expect(200);
}

/// A lock that was granted, with what a command that breaks it says, and nothing else does.
async fn held(scene: &Scene, key: &str) -> (Answer, String) {
    // Each script's first call sends its text as well: that is not what is under test.
    scene.put("warm", "").await.expect(201);
    break_it(&scene.client, "warm").await.expect(204);
    let held = scene.put(key, "").await.expect(201);
    let number = held.fencing_token().to_string();
    (held, number)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_break_breaks_once() {
    let scene = Scene::start().await;
    for (name, fate, progress) in crate::lost_replies::failures() {
        let key = name.replace(' ', "-");
        let (first, number) = held(&scene, &key).await;
        let passage = scene.proxy.expect(&number, fate);
        break_it(&scene.client, &key).await.expect(204);
        assert_eq!(passage.progress(), progress, "{name}");
        scene.assert_free(&key, name).await;
        let next = scene.put(&key, "").await.expect(201);
        assert!(next.fencing_token() > first.fencing_token(), "{name}");
    }
}

/// A look shows first whose lease ends first, which is another.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_a_break_of_one_of_several_breaks_that_one_once() {
    let scene = Scene::start().await;
    held(&scene, "warm-too").await;
    for (name, fate, _) in crate::lost_replies::failures() {
        let key = name.replace(' ', "-");
        let share = async |ttl: &str| {
            let address = format!("/locks/{key}?slots=3&ttl={ttl}");
            scene.client.put(&address).token(&fresh_token()).send().await.expect(201)
        };
        let break_by = async |number: u64| {
            scene.client.delete(&format!("/locks/{key}?force=true&fencing_token={number}")).send().await
        };
        let (first, second) = (share("1m").await, share("2m").await);
        // Nobody has had this number.
        let none = first.fencing_token() - 1;
        scene.proxy.expect(&none.to_string(), fate.clone());
        break_by(none).await.expect_problem(409, "held-by-another");
        scene.proxy.expect(&second.fencing_token().to_string(), fate);
        break_by(second.fencing_token()).await.expect(204);
        break_by(second.fencing_token()).await.expect_problem(409, "held-by-another");
        let left = scene.client.get(&format!("/locks/{key}")).send().await.expect(200).json();
        assert_eq!(left["fencing_token"].as_u64(), Some(first.fencing_token()), "{name}");
        assert_eq!(left["held"], 1, "{name}");
    }
}

/// Without it, no log would tell which grant may have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_outcome_is_unknown_is_logged_as_such_with_the_number_and_the_owner_of_the_grant() {
    let scene = Scene::start().await;
    held(&scene, "warm-too").await;
    for (key, slots) in [("alone", 1), ("shared", 3)] {
        let put = scene.client.put(&format!("/locks/{key}?ttl=1h&owner=of-{key}&slots={slots}"));
        let number = put.send().await.expect(201).fencing_token();
        let named = if slots == 1 { String::new() } else { format!("&fencing_token={number}") };
        let mut passage = scene.proxy.expect(&number.to_string(), Fate::CutAfter);
        scene.proxy.set_closed_to_new(true);
        let call = scene.client.delete(&format!("/locks/{key}?force=true{named}"));
        call.send().await.expect_problem(503, "outcome-unknown");
        passage.reaches(Progress::Answered).await;
        scene.proxy.set_closed_to_new(false);
        let (number, owner) = (format!("\"fencing_token\":{number}"), format!("\"owner\":\"of-{key}\""));
        let is_its_line = |line: &str| {
            line.contains("\"it is not known whether a lock was broken\"")
                && line.contains(&number)
                && line.contains(&owner)
        };
        scene.gateway.logs("the line of the break", is_its_line).await;
        eventually("back", async || scene.client.get("/readyz").send().await.status == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_break_that_comes_late_ends_no_other_grant() {
    let scene = Scene::start().await;
    let (_, number) = held(&scene, "k").await;
    let gate = Gate::new();
    let mut late = scene.proxy.expect(&number, Fate::late(gate.clone()));
    // Its first copy is on its way for long, and the second does it.
    break_it(&scene.client, "k").await.expect(204);
    let next = scene.put("k", "").await.expect(201);
    assert!(late.progress() <= Progress::Seen, "it was to be late");
    gate.cancel();
    late.reaches(Progress::Answered).await;
    let look = scene.client.get("/locks/k").token(&next.token()).send().await.expect(200).json();
    assert_eq!(look["yours"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_changes_hands_before_the_break_arrives_is_not_broken() {
    let scene = Scene::start().await;
    let (first, number) = held(&scene, "k").await;
    let (message, answer) = (Gate::new(), Gate::new());
    answer.cancel();
    let mut passage = scene.proxy.expect(&number, Fate::Hold { message: message.clone(), answer });
    let breaking = tokio::spawn(scene.client.delete("/locks/k?force=true").send());
    passage.reaches(Progress::Seen).await;
    // Another gateway is not held up.
    let there = Gateway::on_redis(&scene.redis, &[]).await;
    let client = Client::new(there.address);
    client.delete("/locks/k").token(&first.token()).send().await.expect(204);
    let next = client.put("/locks/k?ttl=5m").send().await.expect(201);
    message.cancel();
    breaking.await.unwrap().expect_problem(409, "held-by-another");
    let look = client.get("/locks/k").token(&next.token()).send().await.expect(200).json();
    assert_eq!(look["yours"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_quorum_that_was_away_ends_the_grant_too() {
    let quorum = quorum::Quorum::start(3).await;
    let gateway = quorum.gateway(&["--store-timeout", "4s"]).await;
    let client = Client::new(gateway.address);
    quorum::asks_all(&gateway, &quorum).await;
    let held = client.put("/locks/k?ttl=2m").send().await.expect(201);
    for node in &quorum.nodes {
        eventually("all have it", async || quorum::has_lock(node, "k").await).await;
    }
    quorum.nodes[2].signal("STOP");
    break_it(&client, "k").await.expect(204);
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
    client.patch("/locks/k").token(&held.token()).send().await.expect_problem(404, "not-held");
    quorum.nodes[2].signal("CONT");
    eventually("it has ended everywhere", async || !quorum::has_lock(&quorum.nodes[2], "k").await).await;
    let next = client.put("/locks/k?ttl=2m").send().await.expect(201);
    assert!(next.fencing_token() > held.fencing_token());
    client.patch("/locks/k").token(&next.token()).send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_mended_too_late_does_not_bring_a_broken_lock_back() {
    let quorum = quorum::Quorum::start(3).await;
    let [first, second, third] = [0, 1, 2].map(|node| &quorum.nodes[node]);
    let proxy = Proxy::start(third.port(), Framing::Resp).await;
    let url = quorum::url_of(&[first.port(), second.port(), proxy.port()]);
    let gateway = Gateway::start(&["--store", &url, "--store-timeout", "4s"]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    quorum::counts(third).await;
    let held = client.put("/locks/k?ttl=2m").send().await.expect(201);
    let renew = async || client.patch("/locks/k?ttl=3m").token(&held.token()).send().await.expect(200);
    eventually("all have it", async || {
        // The gateway may have met one only now, or not have waited for it: then it is given the lock by a renewal.
        renew().await;
        quorum::has_lock(first, "k").await
            && quorum::has_lock(second, "k").await
            && quorum::has_lock(third, "k").await
    })
    .await;
    let name = third.keys().await.into_iter().find(|name| name.ends_with(":lock:k")).unwrap();
    // A server that lacks the lock is given it by a renewal. A script's first call sends its text too, and cannot be late.
    let _: () = third.command(&["DEL", &name]).await;
    renew().await;
    eventually("it has the lock again", async || quorum::has_lock(third, "k").await).await;
    let _: () = third.command(&["DEL", &name]).await;
    let gate = Gate::new();
    let mut late = proxy.expect(&held.fencing_token().to_string(), Fate::late(gate.clone()));
    renew().await;
    late.reaches(Progress::Seen).await;
    break_it(&client, "k").await.expect(204);
    eventually("the third one hears of it", async || {
        third.keys().await.iter().any(|name| name.contains(":freed:"))
    })
    .await;
    gate.cancel();
    late.reaches(Progress::Answered).await;
    assert!(!quorum::has_lock(third, "k").await, "it has the lock again");
}
