//! Locks in a shell script, with `curl` alone.

use std::fs;
use std::time::{Duration, Instant};

use tokio::process::Child;

use super::cron::{cron, read_crontab, says_nothing};
use super::{Scene, on_each_gateway};
use crate::pages::{Said, file};
use kit::{RedisServer, eventually, signal};

on_each_gateway!(
    a_connection_holds_the_lock_for_as_long_as_the_command_runs,
    a_script_that_is_ended_ends_its_command_and_frees_its_lock,
    a_script_whose_group_is_ended_keeps_its_lock_until_its_command_has_ended,
    a_script_that_loses_its_lock_ends_its_command_and_says_why,
    a_command_at_its_longest_hold_has_time_to_end_before_its_lease_does,
    of_several_machines_with_the_crontab_of_hold_one_does_the_work,
    a_script_whose_curl_is_killed_frees_its_lock_and_ends_its_command,
    a_script_whose_curl_is_stopped_ends_its_command_and_frees_its_lock,
    a_command_whose_script_is_killed_keeps_its_lock_until_it_ends,
    commands_wait_for_their_turn,
    busy_and_down_are_told_apart,
);

#[test]
fn no_script_with_curl_is_longer_than_fifteen_lines() {
    for name in ["hold", "in-turn", "try-lock", "deposit"] {
        let lines = file(name).lines().count();
        assert!(lines <= 15, "{name} has {lines} lines");
    }
}

/// Starts the recipe with the job under the lock `k`, and waits until it runs.
async fn begin(scene: &Scene) -> Child {
    let child = scene.script("hold", &["k", "./job"]).spawn().unwrap();
    scene.starts_to_run().await;
    child
}

