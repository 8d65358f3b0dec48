//! Nobody is left: neither at the command's end, nor at that of its lease.

use std::process::Command;
use std::time::Duration;

use super::kit::{Running, Scene, is_alive, is_held, last_lease_began_at, release_of, requests, stubborn};
use kit::gateway::program;
use kit::{Client, Gateway, eventually, signal};

/// How a grandchild that ignores SIGTERM comes to be: in the group of the command, in a session of its own, as daemons do it,
/// by a parent that has ended, and as one whose first thread has ended.
const BIRTHS: [(&str, &str); 4] = [
    ("child", "sh child &"),
    ("session", "setsid sh session &"),
    ("daemon", "(setsid sh daemon &)"),
    ("thread", "setsid python3 thread &"),
];

/// The same as `stubborn`, in a process that looks like a zombie.
const THREAD: &str = "
import ctypes, os, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def beat():
    while ') Z ' not in open('/proc/self/stat').read():
        time.sleep(0.01)
    for n in range(3000):
        with open('thread', 'a') as beats:
            print(time.time_ns(), file=beats)
        if n == 0:
            with open('thread.pid', 'w') as pid:
                print(os.getpid(), file=pid)
        time.sleep(0.02)
threading.Thread(target=beat, daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
";

/// A scene with a script for each, and a command that starts all of them and goes on when they are there.
fn scene_with_grandchildren(gateway: &Gateway) -> (Scene, String) {
    let scene = Scene::on(gateway);
    let mut script = String::new();
    for (name, birth) in BIRTHS {
        std::fs::write(scene.path(name), stubborn(name)).unwrap();
        script += &format!("{birth}\nwhile [ ! -s {name}.pid ]; do sleep 0.02; done\n");
    }
    std::fs::write(scene.path("thread"), THREAD).unwrap();
    (scene, script)
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_are_left_at_the_end_are_killed_before_the_lock_is_released() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, script) = scene_with_grandchildren(&gateway);
    let running = scene.start_script(&["--ttl", "3s", "--kill-after", "700ms"], &format!("{script} exit 4"));
    running.end().await.expect_silent(4);
    let released_at = release_of(&gateway).await.at;
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
    // A signal for the command alone is not for them: a shell has its background jobs ignore SIGINT.
    let flags = ["--signal", "INT", "--ttl", "10m", "--kill-after", "1m"];
    let ended = scene.run_script(&flags, script).await.expect_silent(3);
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
    for name in ["child", "session", "daemon", "thread", "command"] {
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
    let script = ": >born; for n in 1 2 3; do setsid sh chain $n & done
        while [ $(wc -l <born) -lt 20 ]; do sleep 0.02; done";
    scene.run_script(&["--ttl", "10s", "--kill-after", "50ms"], script).await.expect_silent(0);
    let born = scene.read("born");
    assert!(!born.lines().any(|pid| is_alive(pid.parse().unwrap())), "somebody is alive");
    assert_eq!(scene.read("born"), born, "somebody was born");
    // They did not come to their own end.
    assert!(born.lines().count() < 2500, "{}", born.lines().count());
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
    let script = "sh parent & echo $! >parent.pid; while [ ! -s orphan ]; do sleep 0.02; done";
    scene.start_behind(script, &[]).end().await.expect_silent(6);
    for name in ["stranger", "orphan"] {
        ends_when_killed(&scene, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_that_was_there_before_leaves_behind_later_is_left_alone() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    // Its parent has ended before it is known of.
    std::fs::write(
        scene.path("job"),
        "while [ ! -e begun ]; do sleep 0.02; done; (setsid sleep 30 & echo $! >late)",
    )
    .unwrap();
    std::fs::write(scene.path("command"), ">begun; while [ ! -s late ]; do sleep 0.02; done; exit 6")
        .unwrap();
    scene.start_behind("sh job &", &["--kill-after", "100ms"]).end().await.expect_silent(6);
    ends_when_killed(&scene, "late").await;
    ends_when_killed(&scene, "stranger").await;
}

/// Three thousand orphans that sleep, and six lines of processes of which each starts the next one and ends. Their reaper goes past
/// all that sleep to find one that has ended. The file `late` is there once they end by themselves, after twenty seconds.
const CROWD: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void tell(int signal) { creat("told", 0600); _exit(7); }

int main(void) {
    pid_t maker = fork();
    if (maker == 0) {
        for (int n = 0; n < 3000; n++)
            switch (fork()) {
            case -1: _exit(1);
            case 0: alarm(60); for (;;) pause();
            }
        _exit(0);
    }
    int status;
    waitpid(maker, &status, 0);
    if (status != 0) return 1;
    time_t end = time(0) + 20;
    for (int n = 0; n < 6; n++)
        if (fork() == 0) {
            while (access("told", F_OK)) {
                if (time(0) > end) { creat("late", 0600); _exit(0); }
                if (fork() > 0) _exit(0);
            }
            _exit(0);
        }
    signal(SIGTERM, tell);
    creat("ready", 0600);
    for (;;) pause();
}
"#;

/// As a build that starts many helpers, and short processes in the background.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_orphans_end_as_fast_as_they_are_reaped_is_told_to_end_all_the_same() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    std::fs::write(scene.path("crowd.c"), CROWD).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-o", "crowd", "crowd.c"]).current_dir(scene.directory.path());
    assert!(compiler.status().unwrap().success());
    let running = scene.start(&["--ttl", "1m", "k", "--", "./crowd"]);
    eventually("all are there", async || scene.path("ready").exists()).await;
    // So many have ended by then that they are reaped without a pause.
    tokio::time::sleep(Duration::from_millis(500)).await;
    running.signal("TERM");
    running.end().await.expect_silent(7);
    assert!(!scene.path("late").exists());
    assert_eq!(release_of(&gateway).await.status, 204);
}

/// Forks and ends each millisecond, in a session of its own, and writes the time into a file each time.
const FLEETING: &str = "
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
beats = os.open('beats', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
give_up = time.monotonic() + 40
while time.monotonic() < give_up and not os.path.exists('over'):
    if os.fork():
        os._exit(0)
    os.write(beats, b'%d\\n' % time.time_ns())
    time.sleep(0.001)
";

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_free_while_a_daemon_lives_that_no_look_catches() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    std::fs::write(scene.path("fleeting"), FLEETING).unwrap();
    std::fs::write(
        scene.path("command"),
        "python3 fleeting & while [ ! -s beats ]; do sleep 0.02; done; exit 6",
    )
    .unwrap();
    let ended = scene.start_behind("", &["--ttl", "20s", "--kill-after", "100ms"]).end().await;
    if ended.stderr.is_empty() {
        let released = release_of(&gateway).await;
        // Whoever is left writes in this time.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(scene.last_beat("beats") <= released.at, "it outlived the lock");
        ended.expect_silent(6);
    } else {
        // It got away, and the lock is kept.
        let is_kept = is_held(&client, "k").await;
        std::fs::write(scene.path("over"), "").unwrap();
        assert!(is_kept);
        ended.expect_line(6, &["could not be ended"]);
    }
    ends_when_killed(&scene, "stranger").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_behind_such_children_gets_signals_and_says_how_its_command_ended() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let command = "exec 2>/dev/null; trap 'echo USR1 >>got' USR1; trap 'exit 5' TERM; >ready; while :; do sleep 0.02; done";
    std::fs::write(scene.path("command"), command).unwrap();
    // The second shell ignores that its children end, and so does whoever it becomes.
    for shell in [":", "trap '' CHLD"] {
        let running = scene.start_behind(shell, &[]);
        eventually("the command is ready", async || scene.path("ready").exists()).await;
        running.signal("USR1");
        scene.says("got", "USR1\n").await;
        running.signal("TERM");
        running.end().await.expect_silent(5);
        assert_eq!(scene.read("got"), "USR1\n", "{shell}");
        ends_when_killed(&scene, "stranger").await;
        for name in ["ready", "got"] {
            std::fs::remove_file(scene.path(name)).unwrap();
        }
    }
    let running = scene.start_behind(":", &[]);
    eventually("the command is ready", async || scene.path("ready").exists()).await;
    running.signal("INT");
    running.end().await.expect_silent(130);
    ends_when_killed(&scene, "stranger").await;
}

/// By the numbers there, `run` would take strangers for its own, and kill them in the place of the command.
#[tokio::test(flavor = "multi_thread")]
async fn where_proc_is_that_of_another_namespace_no_lock_is_taken_and_nothing_started() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let flags = if rustix::process::getuid().is_root() { "-pf" } else { "-Urpf" };
    let mut command = Command::new("unshare");
    command.args([flags, program(), "run", "k", "--", "touch", "started"]);
    command.env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
    let ended = scene.launch(command).end().await;
    assert!(!scene.path("started").exists(), "{ended:?}");
    assert!(requests(&gateway).is_empty(), "{ended:?}");
    // A container may forbid namespaces. There, a test of the check itself has to do.
    if !ended.stderr.starts_with("unshare: ") {
        ended.expect_line(71, &["/proc is that of another PID namespace", "--mount-proc"]);
    }
}

/// Expects that somebody lives, and ends it.
async fn ends_when_killed(scene: &Scene, name: &str) {
    let pid = scene.number(name).await;
    assert!(is_alive(pid), "{name}");
    signal(pid, "KILL");
    eventually("it is gone", async || !is_alive(pid)).await;
}

impl Scene {
    /// A shell that starts others and then becomes this program: its children become ours. It runs the script `command`.
    fn start_behind(&self, script: &str, flags: &[&str]) -> Running {
        let shell = format!("sleep 30 & echo $! >stranger; {script}\nexec \"$0\" run \"$@\" k -- sh command");
        let mut command = Command::new("sh");
        command.args(["-c", &shell, program()]).args(flags);
        command.env("FENCEPOST_URL", &self.url).current_dir(self.directory.path());
        self.launch(command)
    }
}
