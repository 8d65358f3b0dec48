//! Nobody is left: neither at the command's end, nor at that of its lease.

use std::process::Command;
use std::time::Duration;

use super::kit::{Scene, is_alive, last_lease_began_at, requests, stubborn};
use crate::support::gateway::PROGRAM;
use crate::support::{Gateway, eventually, signal};

/// How a grandchild that ignores SIGTERM comes to be: in the group of the command, in a session of its own, and as daemons
/// do it, by a parent that has ended.
const BIRTHS: [(&str, &str); 3] =
    [("child", "sh child &"), ("session", "setsid sh session &"), ("daemon", "(setsid sh daemon &)")];

/// A scene with a script for each, and a command that starts all of them and goes on when they are there.
fn scene_with_grandchildren(gateway: &Gateway) -> (Scene, String) {
    let scene = Scene::on(gateway);
    let mut script = String::new();
    for (name, birth) in BIRTHS {
        std::fs::write(scene.path(name), stubborn(name)).unwrap();
        script += &format!("{birth}\nwhile [ ! -s {name}.pid ]; do sleep 0.02; done\n");
    }
    (scene, script)
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_are_left_at_the_end_are_killed_before_the_lock_is_released() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, script) = scene_with_grandchildren(&gateway);
    let running = scene.start_script(&["--ttl", "3s", "--kill-after", "700ms"], &format!("{script} exit 4"));
    running.end().await.expect_silent(4);
    let released_at = requests(&gateway).iter().find(|request| request.method == "DELETE").unwrap().at;
    for (name, _) in BIRTHS {
        assert!(!is_alive(scene.number(&format!("{name}.pid")).await), "{name} is alive");
        assert!(scene.last_beat(name) <= released_at, "{name} outlived the lock");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_are_left_at_the_end_are_asked_first() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let polite =
        "exec 2>/dev/null; trap 'echo asked >said; exit' TERM; echo >ready; while :; do sleep 0.02; done";
    std::fs::write(scene.path("polite"), polite).unwrap();
    let script = "(setsid sh polite &); while [ ! -e ready ]; do sleep 0.02; done; exit 3";
    let ended = scene.run_script(&["--ttl", "10m", "--kill-after", "1m"], script).await.expect_silent(3);
    assert!(ended.took < Duration::from_secs(30), "{ended:?}");
    assert_eq!(scene.read("said"), "asked\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_dead_before_the_lease_ends_when_the_gateway_is_gone() {
    let mut gateway = Gateway::embedded(&[]).await;
    let (scene, script) = scene_with_grandchildren(&gateway);
    let ttl = Duration::from_secs(3);
    let goes_on = stubborn("command").replace("trap '' TERM", "trap 'date +%s%N >>asked' TERM");
    let script = format!("{script} {goes_on}");
    let running = scene.start_script(&["--ttl", "3s"], &script);
    scene.number("command.pid").await;
    gateway.kill();
    let ended = running.end().await.expect_line(76, &["\"k\"", "refused"]);
    let lease_ends_at = last_lease_began_at(&gateway) + ttl;
    for name in ["child", "session", "daemon", "command"] {
        assert!(!is_alive(scene.number(&format!("{name}.pid")).await), "{name} is alive: {ended:?}");
        assert!(scene.last_beat(name) < lease_ends_at, "{name} outlived the lease");
    }
    // A third of the ttl was there for ending in one's own way.
    let asked_at = scene.last_beat("asked");
    assert!(asked_at < lease_ends_at - ttl / 4, "there was no time left");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_born_while_others_are_killed_is_killed_too() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    // Each lives for a moment, in a session of its own, and has a child.
    let chain = "trap '' TERM; echo $$ >>born; [ $1 -lt 1000 ] && setsid sh chain $(($1+1)) & sleep 0.02";
    std::fs::write(scene.path("chain"), chain).unwrap();
    let script = ": >born; for n in 1 2 3 4 5 6 7 8; do setsid sh chain $n & done
        while [ $(wc -l <born) -lt 20 ]; do sleep 0.02; done";
    scene.run_script(&["--ttl", "10s", "--kill-after", "50ms"], script).await.expect_silent(0);
    let born = scene.read("born");
    assert!(!born.lines().any(|pid| is_alive(pid.parse().unwrap())), "somebody is alive");
    assert_eq!(scene.read("born"), born, "somebody was born");
    // They did not come to their own end.
    assert!(born.lines().count() < 7000, "{}", born.lines().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_were_there_before_are_left_alone_and_so_are_their_orphans() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    std::fs::write(
        scene.path("parent"),
        "sleep 30 & echo $! >orphan; while [ ! -e over ]; do sleep 0.02; done",
    )
    .unwrap();
    // It ends when those are there whose parent has ended.
    let script = "sleep 30 & >over; while kill -0 $(cat parent.pid) 2>&-; do sleep 0.02; done; exit 6";
    std::fs::write(scene.path("command"), script).unwrap();
    // A shell that becomes this program: its children become ours.
    let shell = "sleep 30 & echo $! >stranger; sh parent & echo $! >parent.pid
        while [ ! -s orphan ]; do sleep 0.02; done; exec \"$0\" run k -- sh command";
    let mut command = Command::new("sh");
    command.args(["-c", shell, PROGRAM]);
    command.env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
    scene.launch(command).end().await.expect_silent(6);
    for name in ["stranger", "orphan"] {
        let pid = scene.number(name).await;
        assert!(is_alive(pid), "{name}");
        signal(pid, "KILL");
        eventually("it is gone", async || !is_alive(pid)).await;
    }
}
