//! The processes under load. Each ends with its guard.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers acquires and releases, and what it needs.
pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    process: Process,
    redis: Vec<Process>,
    directory: TempDir,
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

impl Server {
    /// The gateway on a Redis of its own that keeps nothing.
    pub fn on_redis(name: &'static str) -> Self {
        let redis = free_address();
        let directory = directory();
        let process = redis_server(redis, &directory);
        let (address, command) = gateway(&format!("redis://{redis}"));
        Self::start(name, address, command, vec![process], directory)
    }

    /// The gateway on so many servers of its own, which are a quorum together.
    #[allow(dead_code, reason = "not every measurement has one")]
    pub fn on_quorum(name: &'static str, count: usize) -> Self {
        let nodes: Vec<_> = (0..count).map(|_| free_address()).collect();
        let directory = directory();
        let processes = nodes.iter().map(|node| redis_server(*node, &directory)).collect();
        let list: Vec<_> = nodes.iter().map(SocketAddr::to_string).collect();
        let (address, command) = gateway(&format!("redlock://{}", list.join(",")));
        Self::start(name, address, command, processes, directory)
    }

    /// The gateway on a store of its own; the path of a file is relative to a directory that ends with the server.
    pub fn embedded(name: &'static str, store: &str) -> Self {
        let (address, command) = gateway(store);
        Self::of_command(name, address, command)
    }

    /// A command that serves this address, and needs nothing else.
    pub fn of_command(name: &'static str, address: SocketAddr, command: Command) -> Self {
        Self::start(name, address, command, Vec::new(), directory())
    }

    /// Runs the command, and returns when it is ready to serve.
    fn start(
        name: &'static str,
        address: SocketAddr,
        mut command: Command,
        redis: Vec<Process>,
        directory: TempDir,
    ) -> Self {
        let log = File::create(directory.path().join("log")).unwrap();
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = Process(command.spawn().unwrap());
        let mut server = Self { name, address, process, redis, directory };
        let give_up = Instant::now() + PATIENCE;
        while !is_ready(address) {
            let ended = server.process.0.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < give_up, "{name} does not start: {}", server.log());
            sleep(Duration::from_millis(10));
        }
        server
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn redis_pids(&self) -> impl Iterator<Item = u32> {
        self.redis.iter().map(|redis| redis.0.id())
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

/// A Redis that keeps nothing.
fn redis_server(address: SocketAddr, directory: &TempDir) -> Process {
    let process = Command::new("redis-server")
        .args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    Process(process.expect("redis-server must be installed"))
}

fn gateway(store: &str) -> (SocketAddr, Command) {
    let address = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    // The settings of whoever runs this are not what is measured.
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command.args(["--listen", &address.to_string(), "--store", store]);
    command.args(["--log-level", "warn", "--log-format", "json"]);
    (address, command)
}

/// A directory on the disk that the build is on: the usual one for temporary files may be in memory, where a durable
/// store costs nothing.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// An address that nobody listens on at the moment. At the level of the log that is measured a server would not tell
/// the one that it chose.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn is_ready(address: SocketAddr) -> bool {
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut reply = Vec::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut reply)
    });
    asked.is_ok() && reply.starts_with(b"HTTP/1.1 200")
}
