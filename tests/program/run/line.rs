//! Waiting for the lock.

use std::time::Duration;

use super::kit::{Scene, requests, waiters};
use super::shape::{GRANT, Recorder};
use kit::{Client, Gateway, eventually, fresh_token};

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_keeps_its_place_from_one_request_to_the_next_and_is_silent() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let holder = fresh_token();
    client.put("/locks/k?ttl=5m").token(&holder).send().await.expect(201);
    let mut line = Vec::new();
    for at in 0..4 {
        line.push(scene.start_script(&[], &format!("echo {at} >>order")));
        eventually("it stands in line", async || waiters(&client).await == at + 1).await;
    }
    // Each has asked again by then: its first request waits for a second.
    eventually("all have asked twice", async || {
        requests(&gateway).iter().filter(|r| r.method == "PUT" && r.status == 423).count() >= 4
    })
    .await;
    assert_eq!(waiters(&client).await, 4);
    client.delete("/locks/k").token(&holder).send().await.expect(204);
    for running in line {
        running.end().await.expect_silent(0);
    }
    assert_eq!(scene.read("order"), "0\n1\n2\n3\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_allows_short_waits_alone_is_asked_more_often() {
    let gateway = Gateway::embedded(&["--max-wait", "300ms"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=2s").token(&fresh_token()).send().await.expect(201);
    scene.run(&["--wait", "1m", "k", "--", "true"]).await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_allows_no_waiting_is_asked_from_time_to_time() {
    let gateway = Gateway::embedded(&["--max-wait", "0s"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=3s").token(&fresh_token()).send().await.expect(201);
    scene.run(&["--wait", "1m", "k", "--", "true"]).await.expect_silent(0);
    let asked = requests(&gateway).iter().filter(|request| request.status == 423).count();
    assert!((2..15).contains(&asked), "{asked}");
}

/// The answer comes long after its request, so by itself it says nothing of what is left of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_waited_for_longer_than_its_ttl_is_held_in_full() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=4s").token(&fresh_token()).send().await.expect(201);
    scene.run(&["--ttl", "1s", "k", "--", "sleep", "1.5"]).await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_at_the_last_moment_of_the_wait_is_used() {
    // Later than the end of the wait, and than a gateway is tried at least.
    let late = (Duration::from_millis(5500), 201, GRANT);
    let busy = r#"{"type":"/problems/locked","title":"","status":423,"detail":"busy"}"#;
    let recorder = Recorder::telling(&[(Duration::ZERO, 423, busy), late]).await;
    let scene = Scene::at(recorder.url());
    scene.run(&["--ttl", "3s", "--wait", "4s", "k", "--", "true"]).await.expect_silent(0);
}

/// A proxy has pages of its own while its gateway restarts.
#[tokio::test(flavor = "multi_thread")]
async fn what_something_else_answers_is_waited_out() {
    let busy = r#"{"type":"/problems/locked","title":"","status":423,"detail":"busy"}"#;
    let page = "<h1>Not Found</h1>";
    let now = Duration::ZERO;
    let recorder =
        Recorder::telling(&[(now, 423, busy), (now, 404, page), (now, 403, page), (now, 200, page)]).await;
    let scene = Scene::at(recorder.url());
    scene.run(&["k", "--", "true"]).await.expect_silent(0);
    // From the beginning, it is waited out for as long as a gateway is looked for.
    let recorder = Recorder::telling(&[(now, 404, page)]).await;
    Scene::at(recorder.url()).run(&["k", "--", "true"]).await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_goes_away_while_one_waits_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let framing = kit::proxy::Framing::Chunks;
    let proxy = kit::Proxy::start(gateway.address.port(), framing).await;
    let scene = Scene::at(proxy.url());
    let client = Client::new(gateway.address);
    let holder = fresh_token();
    client.put("/locks/k?ttl=5m").token(&holder).send().await.expect(201);
    let running = scene.start(&["k", "--", "true"]);
    // It has had an answer by then, and waits again.
    eventually("it has heard of the gateway", async || requests(&gateway).iter().any(|r| r.status == 423))
        .await;
    eventually("it stands in line", async || waiters(&client).await == 1).await;
    proxy.set_closed_to_new(true);
    gateway.kill();
    proxy.sever();
    // Longer than a gateway is tried that was never heard of.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let gateway = Gateway::on_file(&file, &[]).await;
    proxy.set_target(gateway.address.port());
    proxy.set_closed_to_new(false);
    let client = Client::new(gateway.address);
    eventually("it stands in line again", async || waiters(&client).await == 1).await;
    client.delete("/locks/k").token(&holder).send().await.expect(204);
    running.end().await.expect_silent(0);
}
