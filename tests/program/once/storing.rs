//! Storing the result: what it survives, and what is said if it is not stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Gateway, Proxy, eventually, fresh_token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::run::kit::{Running, Scene};

const UNTIL_LET_GO: &str = "echo run >>runs; echo out; while [ ! -e over ]; do sleep 0.02; done";

/// Starts work that goes on until it is let go, under a lease that needs no renewal meanwhile.
async fn begun(scene: &Scene) -> Running {
    let running = scene.start_work(&["--ttl", "2m"], UNTIL_LET_GO);
    scene.says("runs", "run").await;
    running
}

fn let_go(scene: &Scene) {
    std::fs::write(scene.path("over"), "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_away_while_the_result_is_stored_gets_it_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let running = begun(&scene).await;
    proxy.set_policy(|_| Fate::CutBefore);
    let mut post = proxy.expect("POST ", Fate::CutBefore);
    let_go(&scene);
    post.reaches(Progress::Seen).await;
    gateway.kill();
    let gateway = Gateway::on_file(&file, &[]).await;
    proxy.set_target(gateway.address.port());
    proxy.set_policy(|_| Fate::Pass);
    let ended = running.end().await.expect_silent(0);
    assert_eq!(ended.stdout, "out\n");
    let record = Client::new(gateway.address).get("/once/k").send().await.expect(200).json();
    assert_eq!((record["state"].as_str(), record["status"].as_u64()), (Some("done"), Some(0)));
}

/// As of a port that is forwarded to another server for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_ends_no_try_to_store_a_result() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let running = begun(&scene).await;
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    proxy.set_target(stranger.local_addr().unwrap().port());
    proxy.sever();
    let_go(&scene);
    let (mut connection, _) = stranger.accept().await.unwrap();
    connection.read_buf(&mut Vec::new()).await.unwrap();
    connection.write_all(b"\x15\x03\x01\x00\x02\x02\x46").await.unwrap();
    proxy.set_target(gateway.address.port());
    drop((connection, stranger));
    assert_eq!(running.end().await.expect_silent(0).stdout, "out\n");
    let record = Client::new(gateway.address).get("/once/k").send().await.expect(200).json();
    assert_eq!(record["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_whose_answer_was_lost_is_stored_once() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let mut cut = proxy.expect("POST ", Fate::CutAfter);
    scene.do_work(&[], "echo out").await.expect_silent(0);
    cut.reaches(Progress::Answered).await;
    let again = scene.do_work(&[], "echo other").await.expect_silent(0);
    assert_eq!(again.stdout, "out\n");
}

/// Another run would do the work again while this one has the result in hand.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_over_work_whose_result_cannot_be_stored_for_longer_than_its_lease() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let client = Client::new(gateway.address);
    let running = scene.start_work(&["--ttl", "5s"], UNTIL_LET_GO);
    scene.says("runs", "run").await;
    proxy.set_policy(|message| if message.starts_with(b"POST ") { Fate::CutBefore } else { Fate::Pass });
    let mut post = proxy.expect("POST ", Fate::CutBefore);
    let_go(&scene);
    post.reaches(Progress::Seen).await;
    let done_at = Instant::now();
    while done_at.elapsed() < Duration::from_secs(8) {
        let record = client.get("/once/k").send().await.expect(200).json();
        assert_eq!(record["state"], "working", "{:?}: {record}", done_at.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    proxy.set_policy(|_| Fate::Pass);
    assert_eq!(running.end().await.expect_silent(0).stdout, "out\n");
    assert_eq!(scene.do_work(&[], "echo other").await.expect_silent(0).stdout, "out\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_was_broken_is_begun_once_more_to_store() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let running = begun(&scene).await;
    client.delete("/once/k?force=true").send().await.expect(204);
    let_go(&scene);
    running.end().await.expect_silent(0);
    let again = scene.do_work(&[], "echo other").await.expect_silent(0);
    assert_eq!(again.stdout, "out\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_cannot_be_stored_is_told_with_the_reason() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let running = begun(&scene).await;
    client.delete("/once/k?force=true").send().await.expect(204);
    let other = client.put("/once/k?ttl=1m").token(&fresh_token()).send().await.expect(201);
    let_go(&scene);
    let ended = running.end().await;
    assert_eq!(ended.stdout, "out\n");
    let number = other.fencing_token().to_string();
    ended.expect_line(74, &["has succeeded", "\"k\" may be done again", &number]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stays_away_is_told_to_a_person_in_a_hurry() {
    let mut gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let running = begun(&scene).await;
    gateway.kill();
    let_go(&scene);
    // What arrives while the command runs is the command's.
    let pid = running.pid();
    eventually("the command has ended", async || children(pid).is_empty()).await;
    let mut running = running;
    eventually("the run ends after a signal", async || {
        running.signal("INT");
        running.has_ended()
    })
    .await;
    running.end().await.expect_line(74, &["\"k\" may be done again", "connection refused"]);
}

/// As behind an address that has the gateways of two stores: the one begins, and the other knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_begun_and_not_begun_in_turn_is_told_of_and_asked_for_with_pauses() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let running = begun(&scene).await;
    let answer = |status: &str, body: String| {
        let length = body.len();
        Fate::Instead(format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    proxy.set_policy(move |message| {
        let message = String::from_utf8_lossy(message);
        if message.starts_with("POST ") {
            counted.fetch_add(1, Ordering::Relaxed);
            return answer("404 Not Found", "{\"type\":\"/problems/not-begun\"}".to_owned());
        }
        let token = message.split_once("lease-token: ").and_then(|(_, rest)| rest.split_once("\r\n"));
        let token = token.map(|(token, _)| token).unwrap_or_default();
        let grant = format!("{{\"key\":\"k\",\"token\":\"{token}\",\"fencing_token\":1,\"ttl_ms\":60000}}");
        answer("201 Created", grant)
    });
    let_go(&scene);
    let began_at = Instant::now();
    eventually("it is tried again", async || asked.load(Ordering::Relaxed) > 4).await;
    // Each try asks twice, and is followed by a pause of 200 ms.
    assert!(began_at.elapsed() > Duration::from_millis(400), "{:?}", began_at.elapsed());
    running.signal("INT");
    running.end().await.expect_line(74, &["\"k\" may be done again", "several stores"]);
}

fn children(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
}

/// Nobody has taken over, so the result needs no lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ended_while_this_process_stood_still_has_its_result_stored() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let running = scene.start_work(&["--ttl", "2s"], "echo >ready; sleep 0.5; echo first");
    eventually("the command runs", async || scene.path("ready").exists()).await;
    running.signal("STOP");
    let state = async || client.get("/once/k").send().await.json()["state"].clone();
    eventually("its lease is over", async || state().await == "lapsed").await;
    running.signal("CONT");
    assert_eq!(running.end().await.expect_silent(0).stdout, "first\n");
    assert_eq!(scene.do_work(&[], "echo second").await.expect_silent(0).stdout, "first\n");
}
