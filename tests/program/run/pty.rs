//! A pseudo-terminal, with a program in a session of its own on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::kit::Scene;
use kit::gateway::program;
use kit::{PATIENCE, eventually};

/// A person in front of a terminal. The program on it hangs up when this is dropped.
pub struct Person {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
    child: Child,
}

impl Person {
    /// Starts this on a terminal of its own, as its session's leader.
    pub fn starts(scene: &Scene, words: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits().try_into().unwrap())
            .open(name.to_str().unwrap())
            .unwrap();
        let stream = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .args(words)
            .env("FENCEPOST_URL", &scene.url)
            .env("F", program())
            .env("TERM", "dumb")
            .env("PS1", "$ ")
            .current_dir(scene.directory.path())
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        let screen: Arc<Mutex<String>> = Arc::default();
        let mut shown = File::from(ours.try_clone().unwrap());
        let reader = std::thread::spawn({
            let screen = screen.clone();
            move || {
                let mut bytes = [0; 4096];
                // An error is the end: nobody has the other side any more.
                while let Ok(count @ 1..) = shown.read(&mut bytes) {
                    screen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
                }
            }
        });
        Self { keyboard: File::from(ours), screen, reader, child }
    }

    /// Starts `fencepost run` with these arguments.
    pub fn runs(scene: &Scene, args: &[&str]) -> Self {
        Self::starts(scene, &[&[program(), "run"], args].concat())
    }

    /// Starts an interactive shell, in which `$F` is the program.
    pub async fn sits_at_a_shell(scene: &Scene) -> Self {
        let person = Self::starts(scene, &["bash", "--norc", "--noprofile", "-i"]);
        person.sees("$ ").await;
        person
    }

    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until this stands on the screen.
    pub async fn sees(&self, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !self.screen().contains(text) {
            assert!(Instant::now() < give_up, "{text:?} is not shown on {:?}", self.screen());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for the end of the program, and returns its exit status.
    pub async fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the program on the terminal ends", async || {
            status = self.child.try_wait().unwrap();
            // All that it has written stands on the screen.
            status.is_some() && self.reader.is_finished()
        })
        .await;
        status.unwrap().code()
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        // Whoever leads the session gets the others to end; what it does not end, hangs up with the terminal.
        let pid = self.child.id().to_string();
        for name in ["CONT", "TERM", "HUP"] {
            let _ = Command::new("kill").args(["-s", name, &pid]).stderr(Stdio::null()).status();
        }
        let give_up = Instant::now() + PATIENCE / 4;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
