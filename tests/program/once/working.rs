//! Who runs the command, and what the next one is told.

use kit::{Gateway, RedisServer, Stage, eventually};

use crate::run::kit::Scene;

macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                super::$name(kit::Stage::embedded().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn redis() {
                super::$name(super::on_redis().await).await;
            }
        })+
    };
}

on_each_store!(
    of_two_at_once_one_runs_the_command_and_both_end_alike,
    after_a_failure_the_next_run_is_told_of_it_unless_it_was_clean,
    after_sigkill_the_next_run_is_told_of_it,
    a_signal_gives_up,
    a_command_that_a_signal_ended_is_counted_though_its_status_is_named_as_clean,
);

/// On a server that says how much memory it may use: one that does not keeps no records.
async fn on_redis() -> Stage {
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    Stage { gateway: Gateway::on_redis(&redis, &[]).await, redis: Some(redis) }
}

/// Says what it was told, and goes on when it is let go on.
const WAITS: &str =
    "echo run >>runs; echo out; echo err >&2; while [ ! -e over ]; do sleep 0.02; done; exit ";

async fn of_two_at_once_one_runs_the_command_and_both_end_alike(stage: Stage) {
    let scene = Scene::on(&stage.gateway);
    let script = format!("{WAITS}0");
    let first = scene.start_work(&[], &script);
    scene.says("runs", "run").await;
    let second = scene.start_work(&[], &script);
    eventually("the second one waits", async || is_waiting(&stage).await).await;
    std::fs::write(scene.path("over"), "").unwrap();
    let (first, second) = (first.end().await, second.end().await.expect_silent(0));
    assert_eq!((first.status, first.stderr.as_str()), (Some(0), "err\n"));
    assert_eq!((first.stdout.as_str(), second.stdout.as_str()), ("out\n", "out\n"));
    // And so does one that comes when all is over.
    let third = scene.do_work(&["--wait", "0s"], &script).await.expect_silent(0);
    assert_eq!((third.stdout.as_str(), scene.read("runs").as_str()), ("out\n", "run\n"));
}

async fn after_a_failure_the_next_run_is_told_of_it_unless_it_was_clean(stage: Stage) {
    let scene = Scene::on(&stage.gateway);
    let tell = |status: u8| format!("echo $ONCE_KEY $ONCE_EARLIER >>told; echo out; exit {status}");
    let first = scene.start_work(&["--clean-status", "4,3"], &format!("{WAITS}3"));
    scene.says("runs", "run").await;
    // It waits, and is then the next one itself.
    let second = scene.start_work(&["--clean-status", "4"], &tell(3));
    eventually("the second one waits", async || is_waiting(&stage).await).await;
    std::fs::write(scene.path("over"), "").unwrap();
    assert_eq!(first.end().await.status, Some(3));
    let ended = second.end().await.expect_silent(3);
    assert_eq!(ended.stdout, "out\n");
    scene.do_work(&[], &tell(5)).await.expect_silent(5);
    scene.do_work(&[], &tell(0)).await.expect_silent(0);
    assert_eq!(scene.read("told"), "k 0\nk 1\nk 2\n");
}

async fn after_sigkill_the_next_run_is_told_of_it(stage: Stage) {
    let scene = Scene::on(&stage.gateway);
    let first = scene.start_work(&["--ttl", "1s"], "echo $$ >first; exec sleep 60");
    let command = scene.number("first").await;
    first.signal("KILL");
    let ended = scene.do_work(&[], "echo $ONCE_EARLIER").await.expect_silent(0);
    kit::signal(command, "KILL");
    assert_eq!(ended.stdout, "1\n");
}

async fn a_signal_gives_up(stage: Stage) {
    let scene = Scene::on(&stage.gateway);
    let first = scene.start_work(&["--ttl", "1m"], "echo >ready; exec sleep 60");
    eventually("the command runs", async || scene.path("ready").exists()).await;
    first.signal("TERM");
    first.end().await.expect_silent(128 + 15);
    let next = scene.do_work(&["--wait", "0s"], "echo $ONCE_EARLIER").await.expect_silent(0);
    assert_eq!(next.stdout, "1\n");
}

