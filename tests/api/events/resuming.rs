//! Streams that were cut off and come back, and readers that are too slow.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::{Pair, Stream, on_each_pair};
use kit::{Client, Gateway, PATIENCE, eventually, fresh_token};

on_each_pair!(what_came_while_a_reader_was_away_is_told_when_it_comes_back);

async fn back(client: &Client, query: &str, id: &str) -> Stream {
    Stream::by(client.call("GET", &format!("/events?{query}")).header("Last-Event-ID", id)).await
}

async fn what_came_while_a_reader_was_away_is_told_when_it_comes_back(pair: Pair) {
    let mut stream = Stream::open(&pair.here(), "prefix=a").await;
    let client = pair.there();
    let first = client.put("/locks/a1?ttl=5s").send().await.expect(201);
    let last_read = stream.next_news().await.is("granted");
    drop(stream);
    let second = client.put("/locks/a2?ttl=20s").send().await.expect(201);
    client.put("/locks/b").send().await.expect(201);
    client.delete("/locks/a2").token(&second.token()).send().await.expect(204);
    let mut stream = back(&pair.here(), "prefix=a", &last_read.id).await;
    // Nothing was missed; but another gateway may be heard of late.
    let granted = stream.next_news().await.is("granted");
    assert_eq!((granted.key(), granted.fencing_token()), (Some("a2"), second.fencing_token()));
    let released = stream.next_news().await.is("released");
    assert_eq!((released.key(), released.fencing_token()), (Some("a2"), second.fencing_token()));
    // Its time went on while nobody was there.
    drop(stream);
    eventually("it is free", async || client.get("/locks/a1").send().await.status == 404).await;
    let mut stream = back(&pair.here(), "prefix=a", &released.id).await;
    assert_eq!(stream.next_news().await.is("expired").fencing_token(), first.fencing_token());
    // What somebody else watched was not followed for this one.
    back(&pair.here(), "prefix=b", &released.id).await.next().await.is("resync");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_back_with_what_nobody_remembers_looks() {
    let (gateway, other) = (Gateway::embedded(&[]).await, Gateway::embedded(&[]).await);
    let (client, other) = (Client::new(gateway.address), Client::new(other.address));
    let mut elsewhere = Stream::open(&other, "key=k").await;
    other.put("/locks/k").send().await.expect(201);
    let foreign = elsewhere.next_news().await.id;
    let mut stream = Stream::open(&client, "key=k").await;
    let kept = client.put("/locks/k").send().await.expect(201);
    let own = stream.next_news().await.id;
    let (half, other) = (&own[..own.len() / 2], if own.ends_with('A') { "B" } else { "A" });
    let forged = format!("{}{other}", &own[..own.len() - 1]);
    for id in [&*foreign, "", "x", half, &forged, &format!("{own}0000"), "-1", "8d3f0c2a51b7e964-0"] {
        let first = back(&client, "key=k", id).await.next().await.is("resync");
        assert_eq!(first.data, json!({}), "{id}");
    }
    // Whoever was only told to look may come back as well.
    let look = Stream::by(client.call("GET", "/events?key=k")).await.next().await.is("resync");
    let token = fresh_token();
    client.put("/locks/new").token(&token).send().await.expect(201);
    let mut again = back(&client, "key=k", &look.id).await;
    client.put("/locks/k").token(&token).send().await.expect(423);
    client.delete("/locks/k").token(&kept.token()).send().await.expect(204);
    again.next_news().await.is("released");
}

/// Also where all that it asks for was followed for others: it was told of other locks.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_back_to_watch_other_locks_looks() {
    let gateway = Gateway::embedded(&[]).await;
    let client = Client::new(gateway.address);
    let mut streams = Vec::new();
    for query in ["prefix=b%2F", "prefix=", "key=a%2F1"] {
        streams.push(Stream::open(&client, query).await);
    }
    client.put("/lock?key=b/1&ttl=1m").send().await.expect(201);
    let last = streams[0].next_news().await.is("granted").id;
    for query in ["prefix=", "key=a%2F1", "key=b%2F1"] {
        assert_eq!(back(&client, query, &last).await.next().await.is("resync").key(), None, "{query}");
    }
    let mut same = back(&client, "prefix=b%2F", &last).await;
    client.put("/lock?key=b/2&ttl=1m").send().await.expect(201);
    assert_eq!(same.next_news().await.is("granted").key(), Some("b/2"));
}

/// A reader that does not read finds that it has missed something, keeps nobody waiting meanwhile, and is told on.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_too_slow_looks_when_it_goes_on() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(65_536).unwrap();
    let mut slow = socket.connect(gateway.address).await.unwrap();
    let request = format!("GET /events?prefix= HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.address);
    slow.write_all(request.as_bytes()).await.unwrap();
    let mut quick = Stream::open(&client, "key=last").await;
    // Much to be told of each step. What is told is more than the last 4,096 events and all buffers hold.
    let (key, owner) = ("%22".repeat(500), "%22".repeat(250));
    let token = client.put(&format!("/lock?key={key}&owner={owner}&ttl=1h")).send().await.expect(201).token();
    let renewing = (0..5).map(|_| {
        let (client, address, token) = (client.clone(), format!("/lock?key={key}&ttl=1h"), token.clone());
        tokio::spawn(async move {
            for _ in 0..2_000 {
                client.patch(&address).token(&token).send().await.expect(200);
            }
        })
    });
    let mut renewed = futures_util::future::join_all(renewing);
    let (mut text, mut buffer) = (String::new(), vec![0; 1 << 20]);
    // Its receive buffer, each five seconds: so little that it falls behind, however long the renewals take. Were some of it
    // left there, the window would stay closed, and it would be taken for gone.
    while tokio::time::timeout(Duration::from_secs(5), &mut renewed).await.is_err() {
        let length = slow.read(&mut buffer).await.unwrap();
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    client.put("/locks/last").send().await.expect(201);
    quick.next_news().await.is("granted");
    let read = async {
        // The first look is at the beginning. Each byte is looked at once or twice: there are some ten million.
        let (mut resyncs, mut seen, mut is_told) = (0, 0, false);
        loop {
            resyncs += text[seen..].matches("event: resync").count();
            is_told |= text[seen..].contains("\"key\":\"last\"");
            if resyncs >= 2 && is_told {
                break;
            }
            // Its last bytes may be the beginning of either.
            seen = text.len().saturating_sub("event: resync".len() - 1);
            let length = slow.read(&mut buffer).await.unwrap();
            assert!(length > 0, "the stream ends");
            text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("it is not told that it has missed anything");
    // The third one, where there is one, is of a first look that was late.
    assert!((2..=3).contains(&text.matches("event: resync").count()));
}
