//! Locks that connections hold, as clients of real gateways see it.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use kit::http::Call;
use kit::{Client, Gateway, PATIENCE, RedisServer, document, eventually, fresh_token, quorum};

mod crowd;
mod doubt;
mod ends;
mod forms;
mod leaving;
mod peers;
mod refusals;
mod released;
mod stopping;
mod told;

/// How soon something comes about that takes no waiting, on a machine that is busy.
const SOON: Duration = Duration::from_secs(1);

/// Two gateways to the same locks; an embedded store has one, which stands for both.
struct Pair {
    here: Gateway,
    there: Option<Gateway>,
    redis: Option<RedisServer>,
}

impl Pair {
    async fn embedded() -> Self {
        Self { here: Gateway::start(&["--store", "memory:"]).await, there: None, redis: None }
    }

    async fn redis() -> Self {
        Self::redis_with(&[]).await
    }

    async fn redis_with(args: &[&str]) -> Self {
        let redis = RedisServer::start().await;
        let (here, there) = (Gateway::on_redis(&redis, args).await, Gateway::on_redis(&redis, args).await);
        Self { here, there: Some(there), redis: Some(redis) }
    }

    /// On the quorum that all tests share.
    async fn quorum() -> Self {
        let prefix = fresh_token();
        let start = async || quorum::shared().await.gateway(&["--redis-prefix", &prefix]).await;
        let (here, there) = (start().await, start().await);
        for gateway in [&here, &there] {
            quorum::is_ready(&Client::new(gateway.address)).await;
        }
        Self { here, there: Some(there), redis: None }
    }

    fn here(&self) -> Client {
        Client::new(self.here.address)
    }

    fn there(&self) -> Client {
        Client::new(self.there.as_ref().unwrap_or(&self.here).address)
    }

    fn redis_server(&self) -> &RedisServer {
        self.redis.as_ref().unwrap()
    }
}

/// Makes one test for each store out of a function that is given a [`Pair`].
macro_rules! on_each_pair {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn embedded() {
                super::$name(super::super::Pair::embedded().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn redis() {
                super::$name(super::super::Pair::redis().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn quorum() {
                super::$name(super::super::Pair::quorum().await).await;
            }
        })+
    };
}
use on_each_pair;

/// A hold of the lock `k`. Dropped, it closes its connection.
struct Held {
    headers: HeaderMap,
    body: Incoming,
    text: String,
    granted: Event,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    name: String,
    data: Value,
}

impl Event {
    fn fencing_token(&self) -> u64 {
        self.data["fencing_token"].as_u64().unwrap()
    }

    fn ttl_ms(&self) -> u64 {
        self.data["ttl_ms"].as_u64().unwrap()
    }

    fn reason(&self) -> &str {
        assert_eq!(self.name, "lost", "{self:?}");
        self.data["reason"].as_str().unwrap()
    }
}

/// Holds the lock `k` with a token of the server's.
async fn hold(client: &Client, query: &str) -> Held {
    Held::take(client, query, None).await
}

/// Holds it with this one.
async fn hold_with(client: &Client, query: &str, token: &str) -> Held {
    Held::take(client, query, Some(token)).await
}

impl Held {
    async fn take(client: &Client, query: &str, token: Option<&str>) -> Self {
        let call = client.call("POST", &format!("/hold?key=k&{query}"));
        match token {
            Some(token) => Self::taken_by(call.token(token)).await,
            None => Self::taken_by(call).await,
        }
    }

    /// Holds another lock.
    async fn take_of(client: &Client, key: &str, query: &str) -> Self {
        Self::taken_by(client.call("POST", &format!("/hold?key={key}&{query}"))).await
    }

    async fn taken_by(call: Call) -> Self {
        let response = call.open().await;
        let (head, body) = response.into_parts();
        assert_eq!(head.status, 200, "{:?}", body.collect().await.unwrap().to_bytes());
        assert_eq!(head.headers["content-type"], "text/event-stream");
        assert_eq!(head.headers["cache-control"], "no-store");
        assert_eq!(head.headers["x-accel-buffering"], "no");
        let granted = Event { name: String::new(), data: Value::Null };
        let mut held = Self { headers: head.headers, body, text: String::new(), granted };
        held.granted = held.next().await.unwrap();
        assert_eq!(held.granted.name, "granted");
        assert_eq!(held.headers["lease-token"], held.granted.data["token"].as_str().unwrap());
        assert_eq!(held.headers["fencing-token"], held.granted.fencing_token().to_string());
        held
    }

    fn token(&self) -> String {
        self.granted.data["token"].as_str().unwrap().to_owned()
    }

    /// The next event that is no heartbeat; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.next_of_any_kind().await?;
            if event.name != "heartbeat" {
                return Some(event);
            }
        }
    }

    async fn next_of_any_kind(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event = read_event(&self.text[..end]);
                self.text.drain(..end + 2);
                return Some(event);
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("no event comes");
            let Some(Ok(frame)) = frame else {
                assert_eq!(self.text, "", "the stream ends within an event");
                return None;
            };
            let data: Bytes = frame.into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// Reads on until the lock is lost, after which nothing comes.
    async fn lost(&mut self) -> Event {
        timeout(PATIENCE, self.read_to_the_end()).await.expect("the lock is not lost")
    }

    async fn read_to_the_end(&mut self) -> Event {
        loop {
            let event = self.next().await.expect("the stream ends without a word");
            if event.name == "lost" {
                assert_eq!(self.next_of_any_kind().await, None);
                return event;
            }
            assert_eq!(event.name, "renewed");
        }
    }
}

/// Reads a server-sent event, and holds it against the document.
fn read_event(text: &str) -> Event {
    if text == ":" {
        return Event { name: "heartbeat".into(), data: Value::Null };
    }
    let (name, data) = text.split_once('\n').unwrap();
    let name = name.strip_prefix("event: ").unwrap().to_owned();
    let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    let mut line = data.clone();
    line["event"] = json!(name);
    check_line(&line);
    Event { name, data }
}

fn check_line(line: &Value) {
    document::validate(&json!({"$ref": "#/components/schemas/HoldEvent"}), line, "an event");
}

/// Waits in line for the lock `k`, and returns when it was granted.
async fn is_granted_to_another(client: &Client) -> Instant {
    let answer = client.put("/locks/k?wait=15s&ttl=10s").send().await.expect(201);
    let at = Instant::now();
    client.delete("/locks/k").token(&answer.token()).send().await.expect(204);
    at
}

async fn is_free(client: &Client) -> bool {
    client.get("/locks/k").send().await.status == 404
}

/// Waits until so many stand in the line of the lock `k`.
async fn stand(client: &Client, waiters: u64) {
    eventually(&format!("{waiters} wait"), async || {
        client.get("/locks/k").send().await.json()["waiters"] == waiters
    })
    .await;
}
