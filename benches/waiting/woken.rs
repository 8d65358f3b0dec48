//! A client that waits for the result of another, and how long it takes to be told after it began to be stored.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::shared::connection::Connection;
use crate::shared::workload::RESULT;

const WAITS: &str = "?ttl=30s&keep=2m&wait=30s";
/// Gateways tell each other at once where somebody waits. This is ample for that, and the next look of the waiting client
/// for itself is far away.
const SETTLED_AFTER: Duration = Duration::from_millis(120);

pub struct Work {
    worker: Connection,
    /// Nobody has it while it waits.
    waits: Option<Connection>,
    /// Where it waits.
    there: SocketAddr,
    done: usize,
    name: &'static str,
}

impl Work {
    /// A worker at one gateway, and one who waits at the other, or at the same.
    pub async fn open(name: &'static str, here: SocketAddr, there: SocketAddr) -> Result<Self, String> {
        let (worker, waits) = (Connection::open(here).await?, Connection::open(there).await?);
        Ok(Self { worker, waits: Some(waits), there, done: 0, name })
    }

    /// From just before the worker's `POST` is sent until the other has read the result, in nanoseconds.
    pub async fn woken(&mut self) -> Result<u64, String> {
        self.done += 1;
        let (key, token) = (format!("{}-{}", self.name, self.done), fresh_token());
        if !self.worker.begin(&key, WAITS, &token).await? {
            return Err(format!("{key}: a fresh record is there"));
        }
        let mut waits = self.waits.take().expect("nobody waits yet");
        waits.number = self.worker.number;
        let waiting = tokio::spawn({
            let key = key.clone();
            async move {
                waits.replay(&key, WAITS, &fresh_token(), RESULT).await?;
                Ok::<_, String>((Instant::now(), waits))
            }
        });
        while waiters(self.there).await? == 0 {}
        sleep(SETTLED_AFTER).await;
        let started = Instant::now();
        self.worker.store(&key, &token, RESULT).await?;
        let (told, waits) = waiting.await.expect("the client does not panic")?;
        self.waits = Some(waits);
        Ok(u64::try_from((told - started).as_nanos()).unwrap())
    }
}

/// How many wait for records at a gateway.
async fn waiters(address: SocketAddr) -> Result<u64, String> {
    let mut text = String::new();
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        stream.read_to_string(&mut text).await
    };
    asked.await.map_err(|error| error.to_string())?;
    let count = text.lines().find_map(|line| line.strip_prefix("fencepost_once_waiters "));
    count.and_then(|count| count.parse().ok()).ok_or_else(|| format!("no number of those who wait: {text}"))
}

fn fresh_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}
