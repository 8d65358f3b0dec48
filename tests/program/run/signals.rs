//! Signals: what reaches the command, and what becomes of a place in line.

use std::process::Command;
use std::time::Duration;

use super::kit::{Scene, is_alive, is_held, is_stopped, requests, waiters};
use kit::gateway::program;
use kit::{Client, Gateway, eventually, fresh_token, signal};

#[tokio::test(flavor = "multi_thread")]
async fn int_term_and_hup_are_passed_on_to_the_whole_group() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let traps = |who: &str| {
        let trap = |name: &str| format!("trap 'echo {who} {name} >>got' {name}; ");
        // What shells say of children that were killed.
        format!("exec 2>/dev/null; {}", ["INT", "TERM", "HUP"].map(trap).concat())
    };
    let inner = format!("{} echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 5", traps("inner"));
    std::fs::write(scene.path("inner"), inner).unwrap();
    // The outer shell notes what it got when the inner one has ended.
    let running = scene.start_script(&[], &format!("{} sh inner", traps("outer")));
    eventually("the command is ready", async || scene.path("ready").exists()).await;
    for name in ["INT", "TERM", "HUP"] {
        running.signal(name);
        scene.says("got", &format!("inner {name}\n")).await;
    }
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_silent(5);
    for name in ["INT", "TERM", "HUP"] {
        assert!(scene.read("got").contains(&format!("outer {name}\n")), "{name}: {}", scene.read("got"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_by_a_signal_that_was_passed_on_is_128_and_its_number() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3), ("USR1", 10), ("USR2", 12)] {
        let running = scene.start_script(&[], &format!("echo >ready-{name}; exec sleep 30"));
        eventually("the command is ready", async || scene.path(&format!("ready-{name}")).exists()).await;
        running.signal(name);
        running.end().await.expect_silent(128 + number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sigterm_is_passed_on_as_the_signal_that_tells_the_command_to_end() {
    let gateway = Gateway::embedded(&[]).await;
    let script = "exec 2>/dev/null; trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; trap 'echo HUP >>got; exit 7' HUP
        echo >ready; while :; do sleep 0.02; done";
    for name in ["run", "once"] {
        let scene = Scene::on(&gateway);
        let args = ["--signal", "INT", "k", "--", "sh", "-c", script];
        let running = scene.launch(scene.command_of(name, &args));
        eventually("the command is ready", async || scene.path("ready").exists()).await;
        running.signal("TERM");
        scene.says("got", "INT\n").await;
        // The others stay what they are.
        running.signal("HUP");
        running.end().await.expect_silent(7);
        assert_eq!(scene.read("got"), "INT\nHUP\n", "{name}");
    }
    // A command that is stopped hears of its end, whatever tells it.
    let scene = Scene::on(&gateway);
    let running = scene.start_script(&["--signal", "USR1"], "echo $$ >pid; exec sleep 30");
    let pid = scene.number("pid").await;
    signal(pid, "STOP");
    eventually("the command is stopped", async || is_stopped(pid)).await;
    running.signal("TERM");
    running.end().await.expect_silent(138);
}

/// As of a job that a script starts by `&`, and of one under `nohup`.
#[tokio::test(flavor = "multi_thread")]
async fn the_signal_that_tells_the_command_to_end_is_heard_also_where_it_was_ignored() {
    let gateway = Gateway::embedded(&[]).await;
    for (name, number) in [("INT", 130), ("HUP", 129)] {
        let scene = Scene::on(&gateway);
        let mut command = Command::new("env");
        command.args([&format!("--ignore-signal={name}"), program(), "run", "--signal", name, "k", "--"]);
        command.args(["sh", "-c", "echo >ready; exec sleep 300"]);
        command.env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
        let running = scene.launch(command);
        eventually("the command runs", async || scene.path("ready").exists()).await;
        running.signal("TERM");
        running.end().await.expect_silent(number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_waiting_gives_up_the_place() {
    let gateway = Gateway::embedded(&["--ticket-ttl", "1m"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=5m").token(&fresh_token()).send().await.expect(201);
    for (at, (name, number)) in [("INT", 2), ("TERM", 15), ("HUP", 1)].into_iter().enumerate() {
        let running = scene.start(&["k", "--", "touch", "ran"]);
        eventually("it stands in line", async || waiters(&client).await == 1).await;
        running.signal(name);
        running.end().await.expect_silent(128 + number);
        assert_eq!(waiters(&client).await, 0, "{name}");
        eventually("it has left the line by itself", async || {
            let requests = requests(&gateway);
            requests.iter().filter(|r| r.method == "DELETE" && r.status == 204).count() == at + 1
        })
        .await;
    }
    assert!(!scene.path("ran").exists());
}

/// As a service manager does that ends a service with all its processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_the_command_and_to_run_alike_does_not_keep_the_lock() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let running = scene.start_script(&[], "echo $$ >pid; exec sleep 30");
    let pid = scene.number("pid").await;
    // Stopped, so that it hears of both at once.
    running.signal("STOP");
    signal(pid, "TERM");
    running.signal("TERM");
    eventually("the command has ended", async || !is_alive(pid)).await;
    running.signal("CONT");
    // The one that ended the command did not come through this process.
    running.end().await.expect_line(143, &["SIGTERM"]);
    assert!(!is_held(&client, "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_ignores_and_blocks_what_it_would_without_a_lock() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let args = ["-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    let bare = String::from_utf8(Command::new("grep").args(args).output().unwrap().stdout).unwrap();
    let locked = scene.run(&[&["k", "--", "grep"], &args[..]].concat()).await.expect_silent(0).stdout;
    assert_eq!(locked, bare);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_was_blocked_from_the_beginning_is_heard() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    // The lease is so long that no renewal wakes it meanwhile.
    let start = |script: &str| {
        let mut command = Command::new("env");
        command.args([
            "--block-signal=CHLD,TERM",
            program(),
            "run",
            "--ttl",
            "1h",
            "k",
            "--",
            "sh",
            "-c",
            script,
        ]);
        command.env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
        scene.launch(command)
    };
    start("exit 9").end().await.expect_silent(9);
    let running = start("echo >ready; exec sleep 300");
    eventually("the command runs", async || scene.path("ready").exists()).await;
    running.signal("TERM");
    running.end().await.expect_silent(143);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nohup_ignores_stays_ignored() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "echo >ready; kill -HUP $$; while [ ! -e over ]; do sleep 0.02; done; echo alive";
    let mut command = Command::new("nohup");
    command.args([program(), "run", "k", "--", "sh", "-c", script]);
    command.env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
    let running = scene.launch(command);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    running.signal("HUP");
    tokio::time::sleep(Duration::from_millis(50)).await;
    std::fs::write(scene.path("over"), "").unwrap();
    let ended = running.end().await;
    assert_eq!((ended.status, ended.stdout.trim()), (Some(0), "alive"), "{ended:?}");
}
