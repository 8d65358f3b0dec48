//! Who waits for a lock that several hold: readers and writers, and gateways that are gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::resource::Resource;
use kit::{Client, Gateway, RedisServer, eventually, fresh_token};
use tokio::time::sleep;

/// How long a reader stays.
const LONGEST_STAY: Duration = Duration::from_millis(100);

async fn waiters(client: &Client) -> u64 {
    client.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap()
}

/// S6: else readers that come and go keep the writer waiting for ever.
async fn a_writer_is_granted_among_readers(here: &Client, there: &Client) {
    let is_over = Arc::new(AtomicBool::new(false));
    let read = |at: u64| {
        let (client, is_over) =
            (if at.is_multiple_of(2) { here.clone() } else { there.clone() }, is_over.clone());
        tokio::spawn(async move {
            // Every other one does not wait, and asks again at once.
            let address = format!("/locks/k?slots=any&ttl=5s&wait={}s", if at < 4 { 0 } else { 5 });
            while !is_over.load(Ordering::Relaxed) {
                let token = fresh_token();
                let told = client.put(&address).token(&token).within(Duration::from_secs(20)).send().await;
                if told.status == 201 {
                    sleep(LONGEST_STAY * (at as u32 % 4) / 3).await;
                    client.delete("/locks/k").token(&token).send().await.expect(204);
                }
            }
        })
    };
    let readers: Vec<_> = (0..8).map(read).collect();
    let mut waited = Vec::new();
    for _ in 0..50 {
        eventually("readers hold it", async || here.get("/locks/k").send().await.status == 200).await;
        let (token, asked) = (fresh_token(), Instant::now());
        let told =
            here.put("/locks/k?ttl=5s&wait=30s").token(&token).within(Duration::from_secs(40)).send().await;
        told.expect(201);
        waited.push(asked.elapsed());
        here.delete("/locks/k").token(&token).send().await.expect(204);
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    waited.sort_unstable();
    // Where the machine itself stands still, a few may come later.
    assert!(waited[45] < LONGEST_STAY + Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_is_granted_among_readers_that_ask_anew_without_a_pause_embedded() {
    let gateway = Gateway::embedded(&[]).await;
    let client = Client::new(gateway.address);
    a_writer_is_granted_among_readers(&client, &client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_is_granted_among_readers_that_ask_anew_without_a_pause_redis() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    a_writer_is_granted_among_readers(&here, &there).await;
}

/// Nobody looks before the end of the first lease, which is an hour away, unless somebody looks each second.
#[tokio::test(flavor = "multi_thread")]
async fn readers_behind_a_writer_whose_gateway_is_killed_are_in_within_three_seconds() {
    let redis = RedisServer::start().await;
    let (here, mut there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let (client, to_there) = (Client::new(here.address), Client::new(there.address));
    client.put("/locks/k?slots=any&ttl=1h").send().await.expect(201);
    let writer =
        tokio::spawn(to_there.put("/locks/k?ttl=1m&wait=1m").within(Duration::from_secs(70)).try_send());
    eventually("the writer waits", async || waiters(&client).await == 1).await;
    let read = || {
        tokio::spawn(client.put("/locks/k?slots=any&ttl=1m&wait=30s").within(Duration::from_secs(40)).send())
    };
    let readers = [read(), read(), read()];
    eventually("the readers wait", async || waiters(&client).await == 4).await;
    there.kill();
    let killed = Instant::now();
    for reader in readers {
        reader.await.unwrap().expect(201);
    }
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    assert!(writer.await.unwrap().is_err(), "its gateway is gone");
}

/// It was all that kept them waiting, so they need not wait until somebody looks, which is once a second.
#[tokio::test(flavor = "multi_thread")]
async fn readers_behind_a_writer_that_leaves_are_in_at_once() {
    let redis = RedisServer::start().await;
    for gateway in [Gateway::on_redis(&redis, &[]).await, Gateway::embedded(&[]).await] {
        let client = Client::new(gateway.address);
        client.put("/locks/k?slots=any&ttl=1h").send().await.expect(201);
        let mut took = Vec::new();
        for round in 0..9 {
            let token = fresh_token();
            let wait = if round % 3 == 0 { "1s" } else { "1m" };
            let call = client.put(&format!("/locks/k?ttl=1m&wait={wait}")).within(Duration::from_secs(70));
            let call = if round % 3 == 1 { call.token(&token) } else { call };
            let writer = tokio::spawn(call.try_send());
            eventually("the writer waits", async || waiters(&client).await == 1).await;
            let call = client.put("/locks/k?slots=any&ttl=1m&wait=30s").within(Duration::from_secs(40));
            let reader = tokio::spawn(call.send());
            eventually("the reader waits", async || waiters(&client).await == 2).await;
            // Its wait ends, it releases its ticket, or its client goes.
            let mut left = Instant::now();
            match round % 3 {
                0 => {
                    writer.await.unwrap().unwrap().expect(423);
                    left = Instant::now();
                }
                1 => drop(client.delete("/locks/k").token(&token).send().await.expect(204)),
                _ => writer.abort(),
            }
            reader.await.unwrap().expect(201);
            took.push(left.elapsed());
        }
        assert!(took.iter().sum::<Duration>() < Duration::from_millis(2500), "{took:?}");
    }
}

/// S1, S6, S7: a request stands aside for another of its token, which bears more or fewer. What that one said counts no more once it
/// has left.
async fn a_ticket_that_comes_back_says_what_its_request_said(here: &Client, there: &Client) {
    const LONG: Duration = Duration::from_secs(40);
    let wait = |client: &Client, token: &str, query: &str| {
        tokio::spawn(client.put(&format!("/locks/k?ttl=1m&{query}")).token(token).within(LONG).send())
    };
    let hold = async |query: &str| {
        let token = fresh_token();
        here.put(&format!("/locks/k?ttl=1m&{query}")).token(&token).send().await.expect(201);
        token
    };
    let leave = async |token: &str| drop(here.delete("/locks/k").token(token).send().await.expect(204));
    // So many wait, the token among them, and for a moment it asks in another way.
    let ask_otherwise = async |token: &str, count: u64, query: &str| {
        eventually("they wait", async || waiters(here).await == count).await;
        wait(there, token, query).await.unwrap().expect(423);
    };

    // It asks for the lock alone, and is not let in beside another.
    let (one, other, token) = (hold("slots=2").await, hold("slots=2").await, fresh_token());
    let waiting = wait(here, &token, "wait=30s");
    ask_otherwise(&token, 1, "slots=2&wait=1s").await;
    leave(&one).await;
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..8 {
        pace.tick().await;
        here.patch("/locks/k?ttl=1m").token(&other).send().await.expect(200);
    }
    leave(&other).await;
    waiting.await.unwrap().expect(201);
    leave(&token).await;

    // Those behind it who bear many do not pass it.
    let (writer, token, reader) = (hold("").await, fresh_token(), fresh_token());
    let waiting = wait(here, &token, "wait=30s");
    ask_otherwise(&token, 1, "slots=any&wait=1s").await;
    let behind = wait(here, &reader, "slots=any&wait=30s");
    eventually("both wait", async || waiters(here).await == 2).await;
    leave(&writer).await;
    waiting.await.unwrap().expect(201);
    leave(&token).await;
    behind.await.unwrap().expect(201);
    leave(&reader).await;

    // It bears many, and is let in as soon as the writer before it has gone.
    let (holder, writer, token) = (hold("slots=any").await, fresh_token(), fresh_token());
    let before = wait(here, &writer, "wait=30s");
    eventually("the writer waits", async || waiters(here).await == 1).await;
    let waiting = wait(here, &token, "slots=any&wait=30s");
    ask_otherwise(&token, 2, "wait=1s").await;
    leave(&writer).await;
    let left = Instant::now();
    waiting.await.unwrap().expect(201);
    assert!(left.elapsed() < Duration::from_secs(3), "{:?}", left.elapsed());
    before.await.unwrap().expect_problem(409, "token-released");
    leave(&token).await;
    leave(&holder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_comes_back_says_what_its_request_said_embedded() {
    let gateway = Gateway::embedded(&[]).await;
    let client = Client::new(gateway.address);
    a_ticket_that_comes_back_says_what_its_request_said(&client, &client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_comes_back_says_what_its_request_said_redis() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let [here, there] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    a_ticket_that_comes_back_says_what_its_request_said(&here, &there).await;
}

/// The oldest of those who hold it has the smallest number, and is in its right.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_paused_is_refused_by_its_slot_and_one_number_for_all_refuses_the_rightful() {
    let gateway = Gateway::embedded(&[]).await;
    let client = Client::new(gateway.address);
    let take = async |ttl: &str| {
        let told = client.put(&format!("/locks/k?slots=2&wait=5s&ttl={ttl}")).send().await.expect(201).json();
        (told["slot"].as_u64().unwrap(), told["fencing_token"].as_u64().unwrap())
    };
    let (paused, rightful) = (take("300ms").await, take("1m").await);
    let (mut by_slot, mut one_for_all) = (BTreeMap::<u64, Resource>::new(), Resource::default());
    let mut may_write = |(slot, number): (u64, u64)| by_slot.entry(slot).or_default().read(number).is_some();
    assert!(may_write(paused) && may_write(rightful));
    // The first is paused for longer than its lease, and another has its slot.
    let successor = take("1m").await;
    assert_eq!(successor.0, paused.0);
    assert!(may_write(successor) && !may_write(paused) && may_write(rightful));
    assert!(one_for_all.read(rightful.1).is_some() && one_for_all.read(successor.1).is_some());
    assert!(one_for_all.read(rightful.1).is_none(), "one number for all refuses who holds slot 2");
}
