//! What a command under a lock does not notice, and what its end does.

use std::time::{Duration, Instant};

use super::kit::{Scene, is_held, release_of, requests};
use super::shape::Recorder;
use kit::gateway::program;
use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Gateway, Proxy, RedisServer, eventually};

/// Renewed after two seconds, and in need of it until almost five.
const FLAGS: [&str; 4] = ["--ttl", "6s", "--kill-after", "500ms"];

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_restarts_and_is_away_for_less_than_the_lease_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let args = [&FLAGS[..], &["k", "--", "sh", "-c", "echo >ready; sleep 7; exit 8"]].concat();
    let running = scene.start(&args);
    let begun_at = Instant::now();
    eventually("the command runs", async || scene.path("ready").exists()).await;
    gateway.kill();
    proxy.set_closed_to_new(true);
    // Until renewals have failed.
    tokio::time::sleep(Duration::from_millis(2500).saturating_sub(begun_at.elapsed())).await;
    let gateway = Gateway::on_file(&file, &[]).await;
    proxy.set_target(gateway.address.port());
    proxy.set_closed_to_new(false);
    running.end().await.expect_silent(8);
    assert!(requests(&gateway).iter().any(|request| request.method == "PATCH" && request.status == 200));
    assert!(!is_held(&Client::new(gateway.address), "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_with_durable_data_that_restarts_is_survived() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let scene = Scene::on(&gateway);
    let args = [&FLAGS[..], &["k", "--", "sh", "-c", "echo >ready; sleep 5; exit 8"]].concat();
    let running = scene.start(&args);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    redis.restart().await;
    running.end().await.expect_silent(8);
    assert!(requests(&gateway).iter().filter(|r| r.method == "PATCH" && r.status == 200).count() >= 2);
    assert!(!is_held(&Client::new(gateway.address), "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_is_not_waited_for() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let running = scene.start(&["--ttl", "6s", "k", "--", "sh", "-c", "echo >ready; sleep 8"]);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    proxy.freeze();
    running.end().await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lease_cannot_be_renewed_is_told_by_its_own_signal_to_end() {
    let script = "exec 2>/dev/null; trap 'echo INT >>got; exit 0' INT; trap 'echo TERM >>got' TERM
        echo >ready; while :; do sleep 0.02; done";
    for name in ["run", "once"] {
        let mut gateway = Gateway::embedded(&[]).await;
        let scene = Scene::on(&gateway);
        let args = ["--signal", "INT", "--ttl", "3s", "k", "--", "sh", "-c", script];
        let running = scene.launch(scene.command_of(name, &args));
        eventually("the command runs", async || scene.path("ready").exists()).await;
        gateway.kill();
        running.end().await.expect_line(76, &["could not be renewed", "the command was ended"]);
        assert_eq!(scene.read("got"), "INT\n", "{name}");
    }
}

/// By a second SIGINT, Terraform ends without waiting. What it has started elsewhere, and what it leaves behind, is told by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_was_told_to_end_is_told_once_and_what_it_leaves_behind_gets_sigterm() {
    let mut gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let left = "exec 2>/dev/null; trap '' INT; trap 'echo TERM >left; exit' TERM; echo >ready
        while :; do sleep 0.02; done";
    std::fs::write(scene.path("behind"), left).unwrap();
    let elsewhere = "import signal, time
signal.signal(signal.SIGINT, lambda *_: open('elsewhere', 'w').write('INT') and exit())
open('listens', 'w')
time.sleep(300)";
    std::fs::write(scene.path("elsewhere.py"), elsewhere).unwrap();
    let script = "exec 2>/dev/null; trap 'echo INT >>got' INT; sh behind & setsid python3 elsewhere.py &
        while [ ! -e elsewhere ]; do sleep 0.02; done; sleep 0.3";
    let flags = ["--signal", "INT", "--ttl", "9s", "--kill-after", "3s"];
    let running = scene.start_script(&flags, script);
    eventually("all run", async || scene.path("ready").exists() && scene.path("listens").exists()).await;
    running.signal("TERM");
    scene.says("got", "INT\n").await;
    gateway.kill();
    running.end().await.expect_line(76, &["could not be renewed", "the command was ended"]);
    assert_eq!((scene.read("got"), scene.read("left")), ("INT\n".into(), "TERM\n".into()));
    assert_eq!(scene.read("elsewhere"), "INT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_answer_was_lost_is_the_same_grant_again() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let mut cut = proxy.expect("PUT ", Fate::CutAfter);
    scene.run(&["k", "--", "true"]).await.expect_silent(0);
    cut.reaches(Progress::Answered).await;
    assert_eq!(release_of(&gateway).await.status, 204);
}

/// A copy of the first request may reach the gateway after the answer to the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_lock_after_a_lost_answer_is_no_silent_success_if_nobody_confirms_that_it_was_given_up() {
    let gateway = Gateway::embedded(&[]).await;
    Client::new(gateway.address).put("/locks/k?ttl=5m").send().await.expect(201);
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let args = ["--wait", "0s", "--busy-exit", "0", "k", "--", "touch", "wrong"];
    proxy.expect("PUT ", Fate::CutAfter);
    scene.run(&args).await.expect_silent(0);
    proxy.expect("PUT ", Fate::CutAfter);
    proxy.set_policy(|message| if message.starts_with(b"DELETE ") { Fate::CutBefore } else { Fate::Pass });
    scene.run(&args).await.expect_line(0, &["the lock \"k\" is busy", "may stay taken until its ttl ends"]);
    assert!(!scene.path("wrong").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_nobody_answers_changes_no_exit_status_and_is_told() {
    let mut gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 9";
    let running = scene.start_script(&["--ttl", "1m"], script);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    gateway.kill();
    std::fs::write(scene.path("over"), "").unwrap();
    let begun_at = Instant::now();
    running.end().await.expect_line(9, &["\"k\"", "could not be released", "refused"]);
    assert!(begun_at.elapsed() < Duration::from_secs(15), "{:?}", begun_at.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_away_at_the_start_is_waited_for_as_long_as_was_said() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    proxy.set_closed_to_new(true);
    let args = ["--wait", "0s", "--gateway-wait", "500ms", "k", "--", "touch", "wrong"];
    let ended = scene.run(&args).await;
    assert!(ended.took < Duration::from_millis(4500), "{ended:?}");
    ended.expect_line(69, &["cannot take the lock"]);
    assert!(!scene.path("wrong").exists());
    let running = scene.start(&["--wait", "0s", "--gateway-wait", "1m", "k", "--", "true"]);
    // Longer than without the flag.
    tokio::time::sleep(Duration::from_secs(7)).await;
    proxy.set_closed_to_new(false);
    running.end().await.expect_silent(0);
}

/// It hears nothing while it waits. If the gateway goes away meanwhile, the time for a gateway is over before it asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_long_only_after_a_gateway_has_said_who_has_the_lock() {
    let now = Duration::ZERO;
    let recorder = Recorder::telling(&[
        (now, 503, r#"{"type":"/problems/store-unavailable","detail":"no connection"}"#),
        (now, 429, r#"{"type":"/problems/rate-limited","detail":"too fast"}"#),
        (now, 423, r#"{"type":"/problems/lock-held","detail":"held","waiters":1,"position":1}"#),
    ])
    .await;
    Scene::at(recorder.url()).run(&["--wait", "30m", "k", "--", "true"]).await.expect_silent(0);
    let requests = recorder.requests();
    let puts = requests.iter().filter(|request| request.method == "PUT");
    let waits: Vec<_> = puts.map(|put| put.target.split("&wait=").nth(1).unwrap()).collect();
    let waits: Vec<_> = waits.into_iter().map(|rest| rest.split('&').next().unwrap()).collect();
    assert_eq!(waits, ["1000ms", "1000ms", "1000ms", "20000ms"]);
}

/// Each try renews the lock, and others must not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_too_slow_for_the_ttl_end_run_and_the_lock_is_released_between_tries() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let late = || Fate::late_answer(Duration::from_millis(1100));
    proxy.set_policy(move |message| if message.starts_with(b"PUT ") { late() } else { Fate::Pass });
    let flags = ["--ttl", "3s", "--gateway-wait", "1s"];
    let ended = scene.run(&[&flags[..], &["k", "--", "touch", "wrong"]].concat()).await;
    ended.expect_line(69, &["answers take too long for a lease this short"]);
    assert!(!scene.path("wrong").exists() && !is_held(&Client::new(gateway.address), "k").await);
    let releases =
        || requests(&gateway).into_iter().filter(|r| r.method == "DELETE" && r.status == 204).count();
    eventually("it was released between the tries and at the end", async || releases() == 2).await;

    // Once they are fast again, the command runs under the token that holds the lock by then.
    proxy.set_policy(|_| Fate::Pass);
    let mut slow = [proxy.expect("PUT ", late()), proxy.expect("PUT ", late())];
    let args = [&flags[..], &["--pass-token", "k", "--", program(), "renew", "k"]].concat();
    scene.run(&args).await.expect_silent(0);
    for passage in &mut slow {
        passage.reaches(Progress::Answered).await;
    }
}

/// It would be ended in the middle of its work, each time anew.
#[tokio::test(flavor = "multi_thread")]
async fn no_command_is_started_whose_first_renewal_could_not_come_back_in_time() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    // Less than a third of the ttl. But SIGTERM comes 700 ms after the first renewal.
    let late = || Fate::late_answer(Duration::from_millis(800));
    proxy.set_policy(move |message| if message.starts_with(b"PUT ") { late() } else { Fate::Pass });
    let args = ["--ttl", "3s", "--gateway-wait", "5s", "k", "--", "touch", "wrong"];
    for name in ["run", "once"] {
        let ended = scene.launch(scene.command_of(name, &args)).end().await;
        ended.expect_line(69, &["answers take too long for a lease this short"]);
    }
    assert!(!scene.path("wrong").exists());
}
