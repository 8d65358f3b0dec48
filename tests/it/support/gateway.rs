//! A real gateway: the built program, on a port that it chose itself.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, RedisServer, eventually};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_fencepost");

/// Ends its process when dropped.
pub struct Gateway {
    pub address: SocketAddr,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads the log until the process has ended.
    reader: Option<JoinHandle<()>>,
    _directory: Option<TempDir>,
}

impl Gateway {
    /// On the embedded store, in a file of its own.
    pub async fn embedded(args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut gateway = Self::on_file(&directory.path().join("locks.redb"), args).await;
        gateway._directory = Some(directory);
        gateway
    }

    /// On the embedded store, in this file.
    pub async fn on_file(file: &Path, args: &[&str]) -> Self {
        let store = format!("file:{}", file.display());
        Self::start(&[&["--store", &store], args].concat()).await
    }

    pub async fn on_redis(redis: &RedisServer, args: &[&str]) -> Self {
        Self::start(&[&["--store", redis.url()], args].concat()).await
    }

    /// Starts one with these arguments; it listens when this returns, and serves where its store is there.
    pub async fn start(args: &[&str]) -> Self {
        Self::try_start(args).await.unwrap_or_else(|said| panic!("the gateway ended: {said:#?}"))
    }

    /// As [`Self::start`]; where it ended instead of listening, the error is what it said.
    pub async fn try_start(args: &[&str]) -> Result<Self, Vec<String>> {
        let mut child = command(args).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let reader = std::thread::spawn({
            let log = log.clone();
            move || {
                for line in stderr.lines().map_while(Result::ok) {
                    log.lock().unwrap().push(line);
                }
            }
        });
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Self { address, child, log, reader: Some(reader), _directory: None };
        let mut has_ended = false;
        eventually("the gateway listens, or ends", async || {
            has_ended = gateway.child.try_wait().unwrap().is_some();
            match gateway.log().iter().find_map(|line| address_in(line)) {
                Some(address) => gateway.address = address,
                None => return has_ended,
            }
            true
        })
        .await;
        if has_ended {
            gateway.finish_log();
            return Err(gateway.log());
        }
        let client = super::Client::new(gateway.address);
        if args.iter().any(|arg| arg.starts_with("redis") || arg.starts_with("redlock")) {
            // Whatever it says: by then it has tried to connect.
            client.get("/readyz").send().await;
        }
        Ok(gateway)
    }

    /// The lines that it has written to its log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        super::signal(self.child.id(), name);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the process, and for the last line of its log.
    pub async fn exit_status(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the gateway ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        self.finish_log();
        status.unwrap()
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.finish_log();
    }

    fn finish_log(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Output {
    let mut child = bare_command().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // What should not have started must not keep the test waiting.
    let give_up = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= give_up {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// The program on a free port of loopback, with a log that can be read by machine.
pub fn command(args: &[&str]) -> Command {
    let mut command = bare_command();
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json"]).args(args);
    command
}

/// The program, untouched by the environment of whoever runs the tests.
pub fn bare_command() -> Command {
    let mut command = Command::new(PROGRAM);
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(scratch());
    command
}

/// A directory in which a stray `fencepost.redb` does no harm.
fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split("listening on http://").nth(1)?;
    rest.split([',', '"', ' ']).next()?.parse().ok()
}
