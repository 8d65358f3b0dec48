//! What gateways tell each other of locks for their watchers: a summons, and a letter for each deed.
//!
//! A fixture has a line for each: the channel, and the message as it was sent.

use std::collections::BTreeSet;
use std::time::Duration;

use http_body_util::BodyExt;
use redis::PushInfo;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::notation::{line, words};
use super::redis::ask;
use super::transcript::{connect, told};
use super::{is_recording, recorded, records, versions};
use kit::{Client, Gateway, PATIENCE, RedisServer};

const FIXTURE: &str = "letters.txt";
const WATCHERS: &str = "fencepost:watchers";
const EVENTS: &str = "fencepost:events";
const SUMMONED_EVERY: Duration = Duration::from_millis(500);

/// A message, and the channel that it was sent on.
#[derive(Debug)]
struct Letter {
    channel: String,
    text: String,
}

impl Letter {
    /// Nothing where a gateway only tries whether it may send.
    fn read(line: &str) -> Option<Self> {
        let [channel, text] = words(line).try_into().unwrap();
        (!text.is_empty()).then_some(Self { channel, text })
    }

    fn said(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

fn letters(fixture: &str) -> Vec<Letter> {
    fixture.lines().filter_map(Letter::read).collect()
}

/// A message with the kinds of its values, where they differ each time.
fn form(message: &Value) -> Value {
    match message {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| match name.as_str() {
                "from" => (name.clone(), json!(format!("{} digits", value.as_str().unwrap().len()))),
                _ => (name.clone(), form(value)),
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Number(number) => json!(if number.is_u64() { "a number" } else { "no whole number" }),
        other => other.clone(),
    }
}

/// Whether a message has all that is in another one. What it has besides is ignored by those who do not know it.
fn has_all(message: &Value, of: &Value) -> bool {
    match (message, of) {
        (Value::Object(message), Value::Object(of)) => {
            of.iter().all(|(name, value)| message.get(name).is_some_and(|own| has_all(own, value)))
        }
        _ => message == of,
    }
}

/// The next message that a gateway has sent, and not the test.
async fn next(heard: &mut UnboundedReceiver<PushInfo>, summons: &str) -> Letter {
    let next = async {
        loop {
            let PushInfo { kind, data } = heard.recv().await.unwrap();
            let told = told(redis::Value::Push { kind, data });
            let letter = told.and_then(|told| Letter::read(&told));
            if let Some(letter) = letter.filter(|letter| letter.text != summons) {
                return letter;
            }
        }
    };
    timeout(PATIENCE, next).await.expect("nothing is told any more")
}

/// Has a gateway do all that it tells others of. Returns what it said, beginning with its answer to a summons.
async fn tell(summons: &str) -> Vec<Letter> {
    let redis = RedisServer::start().await;
    let (mut connection, mut heard) = connect(&redis).await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let listen = redis::cmd("SUBSCRIBE").arg(WATCHERS).arg(EVENTS).to_owned();
    listen.exec_async(&mut connection).await.unwrap();
    // Others summon it again and again: it stops telling those of whom it has not heard.
    let summoning = redis::cmd("PUBLISH").arg(WATCHERS).arg(summons).to_owned();
    let summoning = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            summoning.exec_async(&mut connection).await.unwrap();
            sleep(SUMMONED_EVERY).await;
        }
    }));
    let mut all = vec![next(&mut heard, summons).await];
    ask(&client, "PUT", "key=told%20%C3%A4&ttl=1h&owner=Ada%20%22%C3%BC%22", "first").await.expect(201);
    ask(&client, "PATCH", "key=told%20%C3%A4&ttl=2h", "first").await.expect(200);
    ask(&client, "PUT", "key=told%20%C3%A4&ttl=1h&wait=10ms", "second").await.expect(423);
    ask(&client, "DELETE", "key=told%20%C3%A4", "first").await.expect(204);
    ask(&client, "PUT", "key=kept&ttl=1h&min_hold=1h", "first").await.expect(201);
    ask(&client, "DELETE", "key=kept", "first").await.expect(204);
    let number = ask(&client, "PUT", "key=broken&ttl=1h", "first").await.expect(201).fencing_token();
    let broken = format!("/lock?key=broken&force=true&fencing_token={number}");
    client.delete(&broken).send().await.expect(204);
    while all.last().unwrap().said()["deed"]["did"] != "break" {
        all.push(next(&mut heard, summons).await);
    }
    let stream = client.call("GET", "/events?prefix=").open().await;
    while all.last().unwrap().channel != WATCHERS {
        all.push(next(&mut heard, summons).await);
    }
    drop((stream, summoning));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_tells_others_what_those_of_an_earlier_version_understand() {
    if is_recording() {
        let all = tell(r#"{"from":"0123456789abcdef","is_new":true}"#).await;
        let lines = all.iter().map(|letter| line(&[&letter.channel, &letter.text]) + "\n");
        records(FIXTURE, &lines.collect::<String>());
    }
    for version in versions() {
        let expected = letters(&recorded(&version, FIXTURE));
        let summons = expected.iter().find(|letter| letter.channel == WATCHERS).unwrap();
        let all = timeout(2 * PATIENCE, tell(&summons.text)).await.expect("something is not told");
        for letter in &expected {
            let is_it = |told: &Letter| {
                told.channel == letter.channel && has_all(&form(&told.said()), &form(&letter.said()))
            };
            assert!(all.iter().any(is_it), "{version} expects {letter:?}, and is told {all:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_told_what_gateways_of_an_earlier_version_do() {
    for version in versions() {
        let redis = RedisServer::start().await;
        let gateway = Gateway::on_redis(&redis, &[]).await;
        let client = Client::new(gateway.address);
        let mut stream = client.call("GET", "/events?prefix=").open().await;
        let mut text = String::new();
        let mut until = async |what: &str| {
            let read = async {
                while !text.contains(what) {
                    let frame = stream.body_mut().frame().await.unwrap().unwrap();
                    text += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
                }
            };
            let in_time = timeout(PATIENCE, read).await.is_ok();
            assert!(in_time, "{what} of {version} is not told: {text}");
        };
        until("event: resync").await;
        let all = letters(&recorded(&version, FIXTURE));
        let mut deeds = BTreeSet::new();
        for letter in &all {
            let deed = &letter.said()["deed"];
            let key = deed["key"].as_str().unwrap_or_default();
            if deed["did"] == "line" {
                // It says only that somebody has come or gone.
                let queue = format!("fencepost:{{0}}:line:{key}");
                let _: u64 = redis.command(&["ZADD", &queue, "1", "somebody"]).await;
            }
            let _: u64 = redis.command(&["PUBLISH", &letter.channel, &letter.text]).await;
            let fence = format!(",\"fencing_token\":{}", deed["fence"]);
            let (event, rest) = match deed["did"].as_str() {
                None => continue,
                Some("grant") => ("granted", fence),
                Some("renew") => ("renewed", fence),
                Some("release") => ("released", fence),
                Some("break") => ("broken", fence),
                Some("line") => ("waiting", ",\"waiters\":1".to_owned()),
                Some(other) => panic!("what is told of {other}?"),
            };
            until(&format!("event: {event}\ndata: {{\"key\":\"{key}\"{rest}")).await;
            if deed["owner"].is_string() {
                until(&format!("\"owner\":{}", deed["owner"])).await;
            }
            deeds.insert(event);
        }
        assert_eq!(deeds.len(), 5, "{deeds:?}");
    }
}