async fn a_connection_holds_the_lock_for_as_long_as_the_command_runs(scene: Scene) {
    let child = begin(&scene).await;
    let look = async || scene.client.get("/locks/k").send().await;
    let number = look().await.expect(200).fencing_token();
    // The command finds the fencing token, and no lease token.
    assert_eq!(scene.read("notes"), format!("runs {number}\n"));
    // For longer than the lease.
    let renewed = Instant::now() + Duration::from_secs(17);
    while Instant::now() < renewed {
        assert_eq!(look().await.expect(200).fencing_token(), number);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Scene::say(scene.script("hold", &["k", "touch", "wrong"]))
        .await
        .expect(75, "k: no lock: ")
        .expect(75, "lock-held");
    let mut success = scene.script("hold", &["k", "touch", "wrong"]);
    success.env("BUSY_EXIT", "0");
    let said = Scene::say(success).await;
    assert_eq!((said.code, said.text.as_str()), (Some(0), ""));
    let mut waiting = scene.script("hold", &["k", "touch", "waited"]);
    let waiting = waiting.env("WAIT", "20s").spawn().unwrap();
    eventually("it waits", async || look().await.json()["waiters"] == 1).await;
    scene.write("go", "");
    let said = Scene::end(child).await;
    assert_eq!((said.code, said.text.as_str()), (Some(3), ""));
    Scene::end(waiting).await.expect(0, "");
    scene.becomes_free("k").await;
    assert!(scene.shell.path("waited").exists() && !scene.shell.path("wrong").exists());
    let mut alone = scene.script("hold", &["k", "touch", "wrong"]);
    Scene::alone(&mut alone);
    Scene::say(alone).await.expect(69, "k: no lock: no answer");
    assert!(!scene.shell.path("wrong").exists());
}

async fn a_script_that_is_ended_ends_its_command_and_frees_its_lock(scene: Scene) {
    for name in ["TERM", "INT", "HUP"] {
        let _ = fs::remove_file(scene.shell.path("notes"));
        let child = begin(&scene).await;
        signal(child.id().unwrap(), name);
        let said = Scene::end(child).await;
        assert_eq!((said.code, said.text.as_str()), (Some(4), ""), "{name}");
        assert!(scene.read("notes").ends_with("\nasked to end\n"), "{name}");
        scene.becomes_free("k").await;
    }
}

/// `timeout` and systemd send their signal to all processes of a script at once.
fn signal_group(child: &Child, name: &str) {
    let group = format!("-{}", child.id().unwrap());
    let sent = std::process::Command::new("kill").args(["-s", name, "--", &group]).status();
    assert!(sent.unwrap().success());
}

async fn a_script_whose_group_is_ended_keeps_its_lock_until_its_command_has_ended(scene: Scene) {
    let ends_slowly =
        r#"trap 'trap "" TERM HUP; echo asked to end >>notes; sleep 2; echo ended >>notes; exit 4' TERM HUP"#;
    let job = super::JOB.replace("trap 'echo asked to end >>notes; exit 4' TERM", ends_slowly);
    scene.program("job", &job);
    let look = async || scene.client.get("/locks/k").send().await;
    for name in ["TERM", "HUP"] {
        let _ = fs::remove_file(scene.shell.path("notes"));
        let child = scene.script("hold", &["k", "./job"]).process_group(0).spawn().unwrap();
        scene.starts_to_run().await;
        let mut next = scene.script("hold", &["k", "sh", "-c", "echo the next one runs >>notes"]);
        let next = next.env("WAIT", "30s").spawn().unwrap();
        eventually("it waits", async || look().await.json()["waiters"] == 1).await;
        // One that waits leaves the queue.
        let mut left = scene.script("hold", &["k", "touch", "wrong"]);
        let left = left.env("WAIT", "30s").process_group(0).spawn().unwrap();
        eventually("both wait", async || look().await.json()["waiters"] == 2).await;
        signal_group(&left, name);
        assert_eq!(Scene::end(left).await.code, Some(143));
        eventually("one waits", async || look().await.json()["waiters"] == 1).await;
        // Bash and its commands in the background ignore this one.
        signal_group(&child, "QUIT");
        signal_group(&child, name);
        // The status of the command is lost to bash where both end at once.
        let said = Scene::end(child).await;
        assert!(matches!(said.code, Some(4 | 129 | 143)), "{said:?}");
        Scene::end(next).await.expect(0, "");
        let notes = scene.read("notes");
        assert!(notes.ends_with("ended\nthe next one runs\n"), "{notes}");
        scene.becomes_free("k").await;
    }
    assert!(!scene.shell.path("wrong").exists());
}

/// What comes after it would work at the same time otherwise.
async fn a_command_at_its_longest_hold_has_time_to_end_before_its_lease_does(scene: Scene) {
    scene.program("job", &super::JOB.replace("asked to end >>notes;", "asked to end >>notes; sleep 2;"));
    for params in ["ttl=9s&max_hold=9s", "ttl=9s&max_hold=13s"] {
        let _ = fs::remove_file(scene.shell.path("notes"));
        let mut command = scene.script("hold", &["k", "./job"]);
        let child = command.env("HOLD_PARAMS", params).spawn().unwrap();
        scene.starts_to_run().await;
        let mut waiting = scene.script("hold", &["k", "sh", "-c", "echo the next one runs >>notes"]);
        let waiting = waiting.env("WAIT", "30s").spawn().unwrap();
        eventually("it is asked to end", async || scene.read("notes").ends_with("\nasked to end\n")).await;
        let held = scene.client.get("/locks/k").send().await.expect(200).json();
        assert!(held["expires_in_ms"].as_u64().unwrap() > 2_000, "{params}: {held}");
        let said = Scene::end(child).await;
        assert_eq!((said.code, said.text.as_str()), (Some(4), "k: the lock is lost: no more renewals\n"));
        Scene::end(waiting).await.expect(0, "");
        scene.becomes_free("k").await;
    }
}

async fn of_several_machines_with_the_crontab_of_hold_one_does_the_work(scene: Scene) {
    scene.program("bin/hold", &file("hold"));
    scene.program("bin/backup", super::JOB);
    let tab = read_crontab(&scene, "crontab-of-hold");
    let first = cron(&scene, &tab).spawn().unwrap();
    scene.starts_to_run().await;
    says_nothing(&scene, &tab).await;
    let look = async || scene.client.get("/locks/nightly-backup").send().await.expect(200).json();
    assert!(look().await["owner"].as_str().is_some_and(|owner| !owner.is_empty()));
    scene.write("go", "");
    Scene::end(first).await.expect(3, "");
    // A machine whose clock is late finds it taken still.
    says_nothing(&scene, &tab).await;
    assert_eq!(scene.read("notes").lines().count(), 1);
    let kept = look().await["expires_in_ms"].as_u64().unwrap();
    assert!((200_000..=300_000).contains(&kept), "{kept}");
}

async fn a_script_that_loses_its_lock_ends_its_command_and_says_why(scene: Scene) {
    for _ in 0..3 {
        let child = begin(&scene).await;
        scene.client.delete("/locks/k?force=true").send().await.expect(204);
        ended_for_the_loss(&scene, child, "released").await;
    }
    // A gateway that stops says so.
    let child = begin(&scene).await;
    scene.gateway.signal("TERM");
    ended_for_the_loss(&scene, child, "shutting-down").await;
}

async fn ended_for_the_loss(scene: &Scene, child: Child, reason: &str) {
    let said = Scene::end(child).await;
    assert_eq!((said.code, said.text), (Some(4), format!("k: the lock is lost: {reason}\n")));
    assert!(scene.read("notes").ends_with("\nasked to end\n"));
    fs::remove_file(scene.shell.path("notes")).unwrap();
}

/// The connection stands, and nothing comes by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_whose_gateway_stands_still_ends_its_command() {
    let scene = Scene::without_keys().await;
    let child = begin(&scene).await;
    scene.gateway.signal("STOP");
    let said = Scene::end(child).await;
    scene.gateway.signal("CONT");
    assert_eq!((said.code, said.text.as_str()), (Some(4), "k: the lock is lost: no more renewals\n"));
}

