//! A real `redis-server` on a free port.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, eventually, server_port};

/// The file in a sentinel's directory that it starts from.
pub const SENTINEL_CONFIG: &str = "sentinel.conf";

/// Ends its server when dropped.
pub struct RedisServer {
    child: Child,
    port: u16,
    directory: TempDir,
    /// The whole command line, so that it can be started again.
    args: Vec<String>,
    url: String,
    /// What the test's own connections show, where `--requirepass` was among the arguments.
    password: Option<String>,
    /// For those who ask often: each connection that ends keeps the kernel busy for a minute.
    kept: tokio::sync::Mutex<Option<redis::aio::MultiplexedConnection>>,
}

/// A lock as Redis keeps it.
#[derive(Clone, Debug)]
pub struct StoredLock {
    pub token_hash: String,
    pub is_pinned: bool,
    pub number: u64,
    pub left_ms: u64,
}

impl RedisServer {
    /// Starts one that keeps nothing.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with further arguments of `redis-server`; it is up when this returns.
    pub async fn start_with(args: &[&str]) -> Self {
        // Another process may take the port between our look and the server's: then a further one is tried.
        for _ in 0..5 {
            if let Some(server) = Self::start_on(server_port(), args).await {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    /// Starts one on this port; nothing where it ends instead.
    pub async fn start_on(port: u16, args: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().display().to_string();
        let port_text = port.to_string();
        let ours = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let all = [&ours[..], &["--dir", &place], args].concat();
        let password = args.windows(2).find(|pair| pair[0] == "--requirepass").map(|pair| pair[1]);
        Self::launch(port, directory, &all, password).await
    }

    /// Starts one by another command line than ours, which ends in its arguments.
    pub async fn start_by(words: &[String], password: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = server_port();
        let place = directory.path().display();
        let further = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &place.to_string()]
            .map(str::to_owned);
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(&further)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = format!("redis://127.0.0.1:{port}");
        let args = [words, &further].concat();
        let (password, kept) = (Some(password.to_owned()), tokio::sync::Mutex::default());
        let mut server = Self { child, port, directory, args, url, password, kept };
        assert!(server.wait_until_up().await, "it does not start: {:?}", server.args);
        server
    }

    /// Starts a sentinel with this configuration, which it rewrites as it goes; nothing where it ends instead.
    pub async fn start_sentinel_on(port: u16, config: &str, password: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(SENTINEL_CONFIG);
        let place = directory.path().display();
        let own = password.map(|password| format!("requirepass {password}\n")).unwrap_or_default();
        let whole = format!("port {port}\nbind 127.0.0.1\ndir {place}\n{own}{config}\n");
        std::fs::write(&file, whole).unwrap();
        let args = [file.to_str().unwrap(), "--sentinel"];
        Self::launch(port, directory, &args, password).await
    }

    async fn launch(port: u16, directory: TempDir, args: &[&str], password: Option<&str>) -> Option<Self> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let child = spawn(&args);
        let url = format!("redis://127.0.0.1:{port}");
        let password = password.map(str::to_owned);
        let kept = tokio::sync::Mutex::default();
        let mut server = Self { child, port, directory, args, url, password, kept };
        server.wait_until_up().await.then_some(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address with the password in it, if it has one.
    fn url_of_the_tests(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}127.0.0.1:{}", self.port)
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection of the test's own.
    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url_of_the_tests().as_str()).unwrap();
        let config = redis::AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// Sends one command, given as words.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connect().await;
        let (name, args) = words.split_first().unwrap();
        redis::cmd(name).arg(args).query_async(&mut connection).await.unwrap()
    }

    /// As [`Self::command`], for a server that may be gone or stand still, and may refuse.
    pub async fn try_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, String> {
        let mut kept = self.kept.lock().await.take();
        let ask = async {
            loop {
                let is_new = kept.is_none();
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => {
                        let client = redis::Client::open(self.url_of_the_tests().as_str())?;
                        client.get_multiplexed_async_connection().await?
                    }
                };
                let (name, args) = words.split_first().unwrap();
                let answer: redis::RedisResult<T> =
                    redis::cmd(name).arg(args).query_async(&mut connection).await;
                match answer {
                    // It may have ended with the server, or with the test that opened it.
                    Err(error) if error.is_unrecoverable_error() && !is_new => {}
                    answer => return answer.map(|answer| (answer, connection)),
                }
            }
        };
        let answer = tokio::time::timeout(Duration::from_secs(1), ask).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?;
        let (answer, connection) = answer.map_err(|error: redis::RedisError| error.to_string())?;
        *self.kept.lock().await = Some(connection);
        Ok(answer)
    }

