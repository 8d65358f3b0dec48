//! A gateway whose instructions valgrind counts, and what it needs. Each process ends with its guard.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::requests::Client;
use crate::shared::by_heart;
use crate::shared::servers::{Process, directory, free_address, leave_out_settings};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Functions that are entered for a look at the health and for nothing else, before it is answered. Which of them are
/// there depends on what the compiler has inlined, and one of them is enough.
const MARKS: [&str; 3] = [
    "fencepost::api::routes::health::*",
    "*<fencepost::api::routes::health::healthz as *",
    "*::by_heart::healthy",
];

/// The gateway under callgrind.
pub struct Counted {
    pub address: SocketAddr,
    process: Process,
    directory: TempDir,
}

/// What something has cost.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    pub instructions: u64,
    /// Without looks at the clock: outside of valgrind they are none.
    pub system_calls: u64,
}

impl Counted {
    /// A gateway.
    pub fn gateway(program: &Path, store: &str) -> Self {
        let address = free_address();
        let listen = address.to_string();
        // Without a bound a Redis keeps no records.
        let args = ["serve", "--listen", &listen, "--store", store, "--once-memory", "1073741824"];
        Self::start(
            program,
            &[&args[..], &["--log-level", "error", "--store-timeout", "30s"]].concat(),
            address,
        )
    }

    /// The handler that does nothing, which is this program.
    pub fn noop() -> Self {
        let address = free_address();
        let program = std::env::current_exe().unwrap();
        Self::start(&program, &[by_heart::NOOP, &address.to_string()], address)
    }

    fn start(program: &Path, args: &[&str], address: SocketAddr) -> Self {
        let directory = directory();
        // On one processor there is one worker on every machine, and threads take turns in much the same way.
        let mut command = Command::new("taskset");
        command.args(["-c", &any_processor(), "valgrind", "--quiet", "--tool=callgrind", "--vgdb=no"]);
        command.args(["--callgrind-out-file=counts", "--collect-systime=yes"]);
        command.args(MARKS.map(|mark| format!("--dump-before={mark}"))).arg(program).args(args);
        command.current_dir(&directory).stdin(Stdio::null());
        leave_out_settings(&mut command);
        let process = Process(command.spawn().expect("taskset and valgrind must be installed"));
        let mut counted = Self { address, process, directory };
        // It is not ready before its Redis has answered.
        wait_until(|| is_ready(address), &mut counted.process);
        counted
    }

    /// What all threads have cost since this was called last, most of what the request of this call costs included.
    ///
    /// Valgrind writes down what it has counted when a function of this request is entered, so that all is there when
    /// the answer is. From outside it could only be told by `ptrace`, which not every machine allows.
    pub fn cost(&self, client: &mut Client) -> Cost {
        client.ask_for_health();
        let files: Vec<_> =
            fs::read_dir(&self.directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        // Each has a number behind its name. It is removed once it was read.
        let costs = files.iter().filter(|path| path.extension().is_some()).map(|path| {
            let text = fs::read_to_string(path).unwrap();
            fs::remove_file(path).unwrap();
            cost_in(&text)
        });
        let costs: Vec<_> = costs.collect();
        assert!(!costs.is_empty(), "none of {MARKS:?} was entered: are all of them inlined?");
        Cost {
            instructions: costs.iter().map(|cost| cost.instructions).sum(),
            system_calls: costs.iter().map(|cost| cost.system_calls).sum(),
        }
    }
}

/// The sum of what callgrind has written down, by the [format](https://valgrind.org/docs/manual/cl-format.html) of its files.
fn cost_in(text: &str) -> Cost {
    let value = |line: &str, at: usize| {
        line.split_whitespace().nth(at).map_or(0, |number| number.parse::<u64>().unwrap())
    };
    let events = text.lines().find(|line| line.starts_with("events:")).expect("costs have names");
    let calls_at =
        events.split_whitespace().position(|event| event == "sysCount").expect("system calls are counted");
    // A name stands where it is first used, and else its number alone.
    let is_clock: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn="))?.split_once(' '))
        .filter(|(_, name)| name.contains("clock_gettime"))
        .map(|(number, _)| number)
        .collect();
    let (mut cost, mut counts, mut lines) = (Cost::default(), true, text.lines());
    while let Some(line) = lines.next() {
        if let Some(function) = line.strip_prefix("fn=") {
            counts = !is_clock.contains(function.split(' ').next().unwrap_or_default());
        } else if line.starts_with("calls=") {
            // What a function that it calls has cost is counted there.
            lines.next();
        } else if counts && line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            cost.system_calls += value(line, calls_at);
        } else if let Some(sum) = line.strip_prefix("summary:") {
            cost.instructions += value(sum, 0);
        }
    }
    cost
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

/// The number of the first processor that this process may use: in a container it need not be 0.
fn any_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    allowed.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap().to_owned()
}