/// When the script ends its command, after a grant and, 5 s later, a renewal that says how old the request is, and then silence.
async fn ends_after_a_renewal(request_age_ms: u64) -> Duration {
    let scene = Scene::without_keys().await;
    let line = |event, age_ms: u64| {
        let lease = r#""fencing_token":1,"ttl_ms":9000,"expires_at":"2030-01-01T00:00:00Z""#;
        format!("echo '{{\"event\":\"{event}\",{lease},\"request_age_ms\":{age_ms}}}'")
    };
    let lines = [line("granted", 0), line("renewed", request_age_ms)].join("; sleep 5; ");
    scene.program("bin/curl", &format!("#!/usr/bin/env bash\n{lines}\nexec sleep 60\n"));
    let asked = Instant::now();
    let said = Scene::end(begin(&scene).await).await;
    assert_eq!((said.code, said.text.as_str()), (Some(4), "k: the lock is lost: no more renewals\n"));
    asked.elapsed()
}

/// As after a pause of the machine: the line has waited in a buffer, and what it says of the lease is old.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_read_late_keeps_no_command_for_longer_than_the_lease() {
    let elapsed = ends_after_a_renewal(0).await;
    assert!(elapsed < Duration::from_secs(9), "{elapsed:?}");
}

/// As after a pause of the machine in which its clock stood still.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_runs_behind_the_gateways_keeps_no_command_for_longer_than_the_lease() {
    let elapsed = ends_after_a_renewal(65_000).await;
    assert!(elapsed < Duration::from_secs(5 + 9), "{elapsed:?}");
}

/// The one of the page on holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_holds_a_lock_ends_when_its_gateway_stands_still() {
    let scene = Scene::without_keys().await;
    let code = scene.shell.pasted("/hold?key=import");
    assert!(code.starts_with("timeout 10 curl "));
    let child = scene.command("bash", &["-e", "-u", "-c", &code.replace("timeout 10 ", "")]).spawn().unwrap();
    let look = async || scene.client.get("/locks/import").send().await;
    eventually("the lock is held", async || look().await.status == 200).await;
    scene.gateway.signal("STOP");
    let said = Scene::end(child).await;
    scene.gateway.signal("CONT");
    said.expect(0, "status 28\n");
}

/// The one of the page on commands. Not each shell runs its EXIT trap on a signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_has_acquired_releases_when_it_is_ended_in_each_shell() {
    let scene = Scene::without_keys().await;
    let code = scene.shell.pasted("LEASE=$(fencepost acquire");
    let code = code.replace("echo \"going on\"", ": >begun; while [ ! -e go ]; do sleep 0.02; done");
    for shell in ["bash", "sh"] {
        // The last one comes when the reader of its output has gone.
        for name in ["HUP", "INT", "TERM", "PIPE"] {
            let child = scene.command(shell, &["-c", &code]).spawn().unwrap();
            eventually("it has renewed", async || scene.shell.path("begun").exists()).await;
            signal(child.id().unwrap(), name);
            Scene::end(child).await.expect(143, "backing up with ");
            scene.client.get("/locks/nightly-backup").send().await.expect_problem(404, "not-held");
            fs::remove_file(scene.shell.path("begun")).unwrap();
        }
    }
}

