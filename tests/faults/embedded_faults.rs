//! What the embedded store withstands: being killed, clocks that were set, and a disk that is full, fails or hangs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

mod clock;
mod damage;
mod disk;
mod hanging;
mod kills;
mod place;
mod syncs;

/// A namespace of its own, where anybody may mount. A process keeps it: it goes with that process, which ends with this guard, and
/// with the test if that is killed.
struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// One in which this command of the shell, to which the paths are `$0`, `$1` and so on, has mounted something.
    fn with(mount: &str, paths: &[&Path]) -> Self {
        let keeper = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(format!("{mount} && echo ready && exec cat"))
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Made first, so that the keeper ends whatever it says.
        let mut namespace = Self { keeper };
        let mut said = String::new();
        BufReader::new(namespace.keeper.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "a namespace of one's own is needed here");
        namespace
    }

    /// Where those who are not in it see a path of it.
    fn path(&self, path: &Path) -> PathBuf {
        format!("/proc/{}/root{}", self.keeper.id(), path.display()).into()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
