//! Servers that lose their data one after the other, while another is away or not in the list any more.

use super::{Client, Gateway, Quorum, RedisServer, eventually, ready, url_of};
use kit::quorum::{BRIEF, RECORD, count_at_once, pass_quarantine, shows};

/// A gateway on these servers, with this epoch.
async fn gateway(nodes: &[&RedisServer], epoch: &str) -> Gateway {
    let url = url_of(&nodes.iter().map(|node| node.port()).collect::<Vec<_>>());
    let args = [&BRIEF[..], &["--store", &url, "--redlock-epoch", epoch]].concat();
    Gateway::start(&args).await
}

/// Has a server lose its data, and waits until it is in quarantine.
async fn lose(gateway: &Gateway, node: &RedisServer) {
    let _: () = node.command(&["FLUSHALL"]).await;
    shows(gateway, node, "quarantine").await;
}

/// The first must not be let out alone: it would be taken for one that remembers, and the second wait for the one that is away.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_lose_their_data_one_after_the_other_serve_again_without_the_third() {
    let quorum = Quorum::start(3).await;
    let [a, b, c] = &*quorum.nodes else { unreachable!() };
    let gateway = ready(gateway(&[a, b, c], "1").await).await;
    for node in &quorum.nodes {
        shows(&gateway, node, "counts").await;
    }
    c.stand_still().await;
    shows(&gateway, c, "unusable").await;
    lose(&gateway, a).await;
    pass_quarantine(a).await;
    lose(&gateway, b).await;
    eventually("the gateway has seen some of its quarantine go by", async || {
        let fields = b.command::<Vec<String>>(&["HMGET", RECORD, "since", "served"]).await;
        fields[1].split_once(' ').is_some_and(|(since, _)| since == fields[0])
    })
    .await;
    count_at_once([a, b]).await;
    let gateway = ready(gateway).await;
    Client::new(gateway.address).put("/locks/k?ttl=4s").send().await.expect(201);
}

/// {1,2,3} to {1,2,4}, and a gateway that still has the former list is the first to see that 1 and 2 have lost their data.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_the_former_list_that_starts_first_after_a_loss_keeps_no_server_from_the_later_list() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let former = ready(gateway(&[a, b, c], "1").await).await;
    shows(&former, c, "counts").await;
    drop(former);
    let later = ready(gateway(&[a, b, d], "2").await).await;
    count_at_once([d]).await;
    shows(&later, d, "counts").await;
    drop(later);
    for node in [a, b] {
        let _: () = node.command(&["FLUSHALL"]).await;
    }
    let former = gateway(&[a, b, c], "1").await;
    for node in [a, b] {
        shows(&former, node, "quarantine").await;
    }
    let later = gateway(&[a, b, d], "2").await;
    for node in [a, b] {
        eventually("the later list takes it in", async || {
            node.command::<String>(&["HGET", RECORD, "epoch"]).await == "2"
        })
        .await;
    }
    count_at_once([a, b]).await;
    let later = ready(later).await;
    Client::new(later.address).put("/locks/k?ttl=4s").send().await.expect(201);
}