    /// As [`Self::command`], for what changes nothing: asked again where the connection was cut, as sentinels do with all
    /// connections of a server that they call back.
    async fn look<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let give_up = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.try_command(words).await {
                Ok(answer) => return answer,
                Err(error) => assert!(tokio::time::Instant::now() < give_up, "{words:?}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// When it was first seen to be a primary: waits for it.
    pub async fn becomes_primary(&self) -> tokio::time::Instant {
        eventually("the server is promoted", async || {
            let role: Result<Vec<redis::Value>, _> = self.try_command(&["ROLE"]).await;
            role.is_ok_and(|role| role[0] == redis::Value::BulkString(b"master".to_vec()))
        })
        .await;
        tokio::time::Instant::now()
    }

    /// How often a command was called, from clients and from scripts.
    pub async fn calls(&self, command: &str) -> u64 {
        self.all_calls().await.get(command).copied().unwrap_or(0)
    }

    /// How often each command was called, from clients and from scripts.
    pub async fn all_calls(&self) -> HashMap<String, u64> {
        let stats: String = self.command(&["INFO", "commandstats"]).await;
        let counts = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let number = |text: &str| text.split(',').next().unwrap().parse().unwrap();
        counts.map(|(name, rest)| (name.to_owned(), number(rest))).collect()
    }

    /// Every key that the server holds.
    pub async fn keys(&self) -> Vec<String> {
        self.look(&["KEYS", "*"]).await
    }

    /// Every lock that stands at one moment, by its key.
    pub async fn locks(&self) -> HashMap<String, StoredLock> {
        // One script sees one moment.
        let look = "local locks = {}
            for _, name in ipairs(redis.call('KEYS', 'fencepost:{0}:lock:*')) do
                local lock = redis.call('GET', name)
                if lock then locks[#locks + 1] = { name, lock, redis.call('PTTL', name) } end
            end
            return locks";
        let locks: Vec<(String, String, i64)> = self.command(&["EVAL", look, "0"]).await;
        let read = |(name, lock, left_ms): (String, String, i64)| {
            let fields: Vec<_> = lock.splitn(4, ' ').collect();
            let lock = StoredLock {
                token_hash: fields[0].to_owned(),
                is_pinned: fields[1].starts_with('-'),
                // Behind it may stand until when it may last, and is kept.
                number: fields[2].split(':').next().unwrap().parse().unwrap(),
                left_ms: left_ms.try_into().expect("a lock without a ttl"),
            };
            (name.strip_prefix("fencepost:{0}:lock:").unwrap().to_owned(), lock)
        };
        locks.into_iter().map(read).collect()
    }

    /// One field of the server's `INFO`.
    pub async fn info(&self, field: &str) -> String {
        let info: String = self.look(&["INFO"]).await;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {field} in INFO")).to_owned()
    }

    /// What waits in the kernel for a server that stands still.
    pub fn unread_bytes(&self) -> u64 {
        super::sockets(self.port, "01").iter().sum()
    }

    /// Connections whose other end was closed, while the server stands still and does not see it.
    pub fn abandoned_connections(&self) -> usize {
        super::sockets(self.port, "08").len()
    }

    /// Makes it a replica of the server that is reached by this port, and waits until it has its data.
    pub async fn follow(&self, port: u16) {
        let _: () = self.command(&["REPLICAOF", "127.0.0.1", &port.to_string()]).await;
        eventually("the replica has caught up", async || self.info("master_link_status").await == "up").await;
    }

    /// Makes it a primary; whoever it followed is not told.
    pub async fn promote(&self) {
        let _: () = self.command(&["REPLICAOF", "NO", "ONE"]).await;
    }

    /// Ends the server at once and starts it again on the same port and directory.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Ends the server at once and starts it again on the same port, with nothing of what it held.
    pub async fn restart_empty(&mut self) {
        self.kill();
        self.lose_data();
        self.start_again().await;
    }

    /// Starts a server that has ended again, on the same port and directory.
    pub async fn start_again(&mut self) {
        self.start_once_with(&[]).await;
    }

    /// As [`Self::start_again`], this time with further arguments.
    pub async fn start_once_with(&mut self, args: &[&str]) {
        let further = args.iter().map(|arg| (*arg).to_owned());
        self.child = spawn(&self.args.iter().cloned().chain(further).collect::<Vec<_>>());
        assert!(self.wait_until_up().await, "redis-server does not start again");
    }

    /// Ends the server as an operator would, and waits for its end.
    pub async fn shut_down(&mut self) {
        self.signal("TERM");
        eventually("the server ends", async || self.child.try_wait().unwrap().is_some()).await;
    }

    /// Deletes what a server that has ended left on its disk.
    pub fn lose_data(&self) {
        for entry in std::fs::read_dir(self.directory.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
    }

    /// Cuts off the last part of the append-only file of a server that has ended.
    pub fn lose_tail(&self) {
        let files = std::fs::read_dir(self.directory.path().join("appendonlydir")).unwrap();
        let mut paths = files.map(|entry| entry.unwrap().path());
        let path = paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() * 9 / 10).unwrap();
    }

    /// Has the server write its append-only file anew, as it must where that was cut off within a script: it leaves the first part
    /// of that script in it, and does that part when it starts again.
    pub async fn rewrite(&self) {
        let _: String = self.command(&["BGREWRITEAOF"]).await;
        eventually("the append-only file is written", async || {
            let about: String = self.command(&["INFO", "persistence"]).await;
            let is_done = |name: &str| about.contains(&format!("aof_rewrite_{name}:0"));
            is_done("in_progress") && is_done("scheduled")
        })
        .await;
    }

    /// Sends a signal by its name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        super::signal(self.child.id(), name);
    }

    /// Stops the server where it stands, until it is sent `CONT`.
    pub async fn stand_still(&self) {
        self.signal("STOP");
        // Fields of the line: id, name in parentheses, state.
        let status = || std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        eventually("the server stands still", async || status().contains(") T ")).await;
    }

    /// Has the server evict all that has an end, one key at least, and sets it right at once: no gateway need see that it might.
    pub async fn evict(&self) {
        let _: () = self.command(&["SET", "ending", "value", "PX", "60000"]).await;
        for (setting, value) in [("maxmemory-policy", "volatile-lru"), ("maxmemory", "1")] {
            let _: () = self.command(&["CONFIG", "SET", setting, value]).await;
        }
        // There is no room for it, whatever is evicted.
        let _ = self.try_command::<()>(&["SET", "another", "value"]).await;
        for (setting, value) in [("maxmemory", "0"), ("maxmemory-policy", "noeviction")] {
            let _: () = self.command(&["CONFIG", "SET", setting, value]).await;
        }
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

/// The server of the system, unless the tests are run on another (`make test-servers`).
pub fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

fn spawn(args: &[String]) -> Child {
    Command::new(program())
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
