//! Many who watch where much happens: they are told to look for themselves, and others are told of their locks as before. And what is told where nothing happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Pair, SOON, Stream};
use kit::{Client, Gateway, fresh_token};

/// So many that 26 events in a tenth of a second are more than a gateway tells them.
const CROWD: usize = 800;
/// How many locks are taken and released at once: a machine that is busy does as much in so short a time.
const FLOOD: usize = 60;
/// The time between looks at the quiet lock, five of which take longer than a rest of the crowd.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn watchers_who_cannot_be_told_all_are_told_to_look_and_others_are_told_of_theirs() {
    let pair = Pair::embedded().await;
    let client = pair.here();
    let mut crowd = JoinSet::new();
    let (reads, may_read) = watch::channel(false);
    for _ in 0..CROWD {
        let stream = Stream::open(&client, "prefix=").await;
        let mut may_read = may_read.clone();
        crowd.spawn(async move {
            // What comes before waits in the socket: to read it at once would keep the flood from being one.
            may_read.wait_for(|may| *may).await.unwrap();
            // All that comes after the last change is either told, or to be looked at.
            stream.skim("last").await
        });
    }
    let mut own = Stream::open(&client, "key=own").await;
    let is_over = AtomicBool::new(false);
    let flood = async {
        let (client, mut happened) = (pair.there(), 0_usize);
        while !is_over.load(Ordering::Relaxed) {
            let pairs = (0..FLOOD).map(async |name| {
                let address = format!("/locks/flood-{name}");
                let token = client.put(&address).send().await.expect(201).token();
                client.delete(&address).token(&token).send().await.expect(204);
            });
            join_all(pairs).await;
            happened += 2 * FLOOD;
            tokio::time::sleep(BETWEEN_LOOKS / 3).await;
        }
        happened
    };
    let quiet = async {
        for _ in 0..5 {
            let started = Instant::now();
            let token = client.put("/locks/own").send().await.expect(201).token();
            own.next_news().await.is("granted");
            client.delete("/locks/own").token(&token).send().await.expect(204);
            own.next_news().await.is("released");
            assert!(started.elapsed() < 2 * SOON, "{:?}", started.elapsed());
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (happened, ()) = tokio::join!(flood, quiet);
    // Whoever rested hears of what is done until then by being told to look, and after that by the event itself.
    let mut probe = Stream::open(&client, "prefix=").await;
    kit::eventually("the crowd rests no more", async || {
        let token = client.put("/locks/probe").send().await.expect(201).token();
        client.delete("/locks/probe").token(&token).send().await.expect(204);
        timeout(BETWEEN_LOOKS, probe.of("probe")).await.is_ok()
    })
    .await;
    client.put("/locks/last").send().await.expect(201);
    reads.send_replace(true);
    let all = timeout(kit::PATIENCE, crowd.join_all()).await.expect("one is told nothing of the last lock");
    for (events, looks) in all {
        assert!(looks > 0, "of {happened} events, {events} are told, and none says to look");
        assert!(events < happened, "{events} are told of {happened} events");
    }
}

/// No request tells of the end of a ticket that its client has left.
#[tokio::test(flavor = "multi_thread")]
async fn that_a_ticket_has_ended_is_told_though_nobody_does_anything() {
    let gateway = Gateway::start(&["--store", "memory:", "--ticket-ttl", "1s"]).await;
    let client = Client::new(gateway.address);
    let mut stream = Stream::open(&client, "key=k").await;
    client.put("/locks/k?ttl=5m").send().await.expect(201);
    client.put("/locks/k?ttl=1m&wait=500ms").token(&fresh_token()).send().await.expect(423);
    assert_eq!(stream.until("waiting").await.data["waiters"], 1);
    assert_eq!(stream.until("waiting").await.data["waiters"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_free_lock_begins_with_how_many_tickets_it_has() {
    let gateway = Gateway::start(&["--store", "memory:", "--ticket-ttl", "5m"]).await;
    let client = Client::new(gateway.address);
    let grant = client.put("/locks/k?ttl=5m").send().await.expect(201);
    client.put("/locks/k?ttl=1m&wait=500ms").token(&fresh_token()).send().await.expect(423);
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    let mut stream = Stream::open(&client, "key=k").await;
    assert_eq!(stream.until("waiting").await.data["waiters"], 1);
}
