//! The test kit: real servers that die with their guards, a real gateway, and an HTTP client that holds every answer
//! against the OpenAPI document.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]
#![allow(clippy::new_without_default, reason = "what starts a server is no default")]
#![allow(missing_docs, reason = "most names say it all")]

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub mod asking;
pub mod border;
pub mod certificates;
pub mod cluster;
pub mod document;
pub mod gateway;
pub mod h2;
pub mod history;
pub mod http;
pub mod keys;
pub mod load;
pub mod metrics;
pub mod network;
pub mod plot;
pub mod proxy;
pub mod quorum;
pub mod redis_server;
pub mod resource;
pub mod secrets;
pub mod secure;
pub mod sentinels;
pub mod stores;
pub mod visitors;
pub mod wording;

pub use cluster::RedisCluster;
pub use gateway::Gateway;
pub use http::{Answer, Client};
pub use keys::KeysFile;
pub use proxy::Proxy;
pub use quorum::Quorum;
pub use redis_server::RedisServer;
pub use sentinels::SentinelSetup;

/// How long anything that a test waits for may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway, and the Redis it runs on, if any.
pub struct Stage {
    pub gateway: Gateway,
    pub redis: Option<RedisServer>,
}

impl Stage {
    /// On the embedded store, in a file of its own.
    pub async fn embedded() -> Self {
        Self::embedded_with(&[]).await
    }

    pub async fn embedded_with(args: &[&str]) -> Self {
        Self { gateway: Gateway::embedded(args).await, redis: None }
    }

    /// On a Redis of its own.
    pub async fn redis() -> Self {
        Self::redis_with(&[]).await
    }

    pub async fn redis_with(args: &[&str]) -> Self {
        let redis = RedisServer::start().await;
        let gateway = Gateway::on_redis(&redis, args).await;
        Self { gateway, redis: Some(redis) }
    }

    pub fn client(&self) -> Client {
        Client::new(self.gateway.address)
    }
}

/// Makes one test for each store out of a function that is given a [`Stage`].
#[macro_export]
macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                super::$name($crate::Stage::embedded().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn redis() {
                super::$name($crate::Stage::redis().await).await;
            }
        })+
    };
}

/// Has this thread, and all that it starts, leave the processors to what counts, as far as this `nice` level says.
pub fn give_way(level: i32) {
    rustix::process::setpriority_process(None, level).unwrap();
}

/// Where a test computes for long, beside those whose time counts. Its servers must still come up in time.
pub const COMPUTES: i32 = 10;

/// A port where a server may start, start again, or never be: outside of those which the kernel gives to connections. One of
/// those may be taken by any connection in between, and a client that tries one for long may be connected to itself.
pub fn server_port() -> u16 {
    // Nobody listens yet on those that were given a moment ago. Other test programs run beside this one: a port is taken by a
    // name that the kernel gives to one process.
    static GIVEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    loop {
        let port = rand::random_range(12_000..32_000);
        let name = UnixAddr::from_abstract_name(format!("fencepost-tests-{port}")).unwrap();
        let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            GIVEN.lock().unwrap().push(claim);
            return port;
        }
    }
}

/// Ends these processes, and removes what is in their directories, when this process has ended, however it ends: for
/// what tests share, which no guard drops.
pub fn end_with_the_tests(servers: &[&RedisServer]) {
    let pids: Vec<_> = servers.iter().map(|server| server.pid().to_string()).collect();
    let places: Vec<_> = servers.iter().map(|server| server.directory()).collect();
    when_the_tests_have_ended(&format!("kill -9 {}; sleep 0.1", pids.join(" ")), &places);
}

/// Removes these directories when this process has ended, likewise.
pub fn remove_with_the_tests(places: &[&Path]) {
    when_the_tests_have_ended("true", places);
}

fn when_the_tests_have_ended(command: &str, places: &[&Path]) {
    let keeper = Command::new("sh")
        .args(["-c", &format!("cat; {command}; rm -rf \"$@\""), "sh"])
        .args(places)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Its standard input stays open as long as this process lives.
    std::mem::forget(keeper);
}

/// What random choices begin with: printed, so that a run that failed can be made again by `TEST_SEED=… cargo test …`.
pub fn seed() -> u64 {
    let seed = std::env::var("TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("TEST_SEED={seed}");
    seed
}

/// The sockets on a local port that are in this state (`01` established, `08` closed by the other end alone), each
/// with the number of bytes that its process has not read.
pub fn sockets(port: u16, state: &str) -> Vec<u64> {
    // Fields of a line: number, local address, remote address, state, sizes of both queues; all in hexadecimal.
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = lines.filter(|fields| fields[1].ends_with(&local) && fields[3] == state);
    ours.map(|fields| u64::from_str_radix(fields[4].split(':').nth(1).unwrap(), 16).unwrap()).collect()
}

/// A token that no other call returns.
pub fn fresh_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Sends a process that the test started a signal by its name, such as `TERM`.
pub fn signal(pid: u32, name: &str) {
    let signal = Signal::from_str(&format!("SIG{name}")).unwrap();
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// The processor time that all threads of a process have used so far.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program stands in parentheses, and may have spaces: the fields are counted from its end.
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    // User and system time, in hundredths of a second.
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// Polls until `probe` holds; fails the test, naming `what`, when it does not within [`PATIENCE`].
pub async fn eventually(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !probe().await {
        assert!(Instant::now() < give_up, "this did not come to pass: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
