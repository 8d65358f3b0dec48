//! What happens to locks, as a stream, as those see it who read it from real gateways.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use kit::http::Call;
use kit::{Client, Gateway, PATIENCE, RedisServer, cluster, document, fresh_token, quorum, secrets};

mod alone;
mod forms;
mod keys;
mod others;
mod resuming;
mod several;
mod telling;

/// How soon what another gateway does is told, on a machine that is busy.
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
        let redis = RedisServer::start().await;
        let (here, there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
        Self { here, there: Some(there), redis: Some(redis) }
    }

    /// On the cluster that all tests share.
    async fn cluster() -> Self {
        let (url, prefix) = (cluster::shared().await.url(), fresh_token());
        let start = async || Gateway::start(&["--store", &url, "--redis-prefix", &prefix]).await;
        Self { here: start().await, there: Some(start().await), redis: None }
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

    /// Where locks are watched.
    fn here(&self) -> Client {
        Client::new(self.here.address)
    }

    /// Where they are taken.
    fn there(&self) -> Client {
        Client::new(self.there.as_ref().unwrap_or(&self.here).address)
    }
}

/// What somebody who watches is told.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

impl Event {
    #[track_caller]
    fn fencing_token(&self) -> u64 {
        self.data["fencing_token"].as_u64().unwrap_or_else(|| panic!("{self:?}"))
    }

    #[track_caller]
    fn ttl_ms(&self) -> u64 {
        self.data["ttl_ms"].as_u64().unwrap_or_else(|| panic!("{self:?}"))
    }

    fn key(&self) -> Option<&str> {
        self.data["key"].as_str()
    }

    /// What must be true of an event of this name, and of nothing else.
    #[track_caller]
    fn is(self, name: &str) -> Self {
        assert_eq!(self.name, name, "{self:?}");
        self
    }
}

/// A stream of events. Dropped, it closes its connection.
struct Stream {
    body: Incoming,
    text: String,
    is_ndjson: bool,
}

impl Stream {
    /// Watches these, and reads the first event, which says that they are to be looked at now.
    async fn open(client: &Client, query: &str) -> Self {
        let mut stream = Self::by(client.call("GET", &format!("/events?{query}"))).await;
        let first = stream.next().await.is("resync");
        assert_eq!(first.data, json!({}));
        stream
    }

    async fn by(call: Call) -> Self {
        let (head, body) = call.open().await.into_parts();
        assert_eq!(head.status, 200, "{:?}", body.collect().await.unwrap().to_bytes());
        assert_eq!(head.headers["cache-control"], "no-store");
        assert_eq!(head.headers["x-accel-buffering"], "no");
        let is_ndjson = match head.headers["content-type"].to_str().unwrap() {
            "application/x-ndjson" => true,
            other => {
                assert_eq!(other, "text/event-stream");
                false
            }
        };
        Self { body, text: String::new(), is_ndjson }
    }

    /// The next event that is no heartbeat.
    async fn next(&mut self) -> Event {
        timeout(PATIENCE, self.read()).await.expect("no event comes").expect("the stream ends")
    }

    /// The next event but heartbeats and those that have one look again, which may come at any time.
    async fn next_news(&mut self) -> Event {
        loop {
            let event = self.next().await;
            if event.name != "resync" {
                return event;
            }
        }
    }

    /// Reads on up to an event of this name.
    async fn until(&mut self, name: &str) -> Event {
        timeout(PATIENCE, async {
            loop {
                let event = self.next().await;
                if event.name == name {
                    return event;
                }
            }
        })
        .await
        .unwrap_or_else(|_| panic!("no event {name} comes"))
    }

    /// Reads on up to the news of a lock; returns them.
    async fn of(&mut self, key: &str) -> Event {
        timeout(PATIENCE, async {
            loop {
                let event = self.next().await;
                if event.key() == Some(key) {
                    return event;
                }
            }
        })
        .await
        .unwrap_or_else(|_| panic!("nothing is told of {key}"))
    }