async fn a_script_whose_curl_is_killed_frees_its_lock_and_ends_its_command(scene: Scene) {
    let child = begin(&scene).await;
    let curls = scene.processes("curl");
    assert_eq!(curls.len(), 1);
    signal(curls[0], "KILL");
    scene.becomes_free("k").await;
    Scene::end(child).await.expect(4, "k: the lock is lost: no more renewals\n");
}

/// The gateway renews for as long as the connection is there.
async fn a_script_whose_curl_is_stopped_ends_its_command_and_frees_its_lock(scene: Scene) {
    let child = begin(&scene).await;
    let curls = scene.processes("curl");
    assert_eq!(curls.len(), 1);
    signal(curls[0], "STOP");
    Scene::end(child).await.expect(4, "k: the lock is lost: no more renewals\n");
    scene.becomes_free("k").await;
    eventually("nothing is left of it", async || scene.processes("curl").is_empty()).await;
}

async fn a_command_whose_script_is_killed_keeps_its_lock_until_it_ends(scene: Scene) {
    let child = begin(&scene).await;
    signal(child.id().unwrap(), "KILL");
    // It goes on, for longer than a lease, and so does its lock.
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(16) {
        scene.client.get("/locks/k").send().await.expect(200);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(scene.read("notes").lines().count(), 1);
    scene.write("go", "");
    scene.becomes_free("k").await;
    eventually("nothing is left", async || scene.processes("curl").is_empty()).await;
}

async fn commands_wait_for_their_turn(scene: Scene) {
    let waiters = async |expected: u64| {
        let look = async || scene.client.get("/locks/deploy").send().await;
        eventually("so many wait", async || look().await.json()["waiters"] == expected).await;
    };
    let job = "echo $1 begins ${FENCING_TOKEN:+with its token} >>runs; until [ -e go ]; do sleep 0.02; done; echo $1 ends >>runs";
    let start =
        |name: &str| scene.script("in-turn", &["deploy", "sh", "-c", job, "sh", name]).spawn().unwrap();
    let mut jobs = vec![start("a")];
    eventually("the first job runs", async || scene.shell.path("runs").exists()).await;
    let held = scene.client.get("/locks/deploy").send().await.expect(200).json();
    assert!(held["owner"].as_str().is_some_and(|owner| !owner.is_empty()), "{held}");
    for (number, name) in ["b", "c"].into_iter().enumerate() {
        jobs.push(start(name));
        waiters(number as u64 + 1).await;
    }
    // One that is interrupted leaves the queue.
    let interrupted = start("d");
    waiters(3).await;
    signal(interrupted.id().unwrap(), "TERM");
    drop(Scene::end(interrupted).await);
    waiters(2).await;
    scene.write("go", "");
    for job in jobs {
        Scene::end(job).await.expect(0, "");
    }
    let expected =
        ["a", "b", "c"].map(|name| format!("{name} begins with its token\n{name} ends\n")).concat();
    assert_eq!(scene.read("runs"), expected);
    scene.becomes_free("deploy").await;
    let mut short = scene.script("in-turn", &["kept", "true"]);
    short.env("HOLD_PARAMS", "ttl=10s&min_hold=5m");
    Scene::say(short).await.expect(0, "");
    let left =
        async || scene.client.get("/locks/kept").send().await.expect(200).json()["expires_in_ms"].as_u64();
    eventually("it is kept for its min_hold", async || left().await > Some(60_000)).await;
    let mut hopeless = scene.script("in-turn", &["deploy", "touch", "wrong"]);
    Scene::alone(&mut hopeless).env("GIVE_UP_S", "0");
    Scene::say(hopeless).await.expect(69, "deploy: no lock: HTTP 000");
    assert!(!scene.shell.path("wrong").exists());
}

async fn busy_and_down_are_told_apart(scene: Scene) {
    let try_lock = async |name: &str, ttl: &str| Scene::say(scene.script("try-lock", &[name, ttl])).await;
    let look = async |key: &str| scene.client.get(&format!("/lock?key={key}")).send().await.expect(200);
    let said = try_lock("a", "5s").await.expect(0, "");
    assert_eq!(said.text, format!("{}\n", look("a").await.fencing_token()));
    try_lock("a", "5s").await.expect(75, "a: busy\n");
    // A name says nothing but a name.
    try_lock("zz?ttl=24h#&\"", "5s").await.expect(0, "");
    let held = look("zz%3Fttl%3D24h%23%26%22").await.json();
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 5_000, "{held}");
    try_lock("a", "5").await.expect(2, "a: refused: ").expect(2, "bad-parameter");
    let mut alone = scene.script("try-lock", &["a", "5s"]);
    Scene::alone(&mut alone);
    Scene::say(alone).await.expect(69, "the gateway is away");
}

