//! Many who ask for one lock at the same moment, of which most are refused.

use futures_util::future::join_all;

use kit::Client;
use kit::quorum::{self, Quorum};

#[tokio::test(flavor = "multi_thread")]
async fn many_who_are_refused_at_one_moment_share_what_one_is_told_and_no_other_answer() {
    let quorum = Quorum::start(3).await;
    let gateway = quorum.gateway(&[]).await;
    let client = Client::new(gateway.address);
    quorum::is_ready(&client).await;
    let held = client.put("/locks/k?ttl=1m").send().await.expect(201);
    let (token, number) = (held.token(), held.fencing_token());
    let ask = |count: usize| join_all((0..count).map(|_| client.put("/locks/k").send()));
    let before = quorum.nodes[0].calls("evalsha").await;
    for refused in ask(200).await {
        assert_eq!(refused.expect(423).json()["holder"]["fencing_token"], number);
    }
    let scripts = quorum.nodes[0].calls("evalsha").await - before;
    assert!(scripts < 100, "200 refusals took {scripts} scripts of each server");
    // The holder's own request is no refusal, and nor is the first one after the release.
    let (others, own) = tokio::join!(ask(50), client.put("/locks/k?ttl=1m").token(&token).send());
    own.expect(200);
    others.into_iter().for_each(|refused| drop(refused.expect(423)));
    client.delete("/locks/k").token(&token).send().await.expect(204);
    let statuses: Vec<_> = ask(20).await.into_iter().map(|answer| answer.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 423).count(), 19, "{statuses:?}");
}
