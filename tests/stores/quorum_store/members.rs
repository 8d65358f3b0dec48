//! Who is in the quorum: servers that fail, forget, are named twice or are replaced.

use super::{
    Client, Duration, Gateway, Quorum, RedisServer, counts_soon, eventually, has_lock, ready, run, url_of,
    why_not_ready,
};
use kit::Proxy;
use kit::proxy::Framing;
use kit::quorum::{BRIEF, RECORD, count_at_once, count_soon, counts_at_once, does_count, shows};
use tokio::time::Instant;

/// Where a gateway finds these servers.
fn url(nodes: &[&RedisServer]) -> String {
    url_of(&nodes.iter().map(|node| node.port()).collect::<Vec<_>>())
}

async fn gateway(nodes: &[&RedisServer], epoch: &str) -> Gateway {
    Gateway::start(&["--store", &url(nodes), "--redlock-epoch", epoch, "--max-ttl", "1h"]).await
}

fn name(node: &RedisServer) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Has a server know this list.
async fn learn(node: &RedisServer, epoch: &str, list: &str) {
    let record = ["HSET", "fencepost:{quorum}:record", "epoch", epoch, "members", list];
    let _: u64 = node.command(&record).await;
}

/// The epoch of the list that a server knows.
async fn epoch(node: &RedisServer) -> Option<u64> {
    node.command(&["HGET", "fencepost:{quorum}:record", "epoch"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_servers_are_named_with_the_reason_and_one_less_is_not_noticed() {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&[]).await).await;
    let client = Client::new(gateway.address);
    let ports: Vec<_> = quorum.nodes.iter().map(RedisServer::port).collect();
    // The gateway is ready as soon as two of them count.
    count_soon(&quorum.nodes).await;
    quorum.nodes[0].kill();
    let token = client.put("/locks/k?ttl=30s").send().await.expect(201).token();
    client.patch("/locks/k?ttl=30s").token(&token).send().await.expect(200);
    assert_eq!(why_not_ready(&gateway).await, None);
    // It may remember nothing, and must not be believed.
    let _: () = quorum.nodes[1].command(&["FLUSHALL"]).await;
    eventually("it is seen", async || {
        why_not_ready(&gateway).await.is_some_and(|why| why.contains("quarantine"))
    })
    .await;
    let warns = |line: &str| line.contains("\"WARN\"") && line.contains("it may have forgotten locks");
    gateway.logs("the log warns of it", warns).await;
    let why = why_not_ready(&gateway).await.unwrap();
    assert!(why.starts_with("2 of 3 servers are needed, and 1 can be used: "), "{why}");
    assert!(why.contains(&format!("127.0.0.1:{}: in quarantine until 20", ports[1])), "{why}");
    assert!(why.contains(&format!("127.0.0.1:{}: ", ports[0])), "{why}");
    assert!(!why.contains(&ports[2].to_string()), "{why}");
    let refused = client.put("/locks/other").send().await.expect_problem(503, "store-unavailable");
    assert!(refused.json()["detail"].as_str().unwrap().contains("quarantine"));
    // Whoever holds the lock may still hold it: nobody says that it is gone.
    client.patch("/locks/k?ttl=30s").token(&token).send().await.expect(503);
    client.get("/locks/k").send().await.expect(503);
}

/// Nothing else says so: the gateway is ready, and clients notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_dead_or_in_quarantine_is_seen_in_the_numbers() {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    let is = async |node: &RedisServer, expected: &str| shows(&gateway, node, expected).await;
    for node in &quorum.nodes {
        is(node, "counts").await;
    }
    quorum.nodes[0].kill();
    is(&quorum.nodes[0], "unusable").await;
    is(&quorum.nodes[1], "counts").await;
    assert_eq!(why_not_ready(&gateway).await, None);
    quorum.nodes[0].start_again().await;
    is(&quorum.nodes[0], "quarantine").await;
    counts_soon(&quorum.nodes[0]).await;
    is(&quorum.nodes[0], "counts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_named_twice_ends_the_start() {
    let quorum = Quorum::start(2).await;
    let [one, two] = [quorum.nodes[0].port(), quorum.nodes[1].port()];
    let store = format!("redlock://127.0.0.1:{one},localhost:{one},127.0.0.1:{two}");
    let output = run(&["--listen", "127.0.0.1:0", "--store", &store]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let twins = format!("127.0.0.1:{one} and localhost:{one} are the same server");
    assert!(said.lines().last().unwrap().contains(&twins), "{said}");
}

/// Also where that is not known at the start: it has one vote.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turns_out_to_be_named_twice_has_one_vote() {
    let mut quorum = Quorum::start(2).await;
    let [one, two] = [quorum.nodes[0].port(), quorum.nodes[1].port()];
    quorum.nodes.iter_mut().for_each(RedisServer::kill);
    let store = format!("redlock://127.0.0.1:{one},localhost:{one},127.0.0.1:{two}");
    let gateway = Gateway::start(&["--store", &store]).await;
    quorum.nodes[0].start_again().await;
    eventually("the twin is found out", async || {
        why_not_ready(&gateway).await.is_some_and(|why| why.contains("it is the same server as"))
    })
    .await;
    Client::new(gateway.address).put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    let _: Vec<String> = quorum.nodes[0].command(&["KEYS", "*:lock:*"]).await;
}

/// A gateway started while that address led to it, and its own led nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_met_by_the_address_of_one_that_is_away_counts_by_its_own() {
    let quorum = Quorum::start(3).await;
    let [a, b, c] = &*quorum.nodes else { unreachable!() };
    let to_b = Proxy::start(b.port(), Framing::Resp).await;
    let to_c = Proxy::start(c.port(), Framing::Resp).await;
    let url = url_of(&[a.port(), to_b.port(), to_c.port()]);
    let founder = ready(Gateway::start(&["--store", &url]).await).await;
    quorum.is_whole().await;
    drop(founder);
    to_c.set_closed_to_new(true);
    to_b.set_target(c.port());
    let gateway = ready(Gateway::start(&["--store", &url]).await).await;
    to_b.set_closed_to_new(true);
    to_b.sever();
    eventually("one is too few", async || why_not_ready(&gateway).await.is_some()).await;
    to_c.set_closed_to_new(false);
    ready(gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_differ_need_epochs_of_their_own() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let first = ready(gateway(&[a, b, c], "1").await).await;
    let other = gateway(&[a, b, d], "1").await;
    eventually("it says so", async || {
        why_not_ready(&other).await.is_some_and(|why| why.contains("give each list an epoch of its own"))
    })
    .await;
    Client::new(other.address).put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    Client::new(first.address).put("/locks/k").send().await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_replaced_and_neither_a_lock_nor_the_order_is_lost() {
    let mut quorum = Quorum::start(4).await;
    let (list, number, token);
    let (old, new);
    {
        let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
        old = ready(gateway(&[a, b, c], "1").await).await;
        let held = Client::new(old.address).put("/locks/kept?ttl=1h").send().await.expect(201);
        (token, number) = (held.token(), held.fencing_token());
        let client = Client::new(old.address);
        eventually("all have it", async || {
            // The gateway may have met one of them only now: then it is given the lock by a renewal.
            client.patch("/locks/kept?ttl=1h").token(&token).send().await.expect(200);
            has_lock(a, "kept").await && has_lock(b, "kept").await && has_lock(c, "kept").await
        })
        .await;
        list = url(&[a, b, d]);
        new = ready(gateway(&[a, b, d], "2").await).await;
        // From here on whoever has the old list is refused, and says why.
        Client::new(old.address).put("/locks/other").send().await.expect_problem(503, "store-unavailable");
        eventually("the old gateway says why", async || {
            why_not_ready(&old)
                .await
                .is_some_and(|why| why.contains("it knows a later list of servers, that of epoch 2"))
        })
        .await;
        let client = Client::new(new.address);
        client.put("/locks/kept").send().await.expect_problem(423, "lock-held");
        client.patch("/locks/kept?ttl=1h").token(&token).send().await.expect(200);
        // The new server may not count before all leases are over that the old one helped to grant.
        assert!(!has_lock(d, "kept").await, "it is in quarantine");
        assert_eq!((epoch(a).await, epoch(b).await, epoch(c).await), (Some(2), Some(2), Some(1)));
        eventually("it is in quarantine", async || epoch(d).await == Some(2)).await;
        let since: u64 = d.command(&["HGET", "fencepost:{quorum}:record", "since"]).await;
        assert!(since > 0, "the new server counts at once");
        counts_at_once(d).await;
        eventually("the renewal gives it the lock", async || {
            client.patch("/locks/kept?ttl=1h").token(&token).send().await.expect(200);
            has_lock(d, "kept").await
        })
        .await;
    }
    // It stands in for the one that was replaced.
    quorum.nodes[0].kill();
    let client = Client::new(new.address);
    client.patch("/locks/kept?ttl=1h").token(&token).send().await.expect(200);
    client.delete("/locks/kept").token(&token).send().await.expect(204);
    assert!(client.put("/locks/kept").send().await.expect(201).fencing_token() > number);
    assert!(list.contains(&quorum.nodes[3].port().to_string()));
}

/// {1,2,3} to {1,2,4}: else one gateway would grant on {2,3}, and another on {1,4}.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_does_not_count_before_most_of_the_former_servers_have_learned_it() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let old = ready(gateway(&[a, b, c], "1").await).await;
    b.stand_still().await;
    let new = gateway(&[a, b, d], "2").await;
    // It has seen all that it can see, and does nothing.
    eventually("it has looked", async || {
        why_not_ready(&new).await.is_some_and(|why| why.contains("or others of these servers do, are away"))
    })
    .await;
    let looked = tokio::time::Instant::now();
    eventually("the old list goes on while the new one must not count", async || {
        let client = Client::new(old.address);
        let token = client.put("/locks/k").send().await.expect(201).token();
        client.delete("/locks/k").token(&token).send().await.expect(204);
        assert_eq!((epoch(a).await, epoch(d).await), (Some(1), None), "too few have learned it");
        looked.elapsed() > Duration::from_secs(3)
    })
    .await;
    b.signal("CONT");
    ready(new).await;
    assert_eq!((epoch(a).await, epoch(b).await), (Some(2), Some(2)));
    drop(c.command::<String>(&["PING"]).await);
}

/// A gateway with the list {1,2,3}, which both servers that stay have learned after {1,2,4}.
async fn with_the_list_between([a, b, c, d]: [&RedisServer; 4]) -> Gateway {
    let first = ready(gateway(&[a, b, d], "1").await).await;
    eventually("all count", async || epoch(a).await.and(epoch(b).await).and(epoch(d).await).is_some()).await;
    drop(first);
    let between = ready(gateway(&[a, b, c], "2").await).await;
    eventually("both have learned it", async || epoch(a).await == Some(2) && epoch(b).await == Some(2)).await;
    between
}

/// {1,2,4} to {1,2,3} and back. What the list between them granted, the server that it left out does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_into_the_list_counts_after_its_quarantine() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let between = with_the_list_between([a, b, c, d]).await;
    eventually("it is in quarantine", async || epoch(c).await == Some(2)).await;
    counts_at_once(c).await;
    a.stand_still().await;
    eventually("the others grant it", async || {
        let granted = Client::new(between.address).put("/locks/k?ttl=1h").send().await;
        granted.status == 201
    })
    .await;
    a.signal("CONT");
    eventually("both can learn another list", async || why_not_ready(&between).await.is_none()).await;
    let last = ready(gateway(&[a, b, d], "3").await).await;
    eventually("it is taken in", async || epoch(d).await == Some(3)).await;
    let since: u64 = d.command(&["HGET", "fencepost:{quorum}:record", "since"]).await;
    assert!(since > 0, "it counts at once");
    let again = Client::new(last.address).put("/locks/k?ttl=1h").send().await;
    assert_ne!(again.status, 201, "it is granted twice");
}

