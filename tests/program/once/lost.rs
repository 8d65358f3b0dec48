//! Work whose lease is lost while the command runs, and a store that has little room for its result.

use std::time::{Duration, Instant};

use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Gateway, Proxy, RedisServer, eventually, fresh_token};

use crate::run::kit::Scene;

/// It goes on for longer than the lease, unless it is ended.
const WORKS: &str = "echo run >>runs; echo out; exec sleep 60";

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_broken_or_taken_over_ends_the_command_and_is_told() {
    let gateway = Gateway::embedded(&[]).await;
    let client = Client::new(gateway.address);
    for is_taken_over in [false, true] {
        let scene = Scene::on(&gateway);
        let running = scene.start_work(&["--ttl", "3s"], WORKS);
        scene.says("runs", "run").await;
        let broken_at = Instant::now();
        client.delete("/once/k?force=true").send().await.expect(204);
        let token = fresh_token();
        if is_taken_over {
            client.put("/once/k?ttl=1m").token(&token).send().await.expect(201);
        }
        let ended = running.end().await.expect_line(76, &["\"k\"", "lost"]);
        // What those are told who write requests helps no user of the command.
        assert!(!ended.stderr.contains("201"), "{ended:?}");
        assert!(broken_at.elapsed() < Duration::from_secs(5), "{:?}", broken_at.elapsed());
        // Nothing is stored of it, and whoever came meanwhile goes on.
        if is_taken_over {
            client.post("/once/k").token(&token).body("of another").send().await.expect(200);
        } else {
            let state = client.get("/once/k").send().await.expect(200).json();
            assert_eq!((state["state"].as_str(), state["earlier"].as_u64()), (Some("lapsed"), Some(1)));
        }
        client.delete("/once/k?force=true&clean=true").send().await.expect(204);
    }
}

/// It is done, so something is stored, though it is too long for what room there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_a_full_store_refuses_is_stored_as_its_status() {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let scene = Scene::on(&gateway);
    let script =
        "echo run >>runs; head -c 5000 /dev/zero | tr '\\000' x; while [ ! -e over ]; do sleep 0.02; done";
    let running = scene.start_work(&["--ttl", "2m"], script);
    scene.says("runs", "run").await;
    // The gateway hears of it within a second.
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", "1000000"]).await;
    let client = Client::new(gateway.address);
    eventually("nothing new is begun", async || {
        let key = fresh_token();
        client.put(&format!("/once/{key}")).token(&fresh_token()).send().await.status == 503
    })
    .await;
    std::fs::write(scene.path("over"), "").unwrap();
    let ended = running.end().await;
    assert_eq!((ended.status, ended.stdout.len()), (Some(0), 5_000), "{ended:?}");
    let record = client.get("/once/k").send().await.expect(200).json();
    assert_eq!((record["state"].as_str(), record["status"].as_u64()), (Some("done"), Some(0)));
    assert!(record["result_bytes"].as_u64().unwrap() <= 1024, "{record}");
    scene.do_work(&[], "echo other").await.expect_line(0, &["\"k\" is done", "output of 5000 bytes"]);
}

/// With `--no-takeover`, a person would have to find out.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_end_is_told_to_a_gateway_that_comes_back_and_if_not_the_line_says_that_it_counts() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let (scene, client) = (Scene::at(proxy.url()), Client::new(gateway.address));
    let cut = |message: &[u8]| if message.starts_with(b"DELETE ") { Fate::CutBefore } else { Fate::Pass };
    let clean_end = async || {
        let running = scene.start_work(&["--ttl", "1m", "--clean-status", "5"], "exit 5");
        proxy.expect("DELETE ", Fate::CutBefore).reaches(Progress::Seen).await;
        running
    };
    proxy.set_policy(cut);
    let running = clean_end().await;
    // For longer than the release of a lock is tried.
    tokio::time::sleep(Duration::from_secs(7)).await;
    proxy.set_policy(|_| Fate::Pass);
    running.end().await.expect_silent(5);
    client.get("/once/k").send().await.expect(404);

    proxy.set_policy(cut);
    let running = clean_end().await;
    running.signal("INT");
    let counts = "stay taken until its lease ends, and then counts as work that may have been done";
    running.end().await.expect_line(5, &["the work \"k\" could not be released", counts]);
}

/// Docker kills a container 10 s after the signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_end_after_a_signal_is_tried_for_a_few_seconds_and_one_without_its_lease_is_said_to_count() {
    let gateway = Gateway::embedded(&[]).await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let script =
        "exec 2>/dev/null; trap 'exit 5' TERM; echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 5";
    let work = async || {
        let scene = Scene::at(proxy.url());
        let running = scene.start_work(&["--ttl", "5m", "--clean-status", "5"], script);
        eventually("the command runs", async || scene.path("ready").exists()).await;
        (scene, running)
    };
    let counts = "and then counts as work that may have been done";
    let (scene, running) = work().await;
    Client::new(gateway.address).delete("/once/k?force=true").send().await.expect(204);
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_line(5, &["the work \"k\" was not held any more at the end", counts]);

    let (_scene, running) = work().await;
    proxy.set_policy(|message| if message.starts_with(b"DELETE ") { Fate::CutBefore } else { Fate::Pass });
    running.signal("TERM");
    let ended = running.end().await.expect_line(5, &["the work \"k\" could not be released", counts]);
    assert!(ended.took < Duration::from_secs(30), "{ended:?}");
}