async fn a_command_that_a_signal_ended_is_counted_though_its_status_is_named_as_clean(stage: Stage) {
    let scene = Scene::on(&stage.gateway);
    let flags = ["--clean-status", "137,143", "--wait", "0s"];
    // One that says so by itself is believed.
    scene.do_work(&flags, "exit 143").await.expect_silent(143);
    let killed = scene.do_work(&flags, "echo $ONCE_EARLIER; kill -9 $$").await;
    assert_eq!((killed.status, &*killed.stdout), (Some(137), "0\n"), "{killed:?}");
    let next = scene.do_work(&flags, "echo $ONCE_EARLIER").await.expect_silent(0);
    assert_eq!(next.stdout, "1\n");
}

/// Whether a request waits for a record.
async fn is_waiting(stage: &Stage) -> bool {
    let metrics = stage.client().get("/metrics").send().await.body;
    String::from_utf8_lossy(&metrics).lines().any(|line| line == "fencepost_once_waiters 1")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_what_it_needs_and_no_secret() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "echo $ONCE_KEY $ONCE_EARLIER ${LOCK_KEY-none} ${LEASE_TOKEN-none} ${FENCEPOST_API_KEY-none}; \
                  echo $FENCING_TOKEN >number";
    let mut command = scene.command_of("once", &["k", "--", "sh", "-c", script]);
    command.env("LEASE_TOKEN", "of-another").env("FENCEPOST_API_KEY", "fp_none");
    let ended = scene.launch(command).end().await.expect_silent(0);
    assert_eq!(ended.stdout, "k 0 none none none\n");
    // What it blocks is what it would block without us.
    let blocked = ["-c", "grep SigBlk /proc/self/status"];
    let plain = std::process::Command::new("sh").args(blocked).output().unwrap();
    let command = scene.command_of("once", &[&["blocked", "--", "sh"][..], &blocked].concat());
    let ended = scene.launch(command).end().await.expect_silent(0);
    assert_eq!(ended.stdout, String::from_utf8(plain.stdout).unwrap());
    let record = kit::Client::new(gateway.address).get("/once/k").send().await.expect(200).json();
    assert_eq!(record["fencing_token"].to_string(), scene.read("number").trim());
    assert_eq!(record["owner"].as_str().unwrap().split(' ').next(), Some("sh"));
}

/// A resource that claims takes the number for one of the lock whose key stands beside it.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_nothing_of_a_lock_or_a_work_around_its_own() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let around = ["LOCK_KEY", "LOCK_SLOT", "LEASE_TOKEN", "LOCK_KEY_2", "FENCING_TOKEN_2", "LOCK_SLOT_2"];
    let mut command = scene.command_of("once", &["w", "--", "sh", "-c", "env >found"]);
    command.envs(around.map(|name| (name, "of-a-lock"))).env("FENCING_TOKEN", "7");
    scene.launch(command).end().await.expect_silent(0);
    let found = scene.read("found");
    assert!(found.contains("ONCE_KEY=w\n") && !found.contains("FENCING_TOKEN=7\n"), "{found}");
    assert!(!around.iter().any(|name| found.contains(&format!("{name}="))), "{found}");

    let mut command = scene.command(&["l", "--", "sh", "-c", "env >found"]);
    command.env("ONCE_KEY", "of-a-work").env("ONCE_EARLIER", "1");
    scene.launch(command).end().await.expect_silent(0);
    let found = scene.read("found");
    assert!(found.contains("LOCK_KEY=l\n") && !found.contains("ONCE_KEY="), "{found}");
    // The work around it may be done already: that stays true.
    assert!(found.contains("ONCE_EARLIER=1\n"), "{found}");

    // As it comes about.
    let script = "\"$0\" once w2 -- sh -c 'echo ${LOCK_KEY-none} $FENCING_TOKEN'; echo $LOCK_KEY";
    let args = ["l", "--", "sh", "-c", script, kit::gateway::program()];
    let ended = scene.run(&args).await.expect_silent(0);
    let record = kit::Client::new(gateway.address).get("/once/w2").send().await.expect(200).json();
    assert_eq!(ended.stdout, format!("none {}\nl\n", record["fencing_token"]));
}
