//! What happens to a lock between its grant and the word of its replicas.

use super::{Scene, detail, gateway, servers};
use kit::proxy::{Fate, Framing, Gate, Passage, Progress};
use kit::{Client, Gateway, Proxy, eventually, fresh_token};

async fn proxied(args: &[&str]) -> (Scene, Proxy) {
    let (scene, proxy) = Scene::behind(async |port| Proxy::start(port, Framing::Resp).await, args).await;
    // Each script's first call sends its text as well: that is not what is under test.
    let token = fresh_token();
    scene.put("warm", Some(&token)).await.unwrap().expect(201);
    scene.client.delete("/locks/warm").token(&token).send().await.expect(204);
    (scene, proxy)
}

/// What becomes of the message by which the primary is asked whether it still has the lock.
fn ask(proxy: &Proxy, key: &str, fate: Fate) -> Passage {
    proxy.expect(&format!("lock:{key}"), Fate::Pass);
    proxy.expect(&format!("lock:{key}"), fate)
}

fn held_back(gate: &Gate) -> Fate {
    Fate::Hold { message: gate.clone(), answer: gate.clone() }
}

/// Between the grant and the question the server forgets all: what it no longer has is not handed out.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_before_it_is_acknowledged_is_not_told() {
    let (scene, proxy) = proxied(&["--store-timeout", "10s"]).await;
    let gate = Gate::new();
    let mut asked = ask(&proxy, "k", held_back(&gate));
    let put = scene.put("k", None);
    asked.reaches(Progress::Seen).await;
    let _: () = scene.primary.command(&["FLUSHALL"]).await;
    gate.cancel();
    let answer = put.await.unwrap().expect_problem(503, "not-replicated");
    assert!(detail(&answer).contains("lost"), "{}", answer.json());
    assert!(scene.is_free("k").await);
    scene.put("k", None).await.unwrap().expect(201);
}

/// Its successor on the same address is asked instead, over a connection that is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_with_its_server_is_not_told() {
    for token in [None, Some(fresh_token())] {
        let (mut scene, proxy) = proxied(&["--store-timeout", "10s"]).await;
        let gate = Gate::new();
        let mut asked = ask(&proxy, "k", held_back(&gate));
        let put = scene.put("k", token.as_deref());
        asked.reaches(Progress::Seen).await;
        scene.primary.restart().await;
        gate.cancel();
        let answer = put.await.unwrap();
        match token {
            None => drop(answer.expect_problem(503, "not-replicated")),
            // Another request of the same token might have been told that it holds the lock.
            Some(_) => drop(answer.expect_problem(503, "outcome-unknown")),
        }
        assert!(scene.is_free("k").await);
        let (client, replica) = (&scene.client, &scene.replicas[0]);
        eventually("all is well again", async || client.put("/locks/again").send().await.status != 503).await;
        assert!(replica.locks().await.contains_key("again"));
    }
}

/// Each is granted for a short while at first. What the client is told is to be safe for all of its ttl.
#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_told_for_no_longer_than_replicas_know() {
    for method in ["PUT", "POST"] {
        let (scene, proxy) = proxied(&[]).await;
        let several = match method {
            "PUT" => scene.client.put("/lock?key=a&key=b&ttl=1h"),
            _ => scene.client.post("/hold?key=a&key=b&ttl=1h"),
        };
        let gate = Gate::new();
        // The grant of the last one, the question to its replicas, and then the renewal.
        proxy.expect("lock:b", Fate::Pass);
        let mut lengthened = ask(&proxy, "b", held_back(&gate));
        let several = tokio::spawn(several.send());
        lengthened.reaches(Progress::Seen).await;
        scene.replicas[0].stand_still().await;
        gate.cancel();
        several.await.unwrap().expect_problem(503, "outcome-unknown");
        eventually("they are given back", async || scene.primary.locks().await.is_empty()).await;
        scene.replicas[0].signal("CONT");
        scene.client.put("/lock?key=a&key=b&ttl=1h").send().await.expect(201);
        let copies = scene.replicas[0].locks().await;
        assert!(["a", "b"].iter().all(|key| copies[*key].left_ms > 3_000_000), "{method}: {copies:?}");
    }
}

/// On such a connection the reply to one question could be taken for that to another, or never come.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_reply_is_not_used_again() {
    let (scene, proxy) = proxied(&[]).await;
    for fate in [Fate::HalfOpen, Fate::LoseAnswers, held_back(&Gate::new())] {
        let mut passage = proxy.expect("\r\nWAIT\r\n", fate);
        let token = fresh_token();
        scene.put("k", Some(&token)).await.unwrap().expect_problem(503, "not-replicated");
        passage.reaches(Progress::Seen).await;
        for _ in 0..3 {
            let token = scene.put("k", None).await.unwrap().expect(201).token();
            scene.client.delete("/locks/k").token(&token).send().await.expect(204);
        }
    }
}

/// The connection is lost around the question, and its answer is found over another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_around_the_question_is_mended() {
    let (scene, proxy) = proxied(&["--store-timeout", "10s"]).await;
    for fate in [Fate::CutBefore, Fate::CutWithin, Fate::CutDuring, Fate::CutAfter] {
        for text in ["lock:k", "\r\nWAIT\r\n"] {
            let what = format!("{fate:?} of {text:?}");
            let mut passage = match text {
                "lock:k" => ask(&proxy, "k", fate.clone()),
                _ => proxy.expect(text, fate.clone()),
            };
            let granted = scene.put("k", None).await.unwrap();
            assert_eq!(granted.status, 201, "{what}: {}", granted.json());
            passage.reaches(Progress::Seen).await;
            assert_eq!(scene.replicas[0].locks().await["k"].number, granted.fencing_token(), "{what}");
            scene.client.delete("/locks/k").token(&granted.token()).send().await.expect(204);
        }
    }
}

