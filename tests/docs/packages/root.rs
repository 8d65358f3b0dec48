//! A bare Debian 12: a copy of the one in `target/debian-12`, with a network of its own that has only loopback.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::{ROOT, bash};
use crate::pages::Said;
use kit::eventually;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Ends with all that runs in it when dropped.
pub struct Root {
    directory: TempDir,
    /// Keeps the network: nothing else runs in it at first.
    keeper: Child,
}

impl Root {
    pub async fn new() -> Self {
        let base = PathBuf::from(ROOT).join("target/debian-12");
        assert!(base.exists(), "a bare Debian 12 must be installed: `make clients`");
        let directory = tempfile::tempdir().unwrap();
        bash(r#"cp --archive --reflink=auto "$1/." "$2""#, &[&base, directory.path()]);
        let mut keeper = Command::new("unshare");
        keeper.args(["--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]);
        let mut keeper = keeper.stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        keeper.stdout.take().unwrap().read_exact(&mut up).unwrap();
        Self { directory, keeper }
    }

    /// A path of this root, as it is called outside.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Puts a program in the place of one that this root lacks.
    pub fn program(&self, path: &str, code: &str) {
        fs::write(self.path(path), format!("#!/bin/sh\n{code}")).unwrap();
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn copy(&self, from: &Path) -> String {
        let name = from.file_name().unwrap().to_str().unwrap();
        fs::copy(from, self.path(name)).unwrap();
        format!("/{name}")
    }

    /// A command in the network of this root. What it mounts is there for itself alone.
    fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args([format!("--net=/proc/{}/ns/net", self.keeper.id()).as_str(), "--"]);
        command.args(["unshare", "--mount"]);
        command
    }

    /// Runs code in this root. Questions get no answer.
    pub fn run(&self, code: &str) -> Said {
        let mut command = self.inside();
        command.arg("chroot").arg(self.directory.path()).args(["sh", "-euc", code]);
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
        Said::of(command.stdin(Stdio::null()).output().unwrap())
    }

    /// Starts the service as systemd would by its installed unit: the line, the user and the file of variables.
    pub async fn start(&self) -> Service<'_> {
        let units = ["/usr/lib", "/usr/local/lib"].map(|at| format!("{at}/systemd/system/fencepost.service"));
        let unit = self.text(units.iter().find(|unit| self.has(unit)).unwrap());
        let line = |name: &str| {
            let mut all = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            all.next().unwrap_or_else(|| panic!("{name}: {unit}")).to_owned()
        };
        let variables = self.text(&line("EnvironmentFile"));
        let variables = variables.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut command = self.inside();
        command.args(["chroot", &format!("--userspec={}", line("User"))]).arg(self.directory.path());
        // Else it would go on as a child of this one, and not get its signals.
        command.args(["sh", "-c", &format!("umask {} && cd / && exec {}", line("UMask"), line("ExecStart"))]);
        command.env_clear().envs(variables.map(|line| line.split_once('=').unwrap())).env("PATH", PATH);
        let service = Service { root: self, child: command.stdin(Stdio::null()).spawn().unwrap() };
        eventually("the service is ready", async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            service.try_ask(&["/readyz"]).is_some_and(|(status, _)| status == 200)
        })
        .await;
        service
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// A gateway in a root. It is killed when dropped.
pub struct Service<'a> {
    root: &'a Root,
    child: Child,
}

impl Service<'_> {
    /// Asks with these arguments of `curl`, the last of which is a path. `None` if nobody answers.
    fn try_ask(&self, args: &[&str]) -> Option<(u16, Value)> {
        let (path, args) = args.split_last().unwrap();
        let mut command = self.root.inside();
        command.args(["curl", "-sS", "--max-time", "5", "-w", "\n%{http_code}"]).args(args);
        let said = Said::of(command.arg(format!("http://127.0.0.1:8080{path}")).output().unwrap());
        let (body, status) = said.text.trim_end().rsplit_once('\n')?;
        (said.code == Some(0))
            .then(|| (status.parse().unwrap(), serde_json::from_str(body).unwrap_or_default()))
    }

    #[track_caller]
    pub fn ask(&self, args: &[&str]) -> (u16, Value) {
        self.try_ask(args).unwrap_or_else(|| panic!("nobody answered {args:?}"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it as systemd does.
    pub fn stop(mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