/// {1,2,4} to {1,2,3} and back, and 4 has learned the last list from the first: it knows nothing of what the second granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_skipped_a_list_keeps_the_next_from_counting_until_it_is_restarted() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    drop(with_the_list_between([a, b, c, d]).await);
    let skip = ["HSET", "fencepost:{quorum}:record", "epoch", "3", "before", "3 1", "settled", "0"];
    let _: u64 = d.command(&skip).await;
    let last = gateway(&[a, b, d], "3").await;
    let name = format!("127.0.0.1:{} has come to this list from an older one: restart it", d.port());
    eventually("it is named", async || why_not_ready(&last).await.is_some_and(|why| why.contains(&name)))
        .await;
    assert_eq!((epoch(a).await, epoch(b).await), (Some(2), Some(2)), "the list counts");
    // Nor does it count where that server is not seen.
    drop(last);
    d.stand_still().await;
    let last = gateway(&[a, b, d], "3").await;
    eventually("it is missed", async || {
        why_not_ready(&last)
            .await
            .is_some_and(|why| why.contains("which is new in the list, does not answer"))
    })
    .await;
    assert_eq!((epoch(a).await, epoch(b).await), (Some(2), Some(2)), "the list counts");
    d.signal("CONT");
}

/// The first server was restarted, and the gateway has seen that.
async fn with_one_in_quarantine() -> (Quorum, Gateway) {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    count_soon(&quorum.nodes).await;
    quorum.nodes[0].kill();
    quorum.nodes[0].start_again().await;
    shows(&gateway, &quorum.nodes[0], "quarantine").await;
    (quorum, gateway)
}

