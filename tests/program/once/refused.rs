//! What is not begun, and how that is told.

use std::time::Duration;

use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, Gateway, Proxy, eventually, fresh_token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::run::kit::Scene;
use crate::run::shape::Recorder;

/// A lost answer is asked for again for long enough.
const GATEWAY_WAIT: [&str; 2] = ["--gateway-wait", "30s"];

#[tokio::test(flavor = "multi_thread")]
async fn work_of_another_is_waited_for_and_not_longer() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/once/k?ttl=1m&owner=ann").token(&fresh_token()).send().await.expect(201);
    let ended = scene.do_work(&["--wait", "300ms"], "echo >ran").await;
    assert!(ended.took >= Duration::from_millis(300), "{ended:?}");
    ended.expect_line(75, &["the work \"k\" is busy", "ann"]);
    assert!(!scene.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_take_over_nothing_runs_that_may_have_run_before() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    // Where nothing has run, it runs; and a failure counts.
    scene.do_work(&["--no-takeover"], "exit 1").await.expect_silent(1);
    let ended = scene.do_work(&["--no-takeover", "--wait", "0s"], "echo >ran").await;
    let way_out = "by DELETE /once with force=true and clean=true";
    ended.expect_line(77, &["the work \"k\" is not begun", "may have done the work", way_out]);
    assert!(!scene.path("ran").exists());
    client.delete("/once/k?force=true&clean=true").send().await.expect(204);
    scene.do_work(&["--no-takeover"], "true").await.expect_silent(0);
}

/// Its own lease has ended before it knew of it, so no other run may have done anything.
#[tokio::test(flavor = "multi_thread")]
async fn without_take_over_a_place_whose_command_never_ran_is_given_up_and_forgotten() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let (scene, client) = (Scene::at(proxy.url()), Client::new(gateway.address));
    let flags = [&GATEWAY_WAIT[..], &["--ttl", "1s", "--no-takeover"]].concat();
    let is_lapsed = async || client.get("/once/k").send().await.expect(200).json()["state"] == "lapsed";

    let lapsed = async || {
        let mut lost = proxy.expect("PUT ", Fate::CutAfter);
        proxy.set_policy(|_| Fate::CutBefore);
        let running = scene.start_work(&flags, "echo >ran");
        lost.reaches(Progress::Answered).await;
        eventually("its lease is over", is_lapsed).await;
        running
    };

    let running = lapsed().await;
    proxy.set_policy(|_| Fate::Pass);
    let ended = running.end().await;
    ended.expect_line(69, &["cannot begin the work \"k\"", "its lease ended before the answer arrived"]);
    client.get("/once/k").send().await.expect(404);

    // The same where it cannot be given up: then that is told.
    let running = lapsed().await;
    proxy.set_policy(|message| if message.starts_with(b"DELETE ") { Fate::CutBefore } else { Fate::Pass });
    let left = "until that is broken, runs with --no-takeover may end with 77";
    running.end().await.expect_line(69, &["cannot begin the work \"k\"", "the command did not run", left]);
    client.delete("/once/k?force=true&clean=true").send().await.expect(204);

    assert!(!scene.path("ran").exists());
    proxy.set_policy(|_| Fate::Pass);
    let next = scene.do_work(&["--no-takeover"], "echo $ONCE_EARLIER").await.expect_silent(0);
    assert_eq!(next.stdout, "0\n");
}

