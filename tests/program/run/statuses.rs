//! Exit statuses, and the one line that explains those of our own.

use std::time::Duration;

use super::kit::{Scene, is_held};
use kit::gateway::{bare, program};
use kit::{Client, Gateway, fresh_token, server_port};

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_status_is_exactly_that_of_the_command() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    for status in [0, 1, 2, 69, 75, 76, 126, 127, 254, 255] {
        scene.run_script(&[], &format!("exit {status}")).await.expect_silent(status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_signal_ended_is_128_and_its_number() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    for (name, number) in [("TERM", 15), ("KILL", 9), ("HUP", 1)] {
        let ended = scene.run_script(&[], &format!("kill -s {name} $$")).await;
        // Cron mails what is printed, and no status.
        ended.expect_line(128 + number, &[&format!("the command was ended by signal {number} (SIG{name})")]);
    }
    for (name, number) in [("INT", 2), ("PIPE", 13)] {
        scene.run_script(&[], &format!("kill -s {name} $$")).await.expect_silent(128 + number);
    }
}

/// As a pager does that is not scrolled.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_standard_error_keeps_neither_the_lock_nor_the_status() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let fill = "rm -f pipe; mkfifo pipe; exec 3<>pipe; dd if=/dev/zero of=pipe oflag=nonblock bs=4096 count=1000 2>/dev/null";
    let run = "exec \"$F\" run --ttl 9s k -- sh -c \"$SCRIPT\" 2>&3";
    let unread = |script: &str| {
        let mut shell = bare("sh");
        shell.args(["-c", &format!("{fill}; {run}")]).current_dir(scene.path(""));
        shell.env("F", program()).env("SCRIPT", script).env("FENCEPOST_URL", &scene.url);
        scene.launch(shell)
    };
    unread("kill -KILL $$").end().await.expect_silent(137);
    assert!(!is_held(&client, "k").await);
    let broken = unread("sleep 60");
    kit::eventually("it has the lock", async || is_held(&client, "k").await).await;
    client.delete("/locks/k?force=true").send().await.expect(204);
    broken.end().await.expect_silent(76);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_started_is_126_or_127_and_its_lock_is_free_again() {
    use std::os::unix::fs::PermissionsExt;
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    std::fs::write(scene.path("plain"), "echo hello\n").unwrap();
    std::fs::write(scene.path("headless"), "echo hello\n").unwrap();
    std::fs::set_permissions(scene.path("headless"), PermissionsExt::from_mode(0o755)).unwrap();
    // A script without its first line would need a shell.
    for (program, status) in
        [("./missing", 127), ("no-such-command", 127), ("./plain", 126), ("./headless", 126), ("/tmp", 126)]
    {
        scene.run(&["k", "--", program]).await.expect_line(status, &["cannot run", program]);
        assert!(!is_held(&client, "k").await, "{program}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_held_while_the_command_runs_and_free_at_its_end() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let running =
        scene.start_script(&["--owner", "me"], "touch begun; while [ ! -e over ]; do sleep 0.02; done");
    kit::eventually("the command runs", async || scene.path("begun").exists()).await;
    let holder = client.get("/locks/k").send().await.expect(200).json();
    assert_eq!(holder["owner"], "me");
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_silent(0);
    client.get("/locks/k").send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_lock_is_75_or_what_was_chosen_and_says_who_has_it_unless_that_is_success() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=5m&owner=somebody").token(&fresh_token()).send().await.expect(201);
    let args = ["--wait", "0s", "k", "--", "touch", "ran"];
    scene.run(&args).await.expect_line(75, &["\"k\"", "busy", "somebody"]);
    scene.run(&[&["--busy-exit", "0"], &args[..]].concat()).await.expect_silent(0);
    scene.run(&[&["--busy-exit", "17"], &args[..]].concat()).await.expect_line(17, &["busy"]);
    // With a wait, when that is over.
    let ended = scene.run(&["--wait", "1200ms", "k", "--", "touch", "ran"]).await;
    assert!(ended.took >= Duration::from_millis(1200), "{ended:?}");
    ended.expect_line(75, &["busy", "somebody"]);
    assert!(!scene.path("ran").exists());
    assert_eq!(super::kit::waiters(&client).await, 0, "who does not wait any more is still in line");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_cannot_be_reached_is_69_however_long_one_would_wait() {
    let scene = Scene::at(format!("http://127.0.0.1:{}", server_port()));
    let ended = scene.run(&["--wait", "10m", "k", "--", "touch", "ran"]).await;
    assert!(ended.took < Duration::from_secs(15), "{ended:?}");
    ended.expect_line(69, &["127.0.0.1", "refused"]);
    assert!(!scene.path("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_wrong_is_2_in_one_line() {
    let gateway = Gateway::embedded(&["--max-ttl", "10s", "--default-ttl", "5s"]).await;
    let scene = Scene::on(&gateway);
    let cases: &[(&[&str], &str)] = &[
        (&[], "KEY"),
        (&["k"], "COMMAND"),
        // The second word could be another key.
        (&["k", "true"], "write -- in front of the command"),
        (&["", "--", "true"], "the key"),
        (&["--ttl", "30", "k", "--", "true"], "--ttl"),
        (&["--ttl", "999ms", "k", "--", "true"], "--ttl"),
        (&["--ttl", "9s", "--kill-after", "4s", "k", "--", "true"], "--kill-after"),
        (&["--ttl", "9s", "--max-hold", "8s", "k", "--", "true"], "--max-hold"),
        (&["--ttl", "1s", "--max-hold", "2s", "--min-hold", "3s", "k", "--", "true"], "--min-hold"),
        (&["--busy-exit", "256", "k", "--", "true"], "--busy-exit"),
        (&["--owner", "a\nb", "k", "--", "true"], "--owner"),
        (&["--url", "ftp://host", "k", "--", "true"], "--url"),
        (&["--url", "nonsense", "k", "--", "true"], "--url"),
        (&["--api-key", "secret", "k", "--", "true"], "--api-key"),
        (&["--api-key-file", "/no/such/file", "k", "--", "true"], "--api-key-file"),
        // What the gateway itself refuses.
        (&["--ttl", "11s", "k", "--", "true"], "10s"),
    ];
    for (args, said) in cases {
        scene.run(args).await.expect_line(2, &[said]);
    }
}
