//! What the tests of `fencepost run` share: a directory to work in, the program at work, and what became of it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use kit::gateway::bare_command;
use kit::{Client, Gateway, PATIENCE, eventually, signal, wording};

/// A directory in which commands run, and the address of their gateway.
pub struct Scene {
    pub directory: TempDir,
    pub url: String,
}

/// A `fencepost run` at work. Dropped, it is asked to end, and then made to.
pub struct Running {
    child: Child,
    begun_at: Instant,
    out: PathBuf,
    err: PathBuf,
    has_ended: bool,
    is_group: bool,
}

/// One that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Scene {
    pub fn at(url: impl Into<String>) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), url: url.into() }
    }

    pub fn on(gateway: &Gateway) -> Self {
        Self::at(format!("http://{}", gateway.address))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a command has written into a file of the directory; empty where there is none.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The number in such a file, once it is there.
    pub async fn number(&self, name: &str) -> u32 {
        let mut number = None;
        eventually(&format!("there is a number in {name}"), async || {
            number = self.read(name).strip_suffix('\n').and_then(|text| text.parse().ok());
            number.is_some()
        })
        .await;
        number.unwrap()
    }

    /// Waits until a command has written this into a file of the directory.
    pub async fn says(&self, name: &str, text: &str) {
        eventually(&format!("{name} says {text}"), async || self.read(name).contains(text)).await;
    }

    /// `fencepost run` with these arguments, in the directory.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of("run", args)
    }

    /// The same of another command of the program.
    pub fn command_of(&self, name: &str, args: &[&str]) -> Command {
        let mut command = bare_command();
        command.arg(name).args(args).env("FENCEPOST_URL", &self.url).current_dir(self.directory.path());
        command
    }

    pub fn start(&self, args: &[&str]) -> Running {
        self.launch(self.command(args))
    }

    /// Runs a shell script as the work `k`, by `fencepost once`.
    pub fn start_work(&self, flags: &[&str], script: &str) -> Running {
        self.launch(self.command_of("once", &[flags, &["k", "--", "sh", "-c", script]].concat()))
    }

    pub async fn do_work(&self, flags: &[&str], script: &str) -> Ended {
        self.start_work(flags, script).end().await
    }

    /// Runs a shell script under the lock `k`.
    pub fn start_script(&self, flags: &[&str], script: &str) -> Running {
        self.start(&[flags, &["k", "--", "sh", "-c", script]].concat())
    }

    pub fn launch(&self, mut command: Command) -> Running {
        let [out, err] =
            ["out", "err"].map(|kind| self.path(&format!("{kind}-{:08x}", rand::random::<u32>())));
        let [out_file, err_file] = [&out, &err].map(|path| fs::File::create(path).unwrap());
        let child = command.stdout(out_file).stderr(err_file).spawn().unwrap();
        Running { child, begun_at: Instant::now(), out, err, has_ended: false, is_group: false }
    }

    /// The same of a script of several programs. Dropped, all of them end.
    pub fn launch_group(&self, mut command: Command) -> Running {
        command.process_group(0);
        let mut running = self.launch(command);
        running.is_group = true;
        running
    }

    /// Runs it to its end.
    pub async fn run(&self, args: &[&str]) -> Ended {
        self.start(args).end().await
    }

    pub async fn run_script(&self, flags: &[&str], script: &str) -> Ended {
        self.start_script(flags, script).end().await
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub fn has_ended(&mut self) -> bool {
        self.has_ended = self.has_ended || self.child.try_wait().unwrap().is_some();
        self.has_ended
    }

    /// What stands on standard error so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// What stands on standard output so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    pub async fn end(mut self) -> Ended {
        eventually("the run ends", async || self.has_ended()).await;
        let took = self.begun_at.elapsed();
        let status = self.child.wait().unwrap().code();
        let [stdout, stderr] = [&self.out, &self.err].map(|path| fs::read_to_string(path).unwrap());
        // Those are ours; whatever else there is was said by the command.
        let ours = stderr.lines().filter(|line| line.starts_with("fencepost: "));
        wording::search("what `fencepost run` says", ours);
        Ended { status, stdout, stderr, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed in between must leave no command behind.
        let give_up = Instant::now() + PATIENCE / 4;
        while !self.has_ended() && Instant::now() < give_up {
            for name in ["CONT", "TERM"] {
                let whom = format!("{}{}", if self.is_group { "-" } else { "" }, self.pid());
                let _ = Command::new("kill").args(["-s", name, "--", &whom]).stderr(Stdio::null()).status();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        if !self.has_ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Expects this exit status and nothing on standard error.
    #[track_caller]
    pub fn expect_silent(self, status: i32) -> Self {
        assert_eq!((self.status, self.stderr.as_str()), (Some(status), ""), "{self:?}");
        self
    }

    /// Expects this exit status and one line on standard error in which all of this stands.
    #[track_caller]
    pub fn expect_line(self, status: i32, said: &[&str]) -> Self {
        assert_eq!(self.status, Some(status), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("fencepost: "), "{self:?}");
        assert!(said.iter().all(|word| self.stderr.contains(word)), "{said:?}: {self:?}");
        assert!(!has_debug_form(&self.stderr), "{self:?}");
        self
    }
}

/// Whether a text for people has the name of a type or of a variant in it, such as `CaUsedAsEndEntity`, or what stands
/// behind one, such as `Some(1)` and `Lease { .. }`.
fn has_debug_form(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &str| {
        let humps = word
            .as_bytes()
            .windows(2)
            .filter(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
        word.starts_with(|c: char| c.is_ascii_uppercase()) && humps.count() > 0
    };
    words.any(is_name) || [" { ", "Some(", "None", "Ok(", "Err("].iter().any(|form| text.contains(form))
}

#[test]
fn the_debug_form_of_an_error_is_noticed() {
    assert!(has_debug_form("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))"));
    assert!(has_debug_form("Lease { left: 1 }") && has_debug_form("Some(1)"));
    assert!(!has_debug_form(
        "cannot take the lock \"k\": http://127.0.0.1:1: its certificate is not for TLS (CA:TRUE)"
    ));
}

/// Whether a process is there and can still do something. One whose first thread has ended can, as long as it has others.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| {
        let threads = rest.split(' ').nth(17).and_then(|count| count.parse().ok()).unwrap_or(0);
        threads > 1 || !rest.starts_with(['Z', 'X'])
    })
}

/// Whether a process is stopped.
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Whether the parent of a process is in the foreground of its terminal.
pub fn parent_has_terminal(pid: u32) -> bool {
    let field = |pid: &str, at: usize| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| Some(rest.split(' ').nth(at)?.to_owned()))
    };
    let parent = field(&pid.to_string(), 1).unwrap_or_default();
    let group = field(&parent, 2);
    group.is_some() && group == field(&parent, 5)
}