/// It would block the work, and count as a run that may have done it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_after_its_run_was_told_busy_begins_nothing() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let (scene, client) = (Scene::at(proxy.url()), Client::new(gateway.address));
    let worker = fresh_token();
    client.put("/once/k?ttl=1m").token(&worker).send().await.expect(201);
    let arrives = Gate::new();
    let mut late = proxy.expect("PUT ", Fate::late(arrives.clone()));
    let flags = [&GATEWAY_WAIT[..], &["--wait", "0s"]].concat();
    scene.do_work(&flags, "echo >ran").await.expect_line(75, &["the work \"k\" is busy"]);
    client.delete("/once/k?clean=true").token(&worker).send().await.expect(204);
    arrives.cancel();
    late.reaches(Progress::Answered).await;
    client.get("/once/k").send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_does_not_get_the_result() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let of = |fingerprint: &'static str| ["--fingerprint", fingerprint];
    scene.do_work(&of("first"), "echo out").await.expect_silent(0);
    assert_eq!(scene.do_work(&of("first"), "echo other").await.expect_silent(0).stdout, "out\n");
    for flags in [&of("second")[..], &[]] {
        let ended = scene.do_work(flags, "echo >ran").await;
        assert_eq!(ended.stdout, "");
        ended.expect_line(2, &["refused by", "Fingerprint"]);
    }
    assert!(!scene.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_started_has_certainly_done_nothing() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let command = scene.command_of("once", &["k", "--", "/nowhere/command"]);
    scene.launch(command).end().await.expect_line(127, &["cannot run"]);
    let next = scene.do_work(&["--wait", "0s"], "echo $ONCE_EARLIER").await.expect_silent(0);
    assert_eq!(next.stdout, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_records_is_told_at_once() {
    let redis = kit::RedisServer::start_with(&["--maxmemory", "0"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let ended = Scene::on(&gateway).do_work(&["--gateway-wait", "1m"], "echo >ran").await;
    ended.expect_line(2, &["refused by", "maxmemory"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_answers_for_the_gateway_gives_no_result() {
    let page = (Duration::ZERO, 200, "<p>Please sign in</p>");
    let recorder = Recorder::telling(&[page; 100]).await;
    let scene = Scene::at(recorder.url());
    let ended = scene.do_work(&["--gateway-wait", "300ms"], "echo >ran").await;
    assert_eq!(ended.stdout, "");
    ended.expect_line(69, &["cannot begin the work \"k\"", "not that of a Fencepost gateway"]);
    assert!(!scene.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_are_told_before_anything_is_asked() {
    let scene = Scene::at("http://127.0.0.1:9");
    for (flags, said) in [
        (&["--keep", "1m"][..], "--keep: must be from 2m to 168h"),
        (&["--keep", "169h"], "--keep: must be from 2m to 168h"),
        (&["--ttl", "999ms"], "--ttl"),
        (&["--fingerprint", "two words"], "--fingerprint: must be 1 to 128"),
        (&["--clean-status", "0"], "--clean-status"),
    ] {
        scene.do_work(flags, "true").await.expect_line(2, &[said]);
    }
    let without_dashes = scene.launch(scene.command_of("once", &["k", "true"])).end().await;
    without_dashes.expect_line(2, &["fencepost once KEY -- COMMAND"]);
}

/// A proxy has taken the length away, and the answer ends with the connection. Or the proxy is behind by one answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_was_broken_off_or_is_of_another_request_is_not_printed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scene = Scene::at(format!("http://{}", listener.local_addr().unwrap()));
    let answers = async |headers: &str| {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                connection.read_buf(&mut request).await.unwrap();
            }
            let request = String::from_utf8(request).unwrap();
            let (_, rest) = request.split_once("lease-token: ").unwrap();
            let headers = headers.replace("TOKEN", rest.split_once("\r\n").unwrap().0);
            let answer =
                format!("HTTP/1.1 200 OK\r\nonce: replayed\r\n{headers}connection: close\r\n\r\npaid");
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    let printed = async |headers: &str| {
        tokio::select! {
            ended = scene.do_work(&["--gateway-wait", "0s"], "echo other") => ended,
            () = answers(headers) => unreachable!(),
        }
    };
    let whole = printed("lease-token: TOKEN\r\nfencing-token: 7\r\nonce-bytes: 4\r\n").await;
    assert_eq!(whole.expect_silent(0).stdout, "paid");
    for headers in [
        "lease-token: TOKEN\r\nfencing-token: 7\r\nonce-bytes: 9\r\n",
        "lease-token: TOKEN\r\nfencing-token: 7\r\n",
        "lease-token: TOKEN\r\nonce-bytes: 4\r\n",
        "lease-token: of-another-client\r\nfencing-token: 7\r\nonce-bytes: 4\r\n",
        "fencing-token: 7\r\nonce-bytes: 4\r\n",
    ] {
        let ended = printed(headers).await;
        assert_eq!((ended.status, &*ended.stdout), (Some(69), ""), "{headers}: {ended:?}");
    }
}