/// Its clock was an hour behind when it began, and then it was set right. A gateway that has just come has not seen that.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_forward_ends_no_quarantine_for_gateways_that_come_later() {
    let (quorum, first) = with_one_in_quarantine().await;
    let node = &quorum.nodes[0];
    drop(first);
    let began_behind = "local time = redis.call('TIME')
        local behind = string.format('%.0f', time[1] * 1000 - 3600000)
        redis.call('HSET', KEYS[1], 'longest', 600000, 'since', behind, 'served', behind .. ' 0 ' .. behind)";
    let _: () = node.command(&["EVAL", began_behind, "1", RECORD]).await;
    let second = ready(quorum.gateway(&BRIEF).await).await;
    shows(&second, node, "quarantine").await;
    let seen_at = Instant::now();
    while seen_at.elapsed() < Duration::from_secs(4) {
        assert_eq!(does_count(node).await, Ok(false), "after {:?}", seen_at.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let page = String::from_utf8(run(&["check", "--store", &quorum.url()]).stdout).unwrap();
    assert!(page.contains("in quarantine for 9m"), "{page}");
    counts_at_once(node).await;
}

/// As a machine that boots with its clock in local time, which is set right then.
#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_whose_clock_is_set_back_behind_its_beginning_begins_anew_and_lasts_no_longer() {
    let (quorum, first) = with_one_in_quarantine().await;
    let node = &quorum.nodes[0];
    drop(first);
    let began_ahead = "local time = redis.call('TIME')
        local ahead = string.format('%.0f', time[1] * 1000 + 3600000)
        redis.call('HSET', KEYS[1], 'since', ahead, 'served', ahead .. ' 9000 ' .. ahead)";
    let _: () = node.command(&["EVAL", began_ahead, "1", RECORD]).await;
    let page = String::from_utf8(run(&["check", "--store", &quorum.url()]).stdout).unwrap();
    assert!(page.contains("in quarantine for 2") && !page.contains("in quarantine for 1h"), "{page}");
    let gateway = quorum.gateway(&BRIEF).await;
    eventually("it begins anew", async || {
        let (now_s, _): (u64, u64) = node.command(&["TIME"]).await;
        let since: u64 = node.command(&["HGET", RECORD, "since"]).await;
        assert!(since > 0, "it is over");
        since / 1_000 <= now_s
    })
    .await;
    shows(&gateway, node, "quarantine").await;
    // What was seen of the one before says nothing.
    eventually("it goes on", async || {
        let served: String = node.command(&["HGET", RECORD, "served"]).await;
        !served.contains(" 9000 ")
    })
    .await;
    counts_soon(node).await;
}