/// Whether anybody holds the lock.
pub async fn is_held(client: &Client, key: &str) -> bool {
    client.get(&format!("/locks/{key}")).send().await.status == 200
}

/// What is left of the lease of the lock `k`, which is held.
pub async fn left_of(client: &Client) -> Duration {
    let told = client.get("/locks/k").send().await.expect(200).json();
    Duration::from_millis(told["expires_in_ms"].as_u64().unwrap())
}

/// How many wait for the lock `k`, which is held.
pub async fn waiters(client: &Client) -> u64 {
    client.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap_or_default()
}

/// A request that a gateway has answered.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub status: u64,
    /// When it arrived, by the wall clock.
    pub at: Duration,
}

/// The requests about the lock `k` in a gateway's log.
pub fn requests(gateway: &Gateway) -> Vec<Request> {
    let lines = gateway.log();
    let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["key"] == "k").filter_map(|line| Request::from_log(&line)).collect()
}

/// The release of the lock `k`, which the gateway has answered: it writes its log after that.
pub async fn release_of(gateway: &Gateway) -> Request {
    let find = || requests(gateway).into_iter().find(|request| request.method == "DELETE");
    eventually("the release is in the log", async || find().is_some()).await;
    find().unwrap()
}

impl Request {
    /// Nothing where the line tells of no answer.
    fn from_log(line: &Value) -> Option<Self> {
        let answered_at: jiff::Timestamp = line["timestamp"].as_str().unwrap().parse().unwrap();
        let answered_at = Duration::from_micros(answered_at.as_microsecond().try_into().unwrap());
        let elapsed = Duration::from_micros(line["elapsed_us"].as_u64()?);
        Some(Self {
            method: line["method"].as_str().unwrap().to_owned(),
            status: line["status"].as_u64()?,
            at: answered_at - elapsed,
        })
    }
}

/// When the last lease began that the gateway gave.
pub fn last_lease_began_at(gateway: &Gateway) -> Duration {
    let requests = requests(gateway);
    let mut grants = requests.iter().filter(|r| r.method != "DELETE" && matches!(r.status, 200 | 201));
    grants.next_back().unwrap().at
}

/// A shell loop that writes the time into a file again and again, as long as it lives. It ignores SIGTERM, and tells its
/// number once it does so.
pub fn stubborn(file: &str) -> String {
    format!(
        "exec 2>/dev/null; trap '' TERM; n=0; while [ $n -lt 3000 ]; do date +%s%N >>{file}; [ $n = 0 ] && sh -c 'echo $PPID' >{file}.pid; \
         n=$((n+1)); sleep 0.02; done"
    )
}

impl Scene {
    /// The last time that such a loop has written.
    pub fn last_beat(&self, file: &str) -> Duration {
        let beats = self.read(file);
        Duration::from_nanos(beats.lines().last().unwrap().parse().unwrap())
    }
}
