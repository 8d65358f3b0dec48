//! Waiting between gateways of a quorum: they are told, they do not ask again and again, and chance decides among them.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Client, Duration, Quorum, eventually, ready};

/// A gateway that was not told looks again after 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_at_one_gateway_reaches_who_waits_at_another() {
    let quorum = Quorum::start(3).await;
    let (here, there) = (ready(quorum.gateway(&[]).await).await, ready(quorum.gateway(&[]).await).await);
    let (here, there) = (Client::new(here.address), Client::new(there.address));
    let mut delays = Vec::new();
    for _ in 0..9 {
        let token = here.put("/locks/k?ttl=1m").send().await.expect(201).token();
        let waiting = tokio::spawn(there.put("/locks/k?ttl=1m&wait=20s").send());
        eventually("it waits", async || there.get("/locks/k").send().await.json()["waiters"] == 1).await;
        let released = Instant::now();
        here.delete("/locks/k").token(&token).send().await.expect(204);
        let token = waiting.await.unwrap().expect(201).token();
        delays.push(released.elapsed());
        there.delete("/locks/k").token(&token).send().await.expect(204);
    }
    delays.sort_unstable();
    assert!(delays[delays.len() / 2] < Duration::from_millis(300), "{delays:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_two_gateways_does_not_ask_again_and_again_and_is_served() {
    const WAITERS: usize = 60;
    let quorum = Quorum::start(3).await;
    let (here, there) = (ready(quorum.gateway(&[]).await).await, ready(quorum.gateway(&[]).await).await);
    let clients = [Client::new(here.address), Client::new(there.address)];
    let token = clients[0].put("/locks/k?ttl=1m").send().await.expect(201).token();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|number| tokio::spawn(clients[number % 2].put("/locks/k?ttl=1m&wait=40s").send()))
        .collect();
    for client in &clients {
        let all = WAITERS as u64 / 2;
        eventually("all wait", async || client.get("/locks/k").send().await.json()["waiters"] == all).await;
    }
    let scripts = async || quorum.nodes[0].calls("evalsha").await;
    let (before, since) = (scripts().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Each gateway looks at the server, and at the lock, a few times a second or less: however many wait.
    let (spent, seconds) = (scripts().await - before, since.elapsed().as_secs_f64());
    assert!(spent as f64 <= 20.0 * (seconds + 1.0), "{spent} scripts in {seconds:.1} s");
    let before = scripts().await;
    clients[0].delete("/locks/k").token(&token).send().await.expect(204);
    let served = join_all(waiters.into_iter().enumerate().map(async |(number, waiter)| {
        let token = waiter.await.unwrap().expect(201);
        clients[number % 2].delete("/locks/k").token(&token.token()).send().await.expect(204);
        token.fencing_token()
    }))
    .await;
    assert_eq!(served.len(), WAITERS);
    let per_grant = (scripts().await - before) as f64 / WAITERS as f64;
    println!("{per_grant:.1} scripts per grant on each server");
    assert!(per_grant < 25.0, "{per_grant:.1} scripts per grant: a storm");
}
