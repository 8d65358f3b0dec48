//! A real `redis-server` on a free port.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, free_port};

/// Ends its server when dropped.
pub struct RedisServer {
    child: Child,
    port: u16,
    directory: TempDir,
    args: Vec<String>,
    url: String,
}

impl RedisServer {
    /// Starts one that keeps nothing.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with further arguments of `redis-server`; it is up when this returns.
    pub async fn start_with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Another process may take the port between our look and the server's: then a further one is tried.
        for _ in 0..5 {
            let port = free_port();
            let directory = tempfile::tempdir().unwrap();
            let child = spawn(port, &directory, &args);
            let url = format!("redis://127.0.0.1:{port}");
            let mut server = Self { child, port, directory, args: args.clone(), url };
            if server.wait_until_up().await {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the test's own.
    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url.as_str()).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// Sends one command, given as words.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connect().await;
        let (name, args) = words.split_first().unwrap();
        redis::cmd(name).arg(args).query_async(&mut connection).await.unwrap()
    }

    /// How often a command was called, from clients and from scripts.
    pub async fn calls(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]).await;
        let prefix = format!("cmdstat_{command}:calls=");
        let count = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// Every key that the server holds.
    pub async fn keys(&self) -> Vec<String> {
        self.command(&["KEYS", "*"]).await
    }

    /// What waits in the kernel for a server that stands still.
    pub fn unread_bytes(&self) -> u64 {
        // Lines of established connections: local address, remote address, state, sizes of both queues in hexadecimal.
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{:04X}", self.port);
        let established = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours = established.filter(|fields| fields[1].ends_with(&local) && fields[3] == "01");
        ours.map(|fields| u64::from_str_radix(fields[4].split(':').nth(1).unwrap(), 16).unwrap()).sum()
    }

    /// Ends the server at once and starts it again on the same port and directory.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.directory, &self.args);
        assert!(self.wait_until_up().await, "redis-server does not start again");
    }

    /// As [`Self::restart`], but everything that it kept on disk is gone.
    pub async fn restart_empty(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(self.directory.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap()
            } else {
                std::fs::remove_file(path).unwrap()
            }
        }
        self.restart().await;
    }

    /// Sends a signal by its name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        super::signal(self.child.id(), name);
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn wait_until_up(&mut self) -> bool {
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            // Whatever it answers, a refusal of the test's credentials too, it is up.
            let ping = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await;
            if let Ok(stream) = ping
                && speaks(stream).await
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(port: u16, directory: &TempDir, args: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--dir", &directory.path().display().to_string()])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server must be installed: `make test` says how")
}

async fn speaks(mut stream: tokio::net::TcpStream) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut reply = [0; 1];
    let dialogue = async {
        stream.write_all(b"PING\r\n").await.ok()?;
        stream.read_exact(&mut reply).await.ok()?;
        // "-LOADING" begins with a minus: then it is not up yet. So does "-NOAUTH", which ends the wait below.
        Some(reply[0])
    };
    match tokio::time::timeout(Duration::from_secs(1), dialogue).await {
        Ok(Some(b'+')) => true,
        Ok(Some(_)) => {
            let mut rest = [0; 6];
            stream.read_exact(&mut rest).await.is_ok() && &rest == b"NOAUTH"
        }
        _ => false,
    }
}