/// Its quarantine does not go on meanwhile. But it is known to be in one, so others need not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_to_write_is_seen_to_be_in_quarantine() {
    let (quorum, gateway) = with_one_in_quarantine().await;
    let node = &quorum.nodes[0];
    let _: () = node.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let served = async || node.command::<Option<String>>(&["HGET", RECORD, "served"]).await;
    let (before, seen_at) = (served().await, Instant::now());
    while seen_at.elapsed() < Duration::from_secs(3) {
        shows(&gateway, node, "quarantine").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(served().await, before);
    let _: () = node.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    counts_at_once(node).await;
}

async fn is_in_quarantine(node: &RedisServer) -> bool {
    node.command::<Option<u64>>(&["HGET", RECORD, "since"]).await.is_some_and(|since| since > 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_evicted_keys_is_in_quarantine_and_helps_nobody_to_what_it_held() {
    let quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    let client = Client::new(gateway.address);
    quorum.is_whole().await;
    let [first, second, third] = &*quorum.nodes else { unreachable!() };
    third.stand_still().await;
    client.put("/locks/k?ttl=4s").send().await.expect(201);
    first.evict().await;
    assert!(!has_lock(first, "k").await && has_lock(second, "k").await);
    eventually("it is in quarantine", async || is_in_quarantine(first).await).await;
    gateway.logs("it is said", |line| line.contains("this Redis has evicted keys")).await;
    third.signal("CONT");
    shows(&gateway, first, "quarantine").await;
    shows(&gateway, third, "counts").await;
    // These two would be most of them, and neither has the lock.
    second.stand_still().await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(503);
    assert!(is_in_quarantine(first).await);
    second.signal("CONT");
    shows(&gateway, second, "counts").await;
    // What it evicts meanwhile it need not know.
    let since = first.command::<u64>(&["HGET", RECORD, "since"]).await;
    first.evict().await;
    let counted = async |count: &str| {
        let known: (Option<String>, Option<String>) =
            first.command(&["HMGET", RECORD, "evictions", "run"]).await;
        known.0 == known.1.map(|run| format!("{run} {count}"))
    };
    eventually("it is counted", async || counted(&first.info("evicted_keys").await).await).await;
    counts_at_once(first).await;
    shows(&gateway, first, "counts").await;
    let looked_at = Instant::now();
    while looked_at.elapsed() < Duration::from_secs(3) {
        assert!(!is_in_quarantine(first).await, "again, since {since}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A count that begins anew says nothing.
    let _: () = first.command(&["CONFIG", "RESETSTAT"]).await;
    eventually("it is noted", async || counted("0").await).await;
    assert!(!is_in_quarantine(first).await);
}

/// As a version has them that notes nothing of what is evicted, or notes it elsewhere. It may have been locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_counts_and_has_evicted_keys_of_which_nothing_was_noted_is_in_quarantine_once() {
    let quorum = Quorum::start(3).await;
    let before = ready(quorum.gateway(&BRIEF).await).await;
    quorum.is_whole().await;
    drop(before);
    let [first, second, third] = &*quorum.nodes else { unreachable!() };
    let _: () = first.command(&["HDEL", RECORD, "evictions"]).await;
    first.evict().await;
    let elsewhere = first.info("evicted_keys").await;
    let _: () = first.command(&["HSET", RECORD, "evicted", &elsewhere]).await;
    // Another process had evicted as many.
    second.evict().await;
    let evicted = format!("gone {}", second.info("evicted_keys").await);
    let _: () = second.command(&["HSET", RECORD, "evictions", &evicted]).await;
    let page = String::from_utf8(run(&["check", "--store", &quorum.url()]).stdout).unwrap();
    assert!(page.matches("or has evicted keys").count() >= 2, "{page}");
    let gateway = quorum.gateway(&BRIEF).await;
    for node in [first, second] {
        eventually("it is in quarantine", async || is_in_quarantine(node).await).await;
    }
    shows(&gateway, third, "counts").await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(503);
    count_at_once([first, second]).await;
    for node in [first, second] {
        shows(&gateway, node, "counts").await;
    }
    let looked_at = Instant::now();
    while looked_at.elapsed() < Duration::from_secs(3) {
        assert!(!is_in_quarantine(first).await && !is_in_quarantine(second).await, "again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // So both versions can run side by side.
    assert_eq!(first.command::<String>(&["HGET", RECORD, "evicted"]).await, elsewhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_evicted_before_the_quorum_was_costs_no_quarantine_and_what_an_operator_accepts_none() {
    let quorum = Quorum::start(3).await;
    let node = &quorum.nodes[0];
    node.evict().await;
    let first = ready(quorum.gateway(&BRIEF).await).await;
    quorum.is_whole().await;
    shows(&first, node, "counts").await;
    drop(first);
    let accepts = ["--redis-accept", "eviction"];
    let accepting = ready(quorum.gateway(&[&BRIEF[..], &accepts].concat()).await).await;
    node.evict().await;
    let _: () = node.command(&["HSET", RECORD, "longest", "1"]).await;
    let is_looked_at = async || node.command::<u64>(&["HGET", RECORD, "longest"]).await > 1;
    eventually("it is looked at", is_looked_at).await;
    assert_eq!(does_count(node).await, Ok(true));
    drop(accepting);
}

/// Else it would learn the later one, and count.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_only_an_earlier_list_is_taken_for_one_that_forgot_when_it_has_evicted_keys() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let first = ready(gateway(&[a, b, c], "1").await).await;
    counts_soon(a).await;
    drop(first);
    // They cannot learn this list, since it is longer.
    let later = gateway(&[a, b, c, d], "2").await;
    eventually("it is looked at", async || {
        let why = why_not_ready(&later).await;
        let counted = a.command::<Option<String>>(&["HGET", RECORD, "evictions"]).await;
        counted.is_some() && why.is_some_and(|why| why.contains("must be as long as the one before"))
    })
    .await;
    a.evict().await;
    eventually("it has forgotten", async || {
        a.command::<String>(&["HGET", RECORD, "run"]).await == "evicted" && epoch(a).await == Some(1)
    })
    .await;
}

/// The gateway has a shorter one, and all records are lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_is_as_long_as_the_longest_lease_that_any_record_has_told_of() {
    let quorum = Quorum::start(3).await;
    let long = ready(quorum.gateway(&["--max-ttl", "1h"]).await).await;
    quorum.is_whole().await;
    drop(long);
    let short = ready(quorum.gateway(&BRIEF).await).await;
    for node in &quorum.nodes {
        shows(&short, node, "counts").await;
    }
    for node in &quorum.nodes {
        let _: () = node.command(&["FLUSHALL"]).await;
    }
    for node in &quorum.nodes {
        eventually("it is in quarantine", async || is_in_quarantine(node).await).await;
        let longest_ms: u64 = node.command(&["HGET", RECORD, "longest"]).await;
        assert!(longest_ms > 3_600_000, "{longest_ms}");
    }
    let page = String::from_utf8(run(&["check", "--store", &quorum.url()]).stdout).unwrap();
    assert_eq!(
        page.matches("in quarantine for 1h").count() + page.matches("in quarantine for 59m").count(),
        6,
        "{page}"
    );
}

/// One start with a longer lease lengthens the quarantines of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_says_that_another_one_has_made_quarantines_longer() {
    let quorum = Quorum::start(3).await;
    let short = ready(quorum.gateway(&BRIEF).await).await;
    let _long = ready(quorum.gateway(&["--max-ttl", "1h"]).await).await;
    let says = |line: &str| {
        line.contains("\"WARN\"")
            && line.contains("quarantines of this quorum now last 1h")
            && line.contains("--max-ttl")
    };
    short.logs("why they last longer", says).await;
}

/// It is of another list with the same epoch, and would wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_gateway_never_takes_in_is_not_shown_in_quarantine() {
    let quorum = Quorum::start(4).await;
    let [a, b, c, d] = &*quorum.nodes else { unreachable!() };
    let _first = ready(gateway(&[a, b, c], "1").await).await;
    let other = gateway(&[a, b, d], "1").await;
    let said =
        format!("{}: 127.0.0.1:{} knows another list of servers with the same epoch", name(d), a.port());
    eventually("it is said", async || why_not_ready(&other).await.is_some_and(|why| why.contains(&said)))
        .await;
    shows(&other, d, "unusable").await;
}

/// The address of one led to a server of another quorum, whose list has a later epoch: that says nothing of this quorum.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_quorum_in_the_place_of_one_keeps_no_server_out_once_it_is_gone() {
    let quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    for node in &quorum.nodes {
        shows(&gateway, node, "counts").await;
    }
    let lost = &quorum.nodes[2];
    learn(lost, "2", "r1:1 r2:1 r3:1").await;
    let says = |line: &str| {
        line.contains("\"WARN\"") && line.contains("it belongs to another quorum: r1:1 r2:1 r3:1")
    };
    gateway.logs("whose it is", says).await;
    shows(&gateway, lost, "unusable").await;
    let _: () = lost.command(&["FLUSHALL"]).await;
    shows(&gateway, lost, "quarantine").await;
}

/// {1,2,3} to {1,2,4}, and 3 forgets: it must not help the former list to grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_has_seen_the_list_after_its_own_takes_no_server_in_and_says_so_of_each() {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    for node in &quorum.nodes {
        shows(&gateway, node, "counts").await;
    }
    let warns = async |what: &str| {
        gateway.logs(what, |line| line.contains("\"WARN\"") && line.contains(what)).await;
    };
    let [a, b, c] = &*quorum.nodes else { unreachable!() };
    learn(c, "2", &format!("{} {} {}", name(a), name(b), "r4:1")).await;
    warns("takes no server in until it is restarted").await;
    let _: () = c.command(&["FLUSHALL"]).await;
    let why = "a server knew a later list, that of epoch 2: this gateway takes no server in";
    warns(why).await;
    shows(&gateway, c, "unusable").await;
    assert_eq!(epoch(c).await, None, "it was taken in");
    let said = format!("{}: {why}", name(c));
    quorum.nodes[0].kill();
    eventually("it is said", async || why_not_ready(&gateway).await.is_some_and(|why| why.contains(&said)))
        .await;
}

