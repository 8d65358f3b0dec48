//! Waiting in line, as clients of real gateways see it: two of them on one Redis, or one on its embedded store or on a
//! quorum, where gateways have lines of their own.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use kit::{Answer, Client, Gateway, RedisServer, eventually, fresh_token, quorum, secrets};

mod delivery;
mod limits;
mod lost_messages;
mod order;
mod tickets;
mod troubles;
mod wakes;

/// Two gateways to the same locks; an embedded store has one, which stands for both.
pub struct Pair {
    pub here: Gateway,
    pub there: Option<Gateway>,
    pub redis: Option<RedisServer>,
}

impl Pair {
    pub async fn embedded_with(args: &[&str]) -> Self {
        Self { here: Gateway::embedded(args).await, there: None, redis: None }
    }

    pub async fn redis_with(args: &[&str]) -> Self {
        Self::on(RedisServer::start().await, args).await
    }

    /// On the quorum that all tests share: there each gateway has lines of its own, so one stands for both.
    async fn quorum_with(args: &[&str]) -> Self {
        let prefix = fresh_token();
        let args = [&["--max-ttl", "2h", "--redis-prefix", &prefix], args].concat();
        let here = quorum::shared().await.gateway(&args).await;
        eventually("the quorum is founded", async || {
            Client::new(here.address).get("/readyz").send().await.status == 200
        })
        .await;
        Self { here, there: None, redis: None }
    }

    pub async fn on(redis: RedisServer, args: &[&str]) -> Self {
        let (here, there) = (Gateway::on_redis(&redis, args).await, Gateway::on_redis(&redis, args).await);
        Self { here, there: Some(there), redis: Some(redis) }
    }

    pub fn here(&self) -> Client {
        Client::new(self.here.address)
    }

    pub fn there(&self) -> Client {
        Client::new(self.there.as_ref().unwrap_or(&self.here).address)
    }

    /// Takes turns between the gateways.
    pub fn client(&self, number: usize) -> Client {
        if number.is_multiple_of(2) { self.here() } else { self.there() }
    }

    pub fn redis(&self) -> &RedisServer {
        self.redis.as_ref().unwrap()
    }
}

/// Makes one test for each store out of a function that is given a [`Pair`].
macro_rules! on_each_pair {
    ($($name:ident),+ $(,)?) => { super::on_each_pair!(with &[]; $($name),+); };
    (with $args:expr; $($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                super::$name(super::super::Pair::embedded_with($args).await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn redis() {
                super::$name(super::super::Pair::redis_with($args).await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn quorum() {
                super::$name(super::super::Pair::quorum_with($args).await).await;
            }
        })+
    };
}
use on_each_pair;

/// An answer, and when it came.
struct Answered {
    answer: Answer,
    at: Instant,
}

/// A `PUT` that is under way.
type Waiting = JoinHandle<Answered>;

/// Begins to wait for the lock `k`.
fn wait(client: &Client, query: &str, token: &str) -> Waiting {
    let put = client.put(&format!("/locks/k?{query}"));
    let put = if token.is_empty() { put } else { put.token(token) };
    tokio::spawn(async move {
        let answer = put.send().await;
        Answered { answer, at: Instant::now() }
    })
}

/// Waits until so many stand in the line of the lock `k`.
async fn stand(client: &Client, waiters: u64) {
    eventually(&format!("{waiters} wait"), async || count(client).await == waiters).await;
}

/// How many stand in the line of the lock `k`.
async fn count(client: &Client) -> u64 {
    client.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap()
}

/// Takes the lock `k` without waiting, and returns its token.
async fn hold(client: &Client, ttl: &str) -> String {
    client.put(&format!("/locks/k?ttl={ttl}")).send().await.expect(201).token()
}

/// Releases the lock `k`, and returns when that was asked for.
async fn release(client: &Client, token: &str) -> Instant {
    let asked = Instant::now();
    client.delete("/locks/k").token(token).send().await.expect(204);
    asked
}

/// A `PUT` for the lock `k` whose client can leave: dropped, it closes the connection.
async fn put_and_stay(gateway: &Gateway, query: &str, token: &str) -> TcpStream {
    let token = if token.is_empty() { String::new() } else { format!("Lease-Token: {token}\r\n") };
    let request = format!("PUT /locks/k?{query} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    secrets::remember_head(request.as_bytes());
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The delay in the middle of several.
pub fn median(mut delays: Vec<Duration>) -> Duration {
    delays.sort_unstable();
    delays[delays.len() / 2]
}