    /// Reads on to the end of the stream; returns what came before.
    async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = timeout(PATIENCE, self.read()).await.expect("the stream goes on") {
            events.push(event);
        }
        events
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            let event = self.read_any().await?;
            if event.name != "heartbeat" {
                assert!(!event.id.is_empty(), "{event:?}");
                return Some(event);
            }
        }
    }

    async fn read_any(&mut self) -> Option<Event> {
        let end_of_event = if self.is_ndjson { "\n" } else { "\n\n" };
        loop {
            if let Some(end) = self.text.find(end_of_event) {
                let event = read_event(&self.text[..end], self.is_ndjson);
                self.text.drain(..end + end_of_event.len());
                return Some(event);
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Option<()> {
        let Some(Ok(frame)) = self.body.frame().await else {
            assert_eq!(self.text, "", "the stream ends within an event");
            return None;
        };
        let data: Bytes = frame.into_data().unwrap();
        self.text.push_str(std::str::from_utf8(&data).unwrap());
        Some(())
    }

    /// Reads on past the news of a lock. Returns how many events come until then, and how many of them say to look. Where
    /// there are very many, to take each apart takes too long.
    async fn skim(mut self, key: &str) -> (usize, usize) {
        let is_of_key = format!("\"key\":\"{key}\"");
        let (mut events, mut looks) = (0, 0);
        loop {
            let end = self.text.rfind("\n\n").map_or(0, |end| end + 2);
            let whole = &self.text[..end];
            events += whole.matches("event: ").count();
            looks += whole.matches("event: resync").count();
            if whole.contains(&is_of_key) {
                return (events, looks);
            }
            self.text.drain(..end);
            self.read_more().await.expect("the stream ends");
        }
    }
}

/// All that a stream tells, and when.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<(Instant, Event)>>>);

impl Record {
    fn of(mut stream: Stream) -> Self {
        let record = Self::default();
        let events = record.0.clone();
        tokio::spawn(async move {
            while let Some(event) = stream.read().await {
                events.lock().unwrap().push((Instant::now(), event));
            }
        });
        record
    }

    /// Whether it was told that this grant was given back.
    fn has_released(&self, fencing_token: u64) -> bool {
        let is_it = |event: &Event| event.name == "released" && event.fencing_token() == fencing_token;
        self.0.lock().unwrap().iter().any(|(_, event)| is_it(event))
    }

    /// Whether whoever watches was told to look, after this moment.
    fn has_looked_since(&self, moment: Instant) -> bool {
        self.0.lock().unwrap().iter().any(|(at, event)| *at > moment && event.name == "resync")
    }
}

/// Reads an event, and holds it against the document.
fn read_event(text: &str, is_ndjson: bool) -> Event {
    let mut line: Value = match is_ndjson {
        true => serde_json::from_str(text).unwrap(),
        false if text == ":" => json!({"event": "heartbeat"}),
        false => {
            let lines: Vec<_> = text.split('\n').collect();
            let [id, name, data] = lines[..] else { panic!("{text:?}") };
            let mut line: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            line["event"] = json!(name.strip_prefix("event: ").unwrap());
            line["id"] = json!(id.strip_prefix("id: ").unwrap());
            line
        }
    };
    document::validate(&json!({"$ref": "#/components/schemas/LockEvent"}), &line, "an event");
    secrets::search("an event", [text]);
    assert!(line.get("token").is_none(), "{line}");
    let data = line.as_object_mut().unwrap();
    let mut take =
        |name: &str| data.remove(name).map_or_else(String::new, |text| text.as_str().unwrap().to_owned());
    Event { name: take("event"), id: take("id"), data: line }
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
            async fn cluster() {
                super::$name(super::super::Pair::cluster().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn quorum() {
                super::$name(super::super::Pair::quorum().await).await;
            }
        })+
    };
}
use on_each_pair;
