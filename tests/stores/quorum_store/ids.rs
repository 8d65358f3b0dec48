//! The id of a quorum, by which servers of another one with the same names are told apart.

use super::{Client, Gateway, Quorum, RedisServer, eventually, fresh_token, ready, run, why_not_ready};
use kit::quorum::{BRIEF, RECORD, counts_at_once, shows};

/// The id that a server's record has.
async fn id(node: &RedisServer) -> Option<String> {
    node.command(&["HGET", RECORD, "quorum"]).await
}

/// Has a server be one of another quorum with the same list, as where an address leads to that.
async fn belongs_to(node: &RedisServer, quorum: &str) {
    let _: u64 = node.command(&["HSET", RECORD, "quorum", quorum]).await;
}

/// Waits until all have one id; returns it.
async fn common_id(quorum: &Quorum) -> String {
    eventually("all have the id", async || {
        let first = id(&quorum.nodes[0]).await;
        let mut are_alike = first.is_some();
        for node in &quorum.nodes {
            are_alike &= id(node).await == first;
        }
        are_alike
    })
    .await;
    id(&quorum.nodes[0]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_start_together_give_all_servers_one_id_and_one_that_forgot_gets_it_again() {
    let quorum = Quorum::start(3).await;
    let (first, second) = tokio::join!(quorum.gateway(&BRIEF), quorum.gateway(&BRIEF));
    let (first, second) = (ready(first).await, ready(second).await);
    let known = common_id(&quorum).await;
    let _: () = quorum.nodes[2].command(&["FLUSHALL"]).await;
    counts_at_once(&quorum.nodes[2]).await;
    assert_eq!(common_id(&quorum).await, known);
    // All forget, and a gateway starts that has not known it: it is the same, or all gateways make the same new one, and go by it.
    for node in &quorum.nodes {
        let _: () = node.command(&["FLUSHALL"]).await;
    }
    let fresh = quorum.gateway(&BRIEF).await;
    for node in &quorum.nodes {
        counts_at_once(node).await;
    }
    let later = common_id(&quorum).await;
    for gateway in [&first, &second, &ready(fresh).await] {
        for node in &quorum.nodes {
            shows(gateway, node, "counts").await;
        }
    }
    // Those of a version that gave none get one too.
    for node in &quorum.nodes {
        let _: u64 = node.command(&["HDEL", RECORD, "quorum"]).await;
    }
    assert_eq!(common_id(&quorum).await, later);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_quorum_with_the_same_names_has_no_vote_and_is_left_what_it_is() {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    let known = common_id(&quorum).await;
    belongs_to(&quorum.nodes[2], "another").await;
    let says = |line: &str| line.contains("\"WARN\"") && line.contains("it belongs to another quorum");
    gateway.logs("whose it is", says).await;
    shows(&gateway, &quorum.nodes[2], "unusable").await;
    // As soon as its address leads where it should, it counts.
    belongs_to(&quorum.nodes[2], &known).await;
    shows(&gateway, &quorum.nodes[2], "counts").await;
    // The other's is not taken in either if it was restarted.
    belongs_to(&quorum.nodes[2], "another").await;
    let _: u64 = quorum.nodes[2].command(&["HSET", RECORD, "run", "gone"]).await;
    quorum.nodes[0].kill();
    eventually("one is too few", async || {
        why_not_ready(&gateway).await.is_some_and(|why| why.contains("it belongs to another quorum"))
    })
    .await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?ttl=4s").token(&fresh_token()).send().await.expect(503);
    let run: String = quorum.nodes[2].command(&["HGET", RECORD, "run"]).await;
    assert_eq!((run.as_str(), id(&quorum.nodes[2]).await.as_deref()), ("gone", Some("another")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_believes_no_server_before_it_knows_whose_most_of_them_are() {
    let quorum = Quorum::start(3).await;
    let founder = ready(quorum.gateway(&BRIEF).await).await;
    common_id(&quorum).await;
    drop(founder);
    belongs_to(&quorum.nodes[2], "another").await;
    quorum.nodes[0].stand_still().await;
    let unlike = "it belongs to another quorum, or others of these servers do";
    let late: Gateway = quorum.gateway(&BRIEF).await;
    eventually("neither counts", async || {
        why_not_ready(&late).await.is_some_and(|why| why.matches(unlike).count() == 2)
    })
    .await;
    let check = run(&["check", "--store", &quorum.url()]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    assert_eq!(String::from_utf8(check.stdout).unwrap().matches(unlike).count(), 2);
    // With the third, most of them say it.
    quorum.nodes[0].signal("CONT");
    ready(late).await;
}
