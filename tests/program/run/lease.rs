//! The lease: renewed in time, and lost for good when it is lost.

use std::time::{Duration, Instant};

use super::kit::{Scene, is_alive, is_held, requests, stubborn};
use super::shape::Recorder;
use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Gateway, Proxy, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_renewed_each_third_of_its_ttl() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let mut running = scene.start(&["--ttl", "6s", "k", "--", "sleep", "9"]);
    eventually("the lock is held", async || is_held(&client, "k").await).await;
    while !running.has_ended() {
        // Held all along: it is free only once the run has released it.
        if !is_held(&client, "k").await {
            let released = async || requests(&gateway).iter().any(|r| r.method == "DELETE");
            eventually("the log says that it was released", released).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    running.end().await.expect_silent(0);
    let all = requests(&gateway);
    let kept: Vec<_> = all.iter().filter(|r| matches!(r.method.as_str(), "PUT" | "PATCH")).collect();
    assert!((4..=6).contains(&kept.len()), "{kept:?}");
    assert!(kept.iter().all(|request| matches!(request.status, 200 | 201)), "{kept:?}");
    let pauses: Vec<_> = kept.windows(2).map(|pair| pair[1].at.saturating_sub(pair[0].at)).collect();
    // On a busy machine one of them may come late.
    let about_a_third = Duration::from_millis(1800)..Duration::from_millis(2800);
    assert!(pauses.iter().filter(|pause| about_a_third.contains(*pause)).count() >= 3, "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_ours_any_more_ends_the_command_at_once() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let script = format!("echo $LEASE_TOKEN >token; {}", stubborn("beats"));
    let running = scene.start_script(&["--ttl", "6s", "--pass-token"], &script);
    let pid = scene.number("beats.pid").await;
    client.delete("/locks/k").token(scene.read("token").trim()).send().await.expect(204);
    let released_at = Instant::now();
    running.end().await.expect_line(76, &["\"k\"", "lost", "no client holds"]);
    assert!(released_at.elapsed() < Duration::from_secs(5), "{:?}", released_at.elapsed());
    assert!(!is_alive(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_before_the_lock_is_released() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let scene = Scene::at(proxy.url());
    let running = scene.start_script(&["--ttl", "3s", "--pass-token"], "echo $LEASE_TOKEN >token; sleep 60");
    eventually("the command runs", async || scene.read("token").ends_with('\n')).await;
    let mut release = proxy.expect("DELETE", Fate::HalfOpen);
    let client = Client::new(gateway.address);
    client.delete("/locks/k").token(scene.read("token").trim()).send().await.expect(204);
    release.reaches(Progress::Seen).await;
    assert!(running.said().contains("the lock \"k\" was lost"), "{:?}", running.said());
    running.end().await.expect_line(76, &["was lost", "was ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_is_started_under_a_lease_that_is_almost_over() {
    let almost_over = r#"{"key":"k","token":"t","fencing_token":1,"ttl_ms":5900,"expires_at":""}"#;
    let recorder = Recorder::telling(&[(Duration::ZERO, 201, almost_over)]).await;
    let scene = Scene::at(recorder.url());
    // A second of margin, and five to end in.
    scene.run(&["k", "--", "touch", "ran"]).await.expect_line(76, &["\"k\"", "almost over"]);
    assert!(!scene.path("ran").exists());
    let methods: Vec<_> = recorder.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["PUT", "DELETE"], "it is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_the_longest_hold() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let flags = ["--ttl", "2s", "--max-hold", "3s", "--kill-after", "500ms"];
    let ended = scene.run_script(&flags, &stubborn("beats")).await;
    ended.expect_line(76, &["\"k\" may not be held for longer than 3s (--max-hold)", "was ended"]);
    let granted_at = requests(&gateway)[0].at;
    assert!(scene.last_beat("beats") < granted_at + Duration::from_secs(3));
    assert!(scene.last_beat("beats") > granted_at + Duration::from_secs(2), "it was renewed until then");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_stays_taken_for_the_shortest_hold() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    scene.run(&["--min-hold", "3s", "k", "--", "true"]).await.expect_silent(0);
    let args = ["--wait", "0s", "k", "--", "true"];
    scene.run(&args).await.expect_line(75, &["busy"]);
    let args = ["--wait", "20s", "k", "--", "true"];
    scene.run(&args).await.expect_silent(0);
    let granted = || requests(&gateway).iter().filter(|request| request.status == 201).count();
    eventually("both grants are in the log", async || granted() == 2).await;
}