/// A job that waits for its turn would wait for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_waiting_mends_ends_a_script_at_once() {
    let scene = Scene::with_keys_and_tls().await;
    let settings = scene.read("fencepost.curl");
    let keyless: String = settings.lines().filter(|line| !line.starts_with("header")).collect();
    scene.write("keyless.curl", &keyless);
    for (script, settings, said) in [
        ("hold", "keyless.curl", "deploy: no lock: {\"type\":\"/problems/key-required\""),
        ("in-turn", "keyless.curl", "deploy: no lock: HTTP 401"),
        ("in-turn", "/dev/null", "deploy: no lock: HTTP 000"),
        ("hold", "/dev/null", "deploy: no lock: no answer"),
        ("hold", "missing.curl", "deploy: no lock: no answer"),
        ("in-turn", "missing.curl", "deploy: no lock: HTTP "),
        ("try-lock", "keyless.curl", "deploy: refused: {\"type\":\"/problems/key-required\""),
        ("try-lock", "/dev/null", "deploy: cannot ask"),
        ("try-lock", "missing.curl", "deploy: cannot ask"),
    ] {
        let mut command = scene.script(script, arguments_of(script));
        command.env("FENCEPOST_CURL", settings);
        Scene::say(command).await.expect(2, said);
        assert!(!scene.shell.path("wrong").exists());
    }
    for (script, said) in [
        ("hold", "deploy: no lock: no answer: look at FENCEPOST_URL"),
        ("in-turn", "deploy: no lock: HTTP 000: look at FENCEPOST_URL"),
        ("try-lock", "deploy: cannot ask: look at FENCEPOST_URL"),
    ] {
        let mut several = scene.script(script, arguments_of(script));
        several.env("FENCEPOST_URL", "https://a.invalid,https://b.invalid");
        Scene::say(several).await.expect(2, said);
    }
}

fn arguments_of(script: &str) -> &'static [&'static str] {
    if script == "try-lock" { &["deploy", "5s"] } else { &["deploy", "touch", "wrong"] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_without_what_it_needs_takes_no_lock_and_says_how_to_call_it() {
    let scene = Scene::without_keys().await;
    for (script, wrong, said) in [
        ("hold", &[&[][..], &["k"]][..], "usage: hold NAME COMMAND…"),
        ("in-turn", &[&[], &["k"]], "usage: in-turn NAME COMMAND…"),
        ("try-lock", &[&[], &["k"], &["k", "5s", "true"]], "usage: try-lock NAME TTL"),
    ] {
        for arguments in wrong {
            Scene::say(scene.script(script, arguments)).await.expect(2, said);
        }
    }
    scene.client.get("/locks/k").send().await.expect(404);
}

/// Cron starts it in another directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_its_turn_finds_its_other_script_from_anywhere() {
    let scene = Scene::without_keys().await;
    let script = scene.shell.path("in-turn").display().to_string();
    let mut command = scene.command("bash", &[&script, "deploy", "echo", "done"]);
    command.current_dir("/");
    Scene::say(command).await.expect(0, "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_its_store_counts_as_down() {
    let scene = Scene::without_keys().await;
    let mut redis = RedisServer::start().await;
    let gateway = kit::Gateway::on_redis(&redis, &[]).await;
    redis.kill();
    let mut command = scene.script("try-lock", &["a", "5s"]);
    command.env("FENCEPOST_URL", format!("http://{}", gateway.address));
    let said: Said = Scene::say(command).await;
    said.expect(69, "cannot use its store");
}
