//! The processes under load. Each ends with its guard.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};
use tempfile::TempDir;

use super::cluster;
use super::memory::rss_kb;
use super::numbers::Numbers;
use super::secure::{Access, add_api_keys, add_certificate};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The gateway that is measured, where it is not the one that was built together with the measurement; and another one
/// to compare it with.
const GATEWAY: &str = "BENCH_GATEWAY";
const OTHER_GATEWAY: &str = "BENCH_OTHER";

/// A server that answers acquires and releases, and what it needs.
pub struct Server {
    pub name: &'static str,
    pub kind: Kind,
    pub address: SocketAddr,
    pub access: Access,
    /// What its clients were told.
    pub numbers: Numbers,
    /// What of it was in memory when it was ready.
    pub idle_rss_kb: Option<u64>,
    /// The address of the Redis that its gateway was given, where another one can be given the same.
    store: Option<String>,
    /// Whether its log goes through a pipe, and is read at the other end of it.
    has_pipe: bool,
    /// None where Redis itself is asked.
    process: Option<Process>,
    redis: Vec<Process>,
    directory: TempDir,
}

/// The token of all grants that are said by heart.
pub const TOKEN_BY_HEART: &str = "~5f2b1c0e9d8a4b7c8e6f1a2b3c4d5e6f";

/// What may be expected of a server's answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It grants locks.
    Gateway,
    /// It says by heart what a gateway might.
    ByHeart,
    /// It speaks the protocol of Redis.
    Redis,
}

/// What a gateway demands of its clients.
#[derive(Clone, Copy, Default)]
pub struct Demands {
    pub api_key: bool,
    pub tls: bool,
}

/// Which build of the gateway is started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build {
    Ours,
    Other,
}

impl Build {
    /// Whether nothing but what was built together with the measurement is to be started.
    pub fn is_usual() -> bool {
        [GATEWAY, OTHER_GATEWAY].iter().all(|name| std::env::var_os(name).is_none())
    }

    /// Where it is; there need not be another one.
    pub fn program(self) -> Option<PathBuf> {
        match self {
            Self::Ours => {
                Some(std::env::var_os(GATEWAY).map_or(env!("CARGO_BIN_EXE_fencepost").into(), given))
            }
            Self::Other => std::env::var_os(OTHER_GATEWAY).map(given),
        }
    }

    /// What starts it on a store, and where it will listen.
    fn command(self, store: &str) -> (SocketAddr, Command) {
        let address = free_address();
        let mut command = Command::new(self.program().unwrap());
        leave_out_settings(&mut command);
        command.args(["--listen", &address.to_string(), "--store", store]);
        // A flag may say another.
        command.envs([("FENCEPOST_LOG_LEVEL", "warn"), ("FENCEPOST_LOG_FORMAT", "json")]);
        (address, command)
    }
}

/// The settings of whoever runs this are not what is measured.
pub fn leave_out_settings(command: &mut Command) {
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
}

