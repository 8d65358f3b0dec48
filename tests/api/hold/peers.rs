//! Peers that vanish without a word, that do not read, and whose departure is hidden.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::{Held, Pair, SOON, hold, hold_with, is_free, on_each_pair};
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, PATIENCE, Proxy, eventually, fresh_token, quorum, secrets, sockets};

on_each_pair!(a_late_copy_on_a_dead_connection_does_not_free_a_hold_of_the_same_token);

/// Nothing that is sent to it is acknowledged, and it closes nothing: only the gateway's patience ends it.
async fn a_peer_that_vanishes_is_found_within_one_ttl(client_of: impl Fn(SocketAddr) -> Client) {
    let ttl = Duration::from_secs(3);
    let pair = Pair::embedded().await;
    let proxy = Proxy::start(pair.here.address.port(), Framing::Chunks).await;
    let client = client_of(SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())));
    let mut held = hold(&client, "ttl=3s").await;
    assert_eq!(held.next().await.unwrap().name, "renewed");
    proxy.vanish();
    let vanished = Instant::now();
    let freed = super::is_granted_to_another(&pair.here()).await;
    println!("freed {:?} after the peer has vanished", freed - vanished);
    assert!(freed - vanished <= ttl, "freed after {:?}", freed - vanished);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_vanishes_by_http_1_is_found_within_one_ttl() {
    a_peer_that_vanishes_is_found_within_one_ttl(Client::new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_vanishes_by_http_2_is_found_within_one_ttl() {
    a_peer_that_vanishes_is_found_within_one_ttl(Client::h2c).await;
}

/// While the store does not answer there are no renewals to tell of, and heartbeats find the peer gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_vanishes_while_the_store_is_away_is_found_as_soon() {
    let pair = Pair::redis().await;
    let proxy = Proxy::start(pair.here.address.port(), Framing::Chunks).await;
    let client = Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())));
    let _held = hold(&client, "ttl=3s").await;
    pair.redis_server().signal("STOP");
    proxy.vanish();
    let vanished = Instant::now();
    let port = pair.here.address.port();
    eventually("the connection is given up", async || sockets(port, "01").is_empty()).await;
    let elapsed = vanished.elapsed();
    assert!(elapsed < Duration::from_secs(3) + SOON, "given up after {elapsed:?}");
    pair.redis_server().signal("CONT");
    quorum::is_ready(&pair.there()).await;
    super::is_granted_to_another(&pair.there()).await;
}

/// Its kernel takes what is sent; it may be stopped, or busy, and its work goes on under the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_keeps_its_lease() {
    for pair in [Pair::embedded().await, Pair::redis().await] {
        let mut held = hold(&pair.here(), "ttl=1s").await;
        let number = held.granted.fencing_token();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            let look = pair.there().get("/locks/k").send().await.expect(200);
            assert_eq!(look.fencing_token(), number);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(held.next().await.unwrap().name, "renewed");
        drop(held);
        super::is_granted_to_another(&pair.there()).await;
    }
}

/// Sends the request for the lock `k` and leaves without a look at the answer; the end may be seen early or late.
async fn post_and_leave(pair: &Pair, token: &str, stays: Duration) {
    let mut stream = TcpStream::connect(pair.there.as_ref().unwrap_or(&pair.here).address).await.unwrap();
    let request =
        format!("POST /hold?key=k&ttl=1500ms HTTP/1.1\r\nHost: localhost\r\nLease-Token: {token}\r\n\r\n");
    secrets::remember_head(request.as_bytes());
    stream.write_all(request.as_bytes()).await.unwrap();
    let began = Instant::now();
    // Timers are too coarse for the moment of leaving.
    while began.elapsed() < stays {
        tokio::task::yield_now().await;
    }
}

/// The live one may be told that it is taken over; but the lock stays its token's until it has been.
async fn a_late_copy_on_a_dead_connection_does_not_free_a_hold_of_the_same_token(pair: Pair) {
    let token = fresh_token();
    let mut held = hold_with(&pair.here(), "ttl=1500ms", &token).await;
    let number = held.granted.fencing_token();
    for stays_us in [0, 200, 500, 1_000, 3_000] {
        post_and_leave(&pair, &token, Duration::from_micros(stays_us)).await;
        // Longer than it takes the live one to renew, and a dead one to be found.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(700) {
            let look = pair.here().get("/locks/k").send().await.expect(200);
            assert_eq!(look.fencing_token(), number, "after {stays_us} µs");
            sleep(Duration::from_millis(20)).await;
        }
        // What was taken over is taken up again.
        held = go_on(&pair, held, &token).await;
        assert_eq!(held.granted.fencing_token(), number);
    }
    drop(held);
    super::is_granted_to_another(&pair.there()).await;
}

/// Goes on holding, also where the hold was taken over.
async fn go_on(pair: &Pair, mut held: Held, token: &str) -> Held {
    // What has come in the meantime, and one more.
    let ends_at = Instant::now() + Duration::from_millis(800);
    while let Ok(event) = timeout(ends_at.saturating_duration_since(Instant::now()), held.next()).await {
        let Some(event) = event else { break };
        if event.name == "lost" {
            assert_eq!(event.reason(), "taken-over");
            return hold_with(&pair.here(), "ttl=1500ms", token).await;
        }
    }
    held
}

/// A proxy may hide that its client has gone: then the copy is as good as a hold, and the one before is told so in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_behind_a_proxy_takes_a_hold_over_and_frees_nothing_before_it_is_told() {
    let pair = Pair::redis().await;
    let proxy = Proxy::start(pair.there.as_ref().unwrap().address.port(), Framing::Chunks).await;
    let token = fresh_token();
    let gate = Gate::new();
    let mut passage = proxy.expect("POST /hold", Fate::late(gate.clone()));
    let mut lost = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let request =
        format!("POST /hold?key=k&ttl=3s HTTP/1.1\r\nHost: localhost\r\nLease-Token: {token}\r\n\r\n");
    lost.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(timeout(PATIENCE, lost.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    let mut held = hold_with(&pair.here(), "ttl=3s", &token).await;
    gate.cancel();
    passage.reaches(Progress::Answered).await;
    assert_eq!(held.lost().await.reason(), "taken-over");
    // It is the token's still, and whoever shows it now has it.
    let told = pair.here().patch("/locks/k?ttl=3s").token(&token).send().await.expect(200);
    assert_eq!(told.fencing_token(), held.granted.fencing_token());
    drop(proxy);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        assert!(!is_free(&pair.here()).await, "the copy freed it");
        sleep(Duration::from_millis(20)).await;
    }
}
