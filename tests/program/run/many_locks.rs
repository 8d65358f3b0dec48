//! `run` with several keys: all of them or none.

use std::collections::BTreeSet;
use std::time::Duration;

use super::kit::{Scene, is_held, waiters};
use super::shape::Recorder;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};

/// Prints what the command finds of each lock, and of one that stands alone.
const TELL: &str = "echo $LOCK_KEY_1 $LOCK_KEY_2 $LOCK_KEY_3 ${LOCK_KEY-none} ${FENCING_TOKEN-none}; \
                    echo $FENCING_TOKEN_1; echo $FENCING_TOKEN_2; echo $LOCK_SLOT_1$LOCK_SLOT_2";

#[tokio::test(flavor = "multi_thread")]
async fn the_command_runs_under_all_locks_and_finds_the_number_of_each() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let mut command = scene.command(&[
        "--slots",
        "3",
        "b",
        "a/c",
        "--",
        "sh",
        "-c",
        &format!("{TELL}; touch there; while [ ! -e over ]; do sleep 0.02; done"),
    ]);
    // What an earlier run has left in the environment is of other locks.
    command.env("LOCK_KEY", "old").env("FENCING_TOKEN", "7").env("LOCK_KEY_3", "old");
    let running = scene.launch(command);
    eventually("the command runs", async || scene.path("there").exists()).await;
    let seen = async |key: &str| client.get(&format!("/lock?key={key}")).send().await.expect(200).json();
    let numbers = [seen("b").await, seen("a/c").await].map(|lock| lock["fencing_token"].to_string());
    std::fs::write(scene.path("over"), "").unwrap();
    let ended = running.end().await.expect_silent(0);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(lines, ["b a/c none none", &numbers[0], &numbers[1], "11"]);
    for key in ["b", "a/c"] {
        assert_eq!(client.get(&format!("/lock?key={key}")).send().await.status, 404, "{key} was released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_busy_if_one_of_them_is_and_leaves_the_others_free() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/b?ttl=1m").send().await.expect(201);
    scene
        .run(&["--wait", "0s", "c", "b", "a", "--", "true"])
        .await
        .expect_line(75, &["the locks \"c\", \"b\", \"a\" are busy: \"b\": "]);
    for key in ["a", "c"] {
        assert_eq!(client.get(&format!("/locks/{key}")).send().await.status, 404, "{key} is free");
    }
    for (keys, named) in [(&["a", "a"][..], "twice"), (&["a", ""], "empty")] {
        let ended = scene.run(&[keys, &["--", "true"]].concat()).await;
        assert_eq!(ended.status, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(named), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_renewed_at_any_gateway_and_the_command_ends_with_the_first_that_is_lost() {
    let redis = RedisServer::start().await;
    let prefix = fresh_token();
    let args = ["--redis-prefix", &prefix];
    let (here, there) = (Gateway::on_redis(&redis, &args).await, Gateway::on_redis(&redis, &args).await);
    let scene = Scene::at(format!("http://{},http://{}", here.address, there.address));
    let client = Client::new(there.address);
    let running = scene.start(&["--ttl", "2s", "a", "b", "--", "sh", "-c", "touch there; exec sleep 60"]);
    eventually("the command runs", async || scene.path("there").exists()).await;
    let ends = async |key: &str| {
        let seen = client.get(&format!("/locks/{key}")).send().await.expect(200).json();
        seen["expires_at"].as_str().unwrap().to_owned()
    };
    // The other gateway renews them, too.
    drop(here);
    for key in ["a", "b"] {
        let mut seen = BTreeSet::new();
        eventually("it is renewed twice", async || {
            // Two looks at one lease may differ by a few milliseconds.
            seen.insert(ends(key).await[..20].to_owned());
            seen.len() > 2
        })
        .await;
    }
    client.delete("/locks/b?force=true").send().await.expect(204);
    running.end().await.expect_line(76, &["one of the locks \"a\", \"b\" was lost"]);
    eventually("the other is free", async || client.get("/locks/a").send().await.status == 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_locks_of_which_one_was_broken_it_does_not_say_that_none_was_held_at_the_end() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let script = "touch there; while [ ! -e over ]; do sleep 0.02; done; exit 3";
    // Nothing is renewed before the end.
    let running = scene.start(&["--ttl", "5m", "a", "b", "--", "sh", "-c", script]);
    eventually("the command runs", async || scene.path("there").exists()).await;
    client.delete("/locks/b?force=true").send().await.expect(204);
    std::fs::write(scene.path("over"), "").unwrap();
    let said = "at least one of the locks \"a\", \"b\" was not held any more at the end";
    running.end().await.expect_line(3, &[said]);
    assert_eq!(client.get("/locks/a").send().await.status, 404, "the other was released");
}

/// Whichever of the two is asked about first, and however late the other answer is.
#[tokio::test(flavor = "multi_thread")]
async fn that_one_cannot_be_renewed_does_not_hide_that_another_is_lost() {
    const TAKEN: &str = r#"{"token":"t","ttl_ms":3000,"locks":[{"key":"a","fencing_token":1},{"key":"b","fencing_token":2}]}"#;
    const AWAY: &str = r#"{"type":"/problems/store-unavailable","detail":"the store is away"}"#;
    const LOST: &str = r#"{"type":"/problems/not-held","detail":"no client holds the lock"}"#;
    let [now, never] = [0, 60].map(Duration::from_secs);
    for answers in [
        [(now, 503, AWAY), (now, 404, LOST)],
        [(now, 404, LOST), (now, 503, AWAY)],
        [(never, 503, AWAY), (now, 404, LOST)],
    ] {
        let told: Vec<_> = [(now, 201, TAKEN)].into_iter().chain(answers).collect();
        let recorder = Recorder::telling(&told).await;
        let scene = Scene::at(recorder.url());
        let ended = scene.run(&["--ttl", "3s", "a", "b", "--", "sleep", "60"]).await;
        ended.expect_line(76, &["no client holds the lock"]);
        let renewals = recorder.requests().iter().filter(|request| request.method == "PATCH").count();
        assert!((1..=2).contains(&renewals), "one round was enough: {renewals}");
    }
}

/// At the end of each request the locks that it has are given back, and others go first.
#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_asked_for_with_a_long_wait_also_at_several_gateways() {
    const HELD: &str = r#"{"type":"/problems/lock-held","detail":"held","key":"b","waiters":1,"position":1}"#;
    const TOO_LONG: &str = r#"{"type":"/problems/bad-parameter","detail":"too long","parameter":"wait"}"#;
    const TAKEN: &str = r#"{"token":"t","ttl_ms":30000,"locks":[{"key":"a","fencing_token":1},{"key":"b","fencing_token":2}]}"#;
    let now = Duration::ZERO;
    // The first request also shows whether there is a gateway. What is refused as too long is halved.
    for others in ["", ",http://127.0.0.1:9"] {
        let recorder = Recorder::telling(&[(now, 423, HELD), (now, 400, TOO_LONG), (now, 201, TAKEN)]).await;
        let scene = Scene::at(recorder.url() + others);
        scene.run(&["a", "b", "--", "true"]).await.expect_silent(0);
        let puts = recorder.requests().into_iter().filter(|request| request.method == "PUT");
        let wait =
            |target: &str| target.split('&').find_map(|one| one.strip_prefix("wait=").map(str::to_owned));
        let waits: Vec<_> = puts.filter_map(|put| wait(&put.target)).collect();
        assert_eq!(waits, ["1000ms", "45000ms", "22500ms"], "{others}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_while_it_waits_for_another_is_taken_once_more() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let holder = fresh_token();
    client.put("/locks/k?ttl=5m").token(&holder).send().await.expect(201);
    let running = scene.start(&["--ttl", "3s", "a", "k", "--", "echo", "mine"]);
    for _ in 0..2 {
        eventually("it has one and waits for the other", async || {
            is_held(&client, "a").await && waiters(&client).await == 1
        })
        .await;
        client.delete("/locks/a?force=true").send().await.expect(204);
    }
    eventually("it has the first once more", async || is_held(&client, "a").await).await;
    client.delete("/locks/k").token(&holder).send().await.expect(204);
    assert_eq!(running.end().await.expect_silent(0).stdout, "mine\n");
    assert!(!is_held(&client, "a").await && !is_held(&client, "k").await, "both are released");
}

/// The first is held while `run` waits for the other.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_longer_than_max_hold_is_no_refusal() {
    const HELD: &str = r#"{"type":"/problems/lock-held","detail":"held","key":"b","waiters":1,"position":1}"#;
    const OVER: &str =
        r#"{"type":"/problems/bad-parameter","detail":"over","parameter":"max_hold","key":"a"}"#;
    const TAKEN: &str = r#"{"token":"t","ttl_ms":2000,"locks":[{"key":"a","fencing_token":1},{"key":"b","fencing_token":2}]}"#;
    let now = Duration::ZERO;
    let recorder = Recorder::telling(&[(now, 423, HELD), (now, 400, OVER), (now, 201, TAKEN)]).await;
    let flags = ["--ttl", "2s", "--max-hold", "5s"];
    Scene::at(recorder.url()).run(&[&flags[..], &["a", "b", "--", "true"]].concat()).await.expect_silent(0);
    // Half of it is left for the command.
    let puts: Vec<_> = recorder.requests().into_iter().filter(|request| request.method == "PUT").collect();
    assert_eq!(puts.iter().filter(|put| put.target.contains("&wait=2500ms")).count(), 2, "{puts:?}");

    let gateway = Gateway::embedded(&[]).await;
    Client::new(gateway.address).put("/locks/k?ttl=5m").send().await.expect(201);
    let flags = ["--ttl", "1s", "--max-hold", "1s", "--wait", "3s"];
    let ended = Scene::on(&gateway).run(&[&flags[..], &["a", "k", "--", "true"]].concat()).await;
    ended.expect_line(75, &["the locks \"a\", \"k\" are busy: \"k\": "]);
}