/// Ends its process when dropped.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Waits until it is ready; `false` if it ends instead, or takes too long.
    fn gets_ready(&mut self, is_ready: impl Fn() -> bool) -> bool {
        let give_up = Instant::now() + PATIENCE;
        while !is_ready() {
            if self.0.try_wait().unwrap().is_some() || Instant::now() > give_up {
                return false;
            }
            sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Server {
    /// The gateway on a Redis of its own that keeps nothing.
    pub fn on_redis(name: &'static str) -> Self {
        Self::on_redis_with(name, Build::Ours, Demands::default())
    }

    /// The same for clients that have a key, or speak TLS, or both.
    pub fn on_redis_with(name: &'static str, build: Build, demands: Demands) -> Self {
        let redis = free_address();
        let directory = directory();
        let process = redis_server(redis, &directory, &[]);
        let (address, mut command) = build.command(&format!("redis://{redis}"));
        let api_keys = match demands.api_key {
            true => add_api_keys(&mut command, &directory, 1, &[]),
            false => Vec::new(),
        };
        let tls = demands.tls.then(|| add_certificate(&mut command, &directory));
        Self::new(name, Kind::Gateway, address, directory)
            .with(vec![process], Access::new(tls, api_keys))
            .start(command)
    }

    /// The gateway on so many servers of its own, which are a quorum together.
    pub fn on_quorum(name: &'static str, count: usize) -> Self {
        let nodes: Vec<_> = (0..count).map(|_| free_address()).collect();
        let directory = directory();
        let processes = nodes.iter().map(|node| redis_server(*node, &directory, &[])).collect();
        let list: Vec<_> = nodes.iter().map(SocketAddr::to_string).collect();
        let (address, command) = Build::Ours.command(&format!("redlock://{}", list.join(",")));
        Self::new(name, Kind::Gateway, address, directory).with(processes, Access::default()).start(command)
    }

    /// The gateway on a cluster of so many nodes of its own.
    pub fn on_cluster(name: &'static str, count: usize) -> Self {
        let nodes: Vec<_> = (0..count).map(|_| (free_address(), free_address())).collect();
        let directory = directory();
        let start = |(node, bus): &(_, _)| redis_server(*node, &directory, &cluster::of_node(*bus));
        let processes = nodes.iter().map(start).collect();
        cluster::join(&nodes);
        let list: Vec<_> = nodes.iter().map(|(node, _)| node.to_string()).collect();
        let (address, command) = Build::Ours.command(&format!("redis+cluster://{}", list.join(",")));
        Self::new(name, Kind::Gateway, address, directory).with(processes, Access::default()).start(command)
    }

    /// The gateway on a store of its own; the path of a file is relative to a directory that ends with the server.
    pub fn embedded(name: &'static str, store: &str) -> Self {
        Self::embedded_with(name, Build::Ours, store)
    }

    pub fn embedded_with(name: &'static str, build: Build, store: &str) -> Self {
        let (address, command) = build.command(store);
        Self::new(name, Kind::Gateway, address, directory()).start(command)
    }

    /// The same two with further settings.
    pub fn on_redis_set(name: &'static str, settings: &[&str]) -> Self {
        let (server, command) = Self::of_redis(name, settings);
        server.start(command)
    }

    /// The gateway on a Redis of its own, with further settings, for clients that have so many keys with these limits.
    pub fn on_redis_for(name: &'static str, settings: &[&str], count: usize, limits: &[&str]) -> Self {
        let (server, mut command) = Self::of_redis(name, settings);
        let api_keys = add_api_keys(&mut command, &server.directory, count, limits);
        Self { access: Access::new(None, api_keys), ..server }.start(command)
    }

    /// The gateway on Redis at the level of the log at which it runs where no setting says otherwise.
    pub fn with_lines(name: &'static str, has_pipe: bool) -> Self {
        let (server, command) = Self::of_redis(name, &["--log-level", "info", "--log-format", "text"]);
        Self { has_pipe, ..server }.start(command)
    }

    /// A gateway on a Redis of its own, and what starts it.
    fn of_redis(name: &'static str, settings: &[&str]) -> (Self, Command) {
        let (redis, directory) = (free_address(), directory());
        let process = redis_server(redis, &directory, &[]);
        let store = format!("redis://{redis}");
        let (address, mut command) = Build::Ours.command(&store);
        command.args(settings);
        let server =
            Self::new(name, Kind::Gateway, address, directory).with(vec![process], Access::default());
        (Self { store: Some(store), ..server }, command)
    }

    /// One more gateway on the Redis of this one, which must not end before it.
    pub fn another(&self, settings: &[&str]) -> Self {
        let (address, mut command) = Build::Ours.command(self.store.as_deref().expect("it has a Redis"));
        command.args(settings);
        Self::new(self.name, Kind::Gateway, address, directory()).start(command)
    }

    pub fn embedded_set(name: &'static str, store: &str, settings: &[&str]) -> Self {
        let (address, mut command) = Build::Ours.command(store);
        command.args(settings);
        Self::new(name, Kind::Gateway, address, directory()).start(command)
    }

    /// A command that serves this address with answers that it knows by heart, and needs nothing else.
    pub fn by_heart(name: &'static str, address: SocketAddr, command: Command) -> Self {
        Self::new(name, Kind::ByHeart, address, directory()).start(command)
    }

    /// A Redis that keeps nothing, and no gateway.
    pub fn redis_itself(name: &'static str) -> Self {
        let (address, directory) = (free_address(), directory());
        let process = redis_server(address, &directory, &[]);
        Self::new(name, Kind::Redis, address, directory).with(vec![process], Access::default())
    }

    fn new(name: &'static str, kind: Kind, address: SocketAddr, directory: TempDir) -> Self {
        Self {
            name,
            kind,
            address,
            access: Access::default(),
            numbers: Numbers::default(),
            idle_rss_kb: None,
            store: None,
            has_pipe: false,
            process: None,
            redis: Vec::new(),
            directory,
        }
    }

    fn with(self, redis: Vec<Process>, access: Access) -> Self {
        Self { redis, access, ..self }
    }

    /// Runs the command, and returns when it is ready to serve.
    fn start(mut self, mut command: Command) -> Self {
        let log = File::create(self.directory.path().join("log")).unwrap();
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        if self.has_pipe {
            let (mut read, write) = io::pipe().unwrap();
            std::thread::spawn(move || io::copy(&mut read, &mut &log));
            command.stderr(write);
        } else {
            command.stderr(log);
        }
        let mut process = Process(command.spawn().unwrap());
        let is_ready = process.gets_ready(|| self.is_ready());
        assert!(is_ready, "{} does not start: {}", self.name, self.log());
        self.process = Some(process);
        self.idle_rss_kb = self.pid().map(rss_kb);
        self
    }

    fn is_ready(&self) -> bool {
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address);
        let mut reply = [0; 12];
        let asked = TcpStream::connect(self.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let Some(tls) = &self.access.tls else {
                stream.write_all(request.as_bytes())?;
                return stream.read_exact(&mut reply);
            };
            let session = ClientConnection::new(tls.config().clone(), self.address.ip().into());
            let mut stream = StreamOwned::new(session.map_err(io::Error::other)?, stream);
            stream.write_all(request.as_bytes())?;
            stream.read_exact(&mut reply)
        });
        asked.is_ok() && reply == *b"HTTP/1.1 200"
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.0.id())
    }

    pub fn redis_pids(&self) -> impl Iterator<Item = u32> {
        self.redis.iter().map(|redis| redis.0.id())
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// A Redis that keeps nothing, and is ready: a gateway that finds none lets some time pass before it looks again.
/// One that keeps nothing.
pub fn redis_server(address: SocketAddr, directory: &TempDir, settings: &[String]) -> Process {
    let process = Command::new("redis-server")
        .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(settings)
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut process = Process(process.expect("redis-server must be installed"));
    let is_ready = || {
        let mut reply = [0; 7];
        let asked = TcpStream::connect(address).and_then(|mut stream| {
            stream.write_all(b"PING\r\n")?;
            stream.read_exact(&mut reply)
        });
        asked.is_ok() && reply == *b"+PONG\r\n"
    };
    assert!(process.gets_ready(is_ready), "redis-server does not start");
    process
}

/// It is started in another directory than this one.
fn given(path: OsString) -> PathBuf {
    std::path::absolute(path).unwrap()
}

/// A directory on the disk that the build is on: the usual one for temporary files may be in memory, where a durable
/// store costs nothing.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// An address that nobody listens on at the moment. At the level of the log that is measured a server would not tell
/// the one that it chose.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
