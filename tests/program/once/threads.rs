//! The system may give no more threads: what needs one has it before there is a lock.

use std::time::Duration;

use kit::{Client, Gateway, eventually, fresh_token};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::run::kit::{Running, Scene, is_held, waiters};

/// What `/proc` says of a process in this line.
fn number_of(running: &Running, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|each| each.strip_prefix(line)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// From now on the system refuses it each thread: its memory has no room for the stack of one.
fn gets_no_thread(running: &Running) {
    let most = (number_of(running, "VmSize:") + 1024) * 1024;
    let limit = Rlimit { current: Some(most), maximum: getrlimit(Resource::As).maximum };
    prlimit(Pid::from_raw(running.pid().try_into().unwrap()), Resource::As, limit).unwrap();
}

/// The threads must not end meanwhile, as those of the library do after a rest of 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_passed_on_and_stored_though_no_thread_can_be_started_any_more() {
    let gateway = Gateway::embedded(&["--max-result-bytes", "1048576"]).await;
    let scene = Scene::on(&gateway);
    let script =
        "echo >ready; while [ ! -e over ]; do sleep 0.1; done; head -c 300000 /dev/zero | tr '\\000' x";
    let running = scene.start_work(&["--ttl", "1m"], script);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    let threads = number_of(&running, "Threads:");
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(number_of(&running, "Threads:"), threads);
    gets_no_thread(&running);
    std::fs::write(scene.path("over"), "").unwrap();
    assert_eq!(running.end().await.expect_silent(0).stdout.len(), 300_000);
    let record = Client::new(gateway.address).get("/once/k").send().await.expect(200).json();
    assert_eq!(record["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_granted_is_told_though_no_thread_can_be_started_any_more() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client, other) = (Scene::on(&gateway), Client::new(gateway.address), fresh_token());
    client.put("/locks/k?ttl=1m").token(&other).send().await.expect(201);
    let acquiring = scene.launch(scene.command_of("acquire", &["k", "--token-file", "token"]));
    eventually("it waits", async || waiters(&client).await == 1).await;
    gets_no_thread(&acquiring);
    client.delete("/locks/k").token(&other).send().await.expect(204);
    let number = acquiring.end().await.expect_silent(0).stdout;
    let token = scene.read("token");
    let held = client.get("/locks/k").token(token.trim_end()).send().await.expect(200).json();
    assert_eq!((&held["yours"], held["fencing_token"].to_string()), (&true.into(), number.trim_end().into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_thread_can_be_started_no_lock_is_taken_and_the_reason_is_told() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    for (name, args) in [
        ("run", &["k", "--", "true"][..]),
        ("once", &["k", "--", "true"]),
        ("acquire", &["k", "--token-file", "token"]),
        ("list", &[]),
    ] {
        let mut command = scene.command_of(name, args);
        // No machine has room for such a stack.
        command.env("RUST_MIN_STACK", (1_u64 << 50).to_string());
        scene.launch(command).end().await.expect_line(71, &["too few threads"]);
        assert!(!is_held(&client, "k").await && !scene.path("token").exists(), "{name}");
        client.get("/once/k").send().await.expect(404);
    }
}
