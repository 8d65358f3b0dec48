//! A disk that does not answer: a gateway that is told to stop ends all the same.

use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kit::gateway::command;
use kit::metrics::Scrape;
use kit::{Client, Gateway, PATIENCE, eventually, fresh_token};
use tempfile::TempDir;
use tokio::time::{interval, timeout};

/// What makes each sync of a program wait for as long as a file is there.
const HANGING: &str = r#"
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int synced(long call, int file) {
    while (access(getenv("DISK_HANGS"), F_OK) == 0) usleep(10000);
    return syscall(call, file);
}
int fsync(int file) { return synced(SYS_fsync, file); }
int fdatasync(int file) { return synced(SYS_fdatasync, file); }
"#;

/// So long after a signal, another one is no copy of it.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// A gateway that has granted the lock `held`, and whose disk hangs since.
struct Scene {
    directory: TempDir,
    gateway: Gateway,
    token: String,
}

/// A program whose disk hangs while a file is there, all in this directory.
fn whose_disk_may_hang(directory: &TempDir, args: &[&str]) -> Command {
    let path = |name: &str| directory.path().join(name);
    fs::write(path("hanging.c"), HANGING).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([path("hanging.so"), path("hanging.c")]);
    assert!(compiler.status().unwrap().success());
    let mut command = command(args);
    command.env("LD_PRELOAD", path("hanging.so")).env("DISK_HANGS", path("hangs"));
    command
}

impl Scene {
    async fn start(store_timeout: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let store = format!("file:{}", path("locks.redb").display());
        let args = ["--store", &store, "--store-timeout", store_timeout, "--drain-timeout", "1m"];
        let command = whose_disk_may_hang(&directory, &args);
        let gateway = Gateway::try_start_by(command, &args).await.unwrap();
        let token = fresh_token();
        Client::new(gateway.address).put("/locks/held?ttl=1h").token(&token).send().await.expect(201);
        fs::write(path("hangs"), "").unwrap();
        Self { directory, gateway, token }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("locks.redb")
    }

    /// What was answered is in the file, which was not closed.
    async fn nothing_is_lost(self) {
        let file = self.file();
        drop(self.gateway);
        let next = Gateway::on_file(&file, &[]).await;
        Client::new(next.address).put("/locks/held?ttl=1h").token(&self.token).send().await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_disk_hangs_ends_when_it_is_stopped_and_says_why() {
    let mut scene = Scene::start("500ms").await;
    let unclear = Client::new(scene.gateway.address).put("/locks/another").send().await;
    unclear.expect_problem(503, "outcome-unknown");
    scene.gateway.signal("TERM");
    assert_eq!(scene.gateway.exit_status().await.code(), Some(1));
    let says_why =
        |line: &String| line.contains("the disk of the file store does not answer: the file is not closed");
    assert!(scene.gateway.log().iter().any(says_why), "{:#?}", scene.gateway.log());
    scene.nothing_is_lost().await;
}

/// What comes with the first one is a copy: a terminal sends it to all of a group, and a parent may pass it on.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_gateway_at_once_and_a_repeated_one_does_not() {
    let mut scene = Scene::start("1m").await;
    let client = Client::new(scene.gateway.address);
    let under_way = tokio::spawn(client.put("/locks/another").send());
    let hangs = async || Scrape::of(scene.gateway.address).await.get("fencepost_ready") == 0.0;
    eventually("the disk hangs", hangs).await;
    let (began, pid) = (Instant::now(), scene.gateway.pid());
    scene.gateway.signal("TERM");
    let mut signals = interval(Duration::from_millis(20));
    let status = {
        let mut ended = pin!(scene.gateway.exit_status());
        loop {
            tokio::select! {
                status = &mut ended => break status,
                _ = signals.tick() => kit::signal(pid, "INT"),
            }
        }
    };
    assert!(began.elapsed() >= ONE_SIGNAL, "a copy of the signal has ended it");
    assert_eq!(status.code(), Some(1));
    let says_why = |line: &String| line.contains("stopped at once: requests under way were cut off");
    assert!(scene.gateway.log().iter().any(says_why), "{:#?}", scene.gateway.log());
    under_way.abort();
    scene.nothing_is_lost().await;
}

/// As on a network mount: the file is made, and opened, for as long as the disk hangs.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_opens_its_file_on_a_disk_that_hangs_ends_when_it_is_stopped() {
    for threads in ["1", "2"] {
        let (directory, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(directory.path().join("hangs"), "").unwrap();
        let store = format!("file:{}", place.path().join("locks.redb").display());
        let command = whose_disk_may_hang(&directory, &["--store", &store, "--threads", threads]);
        let mut command = tokio::process::Command::from(command);
        let gateway = command.kill_on_drop(true).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it makes the file", async || fs::read_dir(place.path()).unwrap().next().is_some()).await;
        kit::signal(gateway.id().unwrap(), "TERM");
        let output = timeout(PATIENCE, gateway.wait_with_output()).await.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("stopped before it listened"), "{said}");
    }
}
