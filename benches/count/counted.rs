//! A gateway whose instructions valgrind counts, and what it needs. Each process ends with its guard.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::requests::Client;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Functions that are entered for a look at the health and for nothing else, before it is answered. Which of them are
/// there depends on what the compiler has inlined, and one of them is enough.
const MARKS: [&str; 2] =
    ["fencepost::api::routes::health::*", "*<fencepost::api::routes::health::healthz as *"];

/// The gateway under callgrind.
pub struct Counted {
    pub address: SocketAddr,
    process: Process,
    directory: TempDir,
}

pub struct Redis {
    pub address: SocketAddr,
    _process: Process,
}

/// Ends its process when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Counted {
    pub fn start(program: &Path, store: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        // On one processor there is one worker on every machine, and threads take turns in much the same way.
        let mut command = Command::new("taskset");
        command.args(["-c", &any_processor(), "valgrind", "--quiet", "--tool=callgrind", "--vgdb=no"]);
        command.arg("--callgrind-out-file=counts").args(MARKS.map(|mark| format!("--dump-before={mark}")));
        command.arg(program).args(["serve", "--listen", &address.to_string(), "--store", store]);
        // Without a bound a Redis keeps no records.
        command.args(["--once-memory", "1073741824"]);
        command
            .args(["--log-level", "error", "--store-timeout", "30s"])
            .current_dir(&directory)
            .stdin(Stdio::null());
        // The settings of whoever runs this are not what is counted.
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
            command.env_remove(name);
        }
        let process = Process(command.spawn().expect("taskset and valgrind must be installed"));
        let mut counted = Self { address, process, directory };
        // It is not ready before its Redis has answered.
        wait_until(|| is_ready(address), &mut counted.process);
        counted
    }

    /// The instructions of all threads since this was called last, most of those for the request of this call included.
    ///
    /// Valgrind writes down what it has counted when a function of this request is entered, so that all is there when
    /// the answer is. From outside it could only be told by `ptrace`, which not every machine allows.
    pub fn instructions(&self, client: &mut Client) -> u64 {
        client.ask_for_health();
        let files: Vec<_> =
            fs::read_dir(&self.directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        // Each has a number behind its name. It is removed once it was read.
        let sums = files.iter().filter(|path| path.extension().is_some()).map(|path| {
            let text = fs::read_to_string(path).unwrap();
            fs::remove_file(path).unwrap();
            let sum = text.lines().find_map(|line| line.strip_prefix("summary: "));
            sum.expect("counts have a sum").trim().parse::<u64>().unwrap()
        });
        let sums: Vec<_> = sums.collect();
        assert!(!sums.is_empty(), "none of {MARKS:?} was entered: are all of them inlined?");
        sums.iter().sum()
    }
}

impl Redis {
    /// One that keeps nothing.
    pub fn start() -> Self {
        let address = free_address();
        let process = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let mut process = Process(process.expect("redis-server must be installed"));
        wait_until(|| TcpStream::connect(address).is_ok(), &mut process);
        Self { address, _process: process }
    }
}

fn wait_until(is_ready: impl Fn() -> bool, process: &mut Process) {
    let give_up = Instant::now() + PATIENCE;
    while !is_ready() {
        let ended = process.0.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < give_up, "a server does not start: {ended:?}");
        sleep(Duration::from_millis(10));
    }
}

fn is_ready(address: SocketAddr) -> bool {
    let mut reply = [0; 12];
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        stream.read_exact(&mut reply)
    });
    asked.is_ok() && reply == *b"HTTP/1.1 200"
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// The number of the first processor that this process may use: in a container it need not be 0.
fn any_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    allowed.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap().to_owned()
}