/// What cannot be undone in time is unknown, and is undone as soon as that is possible.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_cannot_be_taken_back_in_time_is_unknown() {
    let (scene, proxy) = proxied(&[]).await;
    scene.replicas[0].stand_still().await;
    let put = scene.put_that_waits("k", None).await;
    proxy.set_closed_to_new(true);
    let mut undone = proxy.expect("lock:k", Fate::CutBefore);
    let answer = put.await.unwrap().expect_problem(503, "outcome-unknown");
    undone.reaches(Progress::Seen).await;
    assert!(detail(&answer).contains("still releasing the lock"), "{}", answer.json());
    assert!(scene.primary.locks().await.contains_key("k"));
    proxy.set_closed_to_new(false);
    eventually("it is taken back", async || scene.primary.locks().await.is_empty()).await;
}

/// Within the deadline what is lost is sent again, over another connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_back_that_is_lost_is_repeated_in_time() {
    let (scene, proxy) = proxied(&["--store-timeout", "6s"]).await;
    scene.replicas[0].stand_still().await;
    for fate in [Fate::CutBefore, Fate::CutAfter] {
        let put = scene.put_that_waits("k", None).await;
        let mut undone = proxy.expect("lock:k", fate);
        put.await.unwrap().expect_problem(503, "not-replicated");
        undone.reaches(Progress::Seen).await;
        assert!(scene.primary.locks().await.is_empty());
    }
}

/// A look with the token, or a second request of it, promised the lock to its client: then it stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_its_client_was_promised_meanwhile_stays() {
    let scene = Scene::new(1, 1, &[]).await;
    scene.replicas[0].stand_still().await;
    let token = fresh_token();
    let put = scene.put_that_waits("k", Some(&token)).await;
    scene.client.get("/locks/k").token(&token).send().await.expect(200);
    let answer = put.await.unwrap().expect_problem(503, "outcome-unknown");
    assert!(detail(&answer).contains("gone when the gateway wanted to release it"), "{}", answer.json());
    let look = scene.client.get("/locks/k").token(&token).send().await.expect(200);
    scene.replicas[0].signal("CONT");
    let again = scene.put("k", Some(&token)).await.unwrap().expect(200);
    assert_eq!(again.fencing_token(), look.fencing_token());

    // A replica that speaks in time makes no difference between them.
    let (scene, token) = (Scene::new(1, 1, &super::PATIENT).await, fresh_token());
    scene.replicas[0].stand_still().await;
    let put = scene.put_that_waits("k", Some(&token)).await;
    scene.client.get("/locks/k").token(&token).send().await.expect(200);
    let twin = scene.put("k", Some(&token));
    scene.replicas[0].signal("CONT");
    let (granted, again) = (put.await.unwrap().expect(201), twin.await.unwrap().expect(200));
    assert_eq!(granted.fencing_token(), again.fencing_token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forbids_to_wait_is_said_to() {
    let (primary, _replicas) = servers(1).await;
    let _: () = primary.command(&["ACL", "SETUSER", "default", "-wait"]).await;
    let Err(said) = Gateway::try_start(&["--store", primary.url(), "--replicas-ack", "1"]).await else {
        panic!("it is not refused");
    };
    assert!(said.join("\n").contains("lacks permissions: wait"), "{said:?}");
    // Servers before 7.0 cannot be asked beforehand.
    let gateway = gateway(primary.url(), 1, &["--redis-accept", "missing-permission"]).await;
    let client = Client::new(gateway.address);
    let answer = client.put("/locks/k").send().await.expect_problem(503, "not-replicated");
    let said = detail(&answer);
    assert!(said.contains("NOPERM") && said.contains("wait"), "{said}");
    assert!(primary.locks().await.is_empty());
}

/// The primary is reached, and takes no further connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_replicas_cannot_be_asked_is_taken_back() {
    let (scene, proxy) = Scene::behind(async |port| Proxy::start(port, Framing::Resp).await, &[]).await;
    proxy.set_closed_to_new(true);
    let answer = scene.put("k", None).await.unwrap().expect_problem(503, "not-replicated");
    assert!(detail(&answer).contains("could not be asked"), "{}", answer.json());
    assert!(scene.primary.locks().await.is_empty());
    proxy.set_closed_to_new(false);
    scene.put("k", None).await.unwrap().expect(201);
}

/// A lease is counted from before its first command, however long its replicas take.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_before_it_is_acknowledged_is_not_told() {
    let scene = Scene::new(1, 1, &super::PATIENT).await;
    scene.replicas[0].stand_still().await;
    let before = scene.primary.calls("wait").await;
    let put = tokio::spawn(scene.client.put("/locks/k?ttl=500ms").send());
    // Only then has the primary said that it still has the lock.
    eventually("it is waited for", async || scene.primary.calls("wait").await > before).await;
    eventually("its lease is over", async || scene.primary.locks().await.is_empty()).await;
    scene.replicas[0].signal("CONT");
    put.await.unwrap().expect_problem(503, "store-unavailable");
}
