//! A server of the minority that has just fallen silent, and is believed to be there.

use std::time::Duration;

use tokio::time::Instant;

use kit::quorum::{self, Quorum};
use kit::{Client, fresh_token};

/// Less than the time of a request, for which it was waited for.
const SOON: Duration = Duration::from_millis(900);

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_asks_again_does_not_wait_for_a_silent_server() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    quorum::asks_all(&gateway, &quorum).await;
    let token = fresh_token();
    client.put("/locks/k?ttl=1m").token(&token).send().await.expect(201);
    quorum.nodes[2].signal("STOP");
    let started = Instant::now();
    client.put("/locks/k?ttl=2m").token(&token).send().await.expect(200);
    let took = started.elapsed();
    quorum.nodes[2].signal("CONT");
    assert!(took < SOON, "{took:?}");
}