/// {1,2,3} to {4,5,6}, one by one, or all were renamed: the last list names none of the first, and is that quorum's all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_has_missed_all_changes_takes_no_server_in() {
    let quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    for node in &quorum.nodes {
        shows(&gateway, node, "counts").await;
    }
    for node in &quorum.nodes {
        learn(node, "4", "r4:1 r5:1 r6:1").await;
    }
    let says = async |why: &str, times: usize| {
        eventually(why, async || {
            why_not_ready(&gateway).await.is_some_and(|said| said.matches(why).count() == times)
        })
        .await;
    };
    says("it knows a later list of servers, that of epoch 4 (r4:1 r5:1 r6:1)", 3).await;
    let _: () = quorum.nodes[0].command(&["FLUSHALL"]).await;
    says("a server knew a later list, that of epoch 4: this gateway takes no server in", 1).await;
    assert_eq!(epoch(&quorum.nodes[0]).await, None, "it was taken in");
}

/// {1,2,3} to {1,2,4}, where 4 is of {4,5,6}: nothing is taken from those.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_list_that_names_a_server_of_another_quorum_is_refused_by_that_name() {
    let quorum = Quorum::start(6).await;
    let [a, b, c, d, e, f] = &*quorum.nodes else { unreachable!() };
    for list in [[a, b, c], [d, e, f]] {
        let gateway = ready(gateway(&list, "1").await).await;
        for node in list {
            shows(&gateway, node, "counts").await;
        }
    }
    let next = gateway(&[a, b, d], "2").await;
    let why = format!("{}: it belongs to another quorum", name(d));
    eventually("it is named", async || why_not_ready(&next).await.is_some_and(|said| said.contains(&why)))
        .await;
    assert_eq!((epoch(a).await, epoch(b).await, epoch(d).await), (Some(1), Some(1), Some(1)));
}
