//! A real gateway: the built program, on a port that it chose itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, RedisServer, eventually, secrets, wording};

/// The program under test, as Cargo tells it to the tests that it runs. Whoever starts one by hand has it beside the tests.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        std::env::var("CARGO_BIN_EXE_fencepost").unwrap_or_else(|_| {
            let test = std::env::current_exe().unwrap();
            test.ancestors().nth(2).unwrap().join("fencepost").to_str().unwrap().to_owned()
        })
    });
    &PROGRAM
}

/// How much of its log a test that fails shows.
const TOLD_LINES: usize = 60;

/// How long a gateway that ends may take to say what it has counted: some cannot answer any more.
const METRICS_PATIENCE: Duration = Duration::from_millis(300);

/// Ends its process when dropped.
pub struct Gateway {
    pub address: SocketAddr,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads the log until the process has ended.
    reader: Option<JoinHandle<()>>,
    audit_log: Option<PathBuf>,
    is_older: bool,
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
        Self::try_start_by(command(args), args).await
    }

    /// As [`Self::try_start`], by a command that becomes the program with these arguments.
    pub async fn try_start_by(mut command: Command, args: &[&str]) -> Result<Self, Vec<String>> {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
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
        let audit_log = args.iter().skip_while(|arg| **arg != "--audit-log").nth(1);
        let audit_log = audit_log.map(|file| scratch().join(file));
        let mut gateway =
            Self { address, child, log, reader: Some(reader), audit_log, is_older: false, _directory: None };
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

    /// Waits until a line of the log is such: a gateway writes it after its answer.
    pub async fn logs(&self, what: &str, is_such: impl Fn(&str) -> bool) {
        eventually(what, async || self.log().iter().any(|line| is_such(line))).await;
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        super::signal(self.child.id(), name);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the kernel says of the memory of the process, in KiB: by the name of its line, such as `VmRSS`.
    pub fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
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

    /// Says where it writes, or might write, its audit log.
    pub fn audited_in(&mut self, file: PathBuf) {
        self.audit_log = Some(file);
    }

    /// Says that an older program runs: its log is not held against how we write now.
    pub fn is_of_older_program(&mut self) {
        self.is_older = true;
    }

    /// What it counts, where it tells everybody and at once.
    fn metrics(&self) -> String {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        if state.contains(") T ") {
            return String::new();
        }
        let ask = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&self.address, METRICS_PATIENCE)?;
            stream.set_read_timeout(Some(METRICS_PATIENCE))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut text = Vec::new();
            // Whatever comes in time: the gateway may have no connection left, or speak TLS.
            let _ = stream.read_to_end(&mut text);
            Ok(text)
        };
        String::from_utf8_lossy(&ask().unwrap_or_default()).into_owned()
    }

    /// Reads the log to its end, and fails the test where a secret is in it, or what only a programmer can read.
    fn finish_log(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        reader.join().unwrap();
        let log = self.log();
        self.search("the log", log.iter().map(String::as_str));
        // Absent where it goes to standard error, or was moved away by a test; and a device has no end.
        let audit = self.audit_log.as_ref().filter(|file| file.is_file());
        let audit = audit.and_then(|file| std::fs::read_to_string(file).ok());
        self.search("the audit log", audit.iter().flat_map(|text| text.lines()));
    }

    /// Searches what it has written.
    fn search<'a>(&self, place: &str, lines: impl Iterator<Item = &'a str> + Clone) {
        secrets::search(place, lines.clone());
        if !self.is_older {
            wording::search(place, lines);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let metrics = self.metrics();
        self.kill();
        secrets::search("the metrics", metrics.lines());
        if std::thread::panicking() {
            let log = self.log();
            let last = &log[log.len().saturating_sub(TOLD_LINES)..];
            println!("the gateway at {} said at last:\n{}", self.address, last.join("\n"));
        }
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
    let output = child.wait_with_output().unwrap();
    for text in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(text);
        // The OpenAPI document is no text for people.
        let is_document = text.starts_with('{');
        wording::search("what the program prints", text.lines().filter(|_| !is_document));
    }
    output
}

/// The program on a free port of loopback, unless `args` say where, with a log that can be read by machine.
pub fn command(args: &[&str]) -> Command {
    command_of(program(), args)
}

/// The same of another program.
pub fn command_of(program: &str, args: &[&str]) -> Command {
    let mut command = bare(program);
    if !args.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    // One thread is a runtime of another kind than several: every other gateway of the tests has two.
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let threads = 1 + STARTED.fetch_add(1, Ordering::Relaxed) % 2;
    command.env("FENCEPOST_THREADS", threads.to_string());
    command.args(["--log-format", "json"]).args(args);
    command
}

/// The program, untouched by the environment of whoever runs the tests.
pub fn bare_command() -> Command {
    bare(program())
}

/// The same of another program.
pub fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(scratch());
    command
}

fn is_setting(variable: &str) -> bool {
    variable.starts_with("FENCEPOST_") || variable.starts_with("OTEL_")
}

/// A directory of Cargo's in which a stray `fencepost.redb` does no harm.
pub fn scratch() -> PathBuf {
    Path::new(program()).ancestors().nth(2).unwrap().join("tmp")
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split("listening on http").nth(1)?;
    let rest = rest.strip_prefix("s").unwrap_or(rest).strip_prefix("://")?;
    rest.split([',', '"', ' ']).next()?.parse().ok()
}
